//! The queue gates of all endpoints, one state for all workers: shared data in, verdicts out
//! (DESIGN 6).
//!
//! Several gatekeepers, one a VM, work on one store and never wait for each other. While a queue
//! record is the one whose samples a gate has consumed, nobody's gate of it moves, and nothing else
//! is read ([`settled`]). Else a gate's state is read *before* the samples, so that the samples are
//! never older than the state (which would look like a clock that stepped back), and it is written by
//! compare-and-swap. Who shows a gate its samples, and when, does not matter (`gate.rs`): a lost race
//! costs a second look.

mod problems;
mod records;
mod settled;
mod sweep;

use crate::sorted::SortedMap;
use std::rc::Rc;

use super::gate::{self, Consumed, GateParams, GateState, GateVerdict, Transition};
use crate::contract::gate_record::{GateId, GateRecord, State};
use crate::contract::keys::{GATE_BUCKETS, QUEUE_BUCKETS, bucket, gate_bucket_key};
use crate::contract::members::Members;
use crate::contract::store::{Store, StoreError};
use records::{Records, Shared};
use settled::{Known, Settled};
use sweep::Sweeper;

pub use problems::{Problems, QueueProblem};
pub use records::Queue;
pub use sweep::{Reading, SweepReport};

/// An endpoint's samples and its gates lie in buckets of one number.
const _: () = assert!(GATE_BUCKETS == QUEUE_BUCKETS);

/// Compare-and-swap tries of one check, or of one bucket in a sweep.
const TRIES: u32 = 3;

/// Gates whose state could not be written, remembered here in the meantime.
const MAX_LOCAL: usize = 1024;

/// The gates of one VM. Their states are in the store; what is here may be lost at any time.
#[derive(Debug, Default)]
pub struct Gatekeeper {
    records: Records,
    local: SortedMap<(String, GateParams), GateState>,
    settled: Settled,
    sweeper: Sweeper,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct GateReport {
    pub verdict: GateVerdict,
    /// Of waiting requests, if any sample counts (a stale one too).
    pub ewma: Option<f64>,
    /// That this check brought into the store: over all workers each is reported once.
    pub transitions: Vec<Transition>,
    /// Met in records that this gatekeeper had not seen yet, and `stale_queue`.
    pub problems: Problems,
}

/// How a change of a gate record ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Won,
    /// Another gatekeeper was faster.
    Lost,
    /// The store refuses, or the record cannot hold it.
    Refused,
}

impl Gatekeeper {
    pub fn new() -> Self {
        Self::default()
    }

    /// The queue record of the endpoint's bucket.
    pub fn queue(&mut self, store: &dyn Store, endpoint: &str) -> (Rc<Queue>, Problems) {
        let mut problems = Problems::default();
        let number = bucket(endpoint, QUEUE_BUCKETS);
        let queue = self.records.queue(store, number, &mut problems);
        (queue, problems)
    }

    /// The queue records of all buckets, and who is a member.
    pub fn fleet(&mut self, store: &dyn Store) -> (Vec<Rc<Queue>>, Rc<Members>, Problems) {
        let mut problems = Problems::default();
        let queues = (0..QUEUE_BUCKETS)
            .map(|number| self.records.queue(store, number, &mut problems))
            .collect();
        let members = self.records.members(store, &mut problems);
        (queues, members, problems)
    }

    /// Shows the gate the endpoint's samples and says whether it is closed. Writes nothing if
    /// nothing is new.
    pub fn check(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        gate: &GateParams,
        now_ms: u64,
    ) -> GateReport {
        let mut problems = Problems::default();
        let settled = self.settled(store, endpoint, gate, now_ms, &mut problems);
        // Nobody is kept from loading by a gate that is not closed, listed or not.
        if let Some((verdict, state)) = settled
            && !verdict.vetoes()
        {
            return report(verdict, Some(state), Vec::new(), problems);
        }
        let members = self.records.members(store, &mut problems);
        if members.is_unlisted(endpoint, now_ms) {
            let transitions = self.forget(store, endpoint, &mut problems);
            return report(GateVerdict::Unlisted, None, transitions, problems);
        }
        if let Some((verdict, state)) = settled {
            return report(verdict, Some(state), Vec::new(), problems);
        }
        let (consumed, transitions) = self.feed(store, endpoint, gate, now_ms, &mut problems);
        report(consumed.verdict, consumed.state, transitions, problems)
    }

    /// What the gate says if the endpoint's queue record is the one that it has consumed.
    fn settled(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        gate: &GateParams,
        now_ms: u64,
        problems: &mut Problems,
    ) -> Option<(GateVerdict, GateState)> {
        let known = self.settled.get(endpoint, gate)?;
        let number = bucket(endpoint, QUEUE_BUCKETS);
        let queue = self.records.queue(store, number, problems);
        let unchanged = queue.cas == Some(known.queue_cas);
        let verdict = known.verdict(gate, now_ms).filter(|_| unchanged)?;
        Some((verdict, known.state))
    }

    /// The gate's state is in the store.
    fn settle(&mut self, endpoint: &str, gate: &GateParams, queue: &Queue, consumed: &Consumed) {
        if let (Some(queue_cas), Some(newest), Some(state), 0) = (
            queue.cas,
            queue.samples(endpoint).last(),
            consumed.state,
            consumed.future,
        ) {
            let known = Known {
                queue_cas,
                newest_ms: newest.t_ms,
                state,
            };
            self.settled.put(endpoint, gate, known);
        }
    }

    /// What became of the gate, and its transitions if they were written.
    fn feed(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        gate: &GateParams,
        now_ms: u64,
        problems: &mut Problems,
    ) -> (Consumed, Vec<Transition>) {
        let number = bucket(endpoint, QUEUE_BUCKETS);
        let key = (endpoint.to_owned(), *gate);
        let id = gate_id(gate);
        let mut tries = TRIES;
        loop {
            let shared = self.records.gates(store, number, problems);
            let queue = self.records.queue(store, number, problems);
            let stored = shared.record.get(endpoint, &id).map(from_record);
            let ahead = self.ahead(&key, stored);
            let consumed = gate::consume(ahead.or(stored), queue.samples(endpoint), gate, now_ms);
            queue.count_future(endpoint, consumed.future, problems);
            let Some(after) = consumed.state.filter(|_| consumed.state != stored) else {
                self.local.remove(&key);
                self.settle(endpoint, gate, &queue, &consumed);
                return (consumed, Vec::new());
            };
            let mut record = shared.record.clone();
            record.set(endpoint, id, to_record(&after));
            tries = tries.saturating_sub(1);
            match write(store, number, &shared, &record) {
                Written::Won => {
                    self.local.remove(&key);
                    self.settle(endpoint, gate, &queue, &consumed);
                    let was_closed = stored.is_some_and(|stored| stored.closed);
                    let transitions = match ahead {
                        None => consumed.transitions.clone(),
                        // What came before was never reported.
                        Some(_) => Transition::between(was_closed, after.closed)
                            .into_iter()
                            .collect(),
                    };
                    return (consumed, transitions);
                }
                Written::Lost if tries > 0 => {}
                Written::Lost | Written::Refused => {
                    self.keep_local(key, after);
                    return (consumed, Vec::new());
                }
            }
        }
    }

    /// The local state, if it has consumed more than the stored one: it could not be written.
    fn ahead(&self, key: &(String, GateParams), stored: Option<GateState>) -> Option<GateState> {
        let local = self.local.get(key).copied();
        local.filter(|local| stored.is_none_or(|stored| stored.last_ms < local.last_ms))
    }

    fn keep_local(&mut self, key: (String, GateParams), state: GateState) {
        if self.local.len() >= MAX_LOCAL {
            self.local.clear();
        }
        self.local.insert(key, state);
    }

    /// An unlisted endpoint loses all its gates.
    fn forget(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        problems: &mut Problems,
    ) -> Vec<Transition> {
        self.local.retain(|(name, _), _| name != endpoint);
        self.settled.forget(endpoint);
        let number = bucket(endpoint, QUEUE_BUCKETS);
        for _ in 0..TRIES {
            let shared = self.records.gates(store, number, problems);
            let mut record = shared.record.clone();
            let mut transitions = Vec::new();
            let dropped = record.retain(|name, _, state| {
                let keep = name != endpoint;
                if !keep {
                    transitions.extend(Transition::between(state.closed, false));
                }
                keep
            });
            if !dropped {
                break;
            }
            match write(store, number, &shared, &record) {
                Written::Won => return transitions,
                Written::Lost => {}
                Written::Refused => break,
            }
        }
        Vec::new()
    }
}

fn report(
    verdict: GateVerdict,
    state: Option<GateState>,
    transitions: Vec<Transition>,
    mut problems: Problems,
) -> GateReport {
    if verdict == GateVerdict::Stale {
        problems.add(QueueProblem::StaleQueue, 1);
    }
    let ewma = state.map(|state| state.ewma);
    GateReport {
        verdict,
        ewma: ewma.filter(|_| verdict != GateVerdict::NoSamples),
        transitions,
        problems,
    }
}

/// Writes a changed gate record over the one it was made from.
fn write(store: &dyn Store, number: u64, shared: &Rc<Shared>, record: &GateRecord) -> Written {
    let Some(cas) = shared.cas else {
        return Written::Refused;
    };
    let value = record.encode();
    // A record leaves out what it cannot hold.
    if value == shared.value {
        return Written::Refused;
    }
    match store.set(&gate_bucket_key(number), &value, cas) {
        Ok(()) => Written::Won,
        Err(StoreError::CasMismatch) => Written::Lost,
        Err(StoreError::Host(_)) => Written::Refused,
    }
}

fn gate_id(gate: &GateParams) -> GateId {
    GateId {
        max_waiting: u64::from(gate.max_waiting.get()),
        half_life_ms: gate.half_life_ms,
        reopen_ratio_bits: gate.reopen_ratio.to_bits(),
        max_sample_age_ms: gate.max_sample_age_ms,
    }
}

fn from_record(state: State) -> GateState {
    GateState {
        last_ms: state.last_ms,
        ewma: state.ewma,
        closed: state.closed,
    }
}

fn to_record(state: &GateState) -> State {
    State {
        last_ms: state.last_ms,
        ewma: state.ewma,
        closed: state.closed,
    }
}
