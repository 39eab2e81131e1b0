//! What came of it, for the counters.

use crate::scorer::evidence::EndpointResult;
use crate::scorer::facts::Mismatch;
use crate::scorer::poller::Answer;

/// What came of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchResult {
    Sent,
    /// The host refused the call.
    NotSent,
    /// `maxInFlight` messages have no answer yet: this one was dropped.
    Busy,
    /// No block lies in a file only, as far as the index knows.
    Warm,
    /// All of them were told a short time ago.
    Repeated,
    /// It has no token ids, which is counted elsewhere, or reads no cache.
    NotLooked,
    /// The engines have not said how many tokens a block has.
    NoBlockSize,
    /// The endpoint is no member, or no member serves the model.
    NoEndpoint,
    /// Digests hash an adapter's path (vLLM 0.31 and later), and none is configured.
    AdapterPath,
    /// The endpoint's digests cannot be made, for this reason.
    Endpoint(EndpointResult),
}

impl PrefetchResult {
    const OWN: [Self; 11] = [
        Self::Sent,
        Self::NotSent,
        Self::Busy,
        Self::Warm,
        Self::Repeated,
        Self::NotLooked,
        Self::NoBlockSize,
        Self::NoEndpoint,
        Self::AdapterPath,
        Self::Endpoint(EndpointResult::OtherModel),
        Self::Endpoint(EndpointResult::ExtraKeys),
    ];

    /// Every label there is.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        let own = Self::OWN.map(Self::as_str).into_iter();
        own.chain(Mismatch::LABELS)
    }

    /// A counter's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::NotSent => "not_sent",
            Self::Busy => "busy",
            Self::Warm => "warm",
            Self::Repeated => "repeated",
            Self::NotLooked => "not_looked",
            Self::NoBlockSize => "no_block_size",
            Self::NoEndpoint => "no_endpoint",
            Self::AdapterPath => EndpointResult::AdapterPath.as_str(),
            Self::Endpoint(result) => result.as_str(),
        }
    }
}

/// What the agent made of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    Ok,
    /// No answer within `timeout`, or no host in the cluster.
    Unavailable,
    /// The token is missing or wrong.
    Unauthorized,
    Status,
    NoAnswer,
    /// The host never reported an end of the call.
    Lost,
}

impl Answered {
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::Unavailable,
        Self::Unauthorized,
        Self::Status,
        Self::NoAnswer,
        Self::Lost,
    ];

    pub(super) fn of(answer: Answer<'_>) -> Self {
        match answer {
            Answer::Http { status, .. } if (200..300).contains(&status) => Self::Ok,
            Answer::Http {
                status: 503 | 504, ..
            } => Self::Unavailable,
            Answer::Http { status: 401, .. } => Self::Unauthorized,
            Answer::Http { .. } | Answer::TooLarge => Self::Status,
            Answer::None | Answer::Unreadable => Self::NoAnswer,
        }
    }

    /// A counter's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unavailable => "unavailable",
            Self::Unauthorized => "unauthorized",
            Self::Status => "status",
            Self::NoAnswer => "no_answer",
            Self::Lost => "lost",
        }
    }
}
