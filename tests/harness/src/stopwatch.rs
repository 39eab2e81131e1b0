//! The time that a module takes, without its host.

#![allow(clippy::disallowed_methods)] // The host's own clock; the module's is the test's.

use std::ops::Sub;
use std::time::{Duration, Instant};

/// What a module has taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spent {
    /// Its own time, that of the ways to the host and back, and that of copies into and out of its
    /// memory. What else the host does is no part of it.
    pub time: Duration,
    pub callbacks: u32,
    pub host_calls: u32,
    /// Values that were copied into memory which the module allocated for them.
    pub copies: u32,
    /// Of those values.
    pub bytes: u64,
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            time: self.time - before.time,
            callbacks: self.callbacks - before.callbacks,
            host_calls: self.host_calls - before.host_calls,
            copies: self.copies - before.copies,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// Runs while the module does.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    started: Option<Instant>,
    pub spent: Spent,
}

impl Stopwatch {
    pub fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Until the next start.
    pub fn stop(&mut self) {
        if let Some(started) = self.started.take() {
            self.spent.time += started.elapsed();
        }
    }
}
