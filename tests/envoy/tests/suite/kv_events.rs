//! From the engines' KV events to decisions: what the scorer says of an engine is what the engine then
//! loads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use envoy_tests::{Bridge, Envoy, Request, files};
use serde_json::{Value, json};
use stand_in_engine::cache::Geometry;
use stand_in_engine::hashing::Algorithm;
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{EventOptions, Options};

use crate::kv_rig::{BLOCK, Rig, THRESHOLD, engine, followed, options, scorer};
use crate::support::{COMPLETIONS, with};

const SHA256: &str = "sha256_cbor";
const FNV: &str = "fnv64a_cbor";

fn keys(algorithm: &str) -> Value {
    match algorithm {
        SHA256 => json!({"algorithm": SHA256, "pythonHashSeed": "0"}),
        _ => json!({}),
    }
}

/// Token ids of its own for each family.
fn prompt(family: usize, tokens: usize) -> Vec<usize> {
    (0..tokens).map(|n| family * 1_000 + n).collect()
}

fn completion(prompt: impl serde::Serialize, more: Value) -> String {
    with(json!({"prompt": prompt, "max_tokens": 1}), more).to_string()
}

/// Serves a prompt and pushes it out of the GPU: the CPU holds its full blocks.
fn warm(rig: &Rig, number: usize, body: &str) {
    let outcome = rig.ask(number, COMPLETIONS, body);
    assert_eq!(outcome.status, 200, "{outcome:?}");
    push_out(rig, number, body);
}

fn push_out(rig: &Rig, number: usize, body: &str) {
    rig.engines[number]
        .evict(COMPLETIONS, body.as_bytes(), 0, usize::MAX, "gpu")
        .expect("a prompt");
}

/// A small linear generator: the same requests each time.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    }
}

/// Random prompts that share prefixes, on two engines that evict from both tiers: every decision is
/// right, and its tokens are what the engine loads.
fn random_prompts(algorithm: &str, hashes: Algorithm) {
    let small = || {
        engine(Options {
            hash_algorithm: hashes,
            geometry: Geometry {
                gpu_blocks: Some(40),
                cpu_chunks: Some(90),
                ..options().geometry
            },
            ..options()
        })
    };
    let rig = Rig::start(vec![small(), small()], keys(algorithm));
    rig.greet();
    let mut random = random(7);
    let mut loaded = [0, 0];
    let (mut enabled, mut disabled) = (0, 0);
    for request in 0..80 {
        let number = random(2);
        let mut tokens = prompt(1 + random(4), 1 + random(300));
        // Every third is a whole number of blocks.
        if random(3) == 0 {
            tokens.truncate(tokens.len() / BLOCK * BLOCK);
            if tokens.is_empty() {
                continue;
            }
        }
        let fork = random(tokens.len() + 1);
        let branch = random(3) * 500;
        tokens.iter_mut().skip(fork).for_each(|id| *id += branch);
        let more = match random(4) {
            0 => json!({"cache_salt": "a"}),
            1 => json!({"kv_transfer_params": {"max_load_tokens": 32}}),
            _ => json!({}),
        };
        let body = completion(tokens, more);

        let expected = rig.loadable(number, COMPLETIONS, &body);
        let reason = match expected >= THRESHOLD {
            true => "admitted",
            false => "below_threshold",
        };
        rig.until_heard();
        rig.until_decided(number, COMPLETIONS, &body, reason, expected);
        let outcome = match request % 2 {
            0 => rig.ask(number, COMPLETIONS, &body),
            _ => rig.ask_in_chunks(number, COMPLETIONS, &body),
        };

        let what = format!("{algorithm}, request {request} at engine {number}: {outcome:?}");
        assert_eq!(outcome.status, 200, "{what}");
        assert_eq!(outcome.part("reason"), reason, "{what}");
        assert_eq!(outcome.tokens(), Some(expected), "{what}");
        if expected >= THRESHOLD {
            assert_eq!(
                (outcome.part("load"), outcome.loaded()),
                ("enable", expected),
                "{what}"
            );
            enabled += 1;
        } else {
            assert_eq!(
                (outcome.part("load"), outcome.loaded()),
                ("disable", 0),
                "{what}"
            );
            disabled += 1;
        }
        loaded[number] += outcome.loaded();
        let work = outcome.work.as_ref().expect("served");
        let answer: Value = serde_json::from_str(&outcome.answer).expect("JSON");
        assert_eq!(
            answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            work.gpu_tokens() + work.loaded_tokens(),
            "{what}"
        );
    }
    assert!(enabled > 10 && disabled > 10, "{enabled} and {disabled}");
    for (engine, loaded) in rig.engines.iter().zip(loaded) {
        let hits = engine.metrics();
        let line = hits
            .lines()
            .find_map(|line| line.strip_prefix("vllm:external_prefix_cache_hits_total{"));
        let (_, hits) = line
            .expect("the series")
            .rsplit_once(' ')
            .expect("a figure");
        assert_eq!(hits.parse::<f64>().expect("a number"), loaded as f64);
    }
}

#[test]
fn random_prompts_load_what_was_foretold_with_bridged_keys() {
    // Whatever the engines hash with.
    random_prompts(FNV, Algorithm::Sha256);
}

#[test]
fn random_prompts_load_what_was_foretold_with_the_engines_keys() {
    random_prompts(SHA256, Algorithm::Sha256Cbor);
}

#[test]
fn a_salt_keeps_tenants_apart() {
    for algorithm in [FNV, SHA256] {
        let rig = Rig::start(vec![engine(options())], keys(algorithm));
        let body = |more: Value| completion(prompt(1, 200), more);
        let of_a = body(json!({"cache_salt": "a"}));
        warm(&rig, 0, &of_a);

        rig.until_decided(0, COMPLETIONS, &of_a, "admitted", 192);
        for other in [json!({}), json!({"cache_salt": "b"})] {
            rig.until_decided(0, COMPLETIONS, &body(other), "below_threshold", 0);
        }
        // Wherever it stands: here before the prompt, and the last of two counts.
        for (salts, reason, tokens) in [
            (["b", "a"], "admitted", 192),
            (["a", "b"], "below_threshold", 0),
        ] {
            let [first, last] = salts;
            let text = body(json!({}));
            let text = text.replacen('{', &format!("{{\"cache_salt\":\"{first}\","), 1);
            let text = text.replace(
                "\"prompt\"",
                &format!("\"cache_salt\":\"{last}\",\"prompt\""),
            );
            rig.until_decided(0, COMPLETIONS, &text, reason, tokens);
        }
        // Nor does the engine find it.
        let outcome = rig.ask(0, COMPLETIONS, &body(json!({"cache_salt": "b"})));
        assert_eq!(
            outcome.told(),
            "disable: below_threshold, 0 tokens, 0 loaded"
        );
    }
}

#[test]
fn several_prompts_are_foretold_together() {
    let rig = Rig::start(vec![engine(options())], json!({}));
    for (first, second) in [
        (prompt(1, 160), prompt(2, 160)),
        // The second begins as the first does, which is computed once.
        (prompt(3, 160), prompt(3, 100)),
        (prompt(4, 100), prompt(4, 100)),
    ] {
        let body = completion([&first, &second], json!({}));
        warm(&rig, 0, &body);
        let expected = rig.loadable(0, COMPLETIONS, &body);
        rig.until_decided(0, COMPLETIONS, &body, "admitted", expected);
        let outcome = rig.ask(0, COMPLETIONS, &body);
        assert_eq!(outcome.loaded(), expected, "{outcome:?}");
    }
}

#[test]
fn a_restarted_engine_is_known_to_hold_nothing() {
    let rig = Rig::start(vec![engine(options()), engine(options())], json!({}));
    let body = completion(prompt(1, 200), json!({}));
    for number in [0, 1] {
        warm(&rig, number, &body);
        rig.until_decided(number, COMPLETIONS, &body, "admitted", 192);
    }

    rig.restart(0);

    // It is known from its first batch on: complete, not partial.
    rig.until_decided(0, COMPLETIONS, &body, "below_threshold", 0);
    // The other engine's blocks are its own.
    rig.until_decided(1, COMPLETIONS, &body, "admitted", 192);
    warm(&rig, 0, &body);
    rig.until_decided(0, COMPLETIONS, &body, "admitted", 192);
    let outcome = rig.ask(0, COMPLETIONS, &body);
    assert_eq!(outcome.told(), "enable: admitted, 192 tokens, 192 loaded");
}

#[test]
fn a_bridge_that_crashes_is_only_missed_meanwhile() {
    let mut rig = Rig::start(vec![engine(options()), engine(options())], json!({}));
    let before = completion(prompt(1, 200), json!({}));
    let meanwhile = completion(prompt(2, 200), json!({}));
    warm(&rig, 0, &before);
    rig.until_decided(0, COMPLETIONS, &before, "admitted", 192);

    rig.bridge.kill();
    // Nothing fails, and what was known is still known.
    warm(&rig, 0, &meanwhile);
    rig.until_decided(0, COMPLETIONS, &before, "admitted", 192);
    rig.bridge.run();

    // The new run has its own epoch; the engines replay everything.
    rig.until_decided(0, COMPLETIONS, &meanwhile, "admitted", 192);
    rig.until_decided(0, COMPLETIONS, &before, "admitted", 192);
    let unknown = completion(prompt(3, 200), json!({}));
    rig.until_decided(0, COMPLETIONS, &unknown, "below_threshold", 0);
    let outcome = rig.ask(0, COMPLETIONS, &meanwhile);
    assert_eq!(outcome.told(), "enable: admitted, 192 tokens, 192 loaded");
}

/// A bridge that has not seen the beginning knows a lower bound: it may admit, and never disables.
#[test]
fn what_the_bridge_came_too_late_for_is_loaded_all_the_same() {
    let without_replay = Options {
        events: Some(EventOptions {
            without_replay: true,
            ..EventOptions::default()
        }),
        ..options()
    };
    let engine = engine(without_replay);
    let unseen = completion(prompt(1, 200), json!({}));
    let answer = Request::post(COMPLETIONS, unseen.as_str()).to(engine.address());
    assert_eq!(answer.status, 200);
    engine
        .evict(COMPLETIONS, unseen.as_bytes(), 0, usize::MAX, "gpu")
        .expect("a prompt");
    let rig = Rig::start(vec![engine], json!({}));

    let seen = completion(prompt(2, 200), json!({}));
    // Nothing is known until it publishes.
    let outcome = rig.ask(0, COMPLETIONS, &seen);
    assert_eq!(outcome.told(), "preserve: no_evidence, no tokens, 0 loaded");
    warm(&rig, 0, &seen);
    rig.until_decided(0, COMPLETIONS, &seen, "admitted", 192);
    rig.until_decided(0, COMPLETIONS, &unseen, "partial_evidence", 0);
    let outcome = rig.ask(0, COMPLETIONS, &unseen);
    assert_eq!(
        outcome.told(),
        "preserve: partial_evidence, 0 tokens, 192 loaded"
    );
    let outcome = rig.ask(0, COMPLETIONS, &seen);
    assert_eq!(outcome.told(), "enable: admitted, 192 tokens, 192 loaded");
}

#[test]
fn lost_events_make_a_lower_bound_until_the_engine_begins_anew() {
    let rig = Rig::start(vec![engine(options())], json!({}));
    let known = completion(prompt(1, 200), json!({}));
    let lost = completion(prompt(2, 200), json!({}));
    warm(&rig, 0, &known);
    rig.until_decided(0, COMPLETIONS, &lost, "below_threshold", 0);
    // What it has stored in the GPU, and in the CPU.
    rig.engines[0].lose_events(2);
    warm(&rig, 0, &lost);

    rig.until_decided(0, COMPLETIONS, &lost, "partial_evidence", 0);
    let outcome = rig.ask(0, COMPLETIONS, &lost);
    assert_eq!(
        outcome.told(),
        "preserve: partial_evidence, 0 tokens, 192 loaded"
    );
    rig.until_decided(0, COMPLETIONS, &known, "admitted", 192);

    rig.restart(0);
    warm(&rig, 0, &known);
    rig.until_decided(0, COMPLETIONS, &lost, "below_threshold", 0);
    rig.until_decided(0, COMPLETIONS, &known, "admitted", 192);
}

#[test]
fn a_request_is_known_by_the_model_that_serves_it() {
    for algorithm in [FNV, SHA256] {
        let serving = || {
            engine(Options {
                aliases: vec!["tiny-latest".into()],
                adapters: vec![("sql".into(), "/adapters/sql".into())],
                ..options()
            })
        };
        let evidence = with(
            keys(algorithm),
            json!({
                "aliases": {"gpt-x": "tiny", "gpt-sql": "sql"},
                // Only the engines' own keys depend on the path.
                "adapters": match algorithm {
                    SHA256 => json!([{"name": "sql", "path": "/adapters/sql"}]),
                    _ => json!([]),
                },
            }),
        );
        let rig = Rig::start(vec![serving()], evidence);
        let body = |model: &str| completion(prompt(1, 200), json!({"model": model}));
        warm(&rig, 0, &body("tiny"));
        rig.until_decided(0, COMPLETIONS, &body("tiny"), "admitted", 192);
        rig.until_decided(0, COMPLETIONS, &body("tiny-latest"), "admitted", 192);
        rig.until_decided(0, COMPLETIONS, &body("gpt-x"), "admitted", 192);
        // An adapter's blocks are its own.
        rig.until_decided(0, COMPLETIONS, &body("sql"), "below_threshold", 0);
        warm(&rig, 0, &body("sql"));
        rig.until_decided(0, COMPLETIONS, &body("sql"), "admitted", 192);
        rig.until_decided(0, COMPLETIONS, &body("gpt-sql"), "admitted", 192);

        // Nobody serves it: no evidence, rather than evidence of nothing.
        let outcome = rig.ask(0, COMPLETIONS, &body("other"));
        assert_eq!(outcome.status, 404, "{outcome:?}");
        assert_eq!(outcome.told(), "preserve: no_evidence, no tokens, 0 loaded");
        assert_eq!(
            rig.envoy
                .custom("selective_kv_scorer_evidence_total", "result=unknown_model"),
            1
        );
    }
}

/// One engine announces what it writes to a disk that both have.
#[test]
fn a_shared_tier_counts_for_all_engines_of_the_model() {
    let with_disk = |tier: &str| {
        engine(Options {
            tiers: vec![TierKind::parse(tier).expect("a tier")],
            ..options()
        })
    };
    let evidence = json!({"sharedTiers": ["storage"], "secondaryTiers": "vouched"});
    let rig = Rig::start(vec![with_disk("fs+events"), with_disk("fs")], evidence);
    let body = completion(prompt(1, 200), json!({}));
    let other = completion(prompt(2, 40), json!({}));
    // The second engine must have published something to be known.
    assert_eq!(rig.ask(1, COMPLETIONS, &other).status, 200);
    rig.until_decided(1, COMPLETIONS, &body, "below_threshold", 0);

    assert_eq!(rig.ask(0, COMPLETIONS, &body).status, 200);
    rig.engines[1]
        .place(COMPLETIONS, body.as_bytes(), 0, usize::MAX, "fs")
        .expect("a tier");

    rig.until_decided(1, COMPLETIONS, &body, "admitted", 192);
    let outcome = rig.ask(1, COMPLETIONS, &body);
    assert_eq!(outcome.told(), "enable: admitted, 192 tokens, 192 loaded");
}

/// What is known lives in shared data: another configuration, or another module, makes new VMs and another
/// one reads the bridge, from where the last one stopped.
#[test]
fn what_is_known_outlives_the_scorer_that_found_out() {
    let engines = vec![engine(options())];
    let bridge = Bridge::start(&followed(&engines));
    let bootstrap = Rig::bootstrap(&engines, &bridge, json!({}));
    let mut config = scorer(&engines, json!({}));
    let (bootstrap, filter) = bootstrap.discovered("kv-scorer");
    let rig = Rig {
        envoy: Envoy::with_workers(&bootstrap, 2),
        bridge,
        engines,
    };
    let asked = |body: &str| rig.ask(0, COMPLETIONS, body).told();
    let unknown = completion(prompt(9, 200), json!({}));
    let mut modules = Vec::new();
    for round in 0..3_u8 {
        let body = completion(prompt(1 + usize::from(round), 200), json!({}));
        warm(&rig, 0, &body);
        rig.until_decided(0, COMPLETIONS, &body, "admitted", 192);
        let before = rig
            .envoy
            .custom("selective_kv_scorer_lease_total", "event=taken");

        match round {
            0 => {
                config["interval"] = json!("300ms");
                filter.configure(&config);
            }
            _ => {
                let module = changed_module(round);
                filter.module(module.clone());
                modules.push(module);
            }
        }
        rig.envoy
            .until_custom("selective_kv_scorer_lease_total", "event=taken", |taken| {
                taken > before
            });

        // Nothing is forgotten, and nothing doubted.
        rig.until_decided(0, COMPLETIONS, &body, "admitted", 192);
        rig.until_decided(0, COMPLETIONS, &unknown, "below_threshold", 0);
        assert_eq!(asked(&body), "enable: admitted, 192 tokens, 192 loaded");
        push_out(&rig, 0, &body);
    }
    for round in 0..3 {
        let body = completion(prompt(1 + round, 200), json!({}));
        rig.until_decided(0, COMPLETIONS, &body, "admitted", 192);
    }
    // Nor was anything read twice.
    let published = rig.engines[0].published().events;
    rig.envoy.until_custom(
        "selective_kv_scorer_events_total",
        "result=applied",
        |applied| applied == published,
    );
    modules.iter().for_each(|module| {
        let _ = std::fs::remove_file(module);
    });
}

/// The module with a custom section more, which makes another VM of it.
fn changed_module(number: u8) -> PathBuf {
    let name = format!("envoy-tests-module-{}-{number}.wasm", std::process::id());
    let changed = std::env::temp_dir().join(name);
    let module = std::fs::read(files::module()).expect("the module");
    let section = [0, 5, 4, b't', b'e', b's', b'0' + number];
    std::fs::write(&changed, [module.as_slice(), &section].concat()).expect("the changed module");
    changed
}

#[test]
fn a_flood_of_events_harms_no_request() {
    let rig = Rig::with_workers(vec![engine(options()), engine(options())], json!({}), 2);
    let known = completion(prompt(1, 200), json!({}));
    warm(&rig, 0, &known);
    rig.until_decided(0, COMPLETIONS, &known, "admitted", 192);
    let before = rig.engines[0].published().batches;

    let stop = AtomicBool::new(false);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        for engine in &rig.engines {
            scope.spawn(|| {
                let mut family = 10;
                while !stop.load(Ordering::Relaxed) {
                    let body = completion(prompt(family % 150, 800), json!({}));
                    family += 1;
                    for tier in ["gpu", "cpu"] {
                        engine
                            .place(COMPLETIONS, body.as_bytes(), 0, usize::MAX, tier)
                            .expect("a tier");
                    }
                    for tier in ["cpu", "gpu"] {
                        engine
                            .evict(COMPLETIONS, body.as_bytes(), 0, usize::MAX, tier)
                            .expect("a tier");
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let rig = &rig;
                scope.spawn(move || {
                    let ask = |n: usize| {
                        let body = completion(prompt(160 + client, 40 + n), json!({}));
                        let request = Request::post(COMPLETIONS, body);
                        request.to(rig.envoy.address()).status
                    };
                    // However fast the answers are, until there was a flood.
                    let flooded = || rig.engines[0].published().batches - before > 300;
                    (0..10_000)
                        .take_while(|n| *n < 150 || !flooded())
                        .map(|n| ask(n % 150))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let answers = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        let answers = answers.flatten().collect();
        stop.store(true, Ordering::Relaxed);
        answers
    });

    assert!(statuses.len() >= 600);
    assert_eq!(statuses, vec![200; statuses.len()]);
    let flood = rig.engines[0].published().batches - before;
    assert!(flood > 300, "{flood} batches");
    // And what was known is known, exactly.
    rig.until_heard();
    rig.until_decided(0, COMPLETIONS, &known, "admitted", 192);
    let outcome = rig.ask(0, COMPLETIONS, &known);
    assert_eq!(outcome.told(), "enable: admitted, 192 tokens, 192 loaded");
    assert_eq!(
        rig.envoy
            .stats("selective_kv_host_failures_total")
            .values()
            .sum::<u64>(),
        0
    );
}
