//! The shell around the pure code: the only part that knows proxy-wasm. It translates and decides
//! nothing.

mod abi;
mod admission_timer;
mod context;
mod deciding;
mod host;
mod loading;
mod metrics;
mod policy_http;
mod policy_root;
mod policy_shared;
mod request_headers;
mod scorer_bodies;
mod scorer_http;
mod scorer_prefetch;
mod scorer_pulling;
mod scorer_root;
mod scorer_shared;
mod vm;
