//! Cache tiers and `kv_load_tiers` (vLLM's TierFilter, the same from 0.27 to 0.33).

use crate::events;
use crate::json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Cpu,
    Storage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    Local,
    Remote,
}

/// A secondary tier as an operator configures it: `fs`, `obj`, `p2p`, `kvcr` or `example`, with
/// `:LOCAL` or `:REMOTE` behind it if its locality is stated, and `+events` at the end if it announces
/// its blocks (`enable_kv_events`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierKind {
    /// Its type in lower case: the name that evidence uses.
    pub name: String,
    pub medium: Option<Medium>,
    pub locality: Option<Locality>,
    pub announces: bool,
}

impl TierKind {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (tier, announces) = match text.strip_suffix("+events") {
            Some(tier) => (tier, true),
            None => (text, false),
        };
        let (name, locality) = match tier.split_once(':') {
            Some((name, locality)) => (name, Some(locality)),
            None => (tier, None),
        };
        let medium = match name {
            "fs" | "obj" => Some(Medium::Storage),
            "example" => Some(Medium::Cpu),
            "p2p" | "kvcr" => None,
            _ => return Err(format!("tier \"{text}\": fs, obj, p2p, kvcr or example")),
        };
        let locality = match locality {
            None => None,
            Some("LOCAL") => Some(Locality::Local),
            Some("REMOTE") => Some(Locality::Remote),
            Some(_) => return Err(format!("tier \"{text}\": locality is LOCAL or REMOTE")),
        };
        Ok(Self {
            name: name.into(),
            medium,
            locality,
            announces,
        })
    }

    /// The medium of its events, if it has any.
    pub fn announced_as(&self) -> Option<events::Medium> {
        let object_store = self.name == "obj";
        let storage = self.medium == Some(Medium::Storage);
        (self.announces && storage).then_some(events::Medium::Storage { object_store })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Matcher {
    medium: Option<Medium>,
    locality: Option<Locality>,
}

/// Which secondary tiers a request may load from. The primary tier (CPU) is never filtered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TierFilter {
    #[default]
    All,
    /// Any of these; none of them is no secondary tier.
    Any(AnyOf),
}

/// The entries that the engine understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnyOf(Vec<Matcher>);

impl TierFilter {
    /// What the engine skips is told in `warnings`.
    pub fn parse(raw: &Value, warnings: &mut Vec<String>) -> Self {
        let Some(entries) = raw.as_array() else {
            warnings.push(format!(
                "kv_load_tiers must be a list, got {}; ignoring",
                raw.repr()
            ));
            return Self::All;
        };
        let matchers: Vec<_> = entries
            .iter()
            .filter_map(|entry| {
                let matcher = Matcher::parse(entry);
                if matcher.is_none() {
                    warnings.push(format!(
                        "kv_load_tiers entry {} is invalid; skipping",
                        entry.repr()
                    ));
                }
                matcher
            })
            .collect();
        if matchers.is_empty() && !entries.is_empty() {
            Self::All
        } else {
            Self::Any(AnyOf(matchers))
        }
    }

    pub fn allows(&self, tier: &TierKind) -> bool {
        match self {
            Self::All => true,
            Self::Any(AnyOf(matchers)) => matchers.iter().any(|m| m.matches(tier)),
        }
    }
}

impl Matcher {
    fn parse(entry: &Value) -> Option<Self> {
        entry.as_object()?;
        let word = |key| match entry.given(key) {
            None => Some(None),
            Some(value) => value.as_str().map(|word| Some(word.to_uppercase())),
        };
        let medium = match word("medium")?.as_deref() {
            None => None,
            Some("CPU") => Some(Medium::Cpu),
            Some("STORAGE") => Some(Medium::Storage),
            Some(_) => return None,
        };
        let locality = match word("locality")?.as_deref() {
            None => None,
            Some("LOCAL") => Some(Locality::Local),
            Some("REMOTE") => Some(Locality::Remote),
            Some(_) => return None,
        };
        Some(Self { medium, locality })
    }

    fn matches(self, tier: &TierKind) -> bool {
        fn fits<T: PartialEq>(wanted: Option<T>, has: Option<T>) -> bool {
            wanted.is_none() || has.is_none() || wanted == has
        }
        fits(self.medium, tier.medium) && fits(self.locality, tier.locality)
    }
}
