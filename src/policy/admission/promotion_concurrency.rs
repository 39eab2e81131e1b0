//! `promotion_concurrency`: refuses a load while as many as allowed are in flight at the endpoint.

use super::loads::{Denied, Limits};
use super::{
    AdmissionPolicy, Completion, Job, MetricDef, PolicyType, REFUSALS, Refusal, Reset, State,
    Ticket, World,
};

/// Its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionConcurrency {
    pub limits: Limits,
    /// After this time a load that nobody can see the end of counts as over, ms.
    pub max_promotion_ms: u64,
}

impl PromotionConcurrency {
    /// As in the RFC.
    pub const DEFAULT_MAX_LOADS: u32 = 512;
    pub const DEFAULT_MAX_PROMOTION_MS: u64 = 5_000;
}

/// Requests that are loading, over all workers.
pub const LOADS: MetricDef = MetricDef {
    name: "selective_kv_loads_in_flight",
    gauge: true,
    labels: &["endpoint"],
};

/// External tokens that are being loaded, over all workers.
pub const LOAD_TOKENS: MetricDef = MetricDef {
    name: "selective_kv_load_tokens_in_flight",
    gauge: true,
    labels: &["endpoint"],
};

/// Loads that are over, by what showed it.
pub const LOADS_ENDED: MetricDef = MetricDef {
    name: "selective_kv_loads_ended_total",
    gauge: false,
    labels: &["event"],
};

/// Why loads could not be counted, and slots of lost workers.
pub const LOAD_PROBLEMS: MetricDef = MetricDef {
    name: "selective_kv_load_problems_total",
    gauge: false,
    labels: &["kind"],
};

fn refused(denied: Denied) -> Refusal {
    Refusal {
        policy: PolicyType::PromotionConcurrency,
        tier: None,
        problem: match denied {
            Denied::Limit => None,
            Denied::Uncounted(problem) => Some(problem),
        },
    }
}

impl AdmissionPolicy for PromotionConcurrency {
    fn should_admit(&self, job: &Job<'_>, state: &State, world: World<'_>) -> Result<(), Refusal> {
        let Job::Load { endpoint, tokens } = *job else {
            return Ok(());
        };
        // What cannot be read is for `on_admitted` to refuse, with the reason.
        match state.loads.in_flight(world.store, endpoint) {
            Some(in_flight) if !self.limits.admit(in_flight, tokens) => Err(refused(Denied::Limit)),
            _ => Ok(()),
        }
    }

    fn on_admitted(
        &self,
        job: &Job<'_>,
        ticket: &mut Ticket,
        state: &mut State,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let Job::Load { endpoint, tokens } = *job else {
            return Ok(());
        };
        // Part of a composite in which another part counts this load already: once is enough.
        if let Some(lease) = ticket.lease {
            return state
                .loads
                .check(world.store, lease, self.limits, self.max_promotion_ms)
                .map_err(refused);
        }
        let max_ms = self.max_promotion_ms;
        let lease = state
            .loads
            .acquire(world.store, endpoint, tokens, self.limits, max_ms)
            .map_err(refused)?;
        ticket.lease = Some(lease);
        Ok(())
    }

    fn on_completed(&self, done: &mut Completion<'_>, state: &mut State, world: World<'_>) {
        if let Completion::Load(ticket) = done
            && let Some(lease) = ticket.lease.take()
        {
            state.loads.release(world.store, lease);
        }
    }

    fn reset(&self, endpoint: &str, why: Reset, state: &mut State, world: World<'_>) {
        match why {
            Reset::EndpointLeft | Reset::EndpointRestarted => {
                state.loads.reset(world.store, endpoint);
            }
            Reset::PolicyChanged => {}
        }
    }

    fn metrics(&self) -> &'static [MetricDef] {
        &[REFUSALS, LOADS, LOAD_TOKENS, LOADS_ENDED, LOAD_PROBLEMS]
    }
}
