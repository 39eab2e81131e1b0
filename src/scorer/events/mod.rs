//! KV events in: what the bridge has to say is pulled, page by page, into the index.
//!
//! The lease holder asks for what follows its cursor, applies the whole answer, and sets the cursor.
//! So what is stored is always what lies before the cursor, or a part of the one page after it that
//! was being applied when something failed; [`run`] tells the two apart.

mod apply;
mod beats;
mod client;
mod outcome;
pub mod page;
mod publishers;
mod run;

pub use client::{Client, Pull};
pub use outcome::{Event, Problem, PullResult};

#[cfg(test)]
mod tests;
