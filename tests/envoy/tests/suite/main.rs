//! What the module does in real Envoy, by subject. One program, so that waiting overlaps.

#![allow(clippy::disallowed_methods)]

mod admission;
mod bodies;
mod configurations;
mod edits;
mod engine;
mod engine_facts;
mod engines;
mod facts;
mod failure_policies;
mod gate;
mod istio;
mod kv_chats;
mod kv_events;
mod kv_rig;
mod operator;
mod picker;
mod prefetch;
mod records;
mod reload;
mod retry;
mod rig;
mod routes;
mod scorer;
mod support;
mod tokenize;
mod validate;
