//! Retries in upstream placement: every attempt is decided and edited for its own engine.

use envoy_tests::{Envoy, Reply, Request, Sink};
use serde_json::json;

use crate::support::{CHAT, EVIDENCE, Placement, TOO_FEW, threshold};

/// An engine that refuses everything, and one that takes it.
fn refusing_and_willing() -> (Sink, Sink) {
    (Sink::with(|_| Reply::Status(503, Vec::new())), Sink::ok())
}

/// Sends requests until one went to the refusing engine first; what both got of it.
fn retried(envoy: &Envoy, refusing: &Sink, willing: &Sink, request: &Request) -> (String, String) {
    for number in 0..20 {
        let id = format!("retry-{number}");
        let response = request
            .clone()
            .header("x-request-id", &id)
            .to(envoy.address());
        assert_eq!(response.status, 200, "the second attempt answers");
        let second = willing.by_id(&id);
        let first = refusing
            .seen()
            .into_iter()
            .find(|s| s.header("x-request-id").as_deref() == Some(&id));
        if let Some(first) = first {
            assert!(first.complete && second.complete);
            return (first.text(), second.text());
        }
        willing.take();
    }
    panic!("no request went to the refusing engine first");
}

#[test]
fn each_attempt_is_edited_from_the_original_body() {
    let (refusing, willing) = refusing_and_willing();
    let envoy = Envoy::start(
        &Placement::Upstream
            .bootstrap(&json!({"loadPolicy": "disable"}))
            .engines(&[&refusing, &willing])
            .in_turn(),
    );
    // 2 MB, with a buffer limit of 1 MiB on the connections.
    let filler = "x".repeat(2_000_000);
    let body = |value: u32| {
        format!(r#"{{"kv_transfer_params":{{"max_load_tokens":{value}}},"prompt":"{filler}"}}"#)
    };

    let (first, second) = retried(&envoy, &refusing, &willing, &Request::post(CHAT, body(5)));

    assert!(first == body(0), "{:.100}", first);
    assert!(second == body(0), "{:.100}", second);
    let decided = envoy.custom(
        "selective_kv_decisions_total",
        "direction=load,action=disable,reason=policy",
    );
    let attempts = envoy.stat("cluster.engines.upstream_rq_total");
    assert!(
        decided >= 2 && decided == attempts,
        "{decided} decisions, {attempts} attempts"
    );
}

#[test]
fn evidence_by_header_is_gone_with_the_first_attempt() {
    let (refusing, willing) = refusing_and_willing();
    let envoy = Envoy::start(
        &Placement::Upstream
            .bootstrap(&threshold())
            .engines(&[&refusing, &willing])
            .in_turn(),
    );
    let request = Request::post(CHAT, "{}").header(EVIDENCE, TOO_FEW);

    let (first, second) = retried(&envoy, &refusing, &willing, &request);

    assert_eq!(first, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#);
    assert_eq!(second, "{}", "nothing is known of the second engine");
    assert!(
        willing
            .seen()
            .iter()
            .chain(&refusing.seen())
            .all(|s| s.header(EVIDENCE).is_none())
    );
}

#[test]
fn an_attempt_that_is_reset_in_mid_body_is_tried_elsewhere_whole() {
    let resetting = Sink::at(
        ([127, 0, 0, 1], 0).into(),
        |_| Reply::Reset,
        |_, so_far| (so_far > 50_000).then_some(Reply::Reset),
    );
    let willing = Sink::ok();
    let envoy = Envoy::start(
        &Placement::Upstream
            .bootstrap(&json!({"loadPolicy": "disable"}))
            .engines(&[&resetting, &willing])
            .in_turn(),
    );
    let body = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(200_000));
    let arrives = format!(
        "{},\"kv_transfer_params\":{{\"max_load_tokens\":0}}}}",
        body.trim_end_matches('}')
    );
    for number in 0..20 {
        let request = Request::post_chunked(CHAT, body.as_bytes(), 10_000).slowly(1);
        let response = request
            .header("x-request-id", format!("cut-{number}"))
            .to(envoy.address());
        assert_eq!(response.status, 200);
        assert!(willing.take_one().body == arrives.as_bytes());
        if !resetting.seen().is_empty() {
            return;
        }
    }
    panic!("no request went to the resetting engine first");
}

#[test]
fn a_downstream_policy_keeps_its_first_decision() {
    let (refusing, willing) = refusing_and_willing();
    let retries = json!({
        "retry_on": "retriable-status-codes",
        "retriable_status_codes": [503],
        "retry_host_predicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }],
        "host_selection_retry_max_attempts": 3,
    });
    let bootstrap = Placement::Downstream
        .bootstrap(&threshold())
        .engines(&[&refusing, &willing])
        .in_turn();
    let envoy = Envoy::start(&bootstrap.manager(|m| {
        m["route_config"]["virtual_hosts"][0]["retry_policy"] = retries.clone();
    }));
    let request = Request::post(CHAT, "{}").header(EVIDENCE, TOO_FEW);

    let (first, second) = retried(&envoy, &refusing, &willing, &request);

    let edited = r#"{"kv_transfer_params":{"max_load_tokens":0}}"#;
    assert_eq!((first.as_str(), second.as_str()), (edited, edited));
}
