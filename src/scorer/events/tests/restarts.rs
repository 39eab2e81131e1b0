//! What a page means: starts, gaps, ranks, groups, and what was half done.

use super::bridge::Rec;
use super::bridge::Rec::{Batch, Gap, Start};
use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn b(n: u64) -> Rec {
    Batch(n, batch(n))
}

#[test]
fn a_rank_is_whole_if_its_last_start_said_so_and_nothing_was_lost_since() {
    let late = Reasons::JOINED_LATE;
    let gap = Reasons::GAP;
    type Row<'a> = (&'a str, &'a [Rec], Reasons, [u16; 3]);
    let table: &[Row<'_>] = &[
        ("started", &[Start(true)], NONE, [0, 0, 0]),
        ("one batch", &[Start(true), b(0)], NONE, [1, 0, 0]),
        ("three", &[Start(true), b(0), b(1), b(2)], NONE, [1, 1, 1]),
        ("late", &[Start(false), b(1)], late, [0, 1, 0]),
        ("late and quiet", &[Start(false)], late, [0, 0, 0]),
        ("a hole", &[Start(true), b(0), Gap(2), b(2)], gap, [1, 0, 1]),
        (
            "nobody vouches",
            &[Start(true), b(0), Gap(1), b(1)],
            gap,
            [1, 1, 0],
        ),
        ("at the end", &[Start(true), b(0), Gap(1)], gap, [1, 0, 0]),
        (
            "a restart",
            &[Start(true), b(0), Start(true), b(0)],
            NONE,
            [1, 0, 0],
        ),
        (
            "to nothing",
            &[Start(true), b(0), b(1), Start(true)],
            NONE,
            [0, 0, 0],
        ),
        (
            "after a gap",
            &[Start(true), Gap(1), b(1), Start(true), b(0)],
            NONE,
            [1, 0, 0],
        ),
        (
            "to less",
            &[Start(true), b(0), Start(false), b(2)],
            late,
            [0, 0, 1],
        ),
    ];
    for (name, records, reasons, gpu) in table {
        // On one page, and with every record on a page of its own.
        for page in [1, 100] {
            let (store, config) = (MemoryStore::new(), config(""));
            let mut bridge = Bridge::with(1, &[(A, 0, records)]);
            bridge.page = page;
            let mut vm = Vm::leader(params(false), &config);
            vm.read(&store, &Fleet::default(), &bridge);
            let expected = gpu.map(|gpu| held(gpu, 0)).to_vec();
            let now = vm.look(&store, A, &[0, 1, 2]);
            assert_eq!(now, Ok((*reasons, expected)), "{name}, {page}");
        }
    }
}

#[test]
fn a_rank_without_a_start_is_unknown() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut bridge = Bridge::with(1, &[(A, 0, &[]), (B, 0, &[Start(true)])]);
    let mut vm = Vm::leader(params(false), &config);
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.look(&store, A, &[0]), Err(NotReady::Unknown));
    // And of two ranks none may be.
    let rank = bridge.source(B, 1);
    bridge.say(0, Start(true));
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.look(&store, A, &[0]), Ok((NONE, vec![held(0, 0)])));
    assert_eq!(vm.look(&store, B, &[0]), Err(NotReady::Unknown));
    assert_eq!(vm.index.publishers().count(), 3);
    bridge.say(rank, Start(true));
    bridge.say(rank, b(0));
    vm.read(&store, &Fleet::default(), &bridge);
    let both = Reasons::RANKS;
    assert_eq!(vm.look(&store, B, &[0]), Ok((both, vec![held(0, 0)])));
    bridge.say(1, b(0));
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.look(&store, B, &[0]), Ok((both, vec![held(1, 0)])));
    // The second one goes: what is left is the endpoint.
    bridge.sources.pop();
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.index.publishers().collect::<Vec<_>>(), [A, B]);
}

#[test]
fn an_engine_that_is_not_heard_of_is_not_alive_because_its_bridge_is() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut bridge = Bridge::with(1, &[(A, 0, &[Start(true), b(0)])]);
    let mut vm = Vm::leader(params(false), &config);
    for (heard, expected) in [
        (Some(NOW), None),
        (Some(NOW - 30_000), None),
        (Some(NOW - 40_000), Some(NotReady::Silent)),
        (Some(NOW - 30_000), None),
        // As before: the bridge was restarted and says nothing of it.
        (None, None),
    ] {
        bridge.sources[0].heard_ms = heard;
        vm.read(&store, &Fleet::default(), &bridge);
        assert_eq!(vm.look(&store, A, &[]).err(), expected, "{heard:?}");
    }
    let mut bridge = Bridge::with(2, &[(A, 0, &[Start(true), b(0)])]);
    bridge.sources[0].heard_ms = None;
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.look(&store, A, &[]).err(), Some(NotReady::Silent));
}

#[test]
fn what_is_not_read_to_its_end_is_a_lower_bound() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut bridge = Bridge::with(
        1,
        &[(A, 0, &[Start(true), b(0), b(1)]), (B, 0, &[Start(true)])],
    );
    bridge.page = 3;
    let fleet = Fleet::default();
    let mut vm = Vm::leader(params(false), &config);
    let step = |vm: &mut Vm, bridge: &Bridge| {
        while vm.client.due(&mut vm.index, &store, NOW).is_none() {
            vm.client.tick();
        }
        vm.token += 1;
        vm.client.sent(vm.token);
        let cursor = vm.index.cursor(&store).unwrap();
        let cursor = cursor.map(|c| String::from_utf8(c).unwrap());
        let body = &bridge.page(cursor.as_deref()).bytes;
        vm.answer(&store, &fleet, Answer::Http { status: 200, body });
        vm.look(&store, A, &[1]).map(|(reasons, _)| reasons)
    };
    assert_eq!(step(&mut vm, &bridge), Ok(Reasons::BEHIND));
    assert_eq!(vm.look(&store, B, &[]), Err(NotReady::Unknown));
    assert_eq!(step(&mut vm, &bridge), Ok(NONE));
    for (state, reasons) in [
        ("replaying", Reasons::BEHIND),
        ("live", NONE),
        ("connecting", Reasons::BEHIND),
    ] {
        bridge.sources[0].state = state;
        assert_eq!(step(&mut vm, &bridge), Ok(reasons), "{state}");
    }
}

#[test]
fn another_run_of_the_bridge_says_everything_anew() {
    let (store, config) = (MemoryStore::new(), config(""));
    let first = Bridge::with(
        1,
        &[
            (A, 0, &[Start(true), b(0), b(1)]),
            (B, 0, &[Start(true), b(0)]),
            ("10.0.0.9:8000", 0, &[Start(true)]),
        ],
    );
    let fleet = fleet(&[("10.0.0.9:8000", "m")]);
    let mut vm = Vm::leader(params(false), &config);
    vm.read(&store, &fleet, &first);
    assert!(vm.look(&store, B, &[0]).is_ok() && vm.look(&store, "10.0.0.9:8000", &[]).is_ok());
    // Sequence numbers are the same, and the process is another; one endpoint is not started yet,
    // and one is not known at all.
    let second = Bridge::with(
        2,
        &[(A, 0, &[Start(true), Batch(0, batch(7))]), (B, 0, &[])],
    );
    let events = vm.read(&store, &fleet, &second);
    assert!(events.contains(&Event::Pull(PullResult::Reset)));
    let now = vm.look(&store, A, &[0, 1, 7]);
    let expected = [held(0, 0), held(0, 0), held(1, 0)];
    assert_eq!(now, Ok((NONE, expected.to_vec())));
    for gone in [B, "10.0.0.9:8000"] {
        assert_eq!(vm.look(&store, gone, &[0]), Err(NotReady::Unknown));
    }
}

/// Two bridges behind one name are not supported, but nothing is made up of the two.
#[test]
fn a_log_that_is_begun_anew_is_read_to_the_end_of_the_page_or_begun_anew() {
    let fleet = Fleet::default();
    let one = Bridge::with(
        1,
        &[(A, 0, &[Start(true), b(0)]), (B, 0, &[Start(true), b(0)])],
    );
    let mut two = Bridge::with(
        2,
        &[(A, 0, &[Start(true), b(5)]), (B, 0, &[Start(true), b(5)])],
    );
    two.sources.reverse();
    for fail in 0.. {
        let (store, config) = (Counting::default(), config(""));
        let mut vm = Vm::leader(params(false), &config);
        vm.read(&store, &fleet, &one);
        let mut grown = one.clone();
        grown.say(0, b(1));
        while vm.ask(&store).is_none() {
            vm.client.tick();
        }
        let body = &two.page(Some("0000000000000001-4")).bytes;
        store.fail_in.set(Some(fail));
        vm.answer(&store, &fleet, Answer::Http { status: 200, body });
        let failed = store.fail_in.take().is_none();
        vm.read(&store, &fleet, &grown);
        for (endpoint, blocks) in [(A, [1, 1, 0]), (B, [1, 0, 0])] {
            let (reasons, now) = vm.look(&store, endpoint, &[0, 1, 5]).unwrap();
            let now: Vec<u16> = now.iter().map(|held| held.gpu).collect();
            assert_eq!(
                (reasons, now),
                (NONE, blocks.to_vec()),
                "{endpoint}, {fail}"
            );
        }
        if !failed {
            assert!(fail > 10, "{fail}");
            return;
        }
    }
}

/// The page fails at every store call it makes, then the next VM goes on; the page is cut shorter
/// then, or the log has forgotten its beginning.
#[test]
fn a_page_that_failed_half_way_is_done_again_and_nothing_twice() {
    let before: &[Rec] = &[Start(true), b(0)];
    let after: &[&[Rec]] = &[
        &[b(1), b(2)],
        &[b(1), Start(true), Batch(0, batch(9))],
        &[
            b(1),
            Start(true),
            Batch(0, batch(9)),
            Start(true),
            Batch(0, batch(8)),
        ],
        &[Gap(3), b(3)],
        &[Start(false), b(4)],
    ];
    let fleet = Fleet::default();
    let mut complete = 0;
    for (case, after) in after.iter().enumerate() {
        for (page, keep) in [
            (100, 100),
            (1, 100),
            (2, 100),
            (100, 3),
            (100, 2),
            (100, 1),
            (1, 2),
        ] {
            for fail in 0.. {
                let why = format!("case {case}, page {page}, keep {keep}, call {fail}");
                let (store, config) = (Counting::default(), config(""));
                let mut bridge = Bridge::with(1, &[(A, 0, before), (B, 0, before)]);
                let mut vm = Vm::leader(params(false), &config);
                vm.read(&store, &fleet, &bridge);
                for source in [0, 1] {
                    for record in *after {
                        bridge.say(source, record.clone());
                    }
                }
                while vm.ask(&store).is_none() {
                    vm.client.tick();
                }
                let cursor = vm.index.cursor(&store).unwrap();
                let cursor = cursor.map(|c| String::from_utf8(c).unwrap());
                let body = &bridge.page(cursor.as_deref()).bytes;
                store.fail_in.set(Some(fail));
                let done = vm.answer(&store, &fleet, Answer::Http { status: 200, body });
                let failed = store.fail_in.take().is_none();
                bridge.page = page;
                bridge.evict(0, keep);
                let mut vm = Vm::leader(params(false), &config);
                vm.read(&store, &fleet, &bridge);
                let truth = match case {
                    0 => [1, 1, 1, 0, 0, 0],
                    1 => [0, 0, 0, 0, 0, 1],
                    2 => [0, 0, 0, 0, 1, 0],
                    3 => [1, 0, 0, 1, 0, 0],
                    _ => [0, 0, 0, 0, 0, 0],
                };
                for endpoint in [A, B] {
                    let (reasons, now) = vm.look(&store, endpoint, &[0, 1, 2, 3, 8, 9]).unwrap();
                    if reasons == NONE {
                        complete += 1;
                        assert!(case < 3, "{why}: {endpoint} lost something");
                        let now: Vec<u16> = now.iter().map(|held| held.gpu).collect();
                        assert_eq!(now, truth, "{why}: {endpoint}");
                    }
                    if (page, keep) == (100, 100) {
                        assert_eq!(reasons == NONE, case < 3, "{why}: {endpoint} {reasons:?}");
                    }
                }
                if !failed {
                    assert!(
                        matches!(done.last(), Some(Event::Pull(PullResult::Ok))),
                        "{why}"
                    );
                    break;
                }
            }
        }
    }
    assert!(complete > 400, "{complete}");
}

#[test]
fn a_lost_cursor_costs_only_time() {
    for value in [&b""[..], b"\x01", b"\xff\xff\xff"] {
        let (store, config) = (MemoryStore::new(), config(""));
        let bridge = Bridge::with(1, &[(A, 0, &[Start(true), b(0), Start(true), b(0), b(1)])]);
        let mut vm = Vm::leader(params(false), &config);
        vm.read(&store, &Fleet::default(), &bridge);
        store
            .set("selective-kv/1/index/0/cursor", value, 0)
            .unwrap();
        vm.read(&store, &Fleet::default(), &bridge);
        let now = vm.look(&store, A, &[0, 1]);
        assert_eq!(now, Ok((NONE, vec![held(1, 0), held(1, 0)])));
    }
}

#[test]
fn a_publisher_that_is_not_known_has_the_log_begun_again_but_not_too_often() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut bridge = Bridge::with(1, &[(A, 0, &[Start(true), b(0)]), (B, 0, &[Start(true)])]);
    let fleet = Fleet::default();
    let mut vm = Vm::leader(params(false), &config);
    vm.read(&store, &fleet, &bridge);
    let lose = |vm: &mut Vm, bridge: &mut Bridge, seq| {
        vm.index.forget(&store, A).unwrap();
        bridge.say(0, b(seq));
        vm.read(&store, &fleet, bridge)
    };
    let problem = |p| Event::Problem(p);
    let events = lose(&mut vm, &mut bridge, 1);
    assert!(events.contains(&problem(Problem::NoStart)));
    assert!(events.contains(&problem(Problem::BegunAgain)));
    let whole = Ok((NONE, vec![held(1, 0), held(1, 0)]));
    assert_eq!(vm.look(&store, A, &[0, 1]), whole);
    // Within a minute: not again.
    let events = lose(&mut vm, &mut bridge, 2);
    assert!(events.contains(&problem(Problem::NoStart)));
    assert!(!events.contains(&problem(Problem::BegunAgain)));
    assert_eq!(vm.look(&store, A, &[0]), Err(NotReady::Unknown));
    for _ in 0..120 {
        vm.client.tick();
    }
    let events = lose(&mut vm, &mut bridge, 3);
    assert!(events.contains(&problem(Problem::BegunAgain)));
    assert_eq!(vm.look(&store, A, &[0, 1]), whole);
}

#[test]
fn one_publisher_too_many_keeps_no_other_out() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut small = params(false);
    small.limits.max_endpoints = 1;
    let bridge = Bridge::with(
        1,
        &[
            (A, 0, &[Start(true), b(0)]),
            ("10.0.0.8:8000", 0, &[Start(true), b(0)]),
            ("10.0.0.8:8000", 1, &[Start(true), b(0)]),
            (B, 0, &[Start(true), b(0)]),
            ("*shared", 0, &[Start(true)]),
        ],
    );
    let mut vm = Vm::leader(small, &config);
    let events = vm.read(&store, &Fleet::default(), &bridge);
    assert!(events.contains(&Event::Problem(Problem::Name)));
    let full = Problem::Publisher(IndexError::TooManyEndpoints);
    assert!(events.contains(&Event::Problem(full)));
    // One rank alone is not the endpoint.
    let two = "10.0.0.8:8000";
    assert_eq!(vm.look(&store, two, &[0]), Err(NotReady::Unknown));
    assert_eq!(vm.look(&store, A, &[0]), Ok((NONE, vec![held(1, 0)])));
    assert_eq!(vm.look(&store, B, &[0]), Err(NotReady::Unknown));
}

#[test]
fn shared_tiers_wait_for_the_model() {
    let (store, config) = (MemoryStore::new(), config(r#","sharedTiers":["storage"]"#));
    let shared = Params {
        shared_tiers: vec!["storage".to_owned()],
        ..params(false)
    };
    let told = payload(5.0, &[stored(&[1], "GPU"), stored(&[2], "STORAGE")]);
    let mut bridge = Bridge::with(
        1,
        &[
            (A, 0, &[Start(true), Batch(0, told)]),
            (B, 0, &[Start(true)]),
            ("SHARED_STORAGE", 0, &[Start(true)]),
        ],
    );
    bridge.sources[1].topic = "kv@pod@m".to_owned();
    bridge.sources[2].topic = "kv@SHARED_STORAGE@m".to_owned();
    let mut vm = Vm::leader(shared, &config);
    let events = vm.read(&store, &Fleet::default(), &bridge);
    assert!(events.contains(&Event::Problem(Problem::NoGroup)));
    assert_eq!(vm.look(&store, A, &[1]), Err(NotReady::Unknown));
    assert_eq!(vm.look(&store, B, &[2]), Ok((NONE, vec![held(0, 0)])));
    // The engine says which model it serves.
    let fleet = fleet(&[(A, "m"), (B, "m")]);
    let events = vm.read(&store, &fleet, &bridge);
    assert!(events.contains(&Event::Problem(Problem::BegunAgain)));
    let (a, b) = (vec![held(1, 0), held(0, 1)], vec![held(0, 0), held(0, 1)]);
    assert_eq!(vm.look(&store, A, &[1, 2]), Ok((NONE, a)));
    assert_eq!(vm.look(&store, B, &[1, 2]), Ok((NONE, b)));
    // What the phantom says is for all of its model.
    let more = payload(6.0, &[stored(&[3], "STORAGE")]);
    bridge.say(2, Batch(0, more));
    vm.read(&store, &fleet, &bridge);
    assert_eq!(vm.look(&store, B, &[3]), Ok((NONE, vec![held(0, 1)])));
    // What one of them lost may be missing for all.
    bridge.say(0, Gap(5));
    vm.read(&store, &fleet, &bridge);
    assert_eq!(vm.look(&store, B, &[]), Ok((Reasons::GAP, vec![])));
}

/// A shared store may know the model by another of its names than the engines' metrics.
#[test]
fn a_phantom_may_call_the_model_by_any_of_its_names() {
    let (store, config) = (MemoryStore::new(), config(r#","sharedTiers":["storage"]"#));
    let shared = Params {
        shared_tiers: vec!["storage".to_owned()],
        ..params(false)
    };
    let told = payload(5.0, &[stored(&[3], "STORAGE")]);
    let mut bridge = Bridge::with(
        1,
        &[
            (A, 0, &[Start(true)]),
            ("SHARED_STORAGE", 0, &[Start(true), Batch(0, told)]),
        ],
    );
    bridge.sources[1].topic = "kv@SHARED_STORAGE@org/m".to_owned();
    let mut vm = Vm::leader(shared, &config);
    vm.read(&store, &fleet(&[(A, "m")]), &bridge);
    assert_eq!(vm.look(&store, A, &[3]), Ok((NONE, vec![held(0, 0)])));
    // The engine says what else it is called.
    let facts = EngineFacts {
        model: Some("m".to_owned()),
        aliases: vec!["m".to_owned(), "org/m".to_owned()],
        ..EngineFacts::default()
    };
    let mut fleet = fleet(&[]);
    fleet.endpoints.insert(A.to_owned(), Rc::new(facts));
    vm.read(&store, &fleet, &bridge);
    assert_eq!(vm.look(&store, A, &[3]), Ok((NONE, vec![held(0, 1)])));
}

/// Hashes alone are understood by the tokens of the engine that computed the blocks, which may stand
/// on the same page.
#[test]
fn what_a_phantom_says_comes_behind_what_engines_say() {
    let (store, config) = (
        MemoryStore::new(),
        config(r#","sharedTiers":["storage"],"model":"m""#),
    );
    let shared = Params {
        shared_tiers: vec!["storage".to_owned()],
        ..params(true)
    };
    let computed = payload(5.0, &[told(None, &[3], "GPU")]);
    let kept = payload(6.0, &[stored(&[3], "STORAGE")]);
    let bridge = Bridge::with(
        1,
        &[
            (B, 0, &[Start(true), Batch(0, computed)]),
            ("SHARED_STORAGE", 0, &[Start(true), Batch(0, kept)]),
        ],
    );
    let mut vm = Vm::leader(shared, &config);
    vm.ask(&store).unwrap();
    let answer = Answer::Http {
        status: 200,
        body: &bridge.page(None).bytes,
    };
    let (index, client) = (&mut vm.index, &mut vm.client);
    let fleet = Fleet::default();
    client.answered(vm.token, answer, index, &store, &fleet, &keys, NOW);
    assert_eq!(
        vm.look(&store, B, &chain(&[3])),
        Ok((NONE, vec![held(1, 1)]))
    );
}

#[test]
fn who_is_known_to_neither_is_given_up() {
    let (store, config) = (MemoryStore::new(), config(""));
    let mut bridge = Bridge::with(1, &[(A, 0, &[Start(true)]), (B, 0, &[Start(true)])]);
    let known = fleet(&[(B, "m")]);
    let mut vm = Vm::leader(params(false), &config);
    vm.read(&store, &known, &bridge);
    bridge.sources.clear();
    vm.read(&store, &known, &bridge);
    assert_eq!(vm.index.publishers().collect::<Vec<_>>(), [B]);
    vm.read(&store, &Fleet::default(), &bridge);
    assert_eq!(vm.index.publishers().count(), 0);
}
