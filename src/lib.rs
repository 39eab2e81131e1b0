//! selective-kv: a proxy-wasm module that decides, per LLM request, whether a vLLM engine loads
//! and offloads external KV cache, and edits `kv_transfer_params` in the streaming body.
//!
//! Two roles share the module, told apart by `root_id`: `selective-kv` (policy) and `kv-scorer`
//! (companion scorer). Everything outside `plugin` is pure: time, randomness and the host are
//! arguments.

// The lint has no in-tests switch of its own (clippy.toml has one for the others).
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod config;
pub mod contract;
mod decimal;
mod json_value;
// Only where a proxy-wasm host provides the `env` imports.
#[cfg(all(feature = "plugin", target_arch = "wasm32"))]
// One role's half is dead in the module without the other.
#[cfg_attr(not(feature = "scorer"), allow(dead_code))]
mod plugin;
pub mod policy;
pub mod scorer;
pub mod sorted;

pub use selective_kv_streaming::{body, prefix, prompt};
use selective_kv_streaming::{cbor, json};
