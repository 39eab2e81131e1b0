use super::*;
use crate::contract::evidence::{Lookup, find};
use crate::contract::evidence_writer::{RequestEvidence, upsert};
use crate::sorted::SortedMap;
use std::collections::BTreeMap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Bits in the order in which the index met them.
const TIERS: [&str; 3] = ["storage", "cpu", "fs@remote"];

fn tiers() -> Vec<String> {
    TIERS.map(str::to_owned).to_vec()
}

fn engine(chunk: u32) -> Engine {
    Engine {
        blocks_per_chunk: NonZeroU32::new(chunk),
        secondary: Secondary::Vouched,
    }
}

/// One block a character: where it is held. `g` GPU, `c` CPU, `s` storage, `f` fs, `b` GPU and CPU,
/// `m` CPU and storage, `.` nowhere. Keys count from `first`.
fn world(first: u64, blocks: &str) -> BTreeMap<u64, Held> {
    let held = |c| match c {
        'g' => (1, 0),
        'c' => (0, 2),
        's' => (0, 1),
        'f' => (0, 4),
        'b' => (2, 2),
        'm' => (0, 3),
        _ => (0, 0),
    };
    (first..)
        .zip(blocks.chars())
        .map(|(key, c)| (key, held(c)))
        .map(|(key, (gpu, external))| (key, Held { gpu, external }))
        .collect()
}

fn show(evidence: &EndpointEvidence) -> Vec<String> {
    let prompt = |p: &Written| match p {
        Written::Runs(runs) => {
            let run = |(blocks, tiers): (u64, &[String])| format!("{blocks}[{}]", tiers.join(" "));
            runs.iter().map(run).collect::<Vec<_>>().join(" ")
        }
        Written::Tiers(_) => panic!("counts are another writer's form"),
    };
    evidence.prompts.iter().map(prompt).collect()
}

fn one(blocks: &str, chunk: u32, ends_with_block: bool) -> String {
    let world = world(0, blocks);
    let keys: Vec<u64> = world.keys().copied().collect();
    let prompt = Prompt {
        keys: &keys,
        shared: 0,
        ends_with_block,
    };
    let held = |key| world.get(&key).copied().unwrap_or_default();
    let out = outcome(
        &[prompt],
        true,
        engine(chunk),
        &tiers(),
        Reasons::NONE,
        held,
    );
    show(&out.evidence).remove(0)
}

#[test]
fn a_block_is_listed_where_it_is() {
    let table = [
        ("", ""),
        ("....", "4[]"),
        ("gggg", "4[gpu]"),
        ("bbgg", "2[gpu cpu] 2[gpu]"),
        ("ggcc", "2[gpu] 2[cpu]"),
        (
            "bbccssm.",
            "2[gpu cpu] 2[cpu] 2[storage] 1[cpu storage] 1[]",
        ),
        ("ccff", "2[cpu] 2[fs@remote]"),
        // Behind the first block that ends the chain nothing counts, but it is where it is.
        ("gg.cc", "2[gpu] 1[] 2[cpu]"),
        ("g.gb", "1[gpu] 1[] 1[gpu] 1[gpu cpu]"),
        // A block behind the GPU prefix needs an external copy even if it is in the GPU.
        ("gcgc", "1[gpu] 1[cpu] 1[gpu] 1[cpu]"),
        ("gcbc", "1[gpu] 1[cpu] 1[gpu cpu] 1[cpu]"),
    ];
    for (blocks, expected) in table {
        assert_eq!(one(blocks, 1, false), expected, "{blocks}");
    }
}

#[test]
fn gpu_hits_end_before_the_last_token() {
    let table = [
        ("", ""),
        ("gggg", "3[gpu] 1[]"),
        ("ggbb", "2[gpu] 1[gpu cpu] 1[cpu]"),
        ("b", "1[cpu]"),
        ("g", "1[]"),
        ("ggcc", "2[gpu] 2[cpu]"),
    ];
    for (blocks, expected) in table {
        assert_eq!(one(blocks, 1, true), expected, "{blocks}");
    }
}

#[test]
fn external_tiers_go_by_whole_chunks() {
    // 4 blocks a chunk: the fourth one's copies are the chunk's.
    let table = [
        ("...c....", false, "4[cpu] 4[]"),
        ("ccc.ccc.", false, "8[]"),
        ("cccccccc", false, "8[cpu]"),
        // What is behind the last whole chunk cannot be loaded.
        ("cccccccccc", false, "8[cpu] 2[]"),
        ("ccc", false, "3[]"),
        // In the middle of a chunk: the rest of it counts, if a chunk's worth follows.
        ("bbgbcccc", false, "4[gpu cpu] 4[cpu]"),
        ("ggcccccc", false, "2[gpu cpu] 6[cpu]"),
        ("gggbgg.c....", false, "6[gpu cpu] 2[] 4[]"),
        ("ggggggccccc.", false, "4[gpu] 2[gpu cpu] 2[] 4[]"),
        ("ggggggcccccc", false, "4[gpu] 2[gpu cpu] 6[cpu]"),
        // The last block of an exact multiple: one block alone is not loaded.
        ("bbbbbbbb", true, "7[gpu cpu] 1[]"),
        ("bbbbgggc", true, "7[gpu cpu] 1[]"),
        ("bbbbcccc", true, "4[gpu cpu] 4[cpu]"),
        // Holes.
        ("gggg...s...c", false, "4[gpu] 4[storage] 4[cpu]"),
        ("gggg.......c", false, "4[gpu] 4[] 4[cpu]"),
    ];
    for (blocks, ends, expected) in table {
        let expected = expected.replace("2[] 4[]", "6[]");
        assert_eq!(one(blocks, 4, ends), expected, "{blocks}");
    }
}

fn several(
    prompts: &[(&[u64], bool)],
    world: &BTreeMap<u64, Held>,
    reads_cache: bool,
) -> Vec<String> {
    let mut earlier = Earlier::default();
    let prompts: Vec<Prompt<'_>> = prompts
        .iter()
        .map(|&(keys, ends_with_block)| Prompt {
            keys,
            shared: earlier.next(keys),
            ends_with_block,
        })
        .collect();
    let held = |key| world.get(&key).copied().unwrap_or_default();
    let out = outcome(
        &prompts,
        reads_cache,
        engine(1),
        &tiers(),
        Reasons::NONE,
        held,
    );
    show(&out.evidence)
}

#[test]
fn what_an_earlier_prompt_has_is_in_the_gpu_for_the_next() {
    let world = world(0, "bcc.c");
    let shown = several(&[(&[0, 1, 2, 3], false), (&[0, 1, 9], false)], &world, true);
    assert_eq!(shown, ["1[gpu cpu] 2[cpu] 1[]", "2[gpu cpu] 1[]"]);
    // Also what the earlier prompt computes; and the earlier one's last block.
    let shown = several(&[(&[0, 3], true), (&[0, 3, 4], false)], &world, true);
    assert_eq!(shown, ["1[gpu cpu] 1[]", "1[gpu cpu] 1[gpu] 1[cpu]"]);
    // The same prompt twice: its last block is not a GPU hit the second time either.
    let shown = several(&[(&[0, 1], true), (&[0, 1], true)], &world, true);
    assert_eq!(shown, ["1[gpu cpu] 1[cpu]", "1[gpu cpu] 1[cpu]"]);
    // Held nowhere, it is loaded from the copy that the earlier prompt has begun to offload.
    let shown = several(
        &[(&[5, 6, 7], false), (&[5, 6], true), (&[5, 8], true)],
        &world,
        true,
    );
    assert_eq!(shown, ["3[]", "1[gpu] 1[cpu]", "1[gpu] 1[]"]);
    // A later prompt says nothing about an earlier one.
    let shown = several(&[(&[1], false), (&[1, 2], false)], &world, true);
    assert_eq!(shown, ["1[cpu]", "1[gpu cpu] 1[cpu]"]);
}

#[test]
fn a_request_that_reads_no_cache_finds_nothing() {
    let world = world(0, "bcc.c");
    let shown = several(&[(&[0, 1, 2, 3], false), (&[], false)], &world, false);
    assert_eq!(shown, ["4[]", ""]);
}

#[test]
fn reasons_make_it_partial() {
    use Secondary::{None as No, Unvouched, Vouched};
    let gap = Reasons::GAP;
    let none = Reasons::NONE;
    let secondary = Reasons::SECONDARY_TIER;
    let chunk = Reasons::CHUNK_UNKNOWN;
    let table = [
        ("gc", Some(1), No, none, none),
        ("gc", Some(1), No, gap, gap),
        ("gc", None, No, none, chunk),
        ("gc", Some(1), Vouched, none, none),
        ("gc", Some(1), Unvouched, none, secondary),
        // The events know better than the configuration.
        ("gs", Some(1), No, none, secondary),
        ("gf", Some(1), No, none, secondary),
        ("gs", Some(1), Vouched, none, none),
        ("gs", None, Unvouched, gap, gap | chunk | secondary),
    ];
    for (blocks, blocks_per_chunk, secondary, index, expected) in table {
        let world = world(0, blocks);
        let engine = Engine {
            blocks_per_chunk: blocks_per_chunk.and_then(NonZeroU32::new),
            secondary,
        };
        let prompt = Prompt {
            keys: &[0, 1],
            shared: 0,
            ends_with_block: false,
        };
        let held = |key| world.get(&key).copied().unwrap_or_default();
        let out = outcome(&[prompt], true, engine, &tiers(), index, held);
        assert_eq!(out.reasons, expected, "{blocks} {secondary:?}");
        assert_eq!(out.evidence.partial, !expected.is_empty());
    }
}

#[test]
fn a_scattered_prompt_stays_small() {
    // Copies in the GPU prefix and what is behind the chain are shortened, the chain is not.
    let blocks = ["gb".repeat(1000), "cs".repeat(300), "gc.".repeat(1000)].concat();
    let shown = one(&blocks, 1, false);
    let runs: Vec<&str> = shown.split("] ").collect();
    assert_eq!(runs[0], "2000[gpu");
    assert_eq!(runs[1], "1[cpu");
    assert_eq!(runs.len(), 601);
    let shown = one(&"gc.".repeat(1000), 1, false);
    assert_eq!(shown.split("] ").count(), MAX_DETAIL + 1);
}

#[test]
fn what_nobody_has_is_not_looked_for_to_the_end() {
    let keys: Vec<u64> = (0..100_000).collect();
    let prompt = Prompt {
        keys: &keys,
        shared: 0,
        ends_with_block: false,
    };
    for (blocks, asked, expected) in [
        ("", 1_024, "1024[]"),
        ("bbcc.c", 4 + 1_024, "2[gpu cpu] 2[cpu] 1[] 1[cpu] 1022[]"),
    ] {
        let (world, count) = (world(0, blocks), std::cell::Cell::new(0));
        let held = |key| {
            count.set(count.get() + 1);
            world.get(&key).copied().unwrap_or_default()
        };
        let out = outcome(&[prompt], true, engine(1), &tiers(), Reasons::NONE, held);
        assert_eq!(show(&out.evidence), [expected]);
        assert!(count.get() <= asked + 1, "{}", count.get());
    }
}

#[test]
fn it_reaches_the_policy_through_the_contract() {
    let world = world(0, "bbcccm");
    let prompt = Prompt {
        keys: &[0, 1, 2, 3, 4, 5],
        shared: 0,
        ends_with_block: false,
    };
    let held = |key| world.get(&key).copied().unwrap_or_default();
    let out = outcome(&[prompt], true, engine(1), &tiers(), Reasons::NONE, held);
    let endpoints = SortedMap::from([("10.0.0.7:8000".to_owned(), out.evidence)]);
    let request = RequestEvidence {
        id: "r",
        writer: "kv-scorer",
        t_ms: 1000,
        block_size: 16,
        endpoints: &endpoints,
    };
    let record = upsert(None, &request, 1000, 30_000).unwrap();
    let Lookup::Found(evidence) = find(&record, "r", "10.0.0.7:8000") else {
        panic!()
    };
    assert!(!evidence.partial);
    assert_eq!(evidence.prompts[0].external_blocks(&|_| true), 4);
    assert_eq!(evidence.prompts[0].external_blocks(&|t| t == "storage"), 0);
}
