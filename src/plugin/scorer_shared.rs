//! What the streams of a scorer root share with it.

use std::cell::RefCell;
use std::rc::Rc;

use super::host;
use super::metrics::{self, Metric};
use crate::scorer::config::ScorerConfig;
use crate::scorer::event::Problem;
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
