//! One stream: what the client and the upstream do with it. `decode` moves it through the filters.

mod decode;

use crate::chain::Chain;
use crate::exchange::{Exchange, Placement};
use crate::headers::HeaderMap;
use crate::outcome::{Attempt, Outcome};
use crate::plugin::Plugin;
use crate::request::Request;
use crate::vm::Called;
use decode::{Filter, Item, Stopped};
use std::cell::RefCell;
use std::rc::Rc;

/// One stream in progress. The client's side: chunks, trailers, end, reset. The upstream's side:
/// answer, retry.
pub struct Stream {
    exchange: Rc<RefCell<Exchange>>,
    buffer_limit: usize,
    downstream: Vec<Filter>,
    upstream_plugins: Vec<Plugin>,
    upstream: Vec<Filter>,
    /// What came out of the downstream chain: a retry sends it again.
    original: Vec<u8>,
    original_end: Option<Ending>,
    attempts: Vec<Attempt>,
    stopped: Option<Stopped>,
    responded: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Headers,
    Data,
    Trailers,
}

impl Stream {
    pub(crate) fn open(chain: &Chain, request: Request, end: bool) -> Self {
        let mut stream = Self {
            exchange: Rc::new(RefCell::new(request.exchange)),
            buffer_limit: request.buffer_limit,
            downstream: chain.downstream.iter().map(Filter::new).collect(),
            upstream_plugins: chain.upstream.clone(),
            upstream: Vec::new(),
            original: Vec::new(),
            original_end: None,
            attempts: Vec::new(),
            stopped: None,
            responded: false,
        };
        stream.push(Placement::Downstream, 0, Item::Headers { end });
        stream
    }

    /// One chunk with more to come.
    pub fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.resume();
        self.push(
            Placement::Downstream,
            0,
            Item::Data(bytes.as_ref().to_vec(), false),
        );
        self
    }

    pub fn chunks<B: AsRef<[u8]>>(mut self, chunks: impl IntoIterator<Item = B>) -> Self {
        for chunk in chunks {
            self.chunk(chunk);
        }
        self
    }

    /// The end comes alone, as an empty last chunk; the upstream answers 200.
    pub fn end(self) -> Outcome {
        self.end_with(b"")
    }

    /// The end comes with the last chunk; the upstream answers 200.
    pub fn end_with(mut self, bytes: impl AsRef<[u8]>) -> Outcome {
        self.last_chunk(bytes);
        self.close()
    }

    /// The last chunk, the answer still to come.
    pub fn last_chunk(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.resume();
        self.push(
            Placement::Downstream,
            0,
            Item::Data(bytes.as_ref().to_vec(), true),
        );
        self
    }

    /// The request ends with trailers; the upstream answers 200.
    pub fn trailers(
        mut self,
        trailers: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Outcome {
        self.last_trailers(trailers);
        self.close()
    }

    /// The request ends with trailers, the answer still to come.
    pub fn last_trailers(
        &mut self,
        trailers: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> &mut Self {
        self.resume();
        self.exchange.borrow_mut().request_trailers = trailers.into_iter().collect();
        self.push(Placement::Downstream, 0, Item::Trailers);
        self
    }

    /// The body that has reached the host so far.
    pub fn passed(&self) -> String {
        let body = self.attempts.last().map(|attempt| &attempt.body[..]);
        String::from_utf8_lossy(body.unwrap_or_default()).into_owned()
    }

    /// The client (or the upstream) resets the stream: every filter is torn down, nothing is
    /// answered.
    pub fn reset(mut self) -> Outcome {
        self.responded = true;
        self.close()
    }

    /// The upstream answers: the headers callback of every filter, the last filter first.
    pub fn respond(&mut self, status: u16, headers: &[(&str, &str)]) -> &mut Self {
        let mut map: HeaderMap = headers.iter().copied().collect();
        map.replace(":status", status.to_string());
        self.answer(map, true);
        self
    }

    /// One chunk of the answer, through every filter that still is there.
    pub fn answer_chunk(&mut self, bytes: impl AsRef<[u8]>, end: bool) -> &mut Self {
        let bytes = bytes.as_ref();
        for (plugin, id) in self.answering(true) {
            plugin
                .vm
                .with_stream(id, |s| s.response_body = Some(bytes.to_vec()));
            let args = [bytes.len() as u32, u32::from(end)];
            plugin.vm.call("proxy_on_response_body", id, &args);
            plugin.vm.with_stream(id, |s| s.response_body = None);
        }
        self
    }

    /// The filters that see an answer, in its order.
    fn answering(&self, from_upstream: bool) -> Vec<(Plugin, u32)> {
        let upstream = self.upstream.iter().filter(|_| from_upstream);
        let filters = self.downstream.iter().chain(upstream);
        let mut filters: Vec<_> = filters
            .filter_map(|f| Some((f.plugin.clone(), f.context?)))
            .collect();
        filters.reverse();
        filters
    }

    fn answer(&mut self, headers: HeaderMap, from_upstream: bool) {
        if self.responded {
            return;
        }
        self.responded = true;
        {
            let mut exchange = self.exchange.borrow_mut();
            exchange.response_headers = headers;
            exchange.answered = true;
        }
        let count = self.exchange.borrow().response_headers.len() as u32;
        for (plugin, id) in self.answering(from_upstream) {
            plugin.vm.with_stream(id, |s| s.response_headers = true);
            let called = plugin.vm.call("proxy_on_response_headers", id, &[count, 0]);
            if let Called::Returned(1..) = called {
                // Nothing here waits on responses: it is on its way, so the pause is over.
                plugin.vm.deferred(id);
            }
            plugin.vm.with_stream(id, |s| s.response_headers = false);
        }
    }

    /// The router picks its host only now: a filter behind ours held the headers back.
    pub fn picked(&mut self, upstream: &str) -> &mut Self {
        self.exchange.borrow_mut().upstream = Some(upstream.to_owned());
        self
    }

    /// The router tries another host: new contexts over the same header map, the original body.
    pub fn retry(&mut self, upstream: &str) -> &mut Self {
        self.resume();
        for filter in &mut self.upstream {
            if let Some(id) = filter.context {
                filter.plugin.vm.log_stream(id);
            }
            filter.close();
        }
        self.exchange.borrow_mut().upstream = Some(upstream.to_owned());
        let ending = self.original_end;
        self.start_attempt(ending == Some(Ending::Headers));
        if !self.original.is_empty() || ending == Some(Ending::Data) {
            let body = self.original.clone();
            self.push(
                Placement::Upstream,
                0,
                Item::Data(body, ending == Some(Ending::Data)),
            );
        }
        if ending == Some(Ending::Trailers) {
            self.push(Placement::Upstream, 0, Item::Trailers);
        }
        self
    }

    /// Ends the stream: an answer of 200 if the request is complete and has none, then log, done
    /// and delete of every filter.
    pub fn close(mut self) -> Outcome {
        self.resume();
        let complete = self.attempts.last().is_some_and(|a| a.complete);
        if complete && self.stopped.is_none() {
            self.respond(200, &[]);
        }
        self.tear_down()
    }

    fn tear_down(&mut self) -> Outcome {
        let paused = self
            .downstream
            .iter()
            .chain(&self.upstream)
            .any(Filter::paused);
        let filters = || [Placement::Upstream, Placement::Downstream];
        for placement in filters() {
            for filter in self.filters(placement) {
                if let Some(id) = filter.context {
                    filter.plugin.vm.log_stream(id);
                }
            }
        }
        for placement in filters() {
            for filter in self.filters(placement) {
                filter.close();
            }
        }
        let exchange = self.exchange.borrow();
        let mut attempts = std::mem::take(&mut self.attempts);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome {
            attempt: attempts.pop(),
            earlier_attempts: attempts,
            response_headers: exchange.response_headers.clone(),
            filter_state: exchange
                .filter_state
                .iter()
                .map(|(path, value)| (text(path), text(value)))
                .collect(),
            paused: paused && self.stopped.is_none(),
            reset: matches!(self.stopped, Some(Stopped::Reset)),
            local_response: match self.stopped.take() {
                Some(Stopped::Local(response)) => Some(response),
                _ => None,
            },
        }
    }

    fn filters(&mut self, placement: Placement) -> &mut Vec<Filter> {
        match placement {
            Placement::Downstream => &mut self.downstream,
            Placement::Upstream => &mut self.upstream,
        }
    }
}
