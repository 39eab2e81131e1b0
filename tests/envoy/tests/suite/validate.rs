//! `envoy --mode validate`: the shipped files pass, and a wrong configuration is told in one line.

use std::thread;

use envoy_tests::{Bootstrap, files, validate};

#[test]
fn the_shipped_bootstraps_pass_as_they_are() {
    for file in ["downstream.yaml", "upstream.yaml", "endpoint-picker.yaml"] {
        let result = validate(&Bootstrap::unchanged(file));
        assert!(result.ok, "{file}: {}", result.output);
        assert!(result.output.contains("OK"), "{file}: {}", result.output);
    }
}

/// One of each class: role, configuration, what the line says after the role.
#[rustfmt::skip]
const WRONG: &[(&str, &str, &str)] = &[
    ("selective-kv", r#"{"loadPolicy""#, "configuration is not valid JSON: EOF while parsing an object at line 1 column 13"),
    ("selective-kv", r#"{"loadpolicy":"disable"}"#, "loadpolicy is not a known key: allowed are loadPolicy, offloadPolicy, minExternalReusableTokens, \
        maxWaitingRequests, ewmaHalfLife, reopenRatio, maxSampleAge, maxEvidenceAge, admission, defaultLoadTiers, clientCaps, dryRun, maxHeldBytes, maxHeldBytesPerVm, evidenceHeader, \
        paths, endpointSources, routes"),
    ("selective-kv", r#"{"dryRun":true,"dryRun":false}"#, "dryRun is given twice: a key may appear once in an object"),
    ("selective-kv", r#"{"loadPolicy":"sometimes"}"#, r#"loadPolicy is "sometimes": must be "preserve", "disable" or "threshold""#),
    ("selective-kv", r#"{"loadPolicy":"threshold"}"#, r#"minExternalReusableTokens is missing: loadPolicy "threshold" needs it, a whole number of tokens greater than 0"#),
    ("selective-kv", r#"{"loadPolicy":"disable","maxWaitingRequests":8}"#, r#"maxWaitingRequests is 8: more than 0 needs loadPolicy "threshold", and loadPolicy is "disable" here"#),
    ("selective-kv", r#"{"routes":[{"loadPolicy":"disable"}]}"#, "routes[0].match is missing: it must be an object with exactly one of routeName, routeNamePrefix, virtualHost, cluster"),
    ("selective-kv", r#"{"routes":[{"match":{"routeName":"a"},"loadPolicy":"threshold"}]}"#,
        r#"routes[0].minExternalReusableTokens is missing: loadPolicy "threshold" needs it, a whole number of tokens greater than 0"#),
    ("kv-scorer", "{}", r#"endpoints is missing: at least one "ip:port", or "discover": true"#),
    ("kv-scorer", r#"{"endpoints":["engine:8000"],"scrape":{"cluster":"c"}}"#,
        r#"endpoints[0] is "engine:8000": must be "ip:port" (IPv6 as "[::1]:8000"), or {"address":"ip:port","cluster":"name"}"#),
    ("kv-scorer", r#"{"endpoints":["10.0.0.7:8000"],"scrape":{"cluster":"c"},"interval":"10ms"}"#, r#"interval is "10ms": must be a duration from "200ms" to "60s""#),
];

#[test]
fn a_wrong_configuration_is_refused_with_one_line_that_says_what_is_allowed() {
    let halves = WRONG.chunks(WRONG.len().div_ceil(2));
    thread::scope(|scope| {
        for half in halves {
            scope.spawn(move || {
                for (role, config, says) in half {
                    refused(
                        role,
                        &Bootstrap::shipped("downstream.yaml").plugin(role, config),
                        says,
                    );
                }
            });
        }
    });
}

#[test]
fn a_role_that_does_not_exist_is_refused() {
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .without_filter("kv-scorer")
        .edit(|node| {
            if node.get("root_id").is_some() {
                node["root_id"] = "selective_kv".into();
            }
        });
    refused(
        "selective_kv",
        &bootstrap,
        "root_id: not a role; allowed: selective-kv, kv-scorer",
    );
}

#[test]
fn the_policys_module_has_no_scorer_and_says_so() {
    let shipped = || Bootstrap::shipped("downstream.yaml").module(files::policy_module());
    let alone = validate(&shipped().without_filter("kv-scorer"));
    assert!(alone.ok, "{}", alone.output);
    refused(
        "kv-scorer",
        &shipped(),
        "root_id: this module is the policy alone; allowed: selective-kv (selective_kv.wasm has kv-scorer too)",
    );
}

/// Exactly one line of the module's own, with its role and the reason.
fn refused(role: &str, bootstrap: &Bootstrap, says: &str) {
    let result = validate(bootstrap);
    assert!(!result.ok, "{role}: {says}: {}", result.output);
    let lines = result
        .output
        .lines()
        .filter(|line| line.contains("wasm log"))
        .collect::<Vec<_>>();
    assert_eq!(lines.len(), 1, "{role}: {says}: {}", result.output);
    assert!(
        lines[0].ends_with(&format!(": {role}: {says}")),
        "{says}\n{}",
        lines[0]
    );
}
