//! The whole chain in front of engines that say what they would load: the scorer polls them, a
//! foreign writer brings the evidence, the policy decides, and the engine's own parser judges.

use std::time::Duration;

use envoy_tests::wait::PATIENCE;
use envoy_tests::{Bootstrap, Envoy, Request, until};
use serde_json::{Value, json};
use stand_in_engine::record::Work;
use stand_in_engine::{Engine, Options};

use crate::support::{CHAT, COMPLETIONS, GENERATE};

const BLOCK_TOKENS: usize = 32;

/// 1,024 tokens, whose prefix is this request's own.
fn prompt(seed: u32) -> Vec<u32> {
    (0..1024).map(|n| seed * 1_024 + n).collect()
}

fn completion(seed: u32, more: &Value) -> String {
    let mut body = json!({"model": "tiny", "prompt": prompt(seed), "max_tokens": 2});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// Envoy with everything, in front of one engine.
fn chain(file: &str, engine: &Engine, policy: &Value) -> Envoy {
    let mut config = json!({
        "loadPolicy": "threshold",
        "minExternalReusableTokens": 512,
        "maxWaitingRequests": 8,
        "ewmaHalfLife": "200ms",
        "maxEvidenceAge": "1m",
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(policy.as_object().unwrap().clone());
    let scorer = json!({
        "endpoints": [engine.address().to_string()],
        "scrape": {"cluster": "kv-scrape"},
        "interval": "200ms",
    });
    Envoy::start(
        &Bootstrap::shipped(file)
            .policy(&config)
            .scorer(&scorer)
            .foreign_scorer()
            .hosts("engines", &[engine.address()]),
    )
}

/// Puts the first tokens of the prompts into the CPU tier.
fn place(engine: &Engine, path: &str, body: &str, tokens: usize) {
    engine
        .place(path, body.as_bytes(), 0, tokens / BLOCK_TOKENS, "cpu")
        .expect("a tier");
}

/// Sends a request with the engine's own word on what it holds; what the engine did with it.
fn serve(envoy: &Envoy, engine: &Engine, path: &str, body: &str) -> Work {
    let mut evidence = engine.evidence(path, body.as_bytes()).expect("evidence");
    let prompts = evidence["prompts"].take();
    let mut record = json!({"block_size": evidence["block_size"], "endpoints": {}});
    record["endpoints"][engine.address().to_string()] = json!({"prompts": prompts});
    engine.clear_records();

    let request = Request::post_chunked(path, body.as_bytes(), 700).slowly(1);
    let response = request
        .header("x-foreign-evidence", record.to_string())
        .to(envoy.address());

    assert_eq!(response.status, 200, "{}", response.text());
    let records = engine
        .wait_answered(1, PATIENCE)
        .expect("an answered request");
    records[0].work.clone().expect("a request that was served")
}

#[test]
fn an_engine_loads_what_is_worth_it_until_its_queue_is_full() {
    for file in ["downstream.yaml", "upstream.yaml"] {
        let engine = Engine::start(Options::default()).expect("an engine");
        let envoy = chain(file, &engine, &json!({}));
        let mut seed = 0;
        let mut load = |held: usize, more: Value| {
            seed += 1;
            let body = completion(seed, &more);
            place(&engine, COMPLETIONS, &body, held);
            serve(&envoy, &engine, COMPLETIONS, &body).loaded_tokens()
        };

        // Enough to load, whatever the client's cap; too little.
        assert_eq!(load(1024, json!({})), 1024, "{file}");
        assert_eq!(
            load(768, json!({"kv_transfer_params": {"max_load_tokens": 32}})),
            768,
            "{file}"
        );
        assert_eq!(load(480, json!({})), 0, "{file}");
        // A client that wants no secondary tier still gets what the CPU holds.
        assert_eq!(
            load(512, json!({"kv_transfer_params": {"kv_load_tiers": []}})),
            512,
            "{file}"
        );
        // A peer's pull is left alone, although there is too little.
        assert_eq!(
            load(
                256,
                json!({"kv_transfer_params": {"do_remote_prefill": true}})
            ),
            256,
            "{file}"
        );

        // Pressure builds, and eases.
        engine.set_waiting("0", "20");
        until("no loads under pressure", || {
            (load(1024, json!({})) == 0).then_some(())
        });
        assert_eq!(load(1024, json!({})), 0, "{file}");
        engine.set_waiting("0", "0");
        until("loads again", || {
            (load(1024, json!({})) == 1024).then_some(())
        });

        let counted = |labels: &str| envoy.custom("selective_kv_decisions_total", labels);
        assert!(
            counted("direction=load,action=disable,reason=queue_pressure") >= 2,
            "{file}"
        );
        assert_eq!(
            counted("direction=load,action=disable,reason=below_threshold"),
            1,
            "{file}"
        );
        assert_eq!(
            counted("direction=load,action=preserve,reason=disaggregated"),
            1,
            "{file}"
        );
    }
}

#[test]
fn several_prompts_are_weighed_one_by_one() {
    let engine = Engine::start(Options::default()).expect("an engine");
    let envoy = chain(
        "downstream.yaml",
        &engine,
        &json!({"minExternalReusableTokens": 600}),
    );
    let body = |first: u32, second: u32| {
        json!({"model": "tiny", "prompt": [prompt(first), prompt(second)], "max_tokens": 1})
            .to_string()
    };
    // 320 tokens of each prompt: 640 together.
    let both = body(1, 2);
    place(&engine, COMPLETIONS, &both, 320);
    assert_eq!(
        serve(&envoy, &engine, COMPLETIONS, &both).loaded_tokens(),
        640
    );
    // The same prompt twice is loaded once, so 320 are too few.
    let twice = body(3, 3);
    place(&engine, COMPLETIONS, &twice, 320);
    assert_eq!(
        serve(&envoy, &engine, COMPLETIONS, &twice).loaded_tokens(),
        0
    );
}

#[test]
fn both_places_of_generate_reach_the_engine() {
    let engine = Engine::start(Options::default()).expect("an engine");
    let envoy = chain("downstream.yaml", &engine, &json!({}));
    for (seed, top, nested) in [
        (1, json!(null), json!({"max_load_tokens": 900})),
        (2, json!({}), json!({"max_load_tokens": 900})),
        (3, json!(null), json!(null)),
    ] {
        let body = json!({
            "sampling_params": {"max_tokens": 1, "extra_args": {"kv_transfer_params": nested}},
            "token_ids": prompt(seed),
            "kv_transfer_params": top,
        });
        let body = body.to_string();
        place(&engine, GENERATE, &body, 256);
        assert_eq!(
            serve(&envoy, &engine, GENERATE, &body).loaded_tokens(),
            0,
            "{body:.200}"
        );
    }
}

#[test]
fn offloading_can_be_turned_off() {
    let engine = Engine::start(Options::default()).expect("an engine");
    let envoy = chain(
        "downstream.yaml",
        &engine,
        &json!({"offloadPolicy": "disable"}),
    );
    let served = serve(&envoy, &engine, COMPLETIONS, &completion(1, &json!({})));
    assert_eq!((served.prompt_tokens(), served.stored_tokens()), (1024, 0));

    let envoy = chain("downstream.yaml", &engine, &json!({}));
    let served = serve(&envoy, &engine, COMPLETIONS, &completion(2, &json!({})));
    assert_eq!(served.stored_tokens(), 1024);
}

#[test]
fn a_streamed_answer_comes_through_event_by_event() {
    let options = Options {
        token_interval: Duration::from_millis(20),
        ..Options::default()
    };
    let engine = Engine::start(options).expect("an engine");
    let envoy = chain(
        "downstream.yaml",
        &engine,
        &json!({"loadPolicy": "disable", "maxWaitingRequests": 0}),
    );
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": true});

    let response = Request::post(CHAT, body.to_string()).to(envoy.address());

    assert_eq!(
        response.header("content-type").as_deref(),
        Some("text/event-stream; charset=utf-8")
    );
    let events = response.text().matches("data: ").count();
    assert!(
        events >= 6 && response.text().trim_end().ends_with("data: [DONE]"),
        "{}",
        response.text()
    );
    let work = engine.wait_answered(1, PATIENCE).expect("a record")[0]
        .work
        .clone();
    assert_eq!(work.expect("served").loaded_tokens(), 0);
}
