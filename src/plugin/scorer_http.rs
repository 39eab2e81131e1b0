//! One request as the scorer sees it: nothing is changed or held. With `discover: true` the
//! address that gave a 2xx answer on a configured path is noted.
//!
//! Only `upstream.address` counts, which Envoy sets from its own choice of host. A header or
//! dynamic metadata would let a client choose what Envoy polls.

use std::rc::Rc;

use super::context::{Action, Stream};
use super::host::{self, Map};
use super::scorer_shared::{Discovering, now_ms, parse_status, problem};
use crate::scorer::event::Problem;
use crate::scorer::sightings::Noted;

pub struct ScorerHttp {
    discovering: Rc<Discovering>,
    /// The path is one of the configured ones. Noted in the headers phase: later it is not readable.
    counts: bool,
}

impl ScorerHttp {
    pub fn new(discovering: Rc<Discovering>) -> Self {
        Self {
            discovering,
            counts: false,
        }
    }

    fn note_upstream(&self) -> Result<(), Problem> {
        let status = host::header(Map::ResponseHeaders, ":status").map_err(|_| Problem::Host)?;
        let success = status.as_deref().and_then(parse_status);
        if !success.is_some_and(|status| (200..300).contains(&status)) {
            return Ok(());
        }
        let address = host::property(&["upstream", "address"]).map_err(|_| Problem::Host)?;
        // None: Envoy answered by itself.
        let Some(address) = address.and_then(|address| String::from_utf8(address).ok()) else {
            return Ok(());
        };
        let Some(now_ms) = now_ms() else {
            return Ok(());
        };
        let Ok(mut sightings) = self.discovering.sightings.try_borrow_mut() else {
            return Ok(());
        };
        match sightings.note(&address, now_ms) {
            Noted::Yes | Noted::NotNeeded => Ok(()),
            Noted::Full => Err(Problem::TooManyEndpoints),
        }
    }
}

impl Stream for ScorerHttp {
    fn request_headers(&mut self, _end_of_stream: bool) -> Action {
        match host::header(Map::RequestHeaders, ":path") {
            Ok(path) => {
                let discovery = self.discovering.config.discovery.as_ref();
                self.counts = path.is_some_and(|path| {
                    discovery.is_some_and(|discovery| discovery.paths.contains(&path))
                });
            }
            Err(_) => problem(Problem::Host),
        }
        Action::Continue
    }

    fn response_headers(&mut self) {
        if std::mem::take(&mut self.counts)
            && let Err(kind) = self.note_upstream()
        {
            problem(kind);
        }
    }
}
