//! `kv-prefetch-agent`: is told the digests of a prompt's blocks and reads the heads of their files, so
//! that the file system brings cold ones back before the engine asks. docs/kv-prefetch-agent.md is
//! its manual.
//!
//! A message ([`message`], [`server`]) → files ([`layout`], of the [`directories`] that there are) → the
//! queue and its readers ([`pool`], [`head`]).

pub mod config;
mod connector;
mod counts;
mod digest;
mod directories;
mod engine;
pub mod head;
mod layout;
mod message;
mod metrics;
mod pool;
mod server;

use crate::common::address::Address;
use crate::common::cli::Program;
use crate::common::settings::{Error, Log};
use crate::common::token::Token;
use crate::common::{add, client, http, named};
use config::Config;
use counts::Counts;
use directories::{Directories, Directory};
use engine::Mismatch;
use head::{Promote, ReadHead};
use pool::Pool;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// The first look at `rootDir` may take this long before the agent serves without it.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Readers that hang in the file system for longer are left behind when the program ends.
const DRAIN: Duration = Duration::from_secs(5);
/// Longest `/metrics` of an engine (bytes).
const MAX_METRICS: usize = 8 << 20;

/// What requests, readers and the operator's view share.
struct Agent {
    token: Token,
    max_digests: usize,
    max_body: usize,
    pool: Arc<Pool>,
    counts: Arc<Counts>,
    directories: watch::Receiver<Arc<[Directory]>>,
    mismatches: Mutex<Vec<Mismatch>>,
}

impl Agent {
    fn directories(&self) -> Arc<[Directory]> {
        self.directories.borrow().clone()
    }

    fn mismatches(&self) -> Vec<Mismatch> {
        self.mismatches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Asks the engine now and then, and says what differs when it begins to.
    async fn watch_engine(self: Arc<Self>, api: Address, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reached = true;
        loop {
            ticks.tick().await;
            let metrics = match client::fetch(&api, "/metrics", MAX_METRICS).await {
                Ok(body) => body,
                Err(error) => {
                    add(&self.counts.engine_failed, 1);
                    if std::mem::replace(&mut reached, false) {
                        tracing::warn!(engine = %api, %error, "the engine cannot be asked for its configuration");
                    }
                    continue;
                }
            };
            reached = true;
            add(&self.counts.engine_ok, 1);
            let wrong = engine::compare(&String::from_utf8_lossy(&metrics), &self.directories());
            let mut known = self
                .mismatches
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for wrong in wrong.iter().filter(|wrong| !known.contains(wrong)) {
                tracing::warn!(
                    field = wrong.field.as_str(),
                    engine = wrong.engine,
                    here = wrong.here,
                    "the engine's files cannot be found: it says something else than the agent reads by"
                );
            }
            *known = wrong;
        }
    }
}

/// An agent at work.
pub struct Prefetch {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
    asking: Option<JoinHandle<()>>,
    pool: Arc<Pool>,
    /// Dropped, it ends the thread that looks at `rootDir`.
    _looking: mpsc::Sender<()>,
}

impl Prefetch {
    pub async fn start(config: Config) -> io::Result<Self> {
        Self::start_with(config, Arc::new(ReadHead)).await
    }

    /// With another way to read. Errors name what failed.
    pub async fn start_with(config: Config, promote: Arc<dyn Promote>) -> io::Result<Self> {
        let token = Token::read(config.token_file.as_deref()).await?;
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| named(&format!("listen: {}", config.listen), &error))?;
        let address = listener.local_addr()?;
        let counts = Arc::new(Counts::default());
        let pool = Pool::start(config.pool, promote, counts.clone())
            .map_err(|error| named("maxConcurrentFiles", &error))?;

        let (found, directories) = watch::channel(Arc::from([]));
        let (first, looked) = oneshot::channel();
        let (looking, ended) = mpsc::channel();
        let look = Directories::new(&config, counts.clone());
        let every = config.check_interval;
        // A thread of its own, which may hang in the file system as long as that likes.
        std::thread::Builder::new()
            .name("directories".into())
            .spawn(move || look_again(look, &found, first, every, &ended))?;
        if timeout(FIRST_LOOK, looked).await.is_err() {
            tracing::warn!(root = %config.root.display(), "rootDir does not answer; serving without it");
        }

        let (stop, stopped) = watch::channel(false);
        let agent = Arc::new(Agent {
            token,
            max_digests: config.max_digests,
            max_body: config.max_body,
            pool: pool.clone(),
            counts,
            directories,
            mismatches: Mutex::default(),
        });
        let asking = config
            .engine
            .map(|api| tokio::spawn(agent.clone().watch_engine(api, every)));
        let served = tokio::spawn(http::serve(
            agent,
            listener,
            config.max_connections,
            stopped,
        ));
        tracing::info!(%address, root = %config.root.display(), model = config.model, "serving");
        Ok(Self {
            address,
            stop,
            served,
            asking,
            pool,
            _looking: looking,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers what was asked, drops what waits, lets readers finish the file that they are at.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.pool.close();
        let _ = self.served.await;
        if let Some(asking) = self.asking {
            asking.abort();
        }
        let drained = timeout(DRAIN, async {
            while !self.pool.ended() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!("the file system still holds a reader");
        }
        tracing::info!("stopped");
    }
}

fn look_again(
    mut look: Directories,
    found: &watch::Sender<Arc<[Directory]>>,
    first: oneshot::Sender<()>,
    every: Duration,
    ended: &mpsc::Receiver<()>,
) {
    let mut first = Some(first);
    loop {
        if let Some(now) = look.look() {
            found.send_replace(now.into());
        }
        if let Some(first) = first.take() {
            let _ = first.send(());
        }
        if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

impl Program for Prefetch {
    const NAME: &'static str = "kv-prefetch-agent";
    type Config = Config;

    fn parse(text: &str) -> Result<Config, Error> {
        Config::parse(text)
    }

    fn log(config: &Config) -> Log {
        config.log
    }

    fn summary(config: &Config) -> String {
        format!("files of {} in {}", config.model, config.root.display())
    }

    fn start(config: Config) -> impl Future<Output = io::Result<Self>> {
        Prefetch::start(config)
    }

    fn stop(self) -> impl Future<Output = ()> {
        Prefetch::stop(self)
    }
}
