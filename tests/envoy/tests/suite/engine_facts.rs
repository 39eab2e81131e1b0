//! With `evidence`: engines are asked what they serve, and those that do not go with the
//! configuration are reported.

use envoy_tests::{Bootstrap, Envoy, until};
use serde_json::json;
use stand_in_engine::hashing::Algorithm;
use stand_in_engine::{Engine, Options};

#[test]
fn an_engine_with_other_hashes_is_reported_once() {
    let engine = |hash_algorithm| {
        Engine::start(Options {
            hash_algorithm,
            ..Options::default()
        })
        .expect("an engine")
    };
    let (good, other) = (engine(Algorithm::Sha256Cbor), engine(Algorithm::Sha256));
    let scorer = json!({
        "name": "pool",
        "endpoints": [good.address().to_string(), other.address().to_string()],
        "scrape": {"cluster": "kv-scrape"},
        "interval": "200ms",
        "evidence": {
            "events": {"cluster": "kv-events"},
            "algorithm": "sha256_cbor",
            "pythonHashSeed": "0",
        },
    });
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .scorer(&scorer)
        .hosts("engines", &[good.address(), other.address()]);
    let envoy = Envoy::with_workers(&bootstrap, 2);
    let problem = |kind: &str| {
        let labels = format!("kind={kind}");
        envoy.custom("selective_kv_scorer_problems_total", &labels)
    };

    let line = format!(
        "kv-scorer pool: {} has no evidence: it hashes blocks by sha256: start it with \
         --prefix-caching-hash-algo sha256_cbor, or leave \"algorithm\" out",
        other.address()
    );
    let lines = || envoy.log().matches(&line).count();
    until("the line", || (lines() == 1).then_some(()));
    // Ten more polls say the same.
    let samples = || envoy.custom("selective_kv_scorer_samples_total", "");
    let before = samples();
    until("more polls", || (samples() >= before + 20).then_some(()));
    assert_eq!((lines(), problem("config_mismatch")), (1, 1));
    assert_eq!((problem("models"), problem("version")), (0, 0));
    assert!(!envoy.log().contains(&format!("{} has no", good.address())));
}
