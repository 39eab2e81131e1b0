//! A running engine: its listeners on a thread of their own, so that tests with and without an
//! async runtime can start one.

use crate::json::Value;
use crate::options::{EventOptions, Options};
use crate::publisher::{Format, Publisher};
use crate::record::Record;
use crate::server::{AnswerBody, Dropped};
use crate::state::{EventPorts, State, ToPublisher};
use crate::version::Release;
use crate::{control, server};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Between looks at the records while waiting for one.
const LOOK: Duration = Duration::from_millis(2);

/// Stops, closing every connection, when dropped. What can be set and seen is on [`State`].
pub struct Engine {
    address: SocketAddr,
    control: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Errors: an address that cannot be listened on.
    pub fn start(options: Options) -> io::Result<Self> {
        let listen = |address: SocketAddr| {
            let listener = StdListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        };
        let (engine, control) = (listen(options.listen)?, listen(options.control)?);
        let (address, control_address) = (engine.local_addr()?, control.local_addr()?);
        let state = Arc::new(State::new(options));
        let (stop, stopped) = oneshot::channel();
        let (publishes, published) = std::sync::mpsc::channel();
        let shared = state.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name("stand-in-engine".into())
            .spawn(move || {
                runtime.block_on(async {
                    let events = publish(shared.clone()).await;
                    let _ = publishes.send(());
                    let engine = accept(engine, shared.clone(), server::handle);
                    let control = accept(control, shared, control::handle);
                    tokio::select! {
                        () = engine => {}
                        () = control => {}
                        () = events => {}
                        _ = stopped => {}
                    }
                });
            })?;
        // The ports of events are known then.
        let _ = published.recv();
        Ok(Self {
            address,
            control: control_address,
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn control_address(&self) -> SocketAddr {
        self.control
    }

    /// As [`State::place`], for a body as it goes over the wire.
    pub fn place(
        &self,
        path: &str,
        body: &[u8],
        from: usize,
        to: usize,
        tier: &str,
    ) -> Result<(), String> {
        let body = Value::parse(body).map_err(|error| error.to_string())?;
        self.state.place(path, &body, from, to, tier)
    }

    /// As [`State::evidence`], for a body as it goes over the wire.
    pub fn evidence(&self, path: &str, body: &[u8]) -> Result<serde_json::Value, String> {
        let body = Value::parse(body).map_err(|error| error.to_string())?;
        self.state.evidence(path, &body)
    }

    /// As [`State::evict`], for a body as it goes over the wire.
    pub fn evict(
        &self,
        path: &str,
        body: &[u8],
        from: usize,
        to: usize,
        tier: &str,
    ) -> Result<(), String> {
        let body = Value::parse(body).map_err(|error| error.to_string())?;
        self.state.evict(path, &body, from, to, tier)
    }

    /// As [`State::restart`], from async code.
    pub async fn restarted(&self) {
        let _ = self.state.restart().await;
    }

    /// As [`State::restart`]; waits until events are published again. Not from async code.
    pub fn restart(&self) {
        let _ = self.state.restart().blocking_recv();
    }

    /// The records once the condition holds for them; what there is then is the error.
    pub fn wait_for(
        &self,
        limit: Duration,
        condition: impl Fn(&[Record]) -> bool,
    ) -> Result<Vec<Record>, Vec<Record>> {
        let end = Instant::now() + limit;
        loop {
            let records = self.state.records();
            if condition(&records) {
                return Ok(records);
            }
            if Instant::now() >= end {
                return Err(records);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The records once `count` requests are answered.
    pub fn wait_answered(&self, count: usize, limit: Duration) -> Result<Vec<Record>, Vec<Record>> {
        self.wait_for(limit, |records| {
            records.iter().filter(|record| record.answered).count() >= count
        })
    }

    /// Closes every connection and frees the ports.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Deref for Engine {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Opens the sockets of events; the future that comes back never ends and owns them.
async fn publish(state: Arc<State>) -> impl Future<Output = ()> {
    let format = |state: &State| {
        let four = Release::of(&state.version()) >= Release::REPLAY_WITH_TOPIC;
        if four { Format::Four } else { Format::Three }
    };
    let opened = match &state.options.events {
        None => None,
        Some(EventOptions {
            port,
            replay_port,
            topic,
            without_replay,
        }) => {
            let replay = (!without_replay).then(|| format(&state));
            let publisher = Publisher::at(*port, *replay_port, replay, topic).await;
            let (to, orders) = mpsc::unbounded_channel();
            let ports = EventPorts {
                publisher: publisher.port,
                replay: replay.map(|_| publisher.replay_port),
            };
            state.publish_to(to, ports);
            Some((publisher, orders))
        }
    };
    async move {
        if let Some((mut publisher, mut orders)) = opened {
            while let Some(order) = orders.recv().await {
                match order {
                    ToPublisher::Batch(payload) => publisher.publish(payload).await,
                    ToPublisher::Lost => publisher.lose(),
                    ToPublisher::Restart(done) => {
                        let replays = state.event_ports().is_some_and(|it| it.replay.is_some());
                        let replay = replays.then(|| format(&state));
                        publisher = publisher.restart(replay).await;
                        let _ = done.send(());
                    }
                }
            }
        }
        std::future::pending().await
    }
}

async fn accept<F>(
    listener: StdListener,
    state: Arc<State>,
    handle: fn(Arc<State>, Request<Incoming>) -> F,
) where
    F: Future<Output = Result<Response<AnswerBody>, Dropped>> + Send + 'static,
{
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: the next try may do better.
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(state.clone(), request));
            // An error is the peer's doing, or ours on purpose.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
