//! One request as the scorer sees it: nothing is changed. With `discover: true` the address that
//! gave a 2xx answer on a configured path is noted; with `evidence` the body is read as it passes.
//!
//! Only `upstream.address` counts, which Envoy sets from its own choice of host. A header or
//! dynamic metadata would let a client choose what Envoy polls.

use std::rc::Rc;

use super::context::{Action, Stream};
use super::host::{self, Buffer, Map, UPSTREAM_ADDRESS};
use super::metrics::{self, Metric};
use super::request_headers::{RequestHeaders, text};
use super::scorer_bodies::Bodies;
use super::scorer_shared::{Discovering, now_ms, parse_status, problem};
use crate::policy::request::{self, Headers};
use crate::policy::route::without_query;
use crate::prompt::Endpoint;
use crate::scorer::body_pass::{BodyPass, Step, Unread, Whole};
use crate::scorer::event::Problem;
use crate::scorer::sightings::Noted;
use crate::scorer::tokenize::Tokenized;

pub struct ScorerHttp {
    /// This stream's context id.
    id: u32,
    discovering: Option<Rc<Discovering>>,
    bodies: Option<Rc<Bodies>>,
    /// The answer counts for discovery. Noted in the headers phase: later the path is not readable.
    counts: bool,
    body: Body,
}

enum Body {
    /// Not looked at, or over: chunks are not even read.
    Passing,
    Reading(Box<Reading>),
    /// For the answer to the call with this token.
    Waiting(u32),
}

struct Reading {
    pass: BodyPass,
    request_id: String,
}

impl ScorerHttp {
    pub fn new(id: u32, discovering: Option<Rc<Discovering>>, bodies: Option<Rc<Bodies>>) -> Self {
        Self {
            id,
            discovering,
            bodies,
            counts: false,
            body: Body::Passing,
        }
    }

    /// None: the body is not read.
    fn look(
        &self,
        path: &[u8],
        headers: &mut RequestHeaders,
        end_of_stream: bool,
    ) -> Option<Reading> {
        let bodies = self.bodies.as_ref()?;
        let paths = &bodies.config.paths;
        if !paths.contains(path) {
            return None;
        }
        if request::fits(headers).is_err() {
            return None;
        }
        let Some(endpoint) = Endpoint::of_path(without_query(path)) else {
            return unread(Unread::Path);
        };
        if end_of_stream {
            return unread(Unread::Cut);
        }
        let [id, length] = headers.pick(["x-request-id", "content-length"]);
        let Some(request_id) = text(id).filter(|id| !id.is_empty()) else {
            return unread(Unread::NoRequestId);
        };
        let declared = text(length).and_then(|length| length.parse().ok());
        let scanner = bodies.scanner(endpoint);
        Some(Reading {
            pass: BodyPass::new(scanner, bodies.max_whole(), declared),
            request_id,
        })
    }

    /// What comes after this chunk, and what becomes of it.
    fn read(
        &self,
        bodies: &Bodies,
        mut reading: Box<Reading>,
        size: usize,
        end_of_stream: bool,
    ) -> (Body, Action) {
        let chunk = match reading.pass.unseen(size) {
            Some(start) => chunk(start, size),
            None => None,
        };
        let Some(chunk) = chunk else {
            metrics::count(Metric::ScorerEvidence(Unread::Host.as_str()));
            return (Body::Passing, Action::Continue);
        };
        match reading.pass.feed(size, &chunk, end_of_stream) {
            Step::More { wait } => {
                let action = if wait {
                    Action::Pause
                } else {
                    Action::Continue
                };
                (Body::Reading(reading), action)
            }
            Step::Over(unread) => {
                metrics::count(Metric::ScorerEvidence(unread.as_str()));
                (Body::Passing, Action::Continue)
            }
            Step::Complete { request, whole } => {
                let body = || match whole {
                    Whole::TooLong => Err(Tokenized::TooLarge),
                    Whole::NoLength => Err(Tokenized::NoLength),
                    Whole::Yes if chunk.len() == size => Ok(chunk),
                    Whole::Yes => self::chunk(0, size).ok_or(Tokenized::Unreadable),
                };
                match bodies.complete(self.id, &mut reading.request_id, request, body) {
                    Some(token) => (Body::Waiting(token), Action::Pause),
                    None => (Body::Passing, Action::Continue),
                }
            }
        }
    }

    /// The stream is over, however it ended.
    fn end(&mut self) {
        if let (Body::Waiting(token), Some(bodies)) = (&self.body, &self.bodies) {
            bodies.give_up(*token, Tokenized::Gone);
        }
        self.body = Body::Passing;
    }

    fn note_upstream(&self) -> Result<(), Problem> {
        let Some(discovering) = &self.discovering else {
            return Ok(());
        };
        let status = host::header(Map::ResponseHeaders, ":status").map_err(|_| Problem::Host)?;
        let success = status.as_deref().and_then(parse_status);
        if !success.is_some_and(|status| (200..300).contains(&status)) {
            return Ok(());
        }
        let address = host::property(UPSTREAM_ADDRESS).map_err(|_| Problem::Host)?;
        // None: Envoy answered by itself.
        let Some(address) = address.and_then(|address| String::from_utf8(address).ok()) else {
            return Ok(());
        };
        let Some(now_ms) = now_ms() else {
            return Ok(());
        };
        let Ok(mut sightings) = discovering.sightings.try_borrow_mut() else {
            return Ok(());
        };
        match sightings.note(&address, now_ms) {
            Noted::Yes | Noted::NotNeeded => Ok(()),
            Noted::Full => Err(Problem::TooManyEndpoints),
        }
    }
}

impl Stream for ScorerHttp {
    fn request_headers(&mut self, end_of_stream: bool) -> Action {
        let mut headers = RequestHeaders::new(|| problem(Problem::Host));
        let Some(path) = headers.one(":path") else {
            return Action::Continue;
        };
        self.counts = self.discovering.as_ref().is_some_and(|discovering| {
            let discovery = discovering.config.discovery.as_ref();
            discovery.is_some_and(|discovery| discovery.paths.contains(&path))
        });
        if let Some(reading) = self.look(&path, &mut headers, end_of_stream) {
            self.body = Body::Reading(Box::new(reading));
        }
        Action::Continue
    }

    fn request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let Some(bodies) = self.bodies.clone() else {
            return Action::Continue;
        };
        let (body, action) = match std::mem::replace(&mut self.body, Body::Passing) {
            Body::Passing => (Body::Passing, Action::Continue),
            Body::Reading(reading) => self.read(&bodies, reading, size, end_of_stream),
            Body::Waiting(token) if !bodies.is_waiting(token) => (Body::Passing, Action::Continue),
            // More behind the closing brace.
            Body::Waiting(token) if bodies.max_whole().is_some_and(|max| size <= max) => {
                (Body::Waiting(token), Action::Pause)
            }
            Body::Waiting(token) => {
                bodies.give_up(token, Tokenized::TooLarge);
                (Body::Passing, Action::Continue)
            }
        };
        self.body = body;
        action
    }

    fn request_trailers(&mut self) -> Action {
        match (&self.body, &self.bodies) {
            (Body::Waiting(token), Some(bodies)) if bodies.is_waiting(*token) => {
                return Action::Pause;
            }
            (Body::Reading(_), _) => {
                metrics::count(Metric::ScorerEvidence(Unread::Cut.as_str()));
            }
            _ => {}
        }
        self.body = Body::Passing;
        Action::Continue
    }

    fn response_headers(&mut self, _end_of_stream: bool) {
        if std::mem::take(&mut self.counts)
            && let Err(kind) = self.note_upstream()
        {
            problem(kind);
        }
    }

    fn done(&mut self) {
        self.end();
    }
}

/// Deleted inside one of its own callbacks it was not told that it is done.
impl Drop for ScorerHttp {
    fn drop(&mut self) {
        self.end();
    }
}

/// The bytes from `start` on of the `size` that the host shows.
fn chunk(start: usize, size: usize) -> Option<Vec<u8>> {
    let new = size.checked_sub(start)?;
    if new == 0 {
        return Some(Vec::new());
    }
    let chunk = host::buffer(Buffer::RequestBody, start, new).ok()?;
    (chunk.len() == new).then_some(chunk)
}

fn unread<T>(why: Unread) -> Option<T> {
    metrics::count(Metric::ScorerEvidence(why.as_str()));
    None
}
