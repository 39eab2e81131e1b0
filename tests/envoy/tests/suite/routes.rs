//! A policy per route: by the plugin's `routes`, and by the route's own metadata.

use envoy_tests::{Envoy, Request, Sink};
use serde_json::{Value, json};

use crate::support::{CHAT, PLACEMENTS, decision_and_endpoint};

const LOAD: &str = r#"{"kv_transfer_params":{"max_load_tokens":0}}"#;
const OFFLOAD: &str = r#"{"kv_transfer_params":{"max_offload_tokens":0}}"#;
const BOTH: &str = r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#;
const NOTHING: &str = "{}";

fn policy() -> Value {
    json!({
        "loadPolicy": "disable",
        "routes": [
            {"match": {"routeName": "named"}, "offloadPolicy": "disable"},
            {"match": {"routeNamePrefix": "ns.http."}, "loadPolicy": "preserve"},
            {"match": {"virtualHost": "special"}, "loadPolicy": "preserve", "offloadPolicy": "disable"},
            {"match": {"cluster": "engines-b"}, "offloadPolicy": "disable"},
            // The first match wins.
            {"match": {"routeName": "named"}, "loadPolicy": "preserve"},
        ],
    })
}

/// A route of that name, on the path `/v1/chat/completions?<name>`, with metadata for our key.
fn route(name: &str, cluster: &str, config: Option<Value>) -> Value {
    let query = json!([{"name": name, "present_match": true}]);
    let mut route = json!({
        "name": name,
        "match": {"path": CHAT, "query_parameters": query},
        "route": {"cluster": cluster},
    });
    if let Some(config) = config {
        route["metadata"] = json!({"filter_metadata": {"selective-kv": {"config": config}, "other": {"config": "x"}}});
    }
    route
}

#[test]
fn each_route_has_its_own_policy() {
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let bootstrap = placement.bootstrap(&policy()).engines(&[&engine]).manager(|m| {
            m["route_config"]["virtual_hosts"] = json!([
                {"name": "special", "domains": ["special.test"], "routes": [route("plain", "engines", None)]},
                {"name": "llm", "domains": ["*"], "routes": [
                    route("plain", "engines", None),
                    route("named", "engines", None),
                    route("ns.http.7", "engines", None),
                    route("other-cluster", "engines-b", None),
                    route("metadata", "engines", Some(json!(r#"{"loadPolicy":"preserve","offloadPolicy":"disable"}"#))),
                    // Field by field over the routes entry of the same name below it.
                    route("ns.http.8", "engines", Some(json!(r#"{"offloadPolicy":"disable"}"#))),
                    route("bad-json", "engines", Some(json!("{loadPolicy"))),
                    route("bad-value", "engines", Some(json!(r#"{"loadPolicy":"never"}"#))),
                    route("not-a-string", "engines", Some(json!({"loadPolicy": "disable"}))),
                    route("a-number", "engines", Some(json!(7))),
                ]},
            ]);
        })
        .edit_at("/static_resources/clusters", |clusters| {
            let mut second = clusters[0].clone();
            second["name"] = json!("engines-b");
            second["load_assignment"]["cluster_name"] = json!("engines-b");
            clusters.as_array_mut().expect("clusters").push(second);
        });
        let envoy = Envoy::start(&bootstrap);

        let cases = [
            (
                "llm.test",
                "plain",
                LOAD,
                "load=disable;reason=policy;offload=preserve",
            ),
            (
                "llm.test",
                "named",
                BOTH,
                "load=disable;reason=policy;offload=disable",
            ),
            ("llm.test", "ns.http.7", NOTHING, "-"),
            (
                "special.test",
                "plain",
                OFFLOAD,
                "load=preserve;reason=policy;offload=disable",
            ),
            (
                "llm.test",
                "other-cluster",
                BOTH,
                "load=disable;reason=policy;offload=disable",
            ),
            (
                "llm.test",
                "metadata",
                OFFLOAD,
                "load=preserve;reason=policy;offload=disable",
            ),
            (
                "llm.test",
                "ns.http.8",
                OFFLOAD,
                "load=preserve;reason=policy;offload=disable",
            ),
            (
                "llm.test",
                "bad-json",
                NOTHING,
                "load=preserve;reason=invalid_route_config;offload=preserve",
            ),
            (
                "llm.test",
                "bad-value",
                NOTHING,
                "load=preserve;reason=invalid_route_config;offload=preserve",
            ),
            (
                "llm.test",
                "not-a-string",
                NOTHING,
                "load=preserve;reason=invalid_route_config;offload=preserve",
            ),
            (
                "llm.test",
                "a-number",
                NOTHING,
                "load=preserve;reason=invalid_route_config;offload=preserve",
            ),
            // An invalid route has broken no other.
            (
                "llm.test",
                "plain",
                LOAD,
                "load=disable;reason=policy;offload=preserve",
            ),
        ];
        for round in 0..2 {
            for (number, (host, name, arrives, decision)) in cases.into_iter().enumerate() {
                let target = format!("{CHAT}?{name}=1&n={round}-{number}");
                let response = Request::post(&target, "{}")
                    .header("host", host)
                    .to(envoy.address());
                assert_eq!(response.status, 200);
                assert_eq!(
                    engine.take_one().text(),
                    arrives,
                    "{placement:?} {host} {name}"
                );
                assert_eq!(
                    decision_and_endpoint(&envoy, &target).0,
                    decision,
                    "{placement:?} {host} {name}"
                );
            }
        }

        // Counted for each request, logged once a route.
        assert_eq!(
            envoy.custom("selective_kv_invalid_route_config_total", ""),
            8
        );
        let log = envoy.log();
        for name in ["bad-json", "bad-value", "not-a-string", "a-number"] {
            let lines: Vec<_> = log
                .lines()
                .filter(|l| l.contains("[error][wasm]") && l.contains(&format!("\"{name}\"")))
                .collect();
            assert_eq!(lines.len(), 1, "{placement:?} {name}: {lines:?}");
        }
        let said = r#"selective-kv: route "bad-value": route metadata: loadPolicy is "never": must be "preserve", "disable" or "threshold""#;
        assert!(log.contains(said), "{log}");
        assert_eq!(
            envoy.custom("selective_kv_skipped_total", "reason=inactive"),
            2
        );
    }
}
