//! The queue gate's arithmetic (DESIGN 6): an EWMA over irregular samples, and hysteresis.
//! Pure: states, samples and the time are arguments.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

/// What makes a gate; with the endpoint, its identity.
#[derive(Clone, Copy, Debug)]
pub struct GateParams {
    /// The EWMA of waiting requests at which the gate closes.
    pub max_waiting: NonZeroU32,
    /// Milliseconds, at least 1.
    pub half_life_ms: u64,
    /// Of `max_waiting`, in (0, 1]: where a closed gate opens.
    pub reopen_ratio: f64,
    /// Milliseconds, at least 1.
    pub max_sample_age_ms: u64,
}

impl GateParams {
    fn identity(&self) -> (NonZeroU32, u64, u64, u64) {
        let ratio = self.reopen_ratio.to_bits();
        (
            self.max_waiting,
            self.half_life_ms,
            ratio,
            self.max_sample_age_ms,
        )
    }
}

impl PartialEq for GateParams {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for GateParams {}

impl PartialOrd for GateParams {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GateParams {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for GateParams {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
    }
}

/// A gate between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateState {
    /// Time of the last sample consumed, Unix milliseconds.
    pub last_ms: u64,
    /// Of waiting requests.
    pub ewma: f64,
    pub closed: bool,
}

/// What a gate says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    /// No sample of this endpoint counts.
    NoSamples,
    /// Every fresh writer leaves this endpoint out.
    Unlisted,
    /// The newest sample is older than `maxSampleAge`.
    Stale,
    Open,
    Closed,
}

impl GateVerdict {
    /// Loading is refused. Only a closed gate does that, whatever else is not right.
    pub const fn vetoes(self) -> bool {
        matches!(self, Self::Closed)
    }
}
