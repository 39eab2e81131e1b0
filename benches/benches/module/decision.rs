//! What a request takes beside its body: one that is not looked at, and decisions by policy.

use ciborium::Value;
use selective_kv_bench::report::{Reach, Results, Row};
use skv_harness::{Harness, Meter, Plugin, Request};

use crate::measure::{Cost, Effort, Make, Subject, Ways, costs};
use crate::records::{self, list, map};

const CHAT: &str = "/v1/chat/completions";
const BODY: &str =
    r#"{"model":"m","kv_transfer_params":{"max_load_tokens":512,"max_offload_tokens":64},"n":1}"#;
const ENDPOINT: &str = "10.0.0.7:8000";

const DISABLE: &str = r#"{"loadPolicy":"disable"}"#;
const THRESHOLD: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024}"#;
const GATED: &str =
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":8}"#;

/// At 8 endpoints, 64 runs each.
fn evidence(t_ms: u64) -> Value {
    let runs = |endpoint: u64| {
        let tiers: [&[&str]; 2] = [&["gpu", "cpu"], &["cpu", "storage@local"]];
        let run = |i: u64| (endpoint + i, tiers[usize::from(i > 8 && i % 2 == 1)]);
        let runs: Vec<(u64, &[&str])> = (0..63).map(run).chain([(100, tiers[1])]).collect();
        records::prompts([records::runs(&runs)])
    };
    let endpoints = (0..8).map(|n| (format!("10.0.0.{n}:8000").into(), runs(n)));
    let request = map([
        ("id", "r-1".into()),
        ("t", t_ms.into()),
        ("block_size", 16.into()),
        ("endpoints", Value::Map(endpoints.collect())),
    ]);
    map([("v", 1.into()), ("requests", list([request]))])
}

struct Case {
    variant: &'static str,
    /// None: the module that does nothing.
    policy: Option<&'static str>,
    path: &'static str,
    /// A sample that no request has seen yet comes before each.
    new_sample: bool,
}

const fn case(variant: &'static str, policy: &'static str) -> Case {
    Case {
        variant,
        policy: Some(policy),
        path: CHAT,
        new_sample: false,
    }
}

const NOOP: &str = "noop";
const DECIDED: &str = "threshold, evidence, gate";

const CASES: [Case; 7] = [
    Case {
        policy: None,
        ..case(NOOP, "")
    },
    Case {
        path: "/v1/embeddings",
        ..case("other path", GATED)
    },
    case("preserve", "{}"),
    case("disable", DISABLE),
    case("threshold, evidence", THRESHOLD),
    case(DECIDED, GATED),
    Case {
        new_sample: true,
        ..case("threshold, evidence, gate moves", GATED)
    },
];

fn plugin(case: &Case, env: &Harness) -> Plugin {
    match case.policy {
        Some(policy) => env.vm("").plugin("selective-kv", policy),
        None => env
            .vm_from_file("", "BENCH_BASELINES_WASM", "dist/bench_baselines.wasm")
            .plugin("baselines", NOOP),
    }
}

fn subject(case: &'static Case, meter: Meter) -> Subject {
    let env = Harness::measuring(meter);
    let plugin = plugin(case, &env);
    let key = records::evidence_key("r-1");
    records::write(&env, "", &key, &evidence(env.now_ms()));
    let queue = |env: &Harness| {
        let record = records::queue(ENDPOINT, &[(env.now_ms(), 1.0)]);
        records::write(env, "", &records::queue_key(ENDPOINT), &record);
    };
    queue(&env);
    let vm = plugin.vm().clone();
    let (world, new_sample) = (env.clone(), case.new_sample);
    let send = move || {
        if new_sample {
            world.advance_ms(1);
            queue(&world);
        }
        let request = Request::post(case.path).upstream(ENDPOINT);
        let out = plugin.request(request).end_with(BODY);
        assert!(out.complete());
        out
    };
    let decided = send().state("selective_kv.decision").map(str::to_owned);
    let loads = decided.is_some_and(|d| d.contains("load=enable;reason=admitted"));
    assert_eq!(
        loads,
        case.variant.starts_with("threshold"),
        "{}",
        case.variant
    );
    Subject {
        env,
        vm,
        act: Box::new(move || drop(send())),
    }
}

pub fn measure(effort: Effort, ways: Ways, results: &mut Results) {
    let subjects: Vec<Make<'_>> = CASES
        .iter()
        .map(|case| Box::new(move |meter| subject(case, meter)) as Make<'_>)
        .collect();
    for (case, cost) in CASES.iter().zip(costs(&subjects, effort, ways)) {
        results.rows.extend(rows(case.variant, &cost));
        println!(
            "{}: {} host calls, {:?}",
            case.variant,
            cost.host_calls(),
            cost.host_calls
        );
        if case.variant == DECIDED {
            results.reach.push(Reach {
                what:
                    "module: a whole request with evidence of 8 endpoints, 64 runs each, and gate"
                        .into(),
                unit: "µs".into(),
                measured: cost.time,
                limit: 10.0,
            });
        }
    }
}

fn rows(variant: &str, cost: &Cost) -> [Row; 4] {
    let time = Row {
        bench: "module request".into(),
        variant: variant.into(),
        shape: None,
        bytes: Some(BODY.len()),
        chunk: None,
        params: None,
        unit: "µs".into(),
        value: cost.time,
        spread: Some(cost.spread),
        ratio_to: None,
    };
    let figure = |unit: &str, value: f64| Row {
        unit: unit.into(),
        value,
        spread: None,
        ..time.clone()
    };
    [
        time.clone(),
        figure("instructions", cost.instructions),
        figure("host calls", cost.host_calls() as f64),
        figure("bytes read", cost.bytes as f64),
    ]
}
