//! The KV cache: which prompt prefixes are held where, and what the offloading connector would
//! load and store for a prompt. The arithmetic is the engine's (testdata/engine); contents have no
//! limit and are never evicted.

use crate::params::Params;
use crate::tiers::TierKind;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The name of the primary tier.
pub const CPU: &str = "cpu";
pub const GPU: &str = "gpu";

#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Tokens of a GPU block.
    pub block_size: usize,
    /// GPU blocks of an offload chunk.
    pub blocks_per_chunk: usize,
    /// Bytes of a token's KV.
    pub bytes_per_token: u64,
}

impl Geometry {
    /// Tokens of an offload chunk.
    fn chunk(&self) -> usize {
        self.block_size * self.blocks_per_chunk
    }
}

/// What decides a prompt's block hashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub salt: Option<String>,
}

/// What serving one prompt did, in tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    pub prompt_tokens: usize,
    /// Found in GPU memory.
    pub gpu_tokens: usize,
    /// Loaded from outside.
    pub loaded_tokens: usize,
    /// The same by tier.
    pub loaded_by_tier: BTreeMap<String, usize>,
    /// Newly stored in the primary tier.
    pub stored_tokens: usize,
}

impl Served {
    /// What `usage.prompt_tokens_details.cached_tokens` says.
    pub fn cached_tokens(&self) -> usize {
        self.gpu_tokens + self.loaded_tokens
    }
}

#[derive(Clone, Debug)]
struct Tier {
    kind: TierKind,
    /// Hashes of chunk-final blocks.
    chunks: HashSet<u64>,
}

#[derive(Clone, Debug)]
pub struct Cache {
    geometry: Geometry,
    gpu: HashSet<u64>,
    /// Hashes of chunk-final blocks.
    cpu: HashSet<u64>,
    secondary: Vec<Tier>,
}

impl Cache {
    pub fn new(geometry: Geometry, secondary: &[TierKind]) -> Self {
        let secondary = secondary
            .iter()
            .map(|kind| Tier {
                kind: kind.clone(),
                chunks: HashSet::new(),
            })
            .collect();
        Self {
            geometry,
            gpu: HashSet::new(),
            cpu: HashSet::new(),
            secondary,
        }
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub fn tier_names(&self) -> Vec<&str> {
        let secondary = self.secondary.iter().map(|tier| tier.kind.name.as_str());
        [GPU, CPU].into_iter().chain(secondary).collect()
    }

    /// Empties one tier, or, without a name, all.
    pub fn clear(&mut self, tier: Option<&str>) {
        let wanted = |name: &str| tier.is_none_or(|tier| tier == name);
        if wanted(GPU) {
            self.gpu.clear();
        }
        if wanted(CPU) {
            self.cpu.clear();
        }
        for tier in self
            .secondary
            .iter_mut()
            .filter(|tier| wanted(&tier.kind.name))
        {
            tier.chunks.clear();
        }
    }

    /// Puts blocks `from..to` of a prompt into a tier: in an external one the chunks whose last
    /// block is among them. False if there is no such tier.
    pub fn place(&mut self, prompt: &Prompt, from: usize, to: usize, tier: &str) -> bool {
        let hashes = self.block_hashes(prompt);
        let range = from.min(hashes.len())..to.min(hashes.len());
        let per_chunk = self.geometry.blocks_per_chunk;
        let blocks = range.clone().map(|block| hashes[block]);
        let finals = range
            .filter(|block| (block + 1) % per_chunk == 0)
            .map(|block| hashes[block]);
        if tier == GPU {
            self.gpu.extend(blocks);
        } else if tier == CPU {
            self.cpu.extend(finals);
        } else if let Some(tier) = self.secondary.iter_mut().find(|t| t.kind.name == tier) {
            tier.chunks.extend(finals);
        } else {
            return false;
        }
        true
    }

    /// Serves one prompt; the cache is then as it leaves it. `reads_cache` is false for requests
    /// that need every position computed (prompt logprobs).
    pub fn serve(&mut self, prompt: &Prompt, params: &Params, reads_cache: bool) -> Served {
        let hashes = self.block_hashes(prompt);
        let mut served = Served {
            prompt_tokens: prompt.tokens.len(),
            ..Served::default()
        };
        if reads_cache {
            served.gpu_tokens = self.gpu_hit(&hashes, served.prompt_tokens);
            self.load(&hashes, params, &mut served);
        }
        self.gpu.extend(&hashes);
        served.stored_tokens = self.store(&hashes, params, served.prompt_tokens);
        served
    }

    /// Tokens of the leading blocks in GPU memory. The hit ends before the last prompt token: that
    /// one has to be computed.
    fn gpu_hit(&self, hashes: &[u64], prompt_tokens: usize) -> usize {
        let block = self.geometry.block_size;
        let most = prompt_tokens.saturating_sub(1) / block;
        hashes
            .iter()
            .take(most)
            .take_while(|hash| self.gpu.contains(hash))
            .count()
            * block
    }

    fn load(&mut self, hashes: &[u64], params: &Params, served: &mut Served) {
        let chunk = self.geometry.chunk();
        let cap = params.max_load_tokens.unwrap_or(u128::MAX);
        let most = (served.gpu_tokens as u128).saturating_add(cap);
        let limit = most.min(served.prompt_tokens as u128) as usize / chunk * chunk;
        if limit.saturating_sub(served.gpu_tokens) < chunk {
            return;
        }
        let mut position = served.gpu_tokens;
        let mut loaded = BTreeMap::new();
        let mut promoted = Vec::new();
        for index in served.gpu_tokens / chunk..limit / chunk {
            let hash = hashes[(index + 1) * self.geometry.blocks_per_chunk - 1];
            let Some(tier) = self.holder(hash, params) else {
                break;
            };
            let end = (index + 1) * chunk;
            *loaded.entry(tier.to_owned()).or_insert(0) += end - position;
            position = end;
            promoted.push(hash);
        }
        if position - served.gpu_tokens < chunk {
            return;
        }
        served.loaded_tokens = position - served.gpu_tokens;
        served.loaded_by_tier = loaded;
        self.cpu.extend(promoted);
    }

    /// The tier that a chunk would come from: the primary one is asked first, whatever the filter.
    fn holder(&self, hash: u64, params: &Params) -> Option<&str> {
        if self.cpu.contains(&hash) {
            return Some(CPU);
        }
        self.secondary
            .iter()
            .find(|tier| params.load_tiers.allows(&tier.kind) && tier.chunks.contains(&hash))
            .map(|tier| tier.kind.name.as_str())
    }

    /// Tokens newly stored. Only whole chunks of the prompt, up to the cap; what the primary tier
    /// takes goes on to the secondary ones.
    fn store(&mut self, hashes: &[u64], params: &Params, prompt_tokens: usize) -> usize {
        let chunk = self.geometry.chunk();
        let cap = params.max_offload_tokens.unwrap_or(u128::MAX);
        let offloadable = cap.min(prompt_tokens as u128) as usize;
        let mut stored = 0;
        for index in 0..offloadable / chunk {
            let hash = hashes[(index + 1) * self.geometry.blocks_per_chunk - 1];
            if self.cpu.insert(hash) {
                stored += chunk;
                for tier in &mut self.secondary {
                    if tier.kind.medium.is_some() {
                        tier.chunks.insert(hash);
                    }
                }
            }
        }
        stored
    }

    /// Chained over the full blocks; the salt counts in the first.
    fn block_hashes(&self, prompt: &Prompt) -> Vec<u64> {
        let mut parent = 0_u64;
        let mut salt = prompt.salt.as_deref();
        prompt
            .tokens
            .chunks_exact(self.geometry.block_size)
            .map(|block| {
                let mut hasher = DefaultHasher::new();
                (parent, block, salt.take()).hash(&mut hasher);
                parent = hasher.finish();
                parent
            })
            .collect()
    }

    /// What an exact writer of tier evidence would say about a request's prompts (DESIGN 5): per
    /// prompt, runs of `(blocks, tiers)` over its full blocks.
    pub fn evidence(&self, prompts: &[Prompt], reads_cache: bool) -> Vec<Vec<Run>> {
        let mut gpu = self.gpu.clone();
        prompts
            .iter()
            .map(|prompt| {
                let hashes = self.block_hashes(prompt);
                if !reads_cache {
                    return runs(vec![Vec::new(); hashes.len()]);
                }
                let blocks = self.tiers_of_blocks(&hashes, prompt.tokens.len(), &gpu);
                // A later prompt of the request finds what this one has loaded or computed.
                gpu.extend(&hashes);
                runs(blocks)
            })
            .collect()
    }

    fn tiers_of_blocks(
        &self,
        hashes: &[u64],
        tokens: usize,
        gpu: &HashSet<u64>,
    ) -> Vec<Vec<String>> {
        let per_chunk = self.geometry.blocks_per_chunk;
        let gpu_blocks = tokens.saturating_sub(1) / self.geometry.block_size;
        let mut blocks: Vec<Vec<String>> = (0..hashes.len())
            .map(|block| {
                let on_gpu = block < gpu_blocks && gpu.contains(&hashes[block]);
                let last = hashes.get((block / per_chunk + 1) * per_chunk - 1);
                let held = |chunks: &HashSet<u64>| last.is_some_and(|hash| chunks.contains(hash));
                let secondary = self.secondary.iter().filter(|tier| held(&tier.chunks));
                on_gpu
                    .then_some(GPU)
                    .into_iter()
                    .chain(held(&self.cpu).then_some(CPU))
                    .chain(secondary.map(|tier| tier.kind.name.as_str()))
                    .map(str::to_owned)
                    .collect()
            })
            .collect();
        let external = |tiers: &&Vec<String>| tiers.iter().any(|tier| tier != GPU);
        let first = blocks
            .iter()
            .take_while(|tiers| tiers.iter().any(|t| t == GPU))
            .count();
        let follow = blocks[first..].iter().take_while(external).count();
        if follow < per_chunk {
            for tiers in &mut blocks[first..first + follow] {
                tiers.retain(|tier| tier == GPU);
            }
        }
        blocks
    }
}

/// The next blocks of a prompt, all held in the same tiers.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub blocks: usize,
    pub tiers: Vec<String>,
}

fn runs(blocks: Vec<Vec<String>>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for tiers in blocks {
        match runs.last_mut() {
            Some(run) if run.tiers == tiers => run.blocks += 1,
            _ => runs.push(Run { blocks: 1, tiers }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(blocks_per_chunk: usize) -> Geometry {
        Geometry {
            block_size: 32,
            blocks_per_chunk,
            bytes_per_token: 1024,
        }
    }

    fn prompt(tokens: u32) -> Prompt {
        Prompt {
            tokens: (0..tokens).collect(),
            salt: None,
        }
    }

    fn cap(load: u128) -> Params {
        Params {
            max_load_tokens: Some(load),
            ..Params::default()
        }
    }

    #[test]
    fn a_warm_prompt_of_whole_blocks_still_loads_its_last_one() {
        let mut cache = Cache::new(geometry(1), &[]);
        cache.serve(&prompt(1024), &Params::default(), true);
        let again = cache.serve(&prompt(1024), &Params::default(), true);
        assert_eq!((again.gpu_tokens, again.loaded_tokens), (992, 32));
    }

    #[test]
    fn secondary_loads_are_promoted_and_what_was_not_loaded_is_stored_again() {
        // Given a prompt on disk only; when 256 tokens may be loaded; then 768 are stored.
        let fs = TierKind::parse("fs").unwrap();
        let mut cache = Cache::new(geometry(1), &[fs]);
        assert!(cache.place(&prompt(1024), 0, 32, "fs"));
        let served = cache.serve(&prompt(1024), &cap(256), true);
        assert_eq!((served.loaded_tokens, served.stored_tokens), (256, 768));
        assert_eq!(
            served.loaded_by_tier,
            BTreeMap::from([("fs".to_owned(), 256)])
        );
        assert!(!cache.place(&prompt(1024), 0, 32, "nvme"));
    }

    #[test]
    fn chunks_of_several_blocks_are_loaded_whole() {
        for (gpu_blocks, external_blocks, load, expected) in [
            (0, 32, u128::MAX, 1024), // all eight chunks
            (0, 30, u128::MAX, 896),  // the last chunk is not whole
            (2, 32, u128::MAX, 960),  // from the middle of a chunk on
            (29, 32, u128::MAX, 0),   // 96 tokens follow, less than a chunk of 128
            (28, 32, u128::MAX, 128),
            (0, 32, 127, 0),
            (0, 32, 300, 256),
        ] {
            let mut cache = Cache::new(geometry(4), &[]);
            cache.place(&prompt(1025), 0, gpu_blocks, GPU);
            cache.place(&prompt(1025), 0, external_blocks, CPU);
            let served = cache.serve(&prompt(1025), &cap(load), true);
            assert_eq!(
                served.loaded_tokens, expected,
                "{gpu_blocks} {external_blocks} {load}"
            );
        }
    }

    #[test]
    fn salts_isolate() {
        let mut cache = Cache::new(geometry(1), &[]);
        cache.serve(&prompt(64), &Params::default(), true);
        let salted = Prompt {
            salt: Some("tenant".into()),
            ..prompt(64)
        };
        assert_eq!(
            cache
                .serve(&salted, &Params::default(), true)
                .cached_tokens(),
            0
        );
    }

    /// External tokens of a prompt by its runs, as a reader of the contract counts them.
    fn external_tokens(runs: &[Run]) -> usize {
        let blocks: Vec<_> = runs
            .iter()
            .flat_map(|run| vec![&run.tiers; run.blocks])
            .collect();
        let gpu = blocks
            .iter()
            .take_while(|tiers| tiers.iter().any(|t| t == GPU))
            .count();
        blocks[gpu..]
            .iter()
            .take_while(|tiers| tiers.iter().any(|t| t != GPU))
            .count()
            * 32
    }

    #[test]
    fn exact_evidence_foretells_what_is_loaded() {
        // A small linear generator; any placement must do.
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        for round in 0..2000 {
            let fs = TierKind::parse("fs").unwrap();
            let mut cache = Cache::new(geometry(1 + random(3)), &[fs]);
            let mut prompts: Vec<_> = (0..1 + random(3))
                .map(|_| prompt(random(400) as u32))
                .collect();
            for prompt in &mut prompts {
                let fork = random(prompt.tokens.len() + 1);
                let branch = random(2) as u32;
                prompt
                    .tokens
                    .iter_mut()
                    .skip(fork)
                    .for_each(|token| *token += 1000 * branch);
            }
            for prompt in &prompts {
                for tier in [GPU, CPU, "fs"] {
                    let from = random(3);
                    cache.place(
                        prompt,
                        if from < 2 { 0 } else { random(9) },
                        random(14),
                        tier,
                    );
                }
            }
            let evidence = cache.evidence(&prompts, true);
            for (prompt, runs) in prompts.iter().zip(&evidence) {
                let served = cache.serve(prompt, &Params::default(), true);
                assert_eq!(
                    served.loaded_tokens,
                    external_tokens(runs),
                    "round {round}: {runs:?}"
                );
            }
        }
    }
}
