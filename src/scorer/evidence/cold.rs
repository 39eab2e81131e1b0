//! Which blocks of a request an engine would have to load from files: those that it holds neither in
//! its GPU nor in its memory. And their digests, which name the files.

use super::engine::{Way, way};
use super::models::resolve;
use super::prompt_keys::{PromptKeys, context};
use super::results::EndpointResult;
use super::{Evidence, EvidenceConfig, REQUEST_BYTES};
use crate::contract::store::Store;
use crate::policy::tiers::{Locality, Medium, Tier};
use crate::prefix::{AdapterPathUnknown, Chain, Digest};
use crate::prompt::{Prompt, Request, TokenPrompts};
use crate::scorer::config::PrefetchConfig;
use crate::scorer::index::Held;
use std::num::NonZeroU32;

/// Why nothing is known of a request's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoFiles {
    /// It has no token ids, or reads no cache.
    NotLooked,
    /// The engines have not said how many tokens a block has.
    NoBlockSize,
    /// The endpoint is no member, or no member serves the model.
    NoEndpoint,
    /// The endpoint's digests cannot be made.
    Endpoint(EndpointResult),
}

/// A block that ends a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColdBlock {
    prompt: usize,
    /// In its prompt, from 0.
    pub index: u32,
    /// Stands for its digest: equal for equal ones of one endpoint's kind.
    pub key: u64,
}

/// What one endpoint does not hold of a request.
#[derive(Debug)]
pub struct Cold<'a> {
    /// Ordered by prompt and index. At most `maxDigests`.
    pub blocks: Vec<ColdBlock>,
    tokens: &'a TokenPrompts,
    salt: Option<&'a str>,
    block_size: NonZeroU32,
    config: &'a EvidenceConfig,
    prefetch: &'a PrefetchConfig,
    way: Way<'a>,
}

impl Evidence {
    /// `chosen` is the endpoint the request goes to; `likeliest` one that it may go to, in case none
    /// is chosen. An endpoint of which nothing is known yet holds nothing.
    pub fn cold<'a>(
        &'a mut self,
        store: &dyn Store,
        prefetch: &'a PrefetchConfig,
        request: &'a Request,
        chosen: Option<&str>,
        likeliest: Option<&str>,
        now_ms: u64,
    ) -> Result<Cold<'a>, NoFiles> {
        let tokens = match &request.prompt {
            Prompt::Tokens(tokens) if request.reads_cache => tokens,
            Prompt::Tokens(_) | Prompt::Text(_) | Prompt::Unknown(_) => {
                return Err(NoFiles::NotLooked);
            }
        };
        let Some((block_size, index)) = &mut self.index else {
            return Err(NoFiles::NoBlockSize);
        };
        let block_size = *block_size;
        let (config, members) = (&*self.evidence, &self.fleet.endpoints);
        let model = request.model.as_deref();
        let found = match chosen.or(likeliest) {
            Some(name) => members.get_key_value(name),
            None => members
                .iter()
                .find(|(_, facts)| resolve(config, facts, model).is_some()),
        };
        let (endpoint, facts) = found.ok_or(NoFiles::NoEndpoint)?;
        let served =
            resolve(config, facts, model).ok_or(NoFiles::Endpoint(EndpointResult::OtherModel))?;
        let salt = request.cache_salt.as_deref();
        let way = |keys| way(keys, facts, block_size, served, salt.is_some());
        let asked = way(&config.keys).map_err(NoFiles::Endpoint)?;
        let named = way(&prefetch.keys).map_err(NoFiles::Endpoint)?;
        let keys = PromptKeys::new(config, block_size, asked, salt, tokens)
            .map_err(|AdapterPathUnknown| NoFiles::Endpoint(EndpointResult::AdapterPath))?;

        let mut budget = REQUEST_BYTES;
        let view = index.view(store, endpoint, now_ms, &mut budget).ok();
        let residency = view.as_ref().and_then(|view| index.residency(view));
        let near = near(index.tiers());
        let is_cold = |key: u64| {
            let held = residency.as_ref().map_or(Held::NOWHERE, |it| it.held(key));
            held.gpu == 0 && held.external & near == 0
        };
        let mut blocks = Vec::new();
        for (prompt, of) in keys.prompts().iter().enumerate() {
            // What an earlier prompt has too was looked at there.
            let ends = (0u32..).zip(of.keys).skip(of.shared);
            let ends = ends.filter(|(at, _)| ends_file(*at, prefetch.blocks_per_file));
            let cold = ends.filter(|(_, key)| is_cold(**key));
            let room = prefetch.max_digests.saturating_sub(blocks.len());
            blocks.extend(cold.take(room).map(|(index, key)| ColdBlock {
                prompt,
                index,
                key: *key,
            }));
        }
        Ok(Cold {
            blocks,
            tokens,
            salt,
            block_size,
            config,
            prefetch,
            way: named,
        })
    }
}

impl Cold<'_> {
    /// Endpoints whose digests of equal keys may differ have different ones.
    pub fn kind(&self) -> u64 {
        self.way.format as u64
    }

    /// Calls `tell` with the index and the digest of each of `wanted`, which are some of
    /// [`Self::blocks`], in their order. The chain is made up to the last of them.
    pub fn digests(
        &self,
        wanted: &[ColdBlock],
        tell: &mut dyn FnMut(u32, &Digest),
    ) -> Result<(), AdapterPathUnknown> {
        let context = context(self.config, self.way, self.salt);
        let algorithm = self.prefetch.keys.algorithm(self.way.format);
        let size = usize::try_from(self.block_size.get()).unwrap_or(usize::MAX);
        let mut wanted = wanted.iter().peekable();
        for (prompt, tokens) in self.tokens.iter().enumerate() {
            if wanted.peek().is_none_or(|block| block.prompt != prompt) {
                continue;
            }
            let Chain::Sha256(mut chain) = algorithm.chain(&context)? else {
                return Ok(());
            };
            for (at, block) in (0u32..).zip(tokens.chunks_exact(size)) {
                let Some(next) = wanted.peek().filter(|next| next.prompt == prompt) else {
                    break;
                };
                let digest = chain.next(block);
                if next.index == at {
                    tell(at, digest);
                    wanted.next();
                }
            }
        }
        Ok(())
    }
}

/// A file has the name of its last block.
fn ends_file(at: u32, blocks_per_file: NonZeroU32) -> bool {
    u64::from(at)
        .saturating_add(1)
        .is_multiple_of(u64::from(blocks_per_file.get()))
}

/// The bits of tiers in the engine's own memory: no file is read for what they hold.
fn near(tiers: &[String]) -> u16 {
    let bits = tiers.iter().zip(0u32..).filter(|(name, _)| is_near(name));
    bits.fold(0, |bits, (_, at)| bits | 1u16.checked_shl(at).unwrap_or(0))
}

fn is_near(tier: &str) -> bool {
    match Tier::named(tier) {
        Tier::Primary => true,
        Tier::Secondary { medium, locality } => {
            medium == Some(Medium::Cpu) && locality != Some(Locality::Remote)
        }
        Tier::Gpu | Tier::Speculative => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn tiers_of_the_engines_own_memory() {
        let tiers = [
            "storage",
            "cpu",
            "cpu@remote",
            "cpu_tier1",
            "fs",
            "shared_storage",
            "cpu@local",
            "p2p",
        ];
        assert_eq!(near(&tiers.map(str::to_owned)), 0b0100_1010);
        assert_eq!(near(&[]), 0);
    }

    #[test]
    fn files_end_with_every_nth_block() {
        let ends = |n: u32| -> Vec<u32> {
            let n = NonZeroU32::new(n).unwrap();
            (0..12).filter(|at| ends_file(*at, n)).collect()
        };
        assert_eq!(ends(1), (0..12).collect::<Vec<u32>>());
        assert_eq!(ends(4), [3, 7, 11]);
        assert_eq!(ends(12), [11]);
        assert_eq!(ends(13), [0; 0]);
        assert!(ends_file(u32::MAX, NonZeroU32::new(16).unwrap()));
    }
}
