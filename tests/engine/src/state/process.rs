//! The engine as a process: what it publishes, and that it can begin anew.

use super::{Inner, State, unix_ms};
use crate::events;
use crate::metrics::Figures;
use crate::version::Release;
use tokio::sync::{mpsc, oneshot};

/// To the task that owns the sockets of events.
#[derive(Debug)]
pub(crate) enum ToPublisher {
    Batch(Vec<u8>),
    /// A batch is lost: it has a number, and neither subscribers nor replays ever see it.
    Lost,
    /// Another process: closed connections, and numbers from 0. Answered when it publishes.
    Restart(oneshot::Sender<()>),
}

/// Where an engine publishes, on 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPorts {
    pub publisher: u16,
    pub replay: Option<u16>,
}

/// What was sent, by all processes of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    pub batches: u64,
    pub events: u64,
}

impl State {
    pub(crate) fn publish_to(&self, to: mpsc::UnboundedSender<ToPublisher>, ports: EventPorts) {
        let mut inner = self.inner();
        inner.publisher = Some(to);
        inner.ports = Some(ports);
    }

    pub fn event_ports(&self) -> Option<EventPorts> {
        self.inner().ports
    }

    /// `GET /kv_event_sources`, from 0.31 on.
    pub(crate) fn event_sources(&self) -> Option<serde_json::Value> {
        let inner = self.inner();
        let exists = Release::of(&inner.version) >= Release::KV_EVENT_SOURCES;
        let endpoint = |port: u16| format!("tcp://*:{port}");
        let topic = self.options.events.as_ref().map(|events| &events.topic);
        exists.then(|| {
            serde_json::json!({"0": {
                "enable_kv_cache_events": inner.ports.is_some(),
                "publisher": "zmq",
                "endpoint": inner.ports.map(|ports| endpoint(ports.publisher)),
                "replay_endpoint": inner.ports.and_then(|ports| ports.replay).map(endpoint),
                "topic": topic,
            }})
        })
    }

    pub fn published(&self) -> Published {
        self.inner().published
    }

    /// The next batches are lost for good.
    pub fn lose_events(&self, batches: usize) {
        self.inner().lose = batches;
    }

    /// Another process of this engine: nothing in the GPU and the primary tier, figures and event numbers
    /// from 0. The HTTP port stays open meanwhile. The receiver is told when events are published again.
    pub fn restart(&self) -> oneshot::Receiver<()> {
        let (done, told) = oneshot::channel();
        let mut inner = self.inner();
        let hasher = self.options.hasher(&inner.version);
        inner.cache.restart(hasher);
        inner.figures = Figures {
            running: inner.figures.running,
            ..Figures::default()
        };
        // Without a publisher `done` is dropped, which wakes the receiver too.
        if let Some(publisher) = &inner.publisher {
            let _ = publisher.send(ToPublisher::Restart(done));
        }
        told
    }
}

impl Inner {
    /// Hands over what the cache has to tell, under the lock: the order is the cache's.
    pub(super) fn publish(&mut self) {
        let release = Release::of(&self.version);
        let time = unix_ms() as f64 / 1000.0;
        for batch in self.cache.take_batches() {
            let Some(publisher) = &self.publisher else {
                continue;
            };
            let lost = self.lose > 0;
            if !lost {
                self.published.batches += 1;
                self.published.events += batch.len() as u64;
            }
            self.lose = self.lose.saturating_sub(1);
            let message = if lost {
                ToPublisher::Lost
            } else {
                ToPublisher::Batch(events::batch(time, &batch, release))
            };
            // An error means that the engine is stopping.
            let _ = publisher.send(message);
        }
    }
}
