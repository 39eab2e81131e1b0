//! Connections to publishers, dialled or accepted, told to the followers as events.

use super::discover;
use super::hub::{Hub, random};
use super::replay::Payload;
use super::source::Event;
use super::zmtp::{Connection, Limits, Part, Reader, Received, Role, Writer};
use crate::common::address::{Address, keep_alive};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// A peer that answered PINGs and then stays silent for so many intervals is gone.
const SILENT_INTERVALS: u32 = 3;
/// Longest topic (bytes).
pub const MAX_TOPIC: usize = 1024;

/// Doubles up to five seconds, less a quarter by chance, so that not all return at once.
pub struct BackOff(Duration);

impl BackOff {
    pub fn new() -> Self {
        Self(BACK_OFF_MIN)
    }

    pub async fn wait(&mut self) {
        let quarter = u64::try_from(self.0.as_millis() / 4).unwrap_or(0);
        let less = random().checked_rem(quarter + 1).unwrap_or(0);
        sleep(self.0.saturating_sub(Duration::from_millis(less))).await;
        self.0 = (self.0 * 2).min(BACK_OFF_MAX);
    }

    pub fn reset(&mut self) {
        self.0 = BACK_OFF_MIN;
    }
}

/// A source that a publisher's batches may belong to.
#[derive(Clone)]
pub struct Sink {
    pub source: usize,
    /// Beginning of the topics that are its.
    pub topic: String,
    pub events: mpsc::Sender<Event>,
}

#[derive(Clone)]
pub enum Target {
    Fixed {
        publisher: Address,
        replay: Option<Address>,
    },
    /// Asked anew for each connection: a restarted engine may have other ports.
    Discover {
        api: Address,
        rank: u32,
        ranks: mpsc::UnboundedSender<u32>,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { publisher, .. } => publisher.fmt(f),
            Self::Discover { api, rank, .. } => write!(f, "rank {rank} of {api}"),
        }
    }
}

/// Dials until the follower is gone.
pub async fn dial_forever(
    hub: Arc<Hub>,
    sink: Sink,
    target: Target,
    limits: Limits,
    heartbeat: Duration,
) {
    let mut back_off = BackOff::new();
    let mut link = 0;
    // A failure that goes on is said once.
    let mut told = false;
    loop {
        link += 1;
        match dial(&hub, &sink, &target, limits).await {
            Ok((connection, topic, replay, publisher)) => {
                tracing::info!(%publisher, "connected");
                back_off.reset();
                told = false;
                if sink.events.send(Event::Up { link, replay }).await.is_err() {
                    return;
                }
                let sinks = [Sink {
                    topic,
                    ..sink.clone()
                }];
                let (reader, writer) = connection;
                let error = pump(&hub, &sinks, link, reader, writer, heartbeat).await;
                tracing::warn!(%publisher, %error, "connection lost");
                if sink.events.send(Event::Down { link }).await.is_err() {
                    return;
                }
            }
            Err(error) if told => tracing::debug!(%target, %error, "no connection"),
            Err(error) => {
                told = true;
                tracing::warn!(%target, %error, "no connection; trying on");
            }
        }
        back_off.wait().await;
    }
}

async fn dial(
    hub: &Hub,
    sink: &Sink,
    target: &Target,
    limits: Limits,
) -> io::Result<((Reader, Writer), String, Option<Address>, Address)> {
    let (publisher, replay, topic) = match target {
        Target::Fixed { publisher, replay } => {
            (publisher.clone(), replay.clone(), sink.topic.clone())
        }
        Target::Discover { api, rank, ranks } => {
            let found = discover::sources(hub, api).await?;
            for other in found.keys() {
                let _ = ranks.send(*other);
            }
            let source = found
                .get(rank)
                .cloned()
                .ok_or_else(|| io::Error::other("the engine no longer lists this rank"))?;
            (source.publisher, source.replay, source.topic)
        }
    };
    let stream = publisher.dial().await?;
    let connection = Connection::handshake(stream, Role::Sub, limits).await?;
    let (reader, mut writer) = connection.into_parts();
    writer.subscribe(topic.as_bytes()).await?;
    Ok(((reader, writer), topic, replay, publisher))
}

/// Accepts publishers that connect out, for all sources that share the address.
pub async fn accept_forever(
    hub: Arc<Hub>,
    listener: TcpListener,
    sinks: Vec<Sink>,
    limits: Limits,
    heartbeat: Duration,
) {
    let sinks: Arc<[Sink]> = sinks.into();
    let most = 2 * sinks.len() + 16;
    let open = Arc::new(AtomicUsize::new(0));
    let links = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                sleep(BACK_OFF_MIN).await;
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= most {
            tracing::warn!(%peer, most, "too many publishers at one address");
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (hub, sinks, open, links) = (hub.clone(), sinks.clone(), open.clone(), links.clone());
        tasks.spawn(async move {
            if let Err(error) = accepted(&hub, &sinks, &links, stream, limits, heartbeat).await {
                tracing::warn!(%peer, %error, "a publisher's connection ended");
            }
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn accepted(
    hub: &Hub,
    sinks: &[Sink],
    links: &AtomicU64,
    stream: TcpStream,
    limits: Limits,
    heartbeat: Duration,
) -> io::Result<()> {
    keep_alive(&stream)?;
    let connection = Connection::handshake(stream, Role::Sub, limits).await?;
    let (reader, mut writer) = connection.into_parts();
    for sink in sinks {
        writer.subscribe(sink.topic.as_bytes()).await?;
    }
    // Numbered once it proved to be a publisher, so that nobody else displaces one.
    let link = links.fetch_add(1, Ordering::Relaxed) + 1;
    // With several sources only a batch tells whose connection it is.
    if let [only] = sinks {
        let _ = only.events.send(Event::Connected { link }).await;
    }
    let error = pump(hub, sinks, link, reader, writer, heartbeat).await;
    for sink in sinks {
        let _ = sink.events.send(Event::Down { link }).await;
    }
    Err(error)
}

/// Passes batches on until the connection ends; says why it did.
async fn pump(
    hub: &Hub,
    sinks: &[Sink],
    link: u64,
    mut reader: Reader,
    mut writer: Writer,
    heartbeat: Duration,
) -> io::Error {
    let mut ticks = interval(heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let mut answers = false;
    // Whose connection it is, as far as is known.
    let mut owners: Vec<usize> = if let [only] = sinks {
        vec![only.source]
    } else {
        Vec::new()
    };
    loop {
        tokio::select! {
            biased;
            received = reader.receive() => {
                match received {
                    Ok(Received::Message(parts)) => {
                        if let Some((sink, event)) = batch(hub, sinks, link, parts) {
                            if !owners.contains(&sink.source) {
                                owners.push(sink.source);
                            }
                            if sink.events.send(event).await.is_err() {
                                return io::Error::other("the bridge is closing");
                            }
                        }
                    }
                    Ok(Received::Heartbeat) => {
                        answers = true;
                        for owner in &owners {
                            hub.heard(*owner);
                        }
                        if let Err(error) = writer.answer(&mut reader).await {
                            return error;
                        }
                    }
                    Err(error) => return error,
                }
                heard = Instant::now();
            }
            _ = ticks.tick() => {
                if answers && heard.elapsed() > heartbeat * SILENT_INTERVALS {
                    return io::Error::new(io::ErrorKind::TimedOut, "the peer no longer answers");
                }
                if writer.pings && let Err(error) = writer.ping().await {
                    return error;
                }
                // An older peer has no PING: TCP's own probes vouch for it.
                if !answers {
                    for owner in &owners {
                        hub.heard(*owner);
                    }
                }
            }
        }
    }
}

/// The batch of a message of vLLM's form: topic, sequence (8 bytes, big endian), payload. Whatever
/// else it is, is counted for the source whose topic it has, or for the first.
fn batch<'a>(
    hub: &Hub,
    sinks: &'a [Sink],
    link: u64,
    parts: Vec<Part>,
) -> Option<(&'a Sink, Event)> {
    let first = sinks.first()?;
    let mut parts = parts.into_iter();
    let (Some(Part::Held(topic)), Some(Part::Held(seq)), Some(payload), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        hub.count(first.source, |counts| counts.refused_shape += 1);
        return None;
    };
    let Some(sink) = sink_of(sinks, &topic) else {
        hub.count(first.source, |counts| counts.refused_topic += 1);
        return None;
    };
    let seq = <[u8; 8]>::try_from(seq.as_ref()).map(u64::from_be_bytes);
    match seq {
        // The highest sequence is the end marker of a replay.
        Ok(seq) if seq < u64::MAX && payload != Part::Held(Bytes::new()) => Some((
            sink,
            Event::Batch {
                link,
                topic,
                seq,
                payload: Payload::from(payload),
            },
        )),
        _ => {
            hub.count(sink.source, |counts| counts.refused_shape += 1);
            None
        }
    }
}

/// The source with the longest topic that the message's begins with.
fn sink_of<'a>(sinks: &'a [Sink], topic: &[u8]) -> Option<&'a Sink> {
    if topic.len() > MAX_TOPIC {
        return None;
    }
    sinks
        .iter()
        .filter(|sink| topic.starts_with(sink.topic.as_bytes()))
        .max_by_key(|sink| sink.topic.len())
}

/// Ranks of an engine that is asked where it publishes, as they become known.
pub async fn discover_ranks(hub: Arc<Hub>, api: Address, ranks: mpsc::UnboundedSender<u32>) {
    let mut back_off = BackOff::new();
    loop {
        match discover::sources(&hub, &api).await {
            Ok(found) => {
                for rank in found.keys() {
                    let _ = ranks.send(*rank);
                }
                return;
            }
            Err(error) => tracing::warn!(%api, %error, "discovery failed"),
        }
        back_off.wait().await;
    }
}
