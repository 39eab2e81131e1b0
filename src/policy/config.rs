//! The configuration (DESIGN 8): strict JSON in three layers, compiled to policies that cannot
//! hold a nonsense state.
//!
//! Effective policy = base ← first matching `routes` entry ← route metadata, field by field.
//!
//! Decisions where the rules leave room:
//! - Each key is checked by itself wherever it stands. The rules across keys
//!   (`minExternalReusableTokens` is required for threshold, `maxWaitingRequests` > 0 only with
//!   threshold) hold for the effective policy. A layer that sets `maxWaitingRequests` > 0 *itself*
//!   while its effective load policy is another is wrong; one inherited from a layer below is
//!   ignored, and takes effect again if a layer above says threshold.
//! - A `routes` entry is judged on top of the base when the configuration loads.
//! - Whole numbers may be spelt as floats (`1024.0`, `1.024e3`): Istio passes its configuration
//!   through a protobuf `Struct`, which knows doubles only.
//! - `null` is a value for `evidenceHeader` and `defaultLoadTiers` alone (off).
//! - A layer must not ask for what would do nothing: `offloadPolicy` *pressure* and the admission
//!   policy `promotion_concurrency` need threshold, `cascade_backpressure` needs `offloadPolicy`
//!   *backpressure*, and that needs `cascade_backpressure`.

mod compile;
mod layer;
mod metadata;
mod registry;
mod set;

use std::num::NonZeroU64;
use std::rc::Rc;

use super::admission::Admission;
use super::gate::GateParams;
use super::route::PathSet;
use super::tiers::TierFilter;

pub use crate::config::ConfigError;
pub use registry::{GateRegistry, MAX_GATES};
pub use set::{PolicySet, RouteError};

/// The keys' defaults.
mod defaults {
    pub const HALF_LIFE_MS: u64 = 2_000;
    pub const REOPEN_RATIO: f64 = 0.5;
    pub const MAX_SAMPLE_AGE_MS: u64 = 10_000;
    pub const MAX_EVIDENCE_AGE_MS: u64 = 30_000;
    pub const MAX_HELD_BYTES: usize = 16 * 1024 * 1024;
    pub const MAX_HELD_BYTES_PER_VM: usize = 128 * 1024 * 1024;
}

/// One effective policy, compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub load: LoadPolicy,
    pub offload: OffloadPolicy,
    pub admission: Rc<Admission>,
    /// Added as `kv_load_tiers` where the client sent none.
    pub default_load_tiers: Option<TierFilter>,
    /// Milliseconds.
    pub max_evidence_age_ms: u64,
    pub client_caps: ClientCaps,
    /// Decide, count and report, but edit nothing.
    pub dry_run: bool,
    /// Bytes of one request's body.
    pub max_held_bytes: usize,
    /// Bytes over all requests of a VM.
    pub max_held_bytes_per_vm: usize,
    /// In lower case.
    pub evidence_header: Option<String>,
    pub paths: PathSet,
    /// Tried in this order; each at most once.
    pub endpoint_sources: Vec<EndpointSource>,
    /// Keeps the gate's place among the VM's [`MAX_GATES`].
    gate_place: registry::Place,
}

impl Policy {
    /// False: preserve and preserve, nothing to decide for this route.
    pub fn is_active(&self) -> bool {
        let offload = match self.offload {
            OffloadPolicy::Preserve => false,
            // Without a rule for loads none is ever refused.
            OffloadPolicy::Pressure => matches!(self.load, LoadPolicy::Threshold { .. }),
            OffloadPolicy::Disable | OffloadPolicy::Backpressure => true,
        };
        self.load != LoadPolicy::Preserve || offload || self.default_load_tiers.is_some()
    }

    /// The queue gate, if the load policy has one.
    pub fn gate(&self) -> Option<&GateParams> {
        match &self.load {
            LoadPolicy::Threshold { gate, .. } => gate.as_ref(),
            LoadPolicy::Preserve | LoadPolicy::Disable => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadPolicy {
    Preserve,
    Disable,
    Threshold {
        /// External reusable tokens from which loading is admitted.
        min_tokens: NonZeroU64,
        gate: Option<GateParams>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadPolicy {
    Preserve,
    Disable,
    /// Disabled exactly while the load is refused for pressure: with loads disabled and offloads on
    /// the engine recomputes and writes the same blocks out again.
    Pressure,
    /// As the admission policy says.
    Backpressure,
}

/// Whether *enable* removes a client's own `max_load_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCaps {
    Override,
    Respect,
}

/// Where the endpoint of a request is read from (DESIGN 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointSource {
    /// `upstream.address`.
    Upstream,
    /// `x-gateway-destination-endpoint`, its first entry.
    Header,
    /// The same key in dynamic metadata `envoy.lb`.
    Metadata,
}
