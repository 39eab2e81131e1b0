//! The streaming edit of `kv_transfer_params` (DESIGN 3).
//!
//! Bytes go one way: chunk → [`scanner`] (finds the places) → [`params`] (reads one object) →
//! [`Decide`] (says what to change) → [`params`] again (writes it) → chunk. The [`Editor`] ties
//! them together and holds back what cannot be decided yet, within a request's own limit and the
//! [`HeldBudget`] of the VM.
//!
//! Pure code: no host, no clock, no recursion, and no memory that grows with the body beside the
//! bytes held.

mod editor;
mod held;
mod params;
mod piece;
mod places;
mod scanner;
mod segments;
mod text;

use crate::tiers::TierFilter;

pub use editor::Editor;
pub use held::HeldBudget;

/// Where `kv_transfer_params` counts for the endpoint's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Places {
    /// The top-level object only.
    TopLevel,
    /// `/inference/v1/generate`: the top level if it is there and not null, else
    /// `sampling_params.extra_args` (testdata/engine/generate_places.json).
    TopLevelOrNested,
}

/// What one `kv_transfer_params` member says that matters to the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParamsFacts<'a> {
    /// Raw JSON text of the last `kv_load_tiers` value, without white space around it.
    pub load_tiers: Option<&'a [u8]>,
    /// At least one copy of a key of a disaggregated or peer-to-peer request (DESIGN 4) has a
    /// value that is neither `null` nor `false`.
    pub disaggregated: bool,
    /// The last `max_load_tokens` is `0`: the client itself wants no load.
    pub loads_nothing: bool,
}

impl ParamsFacts<'static> {
    /// The facts of a missing or `null` member.
    pub const ABSENT: Self = ParamsFacts {
        load_tiers: None,
        disaggregated: false,
        loads_nothing: false,
    };
}

/// What to do with one cap (`max_load_tokens` or `max_offload_tokens`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cap {
    /// Leave it as the client sent it, or did not.
    Keep,
    /// Make every copy the integer `0`; add it if there is none.
    SetZero,
    /// Take every copy out, so that the engine's default (no cap) holds.
    Remove,
}

/// What to do with one `kv_transfer_params` member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edits {
    pub load: Cap,
    pub offload: Cap,
    /// To be added as `kv_load_tiers` if the client sent none. A `null` is none, as it is to the
    /// engine: it becomes the list, every copy if there are several and the last one is null.
    pub load_tiers: Option<TierFilter>,
}

impl Edits {
    pub const KEEP: Self = Edits::caps(Cap::Keep, Cap::Keep);

    /// The two caps alone.
    pub const fn caps(load: Cap, offload: Cap) -> Self {
        Edits {
            load,
            offload,
            load_tiers: None,
        }
    }
}

/// Says what to change, as soon as it can.
pub trait Decide {
    /// Asked in the order of the stream: for every `kv_transfer_params` member that could be
    /// edited, at its end, and with [`ParamsFacts::ABSENT`] once at the closing brace if none
    /// could (then the answer of a body whose params are no object has nothing to apply to).
    ///
    /// `None` means "not known yet": the bytes from this member on are held, and it is asked again
    /// with `last_chance` once the top-level object is closed. With `last_chance`, `None` counts
    /// as [`Edits::KEEP`].
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits>;
}

/// What becomes of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// The chunk goes on as it is.
    Pass,
    /// These bytes stand in the place of the chunk; none at all means it is taken out.
    Replace(Vec<u8>),
    /// These bytes stand in the place of the chunk's from `start` on.
    ReplaceFrom { start: usize, bytes: Vec<u8> },
}

impl Output {
    /// What goes on in the place of `chunk`; None if it does as it is.
    #[must_use]
    pub fn apply(self, mut chunk: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Output::Pass => None,
            Output::Replace(bytes) => Some(bytes),
            Output::ReplaceFrom { start, bytes } => {
                chunk.truncate(start);
                chunk.extend_from_slice(&bytes);
                Some(chunk)
            }
        }
    }
}

/// How far an [`Editor`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Inside the body, or before it.
    Pending,
    /// The top-level object is closed and everything decided is written.
    Complete,
    /// Not one JSON object, or lexically broken. Reason `not_json`.
    NotJson,
    /// More had to be held than the request or the VM may. Reason `held_limit`.
    HeldLimit,
    /// The stream ended inside the object. Reason `not_json`.
    Cut,
    /// The host did not take an output, see [`Editor::refused`].
    Refused,
}

/// What has really been changed, in bytes that went on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edited {
    pub load: bool,
    pub offload: bool,
    /// `kv_load_tiers`.
    pub load_tiers: bool,
}

impl Edited {
    /// True if anything was changed.
    pub fn any(self) -> bool {
        self.load || self.offload || self.load_tiers
    }

    fn or(self, other: Self) -> Self {
        Edited {
            load: self.load || other.load,
            offload: self.offload || other.offload,
            load_tiers: self.load_tiers || other.load_tiers,
        }
    }
}
