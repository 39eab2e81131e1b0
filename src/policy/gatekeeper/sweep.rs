//! The timer's part: every endpoint's samples are consumed though no request asks, and the states
//! that nobody needs any more go.

use crate::sorted::{SortedMap, SortedSet};

use super::{
    Gatekeeper, Problems, TRIES, Written, from_record, gate, gate_id, records::Queue, to_record,
    write,
};
use crate::contract::gate_record::{GateId, GateRecord, State};
use crate::contract::keys::{QUEUE_BUCKETS, queue_bucket_key};
use crate::contract::store::Store;
use crate::policy::gate::{GateParams, Transition};

/// A state that nobody feeds (its endpoint has no samples, or this VM has no such gate) is dropped
/// after this time, milliseconds.
const FORGET_MS: u64 = 10 * 60 * 1000;

/// A bucket without news is looked through after this time, milliseconds.
const LOOK_THROUGH_MS: u64 = 60 * 1000;

/// Gates fed in one sweep; past this the rest has its turn in the next one.
const MAX_FED: usize = 16 * 1024;

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepReport {
    /// That this sweep brought into the store, by endpoint: over all workers each is reported
    /// once.
    pub transitions: Vec<(String, Transition)>,
    /// Met in records that this gatekeeper had not seen yet.
    pub problems: Problems,
    /// The gates of the buckets with news, whoever fed them.
    pub readings: Vec<Reading>,
    /// Endpoints that lost all their states: unlisted, or long without samples.
    pub dropped: Vec<String>,
    /// There was too much to do: the next sweep goes on from there.
    pub unfinished: bool,
}

/// A gate's state, for gauges.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub endpoint: String,
    pub gate: GateParams,
    /// Of waiting requests.
    pub ewma: f64,
    pub closed: bool,
}

/// Where the sweeps stand.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    /// The bucket with which the next one begins.
    next: u64,
    seen: SortedMap<u64, Seen>,
    gates: SortedMap<GateId, GateParams>,
    /// None: every endpoint counts.
    listed: Option<SortedSet<String>>,
    /// Counts changes of `gates` and `listed`: they concern every bucket.
    generation: u64,
}

/// A bucket when it was last looked through.
#[derive(Clone, Copy, Debug)]
struct Seen {
    queue_cas: Option<u32>,
    generation: u64,
    at_ms: u64,
}

impl Sweeper {
    fn is_unlisted(&self, endpoint: &str) -> bool {
        let listed = self.listed.as_ref();
        listed.is_some_and(|listed| !listed.contains(endpoint))
    }

    fn is_due(&self, number: u64, queue_cas: Option<u32>, now_ms: u64) -> bool {
        self.seen.get(&number).is_none_or(|seen| {
            seen.queue_cas != queue_cas
                || seen.generation != self.generation
                || seen.at_ms.abs_diff(now_ms) >= LOOK_THROUGH_MS
        })
    }
}

impl Gatekeeper {
    /// The once-a-second timer: shows all gates the news of all endpoints, and drops the states of
    /// unlisted endpoints. Buckets whose queue record did not change are skipped.
    pub fn sweep(&mut self, store: &dyn Store, gates: &[GateParams], now_ms: u64) -> SweepReport {
        let mut report = SweepReport::default();
        let members = self.records.members(store, &mut report.problems);
        let listed = members.listed(now_ms);
        let listed = listed.map(|all| all.into_iter().map(str::to_owned).collect());
        let gates = gates.iter().map(|gate| (gate_id(gate), *gate)).collect();
        let sweeper = &mut self.sweeper;
        if sweeper.listed != listed || sweeper.gates != gates {
            sweeper.listed = listed;
            sweeper.gates = gates;
            sweeper.generation = sweeper.generation.wrapping_add(1);
        }
        if self.sweeper.gates.is_empty() {
            return report;
        }
        let mut fed = 0;
        let first = self.sweeper.next;
        let numbers = (first..QUEUE_BUCKETS).chain(0..first.min(QUEUE_BUCKETS));
        for number in numbers {
            let Ok(stored) = store.get(&queue_bucket_key(number)) else {
                continue;
            };
            let queue_cas = stored.map(|stored| stored.cas);
            if !self.sweeper.is_due(number, queue_cas, now_ms) {
                continue;
            }
            if fed >= MAX_FED {
                self.sweeper.next = number;
                report.unfinished = true;
                break;
            }
            fed = fed.saturating_add(self.sweep_bucket(store, number, now_ms, &mut report));
        }
        report
    }

    /// The number of gates fed.
    fn sweep_bucket(
        &mut self,
        store: &dyn Store,
        number: u64,
        now_ms: u64,
        report: &mut SweepReport,
    ) -> usize {
        let mut fed = 0;
        for _ in 0..TRIES {
            let shared = self.records.gates(store, number, &mut report.problems);
            let queue = self.records.queue(store, number, &mut report.problems);
            let mut record = shared.record.clone();
            let mut news = News::default();
            self.sweeper
                .drop_idle(&mut record, &queue, now_ms, &mut news);
            let problems = &mut report.problems;
            let now_fed = self
                .sweeper
                .feed(&mut record, &queue, now_ms, &mut news, problems);
            fed = now_fed.saturating_add(fed);
            let unchanged = record == shared.record;
            let written = if unchanged {
                Written::Refused
            } else {
                write(store, number, &shared, &record)
            };
            if written == Written::Lost {
                continue;
            }
            if written == Written::Won {
                report.transitions.extend(news.transitions);
                report.dropped.extend(news.dropped);
            }
            report.readings.extend(news.readings);
            // What could not be written is due again in the next sweep.
            if unchanged || written == Written::Won {
                let seen = Seen {
                    queue_cas: queue.cas,
                    generation: self.sweeper.generation,
                    at_ms: now_ms,
                };
                self.sweeper.seen.insert(number, seen);
            }
            break;
        }
        fed
    }
}

/// What a look through a bucket found, to be reported if it is written.
#[derive(Default)]
struct News {
    transitions: Vec<(String, Transition)>,
    readings: Vec<Reading>,
    dropped: SortedSet<String>,
}

impl Sweeper {
    fn drop_idle(&self, record: &mut GateRecord, queue: &Queue, now_ms: u64, news: &mut News) {
        let unfed = |endpoint: &str, id: &GateId, state: &State| {
            let gone = queue.readable && !queue.entries.contains_key(endpoint);
            let old = state.last_ms.abs_diff(now_ms) > FORGET_MS;
            old && (gone || !self.gates.contains_key(id))
        };
        record.retain(|endpoint, id, state| {
            let idle = self.is_unlisted(endpoint) || unfed(endpoint, id, state);
            if idle {
                let transition = Transition::between(state.closed, false);
                let transitions = transition.map(|to| (endpoint.to_owned(), to));
                news.transitions.extend(transitions);
                news.dropped.insert(endpoint.to_owned());
            }
            !idle
        });
        for (endpoint, _, _) in record.iter() {
            news.dropped.remove(endpoint);
        }
    }

    fn feed(
        &self,
        record: &mut GateRecord,
        queue: &Queue,
        now_ms: u64,
        news: &mut News,
        problems: &mut Problems,
    ) -> usize {
        let mut fed = 0usize;
        let counted = |endpoint: &&String| !self.is_unlisted(endpoint);
        for endpoint in queue.entries.keys().filter(counted) {
            for (id, gate) in &self.gates {
                let before = record.get(endpoint, id).map(from_record);
                let consumed = gate::consume(before, queue.samples(endpoint), gate, now_ms);
                queue.count_future(endpoint, consumed.future, problems);
                fed = fed.saturating_add(1);
                let Some(after) = consumed.state else {
                    continue;
                };
                if consumed.state != before {
                    record.set(endpoint, *id, to_record(&after));
                }
                let named = consumed.transitions.into_iter();
                let named = named.map(|to| (endpoint.clone(), to));
                news.transitions.extend(named);
                news.readings.push(Reading {
                    endpoint: endpoint.clone(),
                    gate: *gate,
                    ewma: after.ewma,
                    closed: after.closed,
                });
            }
        }
        fed
    }
}
