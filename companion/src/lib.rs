//! The native programs beside the module. What Envoy's filters cannot do (hold a socket open, keep
//! a stream for readers that come later) is done here and pulled from there.

pub mod bridge;
pub mod common;
pub mod prefetch;
