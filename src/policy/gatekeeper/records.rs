//! The records behind the gates, decoded once a version.

use crate::sorted::SortedMap;
use std::cell::RefCell;
use std::rc::Rc;

use super::problems::{Problems, QueueProblem};
use crate::contract::Malformed;
use crate::contract::gate_record::GateRecord;
use crate::contract::keys::{MEMBERS_KEY, gate_bucket_key, queue_bucket_key};
use crate::contract::members::Members;
use crate::contract::queue::{self, QueueEntry, Sample};
use crate::contract::store::{CREATE, Store, Versioned};

/// Encoded bytes of the records kept decoded; past this all are forgotten and read again.
const MAX_KEPT_BYTES: usize = 8 * 1024 * 1024;

/// Read through the store on every call; decoded only if the version is another than last time.
#[derive(Debug, Default)]
pub struct Records {
    members: Option<(u32, Rc<Members>)>,
    queues: SortedMap<u64, Rc<Queue>>,
    gates: SortedMap<u64, Rc<Shared>>,
    bytes: usize,
}

/// A bucket of queue samples.
#[derive(Debug, Default)]
pub struct Queue {
    /// None: missing, or not readable now.
    pub cas: Option<u32>,
    /// False: the store failed, so that nothing is known.
    pub readable: bool,
    pub entries: SortedMap<String, QueueEntry>,
    /// Samples from the future already counted, by endpoint.
    future: RefCell<SortedMap<String, u32>>,
}

/// A bucket of gate states.
#[derive(Debug)]
pub struct Shared {
    /// For the write; None if the record could not be read.
    pub cas: Option<u32>,
    /// As it is stored; if missing, an empty record's.
    pub value: Vec<u8>,
    /// Empty if missing or malformed.
    pub record: GateRecord,
}

impl Queue {
    /// Ascending in time; none if the endpoint has no valid history.
    pub fn samples(&self, endpoint: &str) -> &[Sample] {
        let entry = self.entries.get(endpoint);
        entry.map_or(&[], |entry| entry.history.samples.as_slice())
    }

    /// Counts each of the endpoint's samples from the future once for this version of the record,
    /// however many gates and requests meet it.
    pub fn count_future(&self, endpoint: &str, found: u32, problems: &mut Problems) {
        if found == 0 {
            return;
        }
        let mut future = self.future.borrow_mut();
        let counted = future.entry(endpoint.to_owned()).or_default();
        problems.add(QueueProblem::FutureSample, found.saturating_sub(*counted));
        *counted = found.max(*counted);
    }
}

impl Records {
    /// Without a readable record every endpoint counts.
    pub fn members(&mut self, store: &dyn Store, problems: &mut Problems) -> Rc<Members> {
        let Ok(Some(stored)) = store.get(MEMBERS_KEY) else {
            return Rc::default();
        };
        match &self.members {
            Some((cas, members)) if *cas == stored.cas => members.clone(),
            _ => {
                let members = Rc::new(counted(Members::decode(&stored.value), problems));
                problems.add(QueueProblem::MalformedEntry, members.invalid);
                self.members = Some((stored.cas, members.clone()));
                members
            }
        }
    }

    pub fn queue(&mut self, store: &dyn Store, number: u64, problems: &mut Problems) -> Rc<Queue> {
        let stored = match store.get(&queue_bucket_key(number)) {
            Ok(Some(stored)) => stored,
            missing => {
                return Rc::new(Queue {
                    readable: missing.is_ok(),
                    ..Queue::default()
                });
            }
        };
        match self.queues.get(&number) {
            Some(queue) if queue.cas == Some(stored.cas) => queue.clone(),
            _ => {
                let queue = Rc::new(decode_queue(&stored, problems));
                self.make_room(stored.value.len());
                self.queues.insert(number, queue.clone());
                queue
            }
        }
    }

    pub fn gates(&mut self, store: &dyn Store, number: u64, problems: &mut Problems) -> Rc<Shared> {
        let stored = match store.get(&gate_bucket_key(number)) {
            Ok(Some(stored)) => stored,
            missing => {
                let record = GateRecord::default();
                return Rc::new(Shared {
                    cas: missing.is_ok().then_some(CREATE),
                    value: record.encode(),
                    record,
                });
            }
        };
        match self.gates.get(&number) {
            Some(gates) if gates.cas == Some(stored.cas) => gates.clone(),
            _ => {
                let gates = Rc::new(Shared {
                    cas: Some(stored.cas),
                    record: counted(GateRecord::decode(&stored.value), problems),
                    value: stored.value,
                });
                self.make_room(gates.value.len());
                self.gates.insert(number, gates.clone());
                gates
            }
        }
    }

    /// Counts what replaced records took too: a rough bound that costs nothing.
    fn make_room(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_KEPT_BYTES {
            self.queues.clear();
            self.gates.clear();
            self.bytes = bytes;
        }
    }
}

fn decode_queue(stored: &Versioned, problems: &mut Problems) -> Queue {
    let entries = counted(queue::decode(&stored.value), problems);
    for entry in entries.values() {
        let invalid = entry.history.invalid.saturating_add(entry.invalid_stores);
        problems.add(QueueProblem::InvalidSample, invalid);
        let unordered = u32::from(entry.history.out_of_order);
        problems.add(QueueProblem::UnorderedHistory, unordered);
        problems.add(QueueProblem::MalformedEntry, u32::from(entry.malformed));
    }
    Queue {
        cas: Some(stored.cas),
        readable: true,
        entries,
        future: RefCell::default(),
    }
}

/// A record that is malformed is absent, and counted.
fn counted<T: Default>(decoded: Result<T, Malformed>, problems: &mut Problems) -> T {
    decoded.unwrap_or_else(|malformed| {
        problems.add(malformed.into(), 1);
        T::default()
    })
}
