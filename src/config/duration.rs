//! Durations as an operator writes them: `200ms`, `2s`, `1m`.

use std::ops::RangeInclusive;

/// The longest duration a configuration may state, in milliseconds (24 hours). Far past any use,
/// and small enough that no sum of a time and a duration overflows.
pub const MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// What [`parse_ms`] takes, ms.
pub const RANGE_MS: RangeInclusive<u64> = 1..=MAX_MS;

/// The same for messages.
pub const ALLOWED: &str = "a duration from \"1ms\" to \"1440m\": a whole number with ms, s or m";

/// Milliseconds of a duration: decimal digits and one of `ms`, `s`, `m`, nothing else. Zero,
/// fractions (`1.5s` is `1500ms`), signs, spaces and anything over [`MAX_MS`] are None.
pub fn parse_ms(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let unit_ms: u64 = match text.strip_prefix(digits)? {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    // `u64::from_str` would take a leading plus.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let ms = digits.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    RANGE_MS.contains(&ms).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("200ms", Some(200)),
            ("2s", Some(2_000)),
            ("1m", Some(60_000)),
            ("1ms", Some(1)),
            ("02s", Some(2_000)),
            ("1440m", Some(MAX_MS)),
            ("86400s", Some(MAX_MS)),
            ("86400000ms", Some(MAX_MS)),
            ("1441m", None),
            ("86400001ms", None),
            ("0ms", None),
            ("0s", None),
            ("1.5s", None),
            ("-1s", None),
            ("+1s", None),
            ("1e3ms", None),
            ("2", None),
            ("s", None),
            ("", None),
            ("2 s", None),
            (" 2s", None),
            ("2s ", None),
            ("2S", None),
            ("2h", None),
            ("2sm", None),
            ("2sms", None),
            ("2ss", None),
            ("1m30s", None),
            ("٢s", None),
            ("18446744073709551615ms", None),
            ("18446744073709551616ms", None),
            ("18446744073709551615m", None),
        ] {
            assert_eq!(parse_ms(text), expected, "{text:?}");
        }
    }
}
