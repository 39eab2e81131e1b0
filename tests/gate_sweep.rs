//! The gatekeeper's timer: pressure that no request asks about, endpoints that go, and what a sweep
//! costs.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

mod gate;

use std::cell::Cell;

use gate::{Call, ENDPOINT, OTHER, T0, Watched, gate, problems, queue_record, samples, state};
use selective_kv::contract::keys::{bucket, gate_key, queue_bucket_key, queue_key};
use selective_kv::policy::gate::{GateParams, GateVerdict, Transition};
use selective_kv::policy::gatekeeper::{Gatekeeper, QueueProblem, Reading, SweepReport};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn reading(endpoint: &str, ewma: f64, closed: bool) -> Reading {
    Reading {
        endpoint: endpoint.to_owned(),
        gate: gate(),
        ewma,
        closed,
    }
}

fn to(endpoint: &str, transition: Transition) -> (String, Transition) {
    (endpoint.to_owned(), transition)
}

#[test]
fn pressure_is_seen_though_no_request_asks() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 8.0);
    store.sample(OTHER, T0, 1.0);
    let mut report = keeper.sweep(&store, &[gate()], T0);
    report.readings.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
    let expected = SweepReport {
        transitions: vec![to(ENDPOINT, Transition::Closed)],
        readings: vec![reading(ENDPOINT, 8.0, true), reading(OTHER, 1.0, false)],
        ..SweepReport::default()
    };
    assert_eq!(report, expected);
    for (t_ms, ewma, closed, transitions) in [
        (T0 + 1_000, 5.656854249492381, true, vec![]),
        (
            T0 + 3_000,
            2.8284271247461903,
            false,
            vec![to(ENDPOINT, Transition::Opened)],
        ),
    ] {
        store.sample(ENDPOINT, t_ms, 0.0);
        let expected = SweepReport {
            transitions,
            readings: vec![reading(ENDPOINT, ewma, closed)],
            ..SweepReport::default()
        };
        assert_eq!(keeper.sweep(&store, &[gate()], t_ms), expected);
        assert_eq!(store.state(ENDPOINT, &gate()), state(t_ms, ewma, closed));
    }
}

#[test]
fn a_sweep_without_news_reads_256_versions_and_writes_nothing() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    keeper.sweep(&store, &[gate()], T0);
    let (gets, sets) = (store.gets.get(), store.sets.get());
    assert_eq!(sets, 1);
    let report = keeper.sweep(&store, &[gate()], T0 + 1_000);
    assert_eq!(report, SweepReport::default());
    // The members record and each bucket's queue record.
    assert_eq!(store.gets.get() - gets, 1 + 256);
    assert_eq!(store.sets.get(), sets);
    // Without gates there is nothing to do at all.
    let gets = store.gets.get();
    assert_eq!(
        keeper.sweep(&store, &[], T0 + 2_000),
        SweepReport::default()
    );
    assert_eq!(store.gets.get() - gets, 1);
}

#[test]
fn what_a_request_consumed_is_not_reported_twice() {
    let store = Watched::default();
    let (mut requests, mut timer) = (Gatekeeper::new(), Gatekeeper::new());
    store.sample(ENDPOINT, T0, 9.0);
    let check = requests.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(check.transitions, [Transition::Closed]);
    let expected = SweepReport {
        readings: vec![reading(ENDPOINT, 9.0, true)],
        ..SweepReport::default()
    };
    assert_eq!(timer.sweep(&store, &[gate()], T0), expected);
    assert_eq!(store.sets.get(), 1);
}

#[test]
fn a_new_gate_is_fed_at_once() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    keeper.sweep(&store, &[gate()], T0);
    let new = GateParams {
        half_life_ms: 500,
        ..gate()
    };
    let report = keeper.sweep(&store, &[gate(), new], T0);
    assert_eq!(report.transitions, [to(ENDPOINT, Transition::Closed)]);
    assert_eq!(report.readings.len(), 2);
    assert_eq!(store.state(ENDPOINT, &new), state(T0, 9.0, true));
}

#[test]
fn unlisted_endpoints_lose_their_state_and_returning_ones_start_afresh() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    store.sample(OTHER, T0, 9.0);
    store.members("a", &[ENDPOINT, OTHER], T0);
    keeper.sweep(&store, &[gate()], T0);
    store.members("a", &[OTHER], T0 + 1_000);
    let report = keeper.sweep(&store, &[gate()], T0 + 1_000);
    assert_eq!(report.transitions, [to(ENDPOINT, Transition::Opened)]);
    assert_eq!(report.dropped, [ENDPOINT]);
    assert_eq!(report.readings, [reading(OTHER, 9.0, true)]);
    assert_eq!(store.state(ENDPOINT, &gate()), None);
    assert_eq!(store.state(OTHER, &gate()), state(T0, 9.0, true));
    // Nothing more to do, until it returns.
    let report = keeper.sweep(&store, &[gate()], T0 + 2_000);
    assert_eq!(report, SweepReport::default());
    store.sample(ENDPOINT, T0 + 20_000, 1.0);
    store.members("a", &[ENDPOINT, OTHER], T0 + 20_000);
    let report = keeper.sweep(&store, &[gate()], T0 + 20_000);
    assert_eq!(
        report.transitions,
        [
            to(ENDPOINT, Transition::Closed),
            to(ENDPOINT, Transition::Opened)
        ]
    );
    assert_eq!(
        store.state(ENDPOINT, &gate()),
        state(T0 + 20_000, 1.0, false)
    );
}

#[test]
fn a_writer_that_falls_silent_unlists_nobody() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    store.members("a", &[OTHER], T0);
    let report = keeper.sweep(&store, &[gate()], T0 + 60_000);
    assert_eq!(report.readings, []);
    assert_eq!(store.state(ENDPOINT, &gate()), None);
    let report = keeper.sweep(&store, &[gate()], T0 + 60_001);
    assert_eq!(report.readings, [reading(ENDPOINT, 9.0, true)]);
}

#[test]
fn states_that_nobody_feeds_go_after_ten_minutes() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let gone = GateParams {
        half_life_ms: 7,
        ..gate()
    };
    let old = state(T0, 9.0, true).unwrap();
    store.sample(ENDPOINT, T0, 9.0);
    // Of a gate that no route has any more, of an endpoint whose samples are gone, and of both a
    // gate and an endpoint that are still there, only that the scorer stands still.
    store.put_state(ENDPOINT, &gone, old);
    store.put_state(OTHER, &gate(), old);
    store.put_state(ENDPOINT, &gate(), old);
    let now_ms = T0 + 600_000;
    let report = keeper.sweep(&store, &[gate()], now_ms);
    assert_eq!((report.transitions, report.dropped), (vec![], vec![]));
    // A bucket without news has its turn every minute.
    let report = keeper.sweep(&store, &[gate()], now_ms + 59_999);
    assert_eq!(report, SweepReport::default());
    let mut report = keeper.sweep(&store, &[gate()], now_ms + 60_000);
    report.transitions.sort();
    assert_eq!(
        report.transitions,
        [
            to(ENDPOINT, Transition::Opened),
            to(OTHER, Transition::Opened)
        ]
    );
    assert_eq!(report.dropped, [OTHER]);
    assert_eq!(store.state(ENDPOINT, &gone), None);
    assert_eq!(store.state(OTHER, &gate()), None);
    assert_eq!(store.state(ENDPOINT, &gate()), Some(old));
}

#[test]
fn a_bucket_that_could_not_be_written_is_due_again() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 9.0);
    // Refused by the host.
    store.set_fails.set(Some(10));
    let report = keeper.sweep(&store, &[gate()], T0);
    assert_eq!(report.transitions, []);
    assert_eq!(report.readings, [reading(ENDPOINT, 9.0, true)]);
    store.set_fails.set(None);
    // Lost three times.
    let left = Cell::new(3u32);
    let tried = store.sets.get();
    store.before(move |store, call, _| {
        if call == Call::Set && left.get() > 0 {
            left.set(left.get() - 1);
            let rival = state(u64::from(left.get()), 1.0, false).unwrap();
            store.put_state(&format!("{ENDPOINT}-rival"), &gate::gate(), rival);
            store.put(
                &gate_key(ENDPOINT),
                &store.value(&gate_key(ENDPOINT)).unwrap_or_default(),
            );
        }
    });
    let report = keeper.sweep(&store, &[gate()], T0);
    assert_eq!(report.transitions, []);
    assert_eq!(store.sets.get() - tried, 3);
    let report = keeper.sweep(&store, &[gate()], T0);
    assert_eq!(report.transitions, [to(ENDPOINT, Transition::Closed)]);
    assert_eq!(store.state(ENDPOINT, &gate()), state(T0, 9.0, true));
}

#[test]
fn a_store_that_cannot_be_read_changes_nothing() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.put_state(ENDPOINT, &gate(), state(1, 9.0, true).unwrap());
    store.get_fails.set(Some(10));
    assert_eq!(keeper.sweep(&store, &[gate()], T0), SweepReport::default());
    assert_eq!(store.sets.get(), 0);
}

#[test]
fn bad_records_are_counted_once() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let future = samples(&[(T0 + 10_001, 9.0)]);
    store.put(&queue_key(ENDPOINT), &queue_record(&[(ENDPOINT, future)]));
    store.put(&queue_key(OTHER), b"\x00");
    let report = keeper.sweep(&store, &[gate()], T0);
    assert_eq!(
        problems(&report.problems),
        [
            (QueueProblem::FutureSample, 1),
            (QueueProblem::MalformedShape, 1)
        ]
    );
    let check = keeper.check(&store, ENDPOINT, &gate(), T0);
    assert_eq!(check.verdict, GateVerdict::NoSamples);
    assert!(check.problems.is_empty());
    assert_eq!(keeper.sweep(&store, &[gate()], T0), SweepReport::default());
}

/// 25,600 endpoints are more than one sweep takes on; the next one goes on where it stopped.
#[test]
fn much_work_is_spread_over_sweeps() {
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let mut by_bucket = vec![Vec::new(); 256];
    for n in 0..256 * 100 {
        let name = format!("10.{}.{}.{}:8000", n / 65_536, n / 256 % 256, n % 256);
        let number = bucket(&name, 256) as usize;
        by_bucket[number].push(name);
    }
    let total: usize = by_bucket.iter().map(Vec::len).sum();
    for (number, names) in by_bucket.iter().enumerate() {
        let entries = names
            .iter()
            .map(|name| (name.as_str(), samples(&[(T0, 9.0)])));
        let entries: Vec<_> = entries.collect();
        store.put(&queue_bucket_key(number as u64), &queue_record(&entries));
    }
    let first = keeper.sweep(&store, &[gate()], T0);
    assert!(first.unfinished);
    assert!(first.transitions.len() >= 16 * 1024 && first.transitions.len() < 17 * 1024);
    let second = keeper.sweep(&store, &[gate()], T0 + 1_000);
    assert!(!second.unfinished);
    assert_eq!(first.transitions.len() + second.transitions.len(), total);
    let third = keeper.sweep(&store, &[gate()], T0 + 2_000);
    assert_eq!(third, SweepReport::default());
}
