//! `fnv64a_cbor`: llm-d's request keys (llm-d-kv-cache, `kvblock`, its default algorithm).
//!
//! A key is `FNV-1a-64(canonical CBOR of [parent, tokens, extras])`, the parent being the key
//! before or, for the first block, the same over the seed and the model's name.

use std::hash::Hasher;

use ::fnv::FnvHasher;

use super::Context;
use crate::cbor::{self, Sink, major};

/// The blocks of one prompt so far.
#[derive(Clone, Debug)]
pub struct FnvChain<'a> {
    parent: u64,
    /// Of a first block that has not come yet.
    cache_salt: Option<&'a str>,
}

struct Hash(FnvHasher);

impl Hash {
    fn new() -> Self {
        Hash(FnvHasher::default())
    }
}

impl Sink for Hash {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }
}

pub(super) fn seed(hash_seed: &str) -> u64 {
    let mut hash = Hash::new();
    hash.put(hash_seed.as_bytes());
    hash.0.finish()
}

impl<'a> FnvChain<'a> {
    /// An adapter's name stands in the place of the model's.
    pub(super) fn new(seed: u64, context: &Context<'a>) -> Self {
        let model = context.adapter.map_or(context.model, |lora| lora.name);
        let mut hash = Hash::new();
        cbor::head(&mut hash, major::ARRAY, 3);
        cbor::head(&mut hash, major::UINT, seed);
        hash.put(&[cbor::NULL]);
        cbor::text(&mut hash, model);
        FnvChain {
            parent: hash.0.finish(),
            cache_salt: context.cache_salt,
        }
    }

    /// Behind a block whose key is known, as for a KV event with a parent.
    pub fn after(parent: u64) -> Self {
        FnvChain {
            parent,
            cache_salt: None,
        }
    }

    /// The key of the next block of text.
    #[inline]
    pub fn next(&mut self, block: &[u32]) -> u64 {
        self.next_with(block, &[])
    }

    /// The key of the next block, with the identifiers of the multimodal items that reach into it
    /// (or any other extra keys an event carries).
    #[inline]
    pub fn next_with(&mut self, block: &[u32], identifiers: &[&str]) -> u64 {
        let salt = self.cache_salt.take();
        let mut hash = Hash::new();
        cbor::head(&mut hash, major::ARRAY, 3);
        cbor::head(&mut hash, major::UINT, self.parent);
        cbor::head(&mut hash, major::ARRAY, block.len() as u64);
        cbor::uints(&mut hash, block);
        let extras = identifiers
            .len()
            .saturating_add(usize::from(salt.is_some()));
        if extras == 0 {
            hash.put(&[cbor::NULL]);
        } else {
            cbor::head(&mut hash, major::ARRAY, extras as u64);
            for identifier in identifiers.iter().copied().chain(salt) {
                cbor::head(&mut hash, major::MAP, 1);
                cbor::text(&mut hash, "Hash");
                cbor::text(&mut hash, identifier);
            }
        }
        self.parent = hash.0.finish();
        self.parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn seeds_are_fnv_1a() {
        for (text, expected) in [
            ("", 14_695_981_039_346_656_037),
            ("42", 571_532_774_284_038_691),
            ("test-seed", 988_467_944_923_922_317),
        ] {
            assert_eq!(seed(text), expected, "{text}");
        }
    }

    #[test]
    fn chains_begin_with_the_model() {
        let context = Context {
            model: "test-model",
            ..Context::default()
        };
        let chain = FnvChain::new(seed(""), &context);
        assert_eq!(chain.parent, 17_515_353_698_173_365_712);
    }

    #[test]
    fn a_chain_goes_on_behind_a_known_key() {
        let context = Context {
            model: "test-model",
            cache_salt: Some("s1"),
            ..Context::default()
        };
        let mut chain = FnvChain::new(seed(""), &context);
        let first = chain.next(&[1, 2, 3]);
        assert_eq!(
            FnvChain::after(first).next(&[4, 5, 6]),
            chain.next(&[4, 5, 6])
        );
    }

    #[test]
    fn the_salt_follows_the_items_of_the_first_block() {
        let context = Context {
            model: "test-model",
            cache_salt: Some("s1"),
            ..Context::default()
        };
        let unsalted = Context {
            cache_salt: None,
            ..context
        };
        let mut salted = FnvChain::new(seed(""), &context);
        let mut plain = FnvChain::new(seed(""), &unsalted);
        assert_eq!(
            salted.next_with(&[1], &["img"]),
            plain.next_with(&[1], &["img", "s1"])
        );
        assert_eq!(
            salted.next_with(&[1], &["img"]),
            plain.next_with(&[1], &["img"])
        );
    }
}
