//! What reading events costs the VM that pulls, in instructions (wasmtime fuel) and in time.

use crate::pages::{Chain, Event, Item, page, payload};
use crate::rig::{ENGINE, Rig};
use skv_harness::Answer;
use std::time::Instant;

/// Blocks of one prompt: 2,048 tokens.
const BLOCKS: usize = 128;

/// A page of about 1 MB, as the bridge sends them at most unless told otherwise, and its blocks.
fn full_page(round: u64, next: &mut u64) -> (Vec<u8>, u64) {
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut blocks = 0;
    while bytes < 900_000 {
        let n = round * 1_000 + items.len() as u64;
        let chain = Chain::prompt(n, BLOCKS);
        let events = [Event::Stored(&chain), Event::Offloaded(&chain.hashes)];
        let told = payload(n as f64, &events);
        bytes += told.len();
        blocks += BLOCKS as u64;
        items.push(told);
    }
    let batches = (*next..).zip(items);
    let mut items: Vec<Item> = batches.map(|(seq, told)| Item::Batch(seq, told)).collect();
    *next += items.len() as u64;
    if round == 0 {
        items.insert(0, Item::Start(true));
    }
    (
        page(ENGINE, &format!("e-{round}"), false, false, items),
        blocks,
    )
}

/// Instructions and nanoseconds a block, the blocks stored in the GPU and offloaded once each.
#[allow(clippy::disallowed_methods)] // A native test may ask for the time.
fn block(keys: &str) -> (f64, f64) {
    let rig = Rig::new(keys, 1);
    let (mut cost, mut next, mut told) = ((0.0, 0.0), 0, 0);
    for round in 0..6 {
        let (bytes, blocks) = full_page(round, &mut next);
        let (scorer, token) = rig.puller();
        let before = scorer.vm().fuel_consumed();
        let began = Instant::now();
        scorer.answer(token, Answer::new(200, bytes));
        let took = began.elapsed().as_nanos() as f64;
        let fuel = (scorer.vm().fuel_consumed() - before) as f64;
        let stored = rig
            .env
            .labelled("selective_kv_scorer_blocks_total", &[("event", "stored")]);
        told += 2 * blocks;
        assert_eq!(stored, told, "{:?}", rig.env.metrics());
        // The last one, with the index as large as it gets.
        cost = (fuel / blocks as f64, took / blocks as f64);
    }
    cost
}

#[test]
fn a_block_costs_little() {
    for (name, keys, most) in [
        ("fnv64a_cbor", "", 30_000.0),
        (
            "sha256_cbor",
            r#","algorithm":"sha256_cbor","pythonHashSeed":"0""#,
            30_000.0,
        ),
    ] {
        let (fuel, ns) = block(keys);
        let a_second = 1e9 / ns;
        println!(
            "{name}: {fuel:.0} instructions a block, {ns:.0} ns: {a_second:.0} blocks a second"
        );
        assert!(fuel < most, "{name}: {fuel}");
    }
}
