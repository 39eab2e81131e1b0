//! What the pull client reports, to be counted.

use super::page;
use crate::scorer::index::{IndexError, Ingested};

/// How asking the bridge ended; a `result` label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullResult {
    Ok,
    /// The bridge does not know our cursor: it was restarted, and everything is read anew.
    Reset,
    /// Another status than 200.
    Status(u16),
    /// 504: no answer in time.
    Timeout,
    /// The call ended without an answer.
    NoAnswer,
    /// The host refused the call (no such cluster).
    NotSent,
    /// The host did not give the answer's headers or body.
    Unreadable,
    /// The host never reported an end.
    Lost,
    /// No page.
    Malformed(page::Malformed),
    /// The page could not be stored; it is asked for again.
    Index(IndexError),
}

impl PullResult {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Reset => "reset",
            Self::Status(503) => "busy",
            Self::Status(_) => "status",
            Self::Timeout => "timeout",
            Self::NoAnswer => "no_answer",
            Self::NotSent => "not_sent",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
            Self::Malformed(why) => why.as_str(),
            Self::Index(why) => why.as_str(),
        }
    }
}

/// What keeps a publisher out, or more than it would have to be read; a `kind` label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// This VM could not take the index over.
    TakeOver(IndexError),
    /// A publisher's part could not be stored; the others' could.
    Publisher(IndexError),
    /// A publisher's name that cannot be one.
    Name,
    /// With shared tiers: nobody says which model a publisher is about.
    NoGroup,
    /// Events of a publisher of which nothing is known, and no start among them.
    NoStart,
    /// The log is read from its beginning for a publisher's sake.
    BegunAgain,
}

impl Problem {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TakeOver(why) | Self::Publisher(why) => why.as_str(),
            Self::Name => "publisher_name",
            Self::NoGroup => "no_group",
            Self::NoStart => "no_start",
            Self::BegunAgain => "begun_again",
        }
    }
}

/// Something to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Pull(PullResult),
    /// What a page brought, all publishers together.
    Ingested(Ingested),
    Problem(Problem),
}
