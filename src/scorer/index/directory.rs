//! Names: which endpoint has which slot of the index, and which bit stands for which tier.

use super::held::MAX_TIERS;
use super::ranks::endpoint_of;
use super::wire::{In, Out};
use crate::sorted::SortedMap;

const FORMAT: u8 = 1;

/// Longest tier name, in bytes.
const MAX_TIER_BYTES: usize = 40;

/// One slot's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub endpoint: String,
    /// Endpoints of one group run the same model the same way: shared tiers are one for all.
    pub group: String,
}

/// The directory record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Directory {
    /// The scorer whose index it is.
    pub scorer: String,
    /// Of the newest writer: every change of the writer has a higher one.
    pub term: u64,
    pub tiers: Vec<String>,
    pub slots: SortedMap<u16, Owner>,
}

impl Directory {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.byte(FORMAT).text(&self.scorer).number(self.term);
        out.number(self.tiers.len() as u64);
        for tier in &self.tiers {
            out.text(tier);
        }
        for (slot, owner) in &self.slots {
            out.number(u64::from(*slot));
            out.text(&owner.endpoint).text(&owner.group);
        }
        out.bytes
    }

    /// `None` for what this version did not write.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = In { rest: value };
        if rest.byte()? != FORMAT {
            return None;
        }
        let mut directory = Self {
            scorer: rest.text()?.to_owned(),
            term: rest.number()?,
            ..Self::default()
        };
        for _ in 0..rest.number()? {
            directory.tiers.push(rest.text()?.to_owned());
        }
        let mut slots = Vec::new();
        while !rest.rest.is_empty() {
            let slot = u16::try_from(rest.number()?).ok()?;
            let owner = Owner {
                endpoint: rest.text()?.to_owned(),
                group: rest.text()?.to_owned(),
            };
            slots.push((slot, owner));
        }
        directory.slots = slots.into();
        (directory.tiers.len() <= MAX_TIERS).then_some(directory)
    }

    pub fn slot(&self, endpoint: &str) -> Option<(u16, &Owner)> {
        let mut slots = self.slots.iter();
        slots
            .find(|(_, owner)| owner.endpoint == endpoint)
            .map(|(slot, owner)| (*slot, owner))
    }

    /// The lowest slot below `max` that nobody has.
    pub fn free_slot(&self, max: u16) -> Option<u16> {
        (0..max).find(|slot| !self.slots.contains_key(slot))
    }

    /// The tier's bit; `None` if it is not listed.
    pub fn tier(&self, name: &str) -> Option<u16> {
        let at = self.tiers.iter().position(|tier| tier == name)?;
        1u16.checked_shl(u32::try_from(at).ok()?)
    }

    /// Lists a tier; false if there is no bit left or the name is no tier's.
    pub fn add_tier(&mut self, name: &str) -> bool {
        let fits = self.tiers.len() < MAX_TIERS && (1..=MAX_TIER_BYTES).contains(&name.len());
        if fits {
            self.tiers.push(name.to_owned());
        }
        fits
    }
}

/// The directory as it was read last, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listed {
    /// Its version.
    pub cas: u32,
    pub directory: Directory,
    by_name: SortedMap<String, u16>,
}

impl Listed {
    pub fn new(cas: u32, directory: Directory) -> Self {
        let slots = directory.slots.iter();
        let by_name = slots.map(|(slot, owner)| (owner.endpoint.clone(), *slot));
        Self {
            cas,
            by_name: by_name.collect(),
            directory,
        }
    }

    pub fn slot(&self, name: &str) -> Option<u16> {
        self.by_name.get(name).copied()
    }

    /// Ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The slots of an endpoint: its own or those of its ranks.
    pub fn publishers(&self, endpoint: &str) -> impl Iterator<Item = (u16, &str)> {
        // Names that begin with the endpoint's follow each other.
        self.by_name
            .iter_from(endpoint)
            .take_while(move |(name, _)| name.starts_with(endpoint))
            .filter(move |(name, _)| endpoint_of(name) == endpoint)
            .map(|(name, slot)| (*slot, name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;

    #[test]
    fn a_directory_survives_its_record() {
        let mut directory = Directory {
            scorer: "pool-a".to_owned(),
            term: NOW,
            ..Directory::default()
        };
        assert_eq!(
            Directory::decode(&directory.encode()),
            Some(directory.clone())
        );
        for i in 0..MAX_TIERS {
            assert!(directory.add_tier(&format!("tier{i}")));
        }
        assert!(!directory.add_tier("one more"));
        assert_eq!(directory.tier("tier0"), Some(1));
        assert_eq!(directory.tier("tier14"), Some(1 << 14));
        assert_eq!(directory.tier("tier15"), None);
        for slot in [0, 1, 3] {
            let owner = Owner {
                endpoint: format!("10.0.0.{slot}:8000"),
                group: "m".to_owned(),
            };
            directory.slots.insert(slot, owner);
        }
        assert_eq!(
            Directory::decode(&directory.encode()),
            Some(directory.clone())
        );
        assert_eq!(directory.slot("10.0.0.3:8000").map(|s| s.0), Some(3));
        assert_eq!(directory.slot("10.0.0.2:8000"), None);
        assert_eq!(directory.free_slot(4), Some(2));
        assert_eq!(directory.free_slot(2), None);
        let bytes = directory.encode();
        assert_eq!(Directory::decode(&bytes[..bytes.len() - 1]), None);
        assert!(!Directory::default().add_tier(&"x".repeat(41)));
    }

    #[test]
    fn ranks_are_found_by_their_endpoint() {
        let names = [
            "10.0.0.7:800",
            "10.0.0.7:8000/1",
            "10.0.0.7:8001",
            "10.0.0.7:8000/0",
            "10.0.0.7:8000-x",
        ];
        let owner = |name: &str| Owner {
            endpoint: name.to_owned(),
            group: String::new(),
        };
        let slots = (0..).zip(names).map(|(slot, name)| (slot, owner(name)));
        let listed = Listed::new(
            1,
            Directory {
                slots: slots.collect(),
                ..Directory::default()
            },
        );
        let of = |endpoint| listed.publishers(endpoint).map(|p| p.0).collect::<Vec<_>>();
        assert_eq!(of("10.0.0.7:800"), [0]);
        assert_eq!(of("10.0.0.7:8000"), [3, 1]);
        assert_eq!(of("10.0.0.7:8001"), [2]);
        assert_eq!(of("10.0.0.7:80").len(), 0);
        assert_eq!(listed.slot("10.0.0.7:8000"), None);
    }
}
