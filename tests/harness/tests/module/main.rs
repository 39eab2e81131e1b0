//! The built module in the model of Envoy: what an operator's requests go through.
//!
//! `dist/selective_kv.wasm` must be there (scripts/build).

mod admission;
mod bodies;
mod bridge;
mod cost;
mod decisions;
mod disorder;
mod evidence;
mod faults;
mod gate;
mod headers;
mod hostile;
mod limits;
mod native;
mod policy_alone;
mod random;
mod records;
mod reports;
mod rig;
mod roles;

mod streams;
