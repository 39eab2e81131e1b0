//! What an exact writer of tier evidence would say about a request (DESIGN 5), from the cache itself.

use super::{CPU, Cache, GPU, Offload};
use crate::hashing::{BlockHash, Prompt};
use std::collections::HashSet;

/// The next blocks of a prompt, all held in the same tiers.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub blocks: usize,
    pub tiers: Vec<String>,
}

impl Cache {
    /// Per prompt, runs over its full blocks.
    pub fn evidence(&self, prompts: &[Prompt], reads_cache: bool) -> Vec<Vec<Run>> {
        let mut earlier = HashSet::new();
        prompts
            .iter()
            .map(|prompt| {
                let hashes = self.block_hashes(prompt);
                if !reads_cache {
                    return runs(vec![Vec::new(); hashes.len()]);
                }
                let blocks = self.tiers_of_blocks(&hashes, prompt.tokens.len(), &earlier);
                // A later prompt of the request finds what this one has loaded or computed.
                earlier.extend(hashes);
                runs(blocks)
            })
            .collect()
    }

    fn tiers_of_blocks(
        &self,
        hashes: &[BlockHash],
        tokens: usize,
        earlier: &HashSet<BlockHash>,
    ) -> Vec<Vec<String>> {
        let per_chunk = self.geometry.blocks_per_chunk;
        let gpu_blocks = tokens.saturating_sub(1) / self.geometry.block_size;
        let mut blocks: Vec<Vec<String>> = (0..hashes.len())
            .map(|block| {
                let hash = &hashes[block];
                let there = self.gpu.holds(hash) || earlier.contains(hash);
                let last = hashes.get((block / per_chunk + 1) * per_chunk - 1);
                let held = |tier: &Offload| last.is_some_and(|hash| tier.holds(hash));
                let secondary = self.secondary.iter().filter(|tier| held(&tier.chunks));
                // The earlier prompt has begun to store it, and that is a hit.
                let begun = per_chunk == 1 && block >= gpu_blocks && earlier.contains(hash);
                (there && block < gpu_blocks)
                    .then_some(GPU)
                    .into_iter()
                    .chain((held(&self.cpu) || begun).then_some(CPU))
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
