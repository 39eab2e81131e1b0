//! `sha256_cbor`: the block hashes of vLLM's own prefix cache (v1 `kv_cache_utils`, 0.22 to 0.33).
//!
//! A digest is `SHA-256(canonical CBOR of (parent, tokens, extra keys))`. The parent of a first
//! block is a hash of the seed, so that engines with the same seed have the same hashes.

use sha2::{Digest as _, Sha256};

use super::{Adapter, AdapterPathUnknown, Context, ExtraKeyFormat};
use crate::cbor::{self, Sink, major};

/// A block's whole hash.
pub type Digest = [u8; 32];

/// What vLLM 0.29 and later hash where `PYTHONHASHSEED` is not set.
const DEFAULT_SEED: &str = "vllm-none-hash";

pub(super) fn none_hash(python_hash_seed: Option<&str>) -> Digest {
    let mut seed = Vec::new();
    cbor::text(&mut seed, python_hash_seed.unwrap_or(DEFAULT_SEED));
    Sha256::digest(seed).into()
}

/// A multimodal item that reaches into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub identifier: &'a str,
    /// Tokens from the block's first to the item's first; negative if it began in a block before.
    pub offset: i64,
}

/// The blocks of one prompt so far.
#[derive(Clone, Debug)]
pub struct Sha256Chain<'a> {
    parent: Digest,
    lora: Option<Lora<'a>>,
    format: ExtraKeyFormat,
    /// Of a first block that has not come yet.
    cache_salt: Option<&'a str>,
    /// One block's CBOR; keeps its room from block to block.
    encoded: Vec<u8>,
}

/// An adapter as the format writes it.
#[derive(Clone, Copy, Debug)]
enum Lora<'a> {
    Name(&'a str),
    NameAndPath(&'a str, &'a str),
}

impl<'a> Lora<'a> {
    fn new(adapter: Adapter<'a>, format: ExtraKeyFormat) -> Result<Self, AdapterPathUnknown> {
        match (format, adapter.path) {
            (ExtraKeyFormat::Untagged | ExtraKeyFormat::LlmD, _) => Ok(Lora::Name(adapter.name)),
            (ExtraKeyFormat::Tagged, Some(path)) => Ok(Lora::NameAndPath(adapter.name, path)),
            (ExtraKeyFormat::Tagged, None) => Err(AdapterPathUnknown),
        }
    }
}

impl<'a> Sha256Chain<'a> {
    pub(super) fn new(
        none_hash: &Digest,
        format: ExtraKeyFormat,
        context: &Context<'a>,
    ) -> Result<Self, AdapterPathUnknown> {
        let adapter = context.adapter;
        Ok(Sha256Chain {
            parent: *none_hash,
            lora: adapter.map(|lora| Lora::new(lora, format)).transpose()?,
            format,
            cache_salt: context.cache_salt,
            encoded: Vec::new(),
        })
    }

    /// The digest of the next block of text.
    pub fn next(&mut self, block: &[u32]) -> &Digest {
        self.next_with(block, &[], &[])
    }

    /// The digest of the next block, with the multimodal items that reach into it, in the order of
    /// the prompt, and, where an engine drafts with lookahead (0.31 and later), as many tokens
    /// behind the block as it looks ahead.
    pub fn next_with(&mut self, block: &[u32], items: &[Item<'_>], ahead: &[u32]) -> &Digest {
        self.encoded.clear();
        let out = &mut self.encoded;
        cbor::head(out, major::ARRAY, 3);
        cbor::head(out, major::BYTES, self.parent.len() as u64);
        out.put(&self.parent);
        cbor::head(out, major::ARRAY, block.len() as u64);
        cbor::uints(out, block);
        if !ahead.is_empty() {
            cbor::head(out, major::ARRAY, ahead.len().saturating_add(1) as u64);
        }
        put_extra_keys(out, self.format, self.lora, items, self.cache_salt.take());
        cbor::uints(out, ahead);
        self.parent = Sha256::digest(&self.encoded).into();
        &self.parent
    }
}

/// In vLLM's order; `null` if there is none.
fn put_extra_keys(
    out: &mut Vec<u8>,
    format: ExtraKeyFormat,
    lora: Option<Lora<'_>>,
    items: &[Item<'_>],
    cache_salt: Option<&str>,
) {
    let others = usize::from(lora.is_some()).saturating_add(usize::from(cache_salt.is_some()));
    let count = items.len().saturating_add(others);
    if count == 0 {
        out.put(&[cbor::NULL]);
        return;
    }
    cbor::head(out, major::ARRAY, count as u64);
    match lora {
        None => {}
        Some(Lora::Name(name)) => cbor::text(out, name),
        Some(Lora::NameAndPath(name, path)) => {
            cbor::head(out, major::ARRAY, 3);
            cbor::text(out, "lora");
            cbor::text(out, name);
            cbor::text(out, path);
        }
    }
    for item in items {
        match format {
            ExtraKeyFormat::LlmD => {
                cbor::text(out, item.identifier);
                continue;
            }
            ExtraKeyFormat::Untagged => cbor::head(out, major::ARRAY, 2),
            ExtraKeyFormat::Tagged => {
                cbor::head(out, major::ARRAY, 3);
                cbor::text(out, "mm");
            }
        }
        cbor::text(out, item.identifier);
        match u64::try_from(item.offset) {
            Ok(offset) => cbor::head(out, major::UINT, offset),
            // CBOR's negative integers count down from -1.
            Err(_) => cbor::head(out, major::NEGATIVE, (!item.offset).unsigned_abs()),
        }
    }
    if let Some(salt) = cache_salt {
        if format == ExtraKeyFormat::Tagged {
            cbor::head(out, major::ARRAY, 2);
            cbor::text(out, "cache_salt");
        }
        cbor::text(out, salt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn none_hashes() {
        for (seed, expected) in [
            (
                Some("0"),
                "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
            ),
            (
                Some("10"),
                "087f4c7109d76636536c712c5121252018fa2dd0fddeba804f1df78494d8ea01",
            ),
            (
                Some(""),
                "8d33f520a3c4cef80d2453aef81b612bfe1cb44c8b2025630ad38662763f13d3",
            ),
            (
                None,
                "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
            ),
        ] {
            assert_eq!(hex(&none_hash(seed)), expected, "{seed:?}");
        }
    }

    #[test]
    fn offsets_of_items_may_be_negative() {
        for (offset, expected) in [
            (0, "00"),
            (4, "04"),
            (-1, "20"),
            (-12, "2b"),
            (-25, "3818"),
            (i64::MIN, "3b7fffffffffffffff"),
        ] {
            let mut out = Vec::new();
            let item = Item {
                identifier: "",
                offset,
            };
            put_extra_keys(&mut out, ExtraKeyFormat::Untagged, None, &[item], None);
            assert_eq!(hex(&out), format!("818260{expected}"), "{offset}");
        }
    }
}
