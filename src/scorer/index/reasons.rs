//! Why evidence is a lower bound only (DESIGN 5).

use std::ops::{BitOr, BitOrAssign};

/// A set of reasons; empty: the writer vouches for the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reasons(u16);

impl Reasons {
    pub const NONE: Self = Self(0);
    /// The stream was not seen from the engine's start on.
    pub const JOINED_LATE: Self = Self(1);
    /// Payloads were lost.
    pub const GAP: Self = Self(1 << 1);
    /// Blocks had to give way in the index.
    pub const EVICTED: Self = Self(1 << 2);
    /// An event's blocks could not be told: no tokens and an engine key never seen, a parent never
    /// seen, a group of unknown kind, another block size, more tiers than are told apart.
    pub const UNRESOLVED: Self = Self(1 << 3);
    /// A payload or an event could not be read.
    pub const UNREADABLE: Self = Self(1 << 4);
    /// GPU blocks per offload chunk are not known.
    pub const CHUNK_UNKNOWN: Self = Self(1 << 5);
    /// A secondary tier that outlives the engine or is shared, which nobody vouches for.
    pub const SECONDARY_TIER: Self = Self(1 << 6);
    /// There is more of its stream than was read yet, or may be.
    pub const BEHIND: Self = Self(1 << 7);
    /// The engine's block hashes are not those that its configuration gives: another seed, or
    /// another algorithm.
    pub const HASH_MISMATCH: Self = Self(1 << 8);
    /// Several data-parallel ranks: what counts is what all of them hold.
    pub const RANKS: Self = Self(1 << 9);

    /// Several groups of full attention: a block is there if each has it, and they are not told
    /// apart.
    pub const GROUPS: Self = Self(1 << 11);
    /// No reason by itself: an event named a tier behind the engine's own CPU memory.
    pub(super) const HAS_SECONDARY: Self = Self(1 << 10);

    const NAMED: [(Self, &'static str); 11] = [
        (Self::JOINED_LATE, "joined_late"),
        (Self::GAP, "gap"),
        (Self::EVICTED, "evicted"),
        (Self::UNRESOLVED, "unresolved"),
        (Self::UNREADABLE, "unreadable"),
        (Self::CHUNK_UNKNOWN, "chunk_unknown"),
        (Self::SECONDARY_TIER, "secondary_tier"),
        (Self::BEHIND, "behind"),
        (Self::HASH_MISMATCH, "hash_mismatch"),
        (Self::RANKS, "ranks"),
        (Self::GROUPS, "groups"),
    ];

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Every label there is.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().map(|(_, name)| name)
    }

    /// Labels of counters.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = Self::NAMED.into_iter();
        named.filter_map(move |(one, name)| self.contains(one).then_some(name))
    }

    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    pub(super) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

impl BitOr for Reasons {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Reasons {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_set_of_names() {
        let mut both = Reasons::GAP | Reasons::EVICTED;
        assert!(both.names().eq(["gap", "evicted"]));
        assert!(both.contains(Reasons::GAP) && !both.contains(Reasons::UNREADABLE));
        both |= Reasons::UNREADABLE;
        assert_eq!(
            both.without(Reasons::GAP | Reasons::EVICTED),
            Reasons::UNREADABLE
        );
        assert!(Reasons::NONE.is_empty() && Reasons::NONE.names().count() == 0);
        assert_eq!(Reasons::from_bits(both.bits()), both);
    }
}
