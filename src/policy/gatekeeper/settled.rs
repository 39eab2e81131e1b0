//! What gates said of queue records that have not changed since: as long as an endpoint has no news,
//! nobody's gate of it moves, and its state need not be read again.

use super::{GateParams, GateState, GateVerdict};
use crate::sorted::SortedMap;

/// Gates remembered; past this all are forgotten and read again.
const MAX_SETTLED: usize = 4096;

#[derive(Debug, Default)]
pub struct Settled {
    gates: SortedMap<String, Vec<(GateParams, Known)>>,
    count: usize,
}

/// A gate that has consumed every sample of a queue record, none of them from the future.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub queue_cas: u32,
    /// The newest sample, Unix ms.
    pub newest_ms: u64,
    pub state: GateState,
}

impl Known {
    /// `None`: the clock has stepped back so far that a sample is from the future now.
    pub fn verdict(&self, gate: &GateParams, now_ms: u64) -> Option<GateVerdict> {
        if self.newest_ms > now_ms.saturating_add(gate.max_sample_age_ms) {
            return None;
        }
        Some(super::gate::verdict(
            self.newest_ms,
            self.state.closed,
            gate,
            now_ms,
        ))
    }
}

impl Settled {
    pub fn get(&self, endpoint: &str, gate: &GateParams) -> Option<Known> {
        let gates = self.gates.get(endpoint)?;
        let found = gates.iter().find(|(other, _)| other == gate);
        found.map(|(_, known)| *known)
    }

    pub fn put(&mut self, endpoint: &str, gate: &GateParams, known: Known) {
        if let Some(gates) = self.gates.get_mut(endpoint)
            && let Some((_, place)) = gates.iter_mut().find(|(other, _)| other == gate)
        {
            *place = known;
            return;
        }
        if self.count >= MAX_SETTLED {
            *self = Self::default();
        }
        self.count = self.count.saturating_add(1);
        match self.gates.get_mut(endpoint) {
            Some(gates) => gates.push((*gate, known)),
            None => {
                self.gates.insert(endpoint.to_owned(), vec![(*gate, known)]);
            }
        }
    }

    pub fn forget(&mut self, endpoint: &str) {
        let gates = self.gates.remove(endpoint).unwrap_or_default();
        self.count = self.count.saturating_sub(gates.len());
    }
}
