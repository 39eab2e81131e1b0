//! Runs of blocks that are held in the same tiers: the exact form of evidence (DESIGN 5).

use std::fmt;

/// Names of tiers.
pub type TierList = Vec<String>;

/// A prompt's runs in order. Of hundreds most have one of a few lists of tiers, and each of those is
/// kept once.
#[derive(Clone, Default)]
pub struct Runs {
    runs: Vec<Run>,
    lists: Vec<TierList>,
}

#[derive(Clone, Copy)]
struct Run {
    blocks: u64,
    list: ListId,
}

/// A list of the same [`Runs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListId(usize);

impl Runs {
    /// So many lists are looked through for one that is there already.
    const LOOKED_AT: usize = 4;

    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The blocks of each run, and the tiers that hold all of them; none is a hole.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[String])> {
        let tiers = |run: &Run| self.lists.get(run.list.0).map_or(&[][..], Vec::as_slice);
        self.runs.iter().map(move |run| (run.blocks, tiers(run)))
    }

    /// For runs to come.
    pub fn list(&mut self, tiers: TierList) -> ListId {
        let first = self.lists.len().saturating_sub(Self::LOOKED_AT);
        let mut known = self.lists.iter().enumerate().skip(first);
        let known = known.find(|(_, list)| **list == tiers).map(|(at, _)| at);
        ListId(known.unwrap_or_else(|| {
            self.lists.push(tiers);
            self.lists.len().saturating_sub(1)
        }))
    }

    /// The next `blocks` blocks are held in all of those tiers.
    pub fn push(&mut self, blocks: u64, list: ListId) {
        self.runs.push(Run { blocks, list });
    }

    /// Of all runs. Saturates.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let blocks = self.runs.iter().map(|run| run.blocks);
        blocks.fold(0, u64::saturating_add)
    }

    /// Blocks from the first run that is not in `gpu`, as long as each is in a tier that counts.
    /// Saturates.
    pub(super) fn after_gpu(
        &self,
        gpu: impl Fn(&str) -> bool,
        counts: impl Fn(&str) -> bool,
    ) -> u64 {
        #[derive(Clone, Copy, Default)]
        struct Held {
            gpu: bool,
            counts: bool,
        }
        let held = |list: &TierList| Held {
            gpu: list.iter().any(|tier| gpu(tier)),
            counts: list.iter().any(|tier| counts(tier)),
        };
        let lists: Vec<Held> = self.lists.iter().map(held).collect();
        let held = |run: &Run| lists.get(run.list.0).copied().unwrap_or_default();
        let runs = self.runs.iter().filter(|run| run.blocks > 0);
        runs.skip_while(|run| held(run).gpu)
            .take_while(|run| held(run).counts)
            .fold(0, |sum, run| sum.saturating_add(run.blocks))
    }

    /// The first so many.
    #[must_use]
    pub fn beginning(&self, runs: usize) -> Self {
        Self {
            runs: self.runs.iter().take(runs).copied().collect(),
            lists: self.lists.clone(),
        }
    }
}

impl FromIterator<(u64, TierList)> for Runs {
    fn from_iter<I: IntoIterator<Item = (u64, TierList)>>(all: I) -> Self {
        let mut runs = Self::default();
        for (blocks, tiers) in all {
            let list = runs.list(tiers);
            runs.push(blocks, list);
        }
        runs
    }
}

impl PartialEq for Runs {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Runs {}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    type List<'a> = &'a [(u64, &'a [&'a str])];

    fn runs(list: List<'_>) -> Runs {
        let tiers = |tiers: &[&str]| tiers.iter().map(|t| (*t).to_owned()).collect();
        list.iter().map(|(n, list)| (*n, tiers(list))).collect()
    }

    #[test]
    fn a_list_is_kept_once() {
        let both = runs(&[(1, &["gpu"]), (2, &["cpu"]), (3, &["gpu"]), (0, &["cpu"])]);
        assert_eq!((both.len(), both.lists.len()), (4, 2));
        assert_eq!(both.blocks(), 6);
        // Of more than a few some are there twice, which nobody sees.
        let names = ["a", "b", "c", "d", "e", "a"].map(|name| [name]);
        let list: Vec<(u64, &[&str])> = (1..).zip(names.iter().map(|n| &n[..])).collect();
        let many = runs(&list);
        assert_eq!((many.len(), many.lists.len()), (6, 6));
        let mut other = Runs::default();
        let lists: Vec<ListId> = ["e", "d", "c", "b", "a"]
            .map(|name| other.list(vec![name.to_owned()]))
            .into();
        for (blocks, list) in (1..).zip([4, 3, 2, 1, 0, 4]) {
            other.push(blocks, lists[list]);
        }
        assert_eq!(many, other);
        assert_ne!(many, many.beginning(5));
        let shown = r#"[(1, ["gpu"]), (2, ["cpu"])]"#;
        assert_eq!(format!("{:?}", both.beginning(2)), shown);
        assert_eq!(both.beginning(9), both);
        assert!(both.beginning(0).is_empty());
    }

    #[test]
    fn blocks_after_gpu_end_at_the_first_that_do_not_count() {
        let table: [(List<'_>, u64); 7] = [
            (&[], 0),
            (&[(4, &["gpu", "cpu"]), (16, &["cpu"])], 16),
            (&[(16, &["cpu"]), (4, &["gpu"]), (8, &["cpu"])], 16),
            (&[(16, &["cpu", "gpu"]), (4, &["cpu"]), (8, &["x"])], 4),
            // Runs without blocks say nothing.
            (&[(0, &["cpu"]), (2, &["gpu"]), (0, &[]), (3, &["cpu"])], 3),
            (&[(2, &[]), (3, &["cpu"])], 0),
            (&[(u64::MAX, &["cpu"]), (3, &["cpu"])], u64::MAX),
        ];
        for (list, expected) in table {
            let blocks = runs(list).after_gpu(|tier| tier == "gpu", |tier| tier == "cpu");
            assert_eq!(blocks, expected, "{list:?}");
        }
    }
}
