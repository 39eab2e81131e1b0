//! The store costs of all endpoints, tier by tier, as one VM has them.
//!
//! Nothing here is shared: the samples are, and every VM comes to the same state from them. Losing
//! it loses no more than what the newest samples of the record do not tell.

use crate::sorted::{SortedMap, SortedSet};

use super::cascade_backpressure::CascadeBackpressure;
use super::cost::{self, CostState};
use crate::contract::stores::Stores;
use crate::policy::tiers::label;

/// Endpoints, each once for every different policy; past this all are made anew from the record.
const MAX_KEPT: usize = 2048;

type Tiers = SortedMap<String, CostState>;

#[derive(Debug, Default)]
pub struct Costs {
    kept: SortedMap<(String, CascadeBackpressure), Tiers>,
}

/// What storing costs at one endpoint, for gauges.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub endpoint: String,
    /// As metrics label it.
    pub tier: &'static str,
    /// Seconds per MiB; of several policies and tiers of one label the largest. None: warming up.
    pub cost: Option<f64>,
    /// At least one policy refuses for it.
    pub under_pressure: bool,
}

impl Costs {
    /// Consumes what is new. Tiers that the endpoint no longer has are forgotten.
    pub fn observe(&mut self, policy: &CascadeBackpressure, endpoint: &str, stores: &Stores) {
        if stores.is_empty() && self.kept.is_empty() {
            return;
        }
        if self.kept.len() >= MAX_KEPT {
            self.kept.clear();
        }
        let key = (endpoint.to_owned(), *policy);
        let before = self.kept.remove(&key).unwrap_or_default();
        let after = stores.iter().filter_map(|(tier, history)| {
            let rule = policy.rule(tier);
            let state = cost::consume(before.get(tier).copied(), history, &rule)?;
            Some((tier.clone(), state))
        });
        let after: Tiers = after.collect();
        if !after.is_empty() {
            self.kept.insert(key, after);
        }
    }

    /// The first tier of the endpoint that is under pressure.
    pub fn under_pressure(
        &self,
        policy: &CascadeBackpressure,
        endpoint: &str,
        now_ms: u64,
    ) -> Option<&str> {
        let tiers = self.kept.get(&(endpoint.to_owned(), *policy))?;
        let pressed = |(tier, state): &(&String, &CostState)| {
            state.is_under_pressure(&policy.rule(tier), now_ms)
        };
        tiers.iter().find(pressed).map(|(tier, _)| tier.as_str())
    }

    /// Forgets an endpoint, under one policy.
    pub fn forget(&mut self, policy: &CascadeBackpressure, endpoint: &str) {
        self.kept.remove(&(endpoint.to_owned(), *policy));
    }

    /// Forgets an endpoint, under every policy.
    pub fn forget_endpoint(&mut self, endpoint: &str) {
        self.kept.retain(|(name, _), _| name != endpoint);
    }

    /// Forgets everything: another configuration may make other averages.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    pub fn endpoints(&self) -> SortedSet<String> {
        let kept = self.kept.keys();
        kept.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    /// One for each endpoint and label.
    pub fn readings(&self, now_ms: u64) -> Vec<Reading> {
        let mut readings: SortedMap<(&str, &'static str), (Option<f64>, bool)> = SortedMap::new();
        for ((endpoint, policy), tiers) in &self.kept {
            for (tier, state) in tiers {
                let rule = policy.rule(tier);
                let (cost, pressed) = readings.entry((endpoint, label(tier))).or_default();
                if let Some(now) = state.cost(&rule, now_ms) {
                    *cost = Some(cost.map_or(now, |cost| cost.max(now)));
                }
                *pressed |= state.is_under_pressure(&rule, now_ms);
            }
        }
        let reading = |((endpoint, tier), (cost, under_pressure)): ((&str, _), _)| Reading {
            endpoint: endpoint.to_owned(),
            tier,
            cost,
            under_pressure,
        };
        readings.into_iter().map(reading).collect()
    }
}
