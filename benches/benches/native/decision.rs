//! What a decision reads: tier evidence and queues, and the gate.

use std::hint::black_box;
use std::num::NonZeroU32;

use selective_kv::contract::evidence::{self, Lookup, Prompt};
use selective_kv::contract::evidence_writer::{self, EndpointEvidence, RequestEvidence};
use selective_kv::contract::queue::{self, MAX_SAMPLES, Measured, Sample};
use selective_kv::policy::gate::{GateParams, consume};

use crate::run::{Run, row};

const NOW_MS: u64 = 1_796_000_000_000;
const REQUEST: &str = "5f0c8e0e-6a3a-4e0a-9f0e-0d3c1b2a4f59";
const ENDPOINTS: usize = 8;
const RUNS: usize = 64;

pub fn measure(run: &mut Run) {
    let record = evidence_record();
    let wanted = endpoint(ENDPOINTS - 1);
    let Lookup::Found(found) = evidence::find(&record, REQUEST, &wanted) else {
        panic!("the record speaks of the endpoint");
    };
    // Every run was written: none had to give way.
    let Some(Prompt::Runs(runs)) = found.prompts.first() else {
        panic!("evidence in runs");
    };
    assert_eq!((runs.len(), found.partial), (RUNS, false));
    let name = format!("evidence, {ENDPOINTS} endpoints × {RUNS} runs");
    run.measure(row("decision", &format!("{name}, find")), |b| {
        b.iter(|| evidence::find(black_box(&record), REQUEST, &wanted));
    });
    let prompt = &found.prompts[0];
    run.measure(row("decision", &format!("{name}, external blocks")), |b| {
        b.iter(|| black_box(prompt).external_blocks(&|_| true));
    });

    let record = queue_record();
    let queues = queue::decode(&record).expect("a record");
    assert_eq!(queues.len(), ENDPOINTS);
    let samples = &queues.get(&wanted).expect("the endpoint").history.samples;
    assert_eq!(samples.len(), MAX_SAMPLES);
    let name = format!("queues, {ENDPOINTS} endpoints × {MAX_SAMPLES} samples, decode");
    run.measure(row("decision", &name), |b| {
        b.iter(|| queue::decode(black_box(&record)));
    });

    let gate = GateParams {
        max_waiting: NonZeroU32::new(8).expect("not 0"),
        half_life_ms: 5_000,
        reopen_ratio: 0.5,
        max_sample_age_ms: 10_000,
    };
    let before = consume(None, &samples[..MAX_SAMPLES - 1], &gate, NOW_MS).state;
    for (name, state) in [
        ("gate, 1 new sample of 32", before),
        ("gate, 32 new samples", None),
    ] {
        run.measure(row("decision", name), |b| {
            b.iter(|| consume(black_box(state), black_box(samples), &gate, NOW_MS));
        });
    }
}

fn endpoint(number: usize) -> String {
    format!("10.0.0.{number}:8000")
}

/// Every other run is a prefix's block in two tiers, the others in storage alone.
fn evidence_record() -> Vec<u8> {
    let tiers = [&["cpu", "storage"][..], &["storage"]];
    let runs = tiers.iter().cycle().take(RUNS).map(|tiers| {
        let tiers = tiers.iter().map(|tier| (*tier).to_owned());
        (4, tiers.collect())
    });
    let evidence = EndpointEvidence {
        prompts: vec![Prompt::Runs(runs.collect())],
        partial: false,
    };
    let endpoints = (0..ENDPOINTS).map(|n| (endpoint(n), evidence.clone()));
    let request = RequestEvidence {
        id: REQUEST,
        writer: "pool",
        t_ms: NOW_MS,
        block_size: 16,
        endpoints: &endpoints.collect(),
    };
    evidence_writer::upsert(None, &request, NOW_MS, 60_000).expect("it fits")
}

/// A sample a second of each endpoint.
fn queue_record() -> Vec<u8> {
    let mut record = None;
    for age_s in (0..MAX_SAMPLES as u64).rev() {
        for n in 0..ENDPOINTS {
            let sample = Sample {
                t_ms: NOW_MS - age_s * 1_000,
                waiting: ((age_s + n as u64) % 17) as f64,
            };
            let endpoint = endpoint(n);
            let mut measured = Measured::of(&endpoint, sample);
            measured.engine = Some("vllm");
            measured.version = Some("0.32.0");
            let next = queue::push_sample(record.as_deref(), &measured, NOW_MS, 600_000);
            record = Some(next.expect("a new sample"));
        }
    }
    record.expect("samples")
}
