//! selective-kv: a proxy-wasm module that decides, per LLM request, whether a vLLM engine loads
//! and offloads external KV cache, and edits `kv_transfer_params` in the streaming body.
//!
//! Two roles share the module, told apart by `root_id`: `selective-kv` (policy) and `kv-scorer`
//! (companion scorer). Everything outside `plugin` is pure: time, randomness and the host are
//! arguments.

// The lint has no in-tests switch of its own (clippy.toml has one for the others).
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod config;
// Only where a proxy-wasm host provides the `env` imports.
#[cfg(all(feature = "plugin", target_arch = "wasm32"))]
// One role's half is dead in the module without the other.
#[cfg_attr(not(feature = "scorer"), allow(dead_code))]
mod plugin;
pub mod policy;
pub mod scorer;

use selective_kv_streaming::json;
pub use selective_kv_streaming::{body, prefix, prompt};

#[cfg(not(test))]
pub use selective_kv_records::{contract, sorted};
#[cfg(not(test))]
use selective_kv_records::{decimal, json_value};
// What `src/records.rs` lists is tested here, with what is built on it.
#[cfg(test)]
use selective_kv_streaming::cbor;
#[cfg(test)]
pub mod contract;
#[cfg(test)]
mod decimal;
#[cfg(test)]
mod json_value;
#[cfg(test)]
pub mod sorted;
