//! What the module costs, in instructions (wasmtime fuel), so that no change makes it dearer
//! unnoticed. Times are measured in benches/.

use crate::records::{prompts, runs};
use crate::rig::{CAPPED, CHAT, DISABLE, GATED, Rig, THRESHOLD, chat, post};

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
        ("text", text, 0.8),
        ("escapes", escapes, 5.0),
        ("tokens", tokens, 1.5),
        ("messages", messages, 9.0),
        ("tools", tools, 12.0),
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
        ("inactive", "{}", 10_000),
        ("disable", DISABLE, 50_000),
        ("threshold", THRESHOLD, 80_000),
        ("gated", GATED, 90_000),
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
fn a_skipped_request_asks_the_host_little() {
    let headers = |n: usize| {
        let mut calls = vec!["proxy_get_property"];
        calls.extend(vec!["proxy_get_header_map_value"; n]);
        calls.push("proxy_increment_metric");
        calls
    };
    for (path, header, value, expected) in [
        (CHAT, ":method", "GET", headers(1)),
        ("/v1/embeddings", ":method", "POST", headers(2)),
        (CHAT, "content-type", "text/plain", headers(3)),
        (CHAT, "content-encoding", "br", headers(4)),
    ] {
        let rig = Rig::new(THRESHOLD);
        let send = || {
            let chunks = CAPPED.as_bytes().chunks(16);
            let request = post(path).header(header, value);
            rig.policy.request(request).chunks(chunks).end()
        };
        // The first one defines the metric.
        send();
        let before = rig.env.calls().len();
        assert!(send().complete());
        let calls: Vec<&str> = rig
            .env
            .calls()
            .iter()
            .skip(before)
            .map(|c| c.import)
            .collect();
        assert_eq!(calls, expected, "{path} {header}: {value}");
    }
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
