//! What the filter costs in Envoy, beside other filters: processor time a request, latency, memory.
//!
//! `scripts/bench --only envoy`, after which docs/performance.md says how to read it. Words that are no
//! flags choose cases: `cargo bench -p selective-kv-bench --bench envoy -- chat 1048576`.
#![allow(clippy::disallowed_methods)]

mod cases;
mod client;
mod cpu;
mod evidence;
mod load;
mod memory;
mod process;
mod reach;
mod rig;
mod sink;
mod variants;

use std::time::Instant;

use cases::Case;
use rig::Rig;
use selective_kv_bench::report::Results;

fn main() {
    let (flags, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let quick = flags.iter().any(|flag| flag == "--quick");
    let asked = |case: &Case| {
        let name = format!(
            "{} {} {}",
            case.shape.name(),
            case.bytes,
            case.params.name()
        );
        words
            .iter()
            .all(|word| name.split(' ').any(|part| part == word))
    };
    process::pin_to_one_core();
    let began = Instant::now();
    let progress = |what: &str| println!("{:4.0} s  {what}", began.elapsed().as_secs_f64());

    progress("Envoy, a listener for each variant");
    let mut results = Results::default();
    let rig = Rig::start();
    let mut measured = Vec::new();
    for case in cases::cases(quick).into_iter().filter(asked) {
        let rounds = match (quick, case.bytes) {
            (true, _) => 11,
            (false, ..=cases::MIB) => 31,
            (false, _) => 15,
        };
        let these = cpu::measure(&rig, case, rounds);
        progress(&summary(case, &these));
        measured.extend(these);
    }
    results
        .rows
        .extend(measured.iter().flat_map(cpu::Measured::rows));
    results.reach.extend(reach::cpu(&measured));
    if words.is_empty() {
        progress("latency of 16 connections that never rest");
        results
            .rows
            .extend(load::measure(&rig, if quick { 1 } else { 3 }));
        drop(rig);
        progress("peak memory");
        let peaks = memory::measure(if quick { 1 } else { 3 });
        results
            .rows
            .extend(peaks.iter().flat_map(memory::Peak::rows));
        results.reach.extend(reach::memory(&peaks));
    }
    if quick {
        results
            .notes
            .push("envoy: a quick run, of fewer rounds and shapes".into());
    }
    let path = results.write("envoy").expect("the results are written");
    progress(&format!("done; {}", path.display()));
}

fn summary(case: Case, measured: &[cpu::Measured]) -> String {
    let figures = measured
        .iter()
        .map(|m| format!("{} {:.1}", m.variant.name(), m.cpu_us()));
    let figures = figures.collect::<Vec<_>>().join(", ");
    let (shape, params) = (case.shape.name(), case.params.name());
    format!(
        "{shape}, {} KiB, params {params}, added µs: {figures}",
        case.bytes >> 10
    )
}
