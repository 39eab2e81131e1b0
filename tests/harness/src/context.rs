//! What the host keeps for each context of a VM.

use crate::exchange::{Exchange, LocalResponse, Placement};
use crate::headers::HeaderMap;
use std::cell::RefCell;
use std::rc::Rc;

/// The root context of one plugin (root_id and configuration).
#[derive(Debug, Default)]
pub(crate) struct Root {
    pub root_id: String,
    pub plugin_name: String,
    pub configuration: Vec<u8>,
    /// The configuration is readable only while `proxy_on_configure` runs.
    pub configuring: bool,
    pub tick_ms: u32,
    pub next_tick_ms: u64,
    /// The answer to a call, readable only in its callback.
    pub answer: Option<Answer>,
}

/// The answer to an HTTP call of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let mut headers = HeaderMap::default();
        headers.add(":status", status.to_string());
        Self {
            headers,
            body: body.into(),
            trailers: HeaderMap::default(),
        }
    }
}

/// What a call asked for that Envoy does only after the callback has returned.
#[derive(Debug, PartialEq)]
pub(crate) enum Deferred {
    LocalResponse(LocalResponse),
    ContinueRequest,
    ContinueResponse,
    Reset,
}

/// One filter's side of one stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub root: u32,
    pub exchange: Rc<RefCell<Exchange>>,
    pub placement: Placement,
    /// Readable from the headers callback on, until it (or a later one) lets the stream go on.
    pub request_headers: bool,
    pub request_trailers: bool,
    pub response_headers: bool,
    /// The buffer a body callback sees: the chunk, or while pausing everything so far.
    pub body: Option<Vec<u8>>,
    /// The chunk that a response body callback sees.
    pub response_body: Option<Vec<u8>>,
    pub deferred: Vec<Deferred>,
    /// Torn down from inside a callback: nothing more is called.
    pub destroyed: bool,
}

impl Stream {
    /// Nothing is readable yet.
    pub fn new(root: u32, exchange: Rc<RefCell<Exchange>>, placement: Placement) -> Self {
        Self {
            root,
            exchange,
            placement,
            request_headers: false,
            request_trailers: false,
            response_headers: false,
            body: None,
            response_body: None,
            deferred: Vec::new(),
            destroyed: false,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Context {
    Root(Root),
    Stream(Stream),
}
