//! Maps and sets in the order of their keys, each one sorted `Vec`, and the one sort of the module.
//!
//! The standard library's B-trees and sorts are compiled anew for every type of entry: together
//! they were more than a third of the module. What is kept here is small, or comes sorted; a lookup
//! costs as many comparisons as in a B-tree, and an entry behind all others is appended.

mod map;
mod order;
mod set;

pub use map::SortedMap;
pub use order::sort_by;
pub use set::SortedSet;

#[cfg(test)]
mod tests;
