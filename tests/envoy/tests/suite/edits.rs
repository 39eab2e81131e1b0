//! The streaming edit, byte for byte, in both placements, however the body is cut.

use std::path::PathBuf;

use envoy_tests::message::Framing;
use envoy_tests::{Envoy, Sink, files};
use serde_json::{Value, json};

use crate::support::{
    CHAT, COMPLETIONS, ENOUGH, EVIDENCE, GENERATE, PLACEMENTS, Placement, TOO_FEW, WIRES, Wire,
    decision_and_endpoint, named_routes, threshold, with,
};

/// Routes by what their policy does.
const ROUTES: [&str; 5] = ["load", "threshold", "respect", "dry", "off"];

fn policy() -> Value {
    json!({
        "loadPolicy": "disable",
        "offloadPolicy": "disable",
        "evidenceHeader": EVIDENCE,
        "routes": [
            {"match": {"routeName": "load"}, "offloadPolicy": "preserve"},
            with(threshold(), json!({"match": {"routeName": "threshold"}, "offloadPolicy": "preserve"})),
            with(threshold(), json!({"match": {"routeName": "respect"}, "offloadPolicy": "preserve", "clientCaps": "respect"})),
            {"match": {"routeName": "dry"}, "dryRun": true},
            {"match": {"routeName": "off"}, "loadPolicy": "preserve", "offloadPolicy": "preserve"},
        ],
    })
}

/// Given a body on a route of that policy, when it passes, then this arrives and this is logged.
struct Case {
    route: &'static str,
    path: &'static str,
    evidence: Option<&'static str>,
    body: &'static str,
    arrives: &'static str,
    decision: &'static str,
}

const fn case(
    route: &'static str,
    path: &'static str,
    evidence: Option<&'static str>,
    body: &'static str,
    arrives: &'static str,
    decision: &'static str,
) -> Case {
    Case {
        route,
        path,
        evidence,
        body,
        arrives,
        decision,
    }
}

const BOTH: &str = "load=disable;reason=policy;offload=disable";
const LOAD: &str = "load=disable;reason=policy;offload=preserve";
const NOT_JSON: &str = "load=preserve;reason=not_json;offload=preserve";
const PEERS: &str = "load=preserve;reason=disaggregated;offload=preserve";
const ADMITTED: &str = "load=enable;reason=admitted;offload=preserve;tokens=1024";
const BELOW: &str = "load=disable;reason=below_threshold;offload=preserve;tokens=640";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // The parameters absent, first, in the middle, last, null, empty, no object.
    case("default", COMPLETIONS, None, r#"{"model":"m","prompt":"p"}"#,
        r#"{"model":"m","prompt":"p","kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#, BOTH),
    case("default", CHAT, None, r#"{}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#, BOTH),
    case("default", CHAT, None, "{ \"messages\" : [ ] \n}",
        "{ \"messages\" : [ ] \n,\"kv_transfer_params\":{\"max_load_tokens\":0,\"max_offload_tokens\":0}}", BOTH),
    case("default", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":512},"model":"m"}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0},"model":"m"}"#, BOTH),
    case("default", "/v1/responses", None, r#"{"a":1,"kv_transfer_params": { "x":"é\u00e9", "max_offload_tokens" : 7 } ,"b":1e400}"#,
        r#"{"a":1,"kv_transfer_params": { "x":"é\u00e9", "max_offload_tokens" : 0 ,"max_load_tokens":0} ,"b":1e400}"#, BOTH),
    case("default", "/v1/messages", None, r#"{"a":1,"kv_transfer_params":{"remote_engine_id":"e"}}"#,
        r#"{"a":1,"kv_transfer_params":{"remote_engine_id":"e","max_load_tokens":0,"max_offload_tokens":0}}"#, BOTH),
    case("load", "/invocations", None, r#"{"kv_transfer_params":null,"b":2}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0},"b":2}"#, LOAD),
    case("load", "/v1/chat/completions/batch", None, r#"{"kv_transfer_params":{ },"b":2}"#,
        r#"{"kv_transfer_params":{ "max_load_tokens":0},"b":2}"#, LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":"x","b":2}"#, r#"{"kv_transfer_params":"x","b":2}"#, LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":[{"max_load_tokens":1}]}"#, r#"{"kv_transfer_params":[{"max_load_tokens":1}]}"#, LOAD),
    // Only the integer 0 is 0.
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":0.0}}"#, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":"0"}}"#, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":-0 }}"#, r#"{"kv_transfer_params":{"max_load_tokens":0 }}"#, LOAD),
    // What a client may send and a JSON library would not: byte-order mark, NaN, duplicates, decoys.
    case("load", CHAT, None, "\u{feff}{\"a\":NaN,\"kv_transfer\\u005fparams\":{\"max_load_tokens\":9}}",
        "\u{feff}{\"a\":NaN,\"kv_transfer\\u005fparams\":{\"max_load_tokens\":0}}", LOAD),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":1},"kv_transfer_params":{"max_load_tokens":2,"max_load_tokens":3}}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":{"max_load_tokens":0,"max_load_tokens":0}}"#, LOAD),
    case("load", CHAT, None, r#"{"tools":[{"kv_transfer_params":{"max_load_tokens":1}}],"s":"{\"kv_transfer_params\":{}}","n":18446744073709551615}"#,
        r#"{"tools":[{"kv_transfer_params":{"max_load_tokens":1}}],"s":"{\"kv_transfer_params\":{}}","n":18446744073709551615,"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    // Enable takes the cap away, respect leaves it.
    case("threshold", CHAT, Some(ENOUGH), r#"{"kv_transfer_params":{"max_load_tokens":0,"remote_engine_id":"e"},"x":1}"#,
        r#"{"kv_transfer_params":{"remote_engine_id":"e"},"x":1}"#, ADMITTED),
    case("threshold", CHAT, Some(ENOUGH), r#"{"kv_transfer_params":{"a":1, "max_load_tokens": 0}}"#, r#"{"kv_transfer_params":{"a":1}}"#, ADMITTED),
    case("threshold", CHAT, Some(ENOUGH), r#"{"kv_transfer_params":{ "max_load_tokens":1 }}"#, r#"{"kv_transfer_params":{  }}"#, ADMITTED),
    case("threshold", CHAT, Some(ENOUGH), r#"{"x":1}"#, r#"{"x":1}"#, ADMITTED),
    case("respect", CHAT, Some(ENOUGH), r#"{"kv_transfer_params":{"max_load_tokens":64}}"#, r#"{"kv_transfer_params":{"max_load_tokens":64}}"#, ADMITTED),
    case("respect", CHAT, Some(TOO_FEW), r#"{"kv_transfer_params":{"max_load_tokens":64}}"#, r#"{"kv_transfer_params":{"max_load_tokens":0}}"#, BELOW),
    case("threshold", CHAT, Some(TOO_FEW), r#"{"x":1}"#, r#"{"x":1,"kv_transfer_params":{"max_load_tokens":0}}"#, BELOW),
    // The client's own tiers.
    case("threshold", CHAT, Some(r#"{"block_size":64,"runs":[[20,["storage"]]]}"#), r#"{"kv_transfer_params":{"max_load_tokens":5,"kv_load_tiers":[]}}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0,"kv_load_tiers":[]}}"#, "load=disable;reason=below_threshold;offload=preserve;tokens=0"),
    // Evidence that says nothing, too little, or nonsense.
    case("threshold", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#,
        "load=preserve;reason=no_evidence;offload=preserve"),
    case("threshold", CHAT, Some("nonsense"), r#"{"x":1}"#, r#"{"x":1}"#, "load=preserve;reason=invalid_evidence;offload=preserve"),
    case("threshold", CHAT, Some(r#"{"block_size":64,"tiers":{"cpu":2},"partial":true}"#), r#"{"x":1}"#, r#"{"x":1}"#,
        "load=preserve;reason=partial_evidence;offload=preserve;tokens=128"),
    case("threshold", CHAT, Some(r#"{"block_size":64,"prompts":[{"tiers":{"gpu":10,"cpu":20}},{"tiers":{"storage":20}}]}"#), r#"{"x":1}"#, r#"{"x":1}"#,
        "load=enable;reason=admitted;offload=preserve;tokens=1920"),
    // Both places of generate.
    case("load", GENERATE, None, r#"{"token_ids":[1,2]}"#, r#"{"token_ids":[1,2],"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    case("load", GENERATE, None, r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}},"token_ids":[1]}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":0}}},"token_ids":[1]}"#, LOAD),
    case("load", GENERATE, None, r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}},"kv_transfer_params":{}}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}},"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    case("load", GENERATE, None, r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}"#,
        r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1,"max_load_tokens":0}}}}"#, LOAD),
    case("load", GENERATE, None, r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":null}}}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":0},"sampling_params":{"extra_args":{"kv_transfer_params":null}}}"#, LOAD),
    // Elsewhere the nested place is no place.
    case("load", CHAT, None, r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}}}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}},"kv_transfer_params":{"max_load_tokens":0}}"#, LOAD),
    // Peer-to-peer requests are left alone, unless their keys say nothing.
    case("default", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":5,"do_remote_decode":true}}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":5,"do_remote_decode":true}}"#, PEERS),
    case("default", CHAT, None, r#"{"kv_transfer_params":{"remote_kv_source":{"host":"h"},"max_load_tokens":5}}"#,
        r#"{"kv_transfer_params":{"remote_kv_source":{"host":"h"},"max_load_tokens":5}}"#, PEERS),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"do_remote_prefill":false,"disagg_spec":null,"max_load_tokens":5}}"#,
        r#"{"kv_transfer_params":{"do_remote_prefill":false,"disagg_spec":null,"max_load_tokens":0}}"#, LOAD),
    // Dry run decides and edits nothing.
    case("dry", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#, BOTH),
    // What is no JSON object passes as it is; an edit that is out stands.
    case("default", CHAT, None, "[1,2]", "[1,2]", NOT_JSON),
    case("default", CHAT, None, "hello", "hello", NOT_JSON),
    case("default", CHAT, None, r#"{"a":"#, r#"{"a":"#, NOT_JSON),
    case("default", CHAT, None, r#"{"a" 1}"#, r#"{"a" 1}"#, NOT_JSON),
    case("load", CHAT, None, r#"{"kv_transfer_params":{"max_load_tokens":5},"a" oops"#, r#"{"kv_transfer_params":{"max_load_tokens":0},"a" oops"#,
        "load=disable;reason=policy;offload=preserve"),
    case("load", CHAT, None, r#"{"a":1} trailing"#, r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0}} trailing"#, LOAD),
];

#[test]
fn downstream_on_every_wire() {
    run(Placement::Downstream, files::module());
}

#[test]
fn downstream_on_every_wire_with_the_policys_module() {
    run(Placement::Downstream, files::policy_module());
}

#[test]
fn upstream_on_every_wire() {
    run(Placement::Upstream, files::module());
}

fn run(placement: Placement, module: PathBuf) {
    let engine = Sink::ok();
    let bootstrap = placement
        .bootstrap(&policy())
        .module(module)
        .routes(&named_routes(&ROUTES))
        .engines(&[&engine]);
    let envoy = Envoy::start(&bootstrap);
    for (number, case) in CASES.iter().enumerate() {
        for wire in WIRES {
            let target = target(case, number, wire);
            let mut request = wire
                .post(&target, case.body.as_bytes())
                .header("x-route", case.route);
            if let Some(evidence) = case.evidence {
                request = request.header(EVIDENCE, evidence);
            }

            let status = wire.exchange(&request, &envoy);
            let seen = engine.take_one();

            let what = format!("{placement:?} {wire:?} {} {}", case.route, case.body);
            assert_eq!(status, 200, "{what}");
            assert_eq!(seen.text(), case.arrives, "{what}");
            assert_eq!(seen.header(EVIDENCE), None, "{what}");
            let kept = wire == Wire::Length && case.route == "dry";
            assert_eq!(seen.framing == Framing::Length, kept, "{what}");
        }
    }
    for (number, case) in CASES.iter().enumerate() {
        for wire in WIRES {
            let target = target(case, number, wire);
            let (decision, endpoint) = decision_and_endpoint(&envoy, &target);
            assert_eq!(
                decision, case.decision,
                "{placement:?} {target} {}",
                case.body
            );
            if case.route == "threshold" && case.decision != NOT_JSON {
                assert_eq!(endpoint, engine.endpoint(), "{placement:?} {target}");
            }
        }
    }
    // One decision a direction and request.
    let decided: u64 = envoy.stats("selective_kv_decisions_total").values().sum();
    assert_eq!(decided, 2 * (CASES.len() * WIRES.len()) as u64);
}

/// Tells the requests apart in the access log.
fn target(case: &Case, number: usize, wire: Wire) -> String {
    format!("{}?{number}{wire:?}", case.path)
}

#[test]
fn a_request_that_is_not_looked_at_keeps_its_headers_and_bytes() {
    let body = br#"{"kv_transfer_params":{"max_load_tokens":5}}"#;
    let post = |target: &str| Wire::Length.post(target, body);
    let json = |target: &str, content_type: &str| {
        post(target)
            .without_header("content-type")
            .header("content-type", content_type)
    };
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let bootstrap = placement
            .bootstrap(&policy())
            .routes(&named_routes(&ROUTES))
            .engines(&[&engine]);
        let envoy = Envoy::start(&bootstrap);
        let requests = [
            ("path", post("/v1/embeddings")),
            ("path", post("/v1/completions/")),
            ("content_type", json(CHAT, "text/plain")),
            ("content_type", post(CHAT).without_header("content-type")),
            (
                "content_encoding",
                post(CHAT).header("content-encoding", "gzip"),
            ),
            ("inactive", post(CHAT).header("x-route", "off")),
        ];
        for (reason, request) in requests {
            let counter = format!("reason={reason}");
            let before = envoy.custom("selective_kv_skipped_total", &counter);
            let request = request.header(EVIDENCE, ENOUGH);

            request.to(envoy.address());

            let seen = engine.take_one();
            let what = format!("{placement:?} {reason} {}", request.target);
            assert_eq!(seen.body, body, "{what}");
            assert_eq!(
                seen.header("content-length").as_deref(),
                Some("44"),
                "{what}"
            );
            assert_eq!(
                seen.header(EVIDENCE),
                None,
                "{what}: evidence is never for the engine"
            );
            assert_eq!(
                envoy.custom("selective_kv_skipped_total", &counter),
                before + 1,
                "{what}"
            );
        }

        // A POST without a body is no JSON object, and stays what it is.
        let target = format!("{CHAT}?empty");
        post(&target).body("").to(envoy.address());
        let seen = engine.take_one();
        assert_eq!(
            (
                seen.body.as_slice(),
                seen.header("content-length").as_deref()
            ),
            (b"".as_slice(), Some("0"))
        );
        assert_eq!(decision_and_endpoint(&envoy, &target).0, NOT_JSON);

        // A method of its own: no body at all.
        envoy_tests::Request::get(CHAT)
            .header(EVIDENCE, ENOUGH)
            .to(envoy.address());
        assert_eq!(engine.take_one().header(EVIDENCE), None);
        assert_eq!(
            envoy.custom("selective_kv_skipped_total", "reason=method"),
            1
        );

        // A disaggregated request by its headers: a decision, but no reading.
        for (number, header) in [
            "x-prefiller-host-port",
            "x-encoder-hosts-ports",
            "x-kv-cache-source-host-port",
        ]
        .iter()
        .enumerate()
        {
            let target = format!("{CHAT}?{header}");
            post(&target)
                .header(header, "10.0.0.1:8000")
                .to(envoy.address());
            let seen = engine.take_one();
            assert_eq!(
                (seen.body.as_slice(), seen.framing),
                (body.as_slice(), Framing::Length)
            );
            let (decision, _) = decision_and_endpoint(&envoy, &target);
            assert_eq!(decision, PEERS);
            let counted = envoy.custom(
                "selective_kv_decisions_total",
                "direction=load,action=preserve,reason=disaggregated",
            );
            assert_eq!(counted, number as u64 + 1);
        }

        // A content type with parameters, in any case, is JSON as well.
        json(
            &format!("{CHAT}?charset"),
            "Application/JSON; charset=utf-8",
        )
        .to(envoy.address());
        let seen = engine.take_one();
        assert_eq!(
            seen.text(),
            r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#
        );
    }
}
