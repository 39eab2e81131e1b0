//! The scorer of one root context: who polls, what is due, and what becomes of the answers.
//!
//! The shell calls [`Poller::tick`] with its timer, sends what [`Poller::next_call`] gives after
//! each callback, and hands over each answer. Intervals are counted in ticks, so that a step of
//! the wall clock neither floods the engines nor stops the polling.

mod answers;
mod calls;
mod fleet;

pub use calls::{Answer, Ask, Call, MAX_IN_FLIGHT, MAX_PAGE_BYTES};

use super::config::ScorerConfig;
use super::endpoints::Endpoints;
use super::event::{Event, Problem};
use super::lease::{Lease, Standing};
use super::sightings;
use crate::contract::keys;
use crate::contract::members::{self, Members};
use crate::contract::store::{Store, TRIES, Updated, update};
use crate::sorted::SortedMap;
use calls::InFlight;
use fleet::Kept;
use std::collections::VecDeque;
use std::rc::Rc;

/// The timer runs at least this often, ms: members and sightings are renewed by it.
const MAX_TICK_MS: u64 = 1_000;
/// The members entry is renewed this often, ms; readers believe it for 60 s.
const RENEW_MEMBERS_MS: u64 = 3_000;

/// Endpoints by state, of a scorer that polls; all 0 otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub listed: usize,
    pub unlisted: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Poller {
    config: Rc<ScorerConfig>,
    lease: Lease,
    ticks_per_interval: u32,
    /// Everything below is empty while another VM polls.
    endpoints: Endpoints,
    metrics_due: VecDeque<Rc<str>>,
    /// What engines are asked beside their metrics.
    questions_due: VecDeque<(Rc<str>, Ask)>,
    in_flight: SortedMap<u32, InFlight>,
    ticks_to_round: u32,
    members_changed: bool,
    /// Ticks until the members entry is written even unchanged.
    ticks_to_members: u32,
    kept: Kept,
    /// Version of the sightings record that was read.
    sightings_cas: Option<u32>,
    events: Vec<Event>,
}

impl Poller {
    pub fn new(config: Rc<ScorerConfig>) -> Self {
        let ticks_per_interval = ticks_per_interval(config.interval_ms);
        Self {
            lease: Lease::new(&config.name, config.fingerprint, ticks_per_interval),
            ticks_per_interval,
            endpoints: Endpoints::new(&config),
            config,
            metrics_due: VecDeque::new(),
            questions_due: VecDeque::new(),
            in_flight: SortedMap::new(),
            ticks_to_round: 0,
            members_changed: false,
            ticks_to_members: 0,
            kept: Kept::default(),
            sightings_cas: None,
            events: Vec::new(),
        }
    }

    /// Period of the timer, ms: a whole fraction of the interval, at most half of it.
    pub fn tick_ms(&self) -> u64 {
        tick_ms(self.config.interval_ms, self.ticks_per_interval)
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn counts(&self) -> Counts {
        if !self.lease.is_held() {
            return Counts::default();
        }
        let listed = self.endpoints.listed().len();
        let unlisted = self.endpoints.len().saturating_sub(listed);
        Counts { listed, unlisted }
    }

    /// The timer, every [`Poller::tick_ms`].
    pub fn tick(&mut self, store: &dyn Store, now_ms: u64) {
        let (standing, error) = self.lease.tick(store, now_ms);
        if error.is_some() {
            self.problem(Problem::Lease);
        }
        match standing {
            Standing::Waiting => return,
            Standing::Lost => {
                self.events.push(Event::LeaseLost);
                self.stop();
                return;
            }
            Standing::Taken => {
                self.events.push(Event::LeaseTaken);
                self.start(store, now_ms);
            }
            Standing::Held => {}
        }
        self.discover(store, now_ms);
        self.give_up_lost_calls();
        self.start_round();
        self.write_members(store, now_ms);
        self.keep_fleet(store, now_ms);
    }

    /// The root context goes away: another VM may poll from its next tick on.
    pub fn release(&mut self, store: &dyn Store) {
        // If that fails the lease runs out by itself.
        let _ = self.lease.release(store);
        self.stop();
    }

    fn stop(&mut self) {
        self.endpoints = Endpoints::new(&self.config);
        self.metrics_due.clear();
        self.questions_due.clear();
        self.in_flight.clear();
        self.sightings_cas = None;
    }

    fn start(&mut self, store: &dyn Store, now_ms: u64) {
        self.stop();
        self.ticks_to_round = 0;
        self.members_changed = false;
        self.discover(store, now_ms);
        match store.get(keys::MEMBERS_KEY) {
            Ok(value) => {
                let members = value.and_then(|v| Members::decode(&v.value).ok());
                let before = members
                    .as_ref()
                    .and_then(|m| m.writers().get(&self.config.name));
                if let Some(before) =
                    before.filter(|w| w.t_ms.abs_diff(now_ms) <= members::FRESH_MS)
                {
                    self.endpoints.inherit(&before.endpoints);
                }
            }
            Err(_) => self.problem(Problem::MembersRead),
        }
        self.inherit_fleet(store);
        // Not before the first answers can be in: a list that is empty for a moment would make
        // the gates forget.
        self.ticks_to_members = self.ticks_per_interval;
    }

    /// Takes over what the VMs saw in traffic since the last tick.
    fn discover(&mut self, store: &dyn Store, now_ms: u64) {
        if self.config.discovery.is_none() {
            return;
        }
        let record = match store.get(&sightings::key(&self.config.name)) {
            Ok(record) => record,
            Err(_) => {
                self.problem(Problem::SeenRecord);
                return;
            }
        };
        let cas = record.as_ref().map(|r| r.cas);
        let seen = if cas == self.sightings_cas {
            sightings::Seen::new()
        } else {
            let value = record.as_ref().map(|r| r.value.as_slice());
            sightings::read(value, &self.config.name, now_ms)
        };
        self.sightings_cas = cas;
        if self.endpoints.discover(&seen, now_ms) {
            self.members_changed();
        }
    }

    fn start_round(&mut self) {
        if let Some(left) = self.ticks_to_round.checked_sub(1) {
            self.ticks_to_round = left;
        }
        if self.ticks_to_round > 0 {
            return;
        }
        self.ticks_to_round = self.ticks_per_interval;
        let behind = u32::try_from(self.metrics_due.len()).unwrap_or(u32::MAX);
        if behind > 0 {
            self.events.push(Event::Problem(Problem::Behind, behind));
        }
        self.metrics_due.extend(self.endpoints.start_round());
    }

    fn write_members(&mut self, store: &dyn Store, now_ms: u64) {
        if let Some(left) = self.ticks_to_members.checked_sub(1) {
            self.ticks_to_members = left;
        }
        if self.ticks_to_members > 0 && !self.members_changed {
            return;
        }
        let listed = self.endpoints.listed();
        let written = update(store, keys::MEMBERS_KEY, TRIES, &mut |old| {
            members::upsert_writer(old, &self.config.name, &listed, now_ms)
        });
        match written {
            Ok(Updated::Written) => {}
            Ok(Updated::Left) => self.problem(Problem::MembersFull),
            Err(_) => {
                self.members_changed = true;
                self.problem(Problem::MembersWrite);
                return;
            }
        }
        self.members_changed = false;
        let renew = RENEW_MEMBERS_MS.div_ceil(self.tick_ms().max(1));
        self.ticks_to_members = u32::try_from(renew).unwrap_or(u32::MAX);
    }

    fn members_changed(&mut self) {
        self.members_changed = true;
        self.kept.stale = true;
    }

    fn problem(&mut self, problem: Problem) {
        self.events.push(Event::Problem(problem, 1));
    }
}

/// Two at least, so that a lease passes on within three intervals; more if the timer would be
/// slower than [`MAX_TICK_MS`].
fn ticks_per_interval(interval_ms: u64) -> u32 {
    u32::try_from(interval_ms.div_ceil(MAX_TICK_MS))
        .unwrap_or(u32::MAX)
        .max(2)
}

fn tick_ms(interval_ms: u64, ticks: u32) -> u64 {
    interval_ms
        .checked_div(u64::from(ticks))
        .unwrap_or(interval_ms)
}

#[cfg(test)]
mod tests;
