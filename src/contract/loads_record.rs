//! The policy's private record of loads in flight, `selective-kv/1/loads/<bucket of endpoint>`: for
//! each endpoint one slot a VM.
//!
//! Read and written on the request path, so it is a flat binary form: one version byte, then
//! entries of `u16 length, endpoint, u64 vm, u32 beat, u32 loads, u64 tokens`, little endian.
//! Nobody else may rely on it.

use crate::sorted::SortedMap;

use super::{MAX_VALUE_BYTES, Malformed};

const FORMAT: u8 = 1;

/// Slots of one bucket: with the longest names they stay within [`MAX_VALUE_BYTES`].
pub const MAX_SLOTS: usize = 1024;

/// Longest endpoint name stored, in bytes.
const MAX_ENDPOINT_BYTES: usize = 128;

/// What one VM has in flight at one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Changes while the VM lives.
    pub beat: u32,
    pub loads: u32,
    /// External tokens of those loads.
    pub tokens: u64,
}

/// A sum of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    pub loads: u64,
    pub tokens: u64,
}

impl InFlight {
    #[must_use]
    pub fn plus(self, loads: u32, tokens: u64) -> Self {
        Self {
            loads: self.loads.saturating_add(u64::from(loads)),
            tokens: self.tokens.saturating_add(tokens),
        }
    }
}

/// All slots of one bucket, by endpoint and VM.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadsRecord {
    slots: SortedMap<String, SortedMap<u64, Slot>>,
}

impl LoadsRecord {
    /// An empty value is an empty record.
    ///
    /// # Errors
    /// Whatever this version did not write; start afresh then: each VM adds itself again.
    pub fn decode(value: &[u8]) -> Result<Self, Malformed> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(Malformed::TooLarge);
        }
        let mut record = Self::default();
        let Some((&format, mut rest)) = value.split_first() else {
            return Ok(record);
        };
        if format != FORMAT {
            return Err(Malformed::Version);
        }
        let mut count = 0usize;
        while !rest.is_empty() {
            count = count.saturating_add(1);
            if count > MAX_SLOTS {
                return Err(Malformed::TooLarge);
            }
            let (endpoint, vm, slot) = entry(&mut rest).ok_or(Malformed::Shape)?;
            record.set(endpoint, vm, slot);
        }
        Ok(record)
    }

    /// None if a slot does not fit: none may be left out, or its loads would not count.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![FORMAT];
        let mut count = 0usize;
        for (endpoint, vm, slot) in self.iter() {
            count = count.saturating_add(1);
            if count > MAX_SLOTS || endpoint.len() > MAX_ENDPOINT_BYTES {
                return None;
            }
            out.extend(u16::try_from(endpoint.len()).ok()?.to_le_bytes());
            out.extend(endpoint.as_bytes());
            out.extend(vm.to_le_bytes());
            out.extend(slot.beat.to_le_bytes());
            out.extend(slot.loads.to_le_bytes());
            out.extend(slot.tokens.to_le_bytes());
        }
        Some(out)
    }

    #[must_use]
    pub fn get(&self, endpoint: &str, vm: u64) -> Option<Slot> {
        self.slots.get(endpoint)?.get(&vm).copied()
    }

    pub fn set(&mut self, endpoint: &str, vm: u64, slot: Slot) {
        match self.slots.get_mut(endpoint) {
            Some(slots) => {
                slots.insert(vm, slot);
            }
            None => {
                let mut slots = SortedMap::new();
                slots.insert(vm, slot);
                self.slots.insert(endpoint.to_owned(), slots);
            }
        }
    }

    pub fn remove(&mut self, endpoint: &str, vm: u64) {
        if let Some(slots) = self.slots.get_mut(endpoint) {
            slots.remove(&vm);
            if slots.is_empty() {
                self.slots.remove(endpoint);
            }
        }
    }

    /// What all VMs but this one have in flight at the endpoint.
    #[must_use]
    pub fn others(&self, endpoint: &str, vm: u64) -> InFlight {
        let slots = self.slots.get(endpoint).into_iter().flatten();
        slots
            .filter(|(other, _)| **other != vm)
            .fold(InFlight::default(), |sum, (_, slot)| {
                sum.plus(slot.loads, slot.tokens)
            })
    }

    /// Every slot, by endpoint and VM.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, Slot)> {
        self.slots.iter().flat_map(|(endpoint, slots)| {
            slots
                .iter()
                .map(|(vm, slot)| (endpoint.as_str(), *vm, *slot))
        })
    }
}

/// Takes one entry off the front.
fn entry<'a>(rest: &mut &'a [u8]) -> Option<(&'a str, u64, Slot)> {
    let len = u16::from_le_bytes(*take(rest)?);
    let (endpoint, after) = rest.split_at_checked(usize::from(len))?;
    *rest = after;
    let vm = u64::from_le_bytes(*take(rest)?);
    let slot = Slot {
        beat: u32::from_le_bytes(*take(rest)?),
        loads: u32::from_le_bytes(*take(rest)?),
        tokens: u64::from_le_bytes(*take(rest)?),
    };
    Some((std::str::from_utf8(endpoint).ok()?, vm, slot))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const A: &str = "10.0.0.7:8000";

    fn slot(loads: u32, tokens: u64) -> Slot {
        Slot {
            beat: 9,
            loads,
            tokens,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut record = LoadsRecord::default();
        record.set(A, 1, slot(2, 100));
        record.set(A, 2, slot(3, u64::MAX));
        record.set("[::1]:8000", 1, slot(u32::MAX, 0));
        let bytes = record.encode().unwrap();
        assert_eq!(bytes.len(), 1 + 3 * (2 + 24) + 2 * 13 + 10);
        assert_eq!(LoadsRecord::decode(&bytes), Ok(record.clone()));
        assert_eq!(record.get(A, 2), Some(slot(3, u64::MAX)));
        let in_flight = |loads, tokens| InFlight { loads, tokens };
        assert_eq!(record.others(A, 2), in_flight(2, 100));
        assert_eq!(record.others(A, 7), in_flight(5, u64::MAX));
        assert_eq!(record.others("x", 7), in_flight(0, 0));
        record.remove(A, 1);
        record.remove(A, 2);
        record.remove(A, 2);
        assert_eq!(record.iter().count(), 1);
        assert_eq!(LoadsRecord::decode(b""), Ok(LoadsRecord::default()));
        assert_eq!(LoadsRecord::default().encode().unwrap(), [FORMAT]);
    }

    #[test]
    fn anything_else_is_malformed() {
        let mut record = LoadsRecord::default();
        record.set(A, 1, slot(2, 100));
        let good = record.encode().unwrap();
        for cut in 2..good.len() {
            let cut = &good[..cut];
            assert_eq!(LoadsRecord::decode(cut), Err(Malformed::Shape));
        }
        let mut bytes = good.clone();
        bytes[0] = 2;
        assert_eq!(LoadsRecord::decode(&bytes), Err(Malformed::Version));
        let mut bytes = good;
        bytes[3] = 0xff;
        assert_eq!(LoadsRecord::decode(&bytes), Err(Malformed::Shape));
        let entry = &record.encode().unwrap()[1..];
        let many = |n| [&[FORMAT], entry.repeat(n).as_slice()].concat();
        assert_eq!(LoadsRecord::decode(&many(MAX_SLOTS)), Ok(record));
        let more = many(MAX_SLOTS + 1);
        assert_eq!(LoadsRecord::decode(&more), Err(Malformed::TooLarge));
        let large = vec![FORMAT; MAX_VALUE_BYTES + 1];
        assert_eq!(LoadsRecord::decode(&large), Err(Malformed::TooLarge));
    }

    #[test]
    fn a_full_bucket_leaves_nobody_out() {
        let mut record = LoadsRecord::default();
        let long = "x".repeat(MAX_ENDPOINT_BYTES);
        for vm in 0..MAX_SLOTS as u64 {
            record.set(&long, vm, slot(1, 1));
        }
        assert!(record.encode().unwrap().len() <= MAX_VALUE_BYTES);
        record.set(A, 1, slot(1, 1));
        assert_eq!(record.encode(), None);
        let mut record = LoadsRecord::default();
        record.set(&"x".repeat(MAX_ENDPOINT_BYTES + 1), 1, slot(1, 1));
        assert_eq!(record.encode(), None);
    }
}
