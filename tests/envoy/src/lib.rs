//! A rig around real Envoy: it starts Envoy from the shipped bootstraps, speaks HTTP with chosen
//! chunk boundaries, and records what reaches the engines byte for byte.
//!
//! Nothing here parses JSON of a request: a test that compares bytes does not depend on a parser.

// These programs run natively and wait for real processes.
#![allow(clippy::disallowed_methods)]

pub mod bootstrap;
pub mod bridge;
pub mod ecds;
pub mod envoy;
pub mod files;
pub mod http1;
pub mod http2;
pub mod message;
pub mod picker;
pub mod probe;
mod process;
pub mod shipped;
pub mod sink;
pub mod wait;
mod wire;

pub use bootstrap::Bootstrap;
pub use bridge::Bridge;
pub use envoy::{Envoy, validate};
pub use message::{Request, Response};
pub use picker::{Choice, Picker};
pub use sink::{Reply, Seen, Sink};
pub use wait::{eventually, until};
