//! Telling kv-prefetch-agent which of a request's blocks lie in files, while the request is still on
//! its way. One message a request, which nothing waits for; what cannot be sent at once is dropped.

mod message;
mod results;
mod window;

pub use results::{Answered, PrefetchResult};

use super::config::PrefetchConfig;
use super::evidence::{Evidence, NoFiles};
use super::poller::Answer;
use crate::contract::store::Store;
use crate::prompt::Request;
use crate::sorted::SortedMap;
use message::Message;
use window::Window;

/// Ticks beyond the timeout after which an answer will not come.
const SPARE_TICKS: u64 = 4;

/// One for each root context.
#[derive(Debug)]
pub struct Prefetch {
    config: PrefetchConfig,
    window: Window,
    /// Calls without an answer, with the ticks that they have been out.
    in_flight: SortedMap<u32, u64>,
}

/// A message that is to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub body: Vec<u8>,
    pub digests: usize,
    /// For the window, once it is sent.
    told: Vec<u64>,
}

/// The request, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub request: &'a Request,
    pub chosen: Option<&'a str>,
    /// Where it may go, in case nobody has chosen yet.
    pub likeliest: Option<&'a str>,
}

impl Prefetch {
    /// `seed` is a random number.
    pub fn new(config: PrefetchConfig, seed: u64) -> Self {
        Self {
            window: Window::new(config.window_ms, seed),
            config,
            in_flight: SortedMap::new(),
        }
    }

    pub fn config(&self) -> &PrefetchConfig {
        &self.config
    }

    /// What to send for this request.
    ///
    /// # Errors
    /// Why nothing is sent.
    pub fn plan(
        &mut self,
        evidence: &mut Evidence,
        store: &dyn Store,
        asked: Asked<'_>,
        now_ms: u64,
    ) -> Result<Plan, PrefetchResult> {
        // Before any work: an agent that is slow must not cost more than one that is quick.
        if self.in_flight.len() >= self.config.max_in_flight {
            return Err(PrefetchResult::Busy);
        }
        let Asked {
            request,
            chosen,
            likeliest,
        } = asked;
        let mut cold = evidence
            .cold(store, &self.config, request, chosen, likeliest, now_ms)
            .map_err(PrefetchResult::of)?;
        if cold.blocks.is_empty() {
            return Err(PrefetchResult::Warm);
        }
        self.window.turn(now_ms);
        let kind = cold.kind();
        let told = |key: u64| key.wrapping_add(kind);
        let mut blocks = std::mem::take(&mut cold.blocks);
        blocks.retain(|block| !self.window.has(told(block.key)));
        if blocks.is_empty() {
            return Err(PrefetchResult::Repeated);
        }
        let mut message = Message::new(blocks.len());
        cold.digests(&blocks, &mut |index, digest| message.push(index, digest))
            .map_err(|_| PrefetchResult::AdapterPath)?;
        Ok(Plan {
            digests: message.blocks(),
            body: message.finish(),
            told: blocks.iter().map(|block| told(block.key)).collect(),
        })
    }

    /// The host took the message and gave this token.
    pub fn sent(&mut self, plan: &Plan, token: u32) {
        self.in_flight.insert(token, 0);
        for key in &plan.told {
            self.window.note(*key);
        }
    }

    pub fn is_mine(&self, token: u32) -> bool {
        self.in_flight.contains_key(&token)
    }

    /// `None` if it was none of these calls.
    pub fn answered(&mut self, token: u32, answer: Answer<'_>) -> Option<Answered> {
        self.in_flight.remove(&token)?;
        Some(Answered::of(answer))
    }

    /// The timer, every `tick_ms`. The host answers every call; should it ever not, the place in
    /// flight is free again. Returns how many were given up.
    pub fn tick(&mut self, tick_ms: u64) -> usize {
        let limit = self
            .config
            .timeout_ms
            .div_ceil(tick_ms.max(1))
            .saturating_add(SPARE_TICKS);
        let before = self.in_flight.len();
        self.in_flight.retain(|_, ticks| {
            *ticks = ticks.saturating_add(1);
            *ticks <= limit
        });
        before.saturating_sub(self.in_flight.len())
    }
}

impl PrefetchResult {
    fn of(why: NoFiles) -> Self {
        match why {
            NoFiles::NotLooked => Self::NotLooked,
            NoFiles::NoBlockSize => Self::NoBlockSize,
            NoFiles::NoEndpoint => Self::NoEndpoint,
            NoFiles::Endpoint(result) => Self::Endpoint(result),
        }
    }
}
