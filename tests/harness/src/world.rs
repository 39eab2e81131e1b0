//! The process around all VMs: clock, shared data, metrics, log, faults.

use crate::context::Answer;
use crate::fault::{Armed, Effect};
use crate::headers::HeaderMap;
use crate::metrics::Metrics;
use crate::shared_data::SharedData;
use std::collections::BTreeSet;

/// One line of the module's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub level: LogLevel,
    pub vm: usize,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
    Critical,
}

impl LogLevel {
    pub(crate) fn from_abi(level: u32) -> Option<Self> {
        [
            Self::Trace,
            Self::Debug,
            Self::Info,
            Self::Warn,
            Self::Error,
            Self::Critical,
        ]
        .get(level as usize)
        .copied()
    }
}

/// One host call of the module, in the order of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRecord {
    pub import: &'static str,
    pub vm: usize,
    pub context: u32,
    /// The callback that made it.
    pub callback: &'static str,
    pub status: u32,
}

/// An HTTP call that the module made and that is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCall {
    pub token: u32,
    pub vm: usize,
    pub root: u32,
    pub cluster: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
    pub timeout_ms: u32,
    pub sent_ms: u64,
}

/// Answers calls by itself; `None` leaves a call open until its timeout.
pub(crate) type Responder = Box<dyn FnMut(&HttpCall) -> Option<Answer>>;

#[derive(Default)]
pub(crate) struct World {
    pub now_ns: u64,
    pub shared: SharedData,
    pub metrics: Metrics,
    pub log: Vec<LogLine>,
    pub calls: Vec<CallRecord>,
    pub faults: Vec<Armed>,
    pub http_calls: Vec<HttpCall>,
    pub responder: Option<Responder>,
    /// Empty: every cluster exists.
    pub clusters: BTreeSet<String>,
}

impl World {
    pub fn now_ms(&self) -> u64 {
        self.now_ns / 1_000_000
    }

    /// Counts the call for every fault; the first that hits is the effect.
    pub fn meet(&mut self, import: &str) -> Option<Effect> {
        let mut effect = None;
        for fault in &mut self.faults {
            effect = effect.or(fault.meet(import));
        }
        effect
    }
}
