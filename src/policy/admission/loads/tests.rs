use super::*;
use crate::contract::store::{MemoryStore, Versioned};
use std::cell::Cell;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const A: &str = "10.0.0.7:8000";
const B: &str = "10.0.0.8:8000";
const T: u64 = 1_790_000_000_000;
const MAX_MS: u64 = 5_000;

const fn limits(max_loads: u32, max_tokens: Option<u64>) -> Limits {
    Limits {
        max_loads,
        max_tokens,
    }
}

const fn in_flight(loads: u64, tokens: u64) -> InFlight {
    InFlight { loads, tokens }
}

const TWO: Limits = limits(2, None);

#[test]
fn what_limits_admit() {
    for (limits, now, tokens, admitted) in [
        (limits(1, None), in_flight(0, 0), 9, true),
        (limits(1, None), in_flight(1, 0), 9, false),
        (limits(8, None), in_flight(7, u64::MAX), u64::MAX, true),
        (limits(8, Some(100)), in_flight(1, 50), 50, true),
        (limits(8, Some(100)), in_flight(1, 50), 51, false),
        // Larger than the limit by itself: alone, or never.
        (limits(8, Some(100)), in_flight(0, 0), 101, true),
        (limits(8, Some(100)), in_flight(1, 1), 101, false),
        (limits(8, Some(100)), in_flight(1, u64::MAX), 1, false),
        (limits(1, Some(100)), in_flight(1, 1), 1, false),
    ] {
        assert_eq!(
            limits.admit(now, tokens),
            admitted,
            "{limits:?} {now:?} {tokens}"
        );
    }
}

#[test]
fn loads_are_counted_over_all_vms_and_by_endpoint() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Loads::default(), Loads::default());
    let first = one.acquire(&store, A, 10, TWO, MAX_MS).unwrap();
    let second = two.acquire(&store, A, 5, TWO, MAX_MS).unwrap();
    assert_eq!(one.in_flight(&store, A), Some(in_flight(2, 15)));
    assert_eq!(two.in_flight(&store, A), Some(in_flight(2, 15)));
    assert_eq!(one.acquire(&store, A, 1, TWO, MAX_MS), Err(Denied::Limit));
    assert_eq!(two.acquire(&store, A, 1, TWO, MAX_MS), Err(Denied::Limit));
    // Another endpoint is another count.
    let other = two.acquire(&store, B, 7, TWO, MAX_MS).unwrap();
    assert_eq!(one.in_flight(&store, B), Some(in_flight(1, 7)));
    // A place that is free again is anybody's.
    assert!(one.release(&store, first));
    assert!(!one.release(&store, first), "once");
    let third = two.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    assert_eq!(one.in_flight(&store, A), Some(in_flight(2, 6)));
    for lease in [second, other, third] {
        assert!(two.release(&store, lease));
    }
    for endpoint in [A, B] {
        assert_eq!(one.in_flight(&store, endpoint), Some(in_flight(0, 0)));
    }
    let record = store
        .get(&loads_bucket_key(bucket(A, LOADS_BUCKETS)))
        .unwrap();
    let record = LoadsRecord::decode(&record.unwrap().value).unwrap();
    assert_eq!(record.iter().count(), 0, "no slot stays behind");
}

#[test]
fn a_lease_ends_by_what_it_is_waiting_for() {
    let store = MemoryStore::new();
    let now = |vm: &Loads| vm.in_flight(&store, A).unwrap().loads;
    let lease = |vm: &mut Loads| vm.acquire(&store, A, 1, limits(9, None), MAX_MS).unwrap();
    // Still being sent: however long that takes.
    let mut vm = Loads::default();
    let sending = lease(&mut vm);
    assert_eq!(vm.tick(&store, T + 600_000).timed_out, 0);
    // With the engine: the longest time, and not a ms sooner.
    vm.sent(sending, T + 600_000);
    assert_eq!(vm.tick(&store, T + 604_999).timed_out, 0);
    assert_eq!(now(&vm), 1);
    assert_eq!(vm.tick(&store, T + 605_000).timed_out, 1);
    assert_eq!(now(&vm), 0);
    assert!(!vm.release(&store, sending));
    // A second end of the request does not begin the wait again.
    let mut vm = Loads::default();
    let twice = lease(&mut vm);
    vm.sent(twice, T);
    vm.sent(twice, T + 4_000);
    assert_eq!(vm.tick(&store, T + 5_000).timed_out, 1);
    // An event stream that is watched: until its first event.
    let mut vm = Loads::default();
    let streaming = lease(&mut vm);
    vm.sent(streaming, T);
    vm.streaming(streaming);
    assert_eq!(vm.tick(&store, T + 600_000).timed_out, 0);
    // And if it cannot be watched any more.
    vm.unwatched(streaming, T + 600_000);
    assert_eq!(vm.tick(&store, T + 604_999).timed_out, 0);
    assert_eq!(vm.tick(&store, T + 605_000).timed_out, 1);
    // A clock that stepped back begins the wait anew.
    let mut vm = Loads::default();
    let stepped = lease(&mut vm);
    vm.sent(stepped, T);
    assert_eq!(vm.tick(&store, T - 100_000).timed_out, 0);
    assert_eq!(vm.tick(&store, T - 95_001).timed_out, 0);
    assert_eq!(vm.tick(&store, T - 95_000).timed_out, 1);
    assert_eq!(now(&vm), 0);
}

#[test]
fn a_lost_vm_is_noticed_and_a_living_one_is_not_lost() {
    let store = MemoryStore::new();
    let (mut lost, mut idle, mut watcher) = (Loads::default(), Loads::default(), Loads::default());
    lost.acquire(&store, A, 10, TWO, MAX_MS).unwrap();
    let kept = idle.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    // The watcher never had a load; the idle one does nothing but tick.
    let mut taken = Vec::new();
    for second in 0..12 {
        let now_ms = T + second * 1_000;
        idle.tick(&store, now_ms);
        taken.push(watcher.tick(&store, now_ms).lost_slots);
    }
    // First seen in the tick 0, still since; `idle` saw the same and was as fast or faster.
    assert_eq!(watcher.in_flight(&store, A), Some(in_flight(1, 1)));
    assert!(taken.iter().sum::<u32>() <= 1);
    idle.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    assert_eq!(watcher.in_flight(&store, A), Some(in_flight(2, 2)));
    // One that only seemed lost comes back with all it has.
    assert_eq!(lost.in_flight(&store, A), Some(in_flight(3, 12)));
    lost.tick(&store, T + 20_000);
    assert_eq!(watcher.in_flight(&store, A), Some(in_flight(3, 12)));
    assert!(idle.release(&store, kept));
}

#[test]
fn a_slot_is_believed_for_exactly_its_patience() {
    let store = MemoryStore::new();
    let (mut lost, mut watcher) = (Loads::default(), Loads::default());
    lost.acquire(&store, A, 10, TWO, MAX_MS).unwrap();
    for second in 0..PATIENCE {
        let tick = watcher.tick(&store, T + u64::from(second) * 1_000);
        assert_eq!(tick.lost_slots, 0, "{second}");
        assert_eq!(tick.in_flight.unwrap().get(A), Some(&in_flight(1, 10)));
    }
    let tick = watcher.tick(&store, T + u64::from(PATIENCE) * 1_000);
    assert_eq!(tick.lost_slots, 1);
    assert_eq!(tick.in_flight.unwrap().len(), 0);
    assert_eq!(watcher.in_flight(&store, A), Some(in_flight(0, 0)));
}

#[test]
fn ticks_of_several_configurations_are_one() {
    let store = MemoryStore::new();
    let (mut lost, mut watcher) = (Loads::default(), Loads::default());
    lost.acquire(&store, A, 10, TWO, MAX_MS).unwrap();
    for i in 0..100 {
        let now_ms = T + (i / 20) * 1_000 + i % 20;
        let tick = watcher.tick(&store, now_ms);
        assert_eq!(tick.in_flight.is_some(), i % 20 == 0, "{i}");
    }
    assert_eq!(watcher.in_flight(&store, A), Some(in_flight(1, 10)));
    // A clock that stepped back is a tick, not a reason to stand still.
    assert!(watcher.tick(&store, T - 600_000).in_flight.is_some());
}

#[test]
fn a_reset_takes_out_this_vms_loads_of_one_endpoint() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Loads::default(), Loads::default());
    let gone = one.acquire(&store, A, 10, TWO, MAX_MS).unwrap();
    let stays = one.acquire(&store, B, 10, TWO, MAX_MS).unwrap();
    two.acquire(&store, A, 5, TWO, MAX_MS).unwrap();
    one.reset(&store, A);
    assert_eq!(two.in_flight(&store, A), Some(in_flight(1, 5)));
    // Its end is no news, and is not counted against the next load.
    let next = one.acquire(&store, A, 3, TWO, MAX_MS).unwrap();
    assert!(!one.release(&store, gone));
    assert_eq!(two.in_flight(&store, A), Some(in_flight(2, 8)));
    assert!(one.release(&store, next) && one.release(&store, stays));
    assert_eq!(one.in_flight(&store, B), Some(in_flight(0, 0)));
    // Nothing of it here: nothing is written.
    let before = store.get(&loads_bucket_key(bucket(A, LOADS_BUCKETS)));
    one.reset(&store, A);
    assert_eq!(
        store.get(&loads_bucket_key(bucket(A, LOADS_BUCKETS))),
        before
    );
}

/// A store that fails: `gets` and `sets` with a status, or the next `rivals` writes by a mismatch.
#[derive(Default)]
struct Flaky {
    inner: MemoryStore,
    gets: Cell<bool>,
    sets: Cell<bool>,
    rivals: Cell<u32>,
}

impl Store for Flaky {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        match self.gets.get() {
            true => Err(StoreError::Host(10)),
            false => self.inner.get(key),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        if self.sets.get() {
            return Err(StoreError::Host(10));
        }
        if let Some(left) = self.rivals.get().checked_sub(1) {
            self.rivals.set(left);
            return Err(StoreError::CasMismatch);
        }
        self.inner.set(key, value, cas)
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let uncounted = |problem| Err(Denied::Uncounted(problem));
    let store = Flaky::default();
    let mut vm = Loads::default();
    store.gets.set(true);
    assert_eq!(
        vm.acquire(&store, A, 1, TWO, MAX_MS),
        uncounted(Problem::Store)
    );
    assert_eq!(vm.in_flight(&store, A), None);
    store.gets.set(false);
    let lease = vm.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    store.sets.set(true);
    assert_eq!(
        vm.acquire(&store, A, 1, TWO, MAX_MS),
        uncounted(Problem::Store)
    );
    store.sets.set(false);
    // One try is left: admitted. None: refused, and nothing is counted.
    store.rivals.set(TRIES - 1);
    let second = vm.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    vm.release(&store, second);
    store.rivals.set(TRIES);
    assert_eq!(
        vm.acquire(&store, A, 1, TWO, MAX_MS),
        uncounted(Problem::Contended)
    );
    assert_eq!(vm.in_flight(&store, A), Some(in_flight(1, 1)));
    // Too long a name for a record.
    let long = "x".repeat(129);
    assert_eq!(
        vm.acquire(&store, &long, 1, TWO, MAX_MS),
        uncounted(Problem::Full)
    );
    // What could not be given back is given back by the next tick, a second one in a moment too.
    store.rivals.set(TRIES);
    assert!(vm.release(&store, lease));
    let other = Loads::default();
    assert_eq!(other.in_flight(&store, A), Some(in_flight(1, 1)));
    vm.tick(&store, T);
    assert_eq!(other.in_flight(&store, A), Some(in_flight(0, 0)));
    let lease = vm.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    store.sets.set(true);
    assert!(vm.release(&store, lease));
    vm.tick(&store, T + 100);
    assert_eq!(other.in_flight(&store, A), Some(in_flight(1, 1)));
    store.sets.set(false);
    vm.tick(&store, T + 200);
    assert_eq!(other.in_flight(&store, A), Some(in_flight(0, 0)));
}

#[test]
fn a_malformed_record_is_made_anew() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Loads::default(), Loads::default());
    one.acquire(&store, A, 1, TWO, MAX_MS).unwrap();
    let key = loads_bucket_key(bucket(A, LOADS_BUCKETS));
    for bad in [&b"\x02"[..], b"\x01\x00", b""] {
        store.set(&key, bad, 0).unwrap();
        assert_eq!(two.in_flight(&store, A), Some(in_flight(0, 0)), "{bad:?}");
        one.tick(&store, T);
        one.last_tick_ms = None;
        assert_eq!(two.in_flight(&store, A), Some(in_flight(1, 1)), "{bad:?}");
    }
    two.tick(&store, T);
}

#[test]
fn a_counted_load_is_checked_against_other_limits() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Loads::default(), Loads::default());
    let first = one.acquire(&store, A, 50, limits(9, None), MAX_MS).unwrap();
    two.acquire(&store, A, 50, limits(9, None), MAX_MS).unwrap();
    for (limits, expected) in [
        (limits(2, None), Ok(())),
        (limits(1, None), Err(Denied::Limit)),
        (limits(2, Some(100)), Ok(())),
        (limits(2, Some(99)), Err(Denied::Limit)),
    ] {
        assert_eq!(
            one.check(&store, first, limits, MAX_MS),
            expected,
            "{limits:?}"
        );
    }
    one.release(&store, first);
    assert_eq!(one.check(&store, first, limits(1, None), MAX_MS), Ok(()));
}
