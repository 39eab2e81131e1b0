//! `external_tokens` against a model that looks at one block at a time, as an engine would.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use selective_kv::contract::evidence::{Evidence, Prompt};
use selective_kv::contract::runs::{Runs, TierList};
use selective_kv::policy::evidence::external_tokens;
use selective_kv::policy::tiers::TierFilter;
use selective_kv::sorted::SortedMap;

/// Names, and whether each filter of [`FILTERS`] lets the tier count.
const TIERS: &[(&str, [bool; 5])] = &[
    ("gpu", [false; 5]),
    ("GPU", [false; 5]),
    ("speculative", [false; 5]),
    ("cpu", [true; 5]),
    ("Cpu@Local", [true; 5]),
    ("cpu@remote", [true, false, true, false, false]),
    ("cpu_1", [true, false, true, false, true]),
    ("storage", [true, false, false, true, true]),
    ("fs@local", [true, false, false, true, true]),
    ("object_store", [true, false, false, true, false]),
    ("p2p", [true, false, true, true, true]),
];

const FILTERS: [&str; 5] = [
    "null",
    "[]",
    r#"[{"medium":"cpu"}]"#,
    r#"[{"medium":"storage"}]"#,
    r#"[{"locality":"local"}]"#,
];

fn permitted(tier: &str, filter: usize) -> bool {
    TIERS
        .iter()
        .any(|(name, by_filter)| *name == tier && by_filter[filter])
}

fn is_gpu(tier: &str) -> bool {
    tier.to_lowercase() == "gpu"
}

/// Block by block: first the GPU prefix, then what can be loaded, until something is missing.
fn model_of_runs(runs: &Runs, filter: usize) -> u64 {
    let mut blocks: Vec<&[String]> = Vec::new();
    for (run, tiers) in runs.iter() {
        for _ in 0..run {
            blocks.push(tiers);
        }
    }
    let mut at = 0;
    while at < blocks.len() && blocks[at].iter().any(|t| is_gpu(t)) {
        at += 1;
    }
    let mut loadable = 0;
    while at < blocks.len() && blocks[at].iter().any(|t| permitted(t, filter)) {
        at += 1;
        loadable += 1;
    }
    loadable
}

fn model_of_counts(tiers: &SortedMap<String, u64>, filter: usize) -> u64 {
    let (mut gpu, mut external) = (0, 0);
    for (tier, blocks) in tiers {
        if is_gpu(tier) && *blocks > gpu {
            gpu = *blocks;
        }
        if permitted(tier, filter) && *blocks > external {
            external = *blocks;
        }
    }
    external.saturating_sub(gpu)
}

fn tier() -> impl Strategy<Value = String> {
    let names: Vec<String> = TIERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    prop::sample::select(names)
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let tiers = prop::collection::btree_set(tier(), 0..4)
        .prop_map(|tiers: BTreeSet<String>| tiers.into_iter().collect::<Vec<_>>());
    let run = (0..5u64, tiers);
    prop_oneof![
        3 => prop::collection::vec(run, 0..10)
            .prop_map(|runs| Prompt::Runs(runs.into_iter().collect())),
        1 => prop::collection::btree_map(tier(), 0..40u64, 0..6)
            .prop_map(|tiers| Prompt::Tiers(tiers.into_iter().collect())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn tokens_are_what_the_block_model_says(
        prompts in prop::collection::vec(prompt(), 1..4),
        block_size in 1..200u32,
        filter in 0..FILTERS.len(),
    ) {
        let expected: u64 = prompts
            .iter()
            .map(|prompt| match prompt {
                Prompt::Runs(runs) => model_of_runs(runs, filter),
                Prompt::Tiers(tiers) => model_of_counts(tiers, filter),
            })
            .map(|blocks| blocks * u64::from(block_size))
            .sum();
        let evidence = Evidence { t_ms: None, block_size, prompts, partial: false };
        let (parsed, skipped) = TierFilter::from_request(FILTERS[filter].as_bytes());
        prop_assert_eq!(skipped, 0);
        prop_assert_eq!(external_tokens(&evidence, &parsed), expected);
    }

    /// Splitting a run in two, or joining equal neighbours, changes nothing.
    #[test]
    fn runs_may_be_cut_anywhere(
        runs in prop::collection::vec((1..6u64, prop::collection::vec(tier(), 0..3)), 1..6),
        filter in 0..FILTERS.len(),
    ) {
        let one = |tiers: &TierList| (1, tiers.clone());
        let single: Vec<(u64, TierList)> = runs
            .iter()
            .flat_map(|(blocks, tiers)| (0..*blocks).map(move |_| one(tiers)))
            .collect();
        let tokens = |runs: Vec<(u64, TierList)>| {
            let runs = runs.into_iter().collect();
            let evidence = Evidence { t_ms: None, block_size: 7, prompts: vec![Prompt::Runs(runs)], partial: false };
            external_tokens(&evidence, &TierFilter::from_request(FILTERS[filter].as_bytes()).0)
        };
        prop_assert_eq!(tokens(runs), tokens(single));
    }
}

proptest! {
    /// Any text is taken, and what it says can only be one of the engine's outcomes.
    #[test]
    fn any_load_tiers_text_is_taken(text in ".{0,80}") {
        let _ = TierFilter::from_request(text.as_bytes());
        let _ = TierFilter::from_request(format!("[{text}]").as_bytes());
    }

    /// A list of JSON values gives what a plain reading of the engine's rules gives.
    #[test]
    fn load_tiers_follow_the_engines_rules(
        entries in prop::collection::vec(
            prop_oneof![
                Just("5".to_owned()),
                Just("null".to_owned()),
                (
                    prop::option::of(prop::sample::select(vec!["null", "\"cpu\"", "\"STORAGE\"", "\"gpu\"", "7", "[]"])),
                    prop::option::of(prop::sample::select(vec!["null", "\"Local\"", "\"remote\"", "\"global\"", "{}"])),
                )
                    .prop_map(|(medium, locality)| {
                        let fields = [("medium", medium), ("locality", locality)];
                        let fields: Vec<String> = fields
                            .iter()
                            .filter_map(|(k, v)| v.map(|v| format!("\"{k}\": {v}")))
                            .collect();
                        format!("{{{}}}", fields.join(", "))
                    }),
            ],
            0..5,
        ),
        tier in tier(),
    ) {
        let raw = format!("[{}]", entries.join(" ,"));
        let (filter, skipped) = TierFilter::from_request(raw.as_bytes());
        let (expected, expected_skipped) = engine(&serde_json::from_str(&raw).unwrap(), &tier);
        prop_assert_eq!(skipped, expected_skipped, "{}", raw);
        let allowed = filter.allows(&selective_kv::policy::tiers::Tier::named(&tier));
        prop_assert_eq!(allowed, expected, "{} {}", raw, tier);
    }
}

/// vLLM's rules on a parsed list, one entry at a time.
fn engine(list: &serde_json::Value, tier: &str) -> (bool, u32) {
    use serde_json::Value;
    let (medium, locality) = match tier {
        "gpu" | "GPU" | "speculative" => return (false, count_skipped(list)),
        "cpu" | "Cpu@Local" => return (true, count_skipped(list)),
        "cpu@remote" => (Some("CPU"), Some("REMOTE")),
        "cpu_1" => (Some("CPU"), None),
        "storage" => (Some("STORAGE"), None),
        "fs@local" => (Some("STORAGE"), Some("LOCAL")),
        "object_store" => (Some("STORAGE"), Some("REMOTE")),
        _ => (None, None),
    };
    let entries = list.as_array().unwrap();
    let valid: Vec<&Value> = entries.iter().filter(|e| is_valid(e)).collect();
    let matches = |entry: &Value, key: &str, has: Option<&str>| match (&entry[key], has) {
        (Value::String(wanted), Some(has)) => wanted.to_uppercase() == has,
        _ => true,
    };
    let allowed = match (entries.is_empty(), valid.is_empty()) {
        (true, _) => false,
        (false, true) => true,
        _ => valid
            .iter()
            .any(|e| matches(e, "medium", medium) && matches(e, "locality", locality)),
    };
    (allowed, count_skipped(list))
}

fn is_valid(entry: &serde_json::Value) -> bool {
    use serde_json::Value;
    let ok = |key: &str, names: [&str; 2]| match &entry[key] {
        Value::Null => true,
        Value::String(name) => names.contains(&name.to_uppercase().as_str()),
        _ => false,
    };
    entry.is_object() && ok("medium", ["CPU", "STORAGE"]) && ok("locality", ["LOCAL", "REMOTE"])
}

fn count_skipped(list: &serde_json::Value) -> u32 {
    let skipped = list
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| !is_valid(e))
        .count();
    u32::try_from(skipped).unwrap()
}
