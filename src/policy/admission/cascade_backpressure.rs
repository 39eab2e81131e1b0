//! `cascade_backpressure`: refuses offloads to an endpoint of which a tier is slow to store.

use std::cmp::Ordering;

use super::cost::{LOCAL, REMOTE, Rule, Water};
use super::{
    AdmissionPolicy, Completion, Job, MetricDef, PolicyType, REFUSALS, Refusal, Reset, State, World,
};
use crate::policy::tiers;

/// Its configuration.
#[derive(Clone, Copy, Debug)]
pub struct CascadeBackpressure {
    /// Seconds per MiB. None: of [`LOCAL`] or [`REMOTE`], by the tier.
    pub high_water: Option<f64>,
    /// The same. The one that is given moves the other's default where the two would cross.
    pub low_water: Option<f64>,
    pub alpha: f64,
    pub warmup: u32,
}

impl CascadeBackpressure {
    pub const DEFAULT_ALPHA: f64 = 0.3;
    pub const DEFAULT_WARMUP: u32 = 3;

    pub fn rule(&self, tier: &str) -> Rule {
        let usual = if tiers::is_remote(tier) {
            REMOTE
        } else {
            LOCAL
        };
        let high = match (self.high_water, self.low_water) {
            (Some(high), _) => high,
            (None, Some(low)) => usual.high.max(low),
            (None, None) => usual.high,
        };
        let low = self.low_water.unwrap_or(usual.low.min(high));
        Rule {
            water: Water { high, low },
            alpha: self.alpha,
            warmup: self.warmup,
        }
    }

    fn identity(&self) -> (Option<u64>, Option<u64>, u64, u32) {
        let high = self.high_water.map(f64::to_bits);
        let low = self.low_water.map(f64::to_bits);
        (high, low, self.alpha.to_bits(), self.warmup)
    }
}

impl PartialEq for CascadeBackpressure {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for CascadeBackpressure {}

impl PartialOrd for CascadeBackpressure {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CascadeBackpressure {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

/// 1 while a tier of the endpoint is under pressure.
pub const ACTIVE: MetricDef = MetricDef {
    name: "selective_kv_backpressure_active",
    gauge: true,
    labels: &["endpoint", "tier"],
};

/// The average cost of storing, µs per MiB.
pub const STORE_COST: MetricDef = MetricDef {
    name: "selective_kv_store_cost_micros_per_mib",
    gauge: true,
    labels: &["endpoint", "tier"],
};

impl AdmissionPolicy for CascadeBackpressure {
    fn should_admit(&self, job: &Job<'_>, state: &State, world: World<'_>) -> Result<(), Refusal> {
        let Job::Offload { endpoint } = job else {
            return Ok(());
        };
        match state.costs.under_pressure(self, endpoint, world.now_ms) {
            None => Ok(()),
            Some(tier) => Err(Refusal {
                policy: PolicyType::CascadeBackpressure,
                tier: Some(tiers::label(tier)),
                problem: None,
            }),
        }
    }

    fn on_completed(&self, done: &mut Completion<'_>, state: &mut State, _world: World<'_>) {
        if let Completion::Stores { endpoint, stores } = done {
            state.costs.observe(self, endpoint, stores);
        }
    }

    fn reset(&self, endpoint: &str, _why: Reset, state: &mut State, _world: World<'_>) {
        state.costs.forget(self, endpoint);
    }

    fn metrics(&self) -> &'static [MetricDef] {
        &[REFUSALS, ACTIVE, STORE_COST]
    }
}
