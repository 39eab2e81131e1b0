//! Looking endpoints up.

use super::head::Stream;
use super::ranks::shared_name;
use super::replica::Replica;
use super::{Held, Index, NotReady, Reasons};
use crate::contract::store::Store;
use std::cell::Cell;

/// An endpoint that is up to date.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    slot: u16,
    /// Of its other ranks.
    others: Vec<u16>,
    shared: Option<u16>,
    /// Why it is a lower bound, as far as the index knows.
    pub reasons: Reasons,
    /// Its events named a tier behind the CPU's.
    pub has_secondary: bool,
}

impl View {
    fn uses(&self, slot: u16) -> bool {
        self.slot == slot || self.shared == Some(slot) || self.others.contains(&slot)
    }
}

/// Where an endpoint holds blocks.
#[derive(Clone, Debug)]
pub struct Residency<'a> {
    own: Part<'a>,
    others: Vec<Part<'a>>,
    shared: Option<Part<'a>>,
}

#[derive(Clone, Debug)]
struct Part<'a> {
    replica: &'a Replica,
    /// Where the next block is looked for first.
    next: Cell<usize>,
}

impl Part<'_> {
    #[inline]
    fn held(&self, request: u64) -> Held {
        self.replica.held(request, &self.next)
    }
}

impl Residency<'_> {
    /// By request key. Quick if keys are asked for in the order of a prompt. Of several ranks what
    /// each of them has: nobody knows which one will serve the request.
    #[inline]
    #[must_use]
    pub fn held(&self, request: u64) -> Held {
        let mut held = self.own.held(request);
        for other in &self.others {
            let theirs = other.held(request);
            held.gpu = held.gpu.min(theirs.gpu);
            held.external &= theirs.external;
        }
        if let Some(shared) = &self.shared {
            held.external |= shared.held(request).external;
        }
        held
    }
}

/// One endpoint of a [`Index::look_up`].
#[derive(Clone, Debug)]
pub struct Found<'a> {
    /// Why it is a lower bound, as far as the index knows.
    pub reasons: Reasons,
    /// Its events named a tier behind the CPU's.
    pub has_secondary: bool,
    /// How many ranks it has, as far as the index knows.
    pub ranks: u32,
    pub residency: Residency<'a>,
    /// External tiers by bit.
    pub tiers: &'a [String],
}

impl Index {
    /// Brings an endpoint up to date, moving at most `budget` bytes (what is moved is taken off).
    /// The directory and the heads, some hundred bytes an endpoint, do not count.
    ///
    /// # Errors
    /// [`NotReady`]; of several ranks none may be missing.
    pub fn view(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        now_ms: u64,
        budget: &mut u64,
    ) -> Result<View, NotReady> {
        self.read_directory(store)?;
        self.view_listed(store, endpoint, now_ms, budget, &mut None)
    }

    /// Looks up all endpoints of one request, one after the other: the directory and what is shared
    /// are read once. `found` is called for each. The budget is as for [`Index::view`].
    pub fn look_up<'e>(
        &mut self,
        store: &dyn Store,
        endpoints: impl IntoIterator<Item = &'e str>,
        now_ms: u64,
        budget: &mut u64,
        found: &mut dyn FnMut(&'e str, Result<Found<'_>, NotReady>),
    ) {
        let read = self.read_directory(store);
        let mut shared = None;
        for endpoint in endpoints {
            let view = match read {
                Ok(()) => self.view_listed(store, endpoint, now_ms, budget, &mut shared),
                Err(e) => Err(e),
            };
            let here = view.and_then(|view| {
                let residency = self.residency(&view).ok_or(NotReady::TooLarge)?;
                Ok(Found {
                    reasons: view.reasons,
                    has_secondary: view.has_secondary,
                    ranks: u32::try_from(view.others.len())
                        .map_or(u32::MAX, |n| n.saturating_add(1)),
                    residency,
                    tiers: self.tiers(),
                })
            });
            found(endpoint, here);
        }
    }

    /// `None` if other endpoints have pushed it out of this VM's memory since.
    #[must_use]
    pub fn residency(&self, view: &View) -> Option<Residency<'_>> {
        let part = |slot: u16| {
            let replica = &self.replicas.get(&slot)?.replica;
            let next = Cell::new(0);
            Some(Part { replica, next })
        };
        let others = view.others.iter().map(|slot| part(*slot));
        Some(Residency {
            own: part(view.slot)?,
            others: others.collect::<Option<_>>()?,
            shared: match view.shared {
                None => None,
                Some(slot) => Some(part(slot)?),
            },
        })
    }

    /// `last_shared`: the shared tiers that were brought up to date last, for the same request.
    fn view_listed(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        now_ms: u64,
        budget: &mut u64,
        last_shared: &mut Option<(u16, Reasons)>,
    ) -> Result<View, NotReady> {
        let listed = self.directory.as_ref().ok_or(NotReady::Unknown)?;
        let publishers = listed.publishers(endpoint);
        let mut publishers: Vec<(u16, String)> = publishers
            .map(|(slot, name)| (slot, name.to_owned()))
            .collect();
        let (slot, first) = publishers.pop().ok_or(NotReady::Unknown)?;
        let owner = listed.directory.slots.get(&slot);
        let shared_name = shared_name(owner.map_or("", |owner| &owner.group));
        let shared = listed.slot(&shared_name);
        let mut reasons = Reasons::NONE;
        let mut take = |stream: Stream| reasons |= stream.reasons;
        take(self.refresh(store, slot, &first, Some(now_ms), budget)?);
        let mut others = Vec::with_capacity(publishers.len());
        for (slot, publisher) in &publishers {
            take(self.refresh(store, *slot, publisher, Some(now_ms), budget)?);
            others.push(*slot);
        }
        if !others.is_empty() {
            reasons |= Reasons::RANKS;
        }
        match (shared, *last_shared) {
            (None, _) => {}
            (Some(slot), Some((last, known)))
                if slot == last && self.replicas.contains_key(&slot) =>
            {
                reasons |= known;
            }
            (Some(slot), _) => {
                let stream = self.refresh(store, slot, &shared_name, None, budget)?;
                *last_shared = Some((slot, stream.reasons));
                reasons |= stream.reasons;
            }
        }
        let view = View {
            slot,
            others,
            shared,
            reasons: reasons.without(Reasons::HAS_SECONDARY),
            has_secondary: reasons.contains(Reasons::HAS_SECONDARY),
        };
        self.make_room(&|slot| view.uses(slot));
        if self.residency(&view).is_none() {
            return Err(NotReady::TooLarge);
        }
        Ok(view)
    }

    /// Makes room in this VM's memory, the longest unused first. The slots in use stay, unless they
    /// alone are too much.
    pub(super) fn make_room(&mut self, in_use: &dyn Fn(u16) -> bool) {
        let max = self.params.limits.max_cache_bytes;
        let mut memory = self.memory();
        while memory > max {
            let others = self.replicas.iter();
            let oldest = others
                .filter(|(slot, _)| !in_use(**slot))
                .min_by_key(|(_, cached)| cached.used)
                .map(|(slot, _)| *slot);
            let Some(oldest) = oldest else {
                self.replicas.clear();
                return;
            };
            let gone = self.replicas.remove(&oldest);
            memory = memory.saturating_sub(gone.map_or(0, |c| c.replica.memory()));
        }
    }
}
