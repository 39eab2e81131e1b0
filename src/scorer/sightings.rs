//! Endpoints seen in traffic (`discover: true`), passed from the VMs that serve requests to the
//! one that polls.
//!
//! Each VM notes the addresses its own requests went to and writes them to a private record with
//! its timer, never on the request path: new ones within a second, known ones every ten. The
//! poller reads the record.

use super::config::{MAX_ENDPOINTS, address};
use super::record;
use crate::contract::keys::bucket;
use crate::contract::store::{Store, UpdateError, update};
use crate::sorted::{SortedMap, SortedSet};

/// An endpoint without traffic for this long is forgotten.
pub const FORGET_MS: u64 = 600_000;
/// A time of a known endpoint may be written this much late, so readers add it to [`FORGET_MS`].
pub const REFRESH_MS: u64 = 10_000;
/// Least time between two writes of one VM.
const WRITE_SPACING_MS: u64 = 1_000;
const TRIES: u32 = 4;
const PREFIX: &str = "selective-kv/1/seen/";

/// Last traffic by endpoint, Unix ms.
pub type Seen = SortedMap<String, u64>;

/// Where a scorer's sightings are kept.
pub fn key(name: &str) -> String {
    format!("{PREFIX}{}", bucket(name, record::BUCKETS))
}

/// The scorer's sightings in a record under [`key`]. A time in the future (the clock stepped
/// back) is now.
pub fn read(record: Option<&[u8]>, name: &str, now_ms: u64) -> Seen {
    let mut seen = record::decode::<Seen>(record)
        .remove(name)
        .unwrap_or_default();
    settle(&mut seen, now_ms);
    seen
}

/// Clamps future times, and drops what was forgotten or is no address.
fn settle(seen: &mut Seen, now_ms: u64) {
    seen.retain(|endpoint, last| {
        *last = (*last).min(now_ms);
        !is_forgotten(*last, now_ms) && address(endpoint).is_some()
    });
    while seen.len() > MAX_ENDPOINTS {
        seen.pop_last();
    }
}

/// Whether the last traffic is so long ago that no late write explains it.
pub fn is_forgotten(last_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(last_ms) > FORGET_MS.saturating_add(REFRESH_MS)
}

/// What one VM saw.
#[derive(Debug)]
pub struct Sightings {
    name: String,
    key: String,
    /// Configured endpoints need no discovery.
    configured: SortedSet<String>,
    /// By endpoint.
    seen: SortedMap<String, Sighting>,
    written_ms: Option<u64>,
}

#[derive(Debug)]
struct Sighting {
    last_ms: u64,
    /// The time that the record has; None: not there yet.
    recorded_ms: Option<u64>,
}

/// What [`Sightings::note`] made of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    Yes,
    /// Not an `ip:port` (a Unix socket), or configured anyway.
    NotNeeded,
    /// This VM has seen [`MAX_ENDPOINTS`] others in the last ten minutes.
    Full,
}

impl Sightings {
    pub fn new(name: &str, configured: impl IntoIterator<Item = String>) -> Self {
        Self {
            name: name.to_owned(),
            key: key(name),
            configured: configured.into_iter().collect(),
            seen: SortedMap::new(),
            written_ms: None,
        }
    }

    /// A 2xx answer came from `upstream` (`upstream.address`).
    pub fn note(&mut self, upstream: &str, now_ms: u64) -> Noted {
        if let Some(sighting) = self.seen.get_mut(upstream) {
            sighting.last_ms = now_ms;
            return Noted::Yes;
        }
        if self.configured.contains(upstream) || address(upstream).is_none() {
            return Noted::NotNeeded;
        }
        if self.seen.len() >= MAX_ENDPOINTS {
            return Noted::Full;
        }
        let sighting = Sighting {
            last_ms: now_ms,
            recorded_ms: None,
        };
        self.seen.insert(upstream.to_owned(), sighting);
        Noted::Yes
    }

    /// Called once a tick: writes what is new, at most once a second. `Ok(false)`: some of it
    /// found no room among the record's [`MAX_ENDPOINTS`].
    ///
    /// # Errors
    /// Tried again with the next tick.
    pub fn write(&mut self, store: &dyn Store, now_ms: u64) -> Result<bool, UpdateError> {
        self.seen
            .retain(|_, s| now_ms.saturating_sub(s.last_ms) <= FORGET_MS);
        let wait = self.written_ms.is_some_and(|written| {
            // A clock that stepped back must not silence this VM.
            now_ms.abs_diff(written) < WRITE_SPACING_MS
        });
        let due = self.seen.values().any(|s| match s.recorded_ms {
            None => true,
            Some(recorded) => s.last_ms.abs_diff(recorded) >= REFRESH_MS,
        });
        if wait || !due {
            return Ok(true);
        }
        let mut all = true;
        update(store, &self.key, TRIES, &mut |old| {
            let mut scorers: SortedMap<String, Seen> = record::decode(old);
            let mut record = scorers.remove(&self.name).unwrap_or_default();
            settle(&mut record, now_ms);
            all = true;
            for (endpoint, sighting) in &self.seen {
                let last_ms = sighting.last_ms.min(now_ms);
                let room = record.len() < MAX_ENDPOINTS;
                match record.get_mut(endpoint) {
                    Some(last) => *last = (*last).max(last_ms),
                    None if room => {
                        record.insert(endpoint.clone(), last_ms);
                    }
                    None => all = false,
                }
            }
            record::make_room(&mut scorers, &self.name, |seen| {
                seen.values().copied().max().unwrap_or(0)
            });
            scorers.insert(self.name.clone(), record);
            record::encode(&scorers)
        })?;
        self.written_ms = Some(now_ms);
        for sighting in self.seen.values_mut() {
            sighting.recorded_ms = Some(sighting.last_ms);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::store::MemoryStore;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;
    const SECOND: u64 = 1_000;

    fn sightings(name: &str) -> Sightings {
        Sightings::new(name, ["10.0.0.1:8000".to_owned()])
    }

    fn record(store: &MemoryStore, name: &str, now_ms: u64) -> Vec<(String, u64)> {
        let value = store.get(&key(name)).unwrap().map(|v| v.value);
        read(value.as_deref(), name, now_ms).into_iter().collect()
    }

    fn version(store: &MemoryStore) -> Option<u32> {
        store.get(&key("s")).unwrap().map(|v| v.cas)
    }

    #[test]
    fn only_addresses_that_are_not_configured_are_noted() {
        let mut vm = sightings("s");
        for (upstream, noted) in [
            ("10.0.0.2:8000", Noted::Yes),
            ("[fd00::2]:8000", Noted::Yes),
            ("10.0.0.1:8000", Noted::NotNeeded),
            ("10.0.0.2", Noted::NotNeeded),
            ("10.0.0.2:0", Noted::NotNeeded),
            ("engine:8000", Noted::NotNeeded),
            ("/var/run/engine.sock", Noted::NotNeeded),
            ("", Noted::NotNeeded),
        ] {
            assert_eq!(vm.note(upstream, NOW), noted, "{upstream}");
        }
    }

    #[test]
    fn two_vms_meet_in_the_record() {
        let store = MemoryStore::new();
        let (mut a, mut b) = (sightings("s"), sightings("s"));
        a.note("10.0.0.2:8000", NOW);
        b.note("10.0.0.2:8000", NOW + 5);
        b.note("10.0.0.3:8000", NOW + 5);
        assert_eq!(b.write(&store, NOW + 10), Ok(true));
        assert_eq!(a.write(&store, NOW + 10), Ok(true));
        let expected = [
            ("10.0.0.2:8000".to_owned(), NOW + 5),
            ("10.0.0.3:8000".to_owned(), NOW + 5),
        ];
        assert_eq!(record(&store, "s", NOW + 10), expected);
        assert_eq!(record(&store, "another", NOW + 10), []);
    }

    #[test]
    fn writes_are_rare() {
        let store = MemoryStore::new();
        let mut vm = sightings("s");
        let writes = |from: u64, vm: &mut Sightings| {
            // a request and a tick every 100 ms for 20 s
            let mut writes = 0;
            let mut last = version(&store);
            for now in (from..from + 20 * SECOND).step_by(100) {
                vm.note("10.0.0.2:8000", now);
                assert_eq!(vm.write(&store, now), Ok(true));
                writes += u32::from(version(&store) != last);
                last = version(&store);
            }
            writes
        };
        // The first sighting, then every 10 s.
        assert_eq!(writes(NOW, &mut vm), 2);
        // A new endpoint every 100 ms: once a second.
        let mut written = 0;
        let mut last = version(&store);
        for i in 0..100u64 {
            let now = NOW + 30 * SECOND + i * 100;
            vm.note(&format!("10.0.1.{i}:8000"), now);
            assert_eq!(vm.write(&store, now), Ok(true));
            written += u32::from(version(&store) != last);
            last = version(&store);
        }
        assert_eq!(written, 10);
        // No traffic, no writes.
        let last = version(&store);
        for i in 0..100 {
            assert_eq!(vm.write(&store, NOW + 41 * SECOND + i * SECOND), Ok(true));
        }
        // (one for those of the last second above)
        assert_eq!(version(&store), last.map(|v| v + 1));
    }

    #[test]
    fn an_endpoint_is_forgotten_after_ten_minutes_without_traffic() {
        let store = MemoryStore::new();
        let mut vm = sightings("s");
        vm.note("10.0.0.2:8000", NOW);
        assert_eq!(vm.write(&store, NOW), Ok(true));
        let last = NOW + FORGET_MS + REFRESH_MS;
        assert_eq!(record(&store, "s", last).len(), 1);
        assert_eq!(record(&store, "s", last + 1), []);
        // The next write clears it from the record, and the VM has forgotten it too.
        vm.note("10.0.0.3:8000", last + 1);
        assert_eq!(vm.write(&store, last + 1), Ok(true));
        assert_eq!(
            record(&store, "s", NOW),
            [("10.0.0.3:8000".to_owned(), NOW)]
        );
        assert_eq!(vm.seen.len(), 1);
    }

    #[test]
    fn a_clock_that_steps_back_forgets_nothing_and_keeps_nothing_for_ever() {
        let store = MemoryStore::new();
        let mut vm = sightings("s");
        let hour = 3_600 * SECOND;
        vm.note("10.0.0.2:8000", NOW + hour);
        assert_eq!(vm.write(&store, NOW + hour), Ok(true));
        // Then the clock steps back an hour, and traffic goes on elsewhere
        vm.note("10.0.0.3:8000", NOW);
        assert_eq!(vm.write(&store, NOW), Ok(true));
        let expected = ["10.0.0.2:8000", "10.0.0.3:8000"].map(|e| (e.to_owned(), NOW));
        assert_eq!(record(&store, "s", NOW), expected);
        assert_eq!(record(&store, "s", NOW + FORGET_MS + REFRESH_MS + 1), []);
    }

    #[test]
    fn at_most_256() {
        let store = MemoryStore::new();
        let (mut a, mut b) = (sightings("s"), sightings("s"));
        for i in 0..256 {
            assert_eq!(a.note(&format!("10.1.{i}.1:80"), NOW), Noted::Yes);
        }
        assert_eq!(a.note("10.2.0.1:80", NOW), Noted::Full);
        // An endpoint that is known is never turned away.
        assert_eq!(a.note("10.1.7.1:80", NOW), Noted::Yes);
        assert_eq!(a.write(&store, NOW), Ok(true));
        b.note("10.2.0.1:80", NOW);
        assert_eq!(b.write(&store, NOW), Ok(false));
        assert_eq!(record(&store, "s", NOW).len(), 256);
        // A record with more than that, or with other texts, is cut down.
        let foreign: Seen = (0..300)
            .map(|i| (format!("10.1.{}.{}:80", i / 200, i % 200), NOW))
            .chain([("evil.example:80".to_owned(), NOW)])
            .collect();
        let bytes = record::encode(&SortedMap::from([("s".to_owned(), foreign)]));
        let seen = read(bytes.as_deref(), "s", NOW);
        assert_eq!(seen.len(), 256);
        assert!(!seen.contains_key("evil.example:80"));
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod against_ciborium {
        use super::*;
        use crate::scorer::record::against_ciborium::{damage, same_bytes, same_reading};
        use proptest::collection::btree_map;
        use proptest::prelude::*;

        fn scorers() -> impl Strategy<Value = SortedMap<String, Seen>> {
            let seen = btree_map(".{0,30}", any::<u64>(), 0..4);
            let seen = seen.prop_map(|seen| seen.into_iter().collect());
            btree_map(".{0,30}", seen, 0..4).prop_map(|all| all.into_iter().collect())
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
