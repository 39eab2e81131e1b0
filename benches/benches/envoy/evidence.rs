//! Evidence and queue samples in shared data, written by examples/foreign-scorer.

use envoy_tests::{Envoy, Request};
use serde_json::{Value, json};

use crate::sink::Sink;
use crate::variants::{EVIDENCE_IDS, WRITER};

const ENDPOINTS: usize = 8;
const RUNS: usize = 64;

/// The id of a request that has evidence.
pub fn id(number: usize) -> String {
    format!("bench-{}", number % EVIDENCE_IDS)
}

/// For each id: eight endpoints, 64 runs each; at the sink enough external tokens to admit a load.
pub fn write(envoy: &Envoy, sink: &Sink) {
    let runs: Vec<_> = (0..RUNS)
        .map(|run| {
            let tiers: &[&str] = match run % 3 {
                0 => &["cpu"],
                1 => &["cpu", "storage"],
                _ => &["gpu", "cpu"],
            };
            json!([4, tiers])
        })
        .collect();
    let endpoint = json!({"prompts": [{"runs": runs}]});
    let mut endpoints = json!({});
    for number in 1..ENDPOINTS {
        endpoints[format!("10.0.0.{number}:8000")] = endpoint.clone();
    }
    endpoints[sink.address().to_string()] = endpoint;
    for number in 0..EVIDENCE_IDS {
        let record = json!({"id": id(number), "block_size": 16, "endpoints": endpoints});
        post(envoy, "evidence", &record);
    }
}

/// A new sample, for the gate to take in. One within 200 ms after another is not written.
pub fn sample_queue(envoy: &Envoy, sink: &Sink) {
    let sample =
        json!({"endpoint": sink.address().to_string(), "samples": [{"ago": 0, "waiting": 1}]});
    post(envoy, "queue", &sample);
}

fn post(envoy: &Envoy, path: &str, record: &Value) {
    let request = Request::post(&format!("/foreign-scorer/{path}"), record.to_string());
    let response = request.to(envoy.listener(WRITER));
    assert_eq!(response.status, 204, "{}", response.text());
}
