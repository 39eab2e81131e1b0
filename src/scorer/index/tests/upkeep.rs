//! Which endpoints there are, who writes them, and how far they are read.

use super::*;
use crate::contract::store::MemoryStore;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NONE: Reasons = Reasons::NONE;

#[test]
fn ranks_count_for_what_all_of_them_hold() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    let [zero, one] = ["10.0.0.7:8000/0", "10.0.0.7:8000/1"];
    let events = [stored(&[1, 1, 2], "GPU"), stored(&[2, 3], "CPU")];
    send(&mut index, &store, (zero, 1), 0, &events).unwrap();
    // One of which nothing is known is not an empty one.
    index.list(&store, one, "m").unwrap();
    let unknown = Err(NotReady::Unknown);
    assert_eq!(look(&mut index, &store, A, &[1, 2, 3]), unknown);
    let events = [stored(&[1, 2], "GPU"), stored(&[2], "CPU")];
    send(&mut index, &store, (one, 1), 0, &events).unwrap();
    let expected = vec![held(1, 0), held(1, 1), held(0, 0)];
    for index in [&mut index, &mut Index::new(params(false))] {
        let now = look(index, &store, A, &[1, 2, 3]).unwrap();
        assert_eq!(now, (Reasons::RANKS, expected.clone()));
        assert!(index.endpoints().eq([A]) && index.publishers().eq([zero, one]));
    }
    // Both have to be heard of, and neither may be forgotten.
    index
        .heartbeat(&store, one, Some(NOW - 30_001), false)
        .unwrap();
    assert_eq!(look(&mut index, &store, A, &[]), Err(NotReady::Silent));
    index.forget(&store, one).unwrap();
    assert_eq!(look(&mut index, &store, A, &[]), unknown);
    assert_eq!(index.heartbeat(&store, one, Some(NOW), false), Ok(false));
    // Without the second one the first is the endpoint no more either: it has its own name then.
    index.retain(&store, &|name| name != one).unwrap();
    assert_eq!(look(&mut index, &store, A, &[1]).unwrap().1, [held(2, 0)]);
}

#[test]
fn one_that_lags_is_a_lower_bound_until_it_does_not() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    let bytes = payload(5.0, &[stored(&[1], "GPU")]);
    let items = [Item::Payload {
        seq: 0,
        bytes: &bytes,
    }];
    let delivery = Delivery {
        publisher: A,
        group: "m",
        run: 1,
        heard_ms: Some(NOW),
        behind: true,
        items: &items,
    };
    index.ingest(&store, &delivery, &keys).unwrap();
    let reasons = |index: &mut Index| look(index, &store, A, &[]).unwrap().0;
    assert_eq!(reasons(&mut index), Reasons::BEHIND);
    index.heartbeat(&store, A, None, false).unwrap();
    assert_eq!(reasons(&mut index), NONE);
    index.heartbeat(&store, A, None, true).unwrap();
    assert_eq!(reasons(&mut index), Reasons::BEHIND);
    // Never heard of is not alive.
    let unheard = Delivery {
        publisher: B,
        heard_ms: None,
        ..delivery
    };
    index.ingest(&store, &unheard, &keys).unwrap();
    assert_eq!(look(&mut index, &store, B, &[]), Err(NotReady::Silent));
}

#[test]
fn all_endpoints_of_a_request_read_the_directory_once() {
    let store = Counting::default();
    let shared = Params {
        shared_tiers: vec!["storage".to_owned()],
        ..params(false)
    };
    let mut index = writer(&store, shared.clone());
    let names: Vec<String> = (0..8).map(|i| format!("10.0.0.{i}:8000")).collect();
    for name in &names {
        let events = [stored(&[1], "GPU"), stored(&[2], "STORAGE")];
        send(&mut index, &store, (name, 1), 0, &events).unwrap();
    }
    let mut reader = Index::new(shared);
    let mut all = || {
        let mut seen = Vec::new();
        let asked = names.iter().map(String::as_str).chain(["10.9.9.9:1"]);
        let calls = store.calls.get();
        reader.look_up(
            &store,
            asked,
            NOW,
            &mut u64::MAX.clone(),
            &mut |name, found| {
                let found = found.map(|f| {
                    assert_eq!(f.tiers, ["storage"]);
                    (f.reasons, f.residency.held(1), f.residency.held(2))
                });
                seen.push((name.to_owned(), found));
            },
        );
        for (name, (seen, found)) in names.iter().zip(&seen) {
            let expected = Ok((NONE, held(1, 0), held(0, 1)));
            assert_eq!((seen, found), (name, &expected));
        }
        assert_eq!(seen[8].1, Err(NotReady::Unknown));
        store.calls.get() - calls
    };
    all();
    // The directory, eight heads, and the head of what they share.
    assert_eq!(all(), 10);
}

/// A writer that does not know yet that it is none any more, caught at every step.
#[test]
fn nothing_of_an_old_writer_comes_in_after_a_new_one_began() {
    let store = MemoryStore::new();
    let mut old = writer(&store, params(false));
    send(&mut old, &store, (A, 1), 0, &[stored(&[1], "GPU")]).unwrap();
    old.list(&store, B, "m").unwrap();
    old.set_cursor(&store, b"c0").unwrap();
    let mut new = writer(&store, params(false));
    assert_eq!(new.cursor(&store), Ok(Some(b"c0".to_vec())));
    // No slot was touched by the new one but to claim it.
    let late = Err(IndexError::Superseded);
    assert_eq!(old.set_cursor(&store, b"c1"), late);
    assert_eq!(old.heartbeat(&store, A, Some(NOW), false).map(|_| ()), late);
    assert_eq!(old.list(&store, "c:1", "m"), late);
    assert_eq!(old.forget(&store, A), late);
    assert_eq!(old.retain(&store, &|_| false), late);
    for name in [A, B, "c:1"] {
        let done = send(&mut old, &store, (name, 1), 1, &[stored(&[2], "GPU")]);
        assert_eq!(done.map(|_| ()), late, "{name}");
    }
    assert_eq!(new.cursor(&store), Ok(Some(b"c0".to_vec())));
    let now = look(&mut new, &store, A, &[1, 2]).unwrap();
    assert_eq!(now, (NONE, vec![held(1, 0), held(0, 0)]));
}

#[test]
fn a_cursor_is_of_one_index() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    index.set_cursor(&store, b"e-1").unwrap();
    // Other blocks, or the same under other names: nothing of it was read.
    let other = |change: &dyn Fn(&mut Params)| {
        let mut params = params(false);
        change(&mut params);
        Index::new(params)
    };
    for mut other in [
        other(&|p| p.fingerprint = 8),
        other(&|p| p.block_size = 8),
        other(&|p| p.bridged = true),
        other(&|p| p.shared_tiers = vec!["storage".to_owned()]),
    ] {
        other.take_over(&store, NOW).unwrap();
        assert_eq!(other.cursor(&store), Ok(None));
        assert_eq!(look(&mut other, &store, A, &[]), Err(NotReady::Unknown));
        let mut again = writer(&store, params(false));
        assert_eq!(again.cursor(&store), Ok(None));
        again.set_cursor(&store, b"e-2").unwrap();
        again.set_cursor(&store, b"").unwrap();
        assert_eq!(again.cursor(&store), Ok(None));
        again.set_cursor(&store, b"e-1").unwrap();
    }
}
