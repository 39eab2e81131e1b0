//! Loads in flight, by endpoint, counted over all workers.
//!
//! Each VM has one slot an endpoint in shared data, which says how many of *its* requests are
//! loading. The VM is one thread and has a lease for each of those requests, so it knows its own
//! number; whatever it writes is the truth, also after a write that was lost. A load is admitted by
//! the very compare-and-swap that counts it.
//!
//! A VM that is gone cannot give back. So a slot is believed only while it changes: its owner
//! touches it with every tick of its timer, and whoever sees it stand still for [`PATIENCE`] ticks
//! of its own takes it out. Ticks, not the clock: a step of the wall clock must neither free a
//! slot that is in use nor keep a dead one.

use crate::sorted::{SortedMap, SortedSet};

use crate::contract::keys::{LOADS_BUCKETS, LOADS_VMS_KEY, bucket, loads_bucket_key};
use crate::contract::loads_record::{InFlight, LoadsRecord, Slot};
use crate::contract::store::{CREATE, Store, StoreError, update};

/// Compare-and-swap tries of an admission. A try costs some microseconds; one that runs out of them
/// is a load refused.
const TRIES: u32 = 16;

/// Ticks without a change after which a slot is a lost VM's.
pub const PATIENCE: u32 = 10;

/// Several configurations of one VM each have a timer; ticks closer than this are one, ms.
const TICK_SPACING_MS: u64 = 500;

/// One load in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(u64);

/// How much an endpoint may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_loads: u32,
    /// External tokens. A load that is larger by itself is admitted if nothing else is in flight:
    /// otherwise it never would be.
    pub max_tokens: Option<u64>,
}

impl Limits {
    /// One more load of `tokens` beside what is in flight.
    pub fn admit(&self, in_flight: InFlight, tokens: u64) -> bool {
        let room = in_flight.loads < u64::from(self.max_loads);
        let fits = |max| in_flight.loads == 0 || in_flight.tokens.saturating_add(tokens) <= max;
        room && self.max_tokens.is_none_or(fits)
    }
}

/// Why a load cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Problem {
    /// Other workers won every try.
    Contended,
    /// The host refused a read or a write.
    Store,
    /// The endpoint's bucket has no room for another slot.
    Full,
}

impl Problem {
    pub const ALL: [Self; 3] = [Self::Contended, Self::Store, Self::Full];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Contended => "contended",
            Self::Store => "store",
            Self::Full => "record_full",
        }
    }
}

/// Why a load is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// As much as allowed is in flight.
    Limit,
    /// It cannot be counted, so it is not admitted.
    Uncounted(Problem),
}

/// What may end a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The request is still on its way to the engine.
    Sending,
    /// No sign of the engine yet: over after [`Lease::max_ms`].
    Waiting { since_ms: u64 },
    /// An event stream without an event: over with the first one.
    Streaming,
}

#[derive(Debug)]
struct Lease {
    endpoint: String,
    tokens: u64,
    max_ms: u64,
    phase: Phase,
}

/// What this VM has in flight at one endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    loads: u32,
    tokens: u64,
    /// The slot could not be written; the next tick does it.
    dirty: bool,
}

/// A foreign slot as it was last seen, and for how many ticks.
#[derive(Clone, Copy, Debug)]
struct Seen {
    slot: Slot,
    still: u32,
}

/// The loads of one VM.
#[derive(Debug, Default)]
pub struct Loads {
    /// This VM's number; None until the store gave one.
    me: Option<u64>,
    beat: u32,
    last_lease: u64,
    /// Boxed: there may be thousands, and any of them may be the next to go.
    leases: SortedMap<LeaseId, Box<Lease>>,
    own: SortedMap<String, Own>,
    seen: SortedMap<(String, u64), Seen>,
    last_tick_ms: Option<u64>,
}

/// What a tick found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Loads that were given up after their longest time.
    pub timed_out: u32,
    /// Slots of lost VMs that were taken out.
    pub lost_slots: u32,
    /// By endpoint, of all VMs; None: this was no tick of its own.
    pub in_flight: Option<SortedMap<String, InFlight>>,
}

impl Loads {
    /// What is in flight at the endpoint, over all VMs. None: the store cannot be read.
    pub fn in_flight(&self, store: &dyn Store, endpoint: &str) -> Option<InFlight> {
        let (record, _) = read(store, bucket(endpoint, LOADS_BUCKETS)).ok()?;
        // 0 is no VM's number.
        let others = record.others(endpoint, self.me.unwrap_or(0));
        let own = self.own(endpoint);
        Some(others.plus(own.loads, own.tokens))
    }

    /// Counts one more load, if the limits allow.
    ///
    /// # Errors
    /// Nothing is counted.
    pub fn acquire(
        &mut self,
        store: &dyn Store,
        endpoint: &str,
        tokens: u64,
        limits: Limits,
        max_ms: u64,
    ) -> Result<LeaseId, Denied> {
        let uncounted = Denied::Uncounted;
        let me = self.number(store).map_err(uncounted)?;
        let own = self.own(endpoint);
        let slot = Slot {
            beat: self.beat,
            loads: own.loads.saturating_add(1),
            tokens: own.tokens.saturating_add(tokens),
        };
        let number = bucket(endpoint, LOADS_BUCKETS);
        for _ in 0..TRIES {
            let (mut record, cas) = read(store, number).map_err(uncounted)?;
            let in_flight = record.others(endpoint, me).plus(own.loads, own.tokens);
            if !limits.admit(in_flight, tokens) {
                return Err(Denied::Limit);
            }
            record.set(endpoint, me, slot);
            let value = record.encode().ok_or(uncounted(Problem::Full))?;
            match store.set(&loads_bucket_key(number), &value, cas) {
                Ok(()) => return Ok(self.lease(endpoint, tokens, max_ms, slot)),
                Err(StoreError::CasMismatch) => {}
                Err(StoreError::Host(_)) => return Err(uncounted(Problem::Store)),
            }
        }
        Err(uncounted(Problem::Contended))
    }

    /// A load that is counted already, against other limits: its own share is part of what is in
    /// flight. The longer of the longest times holds.
    ///
    /// # Errors
    /// It is still counted.
    pub fn check(
        &mut self,
        store: &dyn Store,
        id: LeaseId,
        limits: Limits,
        max_ms: u64,
    ) -> Result<(), Denied> {
        let Some(lease) = self.leases.get_mut(&id) else {
            return Ok(());
        };
        lease.max_ms = lease.max_ms.max(max_ms);
        let (endpoint, tokens) = (lease.endpoint.clone(), lease.tokens);
        let in_flight = self
            .in_flight(store, &endpoint)
            .ok_or(Denied::Uncounted(Problem::Store))?;
        let others = InFlight {
            loads: in_flight.loads.saturating_sub(1),
            tokens: in_flight.tokens.saturating_sub(tokens),
        };
        match limits.admit(others, tokens) {
            true => Ok(()),
            false => Err(Denied::Limit),
        }
    }

    fn lease(&mut self, endpoint: &str, tokens: u64, max_ms: u64, slot: Slot) -> LeaseId {
        let own = self.own.entry(endpoint.to_owned()).or_default();
        own.loads = slot.loads;
        own.tokens = slot.tokens;
        own.dirty = false;
        self.last_lease = self.last_lease.wrapping_add(1);
        let id = LeaseId(self.last_lease);
        let lease = Lease {
            endpoint: endpoint.to_owned(),
            tokens,
            max_ms,
            phase: Phase::Sending,
        };
        self.leases.insert(id, Box::new(lease));
        id
    }

    /// The request is with the engine as a whole: from now on the load may take `max_ms`.
    pub fn sent(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id)
            && lease.phase == Phase::Sending
        {
            lease.phase = Phase::Waiting { since_ms: now_ms };
        }
    }

    /// The engine answers with an event stream, which somebody watches for its first event.
    pub fn streaming(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.phase = Phase::Streaming;
        }
    }

    /// Nobody can tell when loading is over: after `max_ms`, then.
    pub fn unwatched(&mut self, id: LeaseId, now_ms: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.phase = Phase::Waiting { since_ms: now_ms };
        }
    }

    /// The load is over. False: it was already.
    pub fn release(&mut self, store: &dyn Store, id: LeaseId) -> bool {
        let Some(lease) = self.leases.remove(&id) else {
            return false;
        };
        self.give_back(&lease.endpoint, lease.tokens);
        self.write_own(store, &lease.endpoint);
        true
    }

    /// The endpoint's loads died with it. What is released later counts no more.
    pub fn reset(&mut self, store: &dyn Store, endpoint: &str) {
        let before = self.leases.len();
        self.leases.retain(|_, lease| lease.endpoint != endpoint);
        if self.leases.len() < before
            && let Some(own) = self.own.get_mut(endpoint)
        {
            (own.loads, own.tokens) = (0, 0);
            self.write_own(store, endpoint);
        }
    }

    /// The load is counted still.
    pub fn holds(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Nothing is in flight, and nothing left to write.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.own.is_empty()
    }

    /// Endpoints at which this VM has loads in flight.
    pub fn endpoints(&self) -> SortedSet<String> {
        let leases = self.leases.values();
        leases.map(|lease| lease.endpoint.clone()).collect()
    }

    /// The timer: gives up what takes too long, shows that this VM lives, and takes out the slots
    /// of those that do not.
    pub fn tick(&mut self, store: &dyn Store, now_ms: u64) -> Tick {
        let mut tick = Tick {
            timed_out: self.time_out(now_ms),
            ..Tick::default()
        };
        let last = self.last_tick_ms;
        if last.is_some_and(|last| last <= now_ms && now_ms.saturating_sub(last) < TICK_SPACING_MS)
        {
            self.write_dirty(store);
            return tick;
        }
        self.last_tick_ms = Some(now_ms);
        self.beat = self.beat.wrapping_add(1);
        let mut in_flight = SortedMap::new();
        let mut seen = Vec::new();
        for number in 0..LOADS_BUCKETS {
            let lost = self.sweep(store, number, &mut seen, &mut in_flight);
            tick.lost_slots = tick.lost_slots.saturating_add(lost);
        }
        self.seen = seen.into();
        self.own.retain(|_, own| own.loads > 0 || own.dirty);
        tick.in_flight = Some(in_flight);
        tick
    }

    fn time_out(&mut self, now_ms: u64) -> u32 {
        let mut over = Vec::new();
        self.leases.retain(|_, lease| {
            let Phase::Waiting { since_ms } = &mut lease.phase else {
                return true;
            };
            // The clock stepped back: it starts anew rather than never to end.
            *since_ms = now_ms.min(*since_ms);
            let keep = now_ms.saturating_sub(*since_ms) < lease.max_ms;
            if !keep {
                over.push((std::mem::take(&mut lease.endpoint), lease.tokens));
            }
            keep
        });
        for (endpoint, tokens) in &over {
            self.give_back(endpoint, *tokens);
            // Written by the tick.
            self.own_mut(endpoint).dirty = true;
        }
        u32::try_from(over.len()).unwrap_or(u32::MAX)
    }

    fn write_dirty(&mut self, store: &dyn Store) {
        let dirty = self.own.iter().filter(|(_, own)| own.dirty);
        let dirty: Vec<String> = dirty.map(|(endpoint, _)| endpoint.clone()).collect();
        for endpoint in dirty {
            self.write_own(store, &endpoint);
        }
    }

    /// One bucket of a tick; the number of slots taken out.
    fn sweep(
        &mut self,
        store: &dyn Store,
        number: u64,
        seen: &mut Vec<((String, u64), Seen)>,
        in_flight: &mut SortedMap<String, InFlight>,
    ) -> u32 {
        for _ in 0..TRIES {
            let Ok((mut record, cas)) = read(store, number) else {
                return 0;
            };
            let before = record.clone();
            let (slots, lost) = self.look(&before);
            for (endpoint, vm) in &lost {
                record.remove(endpoint, *vm);
            }
            self.put_own(&mut record, number);
            let written = if record == before {
                Ok(())
            } else {
                let Some(value) = record.encode() else {
                    return 0;
                };
                store.set(&loads_bucket_key(number), &value, cas)
            };
            match written {
                Ok(()) => self.written(number),
                Err(StoreError::CasMismatch) => continue,
                // The next tick tries again.
                Err(StoreError::Host(_)) => return 0,
            }
            for (endpoint, _, slot) in record.iter() {
                let sum: &mut InFlight = in_flight.entry(endpoint.to_owned()).or_default();
                *sum = sum.plus(slot.loads, slot.tokens);
            }
            seen.extend(slots);
            return u32::try_from(lost.len()).unwrap_or(u32::MAX);
        }
        0
    }

    /// The foreign slots of a record as they are seen now, and those of lost VMs.
    #[allow(clippy::type_complexity)]
    fn look(&self, record: &LoadsRecord) -> (Vec<((String, u64), Seen)>, Vec<(String, u64)>) {
        let mut slots = Vec::new();
        let mut lost = Vec::new();
        for (endpoint, vm, slot) in record.iter().filter(|(_, vm, _)| Some(*vm) != self.me) {
            let key = (endpoint.to_owned(), vm);
            let still = match self.seen.get(&key) {
                Some(seen) if seen.slot == slot => seen.still.saturating_add(1),
                _ => 0,
            };
            if still >= PATIENCE {
                lost.push(key);
            } else {
                slots.push((key, Seen { slot, still }));
            }
        }
        (slots, lost)
    }

    /// This VM's slots of a bucket, as they are.
    fn put_own(&self, record: &mut LoadsRecord, number: u64) {
        let Some(me) = self.me else { return };
        for (endpoint, own) in &self.own {
            if bucket(endpoint, LOADS_BUCKETS) != number {
                continue;
            }
            match own.loads {
                0 => record.remove(endpoint, me),
                loads => record.set(
                    endpoint,
                    me,
                    Slot {
                        beat: self.beat,
                        loads,
                        tokens: own.tokens,
                    },
                ),
            }
        }
    }

    fn written(&mut self, number: u64) {
        let own = self.own.iter_mut();
        for (_, own) in own.filter(|(name, _)| bucket(name, LOADS_BUCKETS) == number) {
            own.dirty = false;
        }
    }

    /// Makes the endpoint's slot what it is, or leaves it to the next tick.
    fn write_own(&mut self, store: &dyn Store, endpoint: &str) {
        let number = bucket(endpoint, LOADS_BUCKETS);
        for _ in 0..TRIES {
            let Ok((mut record, cas)) = read(store, number) else {
                break;
            };
            let before = record.clone();
            self.put_own(&mut record, number);
            if record == before {
                self.written(number);
                return;
            }
            let Some(value) = record.encode() else { break };
            match store.set(&loads_bucket_key(number), &value, cas) {
                Ok(()) => {
                    self.written(number);
                    return;
                }
                Err(StoreError::CasMismatch) => {}
                Err(StoreError::Host(_)) => break,
            }
        }
        self.own_mut(endpoint).dirty = true;
    }

    fn give_back(&mut self, endpoint: &str, tokens: u64) {
        let own = self.own_mut(endpoint);
        own.loads = own.loads.saturating_sub(1);
        own.tokens = own.tokens.saturating_sub(tokens);
    }

    fn own(&self, endpoint: &str) -> Own {
        self.own.get(endpoint).copied().unwrap_or_default()
    }

    fn own_mut(&mut self, endpoint: &str) -> &mut Own {
        self.own.entry(endpoint.to_owned()).or_default()
    }

    /// This VM's number, unlike any other's in the store.
    fn number(&mut self, store: &dyn Store) -> Result<u64, Problem> {
        if let Some(me) = self.me {
            return Ok(me);
        }
        let mut number = 0u64;
        let written = update(store, LOADS_VMS_KEY, TRIES, &mut |old| {
            let last: u64 = old
                .and_then(|old| std::str::from_utf8(old).ok())
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            number = last.checked_add(1)?;
            Some(number.to_string().into_bytes())
        });
        match written {
            Ok(_) if number > 0 => Ok(*self.me.insert(number)),
            _ => Err(Problem::Store),
        }
    }
}

/// A bucket and the `cas` to write it with. One that is malformed is another version's, or
/// nobody's: every VM adds itself again with its next tick.
fn read(store: &dyn Store, number: u64) -> Result<(LoadsRecord, u32), Problem> {
    match store.get(&loads_bucket_key(number)) {
        Ok(None) => Ok((LoadsRecord::default(), CREATE)),
        Ok(Some(stored)) => {
            let record = LoadsRecord::decode(&stored.value).unwrap_or_default();
            Ok((record, stored.cas))
        }
        Err(_) => Err(Problem::Store),
    }
}

#[cfg(test)]
mod tests;
