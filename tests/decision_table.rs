//! DESIGN 4's table, row by row, and what becomes of the caps.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::rc::Rc;

use selective_kv::body::{Cap, Edits};
use selective_kv::policy::config::{Policy, PolicySet};
use selective_kv::policy::decision::{
    Age, EvidenceState, LoadDecision, LoadFacts, OffloadDecision, decide_load, decide_offload,
    edits, load_cap, offload_cap,
};
use selective_kv::policy::gate::GateVerdict;
use selective_kv::policy::reason::{Action, Reason};
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
                };
                let expected = decision(action, Reason::Policy, None);
                assert_eq!(decide_load(&policy, &facts), expected);
            }
        }
    }
}

#[test]
fn offload_is_independent() {
    for (config, action) in [
        ("", Action::Preserve),
        (THRESHOLD, Action::Preserve),
        (r#"{"offloadPolicy":"disable"}"#, Action::Disable),
        (
            r#"{"loadPolicy":"disable","offloadPolicy":"preserve"}"#,
            Action::Preserve,
        ),
    ] {
        let reason = Reason::Policy;
        let expected = OffloadDecision { action, reason };
        assert_eq!(decide_offload(&policy(config)), expected, "{config}");
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
            let both = Edits {
                load,
                offload: offload_cap(other),
            };
            assert_eq!(edits(&over, action, other), both);
            // What a dry run would send is thrown away later.
            assert_eq!(edits(&dry, action, other), both);
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
