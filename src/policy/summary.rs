//! The one-line summary of a decision, for access logs (DESIGN 10).

use super::decision::{LoadDecision, OffloadDecision};
use super::reason::Reason;
use crate::decimal;
use crate::json_value::number;

/// `load=disable;reason=queue_pressure;offload=preserve;tokens=1536;ewma=9.1;endpoint=10.0.0.7:8000`:
/// the first three always, the others when known. `reason` is the load's.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    pub load: LoadDecision,
    pub offload: OffloadDecision,
    /// The tier under pressure for which the offload was refused.
    pub tier: Option<&'a str>,
    /// Of waiting requests.
    pub ewma: Option<f64>,
    pub endpoint: Option<&'a str>,
}

impl Summary<'_> {
    pub fn text(&self) -> String {
        /// Of most of them, so that the text does not grow.
        const BYTES: usize = 160;
        let mut text = String::with_capacity(BYTES);
        let mut push = |name: &str, value: &str| {
            text.push_str(name);
            text.push_str(value);
        };
        let reason = self.load.reason;
        push("load=", self.load.action.as_str());
        push(";reason=", reason.as_str());
        push(";offload=", self.offload.action.as_str());
        // A reason that stands for the whole request is no refusal of an offload.
        let why = self.offload.reason;
        if !(why == Reason::Policy || why == reason || why.is_request_wide()) {
            push(";offload_reason=", why.as_str());
        }
        if let Some(tier) = self.tier {
            push(";tier=", tier);
        }
        if let Some(tokens) = self.load.tokens {
            push(";tokens=", &decimal::text(tokens));
        }
        if let Some(ewma) = self.ewma {
            push(";ewma=", &plain(ewma));
        }
        if let Some(endpoint) = self.endpoint {
            push(";endpoint=", endpoint);
        }
        text
    }
}

/// A finite number without an exponent.
fn plain(x: f64) -> String {
    /// 2⁵³: integers up to here are exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked
    if x.is_sign_positive() && x <= EXACT && x.fract() == 0.0 {
        return decimal::text(x as u64);
    }
    let text = number(x);
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text.strip_suffix(".0").unwrap_or(&text).to_owned();
    };
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    match exponent.strip_prefix('-') {
        Some(exponent) => {
            let zeros = "0".repeat(exponent.parse().unwrap_or(1_usize).saturating_sub(1));
            format!("{sign}0.{zeros}{whole}{fraction}")
        }
        // Beyond 10^16 there is no fraction.
        None => {
            let digits = exponent.trim_start_matches('+').parse().unwrap_or(0_usize);
            let zeros = "0".repeat(digits.saturating_sub(fraction.len()));
            format!("{sign}{whole}{fraction}{zeros}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::reason::Action;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn all_and_least() {
        let offload = OffloadDecision {
            action: Action::Preserve,
            reason: Reason::Policy,
        };
        let all = Summary {
            load: LoadDecision {
                action: Action::Disable,
                reason: Reason::QueuePressure,
                tokens: Some(1536),
            },
            offload,
            tier: None,
            ewma: Some(9.1),
            endpoint: Some("10.0.0.7:8000"),
        };
        assert_eq!(
            all.text(),
            "load=disable;reason=queue_pressure;offload=preserve;tokens=1536;ewma=9.1;endpoint=10.0.0.7:8000"
        );
        // Why an offload is off, where the load's reason does not say it.
        let slow = OffloadDecision {
            action: Action::Disable,
            reason: Reason::CascadeBackpressure,
        };
        let refused = Summary {
            offload: slow,
            tier: Some("fs"),
            ..all
        };
        assert_eq!(
            refused.text(),
            "load=disable;reason=queue_pressure;offload=disable;offload_reason=cascade_backpressure;\
             tier=fs;tokens=1536;ewma=9.1;endpoint=10.0.0.7:8000"
        );
        let pressed = OffloadDecision {
            action: Action::Disable,
            reason: Reason::QueuePressure,
        };
        let pressed = Summary {
            offload: pressed,
            ..all
        };
        assert_eq!(
            pressed.text(),
            "load=disable;reason=queue_pressure;offload=disable;tokens=1536;ewma=9.1;endpoint=10.0.0.7:8000"
        );
        // The load was edited before the body broke.
        let cut = Summary {
            offload: OffloadDecision::request_wide(Reason::NotJson),
            tier: None,
            ..all
        };
        assert_eq!(
            cut.text(),
            "load=disable;reason=queue_pressure;offload=preserve;tokens=1536;ewma=9.1;endpoint=10.0.0.7:8000"
        );
        let least = Summary {
            load: LoadDecision::request_wide(Reason::NotJson),
            offload: OffloadDecision::request_wide(Reason::NotJson),
            tier: None,
            ewma: None,
            endpoint: None,
        };
        assert_eq!(
            least.text(),
            "load=preserve;reason=not_json;offload=preserve"
        );
    }

    #[test]
    fn numbers_are_written_without_exponents() {
        let sum = 0.1 + 0.2;
        for x in [
            0.0,
            -0.0,
            9.0,
            9.1,
            sum,
            1e-5,
            1e-7,
            -1.5e-9,
            3.25e-300,
            5e-324,
            1e15,
            1e16,
            1.5e17,
            1_234_567_890_123_456_789.0,
            f64::MAX,
        ] {
            assert_eq!(plain(x), format!("{x}"));
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    proptest::proptest! {
        /// As short as core's. Of two that are equally near, core may take the other one.
        #[test]
        fn numbers_are_read_again(bits: u64) {
            let x = f64::from_bits(bits);
            if x.is_finite() {
                let (ours, cores) = (plain(x), format!("{x}"));
                proptest::prop_assert_eq!(ours.len(), cores.len(), "{} {}", ours, cores);
                proptest::prop_assert!(!ours.contains('e') && ours.parse() == Ok(x), "{}", ours);
            }
        }
    }
}
