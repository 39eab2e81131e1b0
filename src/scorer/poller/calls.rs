//! Calls to engines: what is due, what is in flight.

use super::Poller;
use crate::scorer::config::Target;
use crate::scorer::event::PollResult;
use std::rc::Rc;

/// Most calls of one scorer in flight. Each answer is up to [`MAX_PAGE_BYTES`] in Envoy's memory.
pub const MAX_IN_FLIGHT: usize = 64;
/// Largest metrics page that is read. vLLM 0.32 writes 90 kB.
pub const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// What a call asks an endpoint for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    Metrics,
    Version,
    Models,
}

/// A GET to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// `ip:port`; also the `:authority`.
    pub address: Rc<str>,
    pub target: Target,
    pub ask: Ask,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// `body` may be left empty if the status is not 200.
    Http { status: u16, body: &'a [u8] },
    /// The body is longer than [`MAX_PAGE_BYTES`] and was not read.
    TooLarge,
    /// No answer came.
    None,
    /// The host did not give the answer.
    Unreadable,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub address: Rc<str>,
    pub ask: Ask,
    pub ticks: u32,
}

impl Poller {
    /// The next call to send, while fewer than [`MAX_IN_FLIGHT`] are. Each must be followed by
    /// [`Poller::sent`] or [`Poller::not_sent`].
    pub fn next_call(&mut self) -> Option<Call> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        while let Some((address, ask)) = self.questions_due.pop_front() {
            if let Some(call) = self.call(address, ask) {
                return Some(call);
            }
        }
        while let Some(address) = self.metrics_due.pop_front() {
            if let Some(call) = self.call(address, Ask::Metrics) {
                return Some(call);
            }
        }
        None
    }

    /// None if the endpoint was forgotten meanwhile.
    fn call(&self, address: Rc<str>, ask: Ask) -> Option<Call> {
        let target = self.endpoints.get(&address)?.target.clone();
        Some(Call {
            address,
            target,
            ask,
        })
    }

    /// The host took the call and answers with `token`.
    pub fn sent(&mut self, call: Call, token: u32) {
        let call = InFlight {
            address: call.address,
            ask: call.ask,
            ticks: 0,
        };
        if let Some(other) = self.in_flight.insert(token, call) {
            // A token used twice: the first call's answer can no longer be told.
            self.failed(&other.address, other.ask, PollResult::Lost);
        }
    }

    /// The host refused the call.
    pub fn not_sent(&mut self, call: &Call) {
        self.failed(&call.address, call.ask, PollResult::NotSent);
    }

    /// What the call with this token asked for; None: not one of ours, or no longer.
    pub fn asked(&self, token: u32) -> Option<Ask> {
        self.in_flight.get(&token).map(|call| call.ask)
    }

    /// The host answers every call, after the timeout at the latest. Should it ever not, the
    /// endpoint must not stay busy for ever.
    pub(super) fn give_up_lost_calls(&mut self) {
        let timeout_ticks = self.config.timeout_ms.div_ceil(self.tick_ms().max(1));
        let limit = u32::try_from(timeout_ticks)
            .unwrap_or(u32::MAX)
            .saturating_add(self.ticks_per_interval.saturating_mul(2));
        let mut lost = Vec::new();
        self.in_flight.retain(|_, call| {
            call.ticks = call.ticks.saturating_add(1);
            if call.ticks <= limit {
                return true;
            }
            lost.push((Rc::clone(&call.address), call.ask));
            false
        });
        for (address, ask) in lost {
            self.failed(&address, ask, PollResult::Lost);
        }
    }
}
