//! Shared-data records, contract version 1 (DESIGN 7; docs/shared-data.md).
//!
//! Values are CBOR maps with text keys and `"v": 1`. Readers here take any bytes: a value they
//! cannot use is [`Malformed`], never a panic, and one bad entry of a bucket does not spoil its
//! neighbours. Writers keep what they do not own and stay inside the contract's limits.

pub mod cbor;
pub mod evidence;
pub mod evidence_writer;
pub mod gate_record;
pub mod keys;
pub mod loads_record;
pub mod members;
pub mod queue;
pub mod runs;
pub mod store;
pub mod stores;

pub use cbor::{MAX_VALUE_BYTES, Malformed};
