//! The prefix cache in GPU memory: blocks by hash, the least recently used ones evicted first. A block
//! that is computed again while it is there becomes a second copy, as in vLLM's block pool.

use crate::hashing::BlockHash;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug, Default)]
pub struct Gpu {
    /// Blocks; `None` is no limit.
    capacity: Option<usize>,
    clock: u64,
    /// By age, oldest first.
    copies: BTreeMap<u64, BlockHash>,
    /// Ages of each block's copies.
    ages: HashMap<BlockHash, Vec<u64>>,
}

impl Gpu {
    pub fn new(capacity: Option<usize>) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub fn holds(&self, hash: &BlockHash) -> bool {
        self.ages.contains_key(hash)
    }

    pub fn insert(&mut self, hash: BlockHash) {
        self.clock += 1;
        self.copies.insert(self.clock, hash);
        self.ages.entry(hash).or_default().push(self.clock);
    }

    /// Used now: the first of its copies is the youngest.
    pub fn touch(&mut self, hash: &BlockHash) {
        if self.remove(hash) {
            self.insert(*hash);
        }
    }

    /// Takes one copy away; false if there is none.
    pub fn remove(&mut self, hash: &BlockHash) -> bool {
        let Some(ages) = self.ages.get_mut(hash) else {
            return false;
        };
        self.copies.remove(&ages.remove(0));
        if ages.is_empty() {
            self.ages.remove(hash);
        }
        true
    }

    /// Evicts until `blocks` more fit, and says what went.
    pub fn make_room(&mut self, blocks: usize) -> Vec<BlockHash> {
        let capacity = self.capacity.unwrap_or(usize::MAX);
        let mut evicted = Vec::new();
        while self.copies.len().saturating_add(blocks) > capacity {
            let Some((_, hash)) = self.copies.pop_first() else {
                break;
            };
            if let Some(ages) = self.ages.get_mut(&hash) {
                ages.remove(0);
                if ages.is_empty() {
                    self.ages.remove(&hash);
                }
            }
            evicted.push(hash);
        }
        evicted
    }

    pub fn clear(&mut self) {
        self.copies.clear();
        self.ages.clear();
    }
}
