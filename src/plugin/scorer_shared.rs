//! What the scorer's root and its streams both use.

use std::cell::RefCell;
use std::rc::Rc;

use super::host::{self, Buffer, Map};
use super::metrics::{self, Metric};
use crate::scorer::config::ScorerConfig;
use crate::scorer::event::Problem;
use crate::scorer::poller::Answer;
use crate::scorer::sightings::Sightings;

/// There only if endpoints are to be discovered.
pub struct Discovering {
    pub config: Rc<ScorerConfig>,
    pub sightings: RefCell<Sightings>,
}

/// A status from `:status`.
pub fn parse_status(value: &[u8]) -> Option<u16> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The host's wall clock, Unix ms.
pub fn now_ms() -> Option<u64> {
    let now = host::now_ms().ok();
    if now.is_none() {
        problem(Problem::Clock);
    }
    now
}

pub fn problem(problem: Problem) {
    metrics::count(Metric::ScorerProblem(problem.as_str()));
}

/// The answer to a call.
pub enum Read {
    Http(u16, Vec<u8>),
    TooLarge,
    None,
    Unreadable,
}

impl Read {
    /// The answer whose callback is running; a body of more than `max_bytes` is not read, nor one
    /// of another status than 200.
    pub fn of_running(headers: usize, body_size: usize, max_bytes: usize) -> Self {
        if headers == 0 {
            return Self::None;
        }
        let status = match host::header(Map::HttpCallResponseHeaders, ":status") {
            Ok(status) => status.as_deref().and_then(parse_status),
            Err(_) => None,
        };
        match status {
            None => Self::Unreadable,
            Some(200) if body_size > max_bytes => Self::TooLarge,
            Some(200) if body_size > 0 => {
                match host::buffer(Buffer::HttpCallResponseBody, 0, body_size) {
                    Ok(body) => Self::Http(200, body),
                    Err(_) => Self::Unreadable,
                }
            }
            Some(status) => Self::Http(status, Vec::new()),
        }
    }

    pub fn answer(&self) -> Answer<'_> {
        match self {
            Self::Http(status, body) => Answer::Http {
                status: *status,
                body,
            },
            Self::TooLarge => Answer::TooLarge,
            Self::None => Answer::None,
            Self::Unreadable => Answer::Unreadable,
        }
    }
}
