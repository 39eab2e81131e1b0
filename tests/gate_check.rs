//! The gatekeeper on a request: verdicts, one state in shared data, what it costs, and what it does
//! when the store or the records are not as they should be.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod gate;

use std::cell::Cell;

use ciborium::Value;
use gate::{Call, ENDPOINT, OTHER, T0, Watched, gate, problems, queue_record, samples, state};
use selective_kv::contract::keys::{MEMBERS_KEY, gate_key, queue_key};
use selective_kv::policy::gate::{GateParams, GateVerdict, Transition};
use selective_kv::policy::gatekeeper::{GateReport, Gatekeeper, Problems, QueueProblem};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn report(verdict: GateVerdict, ewma: Option<f64>, transitions: &[Transition]) -> GateReport {
    GateReport {
        verdict,
        ewma,
        transitions: transitions.to_vec(),
        problems: Problems::default(),
    }
}

#[test]
fn the_vector_over_shared_data() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    for (t_ms, waiting, expected) in [
        (
            T0,
            8.0,
            report(GateVerdict::Closed, Some(8.0), &[Transition::Closed]),
        ),
        (
            T0 + 1_000,
            0.0,
            report(GateVerdict::Closed, Some(5.656854249492381), &[]),
        ),
        (
            T0 + 3_000,
            0.0,
            report(
                GateVerdict::Open,
                Some(2.8284271247461903),
                &[Transition::Opened],
            ),
        ),
    ] {
        store.sample(ENDPOINT, t_ms, waiting);
        assert_eq!(keeper.check(&store, ENDPOINT, &gate(), t_ms), expected);
    }
    let end = state(T0 + 3_000, 2.8284271247461903, false);
    assert_eq!(store.state(ENDPOINT, &gate()), end);
}

#[test]
fn an_endpoint_without_samples_is_not_vetoed() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let expected = report(GateVerdict::NoSamples, None, &[]);
    assert_eq!(keeper.check(&store, ENDPOINT, &gate(), T0), expected);
    store.sample(OTHER, T0, 9.0);
    assert_eq!(keeper.check(&store, ENDPOINT, &gate(), T0), expected);
    assert_eq!(store.sets.get(), 0);
}

#[test]
fn nothing_is_written_when_nothing_is_new() {
    let store = Watched::default();
    let (mut one, mut two) = (Gatekeeper::new(), Gatekeeper::new());
    store.sample(ENDPOINT, T0, 9.0);
    let first = one.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(first.transitions, [Transition::Closed]);
    assert_eq!(store.sets.get(), 1);
    let again = report(GateVerdict::Closed, Some(9.0), &[]);
    for ms in 0..10 {
        assert_eq!(one.check(&store, ENDPOINT, &gate(), T0 + ms), again);
        assert_eq!(two.check(&store, ENDPOINT, &gate(), T0 + ms), again);
    }
    assert_eq!(store.sets.get(), 1);
}

#[test]
fn without_news_the_queue_record_alone_is_read() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let mut reads = |now_ms: u64| {
        let before = store.gets.get();
        let report = keeper.check(&store, ENDPOINT, &gate(), now_ms);
        (report.verdict, report.ewma, store.gets.get() - before)
    };
    store.sample(ENDPOINT, T0, 4.0);
    // Members, gates, queue.
    assert_eq!(reads(T0), (GateVerdict::Open, Some(4.0), 3));
    assert_eq!(reads(T0 + 10_000), (GateVerdict::Open, Some(4.0), 1));
    assert_eq!(reads(T0 + 10_001), (GateVerdict::Stale, Some(4.0), 1));
    // Another endpoint's sample in the same record may be anybody's.
    let before = store.value(&queue_key(ENDPOINT)).unwrap();
    store.put(&queue_key(ENDPOINT), &before);
    assert_eq!(reads(T0 + 1).2, 4);
    assert_eq!(reads(T0 + 1).2, 1);
    // A closed gate counts only if its endpoint is listed.
    store.sample(ENDPOINT, T0 + 1_000, 40.0);
    let closed = (GateVerdict::Closed, Some(14.544155877284288));
    assert_eq!(reads(T0 + 1_000), (closed.0, closed.1, 4));
    assert_eq!(reads(T0 + 1_000), (closed.0, closed.1, 2));
    store.members("w", &[OTHER], T0 + 1_000);
    assert_eq!(reads(T0 + 1_000).0, GateVerdict::Unlisted);
    assert_eq!(store.state(ENDPOINT, &gate()), None);
    // And is not remembered when it is listed again.
    store.members("w", &[ENDPOINT], T0 + 1_000);
    assert_eq!(reads(T0 + 1_000), (closed.0, closed.1, 3));
    // A clock so far back that the newest sample is from the future.
    assert_eq!(reads(T0 - 9_500), (GateVerdict::Open, Some(4.0), 4));
}

#[test]
fn endpoints_and_gates_have_states_of_their_own() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let quick = GateParams {
        half_life_ms: 200,
        ..gate()
    };
    store.sample(ENDPOINT, T0, 9.0);
    store.sample(OTHER, T0, 1.0);
    let now_ms = T0 + 1_000;
    store.sample(ENDPOINT, now_ms, 0.0);
    let verdict = |keeper: &mut Gatekeeper, endpoint, gate: &GateParams| {
        keeper.check(&store, endpoint, gate, now_ms).verdict
    };
    assert_eq!(verdict(&mut keeper, ENDPOINT, &gate()), GateVerdict::Closed);
    assert_eq!(verdict(&mut keeper, ENDPOINT, &quick), GateVerdict::Open);
    assert_eq!(verdict(&mut keeper, OTHER, &gate()), GateVerdict::Open);
    assert_eq!(
        store.state(ENDPOINT, &quick),
        state(now_ms, 9.0 / 32.0, false)
    );
    assert_eq!(store.state(OTHER, &gate()), state(T0, 1.0, false));
}

#[test]
fn a_stale_queue_is_counted_on_every_check() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    assert_eq!(
        keeper.check(&store, ENDPOINT, &gate(), T0 + 10_000).verdict,
        GateVerdict::Closed
    );
    for _ in 0..2 {
        let report = keeper.check(&store, ENDPOINT, &gate(), T0 + 10_001);
        assert_eq!(report.verdict, GateVerdict::Stale);
        assert_eq!(report.ewma, Some(9.0));
        assert_eq!(problems(&report.problems), [(QueueProblem::StaleQueue, 1)]);
    }
    // The state is kept, and within maxSampleAge of it goes on.
    assert_eq!(store.state(ENDPOINT, &gate()), state(T0, 9.0, true));
    store.sample(ENDPOINT, T0 + 10_000, 0.0);
    let report = keeper.check(&store, ENDPOINT, &gate(), T0 + 10_001);
    assert_eq!(report.ewma, Some(9.0 / 32.0));
    assert_eq!(report.transitions, [Transition::Opened]);
}

#[test]
fn a_clock_that_stepped_back() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    keeper.check(&store, ENDPOINT, &gate(), T0);
    // The scorer's history starts afresh with it.
    let back_ms = T0 - 3_600_000;
    let history = samples(&[(back_ms, 6.0), (back_ms + 2_000, 2.0)]);
    store.put(&queue_key(ENDPOINT), &queue_record(&[(ENDPOINT, history)]));
    let report = keeper.check(&store, ENDPOINT, &gate(), back_ms + 2_000);
    assert_eq!(report.verdict, GateVerdict::Open);
    assert_eq!(report.ewma, Some(4.0));
    assert_eq!(report.transitions, [Transition::Opened]);
    assert_eq!(
        store.state(ENDPOINT, &gate()),
        state(back_ms + 2_000, 4.0, false)
    );
}

#[test]
fn bad_samples_are_counted_once_a_version() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let pair = |t: Value, w: Value| Value::Array(vec![t, w]);
    let history = Value::Array(vec![
        pair(T0.into(), Value::Float(3.0)),
        pair((T0 + 1).into(), Value::Float(f64::NAN)),
        pair((T0 + 2).into(), Value::Float(-1.0)),
        pair((T0 + 3).into(), Value::Float(f64::INFINITY)),
        pair((T0 + 4).into(), Value::Text("9".to_owned())),
        pair(Value::Float(5.0), 9.into()),
        Value::Null,
        pair((T0 + 11_001).into(), 9.into()),
        pair((T0 + 12_000).into(), 9.into()),
    ]);
    let unordered = samples(&[(T0, 9.0), (T0 - 1, 9.0)]);
    let record = queue_record(&[
        (ENDPOINT, history),
        ("unordered", unordered),
        ("malformed", Value::Null),
    ]);
    store.put(&queue_key(ENDPOINT), &record);
    let expected = [
        (QueueProblem::InvalidSample, 6),
        (QueueProblem::FutureSample, 2),
        (QueueProblem::UnorderedHistory, 1),
        (QueueProblem::MalformedEntry, 1),
    ];
    let report = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(problems(&report.problems), expected);
    assert_eq!(
        (report.verdict, report.ewma),
        (GateVerdict::Open, Some(3.0))
    );
    let report = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(problems(&report.problems), []);
    // Another gate that minds the future more counts what is new to it.
    let strict = GateParams {
        max_sample_age_ms: 500,
        ..gate()
    };
    let report = keeper.check(&store, ENDPOINT, &strict, T0 + 500);
    assert_eq!(problems(&report.problems), []);
    store.put(&queue_key(ENDPOINT), &record);
    let report = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(problems(&report.problems), expected);
}

#[test]
fn malformed_records_are_absent_and_counted_once() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.put(&queue_key(ENDPOINT), b"\xff");
    store.put(MEMBERS_KEY, &[0; 300 * 1024]);
    let report = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(report.verdict, GateVerdict::NoSamples);
    assert_eq!(
        problems(&report.problems),
        [
            (QueueProblem::MalformedTooLarge, 1),
            (QueueProblem::MalformedCbor, 1)
        ]
    );
    let report = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(problems(&report.problems), []);
    // A gate record of another build is replaced.
    store.put(&gate_key(ENDPOINT), b"\x63from another build");
    store.put(&queue_key(ENDPOINT), b"");
    store.sample(ENDPOINT, T0, 9.0);
    let report = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(report.transitions, [Transition::Closed]);
    assert_eq!(
        problems(&report.problems),
        [(QueueProblem::MalformedVersion, 1)]
    );
    assert_eq!(store.state(ENDPOINT, &gate()), state(T0, 9.0, true));
}

#[test]
fn an_unlisted_endpoint_loses_its_state_and_starts_afresh() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    store.members("a", &[ENDPOINT], T0);
    let verdict = keeper.check(&store, ENDPOINT, &gate(), T0).verdict;
    assert_eq!(verdict, GateVerdict::Closed);
    // Listed by one of two writers.
    store.members("b", &[OTHER], T0);
    let verdict = keeper.check(&store, ENDPOINT, &gate(), T0).verdict;
    assert_eq!(verdict, GateVerdict::Closed);
    // By none. What another gate had goes too.
    let other_gate = GateParams {
        half_life_ms: 1,
        ..gate()
    };
    keeper.check(&store, ENDPOINT, &other_gate, T0);
    store.members("a", &[], T0 + 1_000);
    let unlisted = |transitions: &[Transition]| report(GateVerdict::Unlisted, None, transitions);
    let found = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(found, unlisted(&[Transition::Opened, Transition::Opened]));
    assert_eq!(store.state(ENDPOINT, &gate()), None);
    assert_eq!(store.state(ENDPOINT, &other_gate), None);
    let sets = store.sets.get();
    assert_eq!(
        keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000),
        unlisted(&[])
    );
    assert_eq!(store.sets.get(), sets);
    // It returns: the state is made anew of the samples that are there.
    store.sample(ENDPOINT, T0 + 2_000, 1.0);
    store.members("a", &[ENDPOINT], T0 + 2_000);
    let found = keeper.check(&store, ENDPOINT, &gate(), T0 + 2_000);
    assert_eq!(
        (found.verdict, found.ewma),
        (GateVerdict::Closed, Some(5.0))
    );
}

#[test]
fn old_writers_unlist_nobody() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.members("a", &[OTHER], T0);
    store.sample(ENDPOINT, T0 + 59_000, 9.0);
    for (now_ms, expected) in [
        (T0 + 60_000, GateVerdict::Unlisted),
        (T0 + 60_001, GateVerdict::Closed),
    ] {
        let verdict = keeper.check(&store, ENDPOINT, &gate(), now_ms).verdict;
        assert_eq!(verdict, expected);
    }
}

#[test]
fn a_lost_race_is_run_again_and_given_up_after_three_tries() {
    for (rivals, sets, transitions) in [
        (2, 3, &[Transition::Closed][..]),
        (3, 3, &[]),
        (u32::MAX, 3, &[]),
    ] {
        let store = Watched::default();
        let mut keeper = Gatekeeper::new();
        store.sample(ENDPOINT, T0, 9.0);
        // Each time a rival writes a state of another endpoint of the bucket in between.
        let left = Cell::new(rivals);
        store.before(move |store, call, _| {
            if call == Call::Set && left.get() > 0 {
                left.set(left.get() - 1);
                let rival = state(u64::from(left.get()), 1.0, false).unwrap();
                let value = {
                    let mut record = selective_kv::contract::gate_record::GateRecord::default();
                    record.set("rival", gate::id(&gate::gate()), rival);
                    record.encode()
                };
                store.put(&gate_key(ENDPOINT), &value);
            }
        });
        let found = keeper.check(&store, ENDPOINT, &gate(), T0);
        // The verdict does not wait for the store.
        assert_eq!(found, report(GateVerdict::Closed, Some(9.0), transitions));
        assert_eq!(store.sets.get(), sets);
    }
}

#[test]
fn what_could_not_be_written_is_remembered_and_written_later() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.set_fails.set(Some(10));
    store.sample(ENDPOINT, T0, 9.0);
    let found = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(found, report(GateVerdict::Closed, Some(9.0), &[]));
    assert_eq!(store.sets.get(), 1, "another status is no lost race");
    // The history that closed the gate is gone; the gatekeeper still knows.
    let history = samples(&[(T0 + 1_000, 0.0)]);
    store.put(&queue_key(ENDPOINT), &queue_record(&[(ENDPOINT, history)]));
    let found = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    let ewma = 9.0 * std::f64::consts::FRAC_1_SQRT_2;
    assert_eq!(found.verdict, GateVerdict::Closed);
    assert!((found.ewma.unwrap() - ewma).abs() < 1e-14);
    // Once the store works again, the transition comes with the state.
    store.set_fails.set(None);
    let found = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(found.transitions, [Transition::Closed]);
    let stored = store.state(ENDPOINT, &gate()).unwrap();
    assert_eq!((stored.last_ms, stored.closed), (T0 + 1_000, true));
    let found = keeper.check(&store, ENDPOINT, &gate(), T0 + 1_000);
    assert_eq!(found.transitions, []);
}

#[test]
fn what_others_wrote_in_the_meantime_counts() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.set_fails.set(Some(10));
    store.sample(ENDPOINT, T0, 9.0);
    keeper.check(&store, ENDPOINT, &gate(), T0);
    store.set_fails.set(None);
    let theirs = state(T0, 7.0, false);
    store.put_state(ENDPOINT, &gate(), theirs.unwrap());
    let found = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(found, report(GateVerdict::Open, Some(7.0), &[]));
    assert_eq!(store.state(ENDPOINT, &gate()), theirs);
}

#[test]
fn a_store_that_cannot_be_read_vetoes_nothing() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    keeper.check(&store, ENDPOINT, &gate(), T0);
    store.get_fails.set(Some(10));
    let sets = store.sets.get();
    let found = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(found, report(GateVerdict::NoSamples, None, &[]));
    assert_eq!(store.sets.get(), sets);
    store.get_fails.set(None);
    let found = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(found, report(GateVerdict::Closed, Some(9.0), &[]));
}

#[test]
fn a_name_that_no_record_holds_is_not_written_again_and_again() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let endpoint = "x".repeat(1_000);
    store.sample(&endpoint, T0, 9.0);
    for _ in 0..3 {
        let found = keeper.check(&store, &endpoint, &gate(), T0);
        assert_eq!(found.verdict, GateVerdict::Closed);
        assert_eq!(found.transitions, []);
    }
    assert_eq!(store.sets.get(), 0);
}

/// The state is read before the samples: were it the other way round, samples that another worker
/// consumed in between would be newer than ours, and the gate would seem to have a clock that
/// stepped back.
#[test]
fn a_worker_that_overtakes_resets_nothing() {
    let quick = std::cell::RefCell::new(Gatekeeper::new());
    let t_ms = Cell::new(T0);
    let store = Watched::default();
    let mut slow = Gatekeeper::new();
    // Closed at 5, by samples that are gone; these alone would not close it.
    store.put_state(ENDPOINT, &gate(), state(T0, 5.0, true).unwrap());
    // At each of its calls a sample comes in and the quick one consumes it.
    store.before(|store, _, _| {
        t_ms.set(t_ms.get() + 200);
        store.sample(ENDPOINT, t_ms.get(), 5.0);
        let found = quick
            .borrow_mut()
            .check(store, ENDPOINT, &gate(), t_ms.get());
        assert_eq!(found, report(GateVerdict::Closed, Some(5.0), &[]));
    });
    let found = slow.check(&store, ENDPOINT, &gate(), T0 + 5_000);
    assert_eq!(found, report(GateVerdict::Closed, Some(5.0), &[]));
}
