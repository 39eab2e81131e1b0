//! What the native programs share: command line, configuration fields, token, HTTP, metrics text.

pub mod address;
pub mod cli;
pub mod client;
pub mod exposition;
pub mod http;
pub mod settings;
pub mod token;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// An error that says what it is about.
pub fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
