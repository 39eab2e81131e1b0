//! What runs over every byte of a body, and what it calls: the scanner and the splicer, the reader
//! of prompts, the block keys; and the reader of records, which pass as a whole with every request. Pure code, like the rest beside `plugin`.
//!
//! A package of its own (`streaming/Cargo.toml`) because cargo has one opt-level a package: this
//! code is for speed, whatever the rest of the module is compiled for.

// The lint has no in-tests switch of its own (clippy.toml has one for the others).
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod body;
pub mod cbor;
pub mod compare;
pub mod json;
pub mod prefix;
pub mod prompt;
pub mod tiers;
