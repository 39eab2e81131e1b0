//! What a role brings: a root context and its streams.

use std::cell::RefCell;
use std::rc::Rc;

/// What a header, body or trailer callback answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    Continue = 0,
    Pause = 1,
}

/// A plugin's root context: one for each VM and configuration.
pub trait Root {
    fn tick(&mut self) {}
    /// The answer to `host::http_call`. `headers` 0 means that the call failed.
    fn http_call_response(&mut self, _token: u32, _headers: usize, _body_size: usize) {}
    /// `id`: the stream's own context id.
    fn new_stream(&self, id: u32) -> SharedStream;
}

/// Borrowed while one of its callbacks runs.
pub type SharedStream = Rc<RefCell<dyn Stream>>;

/// One HTTP stream. In upstream placement each attempt is a stream of its own.
pub trait Stream {
    fn request_headers(&mut self, _end_of_stream: bool) -> Action {
        Action::Continue
    }
    fn request_body(&mut self, _size: usize, _end_of_stream: bool) -> Action {
        Action::Continue
    }
    fn request_trailers(&mut self) -> Action {
        Action::Continue
    }
    fn response_headers(&mut self, _end_of_stream: bool) {}
    /// A chunk of the answer: called for every one of every stream, so it has to be cheap.
    fn response_body(&mut self, _size: usize) {}
    /// The stream is over, however it ended.
    fn done(&mut self) {}
}

/// A stream that lets everything pass.
pub struct Pass;

impl Stream for Pass {}
