//! The queue gate's arithmetic (DESIGN 6): an EWMA over irregular samples, and hysteresis.
//! Pure: states, samples and the time are arguments.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

use crate::contract::queue::Sample;

/// What makes a gate; with the endpoint, its identity.
#[derive(Clone, Copy, Debug)]
pub struct GateParams {
    /// The EWMA of waiting requests at which the gate closes.
    pub max_waiting: NonZeroU32,
    /// Milliseconds, at least 1.
    pub half_life_ms: u64,
    /// Of `max_waiting`, in (0, 1]: where a closed gate opens.
    pub reopen_ratio: f64,
    /// Milliseconds, at least 1.
    pub max_sample_age_ms: u64,
}

impl GateParams {
    fn identity(&self) -> (NonZeroU32, u64, u64, u64) {
        let ratio = self.reopen_ratio.to_bits();
        (
            self.max_waiting,
            self.half_life_ms,
            ratio,
            self.max_sample_age_ms,
        )
    }
}

impl PartialEq for GateParams {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for GateParams {}

impl PartialOrd for GateParams {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GateParams {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for GateParams {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
    }
}

/// A gate between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateState {
    /// Time of the last sample consumed, Unix milliseconds.
    pub last_ms: u64,
    /// Of waiting requests.
    pub ewma: f64,
    pub closed: bool,
}

/// What a gate says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    /// No sample of this endpoint counts.
    NoSamples,
    /// Every fresh writer leaves this endpoint out.
    Unlisted,
    /// The newest sample is older than `maxSampleAge`.
    Stale,
    Open,
    Closed,
}

impl GateVerdict {
    /// Loading is refused. Only a closed gate does that, whatever else is not right.
    pub const fn vetoes(self) -> bool {
        matches!(self, Self::Closed)
    }
}

/// A gate that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transition {
    Closed,
    /// Also a closed gate that started afresh open, or lost its state.
    Opened,
}

impl Transition {
    /// The state it is in now, as `selective_kv_gate_transitions_total{to}` names it.
    pub const fn to(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Opened => "open",
        }
    }

    pub(super) fn between(before: bool, after: bool) -> Option<Self> {
        match (before, after) {
            (false, true) => Some(Self::Closed),
            (true, false) => Some(Self::Opened),
            (false, false) | (true, true) => None,
        }
    }
}

/// What became of a gate that was shown an endpoint's history.
#[derive(Clone, Debug, PartialEq)]
pub struct Consumed {
    /// None only if there was none and no sample counts.
    pub state: Option<GateState>,
    /// In order of time.
    pub transitions: Vec<Transition>,
    /// By freshness and state.
    pub verdict: GateVerdict,
    /// Samples more than `maxSampleAge` in the future, which are none.
    pub future: u32,
}

/// Shows a gate the samples of a record, in ascending order of time; those that it has consumed
/// change nothing.
///
/// What is consumed does not depend on `now_ms` (but for samples from the future), so it does not
/// matter who shows a gate its samples, nor when.
pub fn consume(
    state: Option<GateState>,
    samples: &[Sample],
    gate: &GateParams,
    now_ms: u64,
) -> Consumed {
    let latest_ms = now_ms.saturating_add(gate.max_sample_age_ms);
    let counted = samples.partition_point(|sample| sample.t_ms <= latest_ms);
    let (samples, future) = samples.split_at_checked(counted).unwrap_or((samples, &[]));
    let future = u32::try_from(future.len()).unwrap_or(u32::MAX);
    let Some(newest) = samples.last() else {
        return Consumed {
            state,
            transitions: Vec::new(),
            verdict: GateVerdict::NoSamples,
            future,
        };
    };

    // A clock stepped back: the state is of another time line.
    let before = state.filter(|state| state.last_ms <= newest.t_ms);
    let mut closed = state.is_some_and(|state| state.closed);
    let mut state = before;
    let mut transitions = Vec::new();
    for sample in samples {
        if state.is_some_and(|state| sample.t_ms <= state.last_ms) {
            continue;
        }
        let next = step(state, sample, gate);
        transitions.extend(Transition::between(closed, next.closed));
        closed = next.closed;
        state = Some(next);
    }
    Consumed {
        state,
        transitions,
        verdict: verdict(newest.t_ms, closed, gate, now_ms),
        future,
    }
}

/// Of a gate that has consumed its newest sample.
pub(super) fn verdict(newest_ms: u64, closed: bool, gate: &GateParams, now_ms: u64) -> GateVerdict {
    if now_ms.saturating_sub(newest_ms) > gate.max_sample_age_ms {
        GateVerdict::Stale
    } else if closed {
        GateVerdict::Closed
    } else {
        GateVerdict::Open
    }
}

/// One sample, later than the state's last. The first one, and one after a gap of more than
/// `maxSampleAge`, seeds an open gate.
fn step(before: Option<GateState>, sample: &Sample, gate: &GateParams) -> GateState {
    let (ewma, closed) = match before {
        Some(before) => {
            let passed_ms = sample.t_ms.saturating_sub(before.last_ms);
            if passed_ms > gate.max_sample_age_ms {
                (sample.waiting, false)
            } else {
                let weight = weight(passed_ms, gate.half_life_ms);
                let ewma = before.ewma + weight * (sample.waiting - before.ewma);
                (ewma, before.closed)
            }
        }
        None => (sample.waiting, false),
    };
    let max = f64::from(gate.max_waiting.get());
    let closed = if closed {
        ewma > gate.reopen_ratio * max
    } else {
        ewma >= max
    };
    GateState {
        last_ms: sample.t_ms,
        ewma,
        closed,
    }
}

/// `1 − exp(−ln2·Δt/halfLife)`, written as `1 − 2^(−Δt/halfLife)`. Not `f64::exp`: the platform's
/// differs in the last digit between native code and wasm32. `libm`'s is the same everywhere, and
/// its `exp2` is right to 0.503 ulp (its `exp` is not, and misses DESIGN 6's vector).
fn weight(passed_ms: u64, half_life_ms: u64) -> f64 {
    let half_lives = passed_ms as f64 / half_life_ms as f64;
    1.0 - libm::exp2(-half_lives)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const T0: u64 = 1_800_000_000_000;

    fn gate() -> GateParams {
        GateParams {
            max_waiting: NonZeroU32::new(8).unwrap(),
            half_life_ms: 2_000,
            reopen_ratio: 0.5,
            max_sample_age_ms: 10_000,
        }
    }

    /// Samples at T0 plus these seconds.
    fn samples(of: &[(f64, f64)]) -> Vec<Sample> {
        let at = |s: f64| T0.saturating_add_signed((s * 1000.0) as i64);
        of.iter()
            .map(|&(s, waiting)| Sample {
                t_ms: at(s),
                waiting,
            })
            .collect()
    }

    fn state(s: f64, ewma: f64, closed: bool) -> GateState {
        let last_ms = samples(&[(s, 0.0)])[0].t_ms;
        GateState {
            last_ms,
            ewma,
            closed,
        }
    }

    /// Shown a fresh gate at the time of the newest sample.
    fn fresh(of: &[(f64, f64)]) -> (GateState, Vec<Transition>) {
        let samples = samples(of);
        let consumed = consume(None, &samples, &gate(), samples.last().unwrap().t_ms);
        (consumed.state.unwrap(), consumed.transitions)
    }

    #[test]
    fn the_vector_to_the_last_digit() {
        // DESIGN 6; the same as llm-d's own test.
        use Transition::{Closed, Opened};
        let closed = vec![Closed];
        assert_eq!(
            fresh(&[(0.0, 8.0)]),
            (state(0.0, 8.0, true), closed.clone())
        );
        assert_eq!(
            fresh(&[(0.0, 8.0), (1.0, 0.0)]),
            (state(1.0, 5.656854249492381, true), closed)
        );
        assert_eq!(
            fresh(&[(0.0, 8.0), (1.0, 0.0), (3.0, 0.0)]),
            (state(3.0, 2.8284271247461903, false), vec![Closed, Opened])
        );
    }

    #[test]
    fn one_sample_at_a_time_is_the_same() {
        let all = samples(&[(0.0, 8.0), (1.0, 0.0), (3.0, 0.0)]);
        let mut state = None;
        let mut digits = Vec::new();
        for n in 1..=3 {
            let consumed = consume(state, &all[..n], &gate(), T0 + 3_000);
            state = consumed.state;
            digits.push((state.unwrap().ewma, consumed.verdict, consumed.transitions));
        }
        use GateVerdict::{Closed, Open};
        assert_eq!(
            digits,
            [
                (8.0, Closed, vec![Transition::Closed]),
                (5.656854249492381, Closed, vec![]),
                (2.8284271247461903, Open, vec![Transition::Opened]),
            ]
        );
    }

    #[test]
    fn weights() {
        for (passed_ms, half_life_ms, expected) in [
            (1_000, 2_000, 0.2928932188134524),
            (2_000, 2_000, 0.5),
            (4_000, 2_000, 0.75),
            (1, 86_400_000, 8.022536746032927e-9),
            (86_400_000, 1, 1.0),
            (u64::MAX, 1, 1.0),
        ] {
            assert_eq!(weight(passed_ms, half_life_ms), expected, "{passed_ms}");
        }
    }

    #[test]
    fn both_thresholds_are_inclusive() {
        let just_below = 8.0 - 1e-15;
        assert!(just_below < 8.0);
        // Closes at max, not below.
        assert!(fresh(&[(0.0, 8.0)]).0.closed);
        assert!(!fresh(&[(0.0, just_below)]).0.closed);
        // Opens at half of it, not above: one half-life takes 8 to 4.
        assert_eq!(fresh(&[(0.0, 8.0), (2.0, 0.0)]).0, state(2.0, 4.0, false));
        let above = 8.0 + 2e-15;
        assert!(fresh(&[(0.0, above), (2.0, 0.0)]).0.closed);
        // An open gate between the two stays open, a closed one closed.
        assert!(!fresh(&[(0.0, 6.0)]).0.closed);
        assert!(fresh(&[(0.0, 8.0), (1.0, 0.0)]).0.closed);
    }

    #[test]
    fn with_ratio_one_a_gate_closes_and_opens_at_max() {
        let gate = GateParams {
            reopen_ratio: 1.0,
            ..gate()
        };
        let shown = samples(&[(0.0, 8.0), (2.0, 8.0), (4.0, 8.0)]);
        let consumed = consume(None, &shown, &gate, T0 + 4_000);
        use Transition::{Closed, Opened};
        assert_eq!(consumed.transitions, [Closed, Opened, Closed]);
    }

    #[test]
    fn an_equal_time_changes_nothing() {
        let before = Some(state(0.0, 3.0, true));
        let consumed = consume(before, &samples(&[(0.0, 100.0)]), &gate(), T0);
        assert_eq!(consumed.state, before);
        assert_eq!(consumed.transitions, []);
        assert_eq!(consumed.verdict, GateVerdict::Closed);
    }

    #[test]
    fn consumed_samples_are_skipped_and_new_ones_are_not() {
        let before = Some(state(1.0, 5.656854249492381, true));
        let shown = samples(&[(-1.0, 50.0), (0.0, 8.0), (1.0, 0.0), (3.0, 0.0)]);
        let consumed = consume(before, &shown, &gate(), T0 + 3_000);
        assert_eq!(consumed.state, Some(state(3.0, 2.8284271247461903, false)));
    }

    #[test]
    fn a_clock_that_stepped_back_starts_from_the_oldest() {
        let before = Some(state(100.0, 50.0, true));
        // 6, then half way to 2.
        let shown = samples(&[(0.0, 6.0), (2.0, 2.0)]);
        let consumed = consume(before, &shown, &gate(), T0 + 2_000);
        assert_eq!(consumed.state, Some(state(2.0, 4.0, false)));
        assert_eq!(consumed.transitions, [Transition::Opened]);
        // Still under pressure: no transition, it was closed and is.
        let consumed = consume(before, &samples(&[(0.0, 9.0)]), &gate(), T0);
        assert_eq!(consumed.state, Some(state(0.0, 9.0, true)));
        assert_eq!(consumed.transitions, []);
    }

    #[test]
    fn a_gap_starts_afresh_at_the_later_sample() {
        // At most 10 s is no gap: the weight is 1 − 2^−5.
        let consumed = fresh(&[(0.0, 32.0), (10.0, 0.0)]);
        assert_eq!(consumed.0, state(10.0, 1.0, false));
        // One millisecond more is: between two samples of a record,
        let consumed = fresh(&[(0.0, 32.0), (10.001, 5.0)]);
        assert_eq!(consumed.0, state(10.001, 5.0, false));
        // and between the last one consumed and the next.
        let before = Some(state(0.0, 32.0, true));
        let shown = samples(&[(10.001, 5.0), (12.001, 3.0)]);
        let consumed = consume(before, &shown, &gate(), T0 + 12_001);
        assert_eq!(consumed.state, Some(state(12.001, 4.0, false)));
        assert_eq!(consumed.transitions, [Transition::Opened]);
    }

    #[test]
    fn a_stale_newest_sample_does_not_veto_and_keeps_the_state() {
        let shown = samples(&[(0.0, 9.0)]);
        let closed = Some(state(0.0, 9.0, true));
        for (now_ms, verdict) in [
            (T0 + 10_000, GateVerdict::Closed),
            (T0 + 10_001, GateVerdict::Stale),
            (u64::MAX, GateVerdict::Stale),
        ] {
            for before in [None, closed] {
                let consumed = consume(before, &shown, &gate(), now_ms);
                assert_eq!((consumed.state, consumed.verdict), (closed, verdict));
            }
        }
    }

    #[test]
    fn samples_from_the_future_are_none() {
        let shown = samples(&[(0.0, 1.0), (10.0, 3.0), (10.001, 9.0), (20.0, 9.0)]);
        let consumed = consume(None, &shown, &gate(), T0);
        assert_eq!(consumed.future, 2);
        assert_eq!(consumed.state.unwrap().last_ms, T0 + 10_000);
        assert_eq!(consumed.verdict, GateVerdict::Open);
        // Nothing else is there: no sample at all.
        let before = Some(state(-1.0, 9.0, true));
        let consumed = consume(before, &shown[2..], &gate(), T0);
        assert_eq!(consumed.state, before);
        assert_eq!(
            (consumed.verdict, consumed.future),
            (GateVerdict::NoSamples, 2)
        );
    }

    #[test]
    fn no_samples() {
        for before in [None, Some(state(0.0, 9.0, true))] {
            let consumed = consume(before, &[], &gate(), T0);
            let expected = Consumed {
                state: before,
                transitions: vec![],
                verdict: GateVerdict::NoSamples,
                future: 0,
            };
            assert_eq!(consumed, expected);
        }
    }

    #[test]
    fn extreme_numbers_stay_numbers() {
        let shown = [
            Sample {
                t_ms: 0,
                waiting: f64::MAX,
            },
            Sample {
                t_ms: 1,
                waiting: 0.0,
            },
            Sample {
                t_ms: 2,
                waiting: f64::MAX,
            },
            Sample {
                t_ms: 9_000,
                waiting: 0.0,
            },
        ];
        let consumed = consume(None, &shown, &gate(), 0);
        let state = consumed.state.unwrap();
        assert!(state.ewma.is_finite() && state.ewma >= 0.0 && state.closed);
        let at_the_end = [Sample {
            t_ms: u64::MAX,
            waiting: 1.0,
        }];
        let consumed = consume(Some(state), &at_the_end, &gate(), u64::MAX);
        assert_eq!(consumed.state.unwrap().ewma, 1.0);
    }

    #[test]
    fn gates_are_told_apart_by_all_four_parameters() {
        let base = gate();
        let max_waiting = NonZeroU32::new(9).unwrap();
        assert_eq!(base, gate());
        for other in [
            GateParams {
                max_waiting,
                ..base
            },
            GateParams {
                half_life_ms: 2_001,
                ..base
            },
            GateParams {
                reopen_ratio: 0.6,
                ..base
            },
            GateParams {
                max_sample_age_ms: 9_999,
                ..base
            },
        ] {
            assert_ne!(base, other);
        }
    }
}
