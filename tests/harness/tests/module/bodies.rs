//! Every body of the corpus, in every decision and several chunkings: the module sends what the
//! native editor makes of it, to the byte.

use crate::native;
use crate::rig::{CHAT, GENERATE, Rig, post};
use selective_kv::body::{Cap, Edits};
use std::path::Path;

/// Evidence in a header: 20 external blocks of 64 tokens in the primary tier, which no
/// `kv_load_tiers` filters out.
const EVIDENCE: &str = r#"{"block_size":64,"tiers":{"cpu":20}}"#;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/bodies");
    let mut bodies: Vec<(String, Vec<u8>)> = std::fs::read_dir(&folder)
        .expect("testdata/bodies")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy();
            (name.into_owned(), std::fs::read(&path).expect("a body"))
        })
        .collect();
    bodies.sort();
    assert!(bodies.len() > 30, "the corpus is there");
    bodies
}

/// Cuts a body in pieces of pseudo-random sizes up to `most`.
fn random_cuts(body: &[u8], seed: u64, most: u64) -> Vec<&[u8]> {
    let mut state = seed;
    let mut rest = body;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let size = 1 + ((state >> 33) % most) as usize;
        let (piece, after) = rest.split_at(size.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn assert_same(configuration: &str, edits: Edits) {
    let rig = Rig::new(configuration);
    for (name, body) in corpus() {
        for path in [CHAT, GENERATE] {
            let request = || post(path).header("x-kv-tier-evidence", EVIDENCE);
            let expected = native::edited(path, &body, edits);
            let check = |how: &str, out: skv_harness::Outcome| {
                assert!(out.complete(), "{name} {path} {how}");
                assert!(
                    out.body() == expected,
                    "{name} {path} {how}: {}",
                    out.text()
                );
                assert_eq!(rig.held(), 0, "{name} {path} {how}");
            };
            check("whole", rig.policy.send(request(), &body));
            check(
                "the end alone",
                rig.policy.request(request()).chunks([&body]).end(),
            );
            if body.len() <= 4_096 {
                let bytes = body.iter().map(std::slice::from_ref);
                check(
                    "byte by byte",
                    rig.policy.request(request()).chunks(bytes).end(),
                );
            }
            for (seed, most) in [(1, 7), (2, 61), (3, 1_000)] {
                let cuts = random_cuts(&body, seed, most);
                check(
                    &format!("cut up to {most}"),
                    rig.policy.request(request()).chunks(cuts).end(),
                );
            }
        }
    }
}

#[test]
fn disable_load() {
    let edits = Edits::caps(Cap::SetZero, Cap::Keep);
    assert_same(r#"{"loadPolicy":"disable"}"#, edits);
}

#[test]
fn disable_both() {
    let edits = Edits::caps(Cap::SetZero, Cap::SetZero);
    let configuration = r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#;
    assert_same(configuration, edits);
}

#[test]
fn enable_load_and_disable_offload() {
    let edits = Edits::caps(Cap::Remove, Cap::SetZero);
    assert_same(
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"offloadPolicy":"disable",
            "evidenceHeader":"x-kv-tier-evidence"}"#,
        edits,
    );
}

#[test]
fn preserve_and_dry_run_change_nothing() {
    assert_same("{}", Edits::KEEP);
    assert_same(
        r#"{"loadPolicy":"disable","offloadPolicy":"disable","dryRun":true}"#,
        Edits::KEEP,
    );
}
