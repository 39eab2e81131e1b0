//! The headers of the request, while they can be read: in the headers phase.

use super::host::{self, HostResult, Map};
use crate::policy::header_pairs::HeaderPairs;
use crate::policy::request::Headers;

/// Asks the host for one header, or, for the first of several, for everything. What cannot be read is absent, and `failed` counts it.
pub struct RequestHeaders {
    all: Option<HeaderPairs>,
    failed: fn(),
}

impl RequestHeaders {
    pub const fn new(failed: fn()) -> Self {
        Self { all: None, failed }
    }

    /// One header alone.
    pub fn alone(&self, name: &str) -> Option<Vec<u8>> {
        self.counted(host::header(Map::RequestHeaders, name))
    }

    fn counted<T: Default>(&self, result: HostResult<T>) -> T {
        result.unwrap_or_else(|_| {
            (self.failed)();
            T::default()
        })
    }
}

impl Headers for RequestHeaders {
    fn one(&mut self, name: &'static str) -> Option<Vec<u8>> {
        self.alone(name)
    }

    fn pick<const N: usize>(&mut self, names: [&str; N]) -> [Option<&[u8]>; N] {
        let all = match self.all.take() {
            Some(all) => all,
            None => self.counted(host::headers(Map::RequestHeaders)),
        };
        self.all.insert(all).pick(names)
    }
}

/// What is not UTF-8 counts as absent.
pub fn text(value: Option<&[u8]>) -> Option<String> {
    Some(std::str::from_utf8(value?).ok()?.to_owned())
}
