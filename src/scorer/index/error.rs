//! Why something was not written or cannot be looked up.

use super::pages::WriteError;
use crate::contract::store::{StoreError, UpdateError};

/// Why nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexError {
    /// Another VM writes this index now.
    Superseded,
    /// Raw proxy-wasm status.
    Host(u32),
    /// [`MAX_PLACES`] other scorers have an index in this store.
    NoPlace,
    /// [`Limits::max_endpoints`].
    TooManyEndpoints,
    /// A cursor of more than [`MAX_CURSOR_BYTES`], or a value of the store that makes no sense.
    Invalid,
}

impl IndexError {
    /// The `kind` label of a problem counter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Superseded => "index_superseded",
            Self::Host(_) => "index_host",
            Self::NoPlace => "index_no_place",
            Self::TooManyEndpoints => "index_endpoints",
            Self::Invalid => "index_invalid",
        }
    }
}

impl From<UpdateError> for IndexError {
    fn from(e: UpdateError) -> Self {
        match e {
            UpdateError::Contended => Self::Superseded,
            UpdateError::Host(status) => Self::Host(status),
        }
    }
}

impl From<StoreError> for IndexError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::CasMismatch => Self::Superseded,
            StoreError::Host(status) => Self::Host(status),
        }
    }
}

impl From<WriteError> for IndexError {
    fn from(e: WriteError) -> Self {
        match e {
            WriteError::Superseded => Self::Superseded,
            WriteError::Host(status) => Self::Host(status),
        }
    }
}

/// Why an endpoint cannot be looked up now: no evidence, not an empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotReady {
    /// Nothing is known of it.
    Unknown,
    /// Neither event nor heartbeat for too long.
    Silent,
    /// Its news is more than the budget allows to move; [`Index::view`] with a larger one, from
    /// the timer, brings it in.
    Behind,
    /// It does not fit into this VM's memory.
    TooLarge,
    /// Raw proxy-wasm status.
    Host(u32),
}

impl NotReady {
    pub const ALL: [Self; 5] = [
        Self::Unknown,
        Self::Silent,
        Self::Behind,
        Self::TooLarge,
        Self::Host(0),
    ];

    /// A counter's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown_endpoint",
            Self::Silent => "silent",
            Self::Behind => "behind",
            Self::TooLarge => "too_large",
            Self::Host(_) => "host",
        }
    }
}
