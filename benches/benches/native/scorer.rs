//! What the scorer reads of an engine.

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::BatchSize;
use rmp::encode::{self, ValueWriteError};
use selective_kv::contract::store::MemoryStore;
use selective_kv::prefix::{Algorithm, Context};
use selective_kv::scorer::facts::PageFacts;
use selective_kv::scorer::index::{Delivery, Index, Item, Limits, Params, RequestKeys};
use selective_kv::scorer::kv_events::{self, Event};
use selective_kv::scorer::metric_spec::MetricSpec;
use selective_kv::scorer::metrics_text;

use crate::run::{Run, row};

/// Of a real vLLM under load, 88 kB.
const PAGE: &[u8] = include_bytes!("../../../testdata/metrics_full_0.32.0.txt");

pub fn measure(run: &mut Run) {
    let queue = MetricSpec::parse("vllm:num_requests_waiting").expect("a metric");
    assert_eq!(metrics_text::read(PAGE, &queue).sum, Some(16.0));
    run.measure(row("scorer", "metrics page, 88 kB, queue"), |b| {
        b.iter(|| metrics_text::read(black_box(PAGE), &queue));
    });
    assert_eq!(PageFacts::read(PAGE, &queue).block_size, Some(32));
    run.measure(row("scorer", "metrics page, 88 kB, facts"), |b| {
        b.iter(|| PageFacts::read(black_box(PAGE), &queue));
    });
    measure_events(run);
}

const NOW_MS: u64 = 1_796_000_000_000;
const BLOCK_SIZE: u32 = 16;
/// Prompts that an engine tells of in one payload, and the blocks of each.
const PROMPTS: u32 = 16;
const BLOCKS: u32 = 64;

fn measure_events(run: &mut Run) {
    let payload = payload();
    let blocks = |payload: &[u8]| -> u32 {
        let events = kv_events::decode(payload).expect("a batch").events();
        let stored = events.map(|event| match event {
            Event::Stored(stored) => stored.hashes.count() as u32,
            _ => 0,
        });
        stored.sum()
    };
    assert_eq!(blocks(&payload), PROMPTS * BLOCKS);
    let name = format!("KV events, {} blocks", PROMPTS * BLOCKS);
    run.measure(row("scorer", &format!("{name}, decode")), |b| {
        b.iter(|| blocks(black_box(&payload)));
    });

    // llm-d's keys, which are told from the tokens.
    let algorithm = Algorithm::fnv64a_cbor("");
    let context = Context {
        model: "meta-llama/Llama-3.1-70B-Instruct",
        ..Context::default()
    };
    let keys: &RequestKeys<'_> = &|parent, stored, out| {
        let Ok(chain) = algorithm.chain(&context) else {
            return false;
        };
        let tokens: Vec<u32> = stored.tokens.collect();
        out.extend(chain.keys(&tokens, NonZeroU32::new(BLOCK_SIZE).expect("not 0")));
        parent.is_none()
    };
    let items = [
        Item::FromStart,
        Item::Payload {
            seq: 0,
            bytes: &payload,
        },
    ];
    let delivery = Delivery {
        publisher: "10.0.0.7:8000",
        group: "pool",
        run: 1,
        heard_ms: Some(NOW_MS),
        behind: false,
        items: &items,
    };
    let ingest = |(store, mut index): (MemoryStore, Index)| {
        let done = index.ingest(&store, &delivery, keys).expect("it is taken");
        // Handed out, so that dropping it is not measured.
        (done.stored, store, index)
    };
    assert_eq!(ingest(writer()).0, PROMPTS * BLOCKS);
    run.measure(row("scorer", &format!("{name}, into the index")), |b| {
        b.iter_batched(writer, ingest, BatchSize::LargeInput);
    });
}

/// An empty index, and the shared data that it stands in.
fn writer() -> (MemoryStore, Index) {
    let store = MemoryStore::new();
    let mut index = Index::new(Params {
        scorer: "pool".to_owned(),
        bridged: true,
        block_size: BLOCK_SIZE,
        fingerprint: 7,
        shared_tiers: Vec::new(),
        max_silence_ms: 30_000,
        seed: 0x1234_5678,
        limits: Limits::default(),
    });
    index.take_over(&store, NOW_MS).expect("the lease");
    (store, index)
}

/// As vLLM from 0.24 on writes it: one event for each prompt.
fn payload() -> Vec<u8> {
    let mut out = Vec::new();
    write_payload(&mut out).expect("memory");
    out
}

fn write_payload(out: &mut Vec<u8>) -> Result<(), ValueWriteError> {
    encode::write_array_len(out, 2)?;
    encode::write_f64(out, 1_796_000_000.0)?;
    encode::write_array_len(out, PROMPTS)?;
    for prompt in 0..PROMPTS {
        encode::write_map_len(out, 6)?;
        encode::write_str(out, "type")?;
        encode::write_str(out, "BlockStored")?;
        encode::write_str(out, "block_hashes")?;
        encode::write_array_len(out, BLOCKS)?;
        for block in 0..BLOCKS {
            let number = u64::from(prompt * BLOCKS + block + 1);
            encode::write_uint(out, number.wrapping_mul(0x9e37_79b9_7f4a_7c15))?;
        }
        encode::write_str(out, "parent_block_hash")?;
        encode::write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?;
        encode::write_str(out, "token_ids")?;
        encode::write_array_len(out, BLOCKS * BLOCK_SIZE)?;
        for token in 0..BLOCKS * BLOCK_SIZE {
            let number = prompt * BLOCKS * BLOCK_SIZE + token;
            encode::write_uint(out, u64::from(number.wrapping_mul(0x9e37_79b9) % 128_256))?;
        }
        encode::write_str(out, "block_size")?;
        encode::write_uint(out, u64::from(BLOCK_SIZE))?;
        encode::write_str(out, "medium")?;
        encode::write_str(out, "GPU")?;
    }
    Ok(())
}
