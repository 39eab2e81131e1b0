//! The timer's part of admission: what the records say is consumed though no request asks, loads
//! that take too long are given up, and endpoints that left or started anew are forgotten.

use crate::sorted::{SortedMap, SortedSet};
use std::rc::Rc;

use super::{Admission, Completion, CostReading, PolicyType, Reset, State, World, loads};
use crate::contract::loads_record::InFlight;
use crate::contract::queue::QueueEntry;

/// What a round found.
#[derive(Debug, Default, PartialEq)]
pub struct Round {
    /// Loads that were given up after their longest time.
    pub timed_out: u32,
    /// Slots of lost VMs that were taken out.
    pub lost_slots: u32,
    /// By endpoint, over all VMs; None: nothing new.
    pub in_flight: Option<SortedMap<String, InFlight>>,
    pub costs: Vec<CostReading>,
    pub resets: Vec<(String, Reset)>,
}

/// The endpoints as the records have them now.
pub struct Fleet<'a> {
    pub entries: &'a [(&'a str, &'a QueueEntry)],
    /// Fresh writers of `members` leave the endpoint out.
    pub is_unlisted: &'a dyn Fn(&str) -> bool,
}

impl State {
    /// One round of the timer for these policies, each once.
    pub fn round(
        &mut self,
        policies: &[Rc<Admission>],
        fleet: &Fleet<'_>,
        world: World<'_>,
    ) -> Round {
        let mut round = Round::default();
        self.resets(policies, fleet, world, &mut round);
        for (endpoint, entry) in fleet.entries {
            if entry.stores.is_empty() || (fleet.is_unlisted)(endpoint) {
                continue;
            }
            let mut done = Completion::Stores {
                endpoint,
                stores: &entry.stores,
            };
            for policy in policies {
                policy.policy().on_completed(&mut done, self, world);
            }
        }
        let counts = policies
            .iter()
            .any(|policy| policy.has(PolicyType::PromotionConcurrency));
        if counts || !self.loads.is_empty() {
            let loads::Tick {
                timed_out,
                lost_slots,
                in_flight,
            } = self.loads.tick(world.store, world.now_ms);
            (round.timed_out, round.lost_slots) = (timed_out, lost_slots);
            round.in_flight = in_flight;
        }
        round.costs = self.costs.readings(world.now_ms);
        round
    }

    fn resets(
        &mut self,
        policies: &[Rc<Admission>],
        fleet: &Fleet<'_>,
        world: World<'_>,
        round: &mut Round,
    ) {
        for (endpoint, entry) in fleet.entries {
            if self.restarts.see(endpoint, entry) {
                round
                    .resets
                    .push(((*endpoint).to_owned(), Reset::EndpointRestarted));
            }
        }
        let mut known: SortedSet<String> = self.loads.endpoints();
        known.extend(self.costs.endpoints());
        // Once when it leaves: what still goes there counts as ever.
        self.left.retain(|endpoint| (fleet.is_unlisted)(endpoint));
        for endpoint in known {
            if (fleet.is_unlisted)(&endpoint) && self.left.insert(endpoint.clone()) {
                round.resets.push((endpoint, Reset::EndpointLeft));
            }
        }
        for (endpoint, why) in &round.resets {
            for policy in policies {
                policy.policy().reset(endpoint, *why, self, world);
            }
            // Another configuration of this VM may have policies of its own, and its round will
            // not see again what this one saw.
            self.loads.reset(world.store, endpoint);
            self.costs.forget_endpoint(endpoint);
        }
    }

    /// An operator configured other policies.
    pub fn policies_changed(&mut self, policies: &[Rc<Admission>], world: World<'_>) {
        let known = self.costs.endpoints();
        for endpoint in &known {
            for policy in policies {
                policy
                    .policy()
                    .reset(endpoint, Reset::PolicyChanged, self, world);
            }
        }
        // And what the old ones knew.
        self.costs.clear();
    }
}
