//! vLLM's publisher of KV events: PUB, and a ROUTER that replays what is buffered. Also used by the
//! bridge's own tests.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// vLLM up to 0.25: `"", seq, payload`.
    Three,
    /// From 0.26 on: `"", topic, seq, payload`.
    Four,
}

pub const FORMATS: [Format; 2] = [Format::Three, Format::Four];

/// `buffer_steps`, vLLM's default.
const BUFFER_STEPS: usize = 10_000;

#[derive(Default)]
pub struct Buffer {
    batches: VecDeque<(u64, Bytes)>,
    /// Sequences that the next replay leaves out, as a ROUTER does towards a slow peer.
    pub drop_once: Vec<u64>,
    pub replays: u64,
}

pub struct Publisher {
    publisher: PubSocket,
    router: Option<JoinHandle<()>>,
    pub buffer: Arc<Mutex<Buffer>>,
    pub port: u16,
    pub replay_port: u16,
    pub topic: String,
    pub next: u64,
}

/// Opens a socket, also where one was closed a moment ago.
async fn bind<S: Socket>(port: u16) -> (S, u16) {
    loop {
        let mut socket = S::new();
        if let Ok(endpoint) = socket.bind(&format!("tcp://127.0.0.1:{port}")).await {
            let text = endpoint.to_string();
            if let Some(port) = text.rsplit(':').next().and_then(|port| port.parse().ok()) {
                return (socket, port);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Publisher {
    /// Binds both sockets.
    pub async fn start(format: Format) -> Self {
        Self::at(0, 0, Some(format), "").await
    }

    pub async fn without_replay() -> Self {
        Self::at(0, 0, None, "").await
    }

    pub async fn at(port: u16, replay_port: u16, format: Option<Format>, topic: &str) -> Self {
        let (publisher, port) = bind::<PubSocket>(port).await;
        Self::around(publisher, port, replay_port, format, topic).await
    }

    /// Connects out to a bridge, once it listens.
    pub async fn connect(port: u16, format: Option<Format>, topic: &str) -> Self {
        let mut publisher = PubSocket::new();
        let bridge = format!("tcp://127.0.0.1:{port}");
        while publisher.connect(&bridge).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self::around(publisher, port, 0, format, topic).await
    }

    async fn around(
        publisher: PubSocket,
        port: u16,
        replay_port: u16,
        format: Option<Format>,
        topic: &str,
    ) -> Self {
        let buffer = Arc::new(Mutex::new(Buffer::default()));
        let mut engine = Self {
            publisher,
            router: None,
            buffer,
            port,
            replay_port,
            topic: topic.into(),
            next: 0,
        };
        if let Some(format) = format {
            let (router, port) = bind::<RouterSocket>(replay_port).await;
            engine.replay_port = port;
            engine.router = Some(tokio::spawn(replay(
                router,
                engine.buffer.clone(),
                format,
                topic.to_owned(),
            )));
        }
        engine
    }

    /// Ends this process and starts another at the same ports.
    pub async fn restart(self, format: impl Into<Option<Format>>) -> Self {
        let (port, replay_port, topic) = (self.port, self.replay_port, self.topic.clone());
        self.end().await;
        Self::at(port, replay_port, format.into(), &topic).await
    }

    pub async fn end(mut self) {
        if let Some(router) = self.router.take() {
            router.abort();
            let _ = router.await;
        }
        let _ = self.publisher.close().await;
    }

    pub fn port_of(&self) -> String {
        format!("connect: 'tcp://127.0.0.1:{}'", self.port)
    }

    /// `connect` and `replay` of the configuration.
    pub fn ports_of(&self) -> String {
        format!(
            "{}, replay: 'tcp://127.0.0.1:{}'",
            self.port_of(),
            self.replay_port
        )
    }

    pub async fn publish(&mut self, payload: impl Into<Bytes>) {
        let payload = payload.into();
        let seq = self.keep(payload.clone());
        self.send(seq, payload).await;
    }

    /// Like a batch that was lost on its way: buffered, not sent.
    pub fn keep(&mut self, payload: impl Into<Bytes>) -> u64 {
        let seq = self.next;
        self.next += 1;
        let mut buffer = locked(&self.buffer);
        buffer.batches.push_back((seq, payload.into()));
        if buffer.batches.len() > BUFFER_STEPS {
            buffer.batches.pop_front();
        }
        seq
    }

    /// Like a batch that nobody will ever see.
    pub fn lose(&mut self) {
        self.next += 1;
    }

    pub async fn send(&mut self, seq: u64, payload: Bytes) {
        self.raw(vec![
            Bytes::from(self.topic.clone()),
            Bytes::copy_from_slice(&seq.to_be_bytes()),
            payload,
        ])
        .await;
    }

    pub async fn raw(&mut self, parts: Vec<Bytes>) {
        if let Ok(message) = ZmqMessage::try_from(parts) {
            // Subscribers come and go; what one has missed it asks for.
            let _ = self.publisher.send(message).await;
        }
    }

    /// The buffer turned over: the oldest `count` batches are gone.
    pub fn forget(&self, count: usize) {
        locked(&self.buffer).batches.drain(..count);
    }
}

fn locked(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn replay(
    mut router: RouterSocket,
    buffer: Arc<Mutex<Buffer>>,
    format: Format,
    topic: String,
) {
    while let Ok(request) = router.recv().await {
        let parts = request.into_vec();
        let [identity, delimiter, from] = parts.as_slice() else {
            continue;
        };
        let Ok(from) = <[u8; 8]>::try_from(from.as_ref()).map(u64::from_be_bytes) else {
            continue;
        };
        assert!(delimiter.is_empty(), "a request begins with an empty frame");
        let batches: Vec<(u64, Bytes)> = {
            let mut buffer = locked(&buffer);
            buffer.replays += 1;
            let dropped = std::mem::take(&mut buffer.drop_once);
            let batches = buffer.batches.iter();
            batches
                .filter(|(seq, _)| *seq >= from && !dropped.contains(seq))
                .cloned()
                .collect()
        };
        let end = (u64::MAX, Bytes::new());
        for (seq, payload) in batches.into_iter().chain([end]) {
            let mut parts = vec![identity.clone(), Bytes::new()];
            if format == Format::Four {
                parts.push(Bytes::from(topic.clone()));
            }
            parts.extend([Bytes::copy_from_slice(&seq.to_be_bytes()), payload]);
            let Ok(message) = ZmqMessage::try_from(parts) else {
                break;
            };
            if router.send(message).await.is_err() {
                break;
            }
        }
    }
}
