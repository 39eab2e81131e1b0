//! Which VM polls: one for each scorer name, by a lease in shared data.
//!
//! Every VM of the process runs the scorer's timer (each worker and the main thread). The holder
//! of the lease changes its entry with every tick; the others watch, and one takes over when the
//! entry has stood still for two intervals of its own ticks, or was given back.
//!
//! Time is counted in ticks and not read from the clock: the host's clock is the wall clock, and
//! a step of it must neither free a lease that is in use nor keep a dead one.
//!
//! After a configuration change both the old and the new plugin tick, until Envoy has drained the
//! old listener. A younger root context with *another* configuration therefore takes the lease
//! from a living holder at once. Contexts are numbered in the order they first ticked.

use super::record::{self, Value, fields};
use crate::contract::cbor::{Item, Out};
use crate::contract::keys::bucket;
use crate::contract::store::{Store, UpdateError, update};
use crate::sorted::SortedMap;

const PREFIX: &str = "selective-kv/1/lease/";
/// Counts the root contexts of the process; decimal text.
const COUNTER_KEY: &str = "selective-kv/1/lease/contexts";
/// Compare-and-swap tries a tick.
const TRIES: u32 = 4;
/// A holder whose host calls fail keeps polling for this many ticks; nobody else takes the lease
/// sooner than after four.
const MAX_MISSES: u32 = 2;

/// One scorer's entry.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
struct Entry {
    /// The holder's number; 0: given back.
    holder: u64,
    /// The holder's configuration.
    config: u64,
    /// Changes with every tick of the holder.
    beat: u64,
    /// Unix ms of the last beat: tells the oldest entry when a bucket is full, nothing else.
    t: u64,
}

impl Value for Entry {
    fn read(item: Item<'_>) -> Option<Self> {
        let [holder, config, beat, t] = fields(item, ["holder", "config", "beat", "t"])?;
        Some(Entry {
            holder: holder?.uint()?,
            config: config?.uint()?,
            beat: beat?.uint()?,
            t: t?.uint()?,
        })
    }

    fn write(&self, out: &mut Out) {
        out.map(4).text("holder").uint(self.holder);
        out.text("config").uint(self.config);
        out.text("beat").uint(self.beat);
        out.text("t").uint(self.t);
    }
}

/// What a tick found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Another VM polls.
    Waiting,
    /// This VM polls, from now on.
    Taken,
    /// This VM polls, as before.
    Held,
    /// This VM polled until now.
    Lost,
}

/// One root context's view of its scorer's lease.
#[derive(Debug)]
pub struct Lease {
    name: String,
    key: String,
    config: u64,
    /// Ticks without a beat after which a lease is free.
    patience: u32,
    /// This context's number; None until the host gave one.
    me: Option<u64>,
    held: bool,
    /// Ticks in a row in which the host failed the holder.
    misses: u32,
    /// Holder and beat last seen, and for how many ticks since.
    seen: Option<(u64, u64)>,
    quiet: u32,
}

impl Lease {
    /// `config`: the configuration's fingerprint; `ticks_per_interval`: of the caller's timer.
    pub fn new(name: &str, config: u64, ticks_per_interval: u32) -> Self {
        Self {
            name: name.to_owned(),
            key: format!("{PREFIX}{}", bucket(name, record::BUCKETS)),
            config,
            patience: ticks_per_interval.saturating_mul(2).max(4),
            me: None,
            held: false,
            misses: 0,
            seen: None,
            quiet: 0,
        }
    }

    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Called once a tick. `now_ms` is only written down. With the standing comes what went wrong,
    /// if the host failed or other writers won every try.
    pub fn tick(&mut self, store: &dyn Store, now_ms: u64) -> (Standing, Option<UpdateError>) {
        let (mine, error) = match self.try_tick(store, now_ms) {
            Ok(mine) => {
                self.misses = 0;
                (mine, None)
            }
            Err(error) => {
                self.misses = self.misses.saturating_add(1);
                (self.held && self.misses <= MAX_MISSES, Some(error))
            }
        };
        let standing = match (self.held, mine) {
            (false, false) => Standing::Waiting,
            (false, true) => Standing::Taken,
            (true, true) => Standing::Held,
            (true, false) => Standing::Lost,
        };
        self.held = mine;
        (standing, error)
    }

    /// Whether this context holds the lease now.
    fn try_tick(&mut self, store: &dyn Store, now_ms: u64) -> Result<bool, UpdateError> {
        let me = match self.me {
            Some(me) => me,
            None => *self.me.insert(next_number(store)?),
        };
        let quiet = self.quiet.saturating_add(1);
        let mut seen = self.seen;
        let mut mine = false;
        update(store, &self.key, TRIES, &mut |old| {
            let mut scorers: SortedMap<String, Entry> = record::decode(old);
            let entry = scorers.get(&self.name);
            let still = entry.is_some_and(|e| self.seen == Some((e.holder, e.beat)));
            mine = match entry {
                None => true,
                Some(entry) if entry.holder == me || entry.holder == 0 => true,
                Some(entry) if entry.config != self.config && entry.holder < me => true,
                Some(_) => still && quiet >= self.patience,
            };
            seen = entry.map(|e| (e.holder, e.beat));
            if !mine {
                return None;
            }
            let beat = entry.map_or(0, |e| e.beat).wrapping_add(1);
            record::make_room(&mut scorers, &self.name, |e| e.t);
            let own = Entry {
                holder: me,
                config: self.config,
                beat,
                t: now_ms,
            };
            scorers.insert(self.name.clone(), own);
            let written = record::encode(&scorers);
            mine = written.is_some();
            written
        })?;
        self.quiet = if seen == self.seen { quiet } else { 0 };
        self.seen = seen;
        Ok(mine)
    }

    /// Gives the lease back, so that the next tick of another VM takes it. For a context that
    /// goes away.
    pub fn release(&mut self, store: &dyn Store) -> Result<(), UpdateError> {
        if !std::mem::take(&mut self.held) {
            return Ok(());
        }
        let me = self.me;
        update(store, &self.key, TRIES, &mut |old| {
            let mut scorers: SortedMap<String, Entry> = record::decode(old);
            let entry = scorers.get_mut(&self.name)?;
            if Some(entry.holder) != me {
                return None;
            }
            entry.holder = 0;
            record::encode(&scorers)
        })?;
        Ok(())
    }
}

/// A number no other context of the process has, from 1 up.
fn next_number(store: &dyn Store) -> Result<u64, UpdateError> {
    let mut number = 0u64;
    update(store, COUNTER_KEY, TRIES, &mut |old| {
        let last: u64 = old
            .and_then(|old| std::str::from_utf8(old).ok())
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        number = last.checked_add(1)?;
        Some(number.to_string().into_bytes())
    })?;
    match number {
        0 => Err(UpdateError::Contended),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::store::{MemoryStore, StoreError, Versioned};
    use Standing::{Held, Lost, Taken, Waiting};
    use std::cell::Cell;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Two ticks an interval, as with the default interval of 1 s.
    const TICKS: u32 = 2;
    const NOW: u64 = 1_795_952_365_000;

    fn lease(name: &str) -> Lease {
        Lease::new(name, 7, TICKS)
    }

    fn tick(lease: &mut Lease, store: &dyn Store) -> Standing {
        let (standing, error) = lease.tick(store, NOW);
        assert_eq!(error, None);
        standing
    }

    #[test]
    fn the_first_to_tick_polls_and_the_others_wait() {
        let store = MemoryStore::new();
        let mut vms = [lease("s"), lease("s"), lease("s")];
        assert_eq!(
            vms.each_mut().map(|vm| tick(vm, &store)),
            [Taken, Waiting, Waiting]
        );
        for _ in 0..100 {
            assert_eq!(
                vms.each_mut().map(|vm| tick(vm, &store)),
                [Held, Waiting, Waiting]
            );
        }
    }

    #[test]
    fn scorers_of_other_names_do_not_meet() {
        let store = MemoryStore::new();
        // 200 names share 64 buckets.
        let mut vms: Vec<Lease> = (0..200).map(|i| lease(&format!("s{i}"))).collect();
        for vm in &mut vms {
            assert_eq!(tick(vm, &store), Taken);
        }
        for vm in &mut vms {
            assert_eq!(tick(vm, &store), Held);
        }
    }

    #[test]
    fn a_holder_that_goes_silent_is_replaced_within_three_intervals() {
        for ticks in [2, 3, 10, 60] {
            let store = MemoryStore::new();
            let new = || Lease::new("s", 7, ticks);
            let (mut a, mut b, mut c) = (new(), new(), new());
            assert_eq!(tick(&mut a, &store), Taken);
            // Given both have seen the holder alive, and it beat once more
            assert_eq!(
                [tick(&mut b, &store), tick(&mut c, &store)],
                [Waiting, Waiting]
            );
            assert_eq!(tick(&mut a, &store), Held);
            // When it never ticks again
            let mut waited = 1;
            while tick(&mut b, &store) == Waiting {
                assert_eq!(tick(&mut c, &store), Waiting);
                waited += 1;
            }
            // Then the next takes over, and only one does
            assert_eq!(waited, (2 * ticks).max(4) + 1);
            assert!(waited <= 3 * ticks, "{waited} ticks of {ticks} an interval");
            assert_eq!(tick(&mut c, &store), Waiting);
            assert_eq!(tick(&mut b, &store), Held);
            // When the old holder comes back it notices, and waits.
            assert_eq!(tick(&mut a, &store), Lost);
            assert_eq!(tick(&mut a, &store), Waiting);
            assert!(!a.is_held() && b.is_held());
        }
    }

    #[test]
    fn a_lease_given_back_is_taken_at_once() {
        let store = MemoryStore::new();
        let (mut a, mut b) = (lease("s"), lease("s"));
        assert_eq!(
            [tick(&mut a, &store), tick(&mut b, &store)],
            [Taken, Waiting]
        );
        assert_eq!(a.release(&store), Ok(()));
        assert_eq!(tick(&mut b, &store), Taken);
        // Giving back what one no longer holds changes nothing.
        assert_eq!(a.release(&store), Ok(()));
        assert_eq!(tick(&mut b, &store), Held);
        let mut late = lease("s");
        late.me = a.me;
        late.held = true;
        assert_eq!(late.release(&store), Ok(()));
        assert_eq!(tick(&mut b, &store), Held);
    }

    #[test]
    fn a_step_of_the_clock_changes_nothing() {
        let store = MemoryStore::new();
        let (mut a, mut b) = (lease("s"), lease("s"));
        let hour = 3_600_000;
        let mut expect = (Taken, Waiting);
        for now in [
            NOW,
            NOW - hour,
            NOW + hour,
            0,
            u64::MAX,
            NOW,
            NOW - 1,
            NOW - 2,
        ] {
            assert_eq!((a.tick(&store, now).0, b.tick(&store, now).0), expect);
            expect = (Held, Waiting);
        }
        // A dead holder from the future is replaced like any other.
        assert_eq!(a.tick(&store, NOW + hour).0, Held);
        let waited = (1..10).find(|_| b.tick(&store, NOW).0 == Taken);
        assert_eq!(waited, Some(5));
    }

    #[test]
    fn a_younger_configuration_takes_over_from_a_living_one() {
        let store = MemoryStore::new();
        let old = || Lease::new("s", 1, TICKS);
        let new = || Lease::new("s", 2, TICKS);
        let (mut old_a, mut old_b) = (old(), old());
        assert_eq!(
            [tick(&mut old_a, &store), tick(&mut old_b, &store)],
            [Taken, Waiting]
        );
        // When the configuration changes while the old one's contexts still tick
        let (mut new_a, mut new_b) = (new(), new());
        assert_eq!(
            [tick(&mut new_a, &store), tick(&mut new_b, &store)],
            [Taken, Waiting]
        );
        // Then the new one keeps the lease.
        for expect_old in [Lost, Waiting, Waiting] {
            assert_eq!(tick(&mut old_a, &store), expect_old);
            assert_eq!(tick(&mut old_b, &store), Waiting);
            assert_eq!(
                [tick(&mut new_a, &store), tick(&mut new_b, &store)],
                [Held, Waiting]
            );
        }
    }

    /// Another VM that wins the lease between a read and a write, or a host that fails.
    struct Meddling<'a> {
        store: &'a MemoryStore,
        before_set: &'a dyn Fn(&MemoryStore) -> Result<(), StoreError>,
        get: Cell<Result<(), StoreError>>,
    }

    impl Store for Meddling<'_> {
        fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
            self.get.get()?;
            self.store.get(key)
        }
        fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
            (self.before_set)(self.store)?;
            self.store.set(key, value, cas)
        }
    }

    #[test]
    fn a_lost_race_leaves_one_holder() {
        let store = MemoryStore::new();
        let (a, b) = (Cell::new(Some(lease("s"))), Cell::new(Some(lease("s"))));
        let rival = |store: &MemoryStore| {
            if let Some(mut b) = b.take() {
                assert_eq!(tick(&mut b, store), Taken);
                b.held = true;
                a.set(Some(b));
            }
            Ok(())
        };
        let mut first = a.take().unwrap();
        first.me = Some(99);
        let meddling = Meddling {
            store: &store,
            before_set: &rival,
            get: Cell::new(Ok(())),
        };
        // When the rival takes the lease after our read, our write fails and the second read
        // shows its entry.
        assert_eq!(first.tick(&meddling, NOW), (Waiting, None));
        let mut rival = a.take().unwrap();
        assert_eq!(tick(&mut rival, &store), Held);
    }

    #[test]
    fn a_holder_survives_two_failing_ticks_and_not_three() {
        let store = MemoryStore::new();
        let fail = Cell::new(false);
        let before_set = |_: &MemoryStore| match fail.get() {
            true => Err(StoreError::Host(10)),
            false => Ok(()),
        };
        let host = Meddling {
            store: &store,
            before_set: &before_set,
            get: Cell::new(Ok(())),
        };
        let mut a = lease("s");
        let error = Some(UpdateError::Host(10));
        // No number, no lease.
        fail.set(true);
        assert_eq!(a.tick(&host, NOW), (Waiting, error));
        fail.set(false);
        assert_eq!(a.tick(&host, NOW), (Taken, None));
        fail.set(true);
        assert_eq!(a.tick(&host, NOW), (Held, error));
        assert_eq!(a.tick(&host, NOW), (Held, error));
        fail.set(false);
        assert_eq!(a.tick(&host, NOW), (Held, None));
        host.get.set(Err(StoreError::Host(2)));
        let error = Some(UpdateError::Host(2));
        assert_eq!(a.tick(&host, NOW), (Held, error));
        assert_eq!(a.tick(&host, NOW), (Held, error));
        assert_eq!(a.tick(&host, NOW), (Lost, error));
        assert_eq!(a.tick(&host, NOW), (Waiting, error));
        host.get.set(Ok(()));
        assert_eq!(a.tick(&host, NOW), (Taken, None));
    }

    #[test]
    fn a_foreign_value_under_the_key_is_overwritten() {
        let store = MemoryStore::new();
        let mut a = lease("s");
        store.set(&a.key, b"not ours", 0).unwrap();
        store.set(COUNTER_KEY, b"\xff", 0).unwrap();
        assert_eq!(tick(&mut a, &store), Taken);
        assert_eq!(tick(&mut a, &store), Held);
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod against_ciborium {
        use super::*;
        use crate::scorer::record::against_ciborium::{damage, same_bytes, same_reading};
        use proptest::prelude::*;

        fn scorers() -> impl Strategy<Value = SortedMap<String, Entry>> {
            let entry = any::<(u64, u64, u64, u64)>();
            let entry = entry.prop_map(|(holder, config, beat, t)| Entry {
                holder,
                config,
                beat,
                t,
            });
            prop::collection::btree_map(".{0,30}", entry, 0..4)
                .prop_map(|scorers| scorers.into_iter().collect())
        }

        proptest! {
            #[test]
            fn the_same_bytes(scorers in scorers()) {
                same_bytes(&scorers)?;
            }

            #[test]
            fn the_same_reading(scorers in scorers(), damage in damage()) {
                same_reading(&scorers, &damage)?;
            }
        }
    }
}
