//! Identity of tiers, and which of them a request's `kv_load_tiers` permits.
//!
//! The filter is vLLM's `TierFilter` (offloading tiering manager, 0.27 to 0.33): a list of
//! `{"medium": …, "locality": …}`, of which one must match; the primary CPU tier is never
//! filtered.

mod request;

/// `medium` of a tier, as vLLM has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    Cpu,
    Storage,
}

/// `locality` of a tier, as vLLM has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locality {
    Local,
    Remote,
}

/// What a tier's name says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    Gpu,
    /// llm-d's guess about blocks on their way; held nowhere.
    Speculative,
    /// vLLM's own CPU tier, which no filter stops: `cpu`, `cpu@local`.
    Primary,
    /// Any other external tier. A property it does not have passes every filter on it.
    Secondary {
        medium: Option<Medium>,
        locality: Option<Locality>,
    },
}

impl Tier {
    /// Case-insensitive. A suffix `@local` or `@remote` states the locality; `gpu` and
    /// `speculative` have none, so with a suffix they are names like any other.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let (base, stated) = if let Some(base) = name.strip_suffix("@local") {
            (base, Some(Locality::Local))
        } else if let Some(base) = name.strip_suffix("@remote") {
            (base, Some(Locality::Remote))
        } else {
            (name.as_str(), None)
        };
        let (medium, usual) = match (base, stated) {
            ("gpu", None) => return Self::Gpu,
            ("speculative", None) => return Self::Speculative,
            ("cpu", None | Some(Locality::Local)) => return Self::Primary,
            ("cpu", _) => (Some(Medium::Cpu), None),
            ("storage" | "fs" | "obj" | "disk" | "nvme", _) => (Some(Medium::Storage), None),
            ("shared_storage" | "object_store", _) => {
                (Some(Medium::Storage), Some(Locality::Remote))
            }
            (other, _) if other.starts_with("cpu_") => (Some(Medium::Cpu), None),
            _ => (None, None),
        };
        Self::Secondary {
            medium,
            locality: stated.or(usual),
        }
    }
}

/// Tiers that have a metric label of their own: a record's writer may name any number of others.
const LABELS: [&str; 10] = [
    "cpu",
    "storage",
    "fs",
    "obj",
    "disk",
    "nvme",
    "shared_storage",
    "object_store",
    "p2p",
    "kvcr",
];

/// The metric label of a tier: its name without the locality, or `other`.
pub fn label(name: &str) -> &'static str {
    let name = name.to_ascii_lowercase();
    let base = name.split('@').next().unwrap_or_default();
    let known = LABELS.iter().find(|label| **label == base);
    known.copied().unwrap_or("other")
}

/// An object store, or a tier of another machine: storing there takes longer (vLLM's tiering
/// backpressure has other defaults for them). A stated locality wins.
pub fn is_remote(name: &str) -> bool {
    match Tier::named(name) {
        Tier::Secondary { locality, .. } => match locality {
            Some(locality) => locality == Locality::Remote,
            None => name.eq_ignore_ascii_case("obj"),
        },
        Tier::Gpu | Tier::Speculative | Tier::Primary => false,
    }
}

/// The secondary tiers a request permits: the set of its matchers. There are only nine different
/// ones, so the longest list takes no memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TierFilter {
    /// [`Matcher::bit`]s.
    matchers: u16,
}

impl TierFilter {
    /// No restriction.
    pub const ALL: Self = Self { matchers: 1 };
    /// The primary tier alone, as an empty list says.
    pub const PRIMARY_ONLY: Self = Self { matchers: 0 };

    /// From the raw JSON text of a request's `kv_load_tiers`, by the engine's own rules, and how
    /// many entries the engine skips (a value that is neither a list nor `null` counts as one).
    ///
    /// Takes what Python's decoder takes: `NaN`, lone surrogates, duplicate keys (the last one
    /// counts). Text that is no JSON restricts nothing; the engine refuses that request.
    #[must_use]
    pub fn from_request(raw_json: &[u8]) -> (Self, u32) {
        request::parse(raw_json)
    }

    /// If blocks in this tier count as loadable. Not those in `gpu`, and not `speculative` ones.
    #[must_use]
    pub fn allows(&self, tier: &Tier) -> bool {
        match *tier {
            Tier::Gpu | Tier::Speculative => false,
            Tier::Primary => true,
            Tier::Secondary { medium, locality } => MATCHERS.iter().any(|matcher| {
                self.matchers & matcher.bit() != 0
                    && agree(matcher.medium, medium)
                    && agree(matcher.locality, locality)
            }),
        }
    }

    /// A filter of these matchers alone; none of them permits no secondary tier.
    #[must_use]
    pub fn of(matchers: impl IntoIterator<Item = (Option<Medium>, Option<Locality>)>) -> Self {
        let matchers = matchers.into_iter();
        matchers.fold(Self::PRIMARY_ONLY, |filter, (medium, locality)| {
            filter.with(Matcher { medium, locality })
        })
    }

    /// Appends it as a request writes it: compact, in lower case, each matcher once.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut separator: &[u8] = b"";
        out.push(b'[');
        for matcher in MATCHERS.iter().filter(|m| self.matchers & m.bit() != 0) {
            out.extend_from_slice(separator);
            separator = b",";
            out.extend_from_slice(match (matcher.medium, matcher.locality) {
                (None, None) => b"{}",
                (None, Some(Locality::Local)) => br#"{"locality":"local"}"#,
                (None, Some(Locality::Remote)) => br#"{"locality":"remote"}"#,
                (Some(Medium::Cpu), None) => br#"{"medium":"cpu"}"#,
                (Some(Medium::Cpu), Some(Locality::Local)) => {
                    br#"{"medium":"cpu","locality":"local"}"#
                }
                (Some(Medium::Cpu), Some(Locality::Remote)) => {
                    br#"{"medium":"cpu","locality":"remote"}"#
                }
                (Some(Medium::Storage), None) => br#"{"medium":"storage"}"#,
                (Some(Medium::Storage), Some(Locality::Local)) => {
                    br#"{"medium":"storage","locality":"local"}"#
                }
                (Some(Medium::Storage), Some(Locality::Remote)) => {
                    br#"{"medium":"storage","locality":"remote"}"#
                }
            });
        }
        out.push(b']');
    }

    const fn with(self, matcher: Matcher) -> Self {
        Self {
            matchers: self.matchers | matcher.bit(),
        }
    }
}

/// Equal, or one of them says nothing.
fn agree<T: PartialEq>(wanted: Option<T>, has: Option<T>) -> bool {
    match (wanted, has) {
        (Some(wanted), Some(has)) => wanted == has,
        _ => true,
    }
}

/// One entry of the list; `None` = any.
#[derive(Clone, Copy)]
struct Matcher {
    medium: Option<Medium>,
    locality: Option<Locality>,
}

/// Every matcher there is.
const MATCHERS: [Matcher; 9] = {
    use Locality::{Local, Remote};
    use Medium::{Cpu, Storage};
    const fn of(medium: Option<Medium>, locality: Option<Locality>) -> Matcher {
        Matcher { medium, locality }
    }
    [
        of(None, None),
        of(None, Some(Local)),
        of(None, Some(Remote)),
        of(Some(Cpu), None),
        of(Some(Cpu), Some(Local)),
        of(Some(Cpu), Some(Remote)),
        of(Some(Storage), None),
        of(Some(Storage), Some(Local)),
        of(Some(Storage), Some(Remote)),
    ]
};

impl Matcher {
    const fn bit(self) -> u16 {
        use Locality::{Local, Remote};
        use Medium::{Cpu, Storage};
        match (self.medium, self.locality) {
            (None, None) => 1,
            (None, Some(Local)) => 1 << 1,
            (None, Some(Remote)) => 1 << 2,
            (Some(Cpu), None) => 1 << 3,
            (Some(Cpu), Some(Local)) => 1 << 4,
            (Some(Cpu), Some(Remote)) => 1 << 5,
            (Some(Storage), None) => 1 << 6,
            (Some(Storage), Some(Local)) => 1 << 7,
            (Some(Storage), Some(Remote)) => 1 << 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Locality::{Local, Remote};
    use super::Medium::{Cpu, Storage};
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn secondary(medium: Option<Medium>, locality: Option<Locality>) -> Tier {
        Tier::Secondary { medium, locality }
    }

    #[test]
    fn what_a_name_says() {
        let table = [
            ("gpu", Tier::Gpu),
            ("GPU", Tier::Gpu),
            ("speculative", Tier::Speculative),
            ("cpu", Tier::Primary),
            ("Cpu@Local", Tier::Primary),
            ("cpu@remote", secondary(Some(Cpu), Some(Remote))),
            ("cpu_tier1", secondary(Some(Cpu), None)),
            ("CPU_TIER2@LOCAL", secondary(Some(Cpu), Some(Local))),
            ("storage", secondary(Some(Storage), None)),
            ("fs", secondary(Some(Storage), None)),
            ("obj", secondary(Some(Storage), None)),
            ("disk", secondary(Some(Storage), None)),
            ("nvme", secondary(Some(Storage), None)),
            ("shared_storage", secondary(Some(Storage), Some(Remote))),
            ("object_store", secondary(Some(Storage), Some(Remote))),
            (
                "shared_storage@local",
                secondary(Some(Storage), Some(Local)),
            ),
            ("STORAGE@remote", secondary(Some(Storage), Some(Remote))),
            ("p2p", secondary(None, None)),
            ("kvcr@remote", secondary(None, Some(Remote))),
            ("cpux", secondary(None, None)),
            ("cpu ", secondary(None, None)),
            ("cpu@", secondary(None, None)),
            ("cpu@host", secondary(None, None)),
            ("cpu@local@remote", secondary(None, Some(Remote))),
            ("gpu@local", secondary(None, Some(Local))),
            ("@local", secondary(None, Some(Local))),
            ("", secondary(None, None)),
        ];
        for (name, tier) in table {
            assert_eq!(Tier::named(name), tier, "{name}");
        }
    }

    #[test]
    fn labels_and_remote_tiers() {
        for (name, of, remote) in [
            ("cpu", "cpu", false),
            ("CPU@remote", "cpu", true),
            ("fs", "fs", false),
            ("fs@remote", "fs", true),
            ("Obj", "obj", true),
            ("obj@local", "obj", false),
            ("object_store", "object_store", true),
            ("shared_storage@local", "shared_storage", false),
            ("p2p", "p2p", false),
            ("cpu_2", "other", false),
            ("", "other", false),
        ] {
            assert_eq!((label(name), is_remote(name)), (of, remote), "{name}");
        }
    }

    #[test]
    fn which_tiers_a_filter_lets_count() {
        let names = [
            "gpu",
            "speculative",
            "cpu",
            "cpu@remote",
            "cpu_2",
            "storage",
            "fs@local",
            "object_store",
            "p2p",
        ];
        let from = |raw: &str| TierFilter::from_request(raw.as_bytes()).0;
        // One column per name.
        let table = [
            (TierFilter::ALL, "001111111"),
            (TierFilter::PRIMARY_ONLY, "001000000"),
            (from(r#"[{"medium":"cpu"}]"#), "001110001"),
            (from(r#"[{"medium":"storage"}]"#), "001001111"),
            (from(r#"[{"locality":"local"}]"#), "001011101"),
            (from(r#"[{"locality":"remote"}]"#), "001111011"),
            (
                from(r#"[{"medium":"storage","locality":"local"}]"#),
                "001001101",
            ),
            (
                from(r#"[{"medium":"cpu","locality":"local"}]"#),
                "001010001",
            ),
            (
                from(
                    r#"[{"medium":"storage","locality":"local"},{"medium":"cpu","locality":"remote"}]"#,
                ),
                "001111101",
            ),
        ];
        for (filter, expected) in table {
            let got: String = names
                .iter()
                .map(|n| {
                    if filter.allows(&Tier::named(n)) {
                        '1'
                    } else {
                        '0'
                    }
                })
                .collect();
            assert_eq!(got, expected, "{filter:?}");
        }
    }

    #[test]
    fn every_filter_reads_back_as_it_was_written() {
        for matchers in 0..512 {
            let filter = TierFilter { matchers };
            let mut text = Vec::new();
            filter.write_json(&mut text);
            assert_eq!(TierFilter::from_request(&text), (filter, 0));
        }
        let mut text = Vec::new();
        let filter = TierFilter::of([
            (Some(Storage), Some(Local)),
            (None, Some(Remote)),
            (Some(Storage), Some(Local)),
        ]);
        filter.write_json(&mut text);
        let expected = r#"[{"locality":"remote"},{"medium":"storage","locality":"local"}]"#;
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(TierFilter::of([]), TierFilter::PRIMARY_ONLY);
    }

    #[test]
    fn every_matcher_has_a_bit_of_its_own() {
        let bits = MATCHERS.iter().fold(0, |bits, m| bits | m.bit());
        assert_eq!(bits, 0b1_1111_1111);
        assert_eq!(TierFilter::ALL, TierFilter::PRIMARY_ONLY.with(MATCHERS[0]));
    }
}
