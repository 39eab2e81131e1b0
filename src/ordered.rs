//! Ordered maps and sets from what comes one by one.
//!
//! The standard library's `collect` sorts first, which brings a sort of its own for every type of
//! key and value into the module: some 5 kB each.

use std::collections::{BTreeMap, BTreeSet};

/// Of equal keys the last one's value counts, as with `collect`.
pub(crate) fn map<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}

pub(crate) fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}
