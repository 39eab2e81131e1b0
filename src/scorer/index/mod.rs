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
//! Directory, cursor and heads carry the term of their writer, and a new writer puts its own on all
//! of them before it reads: what an old one, which does not know yet, still writes then fails.
//!
//! Shared data takes 8 to 10 bytes a block of an endpoint for the snapshot, twice while a new one is
//! written, and at most 3 for the logs; with engine keys of their own 8 more a snapshot. A replica
//! takes 17 to 25 bytes a block of a VM's memory, a writer's with engine keys 13 to 25 more.

mod blocks;
mod catch_up;
mod cursor;
mod delivery;
mod directory;
mod error;
mod head;
mod held;
mod ingest;
mod ops;
mod pages;
mod params;
mod places;
mod ranks;
mod reasons;
mod replica;
mod session;
mod slots;
mod stream;
mod view;
mod wire;

#[cfg(test)]
pub(super) mod tests;

pub use cursor::MAX_CURSOR_BYTES;
pub use delivery::{Delivery, Ingested, Item, RequestKeys};
pub use error::{IndexError, NotReady};
pub use head::Stream;
pub use held::{Held, MAX_TIERS, is_primary};
pub use params::{Limits, Params};
pub use places::{ABANDONED_MS, MAX_PLACES};
pub use ranks::{endpoint_of, publisher};
pub use reasons::Reasons;
pub use view::{Found, Residency, View};

use crate::contract::store::Store;
use crate::sorted::SortedMap;
use catch_up::Cached;
use directory::Listed;

/// Compare-and-swap tries for what only one VM writes.
const TRIES: u32 = 4;

/// The index as one VM sees it.
#[derive(Debug)]
pub struct Index {
    params: Params,
    /// Of everything that a stored block's meaning depends on.
    fingerprint: u64,
    /// Prefix of all keys, once it is known.
    place: Option<String>,
    writing: bool,
    /// Of this VM as writer. A slot's head says which writer's it is.
    term: u64,
    directory: Option<Listed>,
    replicas: SortedMap<u16, Cached>,
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
            fingerprint: params.whole_fingerprint(),
            params,
            place: None,
            writing: false,
            term: 0,
            directory: None,
            replicas: SortedMap::new(),
            uses: 0,
            moved: 0,
            min_log: session::MIN_LOG,
        }
    }

    /// This VM writes from now on: to be called when it has taken the lease, and from time to time
    /// while it holds it (it says that the index is in use).
    ///
    /// # Errors
    /// [`IndexError::NoPlace`], [`IndexError::Host`], [`IndexError::Superseded`] if another VM takes
    /// over at the same time; it does not write then.
    pub fn take_over(&mut self, store: &dyn Store, now_ms: u64) -> Result<(), IndexError> {
        let place = places::claim(store, &self.params.scorer, now_ms)?;
        let place = place.ok_or(IndexError::NoPlace)?;
        if self.writing && self.place.as_ref() == Some(&place) {
            return Ok(());
        }
        self.step_down();
        self.place = Some(place);
        self.own_directory(store, now_ms)?;
        self.claim_cursor(store)?;
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

    /// [`Index::take_over`] was called, and nobody else wrote since, as far as this VM knows.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.writing
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
            Some(listed) => &listed.directory.tiers,
            None => &[],
        }
    }

    /// Endpoints with a slot, each once.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        let names = self.publishers().map(endpoint_of);
        // Ranks of one endpoint follow each other.
        let mut last = None;
        names.filter(move |name| last.replace(*name) != Some(*name))
    }

    /// Names with a slot: endpoints, ranks of endpoints, publishers of shared tiers. Ascending.
    pub fn publishers(&self) -> impl Iterator<Item = &str> {
        let listed = self.directory.iter().flat_map(|l| l.names());
        listed.filter(|name| !ranks::is_shared(name))
    }

    fn written_place(&self) -> Result<&str, IndexError> {
        match &self.place {
            Some(place) if self.writing => Ok(place),
            _ => Err(IndexError::Superseded),
        }
    }
}
