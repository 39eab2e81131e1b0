//! What holds for any history: it does not matter how often or in which pieces a gate is shown its
//! samples, and the EWMA stays between them.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::num::NonZeroU32;

use proptest::prelude::*;
use selective_kv::contract::queue::Sample;
use selective_kv::policy::gate::{GateParams, GateState, consume};

const T0: u64 = 1_800_000_000_000;

fn gates() -> impl Strategy<Value = GateParams> {
    let max = (1..20u32).prop_map(|max| NonZeroU32::new(max).unwrap());
    (max, 1..10_000u64, 0.01..=1.0f64, 1..20_000u64).prop_map(
        |(max_waiting, half_life_ms, reopen_ratio, max_sample_age_ms)| GateParams {
            max_waiting,
            half_life_ms,
            reopen_ratio,
            max_sample_age_ms,
        },
    )
}

/// Strictly ascending, with gaps now and then.
fn histories() -> impl Strategy<Value = Vec<Sample>> {
    let after = prop_oneof![8 => 1..3_000u64, 1 => 1..40_000u64];
    let waiting = prop_oneof![8 => (0..30u8).prop_map(f64::from), 1 => 0.0..1e300];
    prop::collection::vec((after, waiting), 0..32).prop_map(|steps| {
        let mut t_ms = T0;
        let sample = |(after_ms, waiting)| {
            t_ms += after_ms;
            Sample { t_ms, waiting }
        };
        steps.into_iter().map(sample).collect()
    })
}

/// Most that rounding may make of a difference, as a share of the largest sample.
const ROUNDING: f64 = 1e-12;

/// The gate after the last sample, by the text of DESIGN 6 and nothing else; and whether no EWMA
/// came so near a threshold that its last digit decided.
fn naive(samples: &[Sample], gate: &GateParams) -> (Option<(f64, bool)>, bool) {
    let mut state: Option<(f64, bool)> = None;
    let mut clear = true;
    let most = samples.iter().map(|s| s.waiting).fold(0.0, f64::max);
    let max = f64::from(gate.max_waiting.get());
    for (i, sample) in samples.iter().enumerate() {
        let passed_ms = i
            .checked_sub(1)
            .map(|before| sample.t_ms - samples[before].t_ms);
        let (ewma, closed) = match (state, passed_ms) {
            (Some((ewma, closed)), Some(ms)) if ms <= gate.max_sample_age_ms => {
                let half_lives = ms as f64 / gate.half_life_ms as f64;
                let weight = 1.0 - (-std::f64::consts::LN_2 * half_lives).exp();
                (ewma + weight * (sample.waiting - ewma), closed)
            }
            _ => (sample.waiting, false),
        };
        let closed = match closed {
            true => ewma > gate.reopen_ratio * max,
            false => ewma >= max,
        };
        let near = |at: f64| (ewma - at).abs() <= most * ROUNDING;
        clear &= !near(max) && !near(max * gate.reopen_ratio);
        state = Some((ewma, closed));
    }
    (state, clear)
}

proptest! {
    #[test]
    fn any_pieces_give_one_state(
        gate in gates(),
        samples in histories(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let now_ms = samples.last().map_or(T0, |last| last.t_ms);
        let whole = consume(None, &samples, &gate, now_ms);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(samples.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(samples.len());
        let mut state: Option<GateState> = None;
        let mut transitions = Vec::new();
        for cut in cuts {
            // Each time the whole record so far, most of it old news.
            let consumed = consume(state, &samples[..cut], &gate, now_ms);
            state = consumed.state;
            transitions.extend(consumed.transitions);
        }
        prop_assert_eq!(state, whole.state);
        prop_assert_eq!(transitions, whole.transitions);
        let again = consume(state, &samples, &gate, now_ms);
        prop_assert_eq!(again.state, state);
        prop_assert_eq!(again.transitions, vec![]);
    }

    #[test]
    fn as_the_text_says(gate in gates(), samples in histories()) {
        let now_ms = samples.last().map_or(T0, |last| last.t_ms);
        let state = consume(None, &samples, &gate, now_ms).state;
        let (naive, clear) = naive(&samples, &gate);
        prop_assert_eq!(state.is_some(), naive.is_some());
        if let (Some(state), Some((ewma, closed))) = (state, naive) {
            let most = samples.iter().map(|s| s.waiting).fold(0.0, f64::max);
            prop_assert!((state.ewma - ewma).abs() <= most * ROUNDING);
            prop_assert!((0.0..=most).contains(&state.ewma));
            prop_assert!(!clear || state.closed == closed);
        }
    }
}
