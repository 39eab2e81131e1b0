//! Words that several tests share.

use envoy_tests::{Bootstrap, Envoy, Request, Sink};
use serde_json::{Value, json};

pub const COMPLETIONS: &str = "/v1/completions";
pub const CHAT: &str = "/v1/chat/completions";
pub const GENERATE: &str = "/inference/v1/generate";

/// The header that carries tier evidence where a test has no writer of shared data.
pub const EVIDENCE: &str = "x-kv-tier-evidence";
/// 1,024 external reusable tokens: what the threshold of these tests asks for.
pub const ENOUGH: &str = r#"{"block_size":64,"tiers":{"gpu":4,"cpu":20}}"#;
/// 640.
pub const TOO_FEW: &str = r#"{"block_size":64,"tiers":{"gpu":10,"cpu":20}}"#;

/// Threshold 1,024 with evidence by header, no queue gate.
pub fn threshold() -> Value {
    json!({"loadPolicy": "threshold", "minExternalReusableTokens": 1024, "evidenceHeader": EVIDENCE})
}

pub fn with(mut config: Value, more: Value) -> Value {
    let more = more.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(more);
    config
}

/// Where the policy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Downstream,
    Upstream,
}

pub const PLACEMENTS: [Placement; 2] = [Placement::Downstream, Placement::Upstream];

impl Placement {
    /// The shipped bootstrap, policy alone.
    pub fn bootstrap(self, policy: &Value) -> Bootstrap {
        let file = match self {
            Placement::Downstream => "downstream.yaml",
            Placement::Upstream => "upstream.yaml",
        };
        Bootstrap::shipped(file)
            .without_filter("kv-scorer")
            .policy(policy)
    }

    pub fn start(self, policy: &Value, engine: &Sink) -> Envoy {
        Envoy::start(&self.bootstrap(policy).engines(&[engine]))
    }
}

/// Routes chosen by the header `x-route`, of the same name; without it, `default`.
pub fn named_routes(names: &[&str]) -> Value {
    let named = names.iter().map(|name| {
        json!({
            "name": name,
            "match": {"prefix": "/", "headers": [{"name": "x-route", "string_match": {"exact": name}}]},
            "route": {"cluster": "engines", "timeout": "0s"},
        })
    });
    let default = json!({"name": "default", "match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}});
    named.chain([default]).collect()
}

/// How the same request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1 with content-length.
    Length,
    /// HTTP/1.1, chunked; what arrives in one go is one chunk to a filter.
    Chunked,
    /// HTTP/2, one byte a frame, without content-length: each frame is a chunk to a filter.
    Frames,
}

pub const WIRES: [Wire; 3] = [Wire::Length, Wire::Chunked, Wire::Frames];

impl Wire {
    /// A POST of JSON.
    pub fn post(self, target: &str, body: &[u8]) -> Request {
        match self {
            Wire::Length => Request::post(target, body),
            Wire::Chunked => Request::post_chunked(target, body, 1),
            Wire::Frames => Request::post_chunked(target, body, 1),
        }
    }

    /// The answer's status; 0 if there was none.
    pub fn exchange(self, request: &Request, envoy: &Envoy) -> u16 {
        let response = match self {
            Wire::Frames => request.try_h2(envoy.address()),
            Wire::Length | Wire::Chunked => request.try_to(envoy.address()),
        };
        response.map_or(0, |r| r.status)
    }
}

/// `kv="…"` of the access-log line of a target; waits for it.
pub fn logged(envoy: &Envoy, target: &str) -> String {
    let line = envoy.access_line(&format!(" {target} "));
    let (_, decision) = line
        .split_once("kv=\"")
        .expect("the decision in the access log");
    decision.trim_end_matches('"').to_owned()
}

/// The same without the endpoint, which differs between runs, and the endpoint (or nothing).
pub fn decision_and_endpoint(envoy: &Envoy, target: &str) -> (String, String) {
    let logged = logged(envoy, target);
    let (ours, endpoints): (Vec<_>, Vec<_>) = logged
        .split(';')
        .partition(|part| !part.starts_with("endpoint="));
    (ours.join(";"), endpoints.join("").replace("endpoint=", ""))
}
