//! Processor time of Envoy a request, and how long a client waits for it: one connection, a fixed
//! number of requests, the variants in turn, over and over.

use std::time::Instant;

use selective_kv_bench::figures::{median, quantile, spread};
use selective_kv_bench::report::Row;
use selective_kv_bench::shapes::{Params, Shape};

use crate::cases::{Case, MIB, SMALL};
use crate::evidence;
use crate::rig::Rig;
use crate::variants::Variant;

/// What one variant costs in one case.
pub struct Measured {
    pub case: Case,
    pub variant: Variant,
    /// µs a request in each round, over the variant's base in the same round; of a base the whole.
    cpu_us: Vec<f64>,
    /// µs of every request.
    latency_us: Vec<f64>,
}

impl Measured {
    /// µs a request over the variant's base.
    pub fn cpu_us(&self) -> f64 {
        median(&self.cpu_us)
    }

    pub fn rows(&self) -> Vec<Row> {
        let Measured { case, variant, .. } = *self;
        let is_base = variant.base() == variant;
        let bench = if is_base {
            "envoy cpu"
        } else {
            "envoy cpu added"
        };
        let mut rows = vec![Row {
            spread: Some(spread(&self.cpu_us)),
            ratio_to: (!is_base).then(|| variant.compared_with().name().to_owned()),
            ..case.row(bench, variant, "µs", self.cpu_us())
        }];
        if case.shape == Shape::Chat && case.params == Params::Last {
            for (bench, part) in [("envoy latency p50", 0.5), ("envoy latency p99", 0.99)] {
                rows.push(case.row(bench, variant, "µs", quantile(&self.latency_us, part)));
            }
        }
        rows
    }
}

/// A copy whose source and target lie badly to each other within their pages takes some processors
/// several times as long ("page aliasing" of `rep movsb`). Where a body lies is luck, so each round
/// has its own: bytes of padding in the head.
fn padding(case: Case, round: usize) -> usize {
    const PAGE: usize = 4096;
    const STEP: usize = 1361;
    if case.bytes == SMALL {
        0
    } else {
        round * STEP % PAGE
    }
}

/// The round trip of a large body takes as long as all others together: it sits out most rounds.
fn takes_part(variant: Variant, case: Case, round: usize) -> bool {
    variant != Variant::RoundTrip || case.bytes < MIB || round % 4 == 1
}

pub fn measure(rig: &Rig, case: Case, rounds: usize) -> Vec<Measured> {
    let variants = case.variants();
    let mut clients: Vec<_> = variants
        .iter()
        .map(|&variant| {
            rig.check(variant, case);
            (rig.connect(variant), case.requests(variant, 0))
        })
        .collect();
    let mut measured: Vec<_> = variants
        .iter()
        .map(|&variant| Measured {
            case,
            variant,
            cpu_us: Vec::new(),
            latency_us: Vec::new(),
        })
        .collect();
    let count = variants.len();
    // The first round is to warm up.
    for round in 0..=rounds {
        evidence::sample_queue(&rig.envoy, &rig.sink);
        let mut whole_us: Vec<Option<f64>> = vec![None; count];
        for turn in 0..count {
            // There and back, so that what one leaves behind does not always meet the same other.
            let at = if round % 2 == 0 {
                turn
            } else {
                count - 1 - turn
            };
            if round > 0 && !takes_part(variants[at], case, round) {
                continue;
            }
            let (client, requests) = &mut clients[at];
            if padding(case, round) > 0 {
                *requests = case.requests(variants[at], padding(case, round));
            }
            let before = rig.clock.now_us();
            for number in 0..case.requests_of_round() {
                let began = Instant::now();
                client.exchange(&requests[(round + number) % requests.len()]);
                let latency = began.elapsed().as_secs_f64() * 1e6;
                measured[at].latency_us.push(latency);
            }
            let spent = rig.clock.now_us() - before;
            whole_us[at] = Some(spent / case.requests_of_round() as f64);
        }
        for (at, variant) in variants.iter().enumerate() {
            let base = variants.iter().position(|other| *other == variant.base());
            let base = base.filter(|base| *base != at);
            let base_us = base.map_or(Some(0.0), |base| whole_us[base]);
            let added = whole_us[at].zip(base_us).map(|(whole, base)| whole - base);
            measured[at].cpu_us.extend(added);
        }
        if round == 0 {
            for measured in &mut measured {
                measured.cpu_us.clear();
                measured.latency_us.clear();
            }
        }
    }
    measured
}
