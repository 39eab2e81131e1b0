//! From layers to an effective policy: defaults, and the rules across keys.

use std::num::NonZeroU32;

use super::layer::{Layer, LoadKind};
use super::registry::MAX_GATES;
use super::{
    ClientCaps, EndpointSource, LoadPolicy, OffloadPolicy, PathSet, Policy, defaults, registry,
};
use crate::config::{ConfigError, Json, Place};
use crate::policy::admission::{Admission, PolicyType};
use crate::policy::gate::GateParams;

/// Why a layer gives no policy. The second may change without a new configuration.
pub(super) enum Refused {
    Invalid(ConfigError),
    NoPlace(ConfigError),
}

impl From<Refused> for ConfigError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid(error) | Refused::NoPlace(error) => error,
        }
    }
}

/// Gives a gate its place among the VM's, if there is one.
pub(super) type Gates<'a> = dyn Fn(GateParams) -> Option<registry::Place> + 'a;

/// `effective` is `own` over the layers below it; `place` is where `own` was written.
pub(super) fn policy(
    effective: Layer,
    own: &Layer,
    place: &Place,
    gates: &Gates<'_>,
) -> Result<Policy, Refused> {
    let (load, gate_place) = load(&effective, own, place, gates)?;
    let offload = effective.offload.unwrap_or(OffloadPolicy::Preserve);
    let admission = effective.admission.unwrap_or_default();
    asks_somebody(place, offload, &admission).map_err(Refused::Invalid)?;
    Ok(Policy {
        load,
        gate_place,
        offload,
        admission,
        default_load_tiers: effective.default_load_tiers.flatten(),
        max_evidence_age_ms: effective
            .max_evidence_age_ms
            .unwrap_or(defaults::MAX_EVIDENCE_AGE_MS),
        client_caps: effective.client_caps.unwrap_or(ClientCaps::Override),
        dry_run: effective.dry_run.unwrap_or(false),
        max_held_bytes: effective.max_held_bytes.unwrap_or(defaults::MAX_HELD_BYTES),
        max_held_bytes_per_vm: effective
            .max_held_bytes_per_vm
            .unwrap_or(defaults::MAX_HELD_BYTES_PER_VM),
        evidence_header: effective.evidence_header.flatten(),
        paths: effective.paths.map_or_else(PathSet::default, PathSet::new),
        endpoint_sources: effective.endpoint_sources.unwrap_or_else(|| {
            vec![
                EndpointSource::Upstream,
                EndpointSource::Header,
                EndpointSource::Metadata,
            ]
        }),
    })
}

fn load(
    effective: &Layer,
    own: &Layer,
    place: &Place,
    gates: &Gates<'_>,
) -> Result<(LoadPolicy, registry::Place), Refused> {
    let (name, policy) = match effective.load.unwrap_or(LoadKind::Preserve) {
        LoadKind::Threshold => return threshold(effective, place, gates),
        LoadKind::Preserve => ("preserve", LoadPolicy::Preserve),
        LoadKind::Disable => ("disable", LoadPolicy::Disable),
    };
    match own.max_waiting {
        Some(max) if max > 0 => {
            let field = place.member("maxWaitingRequests");
            let value = Json::Unsigned(u64::from(max));
            let rule = format!(
                "more than 0 needs loadPolicy \"threshold\", and loadPolicy is \"{name}\" here"
            );
            Err(Refused::Invalid(ConfigError::conflict(
                field, &value, &rule,
            )))
        }
        _ => Ok((policy, registry::Place::default())),
    }
}

/// What an admission policy could refuse and nobody asks it is allowed: a base is there for its
/// routes. Asking it without one that could refuse is a mistake.
fn asks_somebody(
    place: &Place,
    offload: OffloadPolicy,
    admission: &Admission,
) -> Result<(), ConfigError> {
    if offload == OffloadPolicy::Backpressure && !admission.has(PolicyType::CascadeBackpressure) {
        let field = place.member("offloadPolicy");
        let value = Json::Text("backpressure".to_owned());
        let rule = "it needs an admission policy cascade_backpressure";
        return Err(ConfigError::conflict(field, &value, rule));
    }
    Ok(())
}

fn threshold(
    effective: &Layer,
    place: &Place,
    gates: &Gates<'_>,
) -> Result<(LoadPolicy, registry::Place), Refused> {
    let Some(min_tokens) = effective.min_tokens else {
        let field = place.member("minExternalReusableTokens");
        let rule = "loadPolicy \"threshold\" needs it, a whole number of tokens greater than 0";
        return Err(Refused::Invalid(ConfigError::missing(field, rule)));
    };
    let Some(max_waiting) = effective.max_waiting.and_then(NonZeroU32::new) else {
        let gate = None;
        let policy = LoadPolicy::Threshold { min_tokens, gate };
        return Ok((policy, registry::Place::default()));
    };
    let gate = GateParams {
        max_waiting,
        half_life_ms: effective.half_life_ms.unwrap_or(defaults::HALF_LIFE_MS),
        reopen_ratio: effective.reopen_ratio.unwrap_or(defaults::REOPEN_RATIO),
        max_sample_age_ms: effective
            .max_sample_age_ms
            .unwrap_or(defaults::MAX_SAMPLE_AGE_MS),
    };
    let Some(held) = gates(gate) else {
        let field = place.member("maxWaitingRequests");
        let value = Json::Unsigned(u64::from(max_waiting.get()));
        let rule = format!(
            "one gate too many: at most {MAX_GATES} different combinations of maxWaitingRequests, \
             ewmaHalfLife, reopenRatio and maxSampleAge in a VM"
        );
        return Err(Refused::NoPlace(ConfigError::conflict(
            field, &value, &rule,
        )));
    };
    let gate = Some(gate);
    Ok((LoadPolicy::Threshold { min_tokens, gate }, held))
}
