//! What storing into one tier costs: a moving average in seconds per MiB, with hysteresis.
//!
//! The rules are those of vLLM's own detector (tiering backpressure, 0.31+), with the scrape
//! interval in the place of the single store: an interval in which bytes were stored is one
//! *completion*, and its cost is the seconds over the MiB that the engine's counters grew by. The
//! first completions only warm up; their mean seeds the average. Above the high water the tier is
//! under pressure, below the low water it is not (both strictly). Under pressure nothing is stored,
//! so nothing would bring the average down: it halves every two seconds without a completion.
//!
//! What is consumed depends on the samples alone, so every worker comes to the same state
//! whenever it looks.

use crate::contract::stores::StoreSample;

/// A tier's average halves in this time while it is under pressure and idle, ms.
const IDLE_HALF_LIFE_MS: f64 = 2_000.0;

/// No store costs more, seconds per MiB: sums stay numbers, whatever the counters say.
const MAX_COST: f64 = 1e6;

const MIB: f64 = 1_048_576.0;

/// Where pressure begins and ends, seconds per MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Water {
    pub high: f64,
    pub low: f64,
}

/// vLLM's defaults for tiers of this machine.
pub const LOCAL: Water = Water {
    high: 0.010,
    low: 0.002,
};

/// vLLM's defaults for object stores and tiers of other machines.
pub const REMOTE: Water = Water {
    high: 0.050,
    low: 0.010,
};

/// How a tier's average is made and judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    pub water: Water,
    /// Weight of a completion; over 0, at most 1.
    pub alpha: f64,
    /// Completions that only warm up, the last of which seeds the average; at least 1.
    pub warmup: u32,
}

/// One tier between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostState {
    /// The last sample consumed.
    pub last: StoreSample,
    /// Completions so far, up to the rule's warm-up.
    completions: u32,
    /// Seconds per MiB; while warming up: the sum of the completions' costs.
    ema: f64,
    under_pressure: bool,
}

impl CostState {
    fn first(sample: &StoreSample, rule: &Rule) -> Self {
        let mut state = Self {
            last: *sample,
            completions: 0,
            ema: 0.0,
            under_pressure: false,
        };
        if let Some(ema) = sample.counters.ema {
            state.engine_says(ema, rule);
        }
        state
    }

    /// The average now, seconds per MiB. None while it warms up.
    pub fn cost(&self, rule: &Rule, now_ms: u64) -> Option<f64> {
        let idle_ms = now_ms.saturating_sub(self.last.t_ms);
        let factor = if self.under_pressure {
            decay(idle_ms)
        } else {
            1.0
        };
        (self.completions >= rule.warmup).then_some(self.ema * factor)
    }

    /// Whether the tier is under pressure now, the time since the last sample counted as idle.
    pub fn is_under_pressure(&self, rule: &Rule, now_ms: u64) -> bool {
        let holds = |cost| cost >= rule.water.low;
        self.under_pressure && self.cost(rule, now_ms).is_some_and(holds)
    }

    fn step(&mut self, sample: &StoreSample, rule: &Rule) {
        let before = std::mem::replace(&mut self.last, *sample);
        let bytes = sample.counters.bytes - before.counters.bytes;
        let seconds = sample.counters.seconds - before.counters.seconds;
        match sample.counters.ema {
            Some(ema) if bytes > 0.0 || before.counters.ema != Some(ema) => {
                self.engine_says(ema, rule);
            }
            None if bytes > 0.0 => self.completed(seconds / (bytes / MIB), rule),
            _ if self.under_pressure => {
                self.ema *= decay(sample.t_ms.saturating_sub(before.t_ms));
                self.judge(rule);
            }
            _ => {}
        }
    }

    /// The engine's own average is used in the place of ours.
    fn engine_says(&mut self, ema: f64, rule: &Rule) {
        self.ema = ema.min(MAX_COST);
        self.completions = rule.warmup;
        self.judge(rule);
    }

    fn completed(&mut self, cost: f64, rule: &Rule) {
        // 0 seconds for next to no bytes.
        let cost = if cost.is_nan() {
            0.0
        } else {
            cost.min(MAX_COST)
        };
        if self.completions >= rule.warmup {
            self.ema += rule.alpha * (cost - self.ema);
            self.judge(rule);
            return;
        }
        self.completions = self.completions.saturating_add(1);
        self.ema += cost;
        if self.completions == rule.warmup {
            self.ema /= f64::from(rule.warmup.max(1));
            self.judge(rule);
        }
    }

    fn judge(&mut self, rule: &Rule) {
        self.under_pressure = if self.under_pressure {
            self.ema >= rule.water.low
        } else {
            self.ema > rule.water.high
        };
    }
}

/// `libm`'s power of two: the same last digit natively and in wasm32.
fn decay(idle_ms: u64) -> f64 {
    libm::exp2(-(idle_ms as f64 / IDLE_HALF_LIFE_MS))
}

/// Shows a tier its history, ascending in time; what it has consumed changes nothing. None: there
/// is none. An engine that started anew, and a clock that stepped back, begin afresh.
pub fn consume(
    state: Option<CostState>,
    history: &[StoreSample],
    rule: &Rule,
) -> Option<CostState> {
    let Some(newest) = history.last() else {
        return state;
    };
    let mut state = state.filter(|state| state.last.t_ms <= newest.t_ms);
    for sample in history {
        state = match state {
            Some(state) if sample.t_ms <= state.last.t_ms => Some(state),
            Some(mut before) if !sample.counters.restarted_since(&before.last.counters) => {
                before.step(sample, rule);
                Some(before)
            }
            _ => Some(CostState::first(sample, rule)),
        };
    }
    state
}

#[cfg(test)]
mod tests;
