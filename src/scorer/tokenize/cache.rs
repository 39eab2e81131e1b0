//! Tokens of texts that were asked for a short time ago: a prompt comes again with every retry,
//! and a system prompt with its same first turn comes often.

use crate::sorted::SortedMap;

use sha2::{Digest as _, Sha256};

use crate::prompt::TokenPrompts;

/// SHA-256 of the body of a call: nobody can make two texts meet.
pub type Key = [u8; 32];

/// Tokens are believed for this long, ms: an engine may come back with another tokenizer.
pub const MAX_AGE_MS: u64 = 300_000;

/// What an entry costs besides its tokens, bytes; generous.
const ENTRY_BYTES: usize = 128;

pub fn key(call: &[u8]) -> Key {
    Sha256::digest(call).into()
}

/// At most `limit` bytes in two generations: when the young one has half of them it becomes the
/// old one, and what nobody asked for since then goes.
#[derive(Debug)]
pub struct Cache {
    limit: usize,
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    /// By the first byte of the key: there may be 100,000 entries, and one that comes or goes moves
    /// those behind it.
    entries: SortedMap<u8, SortedMap<Key, Entry>>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    tokens: Box<[u32]>,
    /// When the engine said so, Unix ms.
    t_ms: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        size_of_val::<[u32]>(&self.tokens).saturating_add(ENTRY_BYTES)
    }
}

impl Cache {
    /// `limit` in bytes; 0 keeps nothing.
    pub fn new(limit: usize) -> Self {
        Cache {
            limit,
            young: Generation::default(),
            old: Generation::default(),
        }
    }

    /// Bytes kept, at most the limit.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.young.bytes.saturating_add(self.old.bytes)
    }

    pub fn get(&mut self, key: &Key, now_ms: u64) -> Option<TokenPrompts> {
        let entry = match self.old.take(key) {
            Some(entry) => Some(entry),
            None => self.young.take(key),
        };
        // The clock may have stepped back.
        let entry = entry.filter(|entry| entry.t_ms.abs_diff(now_ms) <= MAX_AGE_MS)?;
        let tokens = entry.tokens.to_vec();
        self.insert(*key, entry);
        Some(TokenPrompts::one(tokens))
    }

    /// Keeps the first prompt of `tokens`.
    pub fn put(&mut self, key: Key, tokens: &TokenPrompts, now_ms: u64) {
        let Some(tokens) = tokens.iter().next() else {
            return;
        };
        self.old.take(&key);
        self.young.take(&key);
        let entry = Entry {
            tokens: tokens.into(),
            t_ms: now_ms,
        };
        self.insert(key, entry);
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        let half = self.limit / 2;
        let bytes = entry.bytes();
        if bytes > half {
            return;
        }
        if self.young.bytes.saturating_add(bytes) > half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes = self.young.bytes.saturating_add(bytes);
        let [first, ..] = key;
        let entries = self.young.entries.entry(first).or_default();
        entries.insert(key, entry);
    }
}

impl Generation {
    fn take(&mut self, key: &Key) -> Option<Entry> {
        let [first, ..] = key;
        let entry = self.entries.get_mut(first)?.remove(key)?;
        self.bytes = self.bytes.saturating_sub(entry.bytes());
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;

    fn tokens(n: usize, id: u32) -> TokenPrompts {
        TokenPrompts::one(vec![id; n])
    }

    fn holds(cache: &mut Cache, text: &str, now_ms: u64) -> Option<Vec<u32>> {
        let tokens = cache.get(&key(text.as_bytes()), now_ms)?;
        tokens.iter().next().map(<[u32]>::to_vec)
    }

    #[test]
    fn a_text_comes_back_until_it_is_too_old() {
        let mut cache = Cache::new(10_000);
        cache.put(key(b"a"), &tokens(3, 7), NOW);
        for (now, expected) in [
            (NOW, Some(vec![7; 3])),
            (NOW + MAX_AGE_MS, Some(vec![7; 3])),
            (NOW - MAX_AGE_MS, Some(vec![7; 3])),
            (NOW + MAX_AGE_MS + 1, None),
            // Too old once, gone for good.
            (NOW, None),
        ] {
            assert_eq!(holds(&mut cache, "a", now), expected, "{now}");
        }
        assert_eq!(holds(&mut cache, "b", NOW), None);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_is_asked_for_stays() {
        // Room for 4 entries of 100 tokens, 2 in each generation.
        let mut cache = Cache::new(4 * (400 + ENTRY_BYTES));
        for i in 0..100_u32 {
            cache.put(key(&i.to_le_bytes()), &tokens(100, i), NOW);
            if i > 0 {
                assert_eq!(holds(&mut cache, "\0\0\0\0", NOW), Some(vec![0; 100]));
            }
        }
        assert_eq!(cache.get(&key(&50_u32.to_le_bytes()), NOW), None);
        cache.put(key(b"\0\0\0\0"), &tokens(1, 9), NOW);
        assert_eq!(holds(&mut cache, "\0\0\0\0", NOW), Some(vec![9]));
    }

    #[test]
    fn without_room_nothing_is_kept() {
        for limit in [0, 2 * (40 + ENTRY_BYTES) - 1] {
            let mut cache = Cache::new(limit);
            cache.put(key(b"a"), &tokens(10, 1), NOW);
            assert_eq!((holds(&mut cache, "a", NOW), cache.bytes()), (None, 0));
        }
        let mut cache = Cache::new(2 * (40 + ENTRY_BYTES));
        cache.put(key(b"a"), &tokens(10, 1), NOW);
        assert_eq!(holds(&mut cache, "a", NOW), Some(vec![1; 10]));
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod properties {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Never above the limit, never another text's tokens, never older than told.
        #[test]
        fn against_a_map(
            limit in 0..5_000_usize,
            steps in prop::collection::vec((0..12_u8, 1..200_usize, any::<bool>(), 0..100_000_u64), 1..200),
        ) {
            let mut cache = Cache::new(limit);
            let mut all: HashMap<u8, (usize, u64)> = HashMap::new();
            let mut now_ms = 0;
            for (i, (text, n, put, wait)) in steps.into_iter().enumerate() {
                now_ms += wait;
                if put {
                    cache.put(key(&[text]), &TokenPrompts::one(vec![i as u32; n]), now_ms);
                    all.insert(text, (i, now_ms));
                } else if let Some(found) = cache.get(&key(&[text]), now_ms) {
                    let (i, t_ms) = all[&text];
                    prop_assert_eq!(found.iter().next().unwrap()[0], i as u32);
                    prop_assert!(now_ms - t_ms <= MAX_AGE_MS);
                }
                prop_assert!(cache.bytes() <= limit);
                let counted: usize = [&cache.young, &cache.old]
                    .iter()
                    .flat_map(|g| g.entries.values())
                    .flat_map(SortedMap::values)
                    .map(Entry::bytes)
                    .sum();
                prop_assert_eq!(cache.bytes(), counted);
            }
        }
    }
}
