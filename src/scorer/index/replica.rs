//! One endpoint's blocks in this VM's memory, built from the stored operations.
//!
//! Every VM that applies the same operations numbers the entries alike. Entries stay in the order
//! they came, which is the order in which the oldest give way.

use super::held::Held;
use super::ops::{Broken, Key, Log, Op, Ops};
use hashbrown::HashTable;
use std::cell::Cell;
use std::collections::VecDeque;

/// One endpoint's blocks.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    bridged: bool,
    seed: u64,
    /// By entry number: request key and packed state.
    keys: Vec<u64>,
    states: Vec<u32>,
    /// Entry numbers by request key. Two engine keys may stand for one request key.
    by_request: HashTable<u32>,
    /// Of the writer, if the engine's keys are not the request's.
    engine: Option<Engine>,
    /// Entries that are there; those among them that are in no tier.
    alive: u32,
    ghosts: u32,
    /// No entry before this one is there.
    oldest: usize,
    /// Two entries may have one request key.
    twins: bool,
}

#[derive(Clone, Debug, Default)]
struct Engine {
    keys: Vec<u64>,
    by_engine: HashTable<u32>,
    /// Entries that went out of every tier, in that order; some may be back.
    ghosts: VecDeque<u32>,
}

/// Spreads keys over a table. Prompts choose the keys, so the seed must not be guessable.
fn hash(seed: u64, key: u64) -> u64 {
    // The constant is 2⁶⁴ / φ, an odd number without a pattern.
    let wide = u128::from(key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Grows by an eighth: doubling would leave half of a large index empty.
fn push<T>(list: &mut Vec<T>, value: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(64));
    }
    list.push(value);
}

impl Replica {
    /// `bridged`: entries have an engine key of their own; `writer`: which is kept.
    pub fn new(bridged: bool, writer: bool, seed: u64) -> Self {
        Self {
            bridged,
            seed,
            keys: Vec::new(),
            states: Vec::new(),
            by_request: HashTable::new(),
            engine: (bridged && writer).then(Engine::default),
            alive: 0,
            ghosts: 0,
            oldest: 0,
            twins: false,
        }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let list = |n: usize, size: usize| n.saturating_mul(size);
        let engine = self.engine.as_ref().map_or(0, |engine| {
            list(engine.keys.capacity(), 8)
                .saturating_add(engine.by_engine.allocation_size())
                .saturating_add(list(engine.ghosts.capacity(), 4))
        });
        list(self.keys.capacity(), 8)
            .saturating_add(list(self.states.capacity(), 4))
            .saturating_add(self.by_request.allocation_size())
            .saturating_add(engine)
            .saturating_add(size_of::<Self>())
    }

    /// Entries that are there, those in no tier included.
    pub fn alive(&self) -> u32 {
        self.alive
    }

    /// Blocks that are in a tier.
    pub fn blocks(&self) -> u32 {
        self.alive.saturating_sub(self.ghosts)
    }

    /// Makes room for `n` entries at once.
    pub fn reserve(&mut self, n: usize) {
        self.keys.reserve_exact(n);
        self.states.reserve_exact(n);
        // Nothing is rehashed: tables are only made larger while they are empty.
        if self.by_request.is_empty() {
            self.by_request.reserve(n, |_| 0);
        }
        if let Some(engine) = &mut self.engine {
            engine.keys.reserve_exact(n);
            if engine.by_engine.is_empty() {
                engine.by_engine.reserve(n, |_| 0);
            }
        }
    }

    /// Where the endpoint holds the block of this request key. A prompt's blocks mostly came one
    /// after the other, so `next`, the entry behind the last one found, is tried before the table.
    #[inline]
    pub fn held(&self, request: u64, next: &Cell<usize>) -> Held {
        let at = next.get();
        if !self.twins
            && self.keys.get(at) == Some(&request)
            && let Some(held) = self.state(at)
        {
            next.set(at.saturating_add(1));
            return held;
        }
        self.look_up(request, next)
    }

    fn look_up(&self, request: u64, next: &Cell<usize>) -> Held {
        let mut all = Held::NOWHERE;
        for id in self.by_request.iter_hash(hash(self.seed, request)) {
            let id = *id as usize;
            if self.keys.get(id) == Some(&request) {
                let held = self.state(id).unwrap_or_default();
                next.set(id.saturating_add(1));
                all.gpu = all.gpu.saturating_add(held.gpu);
                all.external |= held.external;
            }
        }
        all
    }

    fn state(&self, id: usize) -> Option<Held> {
        Held::unpack(*self.states.get(id)?)
    }

    /// The entry of an engine key, with its state and request key.
    pub fn find(&self, engine: u64) -> Option<(u32, Held, u64)> {
        let h = hash(self.seed, engine);
        let id = match &self.engine {
            Some(bridge) => *bridge
                .by_engine
                .find(h, |id| bridge.keys.get(*id as usize) == Some(&engine))?,
            // A reader cannot tell, and does not ask.
            None if self.bridged => return None,
            None => *self
                .by_request
                .find(h, |id| self.keys.get(*id as usize) == Some(&engine))?,
        };
        let held = self.state(id as usize)?;
        Some((id, held, *self.keys.get(id as usize)?))
    }

    /// The next entry to give way: one that is in no tier, if there is one, else the oldest.
    pub fn first_to_go(&mut self) -> Option<(u32, Held)> {
        if let Some(engine) = &mut self.engine {
            while let Some(id) = engine.ghosts.pop_front() {
                let packed = self.states.get(id as usize).copied().unwrap_or(0);
                if Held::unpack(packed).is_some_and(Held::is_nowhere) {
                    return Some((id, Held::NOWHERE));
                }
            }
        }
        while let Some(packed) = self.states.get(self.oldest) {
            if let Some(held) = Held::unpack(*packed) {
                return Some((u32::try_from(self.oldest).ok()?, held));
            }
            self.oldest = self.oldest.saturating_add(1);
        }
        None
    }

    /// # Errors
    /// If the operation speaks of an entry that is not there.
    pub fn apply(&mut self, op: &Op<'_>) -> Result<(), Broken> {
        match *op {
            Op::New { held, keys } => keys.into_iter().try_for_each(|key| self.push(key, held)),
            Op::Set { id, held } => self.set(id, held),
            Op::Remove { id } => self.remove(id),
            Op::ClearGpu => self.clear_gpu(),
            Op::Reset => {
                *self = Self::new(self.bridged, self.engine.is_some(), self.seed);
                Ok(())
            }
        }
    }

    /// # Errors
    /// If the bytes are not operations on this state.
    pub fn apply_all(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        Ops::new(bytes, self.bridged).try_for_each(|op| self.apply(&op?))
    }

    pub fn push(&mut self, key: Key, held: Held) -> Result<(), Broken> {
        let id = u32::try_from(self.keys.len()).map_err(|_| Broken)?;
        if self.bridged && !self.twins {
            let h = hash(self.seed, key.request);
            let same = |id: &u32| self.keys.get(*id as usize) == Some(&key.request);
            self.twins = self.by_request.find(h, same).is_some();
        }
        push(&mut self.keys, key.request);
        push(&mut self.states, Held::pack(Some(held)));
        let (seed, keys) = (self.seed, &self.keys);
        let rehash = |id: &u32| hash(seed, keys.get(*id as usize).copied().unwrap_or(0));
        self.by_request
            .insert_unique(hash(seed, key.request), id, rehash);
        if let Some(engine) = &mut self.engine {
            push(&mut engine.keys, key.engine);
            let keys = &engine.keys;
            let rehash = |id: &u32| hash(seed, keys.get(*id as usize).copied().unwrap_or(0));
            engine
                .by_engine
                .insert_unique(hash(seed, key.engine), id, rehash);
            if held.is_nowhere() {
                engine.ghosts.push_back(id);
            }
        }
        self.alive = self.alive.saturating_add(1);
        if held.is_nowhere() {
            self.ghosts = self.ghosts.saturating_add(1);
        }
        Ok(())
    }

    pub fn set(&mut self, id: u32, held: Held) -> Result<(), Broken> {
        let old = self.state(id as usize).ok_or(Broken)?;
        let state = self.states.get_mut(id as usize).ok_or(Broken)?;
        *state = Held::pack(Some(held));
        match (old.is_nowhere(), held.is_nowhere()) {
            (false, true) => {
                self.ghosts = self.ghosts.saturating_add(1);
                if let Some(engine) = &mut self.engine {
                    engine.ghosts.push_back(id);
                }
            }
            (true, false) => self.ghosts = self.ghosts.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    pub fn remove(&mut self, id: u32) -> Result<(), Broken> {
        let old = self.state(id as usize).ok_or(Broken)?;
        let state = self.states.get_mut(id as usize).ok_or(Broken)?;
        *state = Held::pack(None);
        self.alive = self.alive.saturating_sub(1);
        if old.is_nowhere() {
            self.ghosts = self.ghosts.saturating_sub(1);
        }
        let seed = self.seed;
        let key = |keys: &[u64]| hash(seed, keys.get(id as usize).copied().unwrap_or(0));
        unlist(&mut self.by_request, key(&self.keys), id);
        if let Some(engine) = &mut self.engine {
            unlist(&mut engine.by_engine, key(&engine.keys), id);
        }
        Ok(())
    }

    pub fn clear_gpu(&mut self) -> Result<(), Broken> {
        for id in 0..u32::try_from(self.states.len()).map_err(|_| Broken)? {
            match self.state(id as usize) {
                Some(held) if held.gpu > 0 => {
                    let held = Held { gpu: 0, ..held };
                    // An engine's key stays known: its offload event may be on the way.
                    if held.is_nowhere() && !self.bridged {
                        self.remove(id)?;
                    } else {
                        self.set(id, held)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The entries that are there, in order.
    fn entries(&self) -> impl Iterator<Item = (Key, Held)> {
        let engine = self.engine.as_ref().map(|engine| engine.keys.as_slice());
        let keys = self.keys.iter().zip(&self.states).enumerate();
        keys.filter_map(move |(id, (request, packed))| {
            let engine = engine.and_then(|keys| keys.get(id)).unwrap_or(request);
            let key = Key {
                request: *request,
                engine: *engine,
            };
            Some((key, Held::unpack(*packed)?))
        })
    }

    /// Numbers the entries anew, without gaps. Part of what every VM does when a generation ends.
    pub fn compact(&mut self) -> Result<(), Broken> {
        if self.keys.len() == self.alive as usize {
            return Ok(());
        }
        let mut new = Self::new(self.bridged, self.engine.is_some(), self.seed);
        new.reserve(self.alive as usize);
        for (key, held) in self.entries() {
            new.push(key, held)?;
        }
        *self = new;
        Ok(())
    }

    /// The operations that build this state from nothing, numbered without gaps.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut log = Log::new(self.bridged);
        for (key, held) in self.entries() {
            log.push(key, held);
        }
        log.take()
    }
}

fn unlist(table: &mut HashTable<u32>, hash: u64, id: u32) {
    if let Ok(entry) = table.find_entry(hash, |other| *other == id) {
        entry.remove();
    }
}
