//! The record of what the members say of themselves: kept by the VM that polls, for all.

use super::Poller;
use crate::contract::store::Store;
use crate::scorer::config::EvidenceConfig;
use crate::scorer::event::{Event, Problem};
use crate::scorer::facts::{Fleet, Wrote};
use std::num::NonZeroU32;
use std::rc::Rc;

/// The record is renewed this often, ms; it is forgotten after
/// [`KEEP_MS`](crate::scorer::facts::KEEP_MS).
const RENEW_MS: u64 = 60_000;

/// What was written last.
#[derive(Debug, Default)]
pub(super) struct Kept {
    fleet: Fleet,
    /// The members, or what one of them says, may be others than in `fleet`.
    pub stale: bool,
    /// Ticks until it is written even unchanged.
    ticks_to_write: u32,
    /// Ticks until anything is written: not before the first answers can be in.
    ticks_to_first: u32,
}

impl Poller {
    /// Takes over what the VM before this one knew of the members.
    pub(super) fn inherit_fleet(&mut self, store: &dyn Store) {
        self.kept = Kept::default();
        if self.config.evidence.is_none() {
            return;
        }
        self.kept.stale = true;
        self.kept.ticks_to_first = self.ticks_per_interval;
        match Fleet::read(store, &self.config.name) {
            Ok(Some((_, fleet))) => {
                for (address, facts) in &fleet.endpoints {
                    if let Some(endpoint) = self.endpoints.get_mut(address) {
                        endpoint.engine.inherit(facts);
                    }
                }
                self.kept.fleet = fleet;
            }
            Ok(None) => {}
            Err(_) => self.problem(Problem::EnginesRecord),
        }
    }

    pub(super) fn keep_fleet(&mut self, store: &dyn Store, now_ms: u64) {
        let Some(evidence) = self.config.evidence.clone() else {
            return;
        };
        let kept = &mut self.kept;
        kept.ticks_to_write = kept.ticks_to_write.saturating_sub(1);
        kept.ticks_to_first = kept.ticks_to_first.saturating_sub(1);
        let renew = kept.ticks_to_write == 0;
        if kept.ticks_to_first > 0 || !(kept.stale || renew) {
            return;
        }
        let fleet = self.fleet(&evidence);
        self.note_mismatches(&evidence, fleet.block_size);
        if fleet != self.kept.fleet || renew {
            match fleet.write(store, &self.config.name, now_ms) {
                Ok(Wrote::Whole) => {}
                Ok(Wrote::WithoutNames | Wrote::Nothing) => {
                    self.problem(Problem::EnginesRecordFull);
                }
                Err(_) => {
                    self.problem(Problem::EnginesRecord);
                    self.kept.stale = true;
                    return;
                }
            }
            let ticks = RENEW_MS.div_ceil(self.tick_ms().max(1));
            self.kept.ticks_to_write = u32::try_from(ticks).unwrap_or(u32::MAX);
        }
        self.kept.fleet = fleet;
        self.kept.stale = false;
    }

    fn fleet(&self, evidence: &EvidenceConfig) -> Fleet {
        let listed = self.endpoints.listed().into_iter();
        let mut fleet = Fleet {
            block_size: None,
            endpoints: listed
                .filter_map(|address| {
                    let endpoint = self.endpoints.get(address)?;
                    Some((address.to_owned(), Rc::clone(endpoint.engine.facts())))
                })
                .collect(),
        };
        fleet.block_size = block_size(evidence.block_size, self.kept.fleet.block_size, &fleet);
        fleet
    }

    /// Each is reported once.
    fn note_mismatches(&mut self, evidence: &EvidenceConfig, block_size: Option<NonZeroU32>) {
        let events = &mut self.events;
        self.endpoints.each_listed(|address, endpoint| {
            let facts = endpoint.engine.facts();
            let mismatch = facts.mismatch(&evidence.keys, block_size);
            if let Some(mismatch) = endpoint.engine.note(mismatch) {
                events.push(Event::Mismatch(Rc::clone(address), mismatch.clone()));
            }
        });
    }
}

/// In effect: the configured one; else the one before, while it is any member's; else the first
/// that a member says.
fn block_size(
    configured: Option<NonZeroU32>,
    before: Option<NonZeroU32>,
    fleet: &Fleet,
) -> Option<NonZeroU32> {
    if configured.is_some() {
        return configured;
    }
    let endpoints = fleet.endpoints.values();
    let mut sizes = endpoints.filter_map(|facts| NonZeroU32::new(facts.block_size?));
    let first = sizes.next();
    match before {
        Some(_) if first == before || sizes.any(|size| Some(size) == before) => before,
        _ => first.or(before),
    }
}
