//! How long clients wait where more of them ask than Envoy can serve.

use std::thread;
use std::time::Instant;

use selective_kv_bench::figures::quantile;
use selective_kv_bench::report::Row;
use selective_kv_bench::shapes::{Params, Shape};

use crate::cases::{Case, MIB, SMALL};
use crate::rig::Rig;
use crate::variants::Variant;

const CONNECTIONS: usize = 16;

const VARIANTS: [Variant; 6] = [
    Variant::None,
    Variant::Noop,
    Variant::Copy,
    Variant::Ours,
    Variant::RoundTrip,
    Variant::Lua,
];

/// p50, p99 and requests a second of chats, each connection sending its next request at once.
pub fn measure(rig: &Rig, rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (bytes, requests) in [(SMALL, 60), (64 << 10, 20), (MIB, 3)] {
        let case = Case {
            shape: Shape::Chat,
            bytes,
            params: Params::Last,
        };
        let mut latency_us: Vec<Vec<f64>> = VARIANTS.iter().map(|_| Vec::new()).collect();
        let mut seconds = [0.0; VARIANTS.len()];
        for _ in 0..rounds {
            for (at, &variant) in VARIANTS.iter().enumerate() {
                let began = Instant::now();
                latency_us[at].extend(saturate(rig, variant, case, requests));
                seconds[at] += began.elapsed().as_secs_f64();
            }
        }
        for (at, &variant) in VARIANTS.iter().enumerate() {
            let all = &latency_us[at];
            for (bench, unit, value) in [
                ("envoy saturated p50", "µs", quantile(all, 0.5)),
                ("envoy saturated p99", "µs", quantile(all, 0.99)),
                (
                    "envoy saturated",
                    "requests/s",
                    all.len() as f64 / seconds[at],
                ),
            ] {
                rows.push(case.row(bench, variant, unit, value));
            }
        }
    }
    rows
}

/// µs of every request.
fn saturate(rig: &Rig, variant: Variant, case: Case, requests: usize) -> Vec<f64> {
    let request = &case.requests(variant, 0)[0];
    thread::scope(|scope| {
        let connections: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                scope.spawn(move || {
                    let mut client = rig.connect(variant);
                    let timed = (0..requests).map(|_| {
                        let began = Instant::now();
                        client.exchange(request);
                        began.elapsed().as_secs_f64() * 1e6
                    });
                    timed.collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = connections.into_iter().map(|c| c.join().expect("answers"));
        joined.flatten().collect()
    })
}
