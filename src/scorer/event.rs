//! What the scorer reports: one counter each, and for some a log line.

use super::facts::Mismatch;
use std::rc::Rc;

/// How a poll of `/metrics` ended; label `result` of `selective_kv_scorer_polls_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollResult {
    Ok,
    /// 200, but no valid series of the metric. The engine is up, and no sample is written.
    NoMetric,
    /// Another status than 200; for an engine that is down it is Envoy's own 503.
    Status,
    /// 504, which is also Envoy's own answer when the timeout has passed.
    Timeout,
    /// The call ended without an answer.
    NoAnswer,
    /// More than [`super::poller::MAX_PAGE_BYTES`].
    TooLarge,
    /// The host refused the call (no such cluster).
    NotSent,
    /// The host did not give the answer's headers or body.
    Unreadable,
    /// The host never reported an end.
    Lost,
}

impl PollResult {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NoMetric => "no_metric",
            Self::Status => "status",
            Self::Timeout => "timeout",
            Self::NoAnswer => "no_answer",
            Self::TooLarge => "too_large",
            Self::NotSent => "not_sent",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
        }
    }
}

/// Label `kind` of `selective_kv_scorer_problems_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The lease could not be read or written in this tick.
    Lease,
    /// A sample could not be written.
    QueueWrite,
    /// A sample was dropped: it came less than 200 ms after the last one, or the clock stepped
    /// back a little.
    SampleDropped,
    /// The members record could not be written; tried again with the next tick.
    MembersWrite,
    /// 16 other writers are alive, or the record is too large.
    MembersFull,
    /// The members record could not be read when this VM took over.
    MembersRead,
    /// The record of seen endpoints could not be read or written.
    SeenRecord,
    /// Traffic goes to more endpoints than are followed.
    TooManyEndpoints,
    /// A series of the metric was NaN, infinite, negative or not a well-formed line.
    InvalidSeries,
    /// The engine did not tell its version.
    Version,
    /// The engine did not tell its models (`evidence`).
    Models,
    /// The record of what engines say could not be read or written; tried again with the next tick.
    EnginesRecord,
    /// It has no room for the names of models and adapters.
    EnginesRecordFull,
    /// An engine does not go with the configuration of evidence.
    ConfigMismatch,
    /// An answer to a call that this VM no longer waits for.
    LateAnswer,
    /// A poll was still queued when the next one was due.
    Behind,
    /// The host gave no time.
    Clock,
    /// The host set no timer: this VM never polls.
    Timer,
    /// The host did not give a header or property of a request (`discover`).
    Host,
}

impl Problem {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::QueueWrite => "queue_write",
            Self::SampleDropped => "sample_dropped",
            Self::MembersWrite => "members_write",
            Self::MembersFull => "members_full",
            Self::MembersRead => "members_read",
            Self::SeenRecord => "seen_record",
            Self::TooManyEndpoints => "too_many_endpoints",
            Self::InvalidSeries => "invalid_series",
            Self::Version => "version",
            Self::Models => "models",
            Self::EnginesRecord => "engines_record",
            Self::EnginesRecordFull => "engines_record_full",
            Self::ConfigMismatch => "config_mismatch",
            Self::LateAnswer => "late_answer",
            Self::Behind => "behind",
            Self::Clock => "clock",
            Self::Timer => "timer",
            Self::Host => "host",
        }
    }
}

/// Something to count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// This VM polls from now on.
    LeaseTaken,
    /// Another one does.
    LeaseLost,
    Poll(PollResult),
    /// A sample was written.
    Sample,
    /// An endpoint is a member from now on.
    Returned(Rc<str>),
    /// It is none any more, after this result of its last poll.
    Left(Rc<str>, PollResult),
    /// It has no evidence, for this reason ([`Problem::ConfigMismatch`]).
    Mismatch(Rc<str>, Mismatch),
    Problem(Problem, u32),
}
