//! Waiting for something that another process does.

use std::time::{Duration, Instant};

/// Generous: only a test that fails waits as long, and a loaded machine with two cores makes it.
pub const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);

/// Asks until there is an answer; panics with `what` after [`PATIENCE`].
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    eventually(PATIENCE, ask).unwrap_or_else(|| panic!("waited {PATIENCE:?} for {what}"))
}

/// Asks until there is an answer or the time is over.
pub fn eventually<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(STEP);
    }
}
