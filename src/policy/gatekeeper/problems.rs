//! What is not right with the records behind the gates, by kind.

use crate::sorted::SortedMap;

use crate::contract::Malformed;

/// A kind of problem, as `selective_kv_queue_problems_total{kind}` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueProblem {
    /// The newest sample is too old to close a gate.
    StaleQueue,
    /// A sample of another type, negative, NaN or infinite.
    InvalidSample,
    /// A sample more than `maxSampleAge` in the future.
    FutureSample,
    /// A history out of order, which is none.
    UnorderedHistory,
    /// An endpoint's or a writer's entry that is not one.
    MalformedEntry,
    MalformedTooLarge,
    MalformedCbor,
    MalformedVersion,
    MalformedShape,
}

impl QueueProblem {
    pub const ALL: [Self; 9] = [
        Self::StaleQueue,
        Self::InvalidSample,
        Self::FutureSample,
        Self::UnorderedHistory,
        Self::MalformedEntry,
        Self::MalformedTooLarge,
        Self::MalformedCbor,
        Self::MalformedVersion,
        Self::MalformedShape,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StaleQueue => "stale_queue",
            Self::InvalidSample => "invalid_sample",
            Self::FutureSample => "future_sample",
            Self::UnorderedHistory => "unordered_history",
            Self::MalformedEntry => "malformed_entry",
            Self::MalformedTooLarge => Malformed::TooLarge.as_str(),
            Self::MalformedCbor => Malformed::Cbor.as_str(),
            Self::MalformedVersion => Malformed::Version.as_str(),
            Self::MalformedShape => Malformed::Shape.as_str(),
        }
    }
}

impl From<Malformed> for QueueProblem {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::TooLarge => Self::MalformedTooLarge,
            Malformed::Cbor => Self::MalformedCbor,
            Malformed::Version => Self::MalformedVersion,
            Malformed::Shape => Self::MalformedShape,
        }
    }
}

/// Problems met, how often each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(SortedMap<QueueProblem, u32>);

impl Problems {
    pub(super) fn add(&mut self, problem: QueueProblem, count: u32) {
        if count > 0 {
            let total = self.0.entry(problem).or_default();
            *total = total.saturating_add(count);
        }
    }

    /// Each kind met, with a count from 1.
    pub fn iter(&self) -> impl Iterator<Item = (QueueProblem, u32)> {
        self.0.iter().map(|(problem, count)| (*problem, *count))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
