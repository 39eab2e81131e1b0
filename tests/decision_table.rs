//! DESIGN 4's table, row by row, and what becomes of the caps.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::rc::Rc;

use selective_kv::body::{Cap, Edits};
use selective_kv::policy::admission::PolicyType;
use selective_kv::policy::config::{Policy, PolicySet};
use selective_kv::policy::decision::{
    Age, EvidenceState, LoadDecision, LoadFacts, OffloadDecision, decide_load, decide_offload,
    edits, load_cap, offload_cap, supported_load, supported_offload,
};
use selective_kv::policy::engine::{Engine, Feature};
use selective_kv::policy::gate::GateVerdict;
use selective_kv::policy::reason::{Action, Reason};
use selective_kv::policy::tiers::TierFilter;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NOW: u64 = 1_800_000_000_000;
const THRESHOLD: &str =
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":8}"#;

fn policy(config: &str) -> Rc<Policy> {
    PolicySet::parse(config.as_bytes()).unwrap().base().clone()
}

const fn found(tokens: u64) -> EvidenceState {
    EvidenceState::Found {
        tokens,
        partial: false,
        age: FRESH,
    }
}

const fn partial(tokens: u64) -> EvidenceState {
    EvidenceState::Found {
        tokens,
        partial: true,
        age: FRESH,
    }
}

const FRESH: Age = at(NOW);

const fn at(t_ms: u64) -> Age {
    Age::At { t_ms, now_ms: NOW }
}

/// The endpoint is known, the gate open.
const fn with(evidence: EvidenceState) -> LoadFacts {
    LoadFacts {
        endpoint_known: true,
        evidence,
        gate: Some(GateVerdict::Open),
        refused_by: None,
    }
}

const fn refused(evidence: EvidenceState, verdict: GateVerdict) -> LoadFacts {
    LoadFacts {
        refused_by: Some(PolicyType::PromotionConcurrency),
        ..gated(evidence, verdict)
    }
}

const fn gated(evidence: EvidenceState, verdict: GateVerdict) -> LoadFacts {
    LoadFacts {
        gate: Some(verdict),
        ..with(evidence)
    }
}

fn decision(action: Action, reason: Reason, tokens: Option<u64>) -> LoadDecision {
    LoadDecision {
        action,
        reason,
        tokens,
    }
}

#[test]
fn every_row_of_threshold() {
    use Action::{Disable, Enable, Preserve};
    use EvidenceState::{Invalid, None as NoEvidence};
    let policy = policy(THRESHOLD);
    let unknown = |evidence, gate| LoadFacts {
        endpoint_known: false,
        evidence,
        gate,
        refused_by: None,
    };
    let aged = |tokens, partial, age| {
        with(EvidenceState::Found {
            tokens,
            partial,
            age,
        })
    };
    let closed = Some(GateVerdict::Closed);
    for (facts, action, reason, tokens) in [
        // No endpoint comes before everything else.
        (
            unknown(NoEvidence, None),
            Preserve,
            Reason::NoEndpoint,
            None,
        ),
        (
            unknown(found(2048), closed),
            Preserve,
            Reason::NoEndpoint,
            None,
        ),
        (with(NoEvidence), Preserve, Reason::NoEvidence, None),
        (
            gated(NoEvidence, GateVerdict::Closed),
            Preserve,
            Reason::NoEvidence,
            None,
        ),
        // Stale is strictly more than maxEvidenceAge, 30 s, either way.
        (
            aged(2048, false, at(NOW - 30_000)),
            Enable,
            Reason::Admitted,
            Some(2048),
        ),
        (
            aged(2048, false, at(NOW - 30_001)),
            Preserve,
            Reason::StaleEvidence,
            Some(2048),
        ),
        (
            aged(2048, false, at(NOW + 30_000)),
            Enable,
            Reason::Admitted,
            Some(2048),
        ),
        (
            aged(2048, false, at(NOW + 30_001)),
            Preserve,
            Reason::StaleEvidence,
            Some(2048),
        ),
        (
            aged(2048, false, at(0)),
            Preserve,
            Reason::StaleEvidence,
            Some(2048),
        ),
        (
            aged(2048, false, at(u64::MAX)),
            Preserve,
            Reason::StaleEvidence,
            Some(2048),
        ),
        // It comes before what the evidence says.
        (
            aged(1023, false, at(NOW - 30_001)),
            Preserve,
            Reason::StaleEvidence,
            Some(1023),
        ),
        (
            aged(0, true, at(NOW - 30_001)),
            Preserve,
            Reason::StaleEvidence,
            Some(0),
        ),
        (
            with(Invalid {
                age: at(NOW - 30_001),
            }),
            Preserve,
            Reason::StaleEvidence,
            None,
        ),
        // A header has no age.
        (
            aged(2048, false, Age::Now),
            Enable,
            Reason::Admitted,
            Some(2048),
        ),
        (
            with(Invalid { age: Age::Now }),
            Preserve,
            Reason::InvalidEvidence,
            None,
        ),
        (
            with(Invalid { age: FRESH }),
            Preserve,
            Reason::InvalidEvidence,
            None,
        ),
        // Exactly the minimum is admitted.
        (with(found(1024)), Enable, Reason::Admitted, Some(1024)),
        (
            with(found(u64::MAX)),
            Enable,
            Reason::Admitted,
            Some(u64::MAX),
        ),
        (
            with(found(1023)),
            Disable,
            Reason::BelowThreshold,
            Some(1023),
        ),
        (with(found(0)), Disable, Reason::BelowThreshold, Some(0)),
        // Partial evidence can admit, never disable.
        (
            with(partial(1023)),
            Preserve,
            Reason::PartialEvidence,
            Some(1023),
        ),
        (with(partial(0)), Preserve, Reason::PartialEvidence, Some(0)),
        (with(partial(1024)), Enable, Reason::Admitted, Some(1024)),
        // The gate is asked last, and only a closed one counts.
        (
            gated(found(1023), GateVerdict::Closed),
            Disable,
            Reason::BelowThreshold,
            Some(1023),
        ),
        (
            gated(partial(1023), GateVerdict::Closed),
            Preserve,
            Reason::PartialEvidence,
            Some(1023),
        ),
        (
            gated(found(1024), GateVerdict::Closed),
            Disable,
            Reason::QueuePressure,
            Some(1024),
        ),
        (
            gated(partial(1024), GateVerdict::Closed),
            Disable,
            Reason::QueuePressure,
            Some(1024),
        ),
        (
            gated(found(1024), GateVerdict::Stale),
            Enable,
            Reason::Admitted,
            Some(1024),
        ),
        (
            gated(found(1024), GateVerdict::NoSamples),
            Enable,
            Reason::Admitted,
            Some(1024),
        ),
        (
            gated(found(1024), GateVerdict::Unlisted),
            Enable,
            Reason::Admitted,
            Some(1024),
        ),
        // Admission is asked behind the gate, and what it refuses has its name.
        (
            refused(found(1024), GateVerdict::Open),
            Disable,
            Reason::PromotionConcurrency,
            Some(1024),
        ),
        (
            refused(partial(1024), GateVerdict::Stale),
            Disable,
            Reason::PromotionConcurrency,
            Some(1024),
        ),
        (
            refused(found(1024), GateVerdict::Closed),
            Disable,
            Reason::QueuePressure,
            Some(1024),
        ),
        (
            refused(found(1023), GateVerdict::Open),
            Disable,
            Reason::BelowThreshold,
            Some(1023),
        ),
        (
            LoadFacts {
                gate: None,
                ..with(found(1024))
            },
            Enable,
            Reason::Admitted,
            Some(1024),
        ),
    ] {
        let expected = decision(action, reason, tokens);
        assert_eq!(decide_load(&policy, &facts), expected, "{facts:?}");
    }
}

#[test]
fn preserve_and_disable_look_at_nothing() {
    for (config, action) in [
        ("", Action::Preserve),
        (r#"{"loadPolicy":"preserve"}"#, Action::Preserve),
        (r#"{"loadPolicy":"disable"}"#, Action::Disable),
    ] {
        let policy = policy(config);
        for endpoint_known in [false, true] {
            for evidence in [EvidenceState::None, found(0), found(u64::MAX)] {
                let facts = LoadFacts {
                    endpoint_known,
                    evidence,
                    gate: Some(GateVerdict::Closed),
                    refused_by: Some(PolicyType::PromotionConcurrency),
                };
                let expected = decision(action, Reason::Policy, None);
                assert_eq!(decide_load(&policy, &facts), expected);
            }
        }
    }
}

#[test]
fn what_becomes_of_offloads() {
    use Action::{Disable, Enable, Preserve};
    let load = |action, reason| decision(action, reason, Some(2048));
    let loads = [
        load(Enable, Reason::Admitted),
        load(Preserve, Reason::NoEvidence),
        load(Disable, Reason::Policy),
        load(Disable, Reason::BelowThreshold),
        load(Disable, Reason::QueuePressure),
        load(Disable, Reason::PromotionConcurrency),
        // Refused for pressure, but the engine would not listen: it loads.
        load(Preserve, Reason::EngineUnsupported),
    ];
    let keep = (Preserve, Reason::Policy);
    let stop = (Disable, Reason::Policy);
    let pressed = [
        keep,
        keep,
        keep,
        keep,
        (Disable, Reason::QueuePressure),
        (Disable, Reason::PromotionConcurrency),
        keep,
    ];
    let slow = (Disable, Reason::CascadeBackpressure);
    // (configuration, by load; the same while the admission policy refuses)
    let pressure =
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"offloadPolicy":"pressure"}"#;
    let backpressure =
        r#"{"offloadPolicy":"backpressure","admission":{"type":"cascade_backpressure"}}"#;
    for (config, admitted, refused) in [
        ("", [keep; 7], [keep; 7]),
        (THRESHOLD, [keep; 7], [keep; 7]),
        (r#"{"offloadPolicy":"disable"}"#, [stop; 7], [stop; 7]),
        (
            r#"{"loadPolicy":"disable","offloadPolicy":"preserve"}"#,
            [keep; 7],
            [keep; 7],
        ),
        (pressure, pressed, pressed),
        (backpressure, [keep; 7], [slow; 7]),
    ] {
        let policy = policy(config);
        for (i, load) in loads.iter().enumerate() {
            for (refused_by, expected) in [
                (None, admitted[i]),
                (Some(PolicyType::CascadeBackpressure), refused[i]),
            ] {
                let OffloadDecision { action, reason } = decide_offload(&policy, load, refused_by);
                assert_eq!(
                    (action, reason),
                    expected,
                    "{config} {load:?} {refused_by:?}"
                );
            }
        }
    }
}

#[test]
fn what_the_engine_would_ignore_is_not_decided() {
    use Action::{Disable, Enable, Preserve};
    use Feature::{KvLoadTiers, MaxLoadTokens, MaxOffloadTokens};
    let enable = decision(Enable, Reason::Admitted, Some(2048));
    let keep = decision(Preserve, Reason::NoEvidence, None);
    let disable = decision(Disable, Reason::BelowThreshold, Some(7));
    let none = |tokens| decision(Preserve, Reason::EngineUnsupported, tokens);
    // (version, load, tiers to add, then what becomes of it)
    for (version, load, adds_tiers, expected, ignored) in [
        (None, disable, true, disable, None),
        (None, enable, true, enable, None),
        (Some("0.31.0"), disable, true, disable, None),
        (
            Some("0.30.0"),
            disable,
            false,
            none(Some(7)),
            Some(MaxLoadTokens),
        ),
        (
            Some("0.30.0"),
            disable,
            true,
            none(Some(7)),
            Some(MaxLoadTokens),
        ),
        (Some("0.30.0"), enable, true, enable, None),
        (Some("0.30.0"), keep, true, keep, None),
        (Some("0.26.0"), enable, false, enable, None),
        (
            Some("0.26.0"),
            enable,
            true,
            none(Some(2048)),
            Some(KvLoadTiers),
        ),
        (Some("0.26.0"), keep, true, none(None), Some(KvLoadTiers)),
        (
            Some("0.26.0"),
            disable,
            true,
            none(Some(7)),
            Some(MaxLoadTokens),
        ),
    ] {
        let engine = Engine::known(Some("vllm"), version);
        let found = supported_load(load, engine, adds_tiers);
        assert_eq!(
            found,
            (expected, ignored),
            "{version:?} {load:?} {adds_tiers}"
        );
    }
    for (version, action, expected, ignored) in [
        (None, Disable, Disable, None),
        (Some("0.23.0"), Disable, Disable, None),
        (Some("0.22.0"), Disable, Preserve, Some(MaxOffloadTokens)),
        (Some("0.22.0"), Preserve, Preserve, None),
    ] {
        let engine = Engine::known(Some("vllm"), version);
        let offload = OffloadDecision {
            action,
            reason: Reason::Policy,
        };
        let (found, feature) = supported_offload(offload, engine);
        assert_eq!((found.action, feature), (expected, ignored), "{version:?}");
        let reason = match ignored {
            Some(_) => Reason::EngineUnsupported,
            None => Reason::Policy,
        };
        assert_eq!(found.reason, reason, "{version:?}");
    }
}

#[test]
fn what_becomes_of_the_caps() {
    let of = |extra: &str| {
        policy(&format!(
            r#"{{"loadPolicy":"threshold","minExternalReusableTokens":1{extra}}}"#
        ))
    };
    let over = of("");
    let respect = of(r#","clientCaps":"respect""#);
    let dry = of(r#","dryRun":true"#);
    for (action, load, respected, offload) in [
        (Action::Preserve, Cap::Keep, Cap::Keep, Cap::Keep),
        (Action::Disable, Cap::SetZero, Cap::SetZero, Cap::SetZero),
        (Action::Enable, Cap::Remove, Cap::Keep, Cap::Keep),
    ] {
        assert_eq!(load_cap(&over, action), load);
        assert_eq!(load_cap(&respect, action), respected);
        assert_eq!(offload_cap(action), offload);
        for other in Action::ALL {
            let both = Edits::caps(load, offload_cap(other));
            assert_eq!(edits(&over, action, other, None), both);
            // What a dry run would send is thrown away later.
            assert_eq!(edits(&dry, action, other, None), both);
            // A default for the tiers is for requests that may load.
            let tiers = Some(TierFilter::PRIMARY_ONLY);
            let load_tiers = tiers.filter(|_| action != Action::Disable);
            let all = Edits { load_tiers, ..both };
            assert_eq!(edits(&over, action, other, tiers), all);
        }
    }
}

#[test]
fn names() {
    let actions = Action::ALL.map(Action::as_str);
    assert_eq!(actions, ["preserve", "disable", "enable"]);
    let design = [
        ("invalid_route_config", true),
        ("disaggregated", true),
        ("not_json", true),
        ("held_limit", true),
        ("policy", false),
        ("no_endpoint", false),
        ("no_evidence", false),
        ("stale_evidence", false),
        ("invalid_evidence", false),
        ("partial_evidence", false),
        ("below_threshold", false),
        ("queue_pressure", false),
        ("promotion_concurrency", false),
        ("cascade_backpressure", false),
        ("engine_unsupported", false),
        ("admitted", false),
    ];
    for (name, wide) in design {
        let mut reasons = Reason::ALL.into_iter();
        let reason = reasons.find(|reason| reason.as_str() == name).unwrap();
        assert_eq!(reason.is_request_wide(), wide, "{name}");
        if wide {
            let load = LoadDecision::request_wide(reason);
            assert_eq!(load, decision(Action::Preserve, reason, None));
            let offload = OffloadDecision::request_wide(reason);
            assert_eq!(offload.action, Action::Preserve);
        }
    }
}
