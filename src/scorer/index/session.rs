//! The writer's work on one slot: opened from what is stored, committed with one write of the head.

use super::catch_up::{Cached, Failed};
use super::head::Head;
use super::ops::{Key, Log};
use super::pages::{Kind, Pages};
use super::reasons::Reasons;
use super::replica::Replica;
use super::{Held, Index, IndexError};
use crate::contract::store::{CREATE, Store};

/// The log is at least this long before a snapshot ends it, in bytes.
pub(super) const MIN_LOG: u64 = 32 * 1024;
/// Bytes of log for two entries before a snapshot ends it: with two snapshots of at most 10 bytes
/// an entry and two logs a block takes 23 bytes at most.
const LOG_FOR_TWO: u64 = 3;

/// A slot being written.
#[derive(Debug)]
pub(super) struct Session {
    slot: u16,
    pages: Pages,
    /// As stored, while the session goes; the stream is changed in place.
    pub head: Head,
    pub replica: Replica,
    log: Log,
    /// The stream's, as they were when the session began.
    reasons: Reasons,
    /// Blocks that had to give way.
    pub evicted: u32,
    limit: u32,
}

impl Index {
    /// Opens an endpoint's slot; the first time since this VM writes, the slot is claimed.
    pub(super) fn open(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        group: &str,
    ) -> Result<Session, IndexError> {
        let slot = self.own_slot(store, endpoint, group)?;
        let pages = Pages::new(self.written_place()?, slot);
        let cached = self.replicas.remove(&slot);
        let value = store.get(&pages.head_key())?;
        let cas = value.as_ref().map_or(CREATE, |v| v.cas);
        let head = value.and_then(|v| Head::decode(&v.value));
        let mut head = head.unwrap_or_default();
        let fits = head.endpoint == endpoint && head.fingerprint == self.fingerprint;
        if head.term > self.term {
            return Err(IndexError::Superseded);
        }
        if !fits {
            self.clear_slot(store, slot)?;
            return self.claim(store, slot, endpoint);
        }
        if head.term < self.term {
            head.term = self.term;
            store.set(&pages.head_key(), &head.encode(), cas)?;
        }
        let mut all = u64::MAX;
        let replica = match self.catch_up(store, &pages, &head, cached, &mut all) {
            Ok(cached) => cached.replica,
            Err(Failed::Host(status)) => return Err(IndexError::Host(status)),
            Err(Failed::Budget(_) | Failed::Pages) => {
                // Broken pages: what they said is lost, and evidence has to say so.
                let lost = head.stream.reasons | Reasons::GAP;
                let stream = head.stream;
                self.clear_slot(store, slot)?;
                let mut session = self.claim(store, slot, endpoint)?;
                session.head.stream = stream;
                session.head.stream.reasons = lost;
                return Ok(session);
            }
        };
        Ok(self.session(slot, pages, head, replica))
    }

    /// Claims a slot that was cleared.
    fn claim(
        &mut self,
        store: &dyn Store,
        slot: u16,
        endpoint: &str,
    ) -> Result<Session, IndexError> {
        let pages = Pages::new(self.written_place()?, slot);
        let value = store.get(&pages.head_key())?.ok_or(IndexError::Invalid)?;
        let old = Head::decode(&value.value).ok_or(IndexError::Invalid)?;
        let head = Head {
            endpoint: endpoint.to_owned(),
            fingerprint: self.fingerprint,
            ..old
        };
        store.set(&pages.head_key(), &head.encode(), value.cas)?;
        let replica = self.fresh_replica();
        Ok(self.session(slot, pages, head, replica))
    }

    fn block_limit(&self) -> u32 {
        let listed = self.directory.as_ref();
        let slots = listed.map_or(1, |listed| listed.directory.slots.len());
        self.params.block_limit(slots)
    }

    fn session(&self, slot: u16, pages: Pages, head: Head, replica: Replica) -> Session {
        Session {
            slot,
            pages,
            reasons: head.stream.reasons,
            head,
            replica,
            log: Log::new(self.params.bridged),
            evicted: 0,
            limit: self.block_limit(),
        }
    }

    /// Stores what the session did; nothing of it counts if this fails, and the slot is opened from
    /// what is stored again.
    pub(super) fn commit(
        &mut self,
        store: &dyn Store,
        mut session: Session,
    ) -> Result<(), IndexError> {
        session.trim();
        let pages = &session.pages;
        let head = &mut session.head;
        let value = store.get(&pages.head_key())?.ok_or(IndexError::Invalid)?;
        let term = Head::decode(&value.value).map(|head| head.term);
        if term != Some(head.term) {
            return Err(IndexError::Superseded);
        }
        let by = (head.term, head.generation);
        let old = head.clone();
        let new = session.log.take();
        let new_len = new.len() as u64;
        let limit =
            (u64::from(session.replica.alive()).saturating_mul(LOG_FOR_TWO) / 2).max(self.min_log);
        let end = head.log_len.saturating_add(new_len);
        let turn = end > limit && new_len > 0;
        // So much news that a reader is better off with the snapshot.
        let keep = !turn || new_len <= limit;
        if keep {
            pages.append(store, Kind::Log, by, head.log_len, &new)?;
            head.log_len = end;
        }
        if turn {
            session.replica.compact().map_err(|_| IndexError::Invalid)?;
            let snapshot = session.replica.snapshot();
            head.previous_log_len = keep.then_some(end);
            head.generation = head.generation.saturating_add(1);
            head.snapshot_len = snapshot.len() as u64;
            head.log_len = 0;
            let by = (head.term, head.generation);
            pages.append(store, Kind::Snapshot, by, 0, &snapshot)?;
        }
        head.blocks = session.replica.blocks().into();
        store.set(&pages.head_key(), &head.encode(), value.cas)?;
        if turn {
            // What is left there only takes room: a failure does no harm.
            let _ = pages.blank(store, Kind::Snapshot, by, (0, old.snapshot_len));
            if !keep {
                let _ = pages.blank(store, Kind::Log, by, (0, old.log_len));
            }
            if let Some(len) = old.previous_log_len {
                let by = (head.term, head.generation);
                let _ = pages.blank(store, Kind::Log, by, (0, len));
            }
        }
        self.uses = self.uses.saturating_add(1);
        let cached = Cached {
            endpoint: head.endpoint.clone(),
            generation: head.generation,
            log_len: head.log_len,
            replica: session.replica,
            used: self.uses,
        };
        self.replicas.insert(session.slot, cached);
        let slot = session.slot;
        self.make_room(&|other| other == slot);
        Ok(())
    }
}

/// A replica of this VM is never broken: `Err` of one cannot come up, and would only lose a change
/// that the next reload brings back.
impl Session {
    pub fn push(&mut self, key: Key, held: Held) {
        while self.replica.alive() >= self.limit {
            if !self.evict() {
                break;
            }
        }
        if self.replica.push(key, held).is_ok() {
            self.log.push(key, held);
        }
    }

    pub fn set(&mut self, id: u32, held: Held) {
        if self.replica.set(id, held).is_ok() {
            self.log.set(id, held);
        }
    }

    pub fn remove(&mut self, id: u32) {
        if self.replica.remove(id).is_ok() {
            self.log.remove(id);
        }
    }

    pub fn clear_gpu(&mut self) {
        if self.replica.clear_gpu().is_ok() {
            self.log.clear_gpu();
        }
    }

    pub fn reset(&mut self, fresh: Replica) {
        self.replica = fresh;
        self.log.reset();
    }

    /// There is something to be written.
    pub fn is_changed(&self) -> bool {
        self.log.len() > 0 || self.head.stream.reasons != self.reasons
    }

    /// The limit falls as endpoints come.
    fn trim(&mut self) {
        while self.replica.alive() > self.limit {
            if !self.evict() {
                break;
            }
        }
    }

    /// False if there is nothing left.
    fn evict(&mut self) -> bool {
        let Some((id, held)) = self.replica.first_to_go() else {
            return false;
        };
        if !held.is_nowhere() {
            self.evicted = self.evicted.saturating_add(1);
            self.head.stream.reasons |= Reasons::EVICTED;
        }
        self.remove(id);
        true
    }
}
