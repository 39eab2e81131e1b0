//! Good configurations and the exact policies that they give, over all three layers.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

use selective_kv::policy::config::{
    ClientCaps, EndpointSource, GateRegistry, LoadPolicy, OffloadPolicy, Policy, PolicySet,
};
use selective_kv::policy::gate::GateParams;
use selective_kv::policy::route::{DEFAULT_PATHS, PathSet, RouteFacts};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn set(config: &str) -> PolicySet {
    PolicySet::parse(config.as_bytes()).unwrap()
}

fn base(config: &str) -> Rc<Policy> {
    set(config).base().clone()
}

/// What no configuration gives, changed here and there.
fn defaults() -> Policy {
    Policy::clone(&base("{}"))
}

fn tokens(min: u64) -> NonZeroU64 {
    NonZeroU64::new(min).unwrap()
}

fn gate(max: u32) -> GateParams {
    GateParams {
        max_waiting: NonZeroU32::new(max).unwrap(),
        half_life_ms: 2_000,
        reopen_ratio: 0.5,
        max_sample_age_ms: 10_000,
    }
}

fn threshold(min: u64, gate: Option<GateParams>) -> LoadPolicy {
    let min_tokens = tokens(min);
    LoadPolicy::Threshold { min_tokens, gate }
}

const ON_NAME: RouteFacts<'_> = RouteFacts {
    route_name: Some("chat.0"),
    virtual_host: Some("models"),
    cluster: Some("llama"),
};

#[test]
fn the_defaults() {
    for nothing in ["", " \n", "{}"] {
        let policy = base(nothing);
        assert_eq!(policy.load, LoadPolicy::Preserve);
        assert_eq!(policy.offload, OffloadPolicy::Preserve);
        assert_eq!(policy.max_evidence_age_ms, 30_000);
        assert_eq!(policy.client_caps, ClientCaps::Override);
        assert!(!policy.dry_run);
        assert_eq!(policy.max_held_bytes, 16_777_216);
        assert_eq!(policy.max_held_bytes_per_vm, 134_217_728);
        assert_eq!(policy.evidence_header, None);
        assert_eq!(
            policy.paths,
            PathSet::new(DEFAULT_PATHS.map(str::to_owned).to_vec())
        );
        use EndpointSource::{Header, Metadata, Upstream};
        assert_eq!(policy.endpoint_sources, [Upstream, Header, Metadata]);
        assert!(!policy.is_active());
        assert_eq!(policy.gate(), None);
        assert_eq!(*policy.admission, Default::default());
        assert_eq!(policy.default_load_tiers, None);
    }
}

#[test]
fn every_key() {
    let policy = base(
        r#"{"loadPolicy":"threshold","offloadPolicy":"disable","minExternalReusableTokens":1536,
            "maxWaitingRequests":12,"ewmaHalfLife":"500ms","reopenRatio":0.25,"maxSampleAge":"5s",
            "maxEvidenceAge":"1m","clientCaps":"respect","dryRun":true,"maxHeldBytes":1024,
            "maxHeldBytesPerVm":4096,"evidenceHeader":"X-KV-Tier-Evidence","paths":["/b","/a"],
            "endpointSources":["metadata","upstream"],"routes":[]}"#,
    );
    let gate = GateParams {
        max_waiting: NonZeroU32::new(12).unwrap(),
        half_life_ms: 500,
        reopen_ratio: 0.25,
        max_sample_age_ms: 5_000,
    };
    assert_eq!(policy.load, threshold(1536, Some(gate)));
    assert_eq!(policy.gate(), Some(&gate));
    assert_eq!(policy.offload, OffloadPolicy::Disable);
    assert_eq!(policy.max_evidence_age_ms, 60_000);
    assert_eq!(policy.client_caps, ClientCaps::Respect);
    assert!(policy.dry_run);
    assert_eq!(policy.max_held_bytes, 1024);
    assert_eq!(policy.max_held_bytes_per_vm, 4096);
    assert_eq!(
        policy.evidence_header.as_deref(),
        Some("x-kv-tier-evidence")
    );
    assert!(policy.paths.contains(b"/a") && policy.paths.contains(b"/b"));
    assert!(!policy.paths.contains(b"/v1/completions"));
    use EndpointSource::{Metadata, Upstream};
    assert_eq!(policy.endpoint_sources, [Metadata, Upstream]);
    assert!(policy.is_active());
}

/// A base is there for its routes, which may ask what it does not.
#[test]
fn what_nobody_asks_is_allowed() {
    for text in [
        r#"{"admission":{"type":"promotion_concurrency"}}"#,
        r#"{"admission":{"type":"cascade_backpressure"}}"#,
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"offloadPolicy":"pressure",
            "admission":{"type":"composite","policies":[{"type":"promotion_concurrency"},
                         {"type":"cascade_backpressure"}]}}"#,
        r#"{"offloadPolicy":"pressure"}"#,
        r#"{"loadPolicy":"disable","defaultLoadTiers":[]}"#,
    ] {
        base(text);
    }
}

#[test]
fn admission_by_layer() {
    use selective_kv::policy::admission::Admission;
    use selective_kv::policy::tiers::{Locality, Medium, TierFilter};
    let promotions = |max: u32| {
        let text = format!(r#"{{"type":"promotion_concurrency","maxInflightPromotions":{max}}}"#);
        Rc::new(Admission::from_json(text.as_bytes()).unwrap())
    };
    let storage = TierFilter::of([(Some(Medium::Storage), None)]);
    let remote = TierFilter::of([
        (Some(Medium::Storage), Some(Locality::Remote)),
        (None, None),
    ]);
    let set = set(
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"offloadPolicy":"pressure",
            "admission":{"type":"promotion_concurrency","maxInflightPromotions":8},
            "defaultLoadTiers":[{"medium":"STORAGE"}],
            "routes":[{"match":{"cluster":"llama"},"loadPolicy":"disable"},
                      {"match":{"cluster":"b"},"loadPolicy":"preserve","defaultLoadTiers":null}]}"#,
    );
    let base = set.base();
    assert_eq!(base.admission, promotions(8));
    assert_eq!(base.default_load_tiers, Some(storage));
    assert_eq!(base.offload, OffloadPolicy::Pressure);
    assert!(base.is_active());
    // What a layer does not use is ignored, and takes effect again above it.
    let below = set.effective(&ON_NAME, None).unwrap();
    assert_eq!(below.load, LoadPolicy::Disable);
    let above = r#"{"loadPolicy":"threshold","admission":{"type":"promotion_concurrency","maxInflightPromotions":3},
        "defaultLoadTiers":[{"locality":"Remote","medium":"storage"},{}]}"#;
    let above = set.effective(&ON_NAME, Some(above)).unwrap();
    assert_eq!(above.admission, promotions(3));
    assert_eq!(above.default_load_tiers, Some(remote));
    let above = set
        .effective(&ON_NAME, Some(r#"{"loadPolicy":"threshold"}"#))
        .unwrap();
    assert_eq!(above.admission, promotions(8));
    // Offloads under pressure are nothing without a rule for loads.
    let b = RouteFacts {
        cluster: Some("b"),
        ..ON_NAME
    };
    let idle = set.effective(&b, None).unwrap();
    assert!(!idle.is_active());
    assert_eq!(idle.default_load_tiers, None);
    // A default for the tiers is something to do.
    assert!(self::base(r#"{"defaultLoadTiers":[]}"#).is_active());
    // Every different admission policy is there for the timer.
    let all: Vec<_> = set.policies().iter().map(|p| p.admission.clone()).collect();
    assert_eq!(all.len(), 5);
    assert!(all.contains(&promotions(3)) && all.contains(&promotions(8)));
}

/// (configuration, what differs from the defaults)
type Row = (&'static str, fn(&mut Policy));

#[test]
fn single_layers() {
    let rows: [Row; 17] = [
        (
            r#"{"loadPolicy":"preserve","offloadPolicy":"preserve"}"#,
            |_| {},
        ),
        (r#"{"loadPolicy":"disable"}"#, |p| {
            p.load = LoadPolicy::Disable
        }),
        (r#"{"offloadPolicy":"disable"}"#, |p| {
            p.offload = OffloadPolicy::Disable
        }),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1}"#,
            |p| p.load = threshold(1, None),
        ),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"maxWaitingRequests":0,
                "ewmaHalfLife":"1ms","reopenRatio":1}"#,
            |p| p.load = threshold(1, None),
        ),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":18446744073709551615,
                "maxWaitingRequests":4294967295}"#,
            |p| p.load = threshold(u64::MAX, Some(gate(u32::MAX))),
        ),
        // As protobuf prints the numbers of a Struct.
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024.0,"maxWaitingRequests":8.0}"#,
            |p| p.load = threshold(1024, Some(gate(8))),
        ),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1.024e3,"maxWaitingRequests":8e0}"#,
            |p| p.load = threshold(1024, Some(gate(8))),
        ),
        (r#"{"maxHeldBytes":1.6777216e+07}"#, |_| {}),
        (
            r#"{"maxHeldBytes":0,"maxHeldBytesPerVm":1073741824}"#,
            |p| {
                p.max_held_bytes = 0;
                p.max_held_bytes_per_vm = 1 << 30;
            },
        ),
        // What only threshold uses may stand ready for a route that turns it on.
        (
            r#"{"minExternalReusableTokens":1024,"ewmaHalfLife":"1m","reopenRatio":0.1,
                "maxSampleAge":"3s","maxWaitingRequests":0}"#,
            |_| {},
        ),
        (r#"{"reopenRatio":1e-300}"#, |_| {}),
        (r#"{"clientCaps":"override","dryRun":false}"#, |_| {}),
        (r#"{"evidenceHeader":null}"#, |_| {}),
        (r#"{"evidenceHeader":"X_~!"}"#, |p| {
            p.evidence_header = Some("x_~!".to_owned())
        }),
        (r#"{"maxEvidenceAge":"1440m"}"#, |p| {
            p.max_evidence_age_ms = 86_400_000
        }),
        (r#"{"endpointSources":["header"]}"#, |p| {
            p.endpoint_sources = vec![EndpointSource::Header];
        }),
    ];
    for (config, differs) in rows {
        let mut expected = defaults();
        differs(&mut expected);
        assert_eq!(*base(config), expected, "{config}");
    }
}

#[test]
fn the_first_matching_entry_counts() {
    let set = set(r#"{"offloadPolicy":"disable","routes":[
            {"match":{"routeName":"chat"},"maxHeldBytes":1},
            {"match":{"routeNamePrefix":"chat."},"maxHeldBytes":2},
            {"match":{"virtualHost":"models"},"maxHeldBytes":3,"offloadPolicy":"preserve"},
            {"match":{"cluster":"llama"},"maxHeldBytes":4}]}"#);
    let nothing = RouteFacts::default();
    let host = RouteFacts {
        route_name: Some("other"),
        ..ON_NAME
    };
    let cluster = RouteFacts {
        cluster: Some("llama"),
        ..nothing
    };
    let name = RouteFacts {
        route_name: Some("chat"),
        ..ON_NAME
    };
    use OffloadPolicy::{Disable, Preserve};
    for (route, held, offload) in [
        (nothing, 16_777_216, Disable),
        (name, 1, Disable),
        (ON_NAME, 2, Disable),
        (host, 3, Preserve),
        (cluster, 4, Disable),
    ] {
        let policy = set.effective(&route, None).unwrap();
        assert_eq!(policy.max_held_bytes, held, "{route:?}");
        assert_eq!(policy.offload, offload, "{route:?}");
    }
}

/// base, entry, metadata → load
type Layers = (&'static str, &'static str, &'static str, LoadPolicy);

#[test]
fn layers_are_laid_over_each_other_field_by_field() {
    let full =
        r#""loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":8"#;
    let rows: [Layers; 9] = [
        (full, "", "", threshold(1024, Some(gate(8)))),
        (
            full,
            r#""maxWaitingRequests":9"#,
            "",
            threshold(1024, Some(gate(9))),
        ),
        (
            full,
            "",
            r#""maxWaitingRequests":9"#,
            threshold(1024, Some(gate(9))),
        ),
        (
            full,
            r#""maxWaitingRequests":9"#,
            r#""minExternalReusableTokens":1"#,
            threshold(1, Some(gate(9))),
        ),
        (full, "", r#""maxWaitingRequests":0"#, threshold(1024, None)),
        // An inherited gate that is not used is ignored, and comes back with threshold.
        (full, r#""loadPolicy":"disable""#, "", LoadPolicy::Disable),
        (full, "", r#""loadPolicy":"preserve""#, LoadPolicy::Preserve),
        (
            full,
            r#""loadPolicy":"disable""#,
            r#""loadPolicy":"threshold""#,
            threshold(1024, Some(gate(8))),
        ),
        // The minimum may come from below the layer that asks for it.
        (
            r#""minExternalReusableTokens":1024"#,
            r#""loadPolicy":"threshold","maxWaitingRequests":8"#,
            "",
            threshold(1024, Some(gate(8))),
        ),
    ];
    for (base, entry, metadata, expected) in rows {
        let comma = if base.is_empty() { "" } else { "," };
        let entry = match entry {
            "" => String::new(),
            entry => format!(",{entry}"),
        };
        let config =
            format!(r#"{{{base}{comma}"routes":[{{"match":{{"cluster":"llama"}}{entry}}}]}}"#);
        let metadata = format!("{{{metadata}}}");
        let policy = set(&config).effective(&ON_NAME, Some(&metadata)).unwrap();
        assert_eq!(policy.load, expected, "{config} {metadata}");
    }
}

#[test]
fn a_route_can_switch_the_evidence_header_off() {
    let set = set(r#"{"evidenceHeader":"x-kv-tier-evidence",
            "routes":[{"match":{"cluster":"llama"},"evidenceHeader":null}]}"#);
    let off = set.effective(&ON_NAME, None).unwrap();
    assert_eq!(off.evidence_header, None);
    assert_eq!(
        set.base().evidence_header.as_deref(),
        Some("x-kv-tier-evidence")
    );
    let on = set
        .effective(&ON_NAME, Some(r#"{"evidenceHeader":"X-A"}"#))
        .unwrap();
    assert_eq!(on.evidence_header.as_deref(), Some("x-a"));
}

#[test]
fn policies_are_compiled_once() {
    let set = set(r#"{"routes":[{"match":{"cluster":"llama"},"dryRun":true}]}"#);
    let nothing = RouteFacts::default();
    let metadata = Some(r#"{"offloadPolicy":"disable"}"#);
    for route in [ON_NAME, nothing] {
        for metadata in [None, metadata, Some("")] {
            let first = set.effective(&route, metadata).unwrap();
            let second = set.effective(&route, metadata).unwrap();
            assert!(Rc::ptr_eq(&first, &second), "{metadata:?}");
        }
    }
    // The same metadata on another base is another policy.
    let matched = set.effective(&ON_NAME, metadata).unwrap();
    let other = set.effective(&nothing, metadata).unwrap();
    assert!(matched.dry_run && !other.dry_run);
    assert_eq!(*set.effective(&nothing, Some("")).unwrap(), **set.base());
}

#[test]
fn bad_metadata_breaks_its_own_route_only() {
    let set =
        set(r#"{"loadPolicy":"disable","routes":[{"match":{"cluster":"llama"},"dryRun":true}]}"#);
    let keys = "loadPolicy, offloadPolicy, minExternalReusableTokens, maxWaitingRequests, \
        ewmaHalfLife, reopenRatio, maxSampleAge, maxEvidenceAge, admission, defaultLoadTiers, clientCaps, dryRun, maxHeldBytes, \
        maxHeldBytesPerVm, evidenceHeader, paths, endpointSources";
    let long = format!("{{\"paths\":[\"/{}\"]}}", "é".repeat(40_000));
    let routes = format!("route metadata: routes is not a known key: allowed are {keys}");
    for (metadata, message) in [
        (
            "{",
            "route metadata: configuration is not valid JSON: EOF while parsing an object at line \
             1 column 1",
        ),
        (
            "7",
            "route metadata: configuration is 7: must be a JSON object",
        ),
        (r#"{"routes":[]}"#, routes.as_str()),
        (
            r#"{"dryRun":1}"#,
            "route metadata: dryRun is 1: must be true or false",
        ),
        (
            r#"{"loadPolicy":"threshold"}"#,
            "route metadata: minExternalReusableTokens is missing: loadPolicy \"threshold\" needs \
             it, a whole number of tokens greater than 0",
        ),
        (
            r#"{"maxWaitingRequests":8}"#,
            "route metadata: maxWaitingRequests is 8: more than 0 needs loadPolicy \"threshold\", \
             and loadPolicy is \"disable\" here",
        ),
        (
            long.as_str(),
            "route metadata: configuration is 80015 bytes long: must have at most 65536",
        ),
    ] {
        for first in [true, false, false] {
            let error = set.effective(&ON_NAME, Some(metadata)).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.is_first(), first, "{message}");
            // Which requests it would look at is still known.
            assert!(error.below().dry_run);
        }
    }
    let other = RouteFacts::default();
    assert!(set.effective(&other, Some(r#"{"dryRun":true}"#)).is_ok());
    assert!(set.effective(&ON_NAME, None).is_ok());
}

#[test]
fn metadata_kept_is_bounded() {
    let set = set("");
    let route = RouteFacts::default();
    let bad = |n: u32| format!("{{\"x{n}\":1}}");
    let is_first = |n: u32| set.effective(&route, Some(&bad(n))).unwrap_err().is_first();
    assert!((0..1024).all(is_first));
    assert!(!(0..1024).any(is_first));
    // One more, and the one met first is met anew.
    assert!(is_first(1024));
    assert!(!is_first(1));
    assert!(is_first(0));
    // By bytes, 8 MiB.
    let long = |n: u32| format!("{{\"{}\":{n}}}", "x".repeat(60_000));
    let is_first = |n: u32| {
        set.effective(&route, Some(&long(n)))
            .unwrap_err()
            .is_first()
    };
    assert!((0..200).all(is_first));
    assert!(is_first(0));
    assert!(!is_first(199));
}

#[test]
fn metadata_that_no_request_brings_is_forgotten_after_ten_minutes() {
    const T0: u64 = 1_800_000_000_000;
    let gates = GateRegistry::new();
    let threshold = br#"{"loadPolicy":"threshold","minExternalReusableTokens":1}"#;
    let set = PolicySet::parse_in(threshold, &gates).unwrap();
    let route = RouteFacts::default();
    let with_gate = |n: u32| format!(r#"{{"maxWaitingRequests":{n}}}"#);
    set.tick(T0);
    for n in 1..=16 {
        set.effective(&route, Some(&with_gate(n))).unwrap();
    }
    // All places are taken; the route is told so once.
    let error = set.effective(&route, Some(&with_gate(17))).unwrap_err();
    assert!(error.is_first());
    set.tick(T0 + 1_000);
    for second in 1..=600 {
        let error = set.effective(&route, Some(&with_gate(17))).unwrap_err();
        assert!(!error.is_first());
        set.effective(&route, Some(&with_gate(1))).unwrap();
        set.tick(T0 + 1_000 + second * 1_000);
    }
    assert_eq!(set.gates().len(), 16);
    // Those of the fifteen that nobody used are given back, and the seventeenth has its turn.
    set.tick(T0 + 1_000 + 600_001);
    assert_eq!(set.gates(), [gate(1)]);
    let policy = set.effective(&route, Some(&with_gate(17))).unwrap();
    assert_eq!(policy.gate(), Some(&gate(17)));
    assert_eq!(set.gates(), [gate(1), gate(17)]);
}

#[test]
fn a_policy_in_use_keeps_its_gate() {
    let gates = GateRegistry::new();
    let threshold =
        br#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"maxWaitingRequests":8}"#;
    let set = PolicySet::parse_in(threshold, &gates).unwrap();
    let in_flight = set.base().clone();
    drop(set);
    assert_eq!(gates.gates(), [gate(8)]);
    drop(in_flight);
    assert_eq!(gates.gates(), []);
}
