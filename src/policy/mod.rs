//! The decision: configuration, evidence, tiers, gate (DESIGN 4, 5, 6, 8).

pub mod admission;
pub mod config;
pub mod decision;
pub mod endpoint;
pub mod engine;
pub mod evidence;
pub mod gate;
pub mod gatekeeper;
pub mod reason;
pub mod request;
pub mod route;
pub mod summary;

// As in `src/lib.rs`.
#[cfg(test)]
pub mod header_pairs;
#[cfg(not(test))]
pub use selective_kv_records::policy::header_pairs;
pub use selective_kv_streaming::tiers;
