//! Threads, as Envoy's workers are.

use super::*;
use crate::contract::store::MemoryStore;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Payload n: its blocks in, those of payload n − 10 out. A reader therefore always finds ten
/// payloads whole, whenever it looks.
const BLOCKS: u64 = 7;
const WINDOW: u64 = 10;
const PAYLOADS: u64 = 2000;

fn blocks(n: u64) -> Vec<u64> {
    (n * 100..n * 100 + BLOCKS).collect()
}

fn bytes(n: u64) -> Vec<u8> {
    let mut events = vec![stored(&blocks(n), "GPU")];
    if let Some(old) = n.checked_sub(WINDOW) {
        events.push(Said::Removed(blocks(old), "GPU"));
    }
    payload(1000.0 + n as f64, &events)
}

#[test]
fn two_readers_and_writers_that_take_turns() {
    let store = MemoryStore::new();
    let make = || {
        let mut index = Index::new(params(false));
        index.min_log = 500;
        index
    };
    let written = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let superseded = AtomicU64::new(0);
    // Each writer believes it holds the lease until the store tells it otherwise, then waits a
    // little and takes over again: much worse than what a lease allows.
    let write = |seed: u64| {
        let mut index = make();
        let mut turn = seed;
        while written.load(Ordering::SeqCst) < PAYLOADS {
            match index.take_over(&store, NOW) {
                Ok(()) => {}
                // Both at once.
                Err(IndexError::Superseded) => continue,
                Err(e) => panic!("{e:?}"),
            }
            for _ in 0..200 {
                let stream = index.stream(&store, A).unwrap();
                let next = stream.map_or(0, |s| s.next_seq);
                if next >= PAYLOADS {
                    written.store(PAYLOADS, Ordering::SeqCst);
                    return;
                }
                let payload = bytes(next);
                let items = [Item::Payload {
                    seq: next,
                    bytes: &payload,
                }];
                match deliver(&mut index, &store, (A, 1), &items) {
                    Ok(_) => {}
                    Err(IndexError::Superseded) => {
                        superseded.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                    Err(e) => panic!("{e:?}"),
                }
            }
            index.step_down();
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (0..turn >> 52).for_each(|_| std::hint::spin_loop());
        }
    };
    let read = || {
        let mut index = make();
        let (mut looks, mut newest) = (0u64, 0);
        while !done.load(Ordering::SeqCst) {
            let Ok(view) = index.view(&store, A, NOW, &mut u64::MAX.clone()) else {
                continue;
            };
            assert_eq!(view.reasons, Reasons::NONE);
            let residency = index.residency(&view).unwrap();
            let there = |n: u64| {
                let held = blocks(n)
                    .iter()
                    .filter(|b| residency.held(**b).gpu > 0)
                    .count() as u64;
                assert!(held == 0 || held == BLOCKS, "payload {n} is cut");
                held > 0
            };
            let whole: Vec<u64> = (newest.max(WINDOW) - WINDOW..PAYLOADS)
                .skip_while(|n| !there(*n))
                .take_while(|n| there(*n))
                .collect();
            if let Some(last) = whole.last() {
                assert!(*last >= newest, "it went back");
                assert_eq!(whole.len() as u64, WINDOW.min(last + 1));
                newest = *last;
            }
            looks += 1;
        }
        (looks, newest)
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        let writers = [scope.spawn(|| write(1)), scope.spawn(|| write(2))];
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
        for reader in readers {
            let (looks, _) = reader.join().unwrap();
            assert!(looks > 10, "{looks}");
        }
    });
    // And the end is exact.
    let all: Vec<u64> = (PAYLOADS - WINDOW - 1..PAYLOADS).flat_map(blocks).collect();
    let (reasons, now) = look(&mut make(), &store, A, &all).unwrap();
    assert_eq!(reasons, Reasons::NONE);
    let expected = (0..all.len()).map(|i| held(u16::from(i >= BLOCKS as usize), 0));
    assert!(now.into_iter().eq(expected));
}
