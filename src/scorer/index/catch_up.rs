//! Bringing a replica up to date with what is stored.

use super::head::{Head, Stream};
use super::pages::{Kind, Pages};
use super::replica::Replica;
use super::{Index, NotReady};
use crate::contract::store::{Store, StoreError};

/// Times a reader looks again if the pages changed under it.
const TRIES: u32 = 3;

/// A replica, and how far it is.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub endpoint: String,
    pub generation: u64,
    pub log_len: u64,
    pub replica: Replica,
    pub used: u64,
}

/// What has to be moved.
enum Plan {
    /// The log's rest.
    Rest,
    /// The rest of the log before, then this one.
    Turn { previous_len: u64 },
    /// Snapshot and log.
    All,
}

impl Plan {
    fn of(cached: Option<&Cached>, head: &Head) -> Self {
        let Some(cached) = cached.filter(|c| c.endpoint == head.endpoint) else {
            return Self::All;
        };
        if cached.generation == head.generation && cached.log_len <= head.log_len {
            return Self::Rest;
        }
        match head.previous_log_len {
            Some(previous_len)
                if cached.generation.checked_add(1) == Some(head.generation)
                    && cached.log_len <= previous_len =>
            {
                Self::Turn { previous_len }
            }
            _ => Self::All,
        }
    }

    fn bytes(&self, cached: Option<&Cached>, head: &Head) -> u64 {
        let at = cached.map_or(0, |c| c.log_len);
        match self {
            Self::Rest => head.log_len.saturating_sub(at),
            Self::Turn { previous_len } => {
                previous_len.saturating_sub(at).saturating_add(head.log_len)
            }
            Self::All => head.snapshot_len.saturating_add(head.log_len),
        }
    }
}

/// Why a replica is not up to date.
pub(super) enum Failed {
    Host(u32),
    /// More than the budget; the replica as it was.
    Budget(Option<Box<Cached>>),
    /// The pages are not what the head says: they changed, or are broken.
    Pages,
}

impl Index {
    pub(super) fn fresh_replica(&self) -> Replica {
        Replica::new(self.params.bridged, self.writing, self.params.seed)
    }

    /// `cached` with everything that the head speaks of.
    pub(super) fn catch_up(
        &mut self,
        store: &dyn Store,
        pages: &Pages,
        head: &Head,
        cached: Option<Cached>,
        budget: &mut u64,
    ) -> Result<Cached, Failed> {
        let plan = Plan::of(cached.as_ref(), head);
        let bytes = plan.bytes(cached.as_ref(), head);
        let Some(left) = budget.checked_sub(bytes) else {
            return Err(Failed::Budget(cached.map(Box::new)));
        };
        *budget = left;
        let mut moved = 0;
        let mut read = |kind, generation, from, to| match from < to {
            false => Ok(Vec::new()),
            true => pages
                .read(store, kind, generation, (from, to), &mut moved)
                .map_err(Failed::Host)?
                .ok_or(Failed::Pages),
        };
        let mut replica;
        let from;
        match (plan, cached) {
            (Plan::Rest, Some(cached)) => {
                (replica, from) = (cached.replica, cached.log_len);
            }
            (Plan::Turn { previous_len }, Some(cached)) => {
                (replica, from) = (cached.replica, 0);
                let rest = read(Kind::Log, cached.generation, cached.log_len, previous_len)?;
                replica.apply_all(&rest).map_err(|_| Failed::Pages)?;
                replica.compact().map_err(|_| Failed::Pages)?;
            }
            _ => {
                (replica, from) = (self.fresh_replica(), 0);
                let all = read(Kind::Snapshot, head.generation, 0, head.snapshot_len)?;
                replica.reserve(match self.params.bridged {
                    true => all.len() / 16,
                    false => all.len() / 8,
                });
                replica.apply_all(&all).map_err(|_| Failed::Pages)?;
            }
        }
        let rest = read(Kind::Log, head.generation, from, head.log_len)?;
        replica.apply_all(&rest).map_err(|_| Failed::Pages)?;
        self.moved = self.moved.saturating_add(moved);
        self.uses = self.uses.saturating_add(1);
        Ok(Cached {
            endpoint: head.endpoint.clone(),
            generation: head.generation,
            log_len: head.log_len,
            replica,
            used: self.uses,
        })
    }

    /// For a reader: the slot's replica as of now. With `now_ms`, a silent stream is not read.
    pub(super) fn refresh(
        &mut self,
        store: &dyn Store,
        slot: u16,
        endpoint: &str,
        now_ms: Option<u64>,
        budget: &mut u64,
    ) -> Result<Stream, NotReady> {
        let place = self.place.as_ref().ok_or(NotReady::Unknown)?;
        let pages = Pages::new(place, slot);
        let key = pages.head_key();
        for _ in 0..TRIES {
            let value = match store.get(&key) {
                Ok(value) => value.map(|v| v.value).unwrap_or_default(),
                Err(StoreError::Host(status)) => return Err(NotReady::Host(status)),
                Err(StoreError::CasMismatch) => return Err(NotReady::Unknown),
            };
            let head = Head::decode(&value)
                .filter(|h| h.endpoint == endpoint && h.fingerprint == self.fingerprint)
                .ok_or(NotReady::Unknown)?;
            let silence = now_ms.map(|now| now.saturating_sub(head.stream.heard_ms));
            if silence.is_some_and(|ms| ms > self.params.max_silence_ms) {
                return Err(NotReady::Silent);
            }
            let cached = self.replicas.remove(&slot);
            match self.catch_up(store, &pages, &head, cached, budget) {
                Ok(cached) => {
                    self.replicas.insert(slot, cached);
                    return Ok(head.stream);
                }
                Err(Failed::Host(status)) => return Err(NotReady::Host(status)),
                Err(Failed::Budget(cached)) => {
                    if let Some(cached) = cached {
                        self.replicas.insert(slot, *cached);
                    }
                    return Err(NotReady::Behind);
                }
                Err(Failed::Pages) => {}
            }
        }
        // It changes faster than it is read; the next call finds it.
        Err(NotReady::Behind)
    }
}
