//! KV events in: what the bridge has to say is pulled, page by page, into the index.
//!
//! The lease holder asks for what follows its cursor, applies the whole answer, and sets the cursor.
//! So what is stored is always what lies before the cursor, and perhaps a part of the one page after
//! it that was being applied when something failed. Then that page comes again: batches that were
//! applied are passed over by their number, and a start tells everything that follows it anew.

mod apply;
mod beats;
mod client;
mod outcome;
pub mod page;
mod publishers;

pub use client::{Client, Pull};
pub use outcome::{Event, Problem, PullResult};

#[cfg(test)]
mod tests;
