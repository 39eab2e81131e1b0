//! Envoy's filter chain, decode side: headers, chunks and trailers through every filter, with
//! what Continue and Pause mean.

use super::{Ending, Stream};
use crate::context::Deferred;
use crate::exchange::{LocalResponse, Placement};
use crate::headers::HeaderMap;
use crate::outcome::Attempt;
use crate::plugin::Plugin;
use crate::vm::Called;
use std::collections::VecDeque;

/// What moves through a chain.
pub(super) enum Item {
    Headers { end: bool },
    Data(Vec<u8>, bool),
    Trailers,
}

pub(super) struct Filter {
    pub plugin: Plugin,
    /// Made with the headers.
    pub context: Option<u32>,
    /// Paused in the headers callback: everything behind them waits.
    paused_headers: bool,
    waiting: VecDeque<Item>,
    /// Paused in a body callback: the body so far.
    buffered: Option<Vec<u8>>,
    /// The last of it was in there.
    end_buffered: bool,
    paused_trailers: bool,
}

impl Filter {
    pub fn new(plugin: &Plugin) -> Self {
        Self {
            plugin: plugin.clone(),
            context: None,
            paused_headers: false,
            waiting: VecDeque::new(),
            buffered: None,
            end_buffered: false,
            paused_trailers: false,
        }
    }

    pub fn paused(&self) -> bool {
        self.paused_headers || self.buffered.is_some() || self.paused_trailers
    }

    pub fn close(&mut self) {
        if let Some(id) = self.context.take() {
            self.plugin.vm.close(id);
        }
    }
}

/// Why a stream stops in the middle.
pub(super) enum Stopped {
    Local(LocalResponse),
    Reset,
}

/// The proxy's own answer when the VM is gone (FAIL_CLOSED).
fn failed_vm() -> Stopped {
    Stopped::Local(LocalResponse {
        status: 503,
        details: "wasm_fail_stream".into(),
        body: Vec::new(),
        headers: HeaderMap::default(),
        grpc_status: 14,
    })
}

/// Envoy's answer to more than it may buffer.
fn too_large() -> Stopped {
    Stopped::Local(LocalResponse {
        status: 413,
        details: "request_payload_too_large".into(),
        body: Vec::new(),
        headers: HeaderMap::default(),
        grpc_status: -1,
    })
}

impl Stream {
    /// Does what a callback outside this stream (of an HTTP call, say) asked for.
    pub fn resume(&mut self) -> &mut Self {
        for placement in [Placement::Downstream, Placement::Upstream] {
            for i in 0..self.filters(placement).len() {
                self.after_call(placement, i);
            }
        }
        self
    }

    /// Carries out what the filter's callbacks asked for.
    fn after_call(&mut self, placement: Placement, i: usize) {
        let filter = &self.filters(placement)[i];
        let Some(id) = filter.context else { return };
        for deferred in filter.plugin.vm.deferred(id) {
            if self.stopped.is_some() {
                return;
            }
            match deferred {
                Deferred::LocalResponse(response) => self.stop(Stopped::Local(response)),
                Deferred::Reset => self.stop(Stopped::Reset),
                Deferred::ContinueResponse => {}
                Deferred::ContinueRequest => self.resume_filter(placement, i),
            }
        }
    }

    pub(super) fn stop(&mut self, why: Stopped) {
        if let Stopped::Local(response) = &why {
            let mut headers = response.headers.clone();
            headers.replace(":status", response.status.to_string());
            self.stopped = Some(why);
            self.answer(headers, false);
        } else {
            self.stopped = Some(why);
        }
    }

    fn resume_filter(&mut self, placement: Placement, i: usize) {
        let filter = &mut self.filters(placement)[i];
        if filter.paused_headers {
            filter.paused_headers = false;
            let waiting = std::mem::take(&mut filter.waiting);
            let end = std::mem::take(&mut filter.end_buffered);
            self.push(placement, i + 1, Item::Headers { end });
            for item in waiting {
                self.push(placement, i, item);
            }
            return;
        }
        let end = std::mem::take(&mut filter.end_buffered);
        let trailers = std::mem::take(&mut filter.paused_trailers);
        if let Some(body) = filter.buffered.take() {
            self.push(placement, i + 1, Item::Data(body, end));
        }
        if trailers {
            self.push(placement, i + 1, Item::Trailers);
        }
    }

    /// Sends one item to filter `i` and, as far as it goes, on to those behind it.
    pub(super) fn push(&mut self, placement: Placement, mut i: usize, item: Item) {
        let mut item = Some(item);
        while let Some(current) = item.take() {
            if self.stopped.is_some() {
                return;
            }
            if i >= self.filters(placement).len() {
                match placement {
                    Placement::Downstream => self.route(current),
                    Placement::Upstream => self.deliver(current),
                }
                return;
            }
            item = match current {
                Item::Headers { end } => self.headers(placement, i, end),
                Item::Data(bytes, end) => self.data(placement, i, bytes, end),
                Item::Trailers => self.request_trailers(placement, i),
            };
            i += 1;
        }
    }

    /// Calls one callback; None if the stream stops there, else whether it goes on.
    fn callback(
        &mut self,
        placement: Placement,
        i: usize,
        export: &'static str,
        args: &[u32],
    ) -> Option<bool> {
        let filter = &self.filters(placement)[i];
        let id = filter.context?;
        let called = filter.plugin.vm.call(export, id, args);
        match called {
            Called::Dead => {
                self.stop(failed_vm());
                None
            }
            Called::Missing | Called::Returned(0) => Some(true),
            Called::Returned(_) => Some(false),
        }
    }

    fn headers(&mut self, placement: Placement, i: usize, end: bool) -> Option<Item> {
        let exchange = self.exchange.clone();
        let count = exchange.borrow().request_headers.len() as u32;
        let filter = &mut self.filters(placement)[i];
        let vm = filter.plugin.vm.clone();
        let id = vm.open(filter.plugin.root, &exchange, placement);
        filter.context = Some(id);
        vm.with_stream(id, |s| s.request_headers = true);
        let goes_on = self.callback(
            placement,
            i,
            "proxy_on_request_headers",
            &[count, end.into()],
        )?;
        if goes_on {
            vm.with_stream(id, |s| s.request_headers = false);
            self.after_call(placement, i);
            return Some(Item::Headers { end });
        }
        let filter = &mut self.filters(placement)[i];
        filter.paused_headers = true;
        filter.end_buffered = end;
        self.after_call(placement, i);
        None
    }

    fn data(&mut self, placement: Placement, i: usize, bytes: Vec<u8>, end: bool) -> Option<Item> {
        let limit = self.buffer_limit;
        let filter = &mut self.filters(placement)[i];
        if filter.paused_headers {
            filter.waiting.push_back(Item::Data(bytes, end));
            return None;
        }
        let visible = match filter.buffered.take() {
            Some(mut before) => {
                before.extend(bytes);
                if before.len() > limit {
                    // Added to what is buffered before the filter is asked.
                    self.stop(too_large());
                    return None;
                }
                before
            }
            None => bytes,
        };
        let id = filter.context?;
        let vm = filter.plugin.vm.clone();
        let size = visible.len() as u32;
        vm.with_stream(id, |s| s.body = Some(visible));
        let goes_on = self.callback(placement, i, "proxy_on_request_body", &[size, end.into()])?;
        let bytes = vm.with_stream(id, |s| s.body.take()).flatten()?;
        if goes_on {
            self.after_call(placement, i);
            return Some(Item::Data(bytes, end));
        }
        let over = bytes.len() > limit;
        let filter = &mut self.filters(placement)[i];
        filter.buffered = Some(bytes);
        filter.end_buffered = end;
        self.after_call(placement, i);
        let still = self.filters(placement)[i].buffered.is_some();
        if over && still && self.stopped.is_none() {
            self.stop(too_large());
        }
        None
    }

    fn request_trailers(&mut self, placement: Placement, i: usize) -> Option<Item> {
        let count = self.exchange.borrow().request_trailers.len() as u32;
        let filter = &mut self.filters(placement)[i];
        if filter.paused_headers {
            filter.waiting.push_back(Item::Trailers);
            return None;
        }
        let id = filter.context?;
        let vm = filter.plugin.vm.clone();
        // Only what a pause has buffered is there to be changed.
        let buffered = filter.buffered.take();
        vm.with_stream(id, |s| {
            s.body = buffered;
            s.request_trailers = true;
        });
        let goes_on = self.callback(placement, i, "proxy_on_request_trailers", &[count])?;
        let body = vm.with_stream(id, |s| s.body.take()).flatten();
        let filter = &mut self.filters(placement)[i];
        if !goes_on {
            filter.buffered = body;
            filter.paused_trailers = true;
            self.after_call(placement, i);
            return None;
        }
        vm.with_stream(id, |s| s.request_trailers = false);
        self.after_call(placement, i);
        if let Some(body) = body {
            self.push(placement, i + 1, Item::Data(body, false));
        }
        Some(Item::Trailers)
    }

    /// The router: picks a host with the headers and sends everything to it.
    fn route(&mut self, item: Item) {
        match item {
            Item::Headers { end } => {
                if end {
                    self.original_end = Some(Ending::Headers);
                }
                self.exchange.borrow_mut().host_picked = true;
                self.start_attempt(end);
            }
            Item::Data(bytes, end) => {
                self.original.extend(&bytes);
                if end {
                    self.original_end = Some(Ending::Data);
                }
                self.push(Placement::Upstream, 0, Item::Data(bytes, end));
            }
            Item::Trailers => {
                self.original_end = Some(Ending::Trailers);
                self.push(Placement::Upstream, 0, Item::Trailers);
            }
        }
    }

    pub(super) fn start_attempt(&mut self, end: bool) {
        self.upstream = self.upstream_plugins.iter().map(Filter::new).collect();
        self.push(Placement::Upstream, 0, Item::Headers { end });
    }

    /// The host receives it.
    fn deliver(&mut self, item: Item) {
        if let Item::Headers { end } = item {
            let exchange = self.exchange.borrow();
            self.attempts.push(Attempt {
                upstream: exchange.upstream.clone(),
                headers: exchange.request_headers.clone(),
                complete: end,
                ..Attempt::default()
            });
            return;
        }
        let Some(attempt) = self.attempts.last_mut() else {
            return;
        };
        match item {
            Item::Headers { .. } => {}
            Item::Data(bytes, end) => {
                if !bytes.is_empty() {
                    attempt.chunks.push(bytes.len());
                    attempt.body.extend(bytes);
                }
                attempt.complete |= end;
            }
            Item::Trailers => {
                attempt.trailers = Some(self.exchange.borrow().request_trailers.clone());
                attempt.complete = true;
            }
        }
    }
}
