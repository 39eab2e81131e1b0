//! With `evidence`: what engines are asked, and the record of what they say.

use super::*;
use crate::scorer::facts::{self, EngineFacts, Fleet, Mismatch};
use std::num::NonZeroU32;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const EVIDENCE: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000","10.0.0.2:8000"],
    "scrape":{"cluster":"scrape"},"evidence":{"events":{"cluster":"bridge"}}}"#;

/// A page of an engine whose process began at `started`.
fn engine_page(block_size: u32, algorithm: &str, started: u32) -> &'static [u8] {
    let page = format!(
        "process_start_time_seconds {started}.5\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"tiny\"}} 0.0\n\
         vllm:cache_config_info{{block_size=\"{block_size}\",engine=\"0\",\
         hash_block_size=\"None\",num_gpu_blocks=\"160\",\
         prefix_caching_hash_algo=\"{algorithm}\"}} 1.0\n"
    );
    page.leak().as_bytes()
}

fn said(block_size: u32, algorithm: &str) -> EngineFacts {
    EngineFacts {
        model: Some("tiny".to_owned()),
        aliases: vec!["tiny".to_owned()],
        adapters: vec!["sql".to_owned()],
        block_size: Some(block_size),
        hash_algorithm: Some(algorithm.to_owned()),
        gpu_blocks: Some(160),
        ranks: None,
        version: Some("0.32.0".to_owned()),
    }
}

fn fleet_of(block_size: Option<u32>, endpoints: &[(&str, EngineFacts)]) -> Fleet {
    let endpoints = endpoints.iter().cloned();
    Fleet {
        block_size: block_size.and_then(NonZeroU32::new),
        endpoints: endpoints
            .map(|(address, facts)| (address.to_owned(), Rc::new(facts)))
            .collect(),
    }
}

fn read(store: &dyn Store) -> Option<Fleet> {
    Fleet::read(store, "pool").unwrap().map(|(_, fleet)| fleet)
}

fn cas(store: &dyn Store) -> u32 {
    Fleet::read(store, "pool").unwrap().unwrap().0
}

/// Calls out and answered, by what was asked.
fn count(asked: &RefCell<Vec<Ask>>, ask: Ask) -> usize {
    asked.borrow().iter().filter(|a| **a == ask).count()
}

/// `pages`: one per endpoint; None: it does not answer.
fn round(vm: &mut Vm, store: &dyn Store, now_ms: u64, pages: [Option<&'static [u8]>; 2]) {
    for half in [0, 500] {
        vm.tick(store, now_ms + half);
        vm.answer(store, now_ms + half + 1, |call| {
            let at = usize::from(call.address.as_ref() == B);
            match (pages[at], call.ask) {
                (None, _) => Answer::None,
                (Some(body), Ask::Metrics) => page(body),
                (Some(_), Ask::Version) => VERSION,
                (Some(_), Ask::Models) => MODELS,
            }
        });
    }
}

fn mismatches(vm: &mut Vm) -> Vec<(String, Mismatch)> {
    let events = vm.take_events().into_iter();
    events
        .filter_map(|event| match event {
            Event::Mismatch(endpoint, mismatch) => Some((endpoint.to_string(), mismatch)),
            _ => None,
        })
        .collect()
}

#[test]
fn what_the_members_say_is_recorded_when_it_changes() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(EVIDENCE);
    let page_16 = engine_page(16, "sha256", 1);
    // Given the first tick, half an interval before answers can be in: nothing is written
    vm.tick(&store, NOW);
    assert_eq!(read(&store), None);
    vm.answer(&store, NOW + 1, |call| match call.ask {
        Ask::Metrics => page(page_16),
        Ask::Version => VERSION,
        Ask::Models => MODELS,
    });
    vm.tick(&store, NOW + 500);
    let all = [(A, said(16, "sha256")), (B, said(16, "sha256"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
    let both = [Some(page_16); 2];
    // While they say the same nothing is written,
    let before = cas(&store);
    for i in 1..30 {
        round(&mut vm, &store, NOW + i * 1_000, both);
    }
    assert_eq!(cas(&store), before);
    // but about once a minute.
    for i in 30..70 {
        round(&mut vm, &store, NOW + i * 1_000, both);
    }
    assert_ne!(cas(&store), before);
    assert_eq!(mismatches(&mut vm), []);
    // An endpoint that left is not in it.
    for i in 70..74 {
        round(&mut vm, &store, NOW + i * 1_000, [Some(page_16), None]);
    }
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all[..1])));
    // One that comes back, as another engine, says what it says now.
    let page_xx = engine_page(16, "xxhash", 2);
    round(
        &mut vm,
        &store,
        NOW + 74_000,
        [Some(page_16), Some(page_xx)],
    );
    let all = [(A, said(16, "sha256")), (B, said(16, "xxhash"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
}

#[test]
fn models_are_asked_for_at_the_start_and_once_a_minute() {
    let store = MemoryStore::new();
    let rows = [
        (EVIDENCE.to_owned(), 4, 4),
        (
            EVIDENCE.replace("0.0.2:8000\"]", "0.0.2:8000\"],\"versionPath\":null"),
            0,
            4,
        ),
        (EVIDENCE.replace("}}}", "},\"modelsPath\":null}}"), 4, 0),
        (TWO.to_owned(), 2, 0),
    ];
    for (i, (config, versions, models)) in rows.into_iter().enumerate() {
        let mut vm = Vm::new(&config);
        let asked = RefCell::new(Vec::new());
        let start = NOW + 1_000_000 * i as u64;
        for now in (start..start + 100_000).step_by(500) {
            vm.tick(&store, now);
            vm.answer(&store, now + 1, |call| {
                asked.borrow_mut().push(call.ask);
                match call.ask {
                    Ask::Metrics => OK,
                    Ask::Version => VERSION,
                    Ask::Models => MODELS,
                }
            });
        }
        assert_eq!(count(&asked, Ask::Version), versions, "{config}");
        assert_eq!(count(&asked, Ask::Models), models, "{config}");
        assert_eq!(count(&asked, Ask::Metrics), 200, "{config}");
        vm.poller.release(&store);
    }
}

#[test]
fn without_evidence_there_is_no_record() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(TWO);
    for i in 0..100 {
        round(
            &mut vm,
            &store,
            NOW + i * 1_000,
            [Some(engine_page(16, "sha256", 1)); 2],
        );
    }
    assert_eq!(store.get(&facts::key("pool")), Ok(None));
}

#[test]
fn a_restart_between_two_polls_replaces_what_was_known() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(EVIDENCE);
    let old = [Some(engine_page(16, "sha256", 1)); 2];
    for i in 0..3 {
        round(&mut vm, &store, NOW + i * 1_000, old);
    }
    // Given a new process of A that answers its metrics and nothing else
    let new = engine_page(16, "sha256", 2);
    for half in [3_000, 3_500] {
        vm.tick(&store, NOW + half);
        vm.answer(&store, NOW + half, |call| match call.ask {
            Ask::Metrics if call.address.as_ref() == A => page(new),
            Ask::Metrics => page(old[1].unwrap()),
            Ask::Version | Ask::Models => Answer::None,
        });
    }
    // Then what the old one told counts no more,
    let bare = EngineFacts {
        aliases: Vec::new(),
        adapters: Vec::new(),
        version: None,
        ..said(16, "sha256")
    };
    let all = [(A, bare), (B, said(16, "sha256"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
    // and it is asked again with the next poll.
    round(&mut vm, &store, NOW + 4_000, [Some(new), old[1]]);
    let all = [(A, said(16, "sha256")), (B, said(16, "sha256"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
}

#[test]
fn the_block_size_in_effect() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(EVIDENCE);
    let (small, large) = (engine_page(16, "sha256", 1), engine_page(32, "sha256", 1));
    let silent: &[u8] = b"vllm:num_requests_waiting 0\n";
    let mut at = NOW;
    let mut run = |a: &'static [u8], b: &'static [u8]| {
        for _ in 0..4 {
            round(&mut vm, &store, at, [Some(a), Some(b)]);
            at += 1_000;
        }
        read(&store).unwrap().block_size.map(NonZeroU32::get)
    };
    // nobody says any; then the first that says one counts, while anybody says it
    assert_eq!(run(silent, silent), None);
    assert_eq!(run(silent, large), Some(32));
    assert_eq!(run(small, large), Some(32));
    assert_eq!(run(small, silent), Some(16));
    // and with nobody left who says any, it stays
    assert_eq!(run(silent, silent), Some(16));
    // The next holder of the lease goes on with it.
    assert_eq!(run(large, small), Some(16));
    vm.poller.release(&store);
    let mut vm = Vm::new(EVIDENCE);
    for i in 0..4 {
        round(&mut vm, &store, at + i * 1_000, [Some(large), Some(small)]);
    }
    assert_eq!(read(&store).unwrap().block_size, NonZeroU32::new(16));
    // A configured one counts before all.
    vm.poller.release(&store);
    let mut vm = Vm::new(&EVIDENCE.replace("}}}", "},\"blockSize\":64}}"));
    for i in 4..8 {
        round(&mut vm, &store, at + i * 1_000, [Some(large), Some(small)]);
    }
    assert_eq!(read(&store).unwrap().block_size, NonZeroU32::new(64));
}

#[test]
fn a_mismatch_is_reported_once_for_each_endpoint() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(&EVIDENCE.replace("}}}", r#"},"algorithm":"sha256_cbor"}}"#));
    let good = engine_page(16, "sha256_cbor", 1);
    let (other_size, other_hash) = (
        engine_page(32, "sha256_cbor", 2),
        engine_page(16, "sha256", 3),
    );
    let expected = NonZeroU32::new(16).unwrap();
    let size = (
        B.to_owned(),
        Mismatch::BlockSize {
            engine: 32,
            expected,
        },
    );
    let hash = Mismatch::HashAlgorithm {
        engine: "sha256".to_owned(),
        expected: "sha256_cbor",
    };
    let hash = (B.to_owned(), hash);
    type Row<'a> = (&'static [u8], &'a [(String, Mismatch)]);
    let rows: [Row<'_>; 6] = [
        (good, &[]),
        (other_size, std::slice::from_ref(&size)),
        (other_hash, std::slice::from_ref(&hash)),
        (good, &[]),
        (other_hash, std::slice::from_ref(&hash)),
        (other_size, std::slice::from_ref(&size)),
    ];
    let mut at = NOW;
    for (i, (page, expected)) in rows.into_iter().enumerate() {
        for _ in 0..5 {
            round(&mut vm, &store, at, [Some(good), Some(page)]);
            at += 1_000;
        }
        assert_eq!(mismatches(&mut vm), expected, "{i}");
    }
}

#[test]
fn an_old_engine_without_a_seed_is_reported() {
    for (seed, reported) in [("", 2), (r#","pythonHashSeed":"0""#, 0)] {
        let store = MemoryStore::new();
        let more = format!(r#"}},"algorithm":"sha256_cbor"{seed}}}}}"#);
        let mut vm = Vm::new(&EVIDENCE.replace("}}}", &more));
        for half in 0..6 {
            vm.tick(&store, NOW + half * 500);
            vm.answer(&store, NOW + half * 500, |call| match call.ask {
                Ask::Metrics => page(engine_page(16, "sha256_cbor", 1)),
                Ask::Version => page(br#"{"version":"0.28.0"}"#),
                Ask::Models => MODELS,
            });
        }
        let found = mismatches(&mut vm);
        assert_eq!(found.len(), reported, "{found:?}");
        assert!(found.iter().all(|(_, m)| m.as_str() == "hash_seed"));
    }
}

#[test]
fn an_engine_that_tells_no_models_is_counted_and_what_is_known_counts() {
    let store = MemoryStore::new();
    let answers: &[Answer<'static>] = &[status(404), page(b"{}"), Answer::TooLarge];
    for (i, answer) in answers.iter().enumerate() {
        let mut vm = Vm::new(EVIDENCE);
        let start = NOW + i as u64 * 100_000;
        for half in 0..6 {
            vm.tick(&store, start + half * 500);
            vm.answer(&store, start + half * 500, |call| match call.ask {
                Ask::Metrics => page(engine_page(16, "sha256", 1)),
                Ask::Version => VERSION,
                Ask::Models => *answer,
            });
        }
        let problems = vm.take_events();
        let problems = problems
            .iter()
            .filter(|e| **e == Event::Problem(Problem::Models, 1));
        assert_eq!(problems.count(), 2, "{answer:?}");
        let bare = EngineFacts {
            aliases: Vec::new(),
            adapters: Vec::new(),
            ..said(16, "sha256")
        };
        let all = [(A, bare.clone()), (B, bare)];
        assert_eq!(read(&store), Some(fleet_of(Some(16), &all)), "{answer:?}");
        vm.poller.release(&store);
    }
}

#[test]
fn an_engine_that_is_in_trouble_for_a_moment_keeps_its_names() {
    let store = MemoryStore::new();
    let mut vm = Vm::new(EVIDENCE);
    let asked = RefCell::new(Vec::new());
    for i in 0..70 {
        let in_trouble = i > 10;
        for half in [0, 500] {
            let now_ms = NOW + i * 1_000 + half;
            vm.tick(&store, now_ms);
            vm.answer(&store, now_ms + 1, |call| match call.ask {
                Ask::Metrics => page(engine_page(16, "sha256", 1)),
                ask if in_trouble => {
                    asked.borrow_mut().push(ask);
                    status(503)
                }
                Ask::Version => VERSION,
                Ask::Models => MODELS,
            });
        }
    }
    // Three tries for each of the two.
    assert_eq!(count(&asked, Ask::Models), 6);
    assert_eq!(count(&asked, Ask::Version), 6);
    let all = [(A, said(16, "sha256")), (B, said(16, "sha256"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
}

#[test]
fn a_record_that_fails_is_written_later() {
    /// Fails every access to the fleet's record.
    struct Failing<'a>(&'a MemoryStore);
    impl Store for Failing<'_> {
        fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
            match key == facts::key("pool") {
                true => Err(StoreError::Host(10)),
                false => self.0.get(key),
            }
        }
        fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
            self.0.set(key, value, cas)
        }
    }
    let store = MemoryStore::new();
    let mut vm = Vm::new(EVIDENCE);
    let both = [Some(engine_page(16, "sha256", 1)); 2];
    for i in 0..2 {
        round(&mut vm, &Failing(&store), NOW + i * 1_000, both);
    }
    let problems = vm.take_events();
    let problem = Event::Problem(Problem::EnginesRecord, 1);
    // at the start, and at the three ticks that were to write
    assert_eq!(problems.iter().filter(|e| **e == problem).count(), 4);
    assert_eq!(read(&store), None);
    round(&mut vm, &store, NOW + 2_000, both);
    let all = [(A, said(16, "sha256")), (B, said(16, "sha256"))];
    assert_eq!(read(&store), Some(fleet_of(Some(16), &all)));
}
