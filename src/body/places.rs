//! Which `kv_transfer_params` the engine will use (DESIGN 3; testdata/engine/generate_places.json).
//!
//! For `/inference/v1/generate` a top-level value that is not null replaces the nested one
//! entirely. Duplicate keys: the engine's parser takes the last, at every level, so an earlier
//! `sampling_params` or `extra_args` counts for nothing once another one begins.

use super::scanner::Kind;

/// A member that is held because its edit is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    /// At the top level, to be edited whatever follows: all that is missing is the decision.
    Top,
    /// A top-level `null` of `/inference/v1/generate`: absent, unless a nested object stands in.
    TopNull,
    /// In `sampling_params.extra_args`: in effect unless the top level has a value.
    Nested,
}

/// The last value seen in each place; None: no member.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct InEffect {
    pub top: Option<Kind>,
    pub nested: Option<Kind>,
}

impl InEffect {
    /// The top-level value is there and not null: the nested one is not in effect.
    pub fn top_rules(&self) -> bool {
        matches!(self.top, Some(Kind::Object | Kind::Other))
    }

    /// Nothing is in effect but perhaps a top-level null.
    fn is_absent(&self) -> bool {
        !self.top_rules() && matches!(self.nested, None | Some(Kind::Null))
    }

    /// At the end of the top-level object: whether a member that still waits is to be edited.
    ///
    /// A nested object that was let go because a top-level value followed is not edited if a later
    /// duplicate `null` brings it back into effect; neither is that `null` then.
    pub fn edits(&self, waiting: Waiting) -> bool {
        match waiting {
            Waiting::Top => true,
            Waiting::TopNull => self.is_absent(),
            Waiting::Nested => !self.top_rules() && self.nested == Some(Kind::Object),
        }
    }

    /// At the end of the top-level object: whether a member is to be added to it.
    pub fn inserts(&self) -> bool {
        self.top.is_none() && self.is_absent()
    }
}
