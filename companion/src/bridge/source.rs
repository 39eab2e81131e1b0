//! Follows one engine rank: joins what is published with what is replayed, into one log without
//! holes, or with holes that are marked.
//!
//! A process of vLLM numbers its batches from 0 and keeps the last ones for replay. So a sequence
//! tells of losses, but not whether the process is still the same one; a batch of it does, because
//! its time stamp makes it unique. After a lost connection the bridge therefore asks again for the
//! last batch that it has, and continues only if the engine answers with the same bytes.

use super::hub::Hub;
use super::log::{Name, Record, State};
use super::replay::{Payload, Replay};
use super::zmtp::Limits;
use crate::common::address::Address;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

/// Tries of one replay, and the pause before the second; it doubles.
const REPLAY_TRIES: u32 = 5;
const REPLAY_PAUSE: Duration = Duration::from_millis(100);
/// Holes inside replies (the engine drops what a slow reader leaves unread) that are asked for again.
const MAX_HOLES: u32 = 100;

/// What a link to an engine tells of it. `link` numbers connections, the newest highest.
#[derive(Debug)]
pub enum Event {
    /// Dialled; `replay` is where this engine can be asked.
    Up {
        link: u64,
        replay: Option<Address>,
    },
    /// The engine connected to us.
    Connected {
        link: u64,
    },
    Batch {
        link: u64,
        topic: Bytes,
        seq: u64,
        payload: Payload,
    },
    Down {
        link: u64,
    },
}

pub struct Follower {
    hub: Arc<Hub>,
    source: usize,
    name: Name,
    replay: Option<Address>,
    limits: Limits,
    replay_timeout: Duration,
    /// The connection that counts; None: there is none.
    link: Option<u64>,
    /// Highest sequence that this connection published.
    live: Option<u64>,
    /// What comes next; None: nothing is known of the engine yet.
    next: Option<u64>,
    /// The last batch in the log: proof that a process is the same.
    proof: Option<(u64, Bytes)>,
    /// The connection is to the process that the log is about.
    vouched: bool,
    /// The replay socket answered at this connection.
    replays: bool,
    /// The log ends with a mark that batches before this one are lost.
    marked: Option<u64>,
    /// How long an engine is silent before it is asked whether that was all, and when it will be.
    quiet: Duration,
    ask_at: Option<Instant>,
}

/// What a replay is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// The whole history of a process of which nothing is known.
    All,
    /// Is it the same process? And what was missed.
    Verify,
    /// What was missed of the same process.
    Rest,
}

enum Replayed {
    Done,
    /// Nobody can say that it is the process that the log is about.
    Other,
    /// A reply is missing between two that came.
    Hole,
}

impl Follower {
    /// `replay`: where the engine can be asked, until a link says otherwise.
    pub fn new(
        hub: Arc<Hub>,
        source: usize,
        name: Name,
        replay: Option<Address>,
        limits: Limits,
        replay_timeout: Duration,
        quiet: Duration,
    ) -> Self {
        Self {
            hub,
            source,
            name,
            replay,
            limits,
            replay_timeout,
            link: None,
            live: None,
            next: None,
            proof: None,
            vouched: false,
            replays: false,
            marked: None,
            quiet,
            ask_at: None,
        }
    }

    /// Until the sender is gone. While a replay runs nothing is taken from `events`, so what is
    /// published meanwhile waits in the channel, in TCP and in the publisher, each bounded.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            let event = match self.ask_at {
                None => events.recv().await,
                Some(at) => match timeout_at(at, events.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.fell_silent().await;
                        continue;
                    }
                },
            };
            let Some(event) = event else { return };
            match event {
                Event::Up { link, replay } => self.up(link, replay).await,
                Event::Connected { link } => self.up(link, self.replay.clone()).await,
                Event::Batch {
                    link,
                    topic,
                    seq,
                    payload,
                } => {
                    match self.link {
                        Some(current) if link < current => {
                            self.hub
                                .count(self.source, |counts| counts.refused_stale += 1);
                            continue;
                        }
                        Some(current) if link == current => {}
                        _ => self.up(link, self.replay.clone()).await,
                    }
                    self.hub.set_topic(self.source, &topic);
                    self.batch(seq, payload).await;
                }
                Event::Down { link } if self.link == Some(link) => {
                    self.link = None;
                    self.ask_at = None;
                    self.hub.set_state(self.source, State::Connecting);
                }
                Event::Down { .. } => {}
            }
        }
    }

    async fn up(&mut self, link: u64, replay: Option<Address>) {
        if self.link.is_some_and(|current| link <= current) {
            return;
        }
        self.hub
            .count(self.source, |counts| counts.connections += 1);
        self.hub.heard(self.source);
        self.link = Some(link);
        self.live = None;
        self.replay = replay;
        self.vouched = false;
        self.replays = self.replay.is_some();
        self.ask_at = Some(Instant::now() + self.quiet);
        self.catch_up(if self.next.is_some() {
            Ask::Verify
        } else {
            Ask::All
        })
        .await;
    }

    /// A publisher drops what a subscriber that is joining or slow does not take. With nothing published
    /// after it, nothing would show that it is missing.
    async fn fell_silent(&mut self) {
        self.ask_at = None;
        if !self.replays {
            return;
        }
        let mut ask = match self.next {
            Some(_) if self.vouched => Ask::Rest,
            Some(_) => Ask::Verify,
            None => Ask::All,
        };
        // Once, and the state stays: mostly it was all.
        let asked = self.replay_all(&mut ask).await;
        self.hub.count(self.source, |counts| match asked {
            Ok(()) => counts.replays_ok += 1,
            Err(_) => counts.replays_failed += 1,
        });
    }

    async fn batch(&mut self, seq: u64, payload: Payload) {
        self.hub.heard(self.source);
        self.ask_at = Some(Instant::now() + self.quiet);
        // One connection, one process: unless a proxy stands between, its sequence only grows.
        if self.live.is_some_and(|live| seq <= live) {
            self.vouched = false;
        }
        self.live = Some(seq);

        match self.next {
            None if seq > 0 => self.catch_up(Ask::All).await,
            Some(next) if !self.vouched && seq > 0 => {
                self.catch_up(if seq < next { Ask::All } else { Ask::Verify })
                    .await;
            }
            Some(next) if self.vouched && seq > next => self.catch_up(Ask::Rest).await,
            _ => {}
        }
        match self.next {
            None => self.start(seq == 0),
            Some(_) if self.vouched => {}
            // Nobody could say whether it is the same process.
            Some(next) if seq == 0 || seq < next => self.start(seq == 0),
            Some(_) => self.gap(seq),
        }
        if self.contradicts(seq, &payload) {
            tracing::error!(
                endpoint = self.name.endpoint, rank = self.name.rank, seq,
                replay = %self.replay.as_ref().map(ToString::to_string).unwrap_or_default(),
                "what is published is not what is replayed: is this the replay socket of another engine or rank?"
            );
            self.hub
                .count(self.source, |counts| counts.replays_failed += 1);
            self.replays = false;
            self.start(seq == 0);
        }
        match self.next {
            Some(next) if seq < next => {
                self.hub.count(self.source, |counts| counts.duplicates += 1)
            }
            Some(next) if seq > next && next > 0 => {
                self.gap(seq);
                self.push(seq, payload, false);
            }
            // In order, or the first of a history whose beginning is lost.
            _ => self.push(seq, payload, false),
        }
    }

    /// The same number, other bytes.
    fn contradicts(&self, seq: u64, payload: &Payload) -> bool {
        match (&self.proof, payload) {
            (Some((last, bytes)), Payload::Held(payload)) => seq == *last && payload != bytes,
            _ => false,
        }
    }

    async fn catch_up(&mut self, ask: Ask) {
        if !self.replays {
            self.hub.set_state(self.source, State::Live);
            return;
        }
        self.hub.set_state(self.source, State::Replaying);
        let mut pause = REPLAY_PAUSE;
        let mut ask = ask;
        for attempt in 1..=REPLAY_TRIES {
            match self.replay_all(&mut ask).await {
                Ok(()) => {
                    self.hub.count(self.source, |counts| counts.replays_ok += 1);
                    self.hub.set_state(self.source, State::Live);
                    return;
                }
                Err(error) => {
                    self.hub
                        .count(self.source, |counts| counts.replays_failed += 1);
                    tracing::warn!(endpoint = self.name.endpoint, rank = self.name.rank, attempt, replay = %self.replay.as_ref().map(ToString::to_string).unwrap_or_default(), %error, "replay failed");
                }
            }
            if attempt < REPLAY_TRIES {
                sleep(pause).await;
                pause *= 2;
            }
        }
        // Until the next connection: a socket that does not answer must not hold up what is published.
        self.replays = false;
        self.hub.set_state(self.source, State::Live);
    }

    /// As many replays as it takes. What an attempt got stays, so that `ask` moves on.
    async fn replay_all(&mut self, ask: &mut Ask) -> io::Result<()> {
        for _ in 0..MAX_HOLES {
            match self.replay_once(ask).await? {
                Replayed::Done => return Ok(()),
                Replayed::Other => *ask = Ask::All,
                Replayed::Hole => *ask = Ask::Rest,
            }
        }
        Err(io::Error::other("too many holes"))
    }

    async fn replay_once(&mut self, ask: &mut Ask) -> io::Result<Replayed> {
        let Some(address) = self.replay.clone() else {
            return Ok(Replayed::Done);
        };
        let proof = match *ask {
            Ask::Verify => match self.proof.clone() {
                Some(proof) => Some(proof),
                None => return Ok(Replayed::Other),
            },
            _ => None,
        };
        let from = match (*ask, &proof) {
            (Ask::Rest, _) => self.next.unwrap_or(0),
            (_, Some((seq, _))) => *seq,
            _ => 0,
        };
        let mut replay = Replay::open(&address, from, self.limits, self.replay_timeout).await?;

        let verified = proof.is_some();
        if let Some((seq, bytes)) = proof {
            match replay.next().await? {
                Some((first, Payload::Held(payload))) if first == seq && payload == bytes => {
                    self.vouched = true;
                    *ask = Ask::Rest;
                }
                _ => return Ok(Replayed::Other),
            }
        }
        // Whatever came first: what is missing after it was dropped, not forgotten by the engine.
        let mut taken = u64::from(verified);
        while let Some((seq, payload)) = replay.next().await? {
            self.hub.heard(self.source);
            if *ask == Ask::All {
                self.start(seq == 0);
                *ask = Ask::Rest;
            }
            let next = self.next.unwrap_or(seq);
            if seq < next {
                continue;
            }
            if seq > next && next > 0 {
                if taken > 0 {
                    return Ok(Replayed::Hole);
                }
                self.gap(seq);
            }
            self.push(seq, payload, true);
            taken += 1;
        }
        // It published nothing yet, or keeps nothing: what is published next will tell.
        if *ask == Ask::All
            && let Some(next) = self.next
        {
            self.gap(next);
            self.vouched = false;
        }
        Ok(Replayed::Done)
    }

    /// A process begins; what was known of the one before is void.
    fn start(&mut self, complete: bool) {
        tracing::info!(
            endpoint = self.name.endpoint,
            rank = self.name.rank,
            complete,
            "an engine's history begins"
        );
        self.marked = None;
        self.hub.append(self.source, Record::Start { complete });
        self.next = Some(0);
        self.proof = None;
        self.vouched = true;
    }

    fn gap(&mut self, next: u64) {
        self.next = Some(next);
        self.vouched = true;
        if self.marked == Some(next) {
            return;
        }
        self.marked = Some(next);
        tracing::warn!(
            endpoint = self.name.endpoint,
            rank = self.name.rank,
            next,
            "batches were lost, or nobody can vouch that none were"
        );
        self.hub.append(self.source, Record::Gap { next });
    }

    fn push(&mut self, seq: u64, payload: Payload, replayed: bool) {
        match payload {
            Payload::Held(payload) => {
                self.marked = None;
                self.hub.append(
                    self.source,
                    Record::Batch {
                        seq,
                        payload: payload.clone(),
                    },
                );
                self.hub.count(self.source, |counts| {
                    if replayed {
                        counts.replayed += 1
                    } else {
                        counts.live += 1
                    }
                });
                self.proof = Some((seq, payload));
                self.next = Some(seq.saturating_add(1));
            }
            Payload::TooLong(length) => {
                tracing::warn!(
                    endpoint = self.name.endpoint,
                    rank = self.name.rank,
                    seq,
                    length,
                    "a batch longer than limits.maxBatchBytes is lost"
                );
                self.hub
                    .count(self.source, |counts| counts.refused_too_long += 1);
                self.gap(seq.saturating_add(1));
            }
        }
    }
}
