//! The README's tables name what there is: every key, every reason, and links that lead somewhere.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use selective_kv::policy::config::PolicySet;
use selective_kv::policy::reason::Reason;
use selective_kv::policy::request::SkipReason;
use selective_kv::scorer::config::ScorerConfig;
use selective_kv::scorer::prefetch::{Answered, PrefetchResult};
use selective_kv::scorer::tokenize::Tokenized;

const README: &str = include_str!("../README.md");

/// The text under a heading, up to the next one.
fn section(heading: &str) -> &'static str {
    let (_, rest) = README
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading:?}"));
    rest.split("\n## ").next().unwrap()
}

/// What stands in backquotes in the first column of a section's table.
fn first_column(section: &str) -> BTreeSet<&str> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap()))
        .collect()
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The keys that an unknown key's error lists.
fn allowed(error: &str) -> BTreeSet<&str> {
    let (_, keys) = error.split_once("allowed are ").expect("a list of keys");
    keys.split(", ").collect()
}

#[test]
fn every_key_of_the_policy_is_in_its_table_and_no_other() {
    let error = PolicySet::parse(br#"{"?": 1}"#).unwrap_err().to_string();
    let table = first_column(section("Configuration of the policy"));
    assert_eq!(table, allowed(&error));
}

#[test]
fn every_key_of_the_scorer_is_in_its_table_and_no_other() {
    let error = ScorerConfig::parse(br#"{"?": 1}"#).unwrap_err().to_string();
    let table = first_column(section("Configuration of the scorer"));
    assert_eq!(table, allowed(&error));
}

#[test]
fn every_key_of_evidence_is_in_its_table_and_no_other() {
    let error = ScorerConfig::parse(br#"{"evidence": {"?": 1}}"#);
    let table = first_column(section("Configuration of evidence"));
    assert_eq!(table, allowed(&error.unwrap_err().to_string()));
}

#[test]
fn every_key_and_result_of_prefetch_is_in_its_manual() {
    let manual = include_str!("../docs/kv-prefetch-agent.md");
    let (_, side) = manual.split_once("\n## The scorer's side\n").unwrap();
    let side = side.split("\n## ").next().unwrap();
    let error = ScorerConfig::parse(br#"{"evidence": {"prefetch": {"?": 1}}}"#);
    assert_eq!(first_column(side), allowed(&error.unwrap_err().to_string()));
    let named: BTreeSet<_> = quoted(side).collect();
    for result in PrefetchResult::labels() {
        assert!(named.contains(result), "{result}");
    }
    for result in Answered::ALL.map(Answered::as_str) {
        assert!(named.contains(result), "{result}");
    }
}

#[test]
fn every_reason_is_named() {
    let named: BTreeSet<_> = quoted(section("What you see")).collect();
    let decided = Reason::ALL.map(Reason::as_str);
    let skipped = SkipReason::ALL.map(SkipReason::as_str);
    for reason in decided.into_iter().chain(skipped) {
        assert!(named.contains(reason), "{reason}");
    }
}

#[test]
fn every_result_of_tokenize_is_named() {
    let named: BTreeSet<_> = quoted(section("What you see")).collect();
    for result in Tokenized::ALL.map(Tokenized::as_str) {
        assert!(named.contains(result), "{result}");
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let headings: Vec<_> = README
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().replace(' ', "-"))
        .map(|heading| heading.to_lowercase())
        .collect();
    let targets = README
        .split("](")
        .skip(1)
        .filter_map(|t| t.split(')').next());
    for target in targets {
        match target.strip_prefix('#') {
            Some(heading) => assert!(headings.iter().any(|h| h == heading), "{target}"),
            None => assert!(root.join(target).exists(), "{target}"),
        }
    }
}
