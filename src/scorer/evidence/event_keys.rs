//! Request keys of an event's blocks.
//!
//! They are those that a request with the same tokens, salt and adapter has. Nobody asks for blocks
//! with images or prompt embeddings; their keys only must not be those of others.

use super::BASE_MODEL;
use crate::prefix::{Adapter, Algorithm, Chain, Context, FnvChain};
use crate::scorer::config::EvidenceConfig;
use crate::scorer::kv_events::{BlockExtras, Extra, Stored, Tokens};
use crate::sorted::SortedMap;
use std::num::NonZeroU32;

/// What [`Index::ingest`](crate::scorer::index::Index::ingest) asks for.
///
/// With `sha256_cbor` a block's own key is the engine's. What is told is every key that the first
/// block of a prompt may have there: enough to see whether the engine's hashes are the ones
/// expected. False if some of them cannot be told.
pub fn request_keys(
    config: &EvidenceConfig,
    block_size: NonZeroU32,
) -> impl Fn(Option<u64>, &Stored<'_>, &mut Vec<u64>) -> bool + use<> {
    let algorithms = config.keys.algorithms();
    let paths = config.adapters.clone();
    move |parent, event, keys| {
        event.block_size == block_size.get()
            && algorithms
                .iter()
                .all(|algorithm| append(algorithm, &paths, parent, event, keys).is_some())
    }
}

fn append(
    algorithm: &Algorithm,
    paths: &SortedMap<String, Option<String>>,
    parent: Option<u64>,
    event: &Stored<'_>,
    keys: &mut Vec<u64>,
) -> Option<()> {
    let chain = |cache_salt| {
        let context = Context {
            model: BASE_MODEL,
            adapter: event.lora_name.map(|name| Adapter {
                name,
                path: paths.get(name).and_then(Option::as_deref),
            }),
            cache_salt,
        };
        algorithm.chain(&context).ok()
    };
    match (algorithm, parent) {
        (Algorithm::Fnv64aCbor { .. }, Some(parent)) => {
            bridge(FnvChain::after(parent), false, event, keys)
        }
        (Algorithm::Fnv64aCbor { .. }, None) => match chain(None)? {
            Chain::Fnv(chain) => bridge(chain, true, event, keys),
            Chain::Sha256(_) => None,
        },
        (Algorithm::Sha256Cbor { .. }, None) => {
            let salt = match event.extra_keys.blocks().next() {
                Some(extras) => only_salt(extras, event.lora_name)?,
                None => None,
            };
            keys.push(chain(salt)?.next(Blocks::of(event).next()?));
            Some(())
        }
        // An event's parent is 8 bytes of the 32 that would be needed.
        (Algorithm::Sha256Cbor { .. }, Some(_)) => None,
    }
}

/// The salt of a prompt's first block, if it has one. `None` if there is more, or something else.
fn only_salt<'a>(mut extras: BlockExtras<'a>, adapter: Option<&str>) -> Option<Option<&'a str>> {
    let mut extra = extras.next();
    if let (Some(name), Some(first)) = (adapter, extra) {
        if first != Extra::Text(name) {
            return None;
        }
        extra = extras.next();
    }
    match (extra, extras.next()) {
        (None, _) => Some(None),
        (Some(Extra::Text(salt)), None) => Some(Some(salt)),
        _ => None,
    }
}

/// `first`: the chain's next block begins a prompt.
fn bridge(
    mut chain: FnvChain<'_>,
    mut first: bool,
    event: &Stored<'_>,
    keys: &mut Vec<u64>,
) -> Option<()> {
    let mut blocks = Blocks::of(event);
    let mut extras = event.extra_keys.blocks();
    let mut identifiers = Vec::new();
    for _ in event.hashes {
        identifiers.clear();
        if event.extra_keys.is_given() {
            identify(extras.next()?, event.lora_name, first, &mut identifiers)?;
        }
        let block = blocks.next()?;
        keys.push(if identifiers.is_empty() {
            chain.next(block)
        } else {
            let identifiers: Vec<&str> = identifiers.iter().map(String::as_str).collect();
            chain.next_with(block, &identifiers)
        });
        first = false;
    }
    Some(())
}

/// A request's block has one identifier at the most, its salt. Everything else gets two, so that it
/// never is a request's.
fn identify(
    mut extras: BlockExtras<'_>,
    adapter: Option<&str>,
    first: bool,
    identifiers: &mut Vec<String>,
) -> Option<()> {
    // The adapter comes first, and begins the chain already. Anything else in its place could be a
    // salt or not.
    let Some(mut extra) = extras.next() else {
        return Some(());
    };
    if let Some(name) = adapter {
        if extra != Extra::Text(name) {
            return None;
        }
        match extras.next() {
            Some(next) => extra = next,
            None => return Some(()),
        }
    }
    let mut salted = false;
    for extra in std::iter::once(extra).chain(extras) {
        match extra {
            // Only a prompt's first block has it.
            Extra::Text(salt) if first && !salted => {
                identifiers.push(salt.to_owned());
                salted = true;
            }
            Extra::TextAt(image, at) => identifiers.extend([image.to_owned(), at.to_string()]),
            Extra::Bytes(digest) => {
                let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                identifiers.extend([String::new(), hex]);
            }
            Extra::Text(_) | Extra::Other => return None,
        }
    }
    Some(())
}

/// The tokens of an event, block by block.
struct Blocks<'a> {
    tokens: Tokens<'a>,
    size: usize,
    block: Vec<u32>,
}

impl<'a> Blocks<'a> {
    fn of(event: &Stored<'a>) -> Self {
        let size = usize::try_from(event.block_size).unwrap_or(usize::MAX);
        Self {
            tokens: event.tokens,
            size,
            block: Vec::new(),
        }
    }

    /// A whole one.
    fn next(&mut self) -> Option<&[u32]> {
        self.block.clear();
        self.block.extend(self.tokens.by_ref().take(self.size));
        (self.block.len() == self.size).then_some(self.block.as_slice())
    }
}
