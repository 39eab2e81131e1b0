//! After an endpoint picker (ext_proc): the shipped bootstrap, with a picker that behaves as llm-d's.

use envoy_tests::message::lookup;
use envoy_tests::{Bootstrap, Choice, Envoy, Picker, Request, Sink, until};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::support::{
    CHAT, ENOUGH, EVIDENCE, Placement, TOO_FEW, decision_and_endpoint, logged, threshold, with,
};

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Picks what the client asks for in `x-pick`, with the evidence it gives in `x-say`.
fn obedient() -> Picker {
    Picker::with(|headers| {
        let choice = Choice::endpoint(&lookup(headers, "x-pick").unwrap_or_default());
        match lookup(headers, "x-say") {
            Some(evidence) => choice.header(EVIDENCE, &evidence),
            None => choice,
        }
    })
}

fn bootstrap(picker: &Picker) -> Bootstrap {
    Bootstrap::shipped("endpoint-picker.yaml").picker(picker)
}

#[test]
fn the_shipped_file_decides_for_the_picked_engine() {
    let engines = [Engine::waiting(0), Engine::waiting(0)];
    let picker = obedient();
    let envoy = Envoy::start(&bootstrap(&picker));

    let filler = "x".repeat(200_000);
    for (engine, evidence, cap, decision) in [
        (
            &engines[0],
            ENOUGH,
            "",
            "load=enable;reason=admitted;offload=preserve;tokens=1024",
        ),
        (
            &engines[1],
            TOO_FEW,
            r#""max_load_tokens":0"#,
            "load=disable;reason=below_threshold;offload=preserve;tokens=640",
        ),
    ] {
        let target = format!("{CHAT}?{}", engine.endpoint());
        let body =
            format!(r#"{{"prompt":"{filler}","kv_transfer_params":{{"max_load_tokens":5}}}}"#);
        let request = Request::post(&target, body)
            .header("x-pick", engine.endpoint())
            .header("x-say", evidence)
            // A client's own words are taken away before anything runs.
            .header(EVIDENCE, r#"{"block_size":64,"tiers":{"cpu":4000}}"#)
            .header(DESTINATION, "127.0.0.1:9");

        assert_eq!(request.to(envoy.address()).status, 200);

        let seen = engine
            .sink
            .seen()
            .into_iter()
            .find(|s| s.method == "POST")
            .expect("the request");
        let arrives = format!(r#"{{"prompt":"{filler}","kv_transfer_params":{{{cap}}}}}"#);
        assert!(
            seen.body == arrives.as_bytes(),
            "{} bytes, …{}",
            seen.body.len(),
            &seen.text()[200_000..]
        );
        assert_eq!(seen.header(EVIDENCE), None);
        assert_eq!(
            decision_and_endpoint(&envoy, &target),
            (decision.to_owned(), engine.endpoint())
        );
    }
    // The scorer has learnt both engines from their answers.
    for engine in &engines {
        engine.await_polls(1);
    }
}

#[test]
fn the_endpoint_is_known_from_each_source_alone() {
    let engine = Sink::ok();
    // The engine the cluster goes to, and the one the metadata names: the cluster reads the header.
    let told = engine.endpoint();
    let picker = Picker::with(move |_| {
        Choice::default()
            .header(DESTINATION, &told)
            .metadata("10.9.9.9:8000, 10.9.9.8:8000")
    });
    let policy = |sources: Value| {
        let policy = with(threshold(), json!({"endpointSources": sources}));
        bootstrap(&picker)
            .without_filter("kv-scorer")
            .policy(&policy)
    };
    for (sources, endpoint) in [
        (json!(["metadata"]), "10.9.9.9:8000".to_owned()),
        (json!(["header"]), engine.endpoint()),
        (json!(["upstream"]), engine.endpoint()),
        (json!(["metadata", "upstream"]), "10.9.9.9:8000".to_owned()),
    ] {
        let envoy = Envoy::start(&policy(sources.clone()));
        assert_eq!(Request::post(CHAT, "{}").to(envoy.address()).status, 200);
        let (decision, known) = decision_and_endpoint(&envoy, CHAT);
        assert_eq!(
            (decision.as_str(), known),
            (
                "load=preserve;reason=no_evidence;offload=preserve",
                endpoint
            ),
            "{sources}"
        );
    }
}

#[test]
fn evidence_by_header_speaks_of_the_first_choice_only() {
    for placement in crate::support::PLACEMENTS {
        let engine = Sink::ok();
        let envoy = placement.start(&threshold(), &engine);
        let own = engine.endpoint();
        for (number, (choices, decision)) in [
            (own.clone(), "load=disable;reason=below_threshold"),
            (
                format!(" {own} , 10.0.0.9:8000"),
                "load=disable;reason=below_threshold",
            ),
            (
                format!("10.0.0.9:8000,{own}"),
                "load=preserve;reason=no_evidence",
            ),
            ("nonsense".to_owned(), "load=preserve;reason=no_evidence"),
        ]
        .into_iter()
        .enumerate()
        {
            let target = format!("{CHAT}?{number}");
            let request = Request::post(&target, "{}")
                .header(DESTINATION, &choices)
                .header(EVIDENCE, TOO_FEW);
            request.to(envoy.address());
            let logged = logged(&envoy, &target);
            assert!(
                logged.starts_with(decision),
                "{placement:?} {choices:?}: {logged}"
            );
        }
    }
}

#[test]
fn without_any_endpoint_nothing_is_decided() {
    let engine = Sink::ok();
    let policy = with(threshold(), json!({"endpointSources": ["metadata"]}));
    let envoy = Placement::Downstream.start(&policy, &engine);
    let body = r#"{"kv_transfer_params":{"max_load_tokens":5}}"#;

    Request::post(CHAT, body)
        .header(EVIDENCE, TOO_FEW)
        .to(envoy.address());

    assert_eq!(engine.take_one().text(), body);
    assert_eq!(
        logged(&envoy, CHAT),
        "load=preserve;reason=no_endpoint;offload=preserve"
    );
    until("the counter", || {
        (envoy.custom(
            "selective_kv_decisions_total",
            "direction=load,action=preserve,reason=no_endpoint",
        ) == 1)
            .then_some(())
    });
}
