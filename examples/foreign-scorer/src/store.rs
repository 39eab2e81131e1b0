//! Shared data: names of keys, and the only way a record is changed (sections 1 and 3).

use crate::Refusal;

/// Envoy's shared data, or a stand-in.
pub trait Store {
    /// The value, if it is not empty, and the `cas`, if the key exists.
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<u32>);
    /// Whether it was written: not if `cas` does not fit.
    fn set(&self, key: &str, value: &[u8], cas: u32) -> bool;
}

/// Creates a missing key and fails on one that exists.
const CREATE: u32 = u32::MAX;
const TRIES: usize = 8;

#[derive(Debug, PartialEq)]
pub enum Failure {
    Refused(Refusal),
    /// Others wrote in between each time.
    Busy,
}

/// Reads, changes and writes until nobody wrote in between.
pub fn update<T>(
    store: &impl Store,
    key: &str,
    change: impl Fn(Option<&[u8]>) -> Result<(Vec<u8>, T), Refusal>,
) -> Result<T, Failure> {
    for _ in 0..TRIES {
        let (value, cas) = store.get(key);
        let (bytes, outcome) = change(value.as_deref()).map_err(Failure::Refused)?;
        if store.set(key, &bytes, cas.unwrap_or(CREATE)) {
            return Ok(outcome);
        }
    }
    Err(Failure::Busy)
}

pub const MEMBERS: &str = "selective-kv/1/members";

pub fn queue_key(endpoint: &str) -> String {
    format!("selective-kv/1/queue/{}", fnv1a_64(endpoint) % 256)
}

pub fn evidence_key(request_id: &str) -> String {
    format!("selective-kv/1/evidence/{}", fnv1a_64(request_id) % 4096)
}

fn fnv1a_64(name: &str) -> u64 {
    name.bytes().fold(14_695_981_039_346_656_037, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    })
}

#[cfg(test)]
pub mod memory {
    use super::Store;
    use std::cell::RefCell;
    use std::collections::HashMap;

    /// Behaves as section 1 says. `rivals` is how many of the next writes somebody else gets before.
    #[derive(Default)]
    pub struct Memory {
        values: RefCell<HashMap<String, (Vec<u8>, u32)>>,
        pub rivals: RefCell<u32>,
    }

    impl Store for Memory {
        fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<u32>) {
            let values = self.values.borrow();
            let (value, cas) = values.get(key).cloned().unzip();
            (value.filter(|v| !v.is_empty()), cas)
        }

        fn set(&self, key: &str, value: &[u8], cas: u32) -> bool {
            let mut values = self.values.borrow_mut();
            let mut rivals = self.rivals.borrow_mut();
            let current = values.entry(key.to_owned()).or_default();
            if *rivals > 0 {
                *rivals -= 1;
                current.1 += 1;
            }
            let fits = cas == 0 || current.1 == 0 || current.1 == cas;
            if fits {
                *current = (value.to_vec(), current.1 + 1);
            }
            fits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::memory::Memory;
    use super::*;

    #[test]
    fn buckets_of_the_document() {
        for (name, hash, of_256, of_4096) in [
            ("10.0.0.7:8000", 10819050798528950219, 203, 4043),
            ("10.0.0.8:8000", 4051664264028609440, 160, 2976),
            ("[2001:db8::7]:8000", 2247159590764151855, 47, 1071),
            (
                "5b1c0f6e-8d1a-4a53-9c39-0e6d3c1f7a20",
                10605490175703025046,
                150,
                1430,
            ),
            (
                "2f0f5d0c-77b1-9d3a-8f3e-4f0c4dd0b6a1",
                11969955571553052568,
                152,
                1944,
            ),
            ("a", 12638187200555641996, 140, 3212),
        ] {
            assert_eq!(fnv1a_64(name), hash, "{name}");
            assert_eq!(queue_key(name), format!("selective-kv/1/queue/{of_256}"));
            assert_eq!(
                evidence_key(name),
                format!("selective-kv/1/evidence/{of_4096}")
            );
        }
    }

    #[test]
    fn a_change_sees_what_was_there_and_gives_up_after_eight_rivals() {
        let store = Memory::default();
        let append = |old: Option<&[u8]>| {
            let mut bytes = old.unwrap_or_default().to_vec();
            bytes.push(b'x');
            Ok((bytes, ()))
        };
        assert_eq!(update(&store, "k", append), Ok(()));
        *store.rivals.borrow_mut() = 7;
        assert_eq!(update(&store, "k", append), Ok(()));
        *store.rivals.borrow_mut() = 8;
        assert_eq!(update(&store, "k", append), Err(Failure::Busy));
        assert_eq!(store.get("k").0.as_deref(), Some(b"xx".as_slice()));

        // An empty value is no record, but its `cas` counts.
        assert!(store.set("e", b"", CREATE));
        assert_eq!(store.get("e"), (None, Some(1)));
        assert_eq!(update(&store, "e", append), Ok(()));
    }
}
