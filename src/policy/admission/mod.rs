//! Admission policies: may this request's load, or its offload, go ahead now (DESIGN 11; the design of
//! vLLM's tiering admission RFC, vllm#51240, brought to the proxy).
//!
//! Two kinds of job at an endpoint: a *load* (a promotion: the request may load, and has external
//! tokens) and an *offload* (a cascade: what it computes may be stored). A policy judges one of
//! them, or both, and lets the other pass.
//!
//! | type | judges | state |
//! |---|---|---|
//! | `always_admit` | – | – |
//! | `promotion_concurrency` | loads | loads in flight, over all workers ([`loads`]) |
//! | `cascade_backpressure` | offloads | an average of what storing costs ([`cost`]) |
//! | `composite` | what its parts judge | theirs |

mod cascade_backpressure;
mod composite;
pub mod config;
pub mod cost;
mod costs;
pub mod first_event;
pub mod loads;
mod promotion_concurrency;
mod restarts;
pub mod rounds;

use crate::sorted::SortedSet;
use std::fmt;

use crate::contract::store::Store;
use crate::contract::stores::Stores;
use loads::{LeaseId, Loads};
use restarts::Restarts;

pub use cascade_backpressure::{ACTIVE, CascadeBackpressure, STORE_COST};
pub use composite::{AlwaysAdmit, Composite};
pub use config::Admission;
pub use costs::{Costs, Reading as CostReading};
pub use promotion_concurrency::{
    LOAD_PROBLEMS, LOAD_TOKENS, LOADS, LOADS_ENDED, PromotionConcurrency,
};

/// What a policy is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job<'a> {
    /// This request may load, and has this many external tokens to load.
    Load { endpoint: &'a str, tokens: u64 },
    /// What this request computes may be stored outside the GPU.
    Offload { endpoint: &'a str },
}

/// A job that ended.
#[derive(Debug)]
pub enum Completion<'a> {
    /// The loading of an admitted request is over, however it ended.
    Load(&'a mut Ticket),
    /// What the endpoint has stored, by its own counters: each interval between two samples in
    /// which bytes were stored is one completion.
    Stores {
        endpoint: &'a str,
        stores: &'a Stores,
    },
}

/// What an admitted request holds. It has to come back by [`Completion::Load`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Ticket {
    pub(crate) lease: Option<LeaseId>,
}

impl Ticket {
    /// The load that this ticket has in flight; None if nobody counts it.
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease
    }
}

/// Why a policy forgets what it knows of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Fresh writers of `members` leave it out.
    EndpointLeft,
    /// Its counters went back.
    EndpointRestarted,
    /// An operator configured another policy. Loads in flight are facts and stay.
    PolicyChanged,
}

/// A refusal, by the policy that refuses: in a composite the first part that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub policy: PolicyType,
    /// Of an offload: the tier under pressure, as metrics label it.
    pub tier: Option<&'static str>,
    /// The count could not be written, so nobody could vouch for it.
    pub problem: Option<loads::Problem>,
}

/// The types that refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyType {
    PromotionConcurrency,
    CascadeBackpressure,
}

impl PolicyType {
    pub const ALL: [Self; 2] = [Self::PromotionConcurrency, Self::CascadeBackpressure];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PromotionConcurrency => "promotion_concurrency",
            Self::CascadeBackpressure => "cascade_backpressure",
        }
    }
}

impl fmt::Display for PolicyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What policies know: one for each VM. All that must hold over all workers is in the store.
#[derive(Debug, Default)]
pub struct State {
    pub loads: Loads,
    pub costs: Costs,
    restarts: Restarts,
    /// Endpoints that left and were reset for it.
    left: SortedSet<String>,
}

/// The world as it is when a policy is called.
#[derive(Clone, Copy)]
pub struct World<'a> {
    pub store: &'a dyn Store,
    /// Unix ms.
    pub now_ms: u64,
}

/// A metric of a policy, for whoever shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDef {
    pub name: &'static str,
    pub gauge: bool,
    pub labels: &'static [&'static str],
}

/// `tier` is `-` for loads.
pub const REFUSALS: MetricDef = MetricDef {
    name: "selective_kv_admission_refusals_total",
    gauge: false,
    labels: &["direction", "policy", "tier"],
};

/// One admission policy. The state is an argument, so that a policy is no more than its
/// configuration.
pub trait AdmissionPolicy {
    /// Whether the job may go ahead; changes nothing.
    ///
    /// # Errors
    /// Who refuses, and why.
    fn should_admit(&self, job: &Job<'_>, state: &State, world: World<'_>) -> Result<(), Refusal>;

    /// The job goes ahead. What must be counted is counted now, in `ticket`.
    ///
    /// # Errors
    /// It cannot be counted after all: another worker was faster. The ticket is then as before.
    fn on_admitted(
        &self,
        _job: &Job<'_>,
        _ticket: &mut Ticket,
        _state: &mut State,
        _world: World<'_>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn on_completed(&self, _done: &mut Completion<'_>, _state: &mut State, _world: World<'_>) {}

    /// Forgets what it knows of the endpoint.
    fn reset(&self, _endpoint: &str, _why: Reset, _state: &mut State, _world: World<'_>) {}

    fn metrics(&self) -> &'static [MetricDef] {
        &[]
    }
}

impl State {
    /// Asks, and admits: `should_admit`, then `on_admitted`.
    ///
    /// # Errors
    /// The refusal; nothing is held then.
    pub fn admit(
        &mut self,
        admission: &Admission,
        job: &Job<'_>,
        world: World<'_>,
    ) -> Result<Ticket, Refusal> {
        let policy = admission.policy();
        policy.should_admit(job, self, world)?;
        let mut ticket = Ticket::default();
        policy.on_admitted(job, &mut ticket, self, world)?;
        Ok(ticket)
    }
}
