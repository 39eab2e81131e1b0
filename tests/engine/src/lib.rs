//! A stand-in for a vLLM engine: it behaves like one where it matters to selective-kv, and says what
//! reached it and what it would load and store. It links none of the module's code, and reads JSON
//! in its own way, so that it is a second opinion on what the module did to a body.
//!
//! Pinned by the tables in `testdata/engine/`, which were read off real servers.

// The root's clippy.toml speaks of the module; this is a native program.
#![allow(clippy::disallowed_methods)]

mod answers;
pub mod api;
pub mod cache;
mod control;
mod engine;
pub mod events;
pub mod hashing;
pub mod json;
mod metrics;
pub mod models;
mod msgpack;
mod options;
pub mod params;
pub mod publisher;
pub mod record;
mod refusal;
mod server;
mod state;
pub mod tiers;
pub mod tokenizer;
mod version;

pub use api::Job;
pub use engine::Engine;
pub use metrics::Stored;
pub use options::{EventOptions, Options};
pub use record::Record;
pub use refusal::Refusal;
pub use state::{EventPorts, Fault, FaultKind, State};
pub use version::Release;
