//! The most memory that Envoy takes while large bodies stream through on many connections, with a
//! buffer limit that none of them fits into. Filters that buffer answer 413 there.

use std::thread;

use envoy_tests::Envoy;
use selective_kv_bench::figures::{median, spread};
use selective_kv_bench::report::Row;
use selective_kv_bench::shapes::{Params, Shape};
use serde_json::json;

use crate::cases::{Case, SMALL};
use crate::client::{Client, request};
use crate::evidence;
use crate::process::{forget_peak, peak_mib, resident_mib};
use crate::sink::Sink;
use crate::variants::{Variant, alone};

const CONNECTIONS: usize = 16;
const BYTES: usize = 8 << 20;
/// What has to be held of bodies whose params stand first; `maxHeldBytesPerVm` is as much.
pub const HELD_MIB: f64 = ((CONNECTIONS * BYTES) >> 20) as f64;
const BUFFER_LIMIT: usize = 32 << 10;
/// Each connection sends so many bodies.
const BODIES: usize = 2;

pub struct Peak {
    pub case: Case,
    pub variant: Variant,
    /// MiB, of each run.
    peak: Vec<f64>,
    /// MiB over what was resident before, of each run.
    grown: Vec<f64>,
}

impl Peak {
    pub fn mib(&self) -> f64 {
        median(&self.peak)
    }

    pub fn grown_mib(&self) -> f64 {
        median(&self.grown)
    }

    pub fn rows(&self) -> Vec<Row> {
        let row = |bench, values: &[f64]| Row {
            spread: Some(spread(values)),
            ..self.case.row(bench, self.variant, "MiB", median(values))
        };
        vec![
            row("envoy memory, peak", &self.peak),
            row("envoy memory, peak over idle", &self.grown),
        ]
    }
}

pub fn measure(runs: usize) -> Vec<Peak> {
    let mut peaks = Vec::new();
    for params in Params::ALL {
        for variant in [Variant::None, Variant::Copy, Variant::Ours] {
            let case = Case {
                shape: Shape::Chat,
                bytes: BYTES,
                params,
            };
            let runs = (0..runs).map(|_| run(variant, case));
            let (peak, grown) = runs.unzip();
            peaks.push(Peak {
                case,
                variant,
                peak,
                grown,
            });
        }
    }
    peaks
}

/// In an Envoy of its own: what another has left behind would count.
fn run(variant: Variant, case: Case) -> (f64, f64) {
    let sink = Sink::start();
    // Evidence never comes: the decision waits for the closing brace, and the bytes with it.
    let waits = json!({"loadPolicy": "threshold", "minExternalReusableTokens": 1024});
    let envoy = Envoy::start(&alone(variant, &waits, BUFFER_LIMIT, &sink));
    let small = Case {
        bytes: SMALL,
        ..case
    };
    all_at_once(&envoy, variant, small);
    let idle = resident_mib(envoy.pid());
    forget_peak(envoy.pid());
    all_at_once(&envoy, variant, case);
    let peak = peak_mib(envoy.pid());
    (peak, peak - idle)
}

fn all_at_once(envoy: &Envoy, variant: Variant, case: Case) {
    let body = selective_kv_bench::shapes::body(case.shape, case.bytes, case.params);
    let request = &request(case.shape.path(), &evidence::id(0), 0, &body);
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(move || {
                let mut client = Client::connect(envoy.listener(&variant.listener()));
                for _ in 0..BODIES {
                    client.exchange(request);
                }
            });
        }
    });
}
