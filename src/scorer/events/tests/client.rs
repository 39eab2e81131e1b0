//! When the bridge is asked, and with what.

use super::bridge::Rec::Start;
use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn next(vm: &mut Vm, store: &dyn Store) -> Option<(String, u64)> {
    let pull = vm.client.due(&mut vm.index, store, NOW)?;
    Some((pull.path, pull.timeout_ms))
}

/// Ticks until there is something to send.
fn ticks(vm: &mut Vm, store: &dyn Store) -> u32 {
    for n in 0..200 {
        if vm.client.due(&mut vm.index, store, NOW).is_some() {
            return n;
        }
        vm.client.tick();
    }
    panic!("nothing is sent any more");
}

#[test]
fn one_call_at_a_time_and_only_with_the_lease() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut vm = Vm::new(params(false), &config);
    assert_eq!(next(&mut vm, &store), None);
    vm.client.start();
    // The first one does not wait.
    let first = ("/events?timeout_ms=0".to_owned(), 15_000);
    assert_eq!(next(&mut vm, &store), Some(first.clone()));
    assert_eq!(next(&mut vm, &store), None);
    vm.client.sent(7);
    assert_eq!(next(&mut vm, &store), None);
    assert!(vm.client.is_mine(7) && !vm.client.is_mine(8));
    // The lease goes and comes: the old call is nobody's.
    vm.client.stop(Some(&mut vm.index));
    assert!(!vm.client.is_mine(7) && !vm.index.is_writing());
    assert_eq!(next(&mut vm, &store), None);
    vm.client.start();
    assert_eq!(next(&mut vm, &store), Some(first));
    vm.client.sent(8);
    vm.token = 7;
    assert_eq!(vm.answer(&store, &Fleet::default(), Answer::None), []);
    assert!(vm.client.is_mine(8));
}

#[test]
fn the_next_call_waits_at_the_bridge_from_the_cursor_on() {
    let (store, config) = (MemoryStore::new(), config(r#","maxSilence":"12s""#));
    let mut vm = Vm::leader(params(false), &config);
    let mut bridge = Bridge::with(0xab, &[(A, 0, &[Start(true)])]);
    bridge.page = 1;
    let fleet = Fleet::default();
    vm.ask(&store).unwrap();
    let page = bridge.page(None).bytes;
    let ok = Answer::Http {
        status: 200,
        body: &page,
    };
    let events = vm.answer(&store, &fleet, ok);
    assert_eq!(events.last(), Some(&Event::Pull(PullResult::Ok)));
    // A third of the longest silence.
    let pull = next(&mut vm, &store);
    let path = |wait| format!("/events?after=00000000000000ab-1&timeout_ms={wait}");
    assert_eq!(pull, Some((path(4_000), 9_000)));
    // An engine that the bridge is still fetching from is asked for soon again; a page without
    // news is not followed by the next call at once, in case the bridge does not wait.
    bridge.sources[0].state = "replaying";
    vm.client.sent(2);
    vm.token = 2;
    let page = bridge.page(Some("00000000000000ab-1")).bytes;
    let ok = Answer::Http {
        status: 200,
        body: &page,
    };
    vm.answer(&store, &fleet, ok);
    assert_eq!(next(&mut vm, &store), None);
    vm.client.tick();
    assert_eq!(next(&mut vm, &store), Some((path(1_000), 9_000)));
}

#[test]
fn a_hostile_cursor_is_only_text() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut vm = Vm::leader(params(false), &config);
    vm.index.take_over(&store, NOW).unwrap();
    vm.index.set_cursor(&store, b"a&b=c#/%\xff~").unwrap();
    let path = next(&mut vm, &store).unwrap().0;
    assert_eq!(path, "/events?after=a%26b%3Dc%23%2F%25%FF~&timeout_ms=0");
}

#[test]
fn failures_are_counted_and_paused_after() {
    let http = |status, body| Answer::Http { status, body };
    let table: [(&str, Answer<'_>, PullResult); 8] = [
        ("bridge is away", http(503, b""), PullResult::Status(503)),
        ("token", http(401, b""), PullResult::Status(401)),
        ("Envoy's timeout", http(504, b""), PullResult::Timeout),
        ("no answer", Answer::None, PullResult::NoAnswer),
        ("unreadable", Answer::Unreadable, PullResult::Unreadable),
        (
            "too large",
            Answer::TooLarge,
            PullResult::Malformed(page::Malformed::TooLarge),
        ),
        (
            "no page",
            http(200, b"<html>"),
            PullResult::Malformed(page::Malformed::Cbor),
        ),
        (
            "another version",
            http(200, b"\xa1\x61v\x02"),
            PullResult::Malformed(page::Malformed::Version),
        ),
    ];
    for (name, answer, expected) in table {
        let (store, config) = (MemoryStore::new(), config(""));
        let mut vm = Vm::leader(params(false), &config);
        vm.index.take_over(&store, NOW).unwrap();
        vm.index.set_cursor(&store, b"e-1").unwrap();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(ticks(&mut vm, &store));
            vm.token += 1;
            vm.client.sent(vm.token);
            let events = vm.answer(&store, &Fleet::default(), answer);
            assert_eq!(events, [Event::Pull(expected)], "{name}");
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 8], "{name}");
        assert_eq!(vm.index.cursor(&store), Ok(Some(b"e-1".to_vec())), "{name}");
    }
}

#[test]
fn a_refused_parameter_may_be_the_cursor() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut vm = Vm::leader(params(false), &config);
    vm.index.take_over(&store, NOW).unwrap();
    vm.index.set_cursor(&store, b"e-1").unwrap();
    vm.ask(&store).unwrap();
    let bad = Answer::Http {
        status: 400,
        body: b"",
    };
    vm.answer(&store, &Fleet::default(), bad);
    assert_eq!(vm.index.cursor(&store), Ok(None));
}

#[test]
fn a_call_that_is_refused_or_never_ends_is_not_waited_for() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut vm = Vm::leader(params(false), &config);
    next(&mut vm, &store).unwrap();
    vm.client.not_sent();
    assert_eq!(vm.client.take_events(), [Event::Pull(PullResult::NotSent)]);
    assert_eq!(ticks(&mut vm, &store), 1);
    vm.client.sent(1);
    // 15 s of ticks, and two.
    for _ in 0..32 {
        vm.client.tick();
        assert_eq!(vm.client.take_events(), []);
    }
    vm.client.tick();
    assert_eq!(vm.client.take_events(), [Event::Pull(PullResult::Lost)]);
    assert!(!vm.client.is_mine(1));
    assert_eq!(ticks(&mut vm, &store), 2);
}

#[test]
fn the_index_is_claimed_about_once_a_minute_and_again_when_it_is_lost() {
    let (store, config) = (Counting::default(), config(""));
    let mut vm = Vm::leader(params(false), &config);
    let fleet = Fleet::default();
    let bridge = Bridge::with(1, &[(A, 0, &[Start(true)])]);
    // No room for another scorer's index.
    store.fail_in.set(Some(0));
    assert_eq!(next(&mut vm, &store), None);
    let failed = Problem::TakeOver(IndexError::Host(10));
    assert_eq!(vm.client.take_events(), [Event::Problem(failed)]);
    vm.read(&store, &fleet, &bridge);
    // Another VM takes over, and loses the lease again.
    let mut other = Index::new(params(false));
    other.take_over(&store, NOW).unwrap();
    while vm.ask(&store).is_none() {
        vm.client.tick();
    }
    let page = bridge.page(None).bytes;
    let ok = Answer::Http {
        status: 200,
        body: &page,
    };
    let events = vm.answer(&store, &fleet, ok);
    let superseded = PullResult::Index(IndexError::Superseded);
    assert_eq!(events, [Event::Pull(superseded)]);
    assert!(!vm.index.is_writing());
    vm.read(&store, &fleet, &bridge);
    assert!(vm.index.is_writing());
    assert_eq!(vm.look(&store, A, &[]), Ok((NONE, vec![])));
    // It says that it is in use: its place is not taken.
    let places = "selective-kv/1/index/places";
    let before = store.get(places).unwrap().unwrap().cas;
    let claimed = |vm: &mut Vm| {
        vm.client.not_sent();
        ticks(vm, &store);
        store.get(places).unwrap().unwrap().cas
    };
    assert_eq!(claimed(&mut vm), before);
    for _ in 0..120 {
        vm.client.tick();
    }
    assert!(claimed(&mut vm) > before);
}
