//! What an engine honours, by its version (FACTS: vLLM's `OffloadingConnector`). What it does not
//! know it ignores without a word, so a decision must not pretend.

/// A member of `kv_transfer_params` that came with a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    MaxLoadTokens,
    MaxOffloadTokens,
    KvLoadTiers,
}

impl Feature {
    pub const ALL: [Self; 3] = [
        Self::MaxLoadTokens,
        Self::MaxOffloadTokens,
        Self::KvLoadTiers,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxLoadTokens => "max_load_tokens",
            Self::MaxOffloadTokens => "max_offload_tokens",
            Self::KvLoadTiers => "kv_load_tiers",
        }
    }

    /// The first release with it.
    const fn since(self) -> Release {
        Release {
            major: 0,
            minor: match self {
                Self::MaxLoadTokens => 31,
                Self::MaxOffloadTokens => 23,
                Self::KvLoadTiers => 27,
            },
        }
    }

    /// For messages.
    pub const fn since_text(self) -> &'static str {
        match self {
            Self::MaxLoadTokens => "0.31",
            Self::MaxOffloadTokens => "0.23",
            Self::KvLoadTiers => "0.27",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release {
    major: u32,
    minor: u32,
}

/// An engine, as far as somebody has said what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Engine(Option<Release>);

impl Engine {
    /// Of which nothing is known: it is taken to honour everything.
    pub const UNKNOWN: Self = Self(None);

    /// From `engine` and `version` of a queue record.
    ///
    /// Versions that say nothing are unknown: another engine's, one that does not begin with two
    /// numbers, and `0.1.dev…`, which is what a build from a source tree without tags calls itself.
    pub fn known(engine: Option<&str>, version: Option<&str>) -> Self {
        let vllm = engine.is_none_or(|engine| engine == "vllm");
        let release = version.and_then(release).filter(|_| vllm);
        Self(release)
    }

    pub fn ignores(self, feature: Feature) -> bool {
        self.0.is_some_and(|release| release < feature.since())
    }
}

/// Major and minor number; what follows tells nothing that matters here.
fn release(version: &str) -> Option<Release> {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    let major = number(parts.next()?)?;
    let second = parts.next()?;
    let digits = second
        .find(|c: char| !c.is_ascii_digit())
        .and_then(|end| second.get(..end))
        .unwrap_or(second);
    let minor = number(digits)?;
    let untagged = parts.next().is_some_and(|part| part.starts_with("dev"));
    (!(untagged && major == 0 && minor <= 1)).then_some(Release { major, minor })
}

fn number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_a_version_ignores() {
        use Feature::{KvLoadTiers, MaxLoadTokens, MaxOffloadTokens};
        const ALL: &[Feature] = &[MaxLoadTokens, MaxOffloadTokens, KvLoadTiers];
        let table: &[(&str, &[Feature])] = &[
            ("0.22.1", ALL),
            ("0.23.0", &[MaxLoadTokens, KvLoadTiers]),
            ("0.26.9", &[MaxLoadTokens, KvLoadTiers]),
            ("0.27.0", &[MaxLoadTokens]),
            ("0.30.0", &[MaxLoadTokens]),
            ("0.30.1.dev5+g1234", &[MaxLoadTokens]),
            ("v0.30.0", &[MaxLoadTokens]),
            ("0.31.0", &[]),
            ("0.31.0rc1", &[]),
            ("0.31rc1", &[]),
            ("0.33.0+cu129", &[]),
            ("1.0.0", &[]),
            ("0.100.0", &[]),
            ("0.9.2", ALL),
            ("0.1.0", ALL),
            // Nothing is known.
            ("0.1.dev1+g1234567", &[]),
            ("dev", &[]),
            ("", &[]),
            ("0", &[]),
            ("0.", &[]),
            (".30", &[]),
            ("0.x", &[]),
            ("-1.2", &[]),
            ("0.99999999999999999999", &[]),
        ];
        for (version, ignored) in table {
            for feature in Feature::ALL {
                for engine in [None, Some("vllm")] {
                    let engine = Engine::known(engine, Some(version));
                    let expected = ignored.contains(&feature);
                    assert_eq!(engine.ignores(feature), expected, "{version} {feature:?}");
                }
                let other = Engine::known(Some("sglang"), Some(version));
                assert!(!other.ignores(feature), "{version}");
            }
        }
        assert_eq!(Engine::known(Some("vllm"), None), Engine::UNKNOWN);
    }
}
