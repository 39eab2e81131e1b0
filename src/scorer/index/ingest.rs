//! From an engine's payloads to the index.

use super::head::Stream;
use super::ops::Key;
use super::reasons::Reasons;
use super::session::Session;
use super::{Held, Index, IndexError, SHARED, shared_name};
use crate::contract::store::Store;
use crate::scorer::kv_events::{self, Event, Removed, Stored};

/// The request keys of an event's blocks, which follow the block with this request key (none: they
/// begin a prompt): appended to the list, one for each block. False if they cannot be told (an
/// extra key of an unknown kind, an adapter without what its hash needs).
pub type RequestKeys<'a> = dyn Fn(Option<u64>, &Stored<'_>, &mut Vec<u64>) -> bool + 'a;

/// News of one endpoint's stream.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// `ip:port`, or another publisher's name: a publisher of shared tiers need not be an endpoint.
    pub endpoint: &'a str,
    /// Endpoints of one group run the same model the same way.
    pub group: &'a str,
    /// The bridge's number for this run of the engine. With another one the engine is another
    /// process, or its stream is told anew from its start: what was known does not count any more.
    pub run: u64,
    /// In order; none: a heartbeat.
    pub items: &'a [Item<'a>],
}

/// One item of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The engine's payload number `seq`.
    Payload { seq: u64, bytes: &'a [u8] },
    /// The payloads before `next` are lost.
    Lost { next: u64 },
    /// The engine has published nothing before `next`, or nothing that was not delivered: a replay
    /// from 0 said so. Without it a stream that begins later than 0, or not at all, is not whole.
    FromStart,
}

/// What came of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ingested {
    /// Payloads applied; those that were applied before.
    pub payloads: u32,
    pub duplicates: u32,
    /// Events that count.
    pub events: u32,
    /// Events of other cache groups, and of types unknown to this version.
    pub ignored: u32,
    /// Events whose blocks could not be told.
    pub unresolved: u32,
    /// Payloads and events that could not be read.
    pub unreadable: u32,
    /// Blocks in stored and removed events that count.
    pub stored: u32,
    pub removed: u32,
    /// Blocks that had to give way.
    pub evicted: u32,
    /// The engine's stream began again.
    pub restarted: bool,
    /// Payloads were missed.
    pub gaps: u32,
}

impl Index {
    /// Applies what an endpoint's stream brought and commits it, with the stream's position.
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
        now_ms: u64,
    ) -> Result<Ingested, IndexError> {
        if delivery.endpoint.starts_with(SHARED) {
            return Err(IndexError::Invalid);
        }
        let own = self.open(store, delivery.endpoint, delivery.group)?;
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
        ingest.stream(now_ms)?;
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
            && shared.pending() > 0
        {
            self.commit(store, shared)?;
        }
        self.commit(store, own)?;
        Ok(done)
    }

    /// The stream's state as stored; `None` if nothing of the endpoint is.
    ///
    /// # Errors
    /// [`IndexError::Host`].
    pub fn stream(&self, store: &dyn Store, endpoint: &str) -> Result<Option<Stream>, IndexError> {
        let place = self.place.as_ref();
        let directory = self.directory.as_ref();
        let Some((place, (_, directory))) = place.zip(directory) else {
            return Ok(None);
        };
        let Some((slot, _)) = directory.slot(endpoint) else {
            return Ok(None);
        };
        let pages = super::pages::Pages::new(place, slot);
        let value = store.get(&pages.head_key())?;
        let head = value.and_then(|v| super::head::Head::decode(&v.value));
        let fits = |head: &super::head::Head| {
            head.endpoint == endpoint && head.fingerprint == self.params.fingerprint
        };
        Ok(head.filter(fits).map(|head| head.stream))
    }
}

struct Ingest<'a, 'd> {
    index: &'a mut Index,
    store: &'a dyn Store,
    delivery: &'a Delivery<'d>,
    keys: &'a RequestKeys<'a>,
    own: Session,
    /// The group's shared tiers, once an event speaks of one.
    shared: Option<Session>,
    /// Slots of the group's other endpoints, once an engine key had to be looked for there.
    siblings: Option<Vec<u16>>,
    done: Ingested,
    fresh: Vec<u64>,
}

/// Where an event's blocks go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    Gpu,
    /// By its bit.
    Own(u16),
    Shared(u16),
}

impl Ingest<'_, '_> {
    fn stream(&mut self, now_ms: u64) -> Result<(), IndexError> {
        if self.own.head.stream.run != self.delivery.run || self.own.head.stream.heard_ms == 0 {
            self.restart();
        }
        self.own.head.stream.heard_ms = now_ms.max(1);
        for item in self.delivery.items {
            let stream = &mut self.own.head.stream;
            match *item {
                Item::FromStart => {
                    stream.reasons = stream.reasons.without(Reasons::JOINED_LATE);
                }
                Item::Lost { next } if next > stream.next_seq => {
                    stream.reasons |= Reasons::GAP;
                    stream.next_seq = next;
                    self.done.gaps = self.done.gaps.saturating_add(1);
                }
                Item::Lost { .. } => {}
                Item::Payload { seq, bytes } => self.payload(seq, bytes)?,
            }
        }
        Ok(())
    }

    /// The engine holds nothing, and whether its stream is seen from the start on is open.
    fn restart(&mut self) {
        let fresh = self.index.fresh_replica();
        self.own.reset(fresh);
        self.own.head.stream = Stream {
            run: self.delivery.run,
            heard_ms: self.own.head.stream.heard_ms,
            reasons: Reasons::JOINED_LATE,
            last_ts: f64::NEG_INFINITY,
            ..Stream::default()
        };
        self.done.restarted = true;
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

    fn counts(&mut self) {
        self.done.events = self.done.events.saturating_add(1);
    }

    fn ignored(&mut self) {
        self.done.ignored = self.done.ignored.saturating_add(1);
    }

    fn unreadable(&mut self) {
        self.done.unreadable = self.done.unreadable.saturating_add(1);
        self.own.head.stream.reasons |= Reasons::UNREADABLE;
    }

    fn unresolved(&mut self) {
        self.done.unresolved = self.done.unresolved.saturating_add(1);
        self.own.head.stream.reasons |= Reasons::UNRESOLVED;
    }

    fn tier(&mut self, name: &str) -> Result<Option<Tier>, IndexError> {
        if name == "gpu" {
            return Ok(Some(Tier::Gpu));
        }
        let Some(bit) = self.index.own_tier(self.store, name)? else {
            return Ok(None);
        };
        let base = name.split('@').next().unwrap_or(name);
        if !self.index.params.shared_tiers.iter().any(|t| t == base) {
            return Ok(Some(Tier::Own(bit)));
        }
        if self.shared.is_none() {
            let name = shared_name(self.delivery.group);
            let shared = self.index.open(self.store, &name, self.delivery.group)?;
            self.shared = Some(shared);
        }
        Ok(Some(Tier::Shared(bit)))
    }

    fn target(&mut self, tier: Tier) -> &mut Session {
        match (tier, &mut self.shared) {
            (Tier::Shared(_), Some(shared)) => shared,
            _ => &mut self.own,
        }
    }

    fn stored(&mut self, event: &Stored<'_>) -> Result<(), IndexError> {
        let groups = &mut self.own.head.stream.groups;
        match groups.admit(event.group_idx, event.kv_cache_spec_kind) {
            Some(true) => {}
            Some(false) => {
                self.ignored();
                return Ok(());
            }
            None => {
                self.unresolved();
                return Ok(());
            }
        }
        let bridged = self.index.params.bridged;
        let other_size = event.block_size != 0 && event.block_size != self.index.params.block_size;
        let Some(tier) = self.tier(&event.tier())?.filter(|_| !other_size) else {
            self.unresolved();
            return Ok(());
        };
        let mut missed = false;
        let mut hashed = None;
        for (at, engine) in event.hashes.enumerate() {
            let target = self.target(tier);
            if let Some((id, held, _)) = target.replica.find(engine) {
                let (held, full) = add(held, tier);
                target.set(id, held);
                missed |= full;
            } else {
                let request = match bridged {
                    false => Some(engine),
                    true => self.request_key(event, tier, engine, at, &mut hashed)?,
                };
                let Some(request) = request else {
                    missed = true;
                    continue;
                };
                let (held, _) = add(Held::NOWHERE, tier);
                self.target(tier).push(Key { request, engine }, held);
            }
            self.done.stored = self.done.stored.saturating_add(1);
        }
        if missed {
            self.unresolved();
        } else {
            self.counts();
        }
        Ok(())
    }

    /// The request key of an engine key that `tier`'s holder does not know. `hashed` is whether the
    /// event's tokens could be hashed; they are at most once.
    fn request_key(
        &mut self,
        event: &Stored<'_>,
        tier: Tier,
        engine: u64,
        at: usize,
        hashed: &mut Option<bool>,
    ) -> Result<Option<u64>, IndexError> {
        if matches!(tier, Tier::Shared(_))
            && let Some((.., request)) = self.own.replica.find(engine)
        {
            return Ok(Some(request));
        }
        let hashed = match *hashed {
            Some(hashed) => hashed,
            None => *hashed.insert(self.hash(event, tier)),
        };
        if hashed {
            return Ok(self.fresh.get(at).copied());
        }
        if matches!(tier, Tier::Shared(_)) {
            return self.ask_siblings(engine);
        }
        Ok(None)
    }

    /// Hashes the event's tokens into `self.fresh`.
    fn hash(&mut self, event: &Stored<'_>, tier: Tier) -> bool {
        let blocks = u64::from(event.hashes.len());
        let tokens = blocks.saturating_mul(u64::from(event.block_size));
        let whole = event.block_size == self.index.params.block_size
            && u64::from(event.tokens.len()) == tokens
            && tokens > 0;
        // Offload events leave extra keys out even where there are some: a salted block would pass
        // for one that anybody may ask for.
        let plain = tier == Tier::Gpu || event.extra_keys.is_given();
        // A number alone does not say which adapter it is.
        let named = event.lora_id.is_none() || event.lora_name.is_some();
        if !(whole && plain && named) {
            return false;
        }
        let parent = match event.parent {
            None => None,
            Some(parent) => {
                let shared = self.shared.as_ref();
                let found = self.own.replica.find(parent);
                let found = found.or_else(|| shared.and_then(|s| s.replica.find(parent)));
                match found {
                    Some((.., request)) => Some(request),
                    None => return false,
                }
            }
        };
        self.fresh.clear();
        (self.keys)(parent, event, &mut self.fresh) && self.fresh.len() as u64 == blocks
    }

    /// A publisher of shared tiers alone knows no tokens; the endpoints of its group may.
    fn ask_siblings(&mut self, engine: u64) -> Result<Option<u64>, IndexError> {
        let slots = match &self.siblings {
            Some(slots) => slots,
            None => {
                let slots = self.index.load_group(
                    self.store,
                    self.delivery.group,
                    self.delivery.endpoint,
                )?;
                self.siblings.insert(slots)
            }
        };
        let replicas = &self.index.replicas;
        let found = slots
            .iter()
            .filter_map(|slot| replicas.get(slot)?.replica.find(engine))
            .map(|(.., request)| request)
            .next();
        Ok(found)
    }

    fn removed(&mut self, event: &Removed<'_>) -> Result<(), IndexError> {
        if self.own.head.stream.groups.admit(event.group_idx, None) != Some(true) {
            // Nothing of that group is here.
            self.ignored();
            return Ok(());
        }
        let Some(tier) = self.tier(&event.tier())? else {
            self.ignored();
            return Ok(());
        };
        let keep = self.index.params.bridged;
        for engine in event.hashes {
            let target = self.target(tier);
            let Some((id, held, _)) = target.replica.find(engine) else {
                continue;
            };
            let left = match tier {
                Tier::Gpu => Held {
                    gpu: held.gpu.saturating_sub(1),
                    ..held
                },
                Tier::Own(bit) | Tier::Shared(bit) => Held {
                    external: held.external & !bit,
                    ..held
                },
            };
            // An engine's key stays known as long as there is room: an offload event that names it
            // may be on the way.
            if left.is_nowhere() && !keep {
                target.remove(id);
            } else if left != held {
                target.set(id, left);
            }
            self.done.removed = self.done.removed.saturating_add(1);
        }
        self.counts();
        Ok(())
    }
}

/// One more copy; true if it cannot be counted.
fn add(held: Held, tier: Tier) -> (Held, bool) {
    match tier {
        Tier::Gpu => {
            let gpu = held.gpu.saturating_add(1);
            (Held { gpu, ..held }, gpu == held.gpu)
        }
        Tier::Own(bit) | Tier::Shared(bit) => {
            let external = held.external | bit;
            (Held { external, ..held }, false)
        }
    }
}

impl Index {
    /// Loads the replicas of a group's endpoints, as far as they fit into this VM's memory.
    fn load_group(
        &mut self,
        store: &dyn Store,
        group: &str,
        but: &str,
    ) -> Result<Vec<u16>, IndexError> {
        let owners = self.directory.iter().flat_map(|(_, d)| &d.slots);
        let slots: Vec<(u16, String)> = owners
            .filter(|(_, o)| o.group == group && o.endpoint != but)
            .filter(|(_, o)| !o.endpoint.starts_with(SHARED))
            .map(|(slot, o)| (*slot, o.endpoint.clone()))
            .collect();
        for (slot, endpoint) in &slots {
            if self.memory() > self.params.limits.max_cache_bytes {
                break;
            }
            // One that cannot be read knows nothing.
            let _ = self.refresh(store, *slot, endpoint, None, &mut u64::MAX.clone());
        }
        Ok(slots.into_iter().map(|(slot, _)| slot).collect())
    }
}
