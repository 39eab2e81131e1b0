//! A host for the built module: Envoy's side of proxy-wasm ABI 0.2.1 as a model by state, on
//! wasmtime.
//!
//! A test describes a situation (headers, chunks, records in shared data, the time) and looks at
//! what comes of it; it never scripts host calls. Several VMs share one store, as workers do; the
//! clock is the test's; any host call can be made to fail with any status. What the model claims
//! about Envoy is pinned by tests of the same scenario in the real one (tests/envoy).
//!
//! A trap of the module ends its VM, as under FAIL_CLOSED, and fails the test unless it says
//! [`Harness::allow_traps`].

mod call;
mod chain;
mod context;
mod exchange;
mod fault;
mod harness;
mod headers;
mod imports;
mod metrics;
mod module;
mod outcome;
mod plugin;
mod reentry;
mod request;
mod shared_data;
pub mod status;
mod stopwatch;
mod stream;
mod vm;
mod world;

pub use chain::Chain;
pub use context::Answer;
pub use exchange::{LocalResponse, Placement};
pub use fault::{Fault, FaultAt};
pub use harness::Harness;
pub use headers::HeaderMap;
pub use metrics::{Kind, Metric};
pub use module::Meter;
pub use outcome::{Attempt, Outcome};
pub use plugin::Plugin;
pub use request::Request;
pub use stopwatch::Spent;
pub use stream::Stream;
pub use vm::{StartError, Vm};
pub use world::{CallRecord, HttpCall, LogLevel, LogLine};
