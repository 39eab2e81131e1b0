//! From an engine's payloads to the index: what a stream's items mean.

use super::blocks::MAY_BE_MISSING;
use super::delivery::{Delivery, Ingested, Item, RequestKeys};
use super::head::Stream;
use super::reasons::Reasons;
use super::session::Session;
use super::{Index, IndexError, ranks};
use crate::contract::store::Store;
use crate::scorer::kv_events::{self, Event};

impl Index {
    /// Applies what a publisher's stream brought and commits it, with the stream's position.
    ///
    /// Payloads that were applied before are left out, so a delivery may be repeated. Within one
    /// run a sequence number that steps back is a repetition, unless the payload is newer by the
    /// engine's clock than all before it: then the engine has restarted.
    ///
    /// # Errors
    /// [`IndexError`]; nothing of the delivery counts then (blocks of shared tiers may), and the
    /// same one can be tried again. After [`IndexError::Superseded`] this VM should
    /// [`Index::step_down`].
    pub fn ingest(
        &mut self,
        store: &dyn Store,
        delivery: &Delivery<'_>,
        keys: &RequestKeys<'_>,
    ) -> Result<Ingested, IndexError> {
        if ranks::is_shared(delivery.publisher) || delivery.run == 0 {
            return Err(IndexError::Invalid);
        }
        let own = self.open(store, delivery.publisher, delivery.group)?;
        let mut ingest = Ingest {
            index: self,
            store,
            delivery,
            keys,
            own,
            shared: None,
            siblings: None,
            done: Ingested::default(),
            fresh: Vec::new(),
        };
        ingest.stream()?;
        ingest.tell_shared()?;
        let Ingest {
            own,
            shared,
            mut done,
            ..
        } = ingest;
        done.evicted = own.evicted;
        // The shared part first: if the own one fails, the delivery is repeated, and a set does not
        // mind.
        if let Some(shared) = shared
            && shared.is_changed()
        {
            self.commit(store, shared)?;
        }
        self.commit(store, own)?;
        Ok(done)
    }
}

pub(super) struct Ingest<'a, 'd> {
    pub index: &'a mut Index,
    pub store: &'a dyn Store,
    pub delivery: &'a Delivery<'d>,
    pub keys: &'a RequestKeys<'a>,
    pub own: Session,
    /// The group's shared tiers, once an event speaks of one.
    pub shared: Option<Session>,
    /// Slots of the group's other endpoints, once an engine key had to be looked for there.
    pub siblings: Option<Vec<u16>>,
    pub done: Ingested,
    pub fresh: Vec<u64>,
}

impl Ingest<'_, '_> {
    fn stream(&mut self) -> Result<(), IndexError> {
        if self.own.head.stream.run != self.delivery.run {
            self.restart();
        }
        for item in self.delivery.items {
            let stream = &mut self.own.head.stream;
            match *item {
                Item::FromStart => {
                    stream.reasons = stream.reasons.without(Reasons::JOINED_LATE);
                }
                Item::Lost { next } => {
                    stream.reasons |= Reasons::GAP;
                    stream.next_seq = stream.next_seq.max(next);
                    self.done.gaps = self.done.gaps.saturating_add(1);
                }
                Item::Payload { seq, bytes } => self.payload(seq, bytes)?,
            }
        }
        let delivery = self.delivery;
        let stream = &mut self.own.head.stream;
        stream.heard(delivery.heard_ms, delivery.behind);
        Ok(())
    }

    /// The engine holds nothing, and whether its stream is seen from the start on is open.
    fn restart(&mut self) {
        let fresh = self.index.fresh_replica();
        self.own.reset(fresh);
        // A tier that outlives the engine is still there.
        let kept = self.own.head.stream.reasons.and(Reasons::HAS_SECONDARY);
        self.own.head.stream = Stream {
            run: self.delivery.run,
            reasons: Reasons::JOINED_LATE | kept,
            last_ts: f64::NEG_INFINITY,
            ..Stream::default()
        };
        self.done.restarted = self.done.restarted.saturating_add(1);
    }

    fn payload(&mut self, seq: u64, bytes: &[u8]) -> Result<(), IndexError> {
        let batch = kv_events::decode(bytes);
        if seq < self.own.head.stream.next_seq {
            let newer = |ts| ts > self.own.head.stream.last_ts;
            if !batch.is_ok_and(|batch| newer(batch.ts)) {
                self.done.duplicates = self.done.duplicates.saturating_add(1);
                return Ok(());
            }
            self.restart();
        }
        let stream = &mut self.own.head.stream;
        if seq == 0 {
            stream.reasons = stream.reasons.without(Reasons::JOINED_LATE);
        } else if seq > stream.next_seq && stream.next_seq > 0 {
            stream.reasons |= Reasons::GAP;
            self.done.gaps = self.done.gaps.saturating_add(1);
        } else if seq > stream.next_seq {
            // Also takes back an earlier word that nothing came before.
            stream.reasons |= Reasons::JOINED_LATE;
        }
        stream.next_seq = seq.saturating_add(1);
        self.done.payloads = self.done.payloads.saturating_add(1);
        let Ok(batch) = batch else {
            self.unreadable();
            return Ok(());
        };
        stream.last_ts = stream.last_ts.max(batch.ts);
        for event in batch.events() {
            match event {
                Event::Stored(event) => self.stored(&event)?,
                Event::Removed(event) => self.removed(&event)?,
                Event::AllBlocksCleared => {
                    self.own.clear_gpu();
                    self.counts();
                }
                Event::Unknown => self.ignored(),
                Event::Malformed => self.unreadable(),
            }
        }
        Ok(())
    }

    pub fn counts(&mut self) {
        self.done.events = self.done.events.saturating_add(1);
    }

    pub fn ignored(&mut self) {
        self.done.ignored = self.done.ignored.saturating_add(1);
    }

    pub fn unreadable(&mut self) {
        self.done.unreadable = self.done.unreadable.saturating_add(1);
        self.own.head.stream.reasons |= Reasons::UNREADABLE;
    }

    pub fn unresolved(&mut self) {
        self.done.unresolved = self.done.unresolved.saturating_add(1);
        self.own.head.stream.reasons |= Reasons::UNRESOLVED;
    }

    /// What this publisher may have put into shared tiers unheard is missing there for all.
    fn tell_shared(&mut self) -> Result<(), IndexError> {
        let missing = self.own.head.stream.reasons.and(MAY_BE_MISSING);
        if missing.is_empty() || self.index.params.shared_tiers.is_empty() {
            return Ok(());
        }
        self.open_shared()?.head.stream.reasons |= missing;
        Ok(())
    }
}
