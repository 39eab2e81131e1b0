//! What the module costs, in instructions (wasmtime fuel), so that no change makes it dearer
//! unnoticed. Times are measured in benches/.

use crate::records::{self, list, map, prompts, runs};
use crate::rig::{CAPPED, CHAT, DISABLE, GATED, Rig, THRESHOLD, chat, counts, post};
use ciborium::Value;
use skv_harness::Request;

/// Instructions of one request in 16 KiB chunks on a warm VM.
fn instructions(rig: &Rig, body: &str) -> u64 {
    let send = || {
        let chunks = body.as_bytes().chunks(16 * 1024);
        rig.policy.request(chat()).chunks(chunks).end()
    };
    send();
    let before = rig.vm.fuel_consumed();
    assert!(send().complete());
    rig.vm.fuel_consumed() - before
}

#[test]
fn a_body_costs_little_a_byte() {
    let text = format!(
        r#"{{"prompt":"{}"}}"#,
        "the quick brown fox ".repeat(50_000)
    );
    // A quote every few bytes: where a search for quotes helps least.
    let escapes = format!(
        r#"{{"prompt":"{}"}}"#,
        "a\\n\\\"b\\\" \\u00e9 ".repeat(50_000)
    );
    let ids: Vec<String> = (0..150_000_u32)
        .map(|i| (i * 7 % 128_000).to_string())
        .collect();
    let tokens = format!(r#"{{"prompt":[{}]}}"#, ids.join(","));
    // Many small strings and brackets, which a search stops at one by one.
    let messages = format!(
        r#"{{"messages":[{}]}}"#,
        [r#"{"role":"user","content":"ok"},{"role":"assistant","content":"done, "next"?"}"#;
            10_000]
            .join(",")
    );
    let tool = r#"{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"q":{"type":"string"},"kinds":{"type":"array","items":{"enum":["a","b"]}}},"required":["q"]}}}"#;
    let tools = format!(r#"{{"tools":[{}]}}"#, [tool; 5_000].join(","));
    for (name, body, most) in [
        ("text", text, 0.7),
        ("escapes", escapes, 2.0),
        ("tokens", tokens, 1.3),
        ("messages", messages, 5.5),
        ("tools", tools, 10.5),
    ] {
        let rig = Rig::new(DISABLE);
        let cost = instructions(&rig, &body) as f64 / body.len() as f64;
        println!("{name}: {cost:.2} a byte");
        assert!(cost < most, "{name}: {cost}");
    }
}

#[test]
fn a_request_costs_little() {
    for (name, configuration, most) in [
        ("inactive", "{}", 4_000),
        ("disable", DISABLE, 35_000),
        ("threshold", THRESHOLD, 55_000),
        ("gated", GATED, 60_000),
    ] {
        let rig = Rig::new(configuration);
        rig.much_evidence();
        rig.queue(&[(rig.env.now_ms(), 1.0)]);
        let cost = instructions(&rig, CAPPED);
        println!("{name}: {cost} a request");
        assert!(cost < most, "{name}: {cost}");
    }
}

#[test]
fn a_large_evidence_record_costs_little() {
    let rig = Rig::new(GATED);
    rig.queue(&[(rig.env.now_ms(), 1.0)]);
    // A prefix in the GPU, then what takes turns.
    let lists: [&[&str]; 2] = [&["cpu"], &["cpu", "storage@local"]];
    let runs = |first: u64| {
        let others = (1..64).map(|i| (first + i, lists[i as usize % 2]));
        let runs: Vec<(u64, &[&str])> = [(first, &["gpu", "cpu"][..])]
            .into_iter()
            .chain(others)
            .collect();
        records::prompts([records::runs(&runs)])
    };
    let endpoints = (0..8).map(|n| (format!("10.0.0.{n}:8000").into(), runs(n + 1)));
    let request = map([
        ("id", "r-1".into()),
        ("t", rig.env.now_ms().into()),
        ("block_size", 16.into()),
        ("endpoints", Value::Map(endpoints.collect())),
    ]);
    let record = map([("v", 1.into()), ("requests", list([request]))]);
    records::write(&rig.env, "", &records::evidence_key("r-1"), &record);
    let cost = instructions(&rig, CAPPED);
    println!("{cost} a request");
    let decided = counts([("load enable admitted", 2), ("offload preserve policy", 2)]);
    assert_eq!(rig.decisions(), decided);
    assert!(cost < 150_000, "{cost}");
}

/// The host calls of a request, in order, after one that defines the metrics.
fn calls(rig: &Rig, request: impl Fn() -> Request) -> Vec<&'static str> {
    let send = || {
        let chunks = CAPPED.as_bytes().chunks(16);
        rig.policy.request(request()).chunks(chunks).end()
    };
    send();
    rig.env.forget_calls();
    assert!(send().complete());
    rig.env.calls().iter().map(|call| call.import).collect()
}

#[test]
fn a_skipped_request_asks_the_host_little() {
    const PROPERTY: &str = "proxy_get_property";
    const ALL: &str = "proxy_get_header_map_pairs";
    const METRIC: &str = "proxy_increment_metric";
    for (policy, path, header, value, expected) in [
        ("{}", CHAT, ":method", "POST", vec![PROPERTY, METRIC]),
        (
            THRESHOLD,
            "/v1/embeddings",
            ":method",
            "POST",
            vec![PROPERTY, ALL, METRIC],
        ),
        (
            THRESHOLD,
            CHAT,
            ":method",
            "GET",
            vec![PROPERTY, ALL, METRIC],
        ),
        (
            THRESHOLD,
            CHAT,
            "content-encoding",
            "br",
            vec![PROPERTY, ALL, METRIC],
        ),
    ] {
        let rig = Rig::new(policy);
        let calls = calls(&rig, || post(path).header(header, value));
        assert_eq!(calls, expected, "{policy} {path} {header}: {value}");
    }
}

#[test]
fn a_decision_reads_each_record_once() {
    let rig = Rig::new(GATED);
    rig.much_evidence();
    rig.queue(&[(rig.env.now_ms(), 1.0)]);
    let reads = |name: &str| {
        let calls = calls(&rig, chat);
        calls.iter().filter(|import| **import == name).count()
    };
    // Evidence, and the queue record that has not changed.
    assert_eq!(reads("proxy_get_shared_data"), 2);
    assert_eq!(reads("proxy_set_shared_data"), 0);
    assert_eq!(reads("proxy_get_header_map_value"), 0);
    assert_eq!(reads("proxy_get_header_map_pairs"), 1);
}

#[test]
fn a_member_of_the_params_costs_little() {
    let rig = Rig::new(DISABLE);
    let members = |n: usize| {
        let members: Vec<String> = (0..n).map(|i| format!("\"key{i}\":{i}")).collect();
        format!("{{\"kv_transfer_params\":{{{}}}}}", members.join(","))
    };
    let (few, many) = (
        instructions(&rig, &members(10)),
        instructions(&rig, &members(1_010)),
    );
    let cost = (many - few) / 1_000;
    println!("{cost} a member");
    assert!(cost < 4_000, "{cost}");
}

#[test]
fn a_repeated_member_costs_little_whatever_the_record() {
    let rig = Rig::new(GATED);
    rig.queue(&[(rig.env.now_ms(), 1.0)]);
    // What one request's evidence may have: 16 KiB.
    let run = (1, &["gpu", "cpu", "storage@local"][..]);
    rig.evidence(prompts([runs(&vec![run; 500])]));
    let members = |n: usize| {
        let filters = ["[]", "null", r#"[{"medium":"cpu"}]"#];
        let members: Vec<String> = (0..n)
            .map(|i| {
                let filter = filters[i % 3];
                format!(r#""kv_transfer_params":{{"kv_load_tiers":{filter}}}"#)
            })
            .collect();
        format!("{{{}}}", members.join(","))
    };
    let (few, many) = (
        instructions(&rig, &members(10)),
        instructions(&rig, &members(1_010)),
    );
    let cost = (many - few) / 1_000;
    println!("{cost} a member");
    assert!(cost < 15_000, "{cost}");
}
