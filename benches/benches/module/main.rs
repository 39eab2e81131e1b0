//! What the module takes under wasmtime, in the model of Envoy that the tests use: time without the
//! host's share, instructions, host calls. Compares with `dist/bench_baselines.wasm` (scripts/bench).

mod decision;
mod measure;
mod scan;
mod scorer;

#[allow(dead_code)] // The tests' own, and they need more.
#[path = "../../../tests/harness/tests/module/bridge.rs"]
mod bridge;
#[allow(dead_code)]
#[path = "../../../tests/harness/tests/scorer_events/pages.rs"]
mod pages;
#[allow(dead_code)]
#[path = "../../../tests/harness/tests/module/records.rs"]
mod records;

use std::time::Duration;

use measure::{Effort, Ways};
use selective_kv_bench::report::Results;

fn main() -> std::io::Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let effort = Effort {
        rounds: if quick { 5 } else { 11 },
        round: Duration::from_millis(if quick { 2 } else { 5 }),
    };
    let ways = Ways::measure();
    let mut results = Results::default();
    results.notes.push(format!(
        "module: without {:.0} ns a callback, {:.0} ns a host call, {:.0} ns a value read, which are wasmtime's",
        ways.callback, ways.host_call, ways.copy
    ));
    if quick {
        results.notes.push("module: quick".into());
    }
    decision::measure(effort, ways, &mut results);
    scorer::measure(effort, quick, ways, &mut results);
    scan::measure(effort, quick, ways, &mut results);
    results.write("module")?;
    Ok(())
}
