//! What the gate tests share: a store that can be watched and disturbed, and records to put in it.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;

use selective_kv::contract::gate_record::{GateId, GateRecord, State};
use selective_kv::contract::keys::{MEMBERS_KEY, gate_key, queue_key};
use selective_kv::contract::members::upsert_writer;
use selective_kv::contract::queue::{Measured, Sample, push_sample};
use selective_kv::contract::store::{MemoryStore, Store, StoreError, Versioned};
use selective_kv::policy::gate::GateParams;
use selective_kv::policy::gatekeeper::{Problems, QueueProblem};

/// Unix ms at which the tests begin.
pub const T0: u64 = 1_800_000_000_000;
pub const ENDPOINT: &str = "10.0.0.7:8000";
/// Lies in another bucket.
pub const OTHER: &str = "10.0.0.8:8000";

pub fn gate() -> GateParams {
    GateParams {
        max_waiting: NonZeroU32::new(8).unwrap(),
        half_life_ms: 2_000,
        reopen_ratio: 0.5,
        max_sample_age_ms: 10_000,
    }
}

pub fn problems(problems: &Problems) -> Vec<(QueueProblem, u32)> {
    problems.iter().collect()
}

type Hook<'a> = Box<dyn Fn(&Watched<'a>, Call, &str) + 'a>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Get,
    Set,
}

/// A store in memory that counts calls, fails on demand, and lets others in before a call.
#[derive(Default)]
pub struct Watched<'a> {
    pub memory: MemoryStore,
    pub gets: Cell<u32>,
    pub sets: Cell<u32>,
    pub get_fails: Cell<Option<u32>>,
    pub set_fails: Cell<Option<u32>>,
    before: RefCell<Option<Hook<'a>>>,
}

impl<'a> Watched<'a> {
    /// Runs before each call, except within itself.
    pub fn before(&self, hook: impl Fn(&Watched<'a>, Call, &str) + 'a) {
        *self.before.borrow_mut() = Some(Box::new(hook));
    }

    fn run_hook(&self, call: Call, key: &str) {
        let Some(hook) = self.before.borrow_mut().take() else {
            return;
        };
        hook(self, call, key);
        *self.before.borrow_mut() = Some(hook);
    }

    pub fn put(&self, key: &str, value: &[u8]) {
        self.memory.set(key, value, 0).unwrap();
    }

    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.memory.get(key).unwrap().map(|stored| stored.value)
    }

    /// Adds a sample as a scorer does.
    pub fn sample(&self, endpoint: &str, t_ms: u64, waiting: f64) {
        let key = queue_key(endpoint);
        let old = self.value(&key);
        let sample = Sample { t_ms, waiting };
        let new = push_sample(
            old.as_deref(),
            &Measured::of(endpoint, sample),
            t_ms,
            600_000,
        );
        self.put(&key, &new.unwrap());
    }

    /// A writer's own members entry.
    pub fn members(&self, writer: &str, endpoints: &[&str], t_ms: u64) {
        let old = self.value(MEMBERS_KEY);
        let new = upsert_writer(old.as_deref(), writer, endpoints, t_ms);
        self.put(MEMBERS_KEY, &new.unwrap());
    }

    pub fn state(&self, endpoint: &str, gate: &GateParams) -> Option<State> {
        let record = GateRecord::decode(&self.value(&gate_key(endpoint))?).unwrap();
        record.get(endpoint, &id(gate))
    }

    /// Puts a state in as another gatekeeper would have.
    pub fn put_state(&self, endpoint: &str, gate: &GateParams, state: State) {
        let key = gate_key(endpoint);
        let old = self.value(&key).unwrap_or_default();
        let mut record = GateRecord::decode(&old).unwrap();
        record.set(endpoint, id(gate), state);
        self.put(&key, &record.encode());
    }
}

pub fn id(gate: &GateParams) -> GateId {
    GateId {
        max_waiting: u64::from(gate.max_waiting.get()),
        half_life_ms: gate.half_life_ms,
        reopen_ratio_bits: gate.reopen_ratio.to_bits(),
        max_sample_age_ms: gate.max_sample_age_ms,
    }
}

pub fn state(last_ms: u64, ewma: f64, closed: bool) -> Option<State> {
    Some(State {
        last_ms,
        ewma,
        closed,
    })
}

impl Store for Watched<'_> {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.run_hook(Call::Get, key);
        self.gets.set(self.gets.get() + 1);
        match self.get_fails.get() {
            Some(status) => Err(StoreError::Host(status)),
            None => self.memory.get(key),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        self.run_hook(Call::Set, key);
        self.sets.set(self.sets.get() + 1);
        match self.set_fails.get() {
            Some(status) => Err(StoreError::Host(status)),
            None => self.memory.set(key, value, cas),
        }
    }
}

/// A queue record in CBOR with these samples, whatever they are.
pub fn queue_record(entries: &[(&str, ciborium::Value)]) -> Vec<u8> {
    let text = |text: &str| ciborium::Value::Text(text.to_owned());
    let entry = |(name, samples): &(&str, ciborium::Value)| {
        let fields = vec![(text("samples"), samples.clone())];
        (text(name), ciborium::Value::Map(fields))
    };
    let endpoints = entries.iter().map(entry).collect();
    let record = ciborium::Value::Map(vec![
        (text("v"), 1.into()),
        (text("endpoints"), ciborium::Value::Map(endpoints)),
    ]);
    let mut bytes = Vec::new();
    ciborium::into_writer(&record, &mut bytes).unwrap();
    bytes
}

pub fn samples(of: &[(u64, f64)]) -> ciborium::Value {
    let pair = |&(t_ms, waiting): &(u64, f64)| {
        ciborium::Value::Array(vec![t_ms.into(), ciborium::Value::Float(waiting)])
    };
    ciborium::Value::Array(of.iter().map(pair).collect())
}
