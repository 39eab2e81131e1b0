//! Where the blocks of an event go, and what they are called.

use super::held::is_primary;
use super::ingest::Ingest;
use super::ops::Key;
use super::ranks::{is_shared, shared_name};
use super::reasons::Reasons;
use super::session::Session;
use super::{Held, Index, IndexError};
use crate::contract::store::Store;
use crate::scorer::kv_events::{Removed, Stored};

/// Where an event's blocks go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    Gpu,
    /// By its bit.
    Own(u16),
    Shared(u16),
}

/// With one of these a publisher may have stored blocks that are not here.
pub(super) const MAY_BE_MISSING: Reasons = Reasons::JOINED_LATE
    .or(Reasons::GAP)
    .or(Reasons::UNRESOLVED)
    .or(Reasons::UNREADABLE);

impl Ingest<'_, '_> {
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
        self.open_shared()?;
        Ok(Some(Tier::Shared(bit)))
    }

    /// The group's shared tiers.
    pub fn open_shared(&mut self) -> Result<&mut Session, IndexError> {
        let shared = match self.shared.take() {
            Some(shared) => shared,
            None => {
                let name = shared_name(self.delivery.group);
                self.index.open(self.store, &name, self.delivery.group)?
            }
        };
        Ok(self.shared.insert(shared))
    }

    fn target(&mut self, tier: Tier) -> &mut Session {
        match (tier, &mut self.shared) {
            (Tier::Shared(_), Some(shared)) => shared,
            _ => &mut self.own,
        }
    }

    pub fn stored(&mut self, event: &Stored<'_>) -> Result<(), IndexError> {
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
        if groups.are_several() {
            self.own.head.stream.reasons |= Reasons::GROUPS;
        }
        let bridged = self.index.params.bridged;
        // Without tokens it says nothing about the engine's blocks: some connectors write a chunk's.
        let other_size = !event.tokens.is_empty()
            && event.block_size != 0
            && event.block_size != self.index.params.block_size;
        let Some(tier) = self.tier(&event.tier())?.filter(|_| !other_size) else {
            self.unresolved();
            return Ok(());
        };
        if tier == Tier::Gpu {
            if !bridged {
                self.check_root(event);
            }
        } else if !is_primary(&event.tier()) {
            self.own.head.stream.reasons |= Reasons::HAS_SECONDARY;
        }
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

    /// An engine whose hashes are not those that its configuration gives would look empty to every
    /// request, or to those of one adapter. The first block of a prompt can be made again from its
    /// tokens, if what else goes into it is known.
    fn check_root(&mut self, event: &Stored<'_>) {
        let size = self.index.params.block_size;
        // A number alone does not say which adapter it is.
        let named = event.lora_id.is_none() || event.lora_name.is_some();
        let (Some(engine), None) = (event.hashes.clone().next(), event.parent) else {
            return;
        };
        if !named || event.block_size != size || event.tokens.len() < size {
            return;
        }
        let first = Stored {
            hashes: event.hashes.first(1),
            tokens: event.tokens.first(size),
            ..*event
        };
        self.fresh.clear();
        if (self.keys)(None, &first, &mut self.fresh) && !self.fresh.contains(&engine) {
            self.own.head.stream.reasons |= Reasons::HASH_MISMATCH;
            self.done.mismatches = self.done.mismatches.saturating_add(1);
        }
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
                    self.delivery.publisher,
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

    pub fn removed(&mut self, event: &Removed<'_>) -> Result<(), IndexError> {
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
        let owners = self.directory.iter().flat_map(|l| &l.directory.slots);
        let slots: Vec<(u16, String)> = owners
            .filter(|(_, o)| o.group == group && o.endpoint != but)
            .filter(|(_, o)| !is_shared(&o.endpoint))
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
