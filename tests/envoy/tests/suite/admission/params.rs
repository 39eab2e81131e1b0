//! What a client's own params have to do with admission: tiers that a route adds where there are
//! none, and a cap of 0 that stays.

use std::thread;
use std::time::Duration;

use envoy_tests::wait::PATIENCE;
use envoy_tests::{Bootstrap, Envoy, Request, until};
use serde_json::json;
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, Options};

use super::{HELD, capped, load_decisions};
use crate::support::{COMPLETIONS, EVIDENCE, logged, with};

/// The prompt's 1,024 tokens are in the object store alone, which is no local one.
fn remote_engine(version: &str) -> Engine {
    let engine = Engine::start(Options {
        version: version.into(),
        tiers: vec![TierKind::parse("obj:REMOTE").expect("a tier")],
        learn: false,
        ..Options::default()
    })
    .expect("an engine");
    engine
        .place(COMPLETIONS, with_params("").as_bytes(), 0, 32, "obj")
        .expect("a tier");
    engine
}

/// `params` is a member's text with the comma before it.
fn with_params(params: &str) -> String {
    let prompt: Vec<String> = (0..1024).map(|token: u32| token.to_string()).collect();
    let prompt = prompt.join(",");
    format!(r#"{{"model":"tiny","prompt":[{prompt}],"max_tokens":2{params}}}"#)
}

/// The end of a body, behind the prompt.
fn tail(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let (_, tail) = body.split_once(']').expect("a prompt");
    tail.to_owned()
}

const ADDED: &str =
    r#","kv_transfer_params":{"kv_load_tiers":[{"medium":"storage","locality":"local"}]}"#;
const OWN: &str = r#", "kv_transfer_params" : { "kv_load_tiers" : [ {"locality":"remote"} ] } "#;

#[test]
fn a_routes_tiers_reach_the_engine_where_the_client_has_none() {
    let cases = [
        ("no-params", "", ADDED),
        (
            "null",
            r#", "kv_transfer_params" : null "#,
            r#", "kv_transfer_params" : {"kv_load_tiers":[{"medium":"storage","locality":"local"}]} "#,
        ),
        (
            "no-tiers",
            r#","kv_transfer_params":{ "max_load_tokens" : 4096 }"#,
            r#","kv_transfer_params":{ "max_load_tokens" : 4096 ,"kv_load_tiers":[{"medium":"storage","locality":"local"}]}"#,
        ),
        ("own", OWN, OWN),
    ];
    for version in ["0.32.0", "0.26.0"] {
        let supported = version != "0.26.0";
        let engine = remote_engine(version);
        let endpoint = engine.address().to_string();
        let policy = json!({"defaultLoadTiers": [{"medium": "storage", "locality": "local"}]});
        let scorer = json!({
            "endpoints": [endpoint],
            "scrape": {"cluster": "kv-scrape"},
            "interval": "200ms",
        });
        let envoy = Envoy::start(
            &Bootstrap::shipped("downstream.yaml")
                .policy(&policy)
                .scorer(&scorer)
                .hosts("engines", &[engine.address()]),
        );
        // The version comes with the second sample.
        until("two polls with a version", || {
            let samples = envoy.custom("selective_kv_scorer_samples_total", "");
            (engine.polls().contains_key("/version") && samples >= 4).then_some(())
        });
        for (name, params, added) in cases {
            engine.clear_records();
            let target = format!("{COMPLETIONS}?{name}");
            let response = Request::post(&target, with_params(params)).to(envoy.address());
            assert_eq!(response.status, 200, "{}", response.text());
            let records = engine.wait_answered(1, PATIENCE);
            let record = &records.expect("an answered request")[0];
            let arrives = with_params(if supported { added } else { params });
            assert_eq!(
                tail(&record.body),
                tail(arrives.as_bytes()),
                "{version} {name}"
            );
            assert!(record.body == arrives, "{version} {name}: before the tail");
            let work = record.work.as_ref().expect("work");
            assert!(work.params.warnings.is_empty(), "{:?}", work.params);
            // An engine that knows no filter loads from everywhere.
            let loads = name == "own" || !supported;
            assert_eq!(work.loaded_tokens(), if loads { 1024 } else { 0 }, "{name}");
            let reason = if supported || name == "own" {
                "policy"
            } else {
                "engine_unsupported"
            };
            assert_eq!(
                logged(&envoy, &target),
                format!("load=preserve;reason={reason};offload=preserve;endpoint={endpoint}"),
                "{version} {name}"
            );
        }
        let edits = envoy.custom("selective_kv_edits_total", "direction=load_tiers");
        let ignored = envoy.custom(
            "selective_kv_engine_unsupported_total",
            "kind=kv_load_tiers",
        );
        assert_eq!(
            (edits, ignored),
            if supported { (3, 0) } else { (0, 3) },
            "{version}"
        );
        let line = format!("endpoint {endpoint} runs a vLLM older than 0.27");
        let lines = envoy.log().matches(&line).count();
        assert_eq!(lines, usize::from(!supported), "{version}");
    }
}

#[test]
fn a_clients_own_cap_of_0_takes_no_place_where_it_is_respected() {
    const ZERO: &str = r#","kv_transfer_params":{"max_load_tokens":0}"#;
    for (caps, second, reason) in [
        ("respect", "enable", "admitted"),
        // The cap is taken out: this client loads.
        ("override", "disable", "promotion_concurrency"),
    ] {
        let engine = Engine::start(Options {
            latency: Duration::from_secs(4),
            learn: false,
            ..Options::default()
        })
        .expect("an engine");
        let envoy = Envoy::start(
            &Bootstrap::shipped("downstream.yaml")
                .without_filter("kv-scorer")
                .policy(&with(capped(1), json!({"clientCaps": caps})))
                .hosts("engines", &[engine.address()]),
        );
        let address = envoy.address();
        let send = |params: &str| {
            let request = Request::post(COMPLETIONS, with_params(params)).header(EVIDENCE, HELD);
            thread::spawn(move || request.to(address).status)
        };
        let first = send(ZERO);
        until("the first request is served", || {
            engine.records().first()?.work.as_ref().map(|_| ())
        });
        engine.set_latency(Duration::ZERO);
        assert_eq!(send("").join().expect("a client"), 200);
        assert_eq!(first.join().expect("a client"), 200);
        assert_eq!(engine.records().len(), 2);
        let caps_seen = engine
            .records()
            .iter()
            .map(|record| record.work.as_ref().expect("work").params.max_load_tokens)
            .collect::<Vec<_>>();
        let expected = match caps {
            "respect" => [Some(0), None],
            _ => [None, Some(0)],
        };
        assert_eq!(caps_seen, expected, "{caps}");
        assert!(load_decisions(&envoy, second, reason) >= 1, "{caps}");
        assert_eq!(
            load_decisions(&envoy, "disable", "promotion_concurrency"),
            u64::from(second == "disable"),
            "{caps}"
        );
    }
}
