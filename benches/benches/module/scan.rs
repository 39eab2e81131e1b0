//! A body through the module: scanned and edited by ours, and by what ours is compared with.

use selective_kv_bench::report::{Reach, Results, Row};
use selective_kv_bench::shapes::{self, Params, SIZES, Shape};
use skv_harness::{Harness, Meter, Request};

use crate::measure::{Cost, Effort, Make, Subject, Ways, costs};

const DISABLE: &str = r#"{"loadPolicy":"disable"}"#;
const ENDPOINT: &str = "10.0.0.7:8000";
const VARIANTS: [&str; 4] = ["copy", "ours", "raw_value", "round_trip"];

/// 16 kB, as Envoy has them of HTTP/2; 64 kB, as of a fast HTTP/1.1 client.
const CHUNKS: [usize; 2] = [16 << 10, 64 << 10];

#[derive(Clone, Copy)]
struct Case {
    shape: Shape,
    bytes: usize,
    params: Params,
    /// As long as the body: one single chunk.
    chunk: usize,
}

fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for bytes in SIZES {
        for shape in Shape::ALL {
            let mut add = |params, chunk| {
                cases.push(Case {
                    shape,
                    bytes,
                    params,
                    chunk,
                });
            };
            add(Params::Last, CHUNKS[0]);
            if quick {
                continue;
            }
            add(Params::Last, CHUNKS[1]);
            if bytes >= 1 << 20 {
                add(Params::Last, bytes);
            }
            if bytes <= 1 << 20 {
                add(Params::First, CHUNKS[0]);
                add(Params::Absent, CHUNKS[0]);
            }
        }
    }
    cases.dedup_by_key(|case| {
        (
            case.shape,
            case.bytes,
            case.params,
            case.chunk.min(case.bytes),
        )
    });
    cases
}

/// That variant's VM, and the body sent through it.
fn subject(variant: &'static str, case: Case, meter: Meter) -> Subject {
    let env = Harness::measuring(meter);
    let (vm, plugin) = match variant {
        "ours" => {
            let vm = env.vm("");
            let plugin = vm.plugin("selective-kv", DISABLE);
            (vm, plugin)
        }
        _ => {
            let vm = env.vm_from_file("", "BENCH_BASELINES_WASM", "dist/bench_baselines.wasm");
            let plugin = vm.plugin("baselines", variant);
            (vm, plugin)
        }
    };
    let body = shapes::body(case.shape, case.bytes, case.params);
    let send = move |body: &[u8]| {
        let request = Request::post(case.shape.path())
            .upstream(ENDPOINT)
            .buffer_limit(2 * case.bytes);
        plugin
            .request(request)
            .chunks(body.chunks(case.chunk))
            .end()
    };
    let expected = match variant {
        "copy" => body.clone(),
        _ => shapes::edited(case.shape, case.bytes, case.params),
    };
    let out = send(&body);
    // The tree's order is not the body's.
    assert!(
        out.complete() && (variant == "round_trip" || out.body() == expected),
        "{variant}"
    );
    Subject {
        env,
        vm,
        act: Box::new(move || drop(send(&body))),
    }
}

pub fn measure(effort: Effort, quick: bool, ways: Ways, results: &mut Results) {
    let mut ours = Vec::new();
    for case in cases(quick) {
        // What reads the body as a whole does not care for its chunks.
        let whole = case.params == Params::Last && case.chunk == CHUNKS[0];
        let variants = if whole { &VARIANTS[..] } else { &VARIANTS[..2] };
        let subjects: Vec<Make<'_>> = variants
            .iter()
            .map(|variant| Box::new(move |meter| subject(variant, case, meter)) as Make<'_>)
            .collect();
        for (variant, cost) in variants.iter().zip(costs(&subjects, effort, ways)) {
            results.rows.extend(rows(variant, case, &cost));
            if *variant == "ours" {
                ours.push((case, cost.time));
            }
        }
    }
    linear(&ours, results);
}

fn rows(variant: &str, case: Case, cost: &Cost) -> [Row; 2] {
    let time = Row {
        bench: "module body".into(),
        variant: variant.into(),
        shape: Some(case.shape.name().into()),
        bytes: Some(case.bytes),
        chunk: Some(case.chunk),
        params: Some(case.params.name().into()),
        unit: "µs".into(),
        value: cost.time,
        spread: Some(cost.spread),
        ratio_to: (variant != "copy").then(|| "copy".into()),
    };
    let instructions = Row {
        unit: "instructions/byte".into(),
        value: cost.instructions / case.bytes as f64,
        spread: None,
        ratio_to: None,
        ..time.clone()
    };
    [time, instructions]
}

/// The largest body costs no more than its share of one an eighth as long.
fn linear(ours: &[(Case, f64)], results: &mut Results) {
    let time = |shape, bytes, chunk: Option<usize>| {
        let of = |case: &Case| {
            (case.shape, case.bytes, case.params) == (shape, bytes, Params::Last)
                && case.chunk == chunk.unwrap_or(bytes)
        };
        ours.iter()
            .find(|(case, _)| of(case))
            .map(|(_, time)| *time)
    };
    for (how, chunk) in [
        ("in 16 KiB chunks", Some(CHUNKS[0])),
        ("in one chunk", None),
    ] {
        let ratios = Shape::ALL
            .into_iter()
            .filter_map(|shape| Some(time(shape, 8 << 20, chunk)? / time(shape, 1 << 20, chunk)?));
        if let Some(worst) = ratios.reduce(f64::max) {
            results.reach.push(Reach {
                what: format!("module: 8 MiB against 1 MiB {how}, the worst shape"),
                unit: "×".into(),
                measured: worst,
                limit: 8.5,
            });
        }
    }
}
