//! What an operator sees: Prometheus text, raw statistics, the access log.

use envoy_tests::{Bootstrap, Envoy, Request, Sink};
use serde_json::json;

use crate::support::{
    CHAT, COMPLETIONS, ENOUGH, EVIDENCE, Placement, TOO_FEW, logged, threshold, with,
};

#[test]
fn counters_have_labels_in_prometheus() {
    let engine = Sink::ok();
    let policy = with(threshold(), json!({"offloadPolicy": "disable"}));
    let envoy = Placement::Downstream.start(&policy, &engine);
    let post = |evidence: &str| {
        let request = Request::post(CHAT, r#"{"kv_transfer_params":{"max_load_tokens":1}}"#);
        request.header(EVIDENCE, evidence).to(envoy.address());
    };

    post(ENOUGH);
    post(TOO_FEW);
    post(TOO_FEW);
    post("nonsense");
    Request::get("/v1/models").to(envoy.address());
    Request::post(CHAT, "[]").to(envoy.address());

    // Exact text: dashboards and alerts depend on it.
    let text = |name: &str| {
        let mut lines = envoy.prometheus(name);
        lines.sort();
        lines
    };
    assert_eq!(
        text("selective_kv_decisions_total"),
        [
            r#"selective_kv_decisions_total{direction="load",action="disable",reason="below_threshold"} 2"#,
            r#"selective_kv_decisions_total{direction="load",action="enable",reason="admitted"} 1"#,
            r#"selective_kv_decisions_total{direction="load",action="preserve",reason="invalid_evidence"} 1"#,
            r#"selective_kv_decisions_total{direction="load",action="preserve",reason="not_json"} 1"#,
            r#"selective_kv_decisions_total{direction="offload",action="disable",reason="policy"} 4"#,
            r#"selective_kv_decisions_total{direction="offload",action="preserve",reason="not_json"} 1"#,
        ]
    );
    assert_eq!(
        envoy.prometheus("# TYPE selective_kv_decisions_total"),
        ["# TYPE selective_kv_decisions_total counter"]
    );
    assert_eq!(
        text("selective_kv_edits_total"),
        [
            r#"selective_kv_edits_total{direction="load"} 3"#,
            r#"selective_kv_edits_total{direction="offload"} 4"#
        ]
    );
    assert_eq!(
        text("selective_kv_skipped_total"),
        [r#"selective_kv_skipped_total{reason="method"} 1"#]
    );
    let problems = text("selective_kv_evidence_problems_total");
    assert!(
        problems.len() == 1 && problems[0].ends_with("\"} 1"),
        "{problems:?}"
    );

    // The raw name, as Istio's extraStatTags reads it.
    let raw = "wasmcustom.selective_kv_decisions_total.direction=.=load;.;action=.=disable;.;reason=.=below_threshold;.;";
    assert_eq!(envoy.stat(raw), 2);
}

#[test]
fn the_access_log_has_the_decision() {
    for placement in crate::support::PLACEMENTS {
        let engine = Sink::ok();
        let envoy = placement.start(&threshold(), &engine);
        let endpoint = engine.endpoint();
        let cases = [
            (
                Some(ENOUGH),
                format!(
                    "load=enable;reason=admitted;offload=preserve;tokens=1024;endpoint={endpoint}"
                ),
            ),
            (
                None,
                format!("load=preserve;reason=no_evidence;offload=preserve;endpoint={endpoint}"),
            ),
        ];
        for (number, (evidence, decision)) in cases.into_iter().enumerate() {
            let target = format!("{COMPLETIONS}?{number}");
            let mut request = Request::post(&target, "{}");
            if let Some(evidence) = evidence {
                request = request.header(EVIDENCE, evidence);
            }
            request.to(envoy.address());
            assert_eq!(logged(&envoy, &target), decision, "{placement:?}");
        }
        Request::get("/health").to(envoy.address());
        assert_eq!(logged(&envoy, "/health"), "-", "nothing was decided");
    }
}

#[test]
fn header_values_that_are_no_text_harm_nothing() {
    let engine = Sink::ok();
    // No request id either: evidence by header still counts, and shared data is not asked.
    let bootstrap = Placement::Downstream
        .bootstrap(&threshold())
        .engines(&[&engine]);
    let envoy = Envoy::start(&without_request_id(bootstrap));
    let odd = b"caf\xe9 \xff\xfe";
    let post =
        |target: &str| Request::post(target, r#"{"kv_transfer_params":{"max_load_tokens":1}}"#);

    let cases: [(&str, Request, &str); 4] = [
        (
            "other",
            post("/v1/completions?0")
                .header("x-odd", odd)
                .header(EVIDENCE, ENOUGH),
            "load=enable;reason=admitted",
        ),
        (
            "evidence",
            post("/v1/completions?1").header(EVIDENCE, odd),
            "load=preserve;reason=invalid_evidence",
        ),
        (
            "destination",
            post("/v1/completions?2").header("x-gateway-destination-endpoint", odd),
            "load=preserve;reason=no_evidence",
        ),
        (
            "request id",
            post("/v1/completions?3").header("x-request-id", odd),
            "load=preserve;reason=no_evidence",
        ),
    ];
    for (what, request, decision) in cases {
        assert_eq!(request.to(envoy.address()).status, 200, "{what}");
        let arrives = if decision.contains("enable") {
            r#"{"kv_transfer_params":{}}"#
        } else {
            r#"{"kv_transfer_params":{"max_load_tokens":1}}"#
        };
        assert_eq!(engine.take_one().text(), arrives, "{what}");
        assert!(
            logged(&envoy, &request.target).starts_with(decision),
            "{what}: {}",
            logged(&envoy, &request.target)
        );
    }

    // A content type that is no text is no JSON.
    post("/v1/completions?4")
        .without_header("content-type")
        .header("content-type", odd)
        .to(envoy.address());
    assert_eq!(
        envoy.custom("selective_kv_skipped_total", "reason=content_type"),
        1
    );
    let missing = post("/v1/completions?5");
    assert_eq!(missing.to(envoy.address()).status, 200);
    assert!(logged(&envoy, &missing.target).starts_with("load=preserve;reason=no_evidence"));
    envoy.assert_untroubled();
}

fn without_request_id(bootstrap: Bootstrap) -> Bootstrap {
    bootstrap.manager(|m| {
        m["generate_request_id"] = json!(false);
        m["preserve_external_request_id"] = json!(true);
    })
}

#[test]
fn a_request_that_ends_before_it_was_read_is_no_decision() {
    for placement in crate::support::PLACEMENTS {
        let engine = Sink::ok();
        let nobody = placement.bootstrap(&threshold()).hosts("engines", &[]);
        for (what, bootstrap) in [
            ("no engine", nobody),
            (
                "reset",
                placement.bootstrap(&threshold()).engines(&[&engine]),
            ),
        ] {
            let envoy = Envoy::start(&bootstrap);
            let request = Request::post_chunked(CHAT, br#"{"a":"#, 10).pause(50);
            match what {
                "reset" => assert_eq!(request.reset().try_to(envoy.address()), None),
                _ => assert_eq!(request.send(b"1}").to(envoy.address()).status, 503),
            }
            assert_eq!(logged(&envoy, CHAT), "-", "{placement:?} {what}");
            let decided = envoy.stats("selective_kv_decisions_total");
            assert!(decided.is_empty(), "{placement:?} {what}: {decided:?}");
        }
    }
}
