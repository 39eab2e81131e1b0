//! The decision table (DESIGN 4). Pure: what is known of the request is an argument.

use super::admission::PolicyType;
use super::config::{ClientCaps, LoadPolicy, OffloadPolicy, Policy};
use super::engine::{Engine, Feature};
use super::gate::GateVerdict;
use super::reason::{Action, Reason};
use super::tiers::TierFilter;
use crate::body::{Cap, Edits};

/// What the load row asks for. Under preserve and disable it is not looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadFacts {
    /// The endpoint that the request goes to is known.
    pub endpoint_known: bool,
    pub evidence: EvidenceState,
    /// None: no gate.
    pub gate: Option<GateVerdict>,
    /// The admission policy that refuses; it is asked when all else admits.
    pub refused_by: Option<PolicyType>,
}

impl LoadFacts {
    pub const NONE: Self = Self {
        endpoint_known: false,
        evidence: EvidenceState::None,
        gate: None,
        refused_by: None,
    };
}

/// Tier evidence for this request and endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EvidenceState {
    /// No record, or a malformed or foreign one, or an empty prompt list.
    None,
    /// The entry of a well-formed record is invalid.
    Invalid { age: Age },
    Found {
        /// External reusable tokens that the request's tier filter permits.
        tokens: u64,
        /// A lower bound only.
        partial: bool,
        age: Age,
    },
}

/// When evidence was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It came with the request (a header): it has no age.
    Now,
    /// Unix milliseconds: of the record, and by this host's clock.
    At { t_ms: u64, now_ms: u64 },
}

impl Age {
    /// Older than `max_ms`, or from the future by more than that.
    fn is_stale(self, max_ms: u64) -> bool {
        match self {
            Self::Now => false,
            Self::At { t_ms, now_ms } => now_ms.abs_diff(t_ms) > max_ms,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadDecision {
    pub action: Action,
    pub reason: Reason,
    /// External reusable tokens, if evidence was found (stale or not).
    pub tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadDecision {
    pub action: Action,
    pub reason: Reason,
}

/// The load row.
pub fn decide_load(policy: &Policy, facts: &LoadFacts) -> LoadDecision {
    let min_tokens = match policy.load {
        LoadPolicy::Preserve => return LoadDecision::bare(Action::Preserve, Reason::Policy),
        LoadPolicy::Disable => return LoadDecision::bare(Action::Disable, Reason::Policy),
        LoadPolicy::Threshold { min_tokens, .. } => min_tokens.get(),
    };
    if !facts.endpoint_known {
        return LoadDecision::bare(Action::Preserve, Reason::NoEndpoint);
    }
    let max_age_ms = policy.max_evidence_age_ms;
    let (tokens, partial, age) = match facts.evidence {
        EvidenceState::None => return LoadDecision::bare(Action::Preserve, Reason::NoEvidence),
        EvidenceState::Invalid { age } => {
            let reason = if age.is_stale(max_age_ms) {
                Reason::StaleEvidence
            } else {
                Reason::InvalidEvidence
            };
            return LoadDecision::bare(Action::Preserve, reason);
        }
        EvidenceState::Found {
            tokens,
            partial,
            age,
        } => (tokens, partial, age),
    };
    let (action, reason) = if age.is_stale(max_age_ms) {
        (Action::Preserve, Reason::StaleEvidence)
    } else if tokens < min_tokens {
        if partial {
            (Action::Preserve, Reason::PartialEvidence)
        } else {
            (Action::Disable, Reason::BelowThreshold)
        }
    } else if facts.gate.is_some_and(GateVerdict::vetoes) {
        (Action::Disable, Reason::QueuePressure)
    } else if let Some(policy) = facts.refused_by {
        (Action::Disable, policy.into())
    } else {
        (Action::Enable, Reason::Admitted)
    };
    LoadDecision {
        action,
        reason,
        tokens: Some(tokens),
    }
}

impl LoadDecision {
    /// Without evidence.
    const fn bare(action: Action, reason: Reason) -> Self {
        Self {
            action,
            reason,
            tokens: None,
        }
    }

    /// A request-wide reason: nothing is changed.
    pub const fn request_wide(reason: Reason) -> Self {
        Self::bare(Action::Preserve, reason)
    }
}

/// The offload row. `load` is the same request's, `refused_by` the admission policy that refuses
/// the offload; it is looked at under *backpressure* only.
pub fn decide_offload(
    policy: &Policy,
    load: &LoadDecision,
    refused_by: Option<PolicyType>,
) -> OffloadDecision {
    let reason = match policy.offload {
        OffloadPolicy::Preserve => None,
        OffloadPolicy::Disable => Some(Reason::Policy),
        OffloadPolicy::Pressure => {
            let refused = load.action == Action::Disable && load.reason.is_pressure();
            refused.then_some(load.reason)
        }
        OffloadPolicy::Backpressure => refused_by.map(Reason::from),
    };
    match reason {
        Some(reason) => OffloadDecision {
            action: Action::Disable,
            reason,
        },
        None => OffloadDecision {
            action: Action::Preserve,
            reason: Reason::Policy,
        },
    }
}

/// What the engine would ignore is not decided: a silent no-op must not pass for a policy. With it
/// comes what it does not know. `adds_tiers`: the route's `kv_load_tiers` are to be added unless
/// loads are disabled.
pub fn supported_load(
    load: LoadDecision,
    engine: Engine,
    adds_tiers: bool,
) -> (LoadDecision, Option<Feature>) {
    let needs = match load.action {
        Action::Disable => Some(Feature::MaxLoadTokens),
        Action::Preserve | Action::Enable => adds_tiers.then_some(Feature::KvLoadTiers),
    };
    match needs.filter(|feature| engine.ignores(*feature)) {
        None => (load, None),
        ignored => {
            let load = LoadDecision {
                action: Action::Preserve,
                reason: Reason::EngineUnsupported,
                ..load
            };
            (load, ignored)
        }
    }
}

/// The same for the offload.
pub fn supported_offload(
    offload: OffloadDecision,
    engine: Engine,
) -> (OffloadDecision, Option<Feature>) {
    let feature = Feature::MaxOffloadTokens;
    if offload.action == Action::Disable && engine.ignores(feature) {
        let reason = Reason::EngineUnsupported;
        return (OffloadDecision::request_wide(reason), Some(feature));
    }
    (offload, None)
}

impl OffloadDecision {
    /// Nothing is changed.
    pub const fn request_wide(reason: Reason) -> Self {
        let action = Action::Preserve;
        Self { action, reason }
    }
}

/// What becomes of `max_load_tokens`.
pub fn load_cap(policy: &Policy, action: Action) -> Cap {
    match (action, policy.client_caps) {
        (Action::Preserve, _) | (Action::Enable, ClientCaps::Respect) => Cap::Keep,
        (Action::Disable, _) => Cap::SetZero,
        (Action::Enable, ClientCaps::Override) => Cap::Remove,
    }
}

/// What becomes of `max_offload_tokens`.
pub fn offload_cap(action: Action) -> Cap {
    match action {
        Action::Disable => Cap::SetZero,
        Action::Preserve | Action::Enable => Cap::Keep,
    }
}

/// What the body editor is told. Under `dryRun` too: what it would send is thrown away.
pub fn edits(
    policy: &Policy,
    load: Action,
    offload: Action,
    load_tiers: Option<TierFilter>,
) -> Edits {
    Edits {
        load: load_cap(policy, load),
        offload: offload_cap(offload),
        load_tiers: load_tiers.filter(|_| load != Action::Disable),
    }
}
