//! The KV cache: which prompt prefixes are held where, what the offloading connector would load and
//! store for a prompt, and the events that tell of it. The arithmetic is the engine's (testdata/engine).

mod evidence;
mod gpu;
mod offload;
#[cfg(test)]
mod tests;

pub use evidence::Run;

use crate::events::{Content, Event, Medium};
use crate::hashing::{BlockHash, BlockHasher, Prompt};
use crate::params::Params;
use crate::tiers::TierKind;
use gpu::Gpu;
use offload::{Chunk, Offload};
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// Blocks that fit; `None` is no limit. Prompts that are longer overflow.
    pub gpu_blocks: Option<usize>,
    /// Chunks that fit into the primary tier; `None` is no limit.
    pub cpu_chunks: Option<usize>,
}

impl Geometry {
    /// Tokens of an offload chunk.
    fn chunk(&self) -> usize {
        self.block_size * self.blocks_per_chunk
    }
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
    chunks: Offload,
}

#[derive(Clone, Debug)]
pub struct Cache {
    geometry: Geometry,
    hasher: BlockHasher,
    gpu: Gpu,
    cpu: Offload,
    secondary: Vec<Tier>,
    /// Batches that nobody has taken yet.
    batches: Vec<Vec<Event>>,
    /// A reset is told with the next scheduler step.
    cleared: bool,
}

impl Cache {
    pub fn new(geometry: Geometry, secondary: &[TierKind], hasher: BlockHasher) -> Self {
        let secondary = secondary
            .iter()
            .map(|kind| Tier {
                kind: kind.clone(),
                chunks: Offload::default(),
            })
            .collect();
        Self {
            geometry,
            hasher,
            gpu: Gpu::new(geometry.gpu_blocks),
            cpu: Offload::new(geometry.cpu_chunks),
            secondary,
            batches: Vec::new(),
            cleared: false,
        }
    }

    /// As another process of this engine finds it: storage outlives the one before.
    pub fn restart(&mut self, hasher: BlockHasher) {
        let secondary = std::mem::take(&mut self.secondary);
        *self = Self::new(self.geometry, &[], hasher);
        self.secondary = secondary;
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub fn tier_names(&self) -> Vec<&str> {
        let secondary = self.secondary.iter().map(|tier| tier.kind.name.as_str());
        [GPU, CPU].into_iter().chain(secondary).collect()
    }

    /// The batches of events since the last call, oldest first.
    pub fn take_batches(&mut self) -> Vec<Vec<Event>> {
        std::mem::take(&mut self.batches)
    }

    fn announce(&mut self, events: Vec<Event>) {
        if !events.is_empty() {
            self.batches.push(events);
        }
    }

    /// Empties one tier, or, without a name, all.
    pub fn clear(&mut self, tier: Option<&str>) {
        let wanted = |name: &str| tier.is_none_or(|tier| tier == name);
        if wanted(GPU) {
            self.gpu.clear();
            self.announce(vec![Event::AllCleared]);
        }
        if wanted(CPU) {
            let gone = self.cpu.clear();
            self.announce(
                gone.into_iter()
                    .map(|chunk| removed(chunk, Medium::Cpu))
                    .collect(),
            );
        }
        // Nobody is told when files go.
        for tier in &mut self.secondary {
            if wanted(&tier.kind.name) {
                tier.chunks.clear();
            }
        }
    }

    /// `/reset_prefix_cache`. The event comes with the next request, and none tells that the primary
    /// tier is empty (vLLM 0.32).
    pub fn reset(&mut self, external: bool) {
        self.gpu.clear();
        self.cleared = true;
        if external {
            self.cpu.clear();
        }
    }

    /// Puts blocks `from..to` of a prompt into a tier: in an external one the chunks whose last
    /// block is among them. False if there is no such tier.
    pub fn place(&mut self, prompt: &Prompt, from: usize, to: usize, tier: &str) -> bool {
        let hashes = self.block_hashes(prompt);
        let range = from.min(hashes.len())..to.min(hashes.len());
        if tier == GPU {
            let mut events = Vec::new();
            for block in range {
                if !self.gpu.holds(&hashes[block]) {
                    events.extend(self.evict_for(1));
                    self.gpu.insert(hashes[block]);
                    events.push(self.stored(prompt, &hashes, block..block + 1));
                }
            }
            self.announce(events);
            return true;
        }
        let chunks = self.chunks(&hashes, range);
        if tier == CPU {
            let new = chunks
                .iter()
                .filter(|chunk| !self.cpu.holds(key(chunk)))
                .count();
            let mut events = evicted(self.cpu.make_room(new, &[]).unwrap_or_default());
            for chunk in chunks {
                if self.cpu.insert(chunk.clone()) {
                    events.push(placeholder(chunk, Medium::Cpu));
                }
            }
            self.announce(events);
            return true;
        }
        let Some(tier) = self.secondary.iter_mut().find(|t| t.kind.name == tier) else {
            return false;
        };
        let mut events = Vec::new();
        for chunk in chunks {
            if tier.chunks.insert(chunk.clone()) {
                events.extend(
                    tier.kind
                        .announced_as()
                        .map(|medium| placeholder(chunk, medium)),
                );
            }
        }
        self.announce(events);
        true
    }

    /// Takes blocks `from..to` of a prompt out of a tier, as eviction does. False if nothing is ever
    /// evicted from such a tier.
    pub fn evict(&mut self, prompt: &Prompt, from: usize, to: usize, tier: &str) -> bool {
        let hashes = self.block_hashes(prompt);
        let range = from.min(hashes.len())..to.min(hashes.len());
        let mut events = Vec::new();
        match tier {
            // The end of a prompt is freed first.
            GPU => {
                for block in range.rev() {
                    while self.gpu.remove(&hashes[block]) {
                        events.push(removed(vec![hashes[block]], Medium::Gpu));
                    }
                }
            }
            CPU => {
                for chunk in self.chunks(&hashes, range) {
                    if self.cpu.remove(key(&chunk)).is_some() {
                        events.push(removed(chunk, Medium::Cpu));
                    }
                }
            }
            _ => return false,
        }
        self.announce(events);
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
        let mut promoted = Vec::new();
        if reads_cache {
            served.gpu_tokens = self.gpu_hit(&hashes, served.prompt_tokens);
            promoted = self.load(&hashes, params, &mut served);
        }
        self.allocate(prompt, &hashes, &served);
        self.announce(promoted);
        served.stored_tokens = self.store(&hashes, params, served.prompt_tokens);
        served
    }

    /// Tokens of the leading blocks in GPU memory. The hit ends before the last prompt token: that
    /// one has to be computed.
    fn gpu_hit(&self, hashes: &[BlockHash], prompt_tokens: usize) -> usize {
        let block = self.geometry.block_size;
        let most = prompt_tokens.saturating_sub(1) / block;
        hashes
            .iter()
            .take(most)
            .take_while(|hash| self.gpu.holds(hash))
            .count()
            * block
    }

    /// The events of what was promoted into the primary tier.
    fn load(&mut self, hashes: &[BlockHash], params: &Params, served: &mut Served) -> Vec<Event> {
        let chunk = self.geometry.chunk();
        let cap = params.max_load_tokens.unwrap_or(u128::MAX);
        let most = (served.gpu_tokens as u128).saturating_add(cap);
        let limit = most.min(served.prompt_tokens as u128) as usize / chunk * chunk;
        if limit.saturating_sub(served.gpu_tokens) < chunk {
            return Vec::new();
        }
        let mut position = served.gpu_tokens;
        let mut loaded = BTreeMap::new();
        let mut found = Vec::new();
        let per_chunk = self.geometry.blocks_per_chunk;
        for index in served.gpu_tokens / chunk..limit / chunk {
            let chunk_hashes = &hashes[index * per_chunk..(index + 1) * per_chunk];
            let Some(tier) = self.holder(key(chunk_hashes), params) else {
                break;
            };
            let end = (index + 1) * chunk;
            *loaded.entry(tier.to_owned()).or_insert(0) += end - position;
            position = end;
            found.push(chunk_hashes.to_vec());
        }
        if position - served.gpu_tokens < chunk {
            return Vec::new();
        }
        served.loaded_tokens = position - served.gpu_tokens;
        served.loaded_by_tier = loaded;
        self.keep_in_cpu(found).1
    }

    /// The tier that a chunk would come from: the primary one is asked first, whatever the filter.
    fn holder(&self, key: &BlockHash, params: &Params) -> Option<&str> {
        if self.cpu.holds(key) {
            return Some(CPU);
        }
        self.secondary
            .iter()
            .find(|tier| params.load_tiers.allows(&tier.kind) && tier.chunks.holds(key))
            .map(|tier| tier.kind.name.as_str())
    }

    /// Everything behind the GPU hit takes new blocks, also what has a copy elsewhere on the GPU.
    fn allocate(&mut self, prompt: &Prompt, hashes: &[BlockHash], served: &Served) {
        let block = self.geometry.block_size;
        let hit = served.gpu_tokens / block;
        let loaded = hit + served.loaded_tokens / block;
        for hash in hashes[..hit].iter().rev() {
            self.gpu.touch(hash);
        }
        let mut events = Vec::new();
        if std::mem::take(&mut self.cleared) {
            events.push(Event::AllCleared);
        }
        events.extend(self.evict_for(hashes.len() - hit));
        // The end of a prompt is freed, and so evicted, first.
        for hash in hashes[hit..].iter().rev() {
            self.gpu.insert(*hash);
        }
        for range in [hit..loaded, loaded..hashes.len()] {
            if !range.is_empty() {
                events.push(self.stored(prompt, hashes, range));
            }
        }
        self.announce(events);
    }

    fn evict_for(&mut self, blocks: usize) -> Vec<Event> {
        let evicted = self.gpu.make_room(blocks).into_iter();
        evicted
            .map(|hash| removed(vec![hash], Medium::Gpu))
            .collect()
    }

    /// Tokens newly stored. Only whole chunks of the prompt, up to the cap; what the primary tier
    /// takes goes on to the secondary ones.
    fn store(&mut self, hashes: &[BlockHash], params: &Params, prompt_tokens: usize) -> usize {
        let cap = params.max_offload_tokens.unwrap_or(u128::MAX);
        let offloadable = cap.min(prompt_tokens as u128) as usize;
        let chunks = self.chunks(hashes, 0..offloadable / self.geometry.block_size);
        let (stored, events) = self.keep_in_cpu(chunks);
        self.announce(events);
        let mut events = Vec::new();
        for tier in self
            .secondary
            .iter_mut()
            .filter(|tier| tier.kind.medium.is_some())
        {
            for chunk in &stored {
                if tier.chunks.insert(chunk.clone()) {
                    let medium = tier.kind.announced_as();
                    events.extend(medium.map(|medium| placeholder(chunk.clone(), medium)));
                }
            }
        }
        self.announce(events);
        stored.len() * self.geometry.chunk()
    }

    /// What of it is new, and the events: nothing if it does not fit.
    fn keep_in_cpu(&mut self, chunks: Vec<Chunk>) -> (Vec<Chunk>, Vec<Event>) {
        let keys: Vec<_> = chunks.iter().map(|chunk| *key(chunk)).collect();
        keys.iter().for_each(|key| self.cpu.touch(key));
        let mut new = chunks;
        new.retain(|chunk| !self.cpu.holds(key(chunk)));
        let Some(gone) = self.cpu.make_room(new.len(), &keys) else {
            return (Vec::new(), Vec::new());
        };
        let mut events = evicted(gone);
        for chunk in &new {
            self.cpu.insert(chunk.clone());
            events.push(placeholder(chunk.clone(), Medium::Cpu));
        }
        (new, events)
    }

    fn block_hashes(&self, prompt: &Prompt) -> Vec<BlockHash> {
        self.hasher.blocks(prompt, self.geometry.block_size)
    }

    /// The chunks whose last block is in the range.
    fn chunks(&self, hashes: &[BlockHash], range: Range<usize>) -> Vec<Chunk> {
        let whole = hashes.chunks_exact(self.geometry.blocks_per_chunk);
        let last = |index: usize| (index + 1) * self.geometry.blocks_per_chunk - 1;
        whole
            .enumerate()
            .filter(|(index, _)| range.contains(&last(*index)))
            .map(|(_, chunk)| chunk.to_vec())
            .collect()
    }

    /// The event of GPU blocks.
    fn stored(&self, prompt: &Prompt, hashes: &[BlockHash], range: Range<usize>) -> Event {
        let size = self.geometry.block_size;
        let adapter = prompt.adapter.as_ref();
        let extra_keys = range.clone().map(|block| {
            let name = adapter.map(|adapter| adapter.name.clone());
            let salt = prompt.salt.clone().filter(|_| block == 0);
            let keys: Vec<_> = name.into_iter().chain(salt).collect();
            (!keys.is_empty()).then_some(keys)
        });
        let content = Content {
            parent: range.start.checked_sub(1).map(|parent| hashes[parent]),
            tokens: prompt.tokens[range.start * size..range.end * size].to_vec(),
            block_size: size,
            adapter: adapter.map(|adapter| (adapter.id, adapter.name.clone())),
            extra_keys: Some(extra_keys.collect()),
            group: true,
        };
        Event::Stored {
            hashes: hashes[range].to_vec(),
            medium: Medium::Gpu,
            content: Some(content),
        }
    }
}

/// The hash that an offload tier finds a chunk by. Chunks are never empty.
fn key(chunk: &[BlockHash]) -> &BlockHash {
    &chunk[chunk.len() - 1]
}

fn placeholder(hashes: Chunk, medium: Medium) -> Event {
    Event::Stored {
        hashes,
        medium,
        content: None,
    }
}

fn removed(hashes: Chunk, medium: Medium) -> Event {
    Event::Removed { hashes, medium }
}

/// One event for all, as the offloading connector has it.
fn evicted(chunks: Vec<Chunk>) -> Vec<Event> {
    if chunks.is_empty() {
        return Vec::new();
    }
    vec![removed(chunks.concat(), Medium::Cpu)]
}
