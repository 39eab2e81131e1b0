//! What the module does in real Envoy, by subject. One program, so that waiting overlaps.

#![allow(clippy::disallowed_methods)]

mod configurations;
mod rig;
