//! The companion scorer's pure half: metrics text, endpoints, lease, what engines say; KV events, residency index, runs.

pub mod body_pass;
pub mod config;
pub mod endpoints;
pub mod event;
pub mod events;
pub mod evidence;
pub mod facts;
pub mod lease;
pub mod poller;
pub mod prefetch;
mod question;
mod record;
pub mod sightings;
pub mod tokenize;
mod version;

#[cfg(not(test))]
pub use selective_kv_records::scorer::{index, kv_events, metric_spec, metrics_text, runs, stores};
// As in `src/lib.rs`.
#[cfg(test)]
pub mod index;
#[cfg(test)]
pub mod kv_events;
#[cfg(test)]
pub mod metric_spec;
#[cfg(test)]
pub mod metrics_text;
#[cfg(test)]
pub mod runs;
#[cfg(test)]
pub mod stores;
