use super::*;
use crate::contract::queue;
use crate::contract::queue::QueueEntry;
use crate::contract::store::{MemoryStore, StoreError, Versioned};
use crate::scorer::config::Target;
use crate::scorer::event::PollResult;
use crate::scorer::sightings::Sightings;
use std::cell::RefCell;
use std::collections::BTreeSet;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

mod engines;

const NOW: u64 = 1_795_952_365_000;
const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";
const TWO: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000","10.0.0.2:8000"],
    "scrape":{"cluster":"scrape"}}"#;

const OK: Answer<'_> = page(b"vllm:num_requests_waiting{engine=\"0\"} 16.0\n");
const VERSION: Answer<'_> = page(br#"{"version":"0.32.0"}"#);

const MODELS: Answer<'_> = page(br#"{"data":[{"id":"tiny"},{"id":"sql","parent":"tiny"}]}"#);

const fn page(body: &[u8]) -> Answer<'_> {
    Answer::Http { status: 200, body }
}

const fn status(status: u16) -> Answer<'static> {
    Answer::Http { status, body: b"" }
}

/// One VM's poller, with the shell's part played by the test.
struct Vm {
    poller: Poller,
    next_token: u32,
    /// Calls out, oldest first.
    out: Vec<(u32, Call)>,
    events: Vec<Event>,
}

impl Vm {
    fn new(config: &str) -> Self {
        let config = ScorerConfig::parse(config.as_bytes()).unwrap();
        Self {
            poller: Poller::new(Rc::new(config)),
            next_token: 1,
            out: Vec::new(),
            events: Vec::new(),
        }
    }

    fn tick(&mut self, store: &dyn Store, now_ms: u64) {
        self.poller.tick(store, now_ms);
        self.send();
    }

    fn send(&mut self) {
        while let Some(call) = self.poller.next_call() {
            self.poller.sent(call.clone(), self.next_token);
            self.out.push((self.next_token, call));
            self.next_token += 1;
        }
        self.events.extend(self.poller.take_events());
    }

    /// Answers the calls that are out; version calls that follow are answered too.
    fn answer(&mut self, store: &dyn Store, now_ms: u64, f: impl Fn(&Call) -> Answer<'static>) {
        while !self.out.is_empty() {
            let (token, call) = self.out.remove(0);
            self.poller.answered(token, f(&call), store, now_ms);
            self.send();
        }
    }

    fn answer_well(&mut self, store: &dyn Store, now_ms: u64) {
        self.answer(store, now_ms, |call| match call.ask {
            Ask::Metrics => OK,
            Ask::Version => VERSION,
            Ask::Models => MODELS,
        });
    }

    fn asked(&self) -> Vec<(&str, Ask)> {
        let calls = self.out.iter();
        calls
            .map(|(_, call)| (call.address.as_ref(), call.ask))
            .collect()
    }

    fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

fn entry(store: &dyn Store, endpoint: &str) -> QueueEntry {
    let value = store.get(&keys::queue_key(endpoint)).unwrap();
    let value = value.map(|v| v.value).unwrap_or_default();
    queue::decode(&value)
        .unwrap()
        .remove(endpoint)
        .unwrap_or_default()
}

fn samples(store: &dyn Store, endpoint: &str) -> Vec<(u64, f64)> {
    let samples = entry(store, endpoint).history.samples;
    samples.iter().map(|s| (s.t_ms, s.waiting)).collect()
}

fn members(store: &dyn Store) -> Vec<(String, u64, Vec<String>)> {
    let value = store.get(keys::MEMBERS_KEY).unwrap();
    let members = Members::decode(&value.map(|v| v.value).unwrap_or_default()).unwrap();
    let writers = members.writers().iter();
    writers
        .map(|(name, w)| (name.clone(), w.t_ms, w.endpoints.iter().cloned().collect()))
        .collect()
}

fn listed(store: &dyn Store) -> Vec<String> {
    let all: BTreeSet<String> = members(store).into_iter().flat_map(|(_, _, e)| e).collect();
    all.into_iter().collect()
}

#[test]
fn ticks_divide_the_interval() {
    for (interval, ticks, tick) in [
        (200, 2, 100),
        (1_000, 2, 500),
        (1_500, 2, 750),
        (2_001, 3, 667),
        (3_000, 3, 1_000),
        (60_000, 60, 1_000),
    ] {
        assert_eq!(ticks_per_interval(interval), ticks, "{interval}");
        assert_eq!(tick_ms(interval, ticks), tick, "{interval}");
    }
}

#[test]
fn store_counters_come_with_the_samples() {
    const FIRST: Answer<'_> = page(
        b"process_start_time_seconds 1.79595212933e+09\n\
          vllm:num_requests_waiting 1\nvllm:kv_offload_store_bytes_total 1048576\n\
          vllm:kv_offload_store_time_total 0.5\n",
    );
    const SECOND: Answer<'_> = page(
        b"vllm:num_requests_waiting 1\nvllm:kv_offload_store_bytes_total 3145728\n\
          vllm:kv_offload_store_time_total 0.75\n",
    );
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    let cpu = || {
        let stores = entry(&store, A).stores;
        let cpu = stores.get("cpu").cloned().unwrap_or_default();
        let rows = cpu
            .iter()
            .map(|s| (s.t_ms, s.counters.bytes, s.counters.seconds));
        rows.collect::<Vec<_>>()
    };
    for (round, answer) in [(0, FIRST), (1, SECOND), (2, OK)] {
        let now_ms = NOW + round * 1_000;
        vm.tick(&store, now_ms);
        vm.answer(&store, now_ms, |call| match call.ask {
            Ask::Metrics => answer,
            Ask::Version => VERSION,
            Ask::Models => MODELS,
        });
        vm.tick(&store, now_ms + 500);
    }
    // A page without the counters leaves what is known.
    let known = [(NOW, 1_048_576.0, 0.5), (NOW + 1_000, 3_145_728.0, 0.75)];
    assert_eq!(cpu(), known);
    assert_eq!(entry(&store, A).started_ms, Some(1_795_952_129_330));
    assert_eq!(samples(&store, A).len(), 3);
}

#[test]
fn a_round_of_polls_becomes_samples_versions_and_members() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    // Given the first tick: both endpoints are polled through the scrape cluster
    vm.tick(&store, NOW);
    assert_eq!(vm.asked(), [(A, Ask::Metrics), (B, Ask::Metrics)]);
    assert_eq!(
        vm.out[0].1.target,
        Target {
            cluster: "scrape".into(),
            destination_header: Some("x-envoy-original-dst-host".into())
        }
    );
    assert_eq!(vm.take_events(), [Event::LeaseTaken]);
    assert_eq!(members(&store), []);
    // When they answer, each with its own arrival time
    vm.poller.answered(1, OK, &store, NOW + 3);
    vm.poller
        .answered(2, page(b"vllm:num_requests_waiting 0\n"), &store, NOW + 7);
    vm.out.clear();
    vm.send();
    // Then there is a sample of each, and the versions are asked for
    assert_eq!(samples(&store, A), [(NOW + 3, 16.0)]);
    assert_eq!(samples(&store, B), [(NOW + 7, 0.0)]);
    assert_eq!(entry(&store, A).engine.as_deref(), Some("vllm"));
    assert_eq!(entry(&store, A).version, None);
    assert_eq!(vm.asked(), [(A, Ask::Version), (B, Ask::Version)]);
    let up = |endpoint: &str| Event::Returned(endpoint.into());
    let ok = Event::Poll(PollResult::Ok);
    assert_eq!(
        vm.take_events(),
        [ok.clone(), up(A), Event::Sample, ok, up(B), Event::Sample]
    );
    vm.answer_well(&store, NOW + 9);
    assert_eq!(vm.take_events(), []);
    // and the next tick, half an interval later, lists both and polls none.
    vm.tick(&store, NOW + 500);
    assert_eq!(vm.asked(), []);
    let both = vec![A.to_owned(), B.to_owned()];
    assert_eq!(members(&store), [("pool".to_owned(), NOW + 500, both)]);
    // The next interval's samples carry the version, which is not asked again.
    vm.tick(&store, NOW + 1_000);
    vm.answer_well(&store, NOW + 1_004);
    assert_eq!(samples(&store, A), [(NOW + 3, 16.0), (NOW + 1_004, 16.0)]);
    assert_eq!(entry(&store, A).version.as_deref(), Some("0.32.0"));
    assert_eq!(vm.next_token, 1 + 2 + 2 + 2);
    assert_eq!(
        vm.poller.counts(),
        Counts {
            listed: 2,
            unlisted: 0
        }
    );
}

#[test]
fn members_are_renewed_every_three_seconds() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    let mut times = BTreeSet::new();
    for now in (NOW..NOW + 20_000).step_by(500) {
        vm.tick(&store, now);
        vm.answer_well(&store, now + 1);
        times.extend(members(&store).iter().map(|(_, t, _)| t - NOW));
    }
    let times: Vec<u64> = times.into_iter().collect();
    assert_eq!(times, [500, 3_500, 6_500, 9_500, 12_500, 15_500, 18_500]);
}

#[test]
fn only_one_vm_polls_and_another_takes_over_within_three_intervals() {
    let store = MemoryStore::new();
    let (mut a, mut b) = (Vm::new(TWO), Vm::new(TWO));
    let mut now = NOW;
    for _ in 0..20 {
        a.tick(&store, now);
        b.tick(&store, now);
        assert_eq!(b.asked(), []);
        a.answer_well(&store, now + 2);
        now += 500;
    }
    assert_eq!(b.poller.counts(), Counts::default());
    // When the holder goes
    let gone = now;
    while b.out.is_empty() {
        b.tick(&store, now);
        now += 500;
    }
    assert!(now - gone <= 3_000, "{} ms", now - gone);
    // Then what it listed stays listed, with no gap in between.
    assert_eq!(
        b.poller.counts(),
        Counts {
            listed: 2,
            unlisted: 0
        }
    );
    assert_eq!(listed(&store), [A, B]);
    b.answer_well(&store, now);
    b.tick(&store, now + 500);
    assert_eq!(listed(&store), [A, B]);
    // The old holder comes back, with calls it made before: it stops, and their answers are late.
    let mut late = a;
    late.poller.sent(
        Call {
            address: A.into(),
            target: b.poller.endpoints.get(A).unwrap().target.clone(),
            ask: Ask::Metrics,
        },
        900,
    );
    late.take_events();
    late.tick(&store, now + 600);
    assert_eq!(late.take_events(), [Event::LeaseLost]);
    let before = samples(&store, A);
    late.poller.answered(900, OK, &store, now + 700);
    late.send();
    assert_eq!(late.take_events(), [Event::Problem(Problem::LateAnswer, 1)]);
    assert_eq!(samples(&store, A), before);
    assert_eq!(late.asked(), []);
}

#[test]
fn a_poller_that_goes_away_hands_over_at_once() {
    let store = MemoryStore::new();
    let (mut a, mut b) = (Vm::new(TWO), Vm::new(TWO));
    a.tick(&store, NOW);
    b.tick(&store, NOW);
    a.poller.release(&store);
    b.tick(&store, NOW + 500);
    assert_eq!(b.asked().len(), 2);
}

#[test]
fn every_failure_counts_and_three_in_a_row_remove() {
    let rows: &[(Answer<'_>, PollResult)] = &[
        (status(503), PollResult::Status),
        (status(404), PollResult::Status),
        (status(204), PollResult::Status),
        (status(504), PollResult::Timeout),
        (Answer::None, PollResult::NoAnswer),
        (Answer::TooLarge, PollResult::TooLarge),
        (Answer::Unreadable, PollResult::Unreadable),
    ];
    for (answer, result) in rows {
        let store = MemoryStore::new();
        let mut vm = Vm::new(TWO);
        let mut now = NOW;
        let mut interval = |vm: &mut Vm, good: bool| {
            vm.tick(&store, now);
            vm.answer(&store, now + 1, |call| match (call.ask, good) {
                (Ask::Metrics, false) if call.address.as_ref() == A => *answer,
                (Ask::Metrics, _) => OK,
                (Ask::Version | Ask::Models, _) => VERSION,
            });
            vm.tick(&store, now + 500);
            now += 1_000;
            (listed(&store), vm.take_events())
        };
        assert_eq!(interval(&mut vm, true).0, [A, B]);
        for _ in 0..2 {
            let (listed, events) = interval(&mut vm, false);
            assert_eq!(listed, [A, B], "{result:?}");
            assert!(events.contains(&Event::Poll(*result)), "{events:?}");
        }
        let (listed, events) = interval(&mut vm, false);
        assert_eq!(listed, [B], "{result:?}");
        assert!(events.contains(&Event::Left(A.into(), *result)));
        assert_eq!(
            vm.poller.counts(),
            Counts {
                listed: 1,
                unlisted: 1
            }
        );
        assert_eq!(samples(&store, A).len(), 1);
        // It is still polled, and comes back with the first good answer, its version asked anew.
        let tokens = vm.next_token;
        let (listed, events) = interval(&mut vm, true);
        assert_eq!(listed, [A, B], "{result:?}");
        assert!(events.contains(&Event::Returned(A.into())));
        assert_eq!(vm.next_token - tokens, 3, "two pages, one version");
    }
}

#[test]
fn a_page_without_the_metric_is_no_sample_and_no_failure() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    for i in 0..4 {
        vm.tick(&store, NOW + i * 1_000);
        vm.answer(&store, NOW + i * 1_000, |call| match call.ask {
            Ask::Metrics => page(b"vllm:num_requests_waiting NaN\nother 1\n"),
            Ask::Version => VERSION,
            Ask::Models => MODELS,
        });
        vm.tick(&store, NOW + i * 1_000 + 500);
    }
    assert_eq!(listed(&store), [A, B]);
    assert_eq!(samples(&store, A), []);
    let events = vm.take_events();
    let count = |event: Event| events.iter().filter(|e| **e == event).count();
    assert_eq!(count(Event::Poll(PollResult::NoMetric)), 8);
    assert_eq!(count(Event::Problem(Problem::InvalidSeries, 1)), 8);
    assert_eq!(count(Event::Sample), 0);
}

#[test]
fn a_failing_version_is_no_failure_of_the_endpoint() {
    let answers: &[(Answer<'static>, usize)] = &[
        // any answer settles it
        (status(404), 1),
        (page(b"no"), 1),
        (Answer::TooLarge, 1),
        // no answer is tried three times, nor is that of an engine in trouble one
        (status(503), 3),
        (status(504), 3),
        (Answer::None, 3),
        (Answer::Unreadable, 3),
    ];
    for (answer, calls) in answers {
        let store = MemoryStore::new();
        let mut vm = Vm::new(TWO);
        for i in 0..8 {
            vm.tick(&store, NOW + i * 1_000);
            vm.answer(&store, NOW + i * 1_000, |call| match call.ask {
                Ask::Metrics => OK,
                Ask::Version | Ask::Models => *answer,
            });
            vm.tick(&store, NOW + i * 1_000 + 500);
        }
        assert_eq!(listed(&store), [A, B], "{answer:?}");
        assert_eq!(entry(&store, A).version, None);
        let events = vm.take_events();
        let problem = Event::Problem(Problem::Version, 1);
        let problems = events.iter().filter(|e| **e == problem).count();
        assert_eq!(problems, 2 * calls, "{answer:?}");
    }
}

#[test]
fn an_endpoint_with_a_poll_out_is_not_polled_again() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    vm.tick(&store, NOW);
    vm.out.remove(0); // A never answers
    for i in 1..4 {
        vm.answer_well(&store, NOW + i * 500);
        vm.tick(&store, NOW + i * 500);
        assert!(vm.asked().iter().all(|(address, _)| *address == B));
    }
    // The host owes an answer after the timeout of 1 s. After two intervals more the poll counts
    // as failed, and the next round polls A again.
    vm.take_events();
    let mut now = NOW + 2_000;
    while !vm.asked().contains(&(A, Ask::Metrics)) {
        vm.answer_well(&store, now);
        vm.tick(&store, now);
        now += 500;
        assert!(now < NOW + 10_000);
    }
    let lost = Event::Poll(PollResult::Lost);
    assert!(vm.take_events().contains(&lost));
    assert_eq!(now - NOW, 4_500);
}

#[test]
fn calls_the_host_refuses_are_failures() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    for i in 0..4 {
        vm.poller.tick(&store, NOW + i * 500);
        while let Some(call) = vm.poller.next_call() {
            vm.poller.not_sent(&call);
        }
    }
    let events = vm.poller.take_events();
    let refused = Event::Poll(PollResult::NotSent);
    assert_eq!(events.iter().filter(|e| **e == refused).count(), 4);
}

#[test]
fn at_most_64_calls_are_in_flight_and_the_rest_follow() {
    let store = MemoryStore::new();
    let endpoints: Vec<String> = (0..200).map(|i| format!("\"10.0.1.{i}:8000\"")).collect();
    let config = format!(
        r#"{{"endpoints":[{}],"scrape":{{"cluster":"s"}},"versionPath":null}}"#,
        endpoints.join(",")
    );
    let mut vm = Vm::new(&config);
    vm.tick(&store, NOW);
    assert_eq!(vm.out.len(), 64);
    // Each answer makes room for one.
    let (token, _) = vm.out.remove(0);
    vm.poller.answered(token, OK, &store, NOW);
    vm.send();
    assert_eq!(vm.out.len(), 64);
    // Endpoints that still wait when the next round is due are counted, not queued twice.
    vm.tick(&store, NOW + 500);
    vm.take_events();
    vm.tick(&store, NOW + 1_000);
    assert!(
        vm.take_events()
            .contains(&Event::Problem(Problem::Behind, 135))
    );
    vm.answer_well(&store, NOW + 1_001);
    assert_eq!(vm.next_token - 1, 200 + 1);
    assert_eq!(vm.poller.counts().listed, 200);
}

#[test]
fn discovered_endpoints_are_polled_listed_and_forgotten() {
    let store = MemoryStore::new();
    let config = r#"{"name":"pool","discover":true,"scrape":{"cluster":"s"}}"#;
    let mut vm = Vm::new(config);
    // Given another VM that serves the traffic
    let mut traffic = Sightings::new("pool", []);
    vm.tick(&store, NOW);
    assert_eq!(vm.asked(), []);
    traffic.note(A, NOW + 100);
    traffic.write(&store, NOW + 200).unwrap();
    // Then the holder polls it with its next round
    let mut now = NOW;
    for _ in 0..4 {
        now += 500;
        vm.tick(&store, now);
        vm.answer_well(&store, now + 1);
    }
    assert_eq!(listed(&store), [A]);
    assert_eq!(samples(&store, A).len(), 2);
    // and forgets it ten minutes after the last traffic.
    let forgotten = NOW + 100 + 600_000 + 10_000;
    while now < forgotten {
        assert_eq!(listed(&store), [A], "{}", now - NOW);
        now += 500;
        vm.tick(&store, now);
        vm.answer_well(&store, now + 1);
    }
    now += 500;
    vm.tick(&store, now);
    assert_eq!(listed(&store), [""; 0]);
    let polls = vm.next_token;
    vm.tick(&store, now + 500);
    vm.tick(&store, now + 1_000);
    assert_eq!(vm.next_token, polls);
    assert_eq!(vm.poller.counts(), Counts::default());
}

#[test]
fn two_scorers_with_disjoint_pools_share_a_store() {
    let store = MemoryStore::new();
    let one = |name: &str, endpoint: &str| {
        Vm::new(&format!(
            r#"{{"name":"{name}","endpoints":["{endpoint}"],"scrape":{{"cluster":"s"}}}}"#
        ))
    };
    let (mut left, mut right) = (one("left", A), one("right", B));
    for i in 0..6 {
        for vm in [&mut left, &mut right] {
            vm.tick(&store, NOW + i * 500);
            vm.answer_well(&store, NOW + i * 500);
        }
    }
    assert_eq!(samples(&store, A).len(), 3);
    assert_eq!(samples(&store, B).len(), 3);
    let entry = |name: &str, endpoint: &str| {
        let t_ms = NOW + 500;
        (name.to_owned(), t_ms, vec![endpoint.to_owned()])
    };
    assert_eq!(members(&store), [entry("left", A), entry("right", B)]);
    // One pool's engine going does not touch the other's.
    for i in 6..14 {
        left.tick(&store, NOW + i * 500);
        left.answer(&store, NOW + i * 500, |_| Answer::None);
        right.tick(&store, NOW + i * 500);
        right.answer_well(&store, NOW + i * 500);
    }
    assert_eq!(listed(&store), [B]);
    assert_eq!(
        right.poller.counts(),
        Counts {
            listed: 1,
            unlisted: 0
        }
    );
}

#[test]
fn a_clock_step_changes_neither_the_pace_nor_the_lease() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    let hour = 3_600_000;
    for (i, now) in [NOW, NOW - hour, NOW - hour, NOW + hour, NOW, NOW]
        .iter()
        .enumerate()
    {
        vm.tick(&store, *now);
        assert_eq!(vm.out.len(), if i % 2 == 0 { 2 } else { 0 }, "tick {i}");
        vm.answer_well(&store, *now);
    }
    // The history is ascending whatever the clock did.
    let times = samples(&store, A);
    assert!(
        times.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "{times:?}"
    );
}

/// Fails the `at`-th call, with a status no one expects.
struct FailsOnce {
    store: MemoryStore,
    calls: RefCell<u32>,
    at: u32,
}

impl FailsOnce {
    fn next(&self) -> Result<(), StoreError> {
        let mut calls = self.calls.borrow_mut();
        *calls += 1;
        match *calls == self.at {
            true => Err(StoreError::Host(42)),
            false => Ok(()),
        }
    }
}

impl Store for FailsOnce {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.next()?;
        self.store.get(key)
    }
    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        self.next()?;
        self.store.set(key, value, cas)
    }
}

#[test]
fn one_failing_store_call_anywhere_is_counted_and_healed() {
    let config = r#"{"name":"pool","endpoints":["10.0.0.1:8000"],"discover":true,
        "scrape":{"cluster":"s"}}"#;
    let mut at = 1;
    loop {
        let store = FailsOnce {
            store: MemoryStore::new(),
            calls: RefCell::new(0),
            at,
        };
        let mut vm = Vm::new(config);
        for i in 0..12 {
            vm.tick(&store, NOW + i * 500);
            vm.answer_well(&store, NOW + i * 500 + 1);
        }
        assert_eq!(listed(&store.store), [A], "call {at}");
        assert!(samples(&store.store, A).len() >= 5, "call {at}");
        let problems = vm.take_events();
        let problems = problems.iter().filter(|e| matches!(e, Event::Problem(..)));
        if *store.calls.borrow() < at {
            assert_eq!(problems.count(), 0);
            break;
        }
        assert_eq!(problems.count(), 1, "call {at}");
        at += 1;
    }
    assert!(at > 50, "{at} calls");
}

#[test]
fn foreign_values_under_our_keys_do_no_harm() {
    let store = MemoryStore::new();
    for key in [
        keys::MEMBERS_KEY.to_owned(),
        keys::queue_key(A),
        sightings::key("pool"),
    ] {
        store.set(&key, b"\xffnot cbor", 0).unwrap();
    }
    let mut vm = Vm::new(TWO);
    for i in 0..4 {
        vm.tick(&store, NOW + i * 500);
        vm.answer_well(&store, NOW + i * 500);
    }
    assert_eq!(samples(&store, A).len(), 2);
    assert_eq!(listed(&store), [A, B]);
}
