//! What it costs at most.

use super::*;
use crate::scorer::index::params::{BRIDGED_BLOCK_BYTES, ENDPOINT_BYTES};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const FULL: u64 = 262_144;

/// Keys without a pattern.
fn key(n: u64) -> u64 {
    crate::contract::keys::fnv1a64(&n.to_le_bytes())
}

/// Fills an endpoint with `blocks` blocks, 2,000 a payload; every second payload is offloaded too,
/// so that states alternate.
fn fill(index: &mut Index, store: &dyn Store, endpoint: &str, blocks: u64) {
    let all: Vec<u64> = (0..blocks).map(key).collect();
    let last = all.len().div_ceil(2000) - 1;
    for (seq, hashes) in all.chunks(2000).enumerate() {
        let mut events = vec![stored(hashes, "GPU")];
        let some: Vec<u64> = hashes.iter().copied().step_by(2).collect();
        events.push(stored(&some, "CPU"));
        let done = send(index, store, (endpoint, 1), seq as u64, &events).unwrap();
        assert_eq!(done.unresolved, 0, "{seq} of {last}");
    }
}

#[test]
fn a_full_endpoint_stays_within_24_bytes_a_block() {
    let store = Counting::default();
    let mut index = writer(&store, params(false));
    fill(&mut index, &store, A, FULL);
    let per_block = |bytes: usize| bytes as f64 / FULL as f64;
    // In shared data, at the worst moment (both snapshots, both logs), and at rest.
    assert!(
        per_block(store.peak.get()) <= 24.0,
        "{}",
        per_block(store.peak.get())
    );
    assert!(
        per_block(store.bytes()) <= 16.0,
        "{}",
        per_block(store.bytes())
    );
    assert!(store.largest.get() <= crate::contract::MAX_VALUE_BYTES);
    // In memory: the writer's, which grew, and a reader's.
    assert!(
        per_block(index.memory()) <= 24.0,
        "{}",
        per_block(index.memory())
    );
    let mut reader = Index::new(params(false));
    let all: Vec<u64> = (0..FULL).map(key).collect();
    let (reasons, now) = look(&mut reader, &store, A, &all).unwrap();
    assert_eq!(reasons, Reasons::NONE);
    for (i, now) in now.into_iter().enumerate() {
        assert_eq!(now, held(1, u16::from(i % 2000 % 2 == 0)), "{i}");
    }
    assert!(
        per_block(reader.memory()) <= 24.0,
        "{}",
        per_block(reader.memory())
    );

    // One more: the oldest goes.
    let seq = FULL.div_ceil(2000);
    let done = send(
        &mut index,
        &store,
        (A, 1),
        seq,
        &[stored(&[key(FULL)], "GPU")],
    )
    .unwrap();
    assert_eq!(done.evicted, 1);
    let moved = store.moved.get();
    let keys = [key(0), key(1), key(FULL)];
    let (reasons, now) = look(&mut reader, &store, A, &keys).unwrap();
    assert_eq!(reasons, Reasons::EVICTED);
    assert_eq!(now, [held(0, 0), held(1, 0), held(1, 0)]);
    // The reader moved a page of the log at most, and the directory and the head.
    assert!(store.moved.get() - moved < 17 * 1024);
    // And nothing but these if nothing happened.
    let moved = store.moved.get();
    look(&mut reader, &store, A, &keys).unwrap();
    assert!(
        store.moved.get() - moved < 200,
        "{}",
        store.moved.get() - moved
    );
}

#[test]
fn turnover_does_not_make_it_grow() {
    let store = Counting::default();
    let mut params = params(false);
    params.limits.max_blocks_per_endpoint = 20_000;
    let mut index = writer(&store, params);
    fill(&mut index, &store, A, 40_000);
    let (keys, memory) = (store.keys(), index.memory());
    for round in 1..4 {
        for seq in 0..20 {
            let from = 40_000 * round + seq * 2000;
            let hashes: Vec<u64> = (from..from + 2000).map(key).collect();
            let events = [stored(&hashes, "GPU"), stored(&hashes, "CPU")];
            send(&mut index, &store, (A, 1), 20 * round + seq, &events).unwrap();
        }
    }
    assert!(store.peak.get() as f64 <= 24.0 * 20_000.0 + ENDPOINT_BYTES as f64);
    assert!(store.keys() <= keys + 4, "{} {keys}", store.keys());
    assert!(
        index.memory() <= memory * 3 / 2,
        "{} {memory}",
        index.memory()
    );
    let mut reader = Index::new(index.params.clone());
    let newest: Vec<u64> = (140_000..160_000).map(key).collect();
    let (_, now) = look(&mut reader, &store, A, &newest).unwrap();
    assert!(now.into_iter().all(|now| now == held(1, 1)));
}

#[test]
fn bridged_endpoints_stay_within_40_bytes_a_block() {
    let store = Counting::default();
    let mut params = params(true);
    params.limits.max_blocks_per_endpoint = 20_000;
    let mut index = writer(&store, params.clone());
    let mut parent = None;
    for seq in 0..20 {
        let from = seq * 2000;
        let hashes: Vec<u64> = (from..from + 2000).collect();
        let events = [told(parent, &hashes, "GPU"), stored(&hashes, "CPU")];
        let done = send(&mut index, &store, (A, 1), seq, &events).unwrap();
        assert_eq!(done.unresolved, 0);
        parent = hashes.last().copied();
    }
    let allowed = BRIDGED_BLOCK_BYTES * 20_000 + ENDPOINT_BYTES;
    assert!(store.peak.get() as u64 <= allowed, "{}", store.peak.get());
    let keys = chain(&(0..40_000).collect::<Vec<_>>());
    let mut reader = Index::new(params);
    let (reasons, now) = look(&mut reader, &store, A, &keys).unwrap();
    assert_eq!(reasons, Reasons::EVICTED);
    assert!(now[..20_000].iter().all(|now| *now == held(0, 0)));
    assert!(now[20_000..].iter().all(|now| *now == held(1, 1)));
    // A reader has no use for the engine's keys.
    assert!(reader.memory() <= 30 * 20_000, "{}", reader.memory());
    assert!(index.memory() <= 60 * 20_000, "{}", index.memory());
}

#[test]
fn all_endpoints_together_stay_within_the_limit() {
    let store = Counting::default();
    let mut params = params(false);
    params.limits.max_endpoints = 6;
    params.limits.max_index_bytes = 2 << 20;
    let mut index = writer(&store, params);
    let name = |i: u64| format!("10.0.0.{i}:8000");
    for i in 0..6 {
        fill(&mut index, &store, &name(i), 40_000);
        for j in 0..i {
            // Those that came before give way when they next speak.
            deliver(&mut index, &store, (&name(j), 1), &[]).unwrap();
        }
        assert!(store.bytes() <= 2 << 20, "{i}: {}", store.bytes());
    }
    assert!(store.peak.get() <= 5 << 19, "{}", store.peak.get());
    let late = send(&mut index, &store, (&name(6), 1), 0, &[]);
    assert_eq!(late, Err(IndexError::TooManyEndpoints));
    let (reasons, _) = look(&mut index, &store, &name(0), &[]).unwrap();
    assert_eq!(reasons, Reasons::EVICTED);
    // One that is gone makes room.
    index.retain(&store, &|e| e != "10.0.0.3:8000").unwrap();
    send(&mut index, &store, (&name(6), 1), 0, &[stored(&[5], "GPU")]).unwrap();
    let now = look(&mut index, &store, &name(6), &[5, key(0)]).unwrap();
    assert_eq!(now, (Reasons::NONE, vec![held(1, 0), held(0, 0)]));
    let mut reader = Index::new(index.params.clone());
    assert_eq!(look(&mut reader, &store, &name(6), &[5, key(0)]), Ok(now));
    assert_eq!(
        look(&mut reader, &store, &name(3), &[]),
        Err(NotReady::Unknown)
    );
}

#[test]
fn a_small_cache_holds_what_was_used_last() {
    let store = Counting::default();
    let mut params = params(false);
    let mut index = writer(&store, params.clone());
    for endpoint in [A, B, "c:1"] {
        fill(&mut index, &store, endpoint, 10_000);
    }
    params.limits.max_cache_bytes = 600_000;
    let mut reader = Index::new(params.clone());
    for endpoint in [A, B, "c:1", A, B, A] {
        let (_, now) = look(&mut reader, &store, endpoint, &[key(0), key(9999)]).unwrap();
        assert_eq!(now, [held(1, 1), held(1, 0)]);
        assert!(reader.memory() <= 600_000, "{}", reader.memory());
    }
    params.limits.max_cache_bytes = 100_000;
    let mut reader = Index::new(params);
    assert_eq!(look(&mut reader, &store, A, &[]), Err(NotReady::TooLarge));
    assert_eq!(reader.memory(), 0);
}

#[test]
fn a_look_up_moves_no_more_than_its_budget() {
    let store = Counting::default();
    let mut index = writer(&store, params(false));
    fill(&mut index, &store, A, 10_000);
    let mut reader = Index::new(params(false));
    let mut budget = 50_000;
    let view = reader.view(&store, A, NOW, &mut budget);
    assert_eq!((view, budget), (Err(NotReady::Behind), 50_000));
    // The timer brings it in; then a look-up finds it.
    let mut budget = 1_000_000;
    assert!(reader.view(&store, A, NOW, &mut budget).is_ok());
    assert!(budget < 920_000 && reader.moved() > 80_000);
    assert!(reader.view(&store, A, NOW, &mut 0).is_ok());
    send(&mut index, &store, (A, 1), 5, &[stored(&[1], "GPU")]).unwrap();
    assert_eq!(reader.view(&store, A, NOW, &mut 0), Err(NotReady::Behind));
    assert!(reader.view(&store, A, NOW, &mut 100).is_ok());
}

#[test]
fn broken_values_are_survived() {
    let fresh = || {
        let store = Counting::default();
        let mut index = writer(&store, params(false));
        fill(&mut index, &store, A, 5000);
        (store, index)
    };
    let (store, _) = fresh();
    let all: Vec<String> = store.sizes.borrow().keys().cloned().collect();
    assert!(all.len() >= 5, "{all:?}");
    for key in &all {
        for bad in [&b""[..], b"\x01", b"\x02\xff\xff", &[0xff; 100]] {
            let (store, mut old) = fresh();
            store.set(key, bad, 0).unwrap();
            let mut reader = Index::new(params(false));
            let _ = look(&mut reader, &store, A, &[1]);
            let _ = send(&mut old, &store, (A, 1), 3, &[stored(&[1], "GPU")]);
            // A new writer goes on in any case, and says if something was lost.
            let mut new = writer(&store, params(false));
            send(&mut new, &store, (A, 1), 4, &[stored(&[2], "GPU")]).unwrap();
            let (reasons, now) = look(&mut reader, &store, A, &[2, super::bounds::key(0)]).unwrap();
            assert_eq!(now[0], held(1, 0), "{key} {bad:02x?}");
            assert!(
                now[1] == held(1, 1) || !reasons.is_empty(),
                "{key} {bad:02x?}"
            );
        }
    }
}
