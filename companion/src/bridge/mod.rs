//! `kv-events-bridge`: takes KV events from vLLM's ZeroMQ publishers and keeps them for Envoys to
//! pull over HTTP. docs/kv-events-bridge.md is its manual.
//!
//! Bytes flow one way: a connection ([`link`]) → the follower of its engine rank ([`source`], which
//! asks for replays) → the log ([`log`], in the [`hub`]) → pages ([`page`], [`server`]).

pub mod config;
pub mod cursor;
mod discover;
mod hub;
mod link;
mod log;
mod metrics;
mod page;
mod replay;
mod server;
mod source;
mod zmtp;

use crate::common::address::Address;
use crate::common::cli::Program;
use crate::common::settings::{Error, Log};
use crate::common::token::Token;
use crate::common::{http, named};
use config::{Config, Engine, From};
use hub::Hub;
use link::{Sink, Target};
use server::{SPARE_CONNECTIONS, Server};
use source::Follower;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Batches of one source on their way to its follower. Beyond that TCP holds the publisher back.
const BATCHES_AHEAD: usize = 64;

/// A bridge at work.
pub struct Bridge {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    served: tokio::task::JoinHandle<()>,
    engines: JoinSet<()>,
}

impl Bridge {
    /// Opens every listening socket, so that what cannot work is said at once; engines are reached
    /// in the background. Errors name what failed.
    pub async fn start(config: Config) -> io::Result<Self> {
        let token = Token::read(config.token_file.as_deref()).await?;
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| named(&format!("listen: {}", config.listen), &error))?;
        let address = listener.local_addr()?;

        let hub = Arc::new(Hub::new(config.bounds));
        let engines = engines(&config, &hub).await?;
        let (stop, stopped) = watch::channel(false);
        let server = Arc::new(Server {
            hub: hub.clone(),
            token,
            max_page: config.max_page,
            max_readers: config.max_readers,
            max_wait: config.max_wait,
            stop: stopped.clone(),
        });
        let served = tokio::spawn(http::serve(
            server,
            listener,
            config.max_readers + SPARE_CONNECTIONS,
            stopped,
        ));
        tracing::info!(%address, epoch = format!("{:016x}", hub.epoch), engines = config.engines.len(), "serving");
        Ok(Self {
            address,
            stop,
            served,
            engines,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers what was asked, closes everything.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.served).await;
        self.engines.shutdown().await;
        tracing::info!("stopped");
    }
}

impl Program for Bridge {
    const NAME: &'static str = "kv-events-bridge";
    type Config = Config;

    fn parse(text: &str) -> Result<Config, Error> {
        Config::parse(text)
    }

    fn log(config: &Config) -> Log {
        config.log
    }

    fn summary(config: &Config) -> String {
        format!("{} engines", config.engines.len())
    }

    fn start(config: Config) -> impl Future<Output = io::Result<Self>> {
        Bridge::start(config)
    }

    fn stop(self) -> impl Future<Output = ()> {
        Bridge::stop(self)
    }
}

/// What every follower and link is given.
#[derive(Clone)]
struct Common {
    hub: Arc<Hub>,
    limits: zmtp::Limits,
    heartbeat: std::time::Duration,
    replay_timeout: std::time::Duration,
}

impl Common {
    /// A source and its follower; None if the rank has no endpoint of its own.
    fn follow(
        &self,
        tasks: &mut JoinSet<()>,
        engine: &Engine,
        rank: u32,
        replay: Option<Address>,
    ) -> Option<Sink> {
        let name = engine.name(rank)?;
        let source = self.hub.add_source(name.clone());
        let (events, received) = mpsc::channel(BATCHES_AHEAD);
        let follower = Follower::new(
            self.hub.clone(),
            source,
            name,
            replay,
            self.limits,
            self.replay_timeout,
            self.heartbeat,
        );
        tasks.spawn(follower.run(received));
        Some(Sink {
            source,
            topic: engine.topic.clone(),
            events,
        })
    }

    fn dial(&self, tasks: &mut JoinSet<()>, sink: Sink, target: Target) {
        tasks.spawn(link::dial_forever(
            self.hub.clone(),
            sink,
            target,
            self.limits,
            self.heartbeat,
        ));
    }
}

async fn engines(config: &Config, hub: &Arc<Hub>) -> io::Result<JoinSet<()>> {
    let common = Common {
        hub: hub.clone(),
        limits: zmtp::Limits {
            max_part: config.max_batch,
        },
        heartbeat: config.heartbeat,
        replay_timeout: config.replay_timeout,
    };
    let mut tasks = JoinSet::new();
    let mut listeners: HashMap<Address, Vec<Sink>> = HashMap::new();
    for engine in &config.engines {
        match &engine.from {
            From::Connect {
                publisher,
                replay,
                ranks,
            } => {
                for rank in 0..*ranks {
                    let replay = replay.as_ref().and_then(|replay| replay.for_rank(rank));
                    let (Some(publisher), Some(sink)) = (
                        publisher.for_rank(rank),
                        common.follow(&mut tasks, engine, rank, replay.clone()),
                    ) else {
                        continue;
                    };
                    common.dial(&mut tasks, sink, Target::Fixed { publisher, replay });
                }
            }
            From::Bind {
                listen,
                replay,
                ranks,
            } => {
                for rank in 0..*ranks {
                    let replay = replay.as_ref().and_then(|replay| replay.for_rank(rank));
                    let (Some(listen), Some(sink)) = (
                        listen.for_rank(rank),
                        common.follow(&mut tasks, engine, rank, replay),
                    ) else {
                        continue;
                    };
                    listeners.entry(listen).or_default().push(sink);
                }
            }
            From::Discover { api } => {
                tasks.spawn(discovered(common.clone(), engine.clone(), api.clone()));
            }
        }
    }
    for (address, sinks) in listeners {
        let listener = address
            .listen()
            .await
            .map_err(|error| named(&format!("bind: {address}"), &error))?;
        tasks.spawn(link::accept_forever(
            hub.clone(),
            listener,
            sinks,
            common.limits,
            common.heartbeat,
        ));
    }
    Ok(tasks)
}

/// Follows each rank that the engine lists, now or after a restart.
async fn discovered(common: Common, engine: Engine, api: Address) {
    let (ranks, mut found) = mpsc::unbounded_channel();
    let mut known = HashSet::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(link::discover_ranks(
        common.hub.clone(),
        api.clone(),
        ranks.clone(),
    ));
    while let Some(rank) = found.recv().await {
        if !known.insert(rank) {
            continue;
        }
        let Some(sink) = common.follow(&mut tasks, &engine, rank, None) else {
            tracing::warn!(
                endpoint = engine.endpoint,
                rank,
                "the port of this rank's endpoint is beyond 65535"
            );
            continue;
        };
        common.dial(
            &mut tasks,
            sink,
            Target::Discover {
                api: api.clone(),
                rank,
                ranks: ranks.clone(),
            },
        );
    }
}
