//! Tier evidence: what each endpoint holds of a request's prompts, written where the policy finds it.
//!
//! A request's model says at which endpoints it can be served and, with salt and adapter, how its
//! blocks' keys are made. They are made once for all endpoints that make them alike, looked up in the
//! index, and become runs by DESIGN 5's rules. What is not known is not said: an endpoint without an
//! entry is one the policy leaves alone.

mod cold;
mod engine;
mod event_keys;
mod models;
mod prompt_keys;
mod publish;
mod results;

#[cfg(test)]
mod tests;

pub use cold::{Cold, ColdBlock, NoFiles};
pub use event_keys::request_keys;
pub use models::{Served, resolve};
pub use results::{EndpointResult, Published, RequestResult};

use super::config::{EvidenceConfig, ScorerConfig};
use super::facts::{EngineFacts, Fleet};
use super::index::{Index, Params};
use crate::contract::keys::fnv1a64;
use crate::contract::store::{Store, StoreError};
use std::num::NonZeroU32;
use std::rc::Rc;

/// Keys do not depend on the base model's name: endpoints are told apart anyway, and a name that
/// becomes known, or changes, must not make keys differ.
const BASE_MODEL: &str = "";

/// Bytes of the index that one tick moves, the last endpoint's excess apart: some 10 ms of work.
const TICK_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes of the index that one request moves: what happened since the last tick, if it was not very
/// much. Some 10,000 blocks.
const REQUEST_BYTES: u64 = 128 * 1024;

/// What one root context knows.
#[derive(Debug)]
pub struct Evidence {
    config: Rc<ScorerConfig>,
    evidence: Rc<EvidenceConfig>,
    /// A random number for the index's tables.
    seed: u64,
    fleet: Fleet,
    /// Version of the record that it is from.
    read: Option<u32>,
    index: Option<(NonZeroU32, Index)>,
    /// Where the next tick begins among the members.
    turn: usize,
}

impl Evidence {
    /// `None` if no evidence is configured. `seed` is a random number.
    #[must_use]
    pub fn new(config: Rc<ScorerConfig>, seed: u64) -> Option<Self> {
        let evidence = Rc::clone(config.evidence.as_ref()?);
        Some(Self {
            config,
            evidence,
            seed,
            fleet: Fleet::default(),
            read: None,
            index: None,
            turn: 0,
        })
    }

    /// From the timer: takes over what the lease holder has found out about the engines, and brings
    /// what is known of their blocks up to date.
    ///
    /// # Errors
    /// If the record of the engines could not be read; it stays as it was.
    pub fn tick(&mut self, store: &dyn Store, now_ms: u64) -> Result<(), StoreError> {
        let read = Fleet::read_newer(store, &self.config.name, self.read);
        let failed = match read {
            Ok(None) => Ok(()),
            Ok(Some((cas, fleet))) => {
                self.fleet = fleet;
                self.read = Some(cas);
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.make_index();
        self.catch_up(store, now_ms);
        failed
    }

    /// The index and the members, for whoever feeds it; `None` before a block's size is known. The
    /// index is another one once that changes.
    pub fn index(&mut self) -> Option<(&mut Index, &Fleet)> {
        let (_, index) = self.index.as_mut()?;
        Some((index, &self.fleet))
    }

    /// For [`Index::ingest`]; `None` before a block's size is known.
    #[must_use]
    pub fn block_size(&self) -> Option<NonZeroU32> {
        self.index.as_ref().map(|(size, _)| *size)
    }

    fn make_index(&mut self) {
        let Some(size) = self.fleet.block_size.or(self.evidence.block_size) else {
            return;
        };
        if self.block_size() == Some(size) {
            return;
        }
        let evidence = &self.evidence;
        let fingerprint = format!("{} {size}", evidence.fingerprint);
        let params = Params {
            scorer: self.config.name.clone(),
            bridged: evidence.keys.is_bridged(),
            block_size: size.get(),
            fingerprint: fnv1a64(fingerprint.as_bytes()),
            shared_tiers: evidence.shared_tiers.clone(),
            max_silence_ms: evidence.max_silence_ms,
            seed: self.seed,
            limits: evidence.limits,
        };
        self.index = Some((size, Index::new(params)));
    }

    /// The members in turn, until enough is moved.
    fn catch_up(&mut self, store: &dyn Store, now_ms: u64) {
        let Some((_, index)) = &mut self.index else {
            return;
        };
        let members = self.fleet.endpoints.len();
        let first = self.turn.checked_rem(members).unwrap_or(0);
        let names = self.fleet.endpoints.keys();
        let mut left = TICK_BYTES;
        let full = self.evidence.limits.max_cache_bytes.saturating_mul(7) / 8;
        for endpoint in names.clone().skip(first).chain(names.take(first)) {
            // With memory full, what comes in would only push out what came before.
            let budget = match index.memory() < full {
                true => u64::MAX,
                false => REQUEST_BYTES,
            };
            let mut unused = budget;
            // Why one is not ready is said when a request asks.
            let _ = index.view(store, endpoint, now_ms, &mut unused);
            self.turn = self.turn.wrapping_add(1);
            match left.checked_sub(budget.saturating_sub(unused)) {
                Some(rest) if rest > 0 => left = rest,
                _ => return,
            }
        }
    }
}
