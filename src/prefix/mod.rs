//! Keys of prompt-prefix blocks: what a full block of a prompt is called, by llm-d's router or by
//! vLLM's own prefix cache.
//!
//! A block's key covers its tokens and, through the key before it, the whole prompt up to it. Only
//! full blocks have keys. Keys are made one block at a time ([`Chain::next`]), without allocating.
//! Beside the tokens they depend on the [`Context`]: model or adapter, and `cache_salt`.

mod fnv;
mod sha256;

use std::num::NonZeroU32;

pub use fnv::FnvChain;
pub use sha256::{Digest, Item, Sha256Chain};

/// How keys are made, with what an engine or router is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// llm-d's request keys (its default): FNV-1a-64 over canonical CBOR. They say nothing about
    /// an engine's own hashes, so they fit any.
    Fnv64aCbor {
        /// The seed's own hash.
        seed: u64,
    },
    /// vLLM's `--prefix-caching-hash-algo sha256_cbor`: SHA-256 over canonical CBOR.
    Sha256Cbor {
        /// The parent of every first block.
        none_hash: Digest,
        format: ExtraKeyFormat,
    },
}

/// How vLLM writes what beside the tokens goes into a block's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKeyFormat {
    /// Up to 0.30: bare values.
    Untagged,
    /// llm-d's own `sha256_cbor`: as [`Self::Untagged`], multimodal items without their offset.
    LlmD,
    /// From 0.31 on: values with their kind, and an adapter's path beside its name.
    Tagged,
}

/// What beside its tokens a prompt's keys depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context<'a> {
    /// The base model's name; `sha256_cbor` does not look at it.
    pub model: &'a str,
    pub adapter: Option<Adapter<'a>>,
    /// Goes into the first block, and so into all.
    pub cache_salt: Option<&'a str>,
}

/// A LoRA adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter<'a> {
    /// As a request's `model` has it.
    pub name: &'a str,
    /// As the engine was given it; only [`ExtraKeyFormat::Tagged`] asks for it.
    pub path: Option<&'a str>,
}

/// The tagged format hashes the path of an adapter, and it is not known: there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterPathUnknown;

impl std::fmt::Display for AdapterPathUnknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("vLLM 0.31 and later hash the path of an adapter, and none is configured")
    }
}

impl std::error::Error for AdapterPathUnknown {}

impl Algorithm {
    /// `hash_seed` as llm-d's `hashSeed` (default: empty).
    pub fn fnv64a_cbor(hash_seed: &str) -> Self {
        Algorithm::Fnv64aCbor {
            seed: fnv::seed(hash_seed),
        }
    }

    /// `python_hash_seed` as the engine's `PYTHONHASHSEED`; None is the fixed default of vLLM 0.29
    /// and later. Before that an engine without the variable has random hashes nobody else can
    /// make.
    pub fn sha256_cbor(python_hash_seed: Option<&str>, format: ExtraKeyFormat) -> Self {
        Algorithm::Sha256Cbor {
            none_hash: sha256::none_hash(python_hash_seed),
            format,
        }
    }

    /// Before the first block of a prompt.
    pub fn chain<'a>(&self, context: &Context<'a>) -> Result<Chain<'a>, AdapterPathUnknown> {
        Ok(match self {
            &Algorithm::Fnv64aCbor { seed } => Chain::Fnv(FnvChain::new(seed, context)),
            Algorithm::Sha256Cbor { none_hash, format } => {
                Chain::Sha256(Sha256Chain::new(none_hash, *format, context)?)
            }
        })
    }
}

/// The blocks of one prompt so far.
#[derive(Clone, Debug)]
pub enum Chain<'a> {
    Fnv(FnvChain<'a>),
    Sha256(Sha256Chain<'a>),
}

impl<'a> Chain<'a> {
    /// The key of the next block, from the tokens of the whole block. Of `sha256_cbor` it is what KV events call
    /// the block: the last 8 bytes of its digest.
    #[inline]
    pub fn next(&mut self, block: &[u32]) -> u64 {
        match self {
            Chain::Fnv(chain) => chain.next(block),
            Chain::Sha256(chain) => event_key(chain.next(block)).unwrap_or_default(),
        }
    }

    /// The keys of the full blocks of `tokens`, which come next; tokens behind the last full block
    /// have none.
    pub fn keys<'t>(
        mut self,
        tokens: &'t [u32],
        block_size: NonZeroU32,
    ) -> impl Iterator<Item = u64> + use<'a, 't> {
        let size = usize::try_from(block_size.get()).unwrap_or(usize::MAX);
        tokens.chunks_exact(size).map(move |block| self.next(block))
    }

    /// Appends [`Chain::keys`]. Compiled here, for speed.
    pub fn keys_into(self, tokens: &[u32], block_size: NonZeroU32, keys: &mut Vec<u64>) {
        keys.extend(self.keys(tokens, block_size));
    }
}

/// A hash as KV events have it when they carry bytes, as an integer: its last 8 bytes, big-endian.
/// None if it is empty.
pub fn event_key(hash: &[u8]) -> Option<u64> {
    if hash.is_empty() {
        return None;
    }
    let last = hash.get(hash.len().saturating_sub(8)..).unwrap_or(hash);
    Some(
        last.iter()
            .fold(0, |key: u64, &byte| key.wrapping_shl(8) | u64::from(byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn event_keys_are_the_last_eight_bytes() {
        let table: &[(&[u8], Option<u64>)] = &[
            (b"", None),
            (b"\x07", Some(7)),
            (b"\x01\x00", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\xaa\x00\x00\x00\x00\x00\x00\x00\x02", Some(2)),
        ];
        for &(hash, expected) in table {
            assert_eq!(event_key(hash), expected, "{hash:?}");
        }
    }

    #[test]
    fn only_full_blocks_have_keys() {
        let tokens: Vec<u32> = (0..50).collect();
        let size = NonZeroU32::new(16).expect("not 0");
        for algorithm in [
            Algorithm::fnv64a_cbor(""),
            Algorithm::sha256_cbor(None, ExtraKeyFormat::Tagged),
        ] {
            let chain = || algorithm.chain(&Context::default()).expect("a chain");
            let all: Vec<u64> = chain().keys(&tokens, size).collect();
            for (length, blocks) in [(0, 0), (15, 0), (16, 1), (31, 1), (48, 3), (50, 3)] {
                let keys: Vec<u64> = chain().keys(&tokens[..length], size).collect();
                assert_eq!(keys, all[..blocks], "{algorithm:?} {length}");
            }
        }
    }

    #[test]
    fn an_adapter_without_its_path_has_no_tagged_keys() {
        let with = |path| Context {
            model: "base",
            adapter: Some(Adapter { name: "a", path }),
            cache_salt: None,
        };
        let tagged = Algorithm::sha256_cbor(None, ExtraKeyFormat::Tagged);
        let untagged = Algorithm::sha256_cbor(None, ExtraKeyFormat::Untagged);
        assert_eq!(tagged.chain(&with(None)).err(), Some(AdapterPathUnknown));
        assert!(tagged.chain(&with(Some("/a"))).is_ok());
        assert!(untagged.chain(&with(None)).is_ok());
        assert!(Algorithm::fnv64a_cbor("").chain(&with(None)).is_ok());
    }
}
