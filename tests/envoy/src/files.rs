//! Where the programs under test are: by environment, else at the places scripts/ fill.

use std::path::{Path, PathBuf};

/// The workspace's root folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Envoy's binary: `ENVOY`, else `.tools/envoy/envoy`.
pub fn envoy() -> PathBuf {
    named("ENVOY", ".tools/envoy/envoy", "scripts/setup")
}

/// The module: `SELECTIVE_KV_WASM`, else `dist/selective_kv.wasm`.
pub fn module() -> PathBuf {
    named(
        "SELECTIVE_KV_WASM",
        "dist/selective_kv.wasm",
        "scripts/build",
    )
}

/// The policy's module: `SELECTIVE_KV_POLICY_WASM`, else `dist/selective_kv_policy.wasm`.
pub fn policy_module() -> PathBuf {
    named(
        "SELECTIVE_KV_POLICY_WASM",
        "dist/selective_kv_policy.wasm",
        "scripts/build",
    )
}

/// The foreign writer of shared data: `FOREIGN_SCORER_WASM`, else `dist/foreign_scorer.wasm`.
pub fn foreign_scorer() -> PathBuf {
    named(
        "FOREIGN_SCORER_WASM",
        "dist/foreign_scorer.wasm",
        "scripts/build",
    )
}

/// What the product is compared with: `BENCH_BASELINES_WASM`, else `dist/bench_baselines.wasm`.
pub fn baselines() -> PathBuf {
    named(
        "BENCH_BASELINES_WASM",
        "dist/bench_baselines.wasm",
        "scripts/bench",
    )
}

/// The bridge: `KV_EVENTS_BRIDGE`, else beside what cargo built for this test.
pub fn bridge() -> PathBuf {
    let built = std::env::current_exe().ok();
    let folder = built.as_deref().and_then(|test| test.parent()?.parent());
    let built = folder.map(|folder| folder.join("kv-events-bridge"));
    let default = built.unwrap_or_default();
    named(
        "KV_EVENTS_BRIDGE",
        &default.to_string_lossy(),
        "cargo build -p selective-kv-companion",
    )
}

fn named(variable: &str, default: &str, made_by: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| workspace().join(default), PathBuf::from);
    assert!(
        path.exists(),
        "{} is not there: run {made_by} or set {variable}",
        path.display()
    );
    path.canonicalize().expect("a path that exists resolves")
}
