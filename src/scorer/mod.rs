//! The companion scorer's pure half: metrics text, endpoints, lease.

pub mod config;
pub mod lease;
pub mod metric_spec;
pub mod metrics_text;
mod record;
