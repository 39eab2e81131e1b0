//! Which release of vLLM this engine stands in for.

/// A release such as `0.32.0`; what follows the third number is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    pub const MAX_OFFLOAD_TOKENS: Self = Self(0, 23, 0);
    pub const KV_LOAD_TIERS: Self = Self(0, 27, 0);
    pub const SCALE_OUT_FLAG: Self = Self(0, 30, 0);
    pub const MAX_LOAD_TOKENS: Self = Self(0, 31, 0);

    /// A version nobody can read counts as the newest.
    pub fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        match (
            numbers.next().flatten(),
            numbers.next().flatten(),
            numbers.next().flatten(),
        ) {
            (Some(major), Some(minor), patch) => Self(major, minor, patch.unwrap_or(0)),
            _ => Self(u32::MAX, 0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_releases() {
        for (version, loads) in [
            ("0.30.9", false),
            ("0.31.0", true),
            ("0.31.0rc1+cpu", true),
            ("0.9.9", false),
            ("1.0", true),
            ("dev", true),
        ] {
            assert_eq!(
                Release::of(version) >= Release::MAX_LOAD_TOKENS,
                loads,
                "{version}"
            );
        }
    }
}
