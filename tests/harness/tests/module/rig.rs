//! One VM with the policy role, and the names of what it reports.

use crate::records;
use ciborium::Value;
use skv_harness::{Harness, Plugin, Request, Vm};
use std::collections::BTreeMap;

pub const ENDPOINT: &str = "10.0.0.7:8000";
pub const OTHER: &str = "10.0.0.8:8000";
pub const CHAT: &str = "/v1/chat/completions";
pub const GENERATE: &str = "/inference/v1/generate";

/// A threshold policy without a gate: 1024 tokens.
pub const THRESHOLD: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024}"#;
/// The same with a gate at 8 waiting requests.
pub const GATED: &str =
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":8}"#;
pub const DISABLE: &str = r#"{"loadPolicy":"disable"}"#;
pub const DISABLE_BOTH: &str = r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#;

/// The chat request of a client that caps both ways.
pub const CAPPED: &str =
    r#"{"model":"m","kv_transfer_params":{"max_load_tokens":512,"max_offload_tokens":64},"n":1}"#;

pub struct Rig {
    pub env: Harness,
    pub vm: Vm,
    pub policy: Plugin,
}

impl Rig {
    pub fn new(configuration: &str) -> Self {
        let env = Harness::new();
        let vm = env.vm("");
        let policy = vm.plugin("selective-kv", configuration);
        Self { env, vm, policy }
    }

    /// Evidence for request `r-1` at [`ENDPOINT`], written now, blocks of 64 tokens.
    pub fn evidence(&self, entry: Value) {
        self.evidence_at(self.env.now_ms(), entry);
    }

    pub fn evidence_at(&self, t_ms: u64, entry: Value) {
        let record = records::evidence("r-1", t_ms, ENDPOINT, 64, entry);
        records::write(&self.env, "", &records::evidence_key("r-1"), &record);
    }

    /// 24 external blocks of 64 tokens: 1536 tokens.
    pub fn much_evidence(&self) {
        self.evidence(records::prompts([records::runs(&[
            (4, &["gpu", "cpu"]),
            (24, &["cpu"]),
        ])]));
    }

    pub fn queue(&self, samples: &[(u64, f64)]) {
        let record = records::queue(ENDPOINT, samples);
        records::write(&self.env, "", &records::queue_key(ENDPOINT), &record);
    }

    /// `selective_kv_decisions_total` as `load disable queue_pressure` → count.
    pub fn decisions(&self) -> BTreeMap<String, u64> {
        labels(&self.env, "selective_kv_decisions_total.")
    }

    pub fn skipped(&self) -> BTreeMap<String, u64> {
        labels(&self.env, "selective_kv_skipped_total.")
    }

    pub fn edits(&self) -> BTreeMap<String, u64> {
        labels(&self.env, "selective_kv_edits_total.")
    }

    pub fn held(&self) -> u64 {
        self.env.metric("selective_kv_held_bytes")
    }
}

/// The series of one metric: label values in order, separated by blanks → value.
pub fn labels(env: &Harness, name: &str) -> BTreeMap<String, u64> {
    env.metrics()
        .iter()
        .filter_map(|(raw, metric)| {
            let labels = raw.strip_prefix(name)?;
            let values: Vec<&str> = labels
                .split(";.;")
                .filter_map(|label| label.split_once("=.="))
                .map(|(_, value)| value)
                .collect();
            Some((values.join(" "), metric.value))
        })
        .collect()
}

pub fn counts<const N: usize>(expected: [(&str, u64); N]) -> BTreeMap<String, u64> {
    expected
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v))
        .collect()
}

/// A request that the router sends to [`ENDPOINT`].
pub fn post(path: &str) -> Request {
    Request::post(path).upstream(ENDPOINT)
}

pub fn chat() -> Request {
    post(CHAT)
}
