//! The gates of one VM: at most [`MAX_GATES`] different ones at a time (DESIGN 6). Each costs every
//! endpoint a state in shared data.
//!
//! A configuration may always have that many of its own: a worker that refuses what Envoy's main
//! thread took fails its VM, and while a new configuration takes over from an old one both are
//! there. Route metadata, which is judged by request, gets the places that are left.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::policy::gate::GateParams;

/// Different gates a configuration, or else a VM, may have at a time.
pub const MAX_GATES: usize = 16;

/// The places of a VM's gates. Clones share them; a configuration's policies give theirs back
/// when they are dropped.
#[derive(Clone, Debug, Default)]
pub struct GateRegistry(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    places: RefCell<Vec<Weak<Held>>>,
    /// Counts places given back: a gate that found none may try again when it changes.
    freed: Cell<u64>,
}

#[derive(Debug)]
struct Held {
    gate: GateParams,
    registry: Weak<Inner>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(inner) = self.registry.upgrade() {
            inner.freed.set(inner.freed.get().wrapping_add(1));
        }
    }
}

/// A policy's hold on its gate's place, or none if it has no gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(#[expect(dead_code, reason = "held for its drop")] Option<Rc<Held>>);

/// A place says no more than the gate, which the policy has too.
impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl GateRegistry {
    pub fn new() -> Self {
        Self::default()
    }

    /// The different gates now in use.
    pub fn gates(&self) -> Vec<GateParams> {
        let places = self.0.places.borrow();
        let held = places.iter().filter_map(Weak::upgrade);
        held.map(|held| held.gate).collect()
    }

    /// A place for this gate; None if [`MAX_GATES`] others have all of them.
    pub(super) fn place(&self, gate: GateParams) -> Option<Place> {
        self.place_among(gate, MAX_GATES)
    }

    fn place_among(&self, gate: GateParams, max: usize) -> Option<Place> {
        let mut places = self.0.places.borrow_mut();
        places.retain(|place| place.strong_count() > 0);
        let mut held = places.iter().filter_map(Weak::upgrade);
        if let Some(held) = held.find(|held| held.gate == gate) {
            return Some(Place(Some(held)));
        }
        if places.len() >= max {
            return None;
        }
        let held = Rc::new(Held {
            gate,
            registry: Rc::downgrade(&self.0),
        });
        places.push(Rc::downgrade(&held));
        Some(Place(Some(held)))
    }

    pub(super) fn freed(&self) -> u64 {
        self.0.freed.get()
    }
}

/// The gates of one configuration, while it is read.
pub(super) struct Own<'a> {
    registry: &'a GateRegistry,
    gates: RefCell<Vec<GateParams>>,
}

impl<'a> Own<'a> {
    pub fn new(registry: &'a GateRegistry) -> Self {
        Self {
            registry,
            gates: RefCell::default(),
        }
    }

    /// A place for this gate; None if the configuration has [`MAX_GATES`] others.
    pub fn place(&self, gate: GateParams) -> Option<Place> {
        let mut gates = self.gates.borrow_mut();
        if !gates.contains(&gate) {
            if gates.len() >= MAX_GATES {
                return None;
            }
            gates.push(gate);
        }
        self.registry.place_among(gate, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn gate(max: u32) -> GateParams {
        GateParams {
            max_waiting: NonZeroU32::new(max).unwrap(),
            half_life_ms: 2_000,
            reopen_ratio: 0.5,
            max_sample_age_ms: 10_000,
        }
    }

    #[test]
    fn sixteen_places_and_no_more() {
        let registry = GateRegistry::new();
        let mut places: Vec<Place> = (1..=16).map(|n| registry.place(gate(n)).unwrap()).collect();
        assert!(registry.place(gate(17)).is_none());
        assert_eq!(registry.gates(), (1..=16).map(gate).collect::<Vec<_>>());
        // A gate that is there already shares its place.
        let again = registry.place(gate(1)).unwrap();
        drop(places.remove(0));
        assert!(registry.place(gate(17)).is_none());
        assert_eq!(registry.freed(), 0);
        // The last holder gives it back.
        drop(again);
        assert_eq!(registry.freed(), 1);
        assert!(registry.clone().place(gate(17)).is_some());
        assert_eq!(registry.gates().len(), 15);
    }

    #[test]
    fn a_configuration_has_its_sixteen_whatever_others_have() {
        let registry = GateRegistry::new();
        let _others: Vec<Place> = (1..=16).map(|n| registry.place(gate(n)).unwrap()).collect();
        let own = Own::new(&registry);
        let _places: Vec<Place> = (16..=31).map(|n| own.place(gate(n)).unwrap()).collect();
        assert!(own.place(gate(16)).is_some());
        assert!(own.place(gate(1)).is_none());
        assert_eq!(registry.gates().len(), 31);
        assert!(registry.place(gate(99)).is_none());
    }
}
