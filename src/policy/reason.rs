//! Actions and reasons, as counters and access logs name them (DESIGN 4 and 10).

use std::fmt;

use super::admission::PolicyType;

/// What a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// `max_load_tokens`.
    Load,
    /// `max_offload_tokens`.
    Offload,
}

impl Direction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Offload => "offload",
        }
    }
}

/// What is done with one direction's cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Nothing is changed.
    Preserve,
    /// The cap becomes 0.
    Disable,
    /// The load cap is removed, unless the client's own is respected.
    Enable,
}

impl Action {
    pub const ALL: [Self; 3] = [Self::Preserve, Self::Disable, Self::Enable];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preserve => "preserve",
            Self::Disable => "disable",
            Self::Enable => "enable",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    // Of the whole request, first that holds; action preserve.
    InvalidRouteConfig,
    Disaggregated,
    NotJson,
    HeldLimit,
    /// The host did not let the body be read or edited.
    HostFailure,
    // Of one direction.
    Policy,
    NoEndpoint,
    NoEvidence,
    StaleEvidence,
    InvalidEvidence,
    PartialEvidence,
    BelowThreshold,
    QueuePressure,
    /// The admission policy of this type refuses.
    PromotionConcurrency,
    /// The same.
    CascadeBackpressure,
    /// The engine's version would ignore what was decided.
    EngineUnsupported,
    Admitted,
}

impl Reason {
    pub const ALL: [Self; 17] = [
        Self::InvalidRouteConfig,
        Self::Disaggregated,
        Self::NotJson,
        Self::HeldLimit,
        Self::HostFailure,
        Self::Policy,
        Self::NoEndpoint,
        Self::NoEvidence,
        Self::StaleEvidence,
        Self::InvalidEvidence,
        Self::PartialEvidence,
        Self::BelowThreshold,
        Self::QueuePressure,
        Self::PromotionConcurrency,
        Self::CascadeBackpressure,
        Self::EngineUnsupported,
        Self::Admitted,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRouteConfig => "invalid_route_config",
            Self::Disaggregated => "disaggregated",
            Self::NotJson => "not_json",
            Self::HeldLimit => "held_limit",
            Self::HostFailure => "host_failure",
            Self::Policy => "policy",
            Self::NoEndpoint => "no_endpoint",
            Self::NoEvidence => "no_evidence",
            Self::StaleEvidence => "stale_evidence",
            Self::InvalidEvidence => "invalid_evidence",
            Self::PartialEvidence => "partial_evidence",
            Self::BelowThreshold => "below_threshold",
            Self::QueuePressure => "queue_pressure",
            Self::PromotionConcurrency => PolicyType::PromotionConcurrency.as_str(),
            Self::CascadeBackpressure => PolicyType::CascadeBackpressure.as_str(),
            Self::EngineUnsupported => "engine_unsupported",
            Self::Admitted => "admitted",
        }
    }

    /// The load was refused because the engine, or its restore path, is under pressure.
    pub const fn is_pressure(self) -> bool {
        matches!(self, Self::QueuePressure | Self::PromotionConcurrency)
    }

    /// It applies to both directions.
    pub const fn is_request_wide(self) -> bool {
        matches!(
            self,
            Self::InvalidRouteConfig
                | Self::Disaggregated
                | Self::NotJson
                | Self::HeldLimit
                | Self::HostFailure
        )
    }
}

impl From<PolicyType> for Reason {
    fn from(policy: PolicyType) -> Self {
        match policy {
            PolicyType::PromotionConcurrency => Self::PromotionConcurrency,
            PolicyType::CascadeBackpressure => Self::CascadeBackpressure,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
