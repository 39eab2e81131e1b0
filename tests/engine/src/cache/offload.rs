//! One tier outside the GPU: whole chunks by the hash of their last block, the least recently used ones
//! evicted first.

use crate::hashing::BlockHash;
use std::collections::{BTreeMap, HashMap};

/// The hashes of a chunk's blocks: events name them all, and the last one is its key.
pub type Chunk = Vec<BlockHash>;

#[derive(Clone, Debug, Default)]
pub struct Offload {
    /// Chunks; `None` is no limit.
    capacity: Option<usize>,
    clock: u64,
    by_age: BTreeMap<u64, Chunk>,
    ages: HashMap<BlockHash, u64>,
}

impl Offload {
    pub fn new(capacity: Option<usize>) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub fn holds(&self, key: &BlockHash) -> bool {
        self.ages.contains_key(key)
    }

    /// Used now.
    pub fn touch(&mut self, key: &BlockHash) {
        if let Some(chunk) = self.remove(key) {
            self.insert(chunk);
        }
    }

    /// False if it was there.
    pub fn insert(&mut self, chunk: Chunk) -> bool {
        let Some(key) = chunk.last().copied().filter(|key| !self.holds(key)) else {
            return false;
        };
        self.clock += 1;
        self.by_age.insert(self.clock, chunk);
        self.ages.insert(key, self.clock);
        true
    }

    pub fn remove(&mut self, key: &BlockHash) -> Option<Chunk> {
        let age = self.ages.remove(key)?;
        self.by_age.remove(&age)
    }

    /// Evicts until `chunks` more fit, sparing those named; `None`, and nothing evicted, if they cannot.
    pub fn make_room(&mut self, chunks: usize, spared: &[BlockHash]) -> Option<Vec<Chunk>> {
        let capacity = self.capacity.unwrap_or(usize::MAX);
        let excess = self
            .by_age
            .len()
            .saturating_add(chunks)
            .saturating_sub(capacity);
        let keys = self
            .by_age
            .values()
            .filter_map(|chunk| chunk.last().copied());
        let oldest: Vec<_> = keys
            .filter(|key| !spared.contains(key))
            .take(excess)
            .collect();
        if oldest.len() < excess {
            return None;
        }
        Some(oldest.iter().filter_map(|key| self.remove(key)).collect())
    }

    /// Empties it, and says what went.
    pub fn clear(&mut self) -> Vec<Chunk> {
        self.ages.clear();
        std::mem::take(&mut self.by_age).into_values().collect()
    }
}
