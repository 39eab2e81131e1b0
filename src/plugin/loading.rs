//! The load that an admitted request has in flight: from the decision until the engine shows that
//! loading is over, or the request is, however it ends.

use std::rc::Rc;

use super::host::{self, Buffer, Map, SharedData};
use super::metrics::{self, Metric};
use super::vm::Vm;
use crate::policy::admission::first_event::FirstEvent;
use crate::policy::admission::loads::{LeaseId, Loads};
use crate::policy::admission::{Completion, Ticket, World};
use crate::policy::config::Policy;
use crate::policy::request::is_identity;

/// Gives the load back when it is dropped: no way out of a stream may forget it.
pub struct Loading {
    vm: Vm,
    policy: Rc<Policy>,
    ticket: Ticket,
    /// Watching an event stream for its first event.
    watched: Option<FirstEvent>,
}

impl Loading {
    /// None: the ticket holds nothing.
    pub fn new(vm: &Vm, policy: &Rc<Policy>, ticket: Ticket) -> Option<Self> {
        ticket.lease()?;
        Some(Self {
            vm: vm.clone(),
            policy: Rc::clone(policy),
            ticket,
            watched: None,
        })
    }

    fn with_lease(&self, f: impl FnOnce(&mut Loads, LeaseId)) {
        if let Some(lease) = self.ticket.lease()
            && let Ok(mut state) = self.vm.admission.try_borrow_mut()
        {
            f(&mut state.loads, lease);
        }
    }

    /// The whole request is on its way: the longest time begins.
    pub fn sent(&self) {
        // Without a clock it ends with the answer.
        if let Ok(now_ms) = host::now_ms() {
            self.with_lease(|loads, lease| loads.sent(lease, now_ms));
        }
    }

    /// The answer's headers. True if loading goes on behind them.
    pub fn response_headers(&mut self, end_of_stream: bool) -> bool {
        let Ok(status) = host::header(Map::ResponseHeaders, ":status") else {
            return self.unwatched();
        };
        let status = status.unwrap_or_default();
        match status.first() {
            // Not the answer yet.
            Some(b'1') => return true,
            Some(b'2') => {}
            _ => return self.over("error"),
        }
        if end_of_stream {
            return self.over("headers");
        }
        let (Ok(content_type), Ok(coding)) = (
            host::header(Map::ResponseHeaders, "content-type"),
            host::header(Map::ResponseHeaders, "content-encoding"),
        ) else {
            return self.unwatched();
        };
        if !content_type.is_some_and(|value| is_event_stream(&value)) {
            return self.over("headers");
        }
        if coding.is_some_and(|coding| !is_identity(&coding)) {
            return self.unwatched();
        }
        self.watched = Some(FirstEvent::default());
        self.with_lease(Loads::streaming);
        true
    }

    /// A chunk of the answer. True if loading goes on behind it.
    pub fn response_body(&mut self, size: usize) -> bool {
        let Some(events) = &mut self.watched else {
            return true;
        };
        if size == 0 {
            return true;
        }
        match host::buffer(Buffer::ResponseBody, 0, size) {
            Ok(chunk) if events.is_in(&chunk) => self.over("first_event"),
            Ok(_) => true,
            Err(_) => {
                metrics::count(Metric::HostFailure("get_response_body"));
                self.unwatched()
            }
        }
    }

    /// Nobody will see the first event: the longest time decides.
    fn unwatched(&mut self) -> bool {
        self.watched = None;
        if let Ok(now_ms) = host::now_ms() {
            self.with_lease(|loads, lease| loads.unwatched(lease, now_ms));
        }
        true
    }

    /// Gives the load back; always false.
    pub fn over(&mut self, event: &'static str) -> bool {
        let Some(lease) = self.ticket.lease() else {
            return false;
        };
        let Ok(mut state) = self.vm.admission.try_borrow_mut() else {
            // Inside another request's admission: given back with the next one, or by the timer.
            if let Ok(mut orphans) = self.vm.orphans.try_borrow_mut() {
                orphans.push(std::mem::take(&mut self.ticket));
            }
            return false;
        };
        // If not, the timer was faster.
        if state.loads.holds(lease) {
            metrics::count(Metric::LoadEnded(event));
        }
        let world = World {
            store: &SharedData,
            now_ms: 0,
        };
        let policy = self.policy.admission.policy();
        policy.on_completed(&mut Completion::Load(&mut self.ticket), &mut state, world);
        false
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.over("stream_end");
    }
}

fn is_event_stream(content_type: &[u8]) -> bool {
    let media_type = content_type.split(|byte| *byte == b';').next();
    media_type
        .unwrap_or_default()
        .trim_ascii()
        .eq_ignore_ascii_case(b"text/event-stream")
}
