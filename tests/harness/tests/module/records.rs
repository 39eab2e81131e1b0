//! Shared-data records as another team's scorer would write them: from the contract, by a CBOR
//! library, with none of the product's code.

use ciborium::Value;
use skv_harness::Harness;

/// FNV-1a, 64 bit.
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub fn queue_key(endpoint: &str) -> String {
    format!(
        "selective-kv/1/queue/{}",
        fnv1a64(endpoint.as_bytes()) % 256
    )
}

pub fn evidence_key(request_id: &str) -> String {
    let bucket = fnv1a64(request_id.as_bytes()) % 4096;
    format!("selective-kv/1/evidence/{bucket}")
}

pub const MEMBERS_KEY: &str = "selective-kv/1/members";

pub fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.into_iter().map(|(k, v)| (k.into(), v));
    Value::Map(entries.collect())
}

pub fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("memory takes every byte");
    bytes
}

pub fn decode(bytes: &[u8]) -> Value {
    ciborium::from_reader(bytes).expect("valid CBOR")
}

/// A member of a CBOR map.
pub fn member<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let entries = value.as_map()?;
    let found = entries.iter().find(|(k, _)| k.as_text() == Some(key));
    found.map(|(_, v)| v)
}

/// One prompt by runs: so many blocks in these tiers, and so on.
pub fn runs(runs: &[(u64, &[&str])]) -> Value {
    let runs = runs.iter().map(|(blocks, tiers)| {
        list([
            (*blocks).into(),
            list(tiers.iter().map(|t| Value::from(*t))),
        ])
    });
    map([("runs", list(runs))])
}

/// One prompt by counts.
pub fn tiers(tiers: &[(&str, u64)]) -> Value {
    let entries = tiers.iter().map(|(t, n)| ((*t).into(), (*n).into()));
    map([("tiers", Value::Map(entries.collect()))])
}

/// A whole evidence record with one request and one endpoint.
pub fn evidence(id: &str, t_ms: u64, endpoint: &str, block_size: u64, entry: Value) -> Value {
    let request = map([
        ("id", id.into()),
        ("t", t_ms.into()),
        ("block_size", block_size.into()),
        ("endpoints", map([(endpoint, entry)])),
    ]);
    map([("v", 1.into()), ("requests", list([request]))])
}

pub fn prompts(prompts: impl IntoIterator<Item = Value>) -> Value {
    map([("prompts", list(prompts))])
}

pub fn partial(entries: impl IntoIterator<Item = Value>) -> Value {
    map([("prompts", list(entries)), ("partial", true.into())])
}

/// A whole queue record of one endpoint.
pub fn queue(endpoint: &str, samples: &[(u64, f64)]) -> Value {
    let samples = samples
        .iter()
        .map(|(t, w)| list([(*t).into(), (*w).into()]));
    let entry = map([("samples", list(samples)), ("engine", "vllm".into())]);
    map([("v", 1.into()), ("endpoints", map([(endpoint, entry)]))])
}

/// A members record of one writer.
pub fn members(writer: &str, t_ms: u64, endpoints: &[&str]) -> Value {
    let listed = list(endpoints.iter().map(|e| Value::from(*e)));
    let entry = map([("t", t_ms.into()), ("endpoints", listed)]);
    map([("v", 1.into()), ("writers", map([(writer, entry)]))])
}

pub fn write(env: &Harness, vm_id: &str, key: &str, value: &Value) {
    env.set_shared(vm_id, key, encode(value));
}
