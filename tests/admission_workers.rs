//! Four workers, one store: never more loads in flight than allowed, and none that stays.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;
use selective_kv::contract::store::{MemoryStore, Store, StoreError, Versioned};
use selective_kv::policy::admission::loads::{PATIENCE, Problem};
use selective_kv::policy::admission::{
    Admission, Completion, Job, PolicyType, Refusal, Reset, State, Ticket, World,
};

const ENDPOINTS: [&str; 2] = ["10.0.0.7:8000", "10.0.0.8:8000"];
const WORKERS: usize = 4;
const T: u64 = 1_790_000_000_000;

/// Compare-and-swaps fail as a script says, as if another worker had been faster; the host fails
/// now and then.
struct Contended {
    inner: MemoryStore,
    script: std::cell::RefCell<Vec<u8>>,
}

impl Store for Contended {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.inner.get(key)
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        match self.script.borrow_mut().pop() {
            Some(0..=40) => Err(StoreError::CasMismatch),
            Some(41..=45) => Err(StoreError::Host(10)),
            _ => self.inner.set(key, value, cas),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Admit {
        worker: usize,
        endpoint: usize,
        tokens: u64,
    },
    Complete {
        nth: usize,
    },
    /// The worker's VM is gone; a new one takes its place.
    Lose {
        worker: usize,
    },
    /// The endpoint restarted: all its loads died.
    Restart {
        endpoint: usize,
    },
    Sent {
        nth: usize,
    },
    Second,
}

fn op() -> impl Strategy<Value = Op> {
    let (worker, endpoint) = (0..WORKERS, 0..ENDPOINTS.len());
    prop_oneof![
        8 => (worker.clone(), endpoint.clone(), 1..60u64)
            .prop_map(|(worker, endpoint, tokens)| Op::Admit { worker, endpoint, tokens }),
        6 => any::<usize>().prop_map(|nth| Op::Complete { nth }),
        2 => any::<usize>().prop_map(|nth| Op::Sent { nth }),
        1 => worker.prop_map(|worker| Op::Lose { worker }),
        1 => endpoint.prop_map(|endpoint| Op::Restart { endpoint }),
        2 => Just(Op::Second),
    ]
}

/// A load that the engine has.
struct Load {
    worker: usize,
    endpoint: usize,
    tokens: u64,
    ticket: Ticket,
}

struct Fleet {
    store: Contended,
    admission: Admission,
    workers: Vec<State>,
    loads: Vec<Load>,
    now_ms: u64,
}

impl Fleet {
    fn on<R>(
        &mut self,
        worker: usize,
        f: impl FnOnce(&Admission, &mut State, World<'_>) -> R,
    ) -> R {
        let world = World {
            store: &self.store,
            now_ms: self.now_ms,
        };
        f(&self.admission, &mut self.workers[worker], world)
    }

    fn complete(&mut self, nth: usize) {
        let mut load = self.loads.swap_remove(nth);
        self.on(load.worker, |admission, state, world| {
            let mut done = Completion::Load(&mut load.ticket);
            admission.policy().on_completed(&mut done, state, world);
        });
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Admit {
                worker,
                endpoint,
                tokens,
            } => {
                let job = Job::Load {
                    endpoint: ENDPOINTS[endpoint],
                    tokens,
                };
                let admitted = self.on(worker, |admission, state, world| {
                    state.admit(admission, &job, world)
                });
                match admitted {
                    Ok(ticket) => self.loads.push(Load {
                        worker,
                        endpoint,
                        tokens,
                        ticket,
                    }),
                    Err(refusal) => assert_eq!(refusal.policy, PolicyType::PromotionConcurrency),
                }
            }
            Op::Complete { nth } if !self.loads.is_empty() => {
                self.complete(nth % self.loads.len());
            }
            Op::Sent { nth } if !self.loads.is_empty() => {
                let load = &self.loads[nth % self.loads.len()];
                let (worker, lease) = (load.worker, load.ticket.lease());
                let now_ms = self.now_ms;
                if let Some(lease) = lease {
                    self.workers[worker].loads.sent(lease, now_ms);
                }
            }
            Op::Lose { worker } => {
                self.workers[worker] = State::default();
                self.loads.retain(|load| load.worker != worker);
            }
            Op::Restart { endpoint } => {
                for worker in 0..WORKERS {
                    self.on(worker, |admission, state, world| {
                        let policy = admission.policy();
                        policy.reset(ENDPOINTS[endpoint], Reset::EndpointRestarted, state, world);
                    });
                }
                self.loads.retain(|load| load.endpoint != endpoint);
            }
            Op::Second => self.second(),
            Op::Complete { .. } | Op::Sent { .. } => {}
        }
    }

    fn second(&mut self) {
        self.now_ms += 1_000;
        for worker in 0..WORKERS {
            let timed_out = self.on(worker, |_, state, world| {
                state.loads.tick(world.store, world.now_ms).timed_out
            });
            assert_eq!(timed_out, 0, "an hour is not over");
        }
    }

    fn check(&self, max: usize, max_tokens: Option<u64>) -> Result<(), TestCaseError> {
        for endpoint in 0..ENDPOINTS.len() {
            let loads = self.loads.iter().filter(|load| load.endpoint == endpoint);
            let count = loads.clone().count();
            prop_assert!(count <= max, "{} in flight", count);
            let tokens: u64 = loads.clone().map(|load| load.tokens).sum();
            if let Some(max) = max_tokens
                && count > 1
            {
                prop_assert!(tokens <= max, "{} tokens in flight", tokens);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn never_more_than_allowed_and_none_stays(
        ops in prop::collection::vec(op(), 1..120),
        script in prop::collection::vec(any::<u8>(), 0..200),
        max in 1..6usize,
        max_tokens in prop::option::of(20..120u64),
        nested in any::<bool>(),
    ) {
        let tokens = max_tokens.map_or(String::new(), |max| format!(r#","maxInflightTokens":{max}"#));
        let mut text = format!(
            r#"{{"type":"promotion_concurrency","maxInflightPromotions":{max},"maxPromotionTime":"60m"{tokens}}}"#
        );
        if nested {
            // Counted once, though two parts count.
            text = format!(
                r#"{{"type":"composite","policies":[{{"type":"promotion_concurrency"}},{text}]}}"#
            );
        }
        let mut fleet = Fleet {
            store: Contended { inner: MemoryStore::new(), script: script.clone().into() },
            admission: Admission::from_json(text.as_bytes()).unwrap(),
            workers: (0..WORKERS).map(|_| State::default()).collect(),
            loads: Vec::new(),
            now_ms: T,
        };
        for op in ops {
            fleet.apply(op);
            fleet.check(max, max_tokens)?;
        }
        while !fleet.loads.is_empty() {
            fleet.complete(0);
        }
        fleet.store.script.borrow_mut().clear();
        for _ in 0..=PATIENCE {
            fleet.second();
        }
        for endpoint in ENDPOINTS {
            for worker in &fleet.workers {
                let in_flight = worker.loads.in_flight(&fleet.store, endpoint).unwrap();
                prop_assert_eq!((in_flight.loads, in_flight.tokens), (0, 0));
            }
        }
        // And as many as allowed have a place again, no more.
        for n in 0..=max {
            let job = Job::Load { endpoint: ENDPOINTS[0], tokens: 1 };
            let admitted = fleet.on(n % WORKERS, |admission, state, world| {
                state.admit(admission, &job, world)
            });
            let refusal = Refusal { policy: PolicyType::PromotionConcurrency, tier: None, problem: None };
            prop_assert_eq!(admitted.err(), (n == max).then_some(refusal));
        }
    }
}

/// Real threads, real races. Those that are refused for want of tries are refused, not lost.
#[test]
fn four_threads_at_one_endpoint() {
    const MAX: u64 = 8;
    const ROUNDS: usize = 3_000;
    let text = br#"{"type":"promotion_concurrency","maxInflightPromotions":8}"#;
    let store = MemoryStore::new();
    let (now, most, contended) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let worker = |seed: usize| {
        let admission = Admission::from_json(text).unwrap();
        let mut state = State::default();
        let world = World {
            store: &store,
            now_ms: T,
        };
        let mut held: Vec<Ticket> = Vec::new();
        let job = Job::Load {
            endpoint: ENDPOINTS[0],
            tokens: 1,
        };
        for round in 0..ROUNDS {
            if (round * 7 + seed) % 5 < 3 {
                match state.admit(&admission, &job, world) {
                    Ok(ticket) => {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        held.push(ticket);
                    }
                    Err(Refusal {
                        problem: Some(Problem::Contended),
                        ..
                    }) => {
                        contended.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(refusal) => assert_eq!(refusal.problem, None),
                }
            } else if let Some(mut ticket) = held.pop() {
                now.fetch_sub(1, Ordering::SeqCst);
                let mut done = Completion::Load(&mut ticket);
                admission
                    .policy()
                    .on_completed(&mut done, &mut state, world);
            }
        }
        for mut ticket in held {
            now.fetch_sub(1, Ordering::SeqCst);
            let mut done = Completion::Load(&mut ticket);
            admission
                .policy()
                .on_completed(&mut done, &mut state, world);
        }
        // What lost its race is written by the timer.
        state.loads.tick(&store, T);
    };
    thread::scope(|scope| {
        for seed in 0..WORKERS {
            scope.spawn(move || worker(seed));
        }
    });
    assert!((2..=MAX).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    assert_eq!(now.load(Ordering::SeqCst), 0);
    let left = State::default()
        .loads
        .in_flight(&store, ENDPOINTS[0])
        .unwrap();
    assert_eq!(left.loads, 0, "contended: {contended:?}");
}
