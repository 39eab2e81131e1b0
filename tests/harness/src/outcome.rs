//! What came of a stream.

use crate::exchange::LocalResponse;
use crate::headers::HeaderMap;
use std::collections::BTreeMap;

/// What one upstream host received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    pub upstream: Option<String>,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Bytes of each chunk that was not empty.
    pub chunks: Vec<usize>,
    pub trailers: Option<HeaderMap>,
    /// The request came to its end (with the headers, a chunk or trailers).
    pub complete: bool,
}

/// Everything a test can see of a finished stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The last attempt; None if the headers never got through.
    pub attempt: Option<Attempt>,
    pub earlier_attempts: Vec<Attempt>,
    /// The answer made by the proxy, if any; the request then counts for nothing.
    pub local_response: Option<LocalResponse>,
    /// As the client gets them.
    pub response_headers: HeaderMap,
    /// By property path (`%FILTER_STATE(wasm.<path>:PLAIN)%`).
    pub filter_state: BTreeMap<String, String>,
    /// A filter still holds the stream back.
    pub paused: bool,
    /// A filter asked to reset the stream.
    pub reset: bool,
}

impl Outcome {
    fn last(&self) -> &Attempt {
        self.attempt.as_ref().expect("the request reached a host")
    }

    /// The body the (last) host received.
    ///
    /// # Panics
    /// If no host received the headers.
    pub fn body(&self) -> &[u8] {
        &self.last().body
    }

    /// [`body`](Self::body) as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.body()).into_owned()
    }

    /// The headers the (last) host received.
    ///
    /// # Panics
    /// If no host received them.
    pub fn headers(&self) -> &HeaderMap {
        &self.last().headers
    }

    /// The (last) host received the request to its end, and nobody answered in its place.
    pub fn complete(&self) -> bool {
        self.local_response.is_none() && self.attempt.as_ref().is_some_and(|a| a.complete)
    }

    /// The status of the proxy's own answer.
    pub fn local_status(&self) -> Option<u32> {
        self.local_response.as_ref().map(|r| r.status)
    }

    /// The filter state under that property path.
    pub fn state(&self, path: &str) -> Option<&str> {
        self.filter_state.get(path).map(String::as_str)
    }
}
