//! The waiting series recorded from a real vLLM, through the gate: every EWMA to its last digit and
//! every closing and opening, against numbers computed by other means
//! (testdata/decision/waiting_gate.py).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::num::NonZeroU32;

use selective_kv::contract::keys::queue_key;
use selective_kv::contract::queue::{Measured, Sample, push_sample};
use selective_kv::contract::store::{MemoryStore, Store};
use selective_kv::policy::gate::{GateParams, GateState, GateVerdict, Transition, consume};
use selective_kv::policy::gatekeeper::Gatekeeper;
use serde_json::Value;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const COMPUTED: &str = include_str!("../testdata/decision/waiting_gate.json");
const RECORDED: &str = include_str!("../testdata/waiting_series.json");
const ENDPOINT: &str = "10.0.0.7:8000";

struct Run {
    gate: GateParams,
    steps: Vec<(Sample, GateState)>,
}

fn runs() -> Vec<Run> {
    let computed: Value = serde_json::from_str(COMPUTED).unwrap();
    let gates = computed["gates"].as_array().unwrap();
    gates.iter().map(run).collect()
}

fn run(gate: &Value) -> Run {
    let whole = |key: &str| gate[key].as_u64().unwrap();
    let step = |step: &Value| {
        let t_ms = step[0].as_u64().unwrap();
        let waiting = step[1].as_f64().unwrap();
        let state = GateState {
            last_ms: t_ms,
            ewma: step[2].as_str().unwrap().parse().unwrap(),
            closed: step[3].as_bool().unwrap(),
        };
        (Sample { t_ms, waiting }, state)
    };
    let max_waiting = u32::try_from(whole("maxWaitingRequests")).unwrap();
    Run {
        gate: GateParams {
            max_waiting: NonZeroU32::new(max_waiting).unwrap(),
            half_life_ms: whole("ewmaHalfLifeMs"),
            reopen_ratio: gate["reopenRatio"].as_f64().unwrap(),
            max_sample_age_ms: whole("maxSampleAgeMs"),
        },
        steps: gate["steps"].as_array().unwrap().iter().map(step).collect(),
    }
}

#[test]
fn the_computed_series_is_the_recorded_one() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    let recorded = recorded["series"].as_array().unwrap().iter().map(|s| {
        let t_ms = (s["t"].as_f64().unwrap() * 1000.0).round() as u64;
        let waiting = s["waiting"].as_f64().unwrap();
        Sample { t_ms, waiting }
    });
    let recorded: Vec<Sample> = recorded.collect();
    assert_eq!(recorded.len(), 104);
    for run in runs() {
        let computed: Vec<Sample> = run.steps.iter().map(|(sample, _)| *sample).collect();
        assert_eq!(computed, recorded);
    }
}

#[test]
fn every_ewma_to_its_last_digit() {
    for run in runs() {
        let mut state = None;
        for (sample, expected) in &run.steps {
            state = consume(state, &[*sample], &run.gate, sample.t_ms).state;
            assert_eq!(state, Some(*expected), "{:?}", run.gate);
        }
    }
}

/// (maxWaitingRequests, ewmaHalfLife ms), then each transition: ms since the first sample, the
/// sample, the EWMA.
type Pinned = ((u32, u64), &'static [(u64, f64, f64, Transition)]);

#[test]
fn closings_and_openings() {
    use Transition::{Closed, Opened};
    let pinned: [Pinned; 5] = [
        // The burst is shorter than DESIGN's defaults mind: it ends at 4.47.
        ((8, 2000), &[]),
        ((8, 200), &[(8477, 16.0, 8.95105730227612, Closed)]),
        (
            (4, 500),
            &[
                (1697, 7.0, 4.235868101486959, Closed),
                (6403, 0.0, 1.8694232719700723, Opened),
                (8477, 16.0, 4.679507150864034, Closed),
            ],
        ),
        (
            (2, 1000),
            &[
                (1557, 7.0, 2.2016512560660995, Closed),
                (6886, 0.0, 1.999647764627367, Opened),
                (8393, 16.0, 2.3982996478843575, Closed),
            ],
        ),
        (
            (4, 200),
            &[
                (1327, 7.0, 4.21219970922031, Closed),
                (6403, 0.0, 0.9728101698383546, Opened),
                (8393, 16.0, 6.569025332404889, Closed),
            ],
        ),
    ];
    for (run, ((max, half_life_ms), expected)) in runs().into_iter().zip(pinned) {
        assert_eq!(run.gate.max_waiting.get(), max);
        assert_eq!(run.gate.half_life_ms, half_life_ms);
        let first_ms = run.steps[0].0.t_ms;
        let mut state = None;
        let mut found = Vec::new();
        for (sample, _) in &run.steps {
            let consumed = consume(state, &[*sample], &run.gate, sample.t_ms);
            state = consumed.state;
            let ewma = state.unwrap().ewma;
            for transition in consumed.transitions {
                found.push((sample.t_ms - first_ms, sample.waiting, ewma, transition));
            }
        }
        assert_eq!(found, expected);
    }
    let last = runs()[0].steps[103].1;
    assert_eq!((last.ewma, last.closed), (4.4725666874947, false));
}

/// The same as a scorer would publish it, at most one sample in 200 ms, looked at once a second
/// only: nothing that happened in between is missed.
#[test]
fn looking_seldom_misses_nothing() {
    let run = runs().remove(2);
    let store = MemoryStore::new();
    let mut seldom = Gatekeeper::new();
    let mut state = None;
    let mut closings = Vec::new();
    let mut found = Vec::new();
    let first_ms = run.steps[0].0.t_ms;
    let mut next_ms = first_ms + 1_000;
    for (sample, _) in &run.steps {
        let now_ms = sample.t_ms;
        let key = queue_key(ENDPOINT);
        let old = store.get(&key).unwrap().map(|stored| stored.value);
        let pushed = push_sample(
            old.as_deref(),
            &Measured::of(ENDPOINT, *sample),
            now_ms,
            60_000,
        );
        if let Some(value) = pushed {
            store.set(&key, &value, 0).unwrap();
            let consumed = consume(state, &[*sample], &run.gate, now_ms);
            state = consumed.state;
            closings.extend(consumed.transitions);
        }
        if now_ms >= next_ms {
            next_ms = now_ms + 1_000;
            let report = seldom.check(&store, ENDPOINT, &run.gate, now_ms);
            assert_eq!(report.ewma, state.map(|state| state.ewma));
            let closed = state.unwrap().closed;
            assert_eq!(report.verdict == GateVerdict::Closed, closed);
            found.extend(report.transitions);
        }
    }
    let last_ms = run.steps[103].0.t_ms;
    found.extend(
        seldom
            .check(&store, ENDPOINT, &run.gate, last_ms)
            .transitions,
    );
    assert_eq!(found, closings);
    use Transition::{Closed, Opened};
    assert_eq!(closings, [Closed, Opened, Closed]);
}
