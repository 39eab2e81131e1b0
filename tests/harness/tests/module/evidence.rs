//! From the engines' events to a decision: the scorer's evidence in the built module.

use crate::bridge::{BLOCK, Engines, hashes, removed};
use crate::rig::{ENDPOINT, OTHER, labels};
use skv_harness::{Chain, Harness, Placement, Request, Vm};
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const POLICY: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":64}"#;

fn scorer(endpoints: &[&str]) -> String {
    format!(
        r#"{{"name":"pool","endpoints":{endpoints:?},"scrape":{{"cluster":"kv-scrape"}},
            "evidence":{{"events":{{"cluster":"bridge"}},"blocksPerChunk":1,
            "secondaryTiers":"none","aliases":{{"gpt-x":"m"}}}}}}"#
    )
}

/// A worker whose requests pass the scorer, then the policy.
fn worker(env: &Harness, endpoints: &[&str]) -> (Vm, Chain) {
    let vm = env.vm("");
    let scorer = vm.plugin("kv-scorer", scorer(endpoints));
    let policy = vm.plugin("selective-kv", POLICY);
    let chain = Chain::default()
        .then(&scorer, Placement::Downstream)
        .then(&policy, Placement::Downstream);
    (vm, chain)
}

fn tokens(first: u32, blocks: usize) -> Vec<u32> {
    (first..).take(blocks * BLOCK).collect()
}

fn body(prompt: &[u32], more: &str) -> String {
    format!(r#"{{"prompt":{prompt:?}{more},"kv_transfer_params":{{"max_load_tokens":0}}}}"#)
}

/// What is decided for a request to that endpoint, sent in small chunks.
fn decision(chain: &Chain, endpoint: &str, body: &str) -> String {
    let request = Request::post(COMPLETIONS).upstream(endpoint);
    let out = chain
        .request(request)
        .chunks(body.as_bytes().chunks(97))
        .end();
    assert!(out.complete());
    let state = out.state("selective_kv.decision").unwrap_or_default();
    let enabled = state.starts_with("load=enable");
    let expected = match enabled {
        true => body.replace(r#""max_load_tokens":0"#, ""),
        false => body.to_owned(),
    };
    assert_eq!(out.text(), expected);
    let part = |name: &str| state.split(';').find_map(|part| part.strip_prefix(name));
    let tokens = part("tokens=").map(|n| format!(" {n}")).unwrap_or_default();
    format!("{}{tokens}", part("reason=").unwrap_or_default())
}

#[test]
fn what_an_engine_has_offloaded_is_loaded_there_and_recomputed_elsewhere() {
    let env = Harness::new();
    let endpoints = [ENDPOINT, OTHER];
    let engines = Engines::behind(&env, &endpoints);
    let workers = [worker(&env, &endpoints).1, worker(&env, &endpoints).1];
    let prompt = tokens(100, 8);
    engines.offload(ENDPOINT, &prompt, None);
    env.run_ms(4_000);
    for chain in &workers {
        let known = body(&prompt, "");
        assert_eq!(decision(chain, ENDPOINT, &known), "admitted 128");
        assert_eq!(decision(chain, OTHER, &known), "below_threshold 0");
        for model in ["m", "gpt-x"] {
            let named = body(&prompt, &format!(r#","model":"{model}""#));
            assert_eq!(decision(chain, ENDPOINT, &named), "admitted 128");
        }
        // The adapter's blocks are others; a model of nobody's is not guessed at, nor is text.
        let adapter = body(&prompt, r#","model":"sql""#);
        assert_eq!(decision(chain, ENDPOINT, &adapter), "below_threshold 0");
        let nobody = body(&prompt, r#","model":"M""#);
        assert_eq!(decision(chain, ENDPOINT, &nobody), "no_evidence");
        let text = r#"{"prompt":"hello","kv_transfer_params":{"max_load_tokens":0}}"#;
        assert_eq!(decision(chain, ENDPOINT, text), "no_evidence");
    }
    // When the engine gives the blocks up, it is noticed.
    engines.say(ENDPOINT, [removed(&hashes(&prompt, None)[2..], "CPU")]);
    env.run_ms(2_000);
    for chain in &workers {
        let known = body(&prompt, "");
        assert_eq!(decision(chain, ENDPOINT, &known), "below_threshold 32");
    }
    let problems = labels(&env, "selective_kv_scorer_problems_total.");
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn another_tenants_blocks_are_nobody_elses_wherever_the_salt_stands() {
    let env = Harness::new();
    let engines = Engines::behind(&env, &[ENDPOINT]);
    let (_, chain) = worker(&env, &[ENDPOINT]);
    let prompt = tokens(100, 8);
    engines.offload(ENDPOINT, &prompt, Some("tenant"));
    env.run_ms(4_000);
    let (theirs, others) = ("admitted 128", "below_threshold 0");
    let ids = format!(r#""prompt":{prompt:?}"#);
    let params = r#""kv_transfer_params":{"max_load_tokens":0}"#;
    for (members, expected) in [
        (vec![r#""cache_salt":"tenant""#, &ids, params], theirs),
        (vec![&ids, params, r#""cache_salt":"tenant""#], theirs),
        (vec![params, &ids, r#""cache_salt":"tenan\u0074""#], theirs),
        (vec![&ids, params], others),
        (
            vec![
                r#""cache_salt":"tenant""#,
                &ids,
                params,
                r#""cache_salt":"other""#,
            ],
            others,
        ),
        (
            vec![
                r#""cache_salt":"tenant""#,
                &ids,
                params,
                r#""cache_salt":null"#,
            ],
            others,
        ),
        (
            vec![
                r#""cache_salt":"other""#,
                &ids,
                params,
                r#""cache_salt":"tenant""#,
            ],
            theirs,
        ),
    ] {
        let body = format!("{{{}}}", members.join(","));
        assert_eq!(decision(&chain, ENDPOINT, &body), expected, "{members:?}");
    }
}

#[test]
fn without_news_there_is_soon_no_evidence() {
    let env = Harness::new();
    let engines = Engines::behind(&env, &[ENDPOINT]);
    let (_, chain) = worker(&env, &[ENDPOINT]);
    let prompt = tokens(100, 8);
    engines.offload(ENDPOINT, &prompt, None);
    env.run_ms(4_000);
    let known = body(&prompt, "");
    assert_eq!(decision(&chain, ENDPOINT, &known), "admitted 128");
    engines.bridge_goes_down();
    env.run_ms(25_000);
    assert_eq!(decision(&chain, ENDPOINT, &known), "admitted 128");
    env.run_ms(10_000);
    assert_eq!(decision(&chain, ENDPOINT, &known), "no_evidence");
    let silent = ("result", "silent");
    let name = "selective_kv_scorer_endpoint_evidence_total";
    assert_eq!(env.labelled(name, &[silent]), 1);
}

/// Instructions and time of the last chunk of a body, in which the prompt is hashed, looked up and
/// published.
#[allow(clippy::disallowed_methods)] // A native test may ask for the time.
fn publish(vm: &Vm, chain: &Chain, body: &str) -> (u64, Duration) {
    let (before_end, end) = body.split_at(body.len() - 1);
    let request = Request::post(COMPLETIONS).upstream(ENDPOINT);
    let chunks = before_end.as_bytes().chunks(16 * 1024);
    let mut stream = chain.request(request).chunks(chunks);
    let (fuel, start) = (vm.fuel_consumed(), Instant::now());
    stream.chunk(end);
    let cost = (vm.fuel_consumed() - fuel, start.elapsed());
    assert!(stream.end().complete());
    cost
}

#[test]
fn a_long_prompt_at_eight_endpoints_costs_little() {
    let env = Harness::new();
    let endpoints: Vec<String> = (7..15).map(|n| format!("10.0.0.{n}:8000")).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let engines = Engines::behind(&env, &endpoints);
    let (vm, chain) = worker(&env, &endpoints);
    // 32k tokens.
    let prompt = tokens(1_000, 2_048);
    for endpoint in &endpoints {
        engines.offload(endpoint, &prompt, None);
    }
    env.run_ms(6_000);
    for (name, body, decided) in [
        ("all hold it", body(&prompt, ""), "admitted 32768"),
        (
            "nobody holds it",
            body(&prompt, r#","cache_salt":"x""#),
            "below_threshold 0",
        ),
    ] {
        assert_eq!(decision(&chain, ENDPOINT, &body), decided);
        let costs = (0..10).map(|_| publish(&vm, &chain, &body));
        let (fuel, time) = costs.min_by_key(|(_, time)| *time).expect("ten");
        println!("{name}: {fuel} instructions, {time:?} (with fuel counted)");
        assert!(fuel < 9_500_000, "{name}: {fuel}");
    }
}
