//! Who has which slot: the directory as it is stored, and what a change of it takes along.

use super::directory::{Directory, Listed, Owner};
use super::head::Head;
use super::pages::{Kind, Pages};
use super::{Index, IndexError, MAX_TIERS, NotReady, TRIES, places, ranks};
use crate::contract::store::{CREATE, Store, StoreError, UpdateError, update};

impl Index {
    fn directory_key(&self) -> Option<String> {
        self.place
            .as_ref()
            .map(|place| format!("{place}/directory"))
    }

    /// For a reader: as it is now.
    pub(super) fn read_directory(&mut self, store: &dyn Store) -> Result<(), NotReady> {
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
        let known = self.directory.as_ref().map(|listed| listed.cas);
        match value {
            Some(value) if Some(value.cas) == known => {}
            Some(value) => {
                self.directory = Directory::decode(&value.value)
                    .filter(|d| d.scorer == self.params.scorer)
                    .map(|d| Listed::new(value.cas, d));
            }
            None => self.directory = None,
        }
        if self.directory.is_none() && !self.writing {
            // Its place may be another scorer's by now.
            self.place = None;
        }
        Ok(())
    }

    /// For a writer that takes over: another scorer's index is cleared away, and every slot is
    /// claimed, so that nothing of an older writer comes in any more.
    pub(super) fn own_directory(
        &mut self,
        store: &dyn Store,
        now_ms: u64,
    ) -> Result<(), IndexError> {
        let key = self.directory_key().ok_or(IndexError::Superseded)?;
        // The time makes it higher than any before even if the directory was lost.
        let next = |old: &Directory| old.term.saturating_add(1).max(now_ms);
        let old = store.get(&key)?.map(|v| v.value).unwrap_or_default();
        let old = Directory::decode(&old).unwrap_or_default();
        if old.scorer != self.params.scorer {
            self.term = next(&old);
            for slot in old.slots.keys() {
                self.clear_slot(store, *slot)?;
            }
        }
        let scorer = &self.params.scorer;
        let mut term = 0;
        update(store, &key, TRIES, &mut |old| {
            let old = old.and_then(Directory::decode).unwrap_or_default();
            term = next(&old);
            let mut own = Directory {
                scorer: scorer.clone(),
                term,
                ..Directory::default()
            };
            if old.scorer == *scorer {
                (own.tiers, own.slots) = (old.tiers, old.slots);
            }
            Some(own.encode())
        })?;
        self.term = term;
        self.change_directory(store, &mut |_| {})?;
        let listed = self.directory.iter().flat_map(|l| l.directory.slots.keys());
        let slots: Vec<u16> = listed.copied().collect();
        slots
            .into_iter()
            .try_for_each(|slot| self.claim_slot(store, slot))
    }

    fn claim_slot(&self, store: &dyn Store, slot: u16) -> Result<(), IndexError> {
        let place = self.place.as_ref().ok_or(IndexError::Superseded)?;
        let mut ours = true;
        update(
            store,
            &Pages::new(place, slot).head_key(),
            TRIES,
            &mut |old| {
                let mut head = old.and_then(Head::decode).unwrap_or_default();
                ours = head.term <= self.term;
                head.term = self.term;
                ours.then(|| head.encode())
            },
        )?;
        if ours {
            Ok(())
        } else {
            Err(IndexError::Superseded)
        }
    }

    /// Changes the stored directory and remembers it.
    fn change_directory(
        &mut self,
        store: &dyn Store,
        change: &mut dyn FnMut(&mut Directory),
    ) -> Result<(), IndexError> {
        let key = self.directory_key().ok_or(IndexError::Superseded)?;
        let scorer = &self.params.scorer;
        let term = self.term;
        let mut ours = true;
        update(store, &key, TRIES, &mut |old| {
            let mut directory = old.and_then(Directory::decode).unwrap_or_default();
            ours = directory.scorer == *scorer && directory.term == term;
            let before = directory.clone();
            change(&mut directory);
            (ours && directory != before).then(|| directory.encode())
        })?;
        if !ours {
            return Err(IndexError::Superseded);
        }
        let value = store.get(&key)?.ok_or(IndexError::Invalid)?;
        let directory = Directory::decode(&value.value).ok_or(IndexError::Invalid)?;
        self.directory = Some(Listed::new(value.cas, directory));
        Ok(())
    }

    /// The publisher's slot; a new one gets one.
    pub(super) fn own_slot(
        &mut self,
        store: &dyn Store,
        publisher: &str,
        group: &str,
    ) -> Result<u16, IndexError> {
        let known = |index: &Self| {
            let listed = index.directory.as_ref()?;
            let slot = listed.slot(publisher)?;
            (listed.directory.slots.get(&slot)?.group == group).then_some(slot)
        };
        if let Some(slot) = known(self) {
            return Ok(slot);
        }
        let max = self.params.limits.max_endpoints;
        self.change_directory(store, &mut |directory| {
            let slot = match directory.slot(publisher) {
                Some((slot, _)) => Some(slot),
                None => directory.free_slot(max),
            };
            if let Some(slot) = slot {
                let owner = Owner {
                    endpoint: publisher.to_owned(),
                    group: group.to_owned(),
                };
                directory.slots.insert(slot, owner);
            }
        })?;
        known(self).ok_or(IndexError::TooManyEndpoints)
    }

    /// The tier's bit; a new tier gets one, if there is one left.
    pub(super) fn own_tier(
        &mut self,
        store: &dyn Store,
        tier: &str,
    ) -> Result<Option<u16>, IndexError> {
        let known = |index: &Self| {
            index
                .directory
                .as_ref()
                .and_then(|l| l.directory.tier(tier))
        };
        if known(self).is_none() && self.tiers().len() < MAX_TIERS {
            self.change_directory(store, &mut |directory| {
                if directory.tier(tier).is_none() {
                    directory.add_tier(tier);
                }
            })?;
        }
        Ok(known(self))
    }

    /// Lists a publisher of which nothing is known: what is known of its endpoint's other ranks is
    /// then not taken for the whole.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn list(
        &mut self,
        store: &dyn Store,
        publisher: &str,
        group: &str,
    ) -> Result<(), IndexError> {
        self.written_place()?;
        self.own_slot(store, publisher, group).map(|_| ())
    }

    /// The group under which a publisher is listed.
    #[must_use]
    pub fn group_of(&self, publisher: &str) -> Option<&str> {
        let listed = self.directory.as_ref()?;
        let slot = listed.slot(publisher)?;
        let owner = listed.directory.slots.get(&slot)?;
        Some(&owner.group)
    }

    /// Forgets what is known of a publisher; it stays listed.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn forget(&mut self, store: &dyn Store, publisher: &str) -> Result<(), IndexError> {
        self.written_place()?;
        match self.directory.as_ref().and_then(|l| l.slot(publisher)) {
            Some(slot) => self.clear_slot(store, slot),
            None => Ok(()),
        }
    }

    /// Forgets what is known of shared tiers.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn forget_shared(&mut self, store: &dyn Store) -> Result<(), IndexError> {
        self.give_up(store, &|owner| ranks::is_shared(&owner.endpoint))
    }

    /// Gives up the slots of publishers that are not wanted any more, and their memory. The last
    /// one of a group takes the group's shared tiers along.
    ///
    /// # Errors
    /// [`IndexError`]; what is left is given up with the next call.
    pub fn retain(
        &mut self,
        store: &dyn Store,
        keep: &dyn Fn(&str) -> bool,
    ) -> Result<(), IndexError> {
        let owners = || {
            let listed = self.directory.iter();
            listed.flat_map(|l| l.directory.slots.values())
        };
        let kept: Vec<String> = owners()
            .filter(|o| !ranks::is_shared(&o.endpoint) && keep(&o.endpoint))
            .map(|o| o.group.clone())
            .collect();
        self.give_up(store, &|owner| match ranks::is_shared(&owner.endpoint) {
            true => !kept.contains(&owner.group),
            false => !keep(&owner.endpoint),
        })
    }

    fn give_up(
        &mut self,
        store: &dyn Store,
        unwanted: &dyn Fn(&Owner) -> bool,
    ) -> Result<(), IndexError> {
        self.written_place()?;
        let owners = self.directory.iter().flat_map(|l| &l.directory.slots);
        let gone: Vec<u16> = owners
            .filter(|(_, owner)| unwanted(owner))
            .map(|(slot, _)| *slot)
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        // All are unknown before the first one is unlisted: what is left of an endpoint's ranks
        // must not pass for all of them.
        for slot in &gone {
            self.clear_slot(store, *slot)?;
        }
        self.change_directory(store, &mut |directory| {
            directory.slots.retain(|slot, _| !gone.contains(slot));
        })
    }

    /// Empties a slot's pages and marks its head as nobody's. Term and generation go on, so that
    /// no late reader or writer takes what follows for what was.
    pub(super) fn clear_slot(&mut self, store: &dyn Store, slot: u16) -> Result<(), IndexError> {
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
