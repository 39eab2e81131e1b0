//! The shared data as the records see it: versioned values and compare-and-swap.

use crate::sorted::SortedMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A `cas` that no stored value has: with it, `set` creates a missing key and fails on an
/// existing one.
///
/// Envoy lets any non-zero `cas` create a missing key and counts versions up from 1, so the
/// largest one is out of reach in practice (it is one value of one key after 2³² − 1 writes).
pub const CREATE: u32 = u32::MAX;

/// Tries of one write to a public record (docs/shared-data.md, section 1).
pub const TRIES: u32 = 4;

/// A value with its version, for a later compare-and-swap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned {
    /// Empty both for a stored empty value and for what Envoy reads back as "no value, but a
    /// version"; every reader takes it as no record.
    pub value: Vec<u8>,
    pub cas: u32,
}

/// Why a store call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The value changed since it was read.
    CasMismatch,
    /// Any other raw proxy-wasm status.
    Host(u32),
}

/// A key-value store with Envoy's compare-and-swap rules. It has no delete.
pub trait Store {
    /// `Ok(None)` if the key was never set.
    ///
    /// # Errors
    /// [`StoreError::Host`].
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError>;

    /// `cas` 0 writes unconditionally. Another one must match an existing value's; on a missing
    /// key it writes ([`CREATE`] uses that).
    ///
    /// # Errors
    /// [`StoreError`].
    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError>;
}

/// What [`update`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Updated {
    Written,
    /// The closure had nothing to write.
    Left,
}

/// Why [`update`] wrote nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateError {
    /// Other writers won every try.
    Contended,
    /// Raw proxy-wasm status of the call that failed.
    Host(u32),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contended => f.write_str("other writers won every try"),
            Self::Host(status) => write!(f, "the host answered status {status}"),
        }
    }
}

impl std::error::Error for UpdateError {}

/// From the current value (`None` if missing or empty) to the new one, or `None` to leave it.
pub type Change<'a> = dyn FnMut(Option<&[u8]>) -> Option<Vec<u8>> + 'a;

/// Read, change, compare-and-swap, at most `tries` times (nothing waits in between).
///
/// `f` is called once per try.
///
/// # Errors
/// [`UpdateError::Contended`] after `tries` mismatches (also for 0 tries).
pub fn update(
    store: &dyn Store,
    key: &str,
    tries: u32,
    f: &mut Change<'_>,
) -> Result<Updated, UpdateError> {
    let host = |e| match e {
        StoreError::CasMismatch => UpdateError::Contended,
        StoreError::Host(status) => UpdateError::Host(status),
    };
    for _ in 0..tries {
        let old = store.get(key).map_err(host)?;
        let cas = old.as_ref().map_or(CREATE, |v| v.cas);
        let value = old
            .as_ref()
            .map(|v| v.value.as_slice())
            .filter(|v| !v.is_empty());
        let Some(new) = f(value) else {
            return Ok(Updated::Left);
        };
        match store.set(key, &new, cas) {
            Ok(()) => return Ok(Updated::Written),
            Err(StoreError::CasMismatch) => {}
            Err(e @ StoreError::Host(_)) => return Err(host(e)),
        }
    }
    Err(UpdateError::Contended)
}

/// A store in memory that behaves as Envoy's shared data does, for tests and tools.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    values: SortedMap<String, Versioned>,
    /// Last version given out; one counter for all keys.
    last_cas: u32,
}

impl MemoryStore {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        Ok(self.with(|inner| inner.values.get(key).cloned()))
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        self.with(|inner| {
            if cas != 0 && inner.values.get(key).is_some_and(|v| v.cas != cas) {
                return Err(StoreError::CasMismatch);
            }
            // Envoy skips 0 when its counter wraps: 0 means "unconditional".
            inner.last_cas = inner.last_cas.checked_add(1).unwrap_or(1);
            let versioned = Versioned {
                value: value.to_vec(),
                cas: inner.last_cas,
            };
            inner.values.insert(key.to_owned(), versioned);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn versioned(value: &[u8], cas: u32) -> Option<Versioned> {
        Some(Versioned {
            value: value.to_vec(),
            cas,
        })
    }

    #[test]
    fn memory_store_follows_envoys_rules() {
        let store = MemoryStore::new();
        assert_eq!(store.get("a"), Ok(None));
        // A non-zero cas on a missing key succeeds.
        assert_eq!(store.set("a", b"1", 77), Ok(()));
        assert_eq!(store.get("a"), Ok(versioned(b"1", 1)));
        // Versions count over all keys.
        assert_eq!(store.set("b", b"2", 0), Ok(()));
        assert_eq!(store.get("b"), Ok(versioned(b"2", 2)));
        // 0 is unconditional, a wrong one fails and changes nothing.
        assert_eq!(store.set("a", b"3", 0), Ok(()));
        assert_eq!(store.set("a", b"4", 1), Err(StoreError::CasMismatch));
        assert_eq!(store.get("a"), Ok(versioned(b"3", 3)));
        assert_eq!(store.set("a", b"5", 3), Ok(()));
        // Create-if-absent.
        assert_eq!(store.set("a", b"6", CREATE), Err(StoreError::CasMismatch));
        assert_eq!(store.set("c", b"7", CREATE), Ok(()));
        // An empty value keeps its version.
        assert_eq!(store.set("a", b"", 4), Ok(()));
        assert_eq!(store.get("a"), Ok(versioned(b"", 6)));
    }

    #[test]
    fn versions_wrap_past_zero() {
        let store = MemoryStore::new();
        store.with(|inner| inner.last_cas = u32::MAX);
        assert_eq!(store.set("a", b"1", 0), Ok(()));
        assert_eq!(store.get("a"), Ok(versioned(b"1", 1)));
    }

    #[test]
    fn update_creates_changes_and_leaves() {
        let store = MemoryStore::new();
        let seen = Cell::new(None);
        let mut append = |old: Option<&[u8]>| {
            seen.set(Some(old.is_some()));
            Some([old.unwrap_or_default(), b"x"].concat())
        };
        assert_eq!(update(&store, "k", 3, &mut append), Ok(Updated::Written));
        assert_eq!(seen.get(), Some(false));
        assert_eq!(update(&store, "k", 3, &mut append), Ok(Updated::Written));
        assert_eq!(seen.get(), Some(true));
        assert_eq!(update(&store, "k", 3, &mut |_| None), Ok(Updated::Left));
        assert_eq!(store.get("k"), Ok(versioned(b"xx", 2)));
        // An empty value is no value, but its version guards it.
        assert_eq!(store.set("k", b"", 0), Ok(()));
        assert_eq!(update(&store, "k", 3, &mut append), Ok(Updated::Written));
        assert_eq!(seen.get(), Some(false));
        assert_eq!(store.get("k"), Ok(versioned(b"x", 4)));
    }

    #[test]
    fn update_tries_again_and_gives_up() {
        // Another writer gets in between the read and the write, `rivals` times.
        let run = |existing: bool, rivals: u32, tries: u32| {
            let store = MemoryStore::new();
            if existing {
                store.set("k", b"", 0).unwrap();
            }
            let calls = Cell::new(0);
            let result = update(&store, "k", tries, &mut |old| {
                calls.set(calls.get() + 1);
                if calls.get() <= rivals {
                    store.set("k", b"rival", 0).unwrap();
                }
                Some([old.unwrap_or_default(), b"+me"].concat())
            });
            let value = store.get("k").unwrap().map(|v| v.value);
            (result, calls.get(), value.unwrap_or_default())
        };
        for existing in [false, true] {
            let written = (Ok(Updated::Written), 3, b"rival+me".to_vec());
            assert_eq!(run(existing, 2, 3), written);
            let lost = (Err(UpdateError::Contended), 3, b"rival".to_vec());
            assert_eq!(run(existing, 3, 3), lost);
            assert_eq!(run(existing, 0, 0).0, Err(UpdateError::Contended));
        }
    }

    #[test]
    fn update_reports_the_hosts_status() {
        struct Broken(Result<Option<Versioned>, StoreError>);
        impl Store for Broken {
            fn get(&self, _: &str) -> Result<Option<Versioned>, StoreError> {
                self.0.clone()
            }
            fn set(&self, _: &str, _: &[u8], _: u32) -> Result<(), StoreError> {
                Err(StoreError::Host(10))
            }
        }
        let run = |get| update(&Broken(get), "k", 5, &mut |_| Some(vec![1]));
        assert_eq!(run(Err(StoreError::Host(7))), Err(UpdateError::Host(7)));
        assert_eq!(run(Ok(None)), Err(UpdateError::Host(10)));
    }
}
