//! Which release of vLLM this engine stands in for.

/// A release such as `0.32.0`; what follows the third number is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    pub const MAX_OFFLOAD_TOKENS: Self = Self(0, 23, 0);
    pub const EVENTS_AS_MAPS: Self = Self(0, 24, 0);
    /// Storage tiers announced by two names; the replies of replay gained the topic.
    pub const FS_AND_OBJ: Self = Self(0, 26, 0);
    pub const REPLAY_WITH_TOPIC: Self = Self(0, 26, 0);
    pub const KV_LOAD_TIERS: Self = Self(0, 27, 0);
    pub const FIXED_NONE_HASH: Self = Self(0, 29, 0);
    pub const SCALE_OUT_FLAG: Self = Self(0, 30, 0);
    pub const MAX_LOAD_TOKENS: Self = Self(0, 31, 0);
    pub const TAGGED_EXTRA_KEYS: Self = Self(0, 31, 0);
    pub const KV_EVENT_SOURCES: Self = Self(0, 31, 0);
    /// Of BlockStored, its type among them.
    pub const SIXTEEN_FIELDS: Self = Self(0, 33, 0);

    /// Whether both are of one minor release.
    pub fn minor_is(self, other: Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }

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
