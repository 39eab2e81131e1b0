//! Two workers on one store, in any order and at any of their calls, are one gate: the same state
//! as one that consumes each sample as it comes, and each transition reported once.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod gate;

use std::cell::{Cell, RefCell};

use gate::{ENDPOINT, T0, Watched, gate};
use proptest::prelude::*;
use selective_kv::contract::queue::Sample;
use selective_kv::policy::gate::{GateState, Transition, consume};
use selective_kv::policy::gatekeeper::Gatekeeper;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A sample this many ms after the last one.
    Sample { after_ms: u64, waiting: u8 },
    /// A worker looks, because of a request or its timer; at each of its calls with its bit set
    /// something happens first: the other worker looks, or another sample comes in.
    Look {
        worker: usize,
        sweep: bool,
        before_calls: u16,
        samples: u16,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let sample = (
        prop_oneof![8 => 200..3_000u64, 1 => 9_990..10_010u64],
        0..20u8,
    )
        .prop_map(|(after_ms, waiting)| Op::Sample { after_ms, waiting });
    let look = (0..2usize, any::<bool>(), any::<u16>(), any::<u16>()).prop_map(
        |(worker, sweep, before_calls, samples)| Op::Look {
            worker,
            sweep,
            before_calls,
            samples,
        },
    );
    prop_oneof![sample, look]
}

/// The samples and the gate that consumes each as it comes.
#[derive(Default)]
struct Truth {
    now_ms: Cell<u64>,
    state: Cell<Option<GateState>>,
    transitions: RefCell<Vec<Transition>>,
    /// Since a worker last consumed all of them: a record has 32 at the most.
    unseen: Cell<u32>,
}

impl Truth {
    fn sample(&self, store: &Watched<'_>, after_ms: u64, waiting: u8) {
        if self.unseen.get() == 30 {
            return;
        }
        self.unseen.set(self.unseen.get() + 1);
        let t_ms = self.now_ms.get() + after_ms;
        self.now_ms.set(t_ms);
        store.sample(ENDPOINT, t_ms, waiting.into());
        let waiting = waiting.into();
        let consumed = consume(self.state.get(), &[Sample { t_ms, waiting }], &gate(), t_ms);
        self.state.set(consumed.state);
        self.transitions.borrow_mut().extend(consumed.transitions);
    }
}

fn look(
    keeper: &RefCell<Gatekeeper>,
    store: &Watched<'_>,
    sweep: bool,
    now_ms: u64,
    found: &RefCell<Vec<Transition>>,
) {
    let mut keeper = keeper.borrow_mut();
    if sweep {
        let report = keeper.sweep(store, &[gate()], now_ms);
        let transitions = report.transitions.into_iter().map(|(_, to)| to);
        found.borrow_mut().extend(transitions);
    } else {
        let report = keeper.check(store, ENDPOINT, &gate(), now_ms);
        found.borrow_mut().extend(report.transitions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn two_workers_are_one_gate(ops in prop::collection::vec(op(), 1..60)) {
        let truth = Truth::default();
        truth.now_ms.set(T0);
        let found = RefCell::new(Vec::new());
        let workers = [RefCell::default(), RefCell::default()];
        // The bits of the look that is going on, and the worker that is not in it.
        let going = Cell::new((0u16, 0u16, 0usize));
        let store = Watched::default();
        store.before(|store, _, _| {
            let (before_calls, samples, other) = going.get();
            going.set((before_calls >> 1, samples >> 1, other));
            if before_calls & 1 == 0 {
                return;
            }
            if samples & 1 == 1 {
                truth.sample(store, 200, (samples >> 3) as u8 % 20);
            } else {
                look(&workers[other], store, samples & 2 == 2, truth.now_ms.get(), &found);
            }
        });
        for op in ops {
            match op {
                Op::Sample { after_ms, waiting } => truth.sample(&store, after_ms, waiting),
                Op::Look { worker, sweep, before_calls, samples } => {
                    going.set((before_calls, samples, 1 - worker));
                    look(&workers[worker], &store, sweep, truth.now_ms.get(), &found);
                    going.set((0, 0, 0));
                    let seen = store.state(ENDPOINT, &gate()).map(|state| state.last_ms);
                    if seen == truth.state.get().map(|state| state.last_ms) {
                        truth.unseen.set(0);
                    }
                }
            }
        }
        look(&workers[0], &store, false, truth.now_ms.get(), &found);
        look(&workers[1], &store, true, truth.now_ms.get(), &found);
        let stored = store.state(ENDPOINT, &gate());
        let stored = stored.map(|s| GateState { last_ms: s.last_ms, ewma: s.ewma, closed: s.closed });
        prop_assert_eq!(stored, truth.state.get());
        prop_assert_eq!(&*found.borrow(), &*truth.transitions.borrow());
    }
}
