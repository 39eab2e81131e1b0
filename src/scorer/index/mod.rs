//! The residency index: which endpoint holds which block in which tier, one for all VMs, in shared
//! data.
//!
//! One VM writes (the lease holder), all read. An endpoint's part is a snapshot and a log of what
//! happened since, so both sides move what changed and no more; each VM keeps replicas in its
//! memory and brings them up to date when it needs them. A writer goes on from what is stored: after
//! a reload or a change of the lease holder nothing is lost but what was not committed, and that is
//! fetched again, because the stream's position is committed with the blocks.
//!
//! | key below `selective-kv/1/index/<place>/` | value |
//! |---|---|
//! | `directory` | endpoints and their slots, tiers and their bits |
//! | `cursor` | the bridge's cursor, opaque |
//! | `<slot>/head` | what is valid of the pages, and the stream's state: the commit |
//! | `<slot>/snapshot<turn>/<page>`, `<slot>/log<turn>/<page>` | operations |
//!
//! Shared data takes 8 to 10 bytes a block of an endpoint for the snapshot, twice while a new one is
//! written, and at most 3 for the logs; with engine keys of their own 8 more a snapshot. A replica
//! takes 17 to 25 bytes a block of a VM's memory, a writer's with engine keys 13 to 25 more.

mod catch_up;
mod directory;
mod head;
mod held;
mod ingest;
mod ops;
mod pages;
mod places;
mod reasons;
mod replica;
mod session;
mod wire;

#[cfg(test)]
mod tests;

pub use head::Stream;
pub use held::{Held, MAX_TIERS};
pub use ingest::{Delivery, Ingested, Item, RequestKeys};
pub use pages::WriteError;
pub use places::{ABANDONED_MS, MAX_PLACES};
pub use reasons::Reasons;

use crate::contract::store::{CREATE, Store, StoreError, UpdateError, update};
use catch_up::Cached;
use directory::Directory;
use head::Head;
use pages::{Kind, Pages};
use replica::Replica;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Compare-and-swap tries for the directory and the cursor, which only one VM writes.
const TRIES: u32 = 4;

/// What one block may cost in shared data: two snapshots and the logs.
const BLOCK_BYTES: u64 = 24;
/// The same with engine keys.
const BRIDGED_BLOCK_BYTES: u64 = 40;
/// What an endpoint costs beside its blocks: head, stamps, the least logs.
const ENDPOINT_BYTES: u64 = 128 * 1024;

/// Bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Slots, those of shared tiers included.
    pub max_endpoints: u16,
    /// Oldest go first.
    pub max_blocks_per_endpoint: u32,
    /// Of shared data, in all; endpoints share it evenly.
    pub max_index_bytes: u64,
    /// Of this VM's memory.
    pub max_cache_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_endpoints: 256,
            max_blocks_per_endpoint: 262_144,
            max_index_bytes: 256 * 1024 * 1024,
            max_cache_bytes: 128 * 1024 * 1024,
        }
    }
}

/// What an index is made for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// The scorer's name: it owns the index.
    pub scorer: String,
    /// Engine keys are not the request's own: they are bridged by tokens and parents (`fnv64a_cbor`).
    pub bridged: bool,
    /// Tokens a block.
    pub block_size: u32,
    /// Of all that request keys depend on (algorithm, seed, block size …). Blocks of another one do
    /// not count, and a writer with another one starts afresh.
    pub fingerprint: u64,
    /// Tiers, without `@…`, that are one for all endpoints of a group.
    pub shared_tiers: Vec<String>,
    /// An endpoint not heard of for longer has no evidence.
    pub max_silence_ms: u64,
    /// A random number, so that nobody can choose keys that collide in a table.
    pub seed: u64,
    pub limits: Limits,
}

/// Why nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexError {
    /// Another VM writes this index now.
    Superseded,
    /// Raw proxy-wasm status.
    Host(u32),
    /// [`MAX_PLACES`] other scorers have an index in this store.
    NoPlace,
    /// [`Limits::max_endpoints`].
    TooManyEndpoints,
    /// A cursor of more than [`MAX_CURSOR_BYTES`], or a value of the store that makes no sense.
    Invalid,
}

impl IndexError {
    /// The `kind` label of a problem counter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Superseded => "index_superseded",
            Self::Host(_) => "index_host",
            Self::NoPlace => "index_no_place",
            Self::TooManyEndpoints => "index_endpoints",
            Self::Invalid => "index_invalid",
        }
    }
}

impl From<UpdateError> for IndexError {
    fn from(e: UpdateError) -> Self {
        match e {
            UpdateError::Contended => Self::Superseded,
            UpdateError::Host(status) => Self::Host(status),
        }
    }
}

impl From<StoreError> for IndexError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::CasMismatch => Self::Superseded,
            StoreError::Host(status) => Self::Host(status),
        }
    }
}

impl From<WriteError> for IndexError {
    fn from(e: WriteError) -> Self {
        match e {
            WriteError::Superseded => Self::Superseded,
            WriteError::Host(status) => Self::Host(status),
        }
    }
}

/// Why an endpoint cannot be looked up now: no evidence, not an empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotReady {
    /// Nothing is known of it.
    Unknown,
    /// Neither event nor heartbeat for too long.
    Silent,
    /// Its news is more than the budget allows to move; [`Index::view`] with a larger one, from
    /// the timer, brings it in.
    Behind,
    /// It does not fit into this VM's memory.
    TooLarge,
    /// Raw proxy-wasm status.
    Host(u32),
}

impl NotReady {
    /// A counter's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown_endpoint",
            Self::Silent => "silent",
            Self::Behind => "behind",
            Self::TooLarge => "too_large",
            Self::Host(_) => "host",
        }
    }
}

/// An endpoint that is up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    slot: u16,
    shared: Option<u16>,
    /// Why it is a lower bound, as far as the index knows.
    pub reasons: Reasons,
}

/// Where an endpoint holds blocks.
#[derive(Clone, Debug)]
pub struct Residency<'a> {
    own: &'a Replica,
    shared: Option<&'a Replica>,
    /// Where the next blocks are looked for first.
    own_next: Cell<usize>,
    shared_next: Cell<usize>,
}

impl Residency<'_> {
    /// By request key. Quick if keys are asked for in the order of a prompt.
    #[inline]
    #[must_use]
    pub fn held(&self, request: u64) -> Held {
        let mut held = self.own.held(request, &self.own_next);
        if let Some(shared) = self.shared {
            held.external |= shared.held(request, &self.shared_next).external;
        }
        held
    }
}

/// Longest cursor, in bytes.
pub const MAX_CURSOR_BYTES: usize = 1024;

/// The index as one VM sees it.
#[derive(Debug)]
pub struct Index {
    params: Params,
    /// Prefix of all keys, once it is known.
    place: Option<String>,
    writing: bool,
    /// Of this VM as writer. A slot's head says which writer's it is.
    term: u64,
    /// The directory with its version.
    directory: Option<(u32, Directory)>,
    replicas: BTreeMap<u16, Cached>,
    /// Counts uses of replicas.
    uses: u64,
    moved: u64,
    /// Bytes of log before a snapshot ends it, at least.
    min_log: u64,
}

impl Index {
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            params,
            place: None,
            writing: false,
            term: 0,
            directory: None,
            replicas: BTreeMap::new(),
            uses: 0,
            moved: 0,
            min_log: session::MIN_LOG,
        }
    }

    /// This VM writes from now on: to be called when it has taken the lease, and from time to time
    /// while it holds it (it says that the index is in use).
    ///
    /// # Errors
    /// [`IndexError::NoPlace`], [`IndexError::Host`]; it does not write then.
    pub fn take_over(&mut self, store: &dyn Store, now_ms: u64) -> Result<(), IndexError> {
        let place = places::claim(store, &self.params.scorer, now_ms)?;
        let place = place.ok_or(IndexError::NoPlace)?;
        if self.writing && self.place.as_ref() == Some(&place) {
            return Ok(());
        }
        self.step_down();
        self.place = Some(place);
        self.own_directory(store, now_ms)?;
        self.writing = true;
        Ok(())
    }

    /// This VM only reads from now on.
    pub fn step_down(&mut self) {
        self.writing = false;
        self.directory = None;
        // A writer's replicas know more than a reader's.
        if self.params.bridged {
            self.replicas.clear();
        }
    }

    /// Bytes of this VM's memory that replicas take.
    #[must_use]
    pub fn memory(&self) -> usize {
        let all = self.replicas.values().map(|c| c.replica.memory());
        all.fold(0, usize::saturating_add)
    }

    /// Bytes of values moved out of the store for replicas, ever.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// External tiers by bit, as evidence names them.
    #[must_use]
    pub fn tiers(&self) -> &[String] {
        match &self.directory {
            Some((_, directory)) => &directory.tiers,
            None => &[],
        }
    }

    /// Endpoints with a slot.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        let slots = self.directory.iter().flat_map(|(_, d)| d.slots.values());
        slots
            .map(|owner| owner.endpoint.as_str())
            .filter(|endpoint| !endpoint.starts_with(SHARED))
    }

    /// The bridge's cursor, to be fetched from; `None` if there is none yet.
    ///
    /// # Errors
    /// [`IndexError::Host`].
    pub fn cursor(&self, store: &dyn Store) -> Result<Option<Vec<u8>>, IndexError> {
        let Some(place) = &self.place else {
            return Ok(None);
        };
        let value = store.get(&format!("{place}/cursor"))?;
        Ok(value.map(|v| v.value).filter(|v| !v.is_empty()))
    }

    /// To be set once everything up to the cursor is ingested.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn set_cursor(&mut self, store: &dyn Store, cursor: &[u8]) -> Result<(), IndexError> {
        let place = self.written_place()?;
        if cursor.len() > MAX_CURSOR_BYTES {
            return Err(IndexError::Invalid);
        }
        let key = format!("{place}/cursor");
        update(store, &key, TRIES, &mut |_| Some(cursor.to_vec()))?;
        Ok(())
    }

    /// Brings an endpoint up to date, moving at most `budget` bytes (what is moved is taken off).
    /// The directory and the heads, some hundred bytes an endpoint, do not count.
    ///
    /// # Errors
    /// [`NotReady`].
    pub fn view(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        now_ms: u64,
        budget: &mut u64,
    ) -> Result<View, NotReady> {
        self.read_directory(store)?;
        let (_, directory) = self.directory.as_ref().ok_or(NotReady::Unknown)?;
        let (slot, owner) = directory.slot(endpoint).ok_or(NotReady::Unknown)?;
        let shared_name = shared_name(&owner.group);
        let shared = directory.slot(&shared_name).map(|(slot, _)| slot);
        let stream = self.refresh(store, slot, endpoint, Some(now_ms), budget)?;
        let mut reasons = stream.reasons;
        if let Some(shared) = shared {
            reasons |= self
                .refresh(store, shared, &shared_name, None, budget)?
                .reasons;
        }
        self.make_room(slot, shared);
        if !self.replicas.contains_key(&slot) {
            return Err(NotReady::TooLarge);
        }
        Ok(View {
            slot,
            shared,
            reasons,
        })
    }

    /// `None` if other endpoints have pushed it out of this VM's memory since.
    #[must_use]
    pub fn residency(&self, view: &View) -> Option<Residency<'_>> {
        let replica = |slot: u16| self.replicas.get(&slot).map(|c| &c.replica);
        let shared = match view.shared {
            None => None,
            Some(slot) => Some(replica(slot)?),
        };
        let own = replica(view.slot)?;
        Some(Residency {
            own,
            shared,
            own_next: Cell::new(0),
            shared_next: Cell::new(0),
        })
    }

    fn written_place(&self) -> Result<&str, IndexError> {
        match &self.place {
            Some(place) if self.writing => Ok(place),
            _ => Err(IndexError::Superseded),
        }
    }

    /// Makes room in this VM's memory, the longest unused first. The two slots in use stay, unless
    /// they alone are too much.
    fn make_room(&mut self, slot: u16, shared: Option<u16>) {
        let max = self.params.limits.max_cache_bytes;
        while self.memory() > max {
            let others = self.replicas.iter();
            let oldest = others
                .filter(|(s, _)| **s != slot && Some(**s) != shared)
                .min_by_key(|(_, cached)| cached.used)
                .map(|(s, _)| *s);
            match oldest {
                Some(oldest) => self.replicas.remove(&oldest),
                None => {
                    self.replicas.clear();
                    return;
                }
            };
        }
    }

    /// Blocks an endpoint may have.
    fn block_limit(&self) -> u32 {
        let limits = &self.params.limits;
        let slots = self.directory.as_ref().map_or(1, |(_, d)| d.slots.len());
        let share = limits
            .max_index_bytes
            .checked_div(slots.max(1) as u64)
            .unwrap_or(0)
            .saturating_sub(ENDPOINT_BYTES);
        let blocks = if self.params.bridged {
            share / BRIDGED_BLOCK_BYTES
        } else {
            share / BLOCK_BYTES
        };
        u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .clamp(1, limits.max_blocks_per_endpoint.max(1))
    }
}

/// Begins the name of the slot that holds a group's shared tiers; no endpoint's name does.
const SHARED: &str = "*";

fn shared_name(group: &str) -> String {
    format!("{SHARED}{group}")
}

// The directory.
impl Index {
    fn directory_key(&self) -> Option<String> {
        self.place
            .as_ref()
            .map(|place| format!("{place}/directory"))
    }

    /// For a reader: as it is now.
    fn read_directory(&mut self, store: &dyn Store) -> Result<(), NotReady> {
        let failed = |e| match e {
            UpdateError::Host(status) => NotReady::Host(status),
            UpdateError::Contended => NotReady::Unknown,
        };
        if self.place.is_none() {
            self.place = places::find(store, &self.params.scorer).map_err(failed)?;
        }
        let Some(key) = self.directory_key() else {
            return Err(NotReady::Unknown);
        };
        let value = match store.get(&key) {
            Ok(value) => value,
            Err(StoreError::Host(status)) => return Err(NotReady::Host(status)),
            Err(StoreError::CasMismatch) => None,
        };
        let known = self.directory.as_ref().map(|(cas, _)| *cas);
        match value {
            Some(value) if Some(value.cas) == known => {}
            Some(value) => {
                self.directory = Directory::decode(&value.value)
                    .filter(|d| d.scorer == self.params.scorer)
                    .map(|d| (value.cas, d));
            }
            None => self.directory = None,
        }
        if self.directory.is_none() && !self.writing {
            // Its place may be another scorer's by now.
            self.place = None;
        }
        Ok(())
    }

    /// For a writer that takes over: another scorer's index is cleared away.
    fn own_directory(&mut self, store: &dyn Store, now_ms: u64) -> Result<(), IndexError> {
        let key = self.directory_key().ok_or(IndexError::Superseded)?;
        let old = store.get(&key)?.map(|v| v.value).unwrap_or_default();
        let old = Directory::decode(&old).unwrap_or_default();
        // The time makes it higher than any before even if the directory was lost.
        self.term = old.term.saturating_add(1).max(now_ms);
        let term = self.term;
        if old.scorer == self.params.scorer {
            return self.change_directory(store, &mut |directory| directory.term = term);
        }
        for slot in old.slots.keys() {
            self.clear_slot(store, *slot)?;
        }
        let scorer = self.params.scorer.clone();
        let own = Directory {
            scorer,
            term,
            ..Directory::default()
        };
        update(store, &key, TRIES, &mut |_| Some(own.encode()))?;
        self.change_directory(store, &mut |_| {})
    }

    /// Changes the stored directory and remembers it.
    fn change_directory(
        &mut self,
        store: &dyn Store,
        change: &mut dyn FnMut(&mut Directory),
    ) -> Result<(), IndexError> {
        let key = self.directory_key().ok_or(IndexError::Superseded)?;
        let scorer = &self.params.scorer;
        let mut ours = true;
        update(store, &key, TRIES, &mut |old| {
            let mut directory = old.and_then(Directory::decode).unwrap_or_default();
            ours = directory.scorer == *scorer;
            let before = directory.clone();
            change(&mut directory);
            (ours && directory != before).then(|| directory.encode())
        })?;
        if !ours {
            return Err(IndexError::Superseded);
        }
        let value = store.get(&key)?.ok_or(IndexError::Invalid)?;
        let directory = Directory::decode(&value.value).ok_or(IndexError::Invalid)?;
        self.directory = Some((value.cas, directory));
        Ok(())
    }

    /// The endpoint's slot; a new endpoint gets one.
    fn own_slot(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        group: &str,
    ) -> Result<u16, IndexError> {
        let known = |index: &Self| {
            let (_, directory) = index.directory.as_ref()?;
            let (slot, owner) = directory.slot(endpoint)?;
            (owner.group == group).then_some(slot)
        };
        if let Some(slot) = known(self) {
            return Ok(slot);
        }
        let max = self.params.limits.max_endpoints;
        self.change_directory(store, &mut |directory| {
            let slot = match directory.slot(endpoint) {
                Some((slot, _)) => Some(slot),
                None => directory.free_slot(max),
            };
            if let Some(slot) = slot {
                let owner = directory::Owner {
                    endpoint: endpoint.to_owned(),
                    group: group.to_owned(),
                };
                directory.slots.insert(slot, owner);
            }
        })?;
        known(self).ok_or(IndexError::TooManyEndpoints)
    }

    /// The tier's bit; a new tier gets one, if there is one left.
    fn own_tier(&mut self, store: &dyn Store, tier: &str) -> Result<Option<u16>, IndexError> {
        let known = |index: &Self| index.directory.as_ref().and_then(|(_, d)| d.tier(tier));
        if known(self).is_none() && self.tiers().len() < MAX_TIERS {
            self.change_directory(store, &mut |directory| {
                if directory.tier(tier).is_none() {
                    directory.add_tier(tier);
                }
            })?;
        }
        Ok(known(self))
    }

    /// Gives up the slots of endpoints that are not wanted any more, and their memory.
    ///
    /// # Errors
    /// [`IndexError`]; what is left is given up with the next call.
    pub fn retain(
        &mut self,
        store: &dyn Store,
        keep: &dyn Fn(&str) -> bool,
    ) -> Result<(), IndexError> {
        self.written_place()?;
        let Some((_, directory)) = &self.directory else {
            return Ok(());
        };
        let owners = directory.slots.iter();
        let kept: Vec<&str> = owners
            .clone()
            .filter(|(_, o)| !o.endpoint.starts_with(SHARED) && keep(&o.endpoint))
            .map(|(_, o)| o.group.as_str())
            .collect();
        let gone: Vec<u16> = owners
            .filter(|(_, o)| match o.endpoint.starts_with(SHARED) {
                // The last endpoint of a group takes the group's shared tiers along.
                true => !kept.contains(&o.group.as_str()),
                false => !keep(&o.endpoint),
            })
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            self.clear_slot(store, slot)?;
            self.change_directory(store, &mut |directory| {
                directory.slots.remove(&slot);
            })?;
        }
        Ok(())
    }

    /// Empties a slot's pages and marks its head as nobody's. Term and generation go on, so that
    /// no late reader or writer takes what follows for what was.
    fn clear_slot(&mut self, store: &dyn Store, slot: u16) -> Result<(), IndexError> {
        self.replicas.remove(&slot);
        let place = self.place.as_ref().ok_or(IndexError::Superseded)?;
        let pages = Pages::new(place, slot);
        let value = store.get(&pages.head_key())?;
        let cas = value.as_ref().map_or(CREATE, |v| v.cas);
        let old = value.and_then(|v| Head::decode(&v.value));
        let old = old.unwrap_or_default();
        if old.term > self.term {
            return Err(IndexError::Superseded);
        }
        let new = Head {
            term: self.term,
            generation: old.generation.saturating_add(1),
            ..Head::default()
        };
        store.set(&pages.head_key(), &new.encode(), cas)?;
        let by = (new.term, old.generation);
        pages.blank(store, Kind::Snapshot, by, (0, old.snapshot_len))?;
        pages.blank(store, Kind::Log, by, (0, old.log_len))?;
        if let Some(len) = old.previous_log_len {
            pages.blank(store, Kind::Log, (new.term, new.generation), (0, len))?;
        }
        Ok(())
    }
}
