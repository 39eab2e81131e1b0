//! The companion scorer's pure half: metrics text, endpoints, lease, what engines say; KV events, residency index, runs.

pub mod body_pass;
pub mod config;
pub mod endpoints;
pub mod event;
pub mod events;
pub mod evidence;
pub mod facts;
pub mod index;
pub mod kv_events;
pub mod lease;
pub mod metric_spec;
pub mod metrics_text;
pub mod poller;
pub mod prefetch;
mod question;
mod record;
pub mod runs;
pub mod sightings;
pub mod stores;
pub mod tokenize;
mod version;
