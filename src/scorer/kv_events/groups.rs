//! Which KV cache groups count. A hybrid model keeps several caches (full attention, sliding
//! window, Mamba state …) and announces each block once per group; only full attention says that a
//! prefix can be reused.

use crate::sorted::SortedMap;

/// Spec kinds that are indexed (llm-d's rule).
const INDEXED: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Groups remembered for one engine; real ones have a handful.
pub const MAX_GROUPS: usize = 32;

/// What one engine has said about its groups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Groups {
    indexed: SortedMap<u64, bool>,
}

impl Groups {
    /// Whether an event with this `group_idx` and `kv_cache_spec_kind` counts; `None` if the
    /// group's kind was never told. An event without a group always counts. A kind that is told
    /// is remembered for later events, which may leave it out.
    pub fn admit(&mut self, idx: Option<u64>, kind: Option<&str>) -> Option<bool> {
        let Some(idx) = idx else {
            return Some(true);
        };
        let Some(kind) = kind else {
            return self.indexed.get(&idx).copied();
        };
        let indexed = INDEXED.contains(&kind);
        if self.indexed.len() < MAX_GROUPS || self.indexed.contains_key(&idx) {
            self.indexed.insert(idx, indexed);
        }
        Some(indexed)
    }

    /// More than one group counts.
    pub fn are_several(&self) -> bool {
        self.indexed
            .values()
            .filter(|indexed| **indexed)
            .nth(1)
            .is_some()
    }

    /// For a record.
    pub fn iter(&self) -> impl Iterator<Item = (u64, bool)> {
        self.indexed.iter().map(|(idx, indexed)| (*idx, *indexed))
    }
}

impl FromIterator<(u64, bool)> for Groups {
    /// The first [`MAX_GROUPS`].
    fn from_iter<I: IntoIterator<Item = (u64, bool)>>(iter: I) -> Self {
        let indexed = iter.into_iter().take(MAX_GROUPS).collect();
        Self { indexed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn only_full_attention_counts_where_there_are_groups() {
        let mut groups = Groups::default();
        let table = [
            // No group: always.
            (None, None, Some(true)),
            (None, Some("mamba"), Some(true)),
            // Not told yet.
            (Some(0), None, None),
            (Some(0), Some("full_attention"), Some(true)),
            (Some(0), None, Some(true)),
            (Some(1), Some("mla_attention"), Some(true)),
            (Some(2), Some("sink_full_attention"), Some(true)),
            (Some(3), Some("sliding_window"), Some(false)),
            (Some(3), None, Some(false)),
            (Some(4), Some("Full_Attention"), Some(false)),
            // The last word counts.
            (Some(0), Some("mamba"), Some(false)),
            (Some(0), None, Some(false)),
            (Some(1), None, Some(true)),
        ];
        for (i, (idx, kind, expected)) in table.into_iter().enumerate() {
            assert_eq!(groups.admit(idx, kind), expected, "row {i}");
        }
        let copy: Groups = groups.iter().collect();
        assert_eq!(copy, groups);
        // 1 and 2.
        assert!(groups.are_several());
        groups.admit(Some(2), Some("mamba"));
        assert!(!groups.are_several() && !Groups::default().are_several());
    }

    #[test]
    fn memory_is_bounded() {
        let mut groups = Groups::default();
        for idx in 0..1000 {
            assert_eq!(groups.admit(Some(idx), Some("full_attention")), Some(true));
        }
        assert_eq!(groups.iter().count(), MAX_GROUPS);
        assert_eq!(groups.admit(Some(31), None), Some(true));
        assert_eq!(groups.admit(Some(32), None), None);
        assert_eq!(groups.admit(Some(5), Some("mamba")), Some(false));
    }
}
