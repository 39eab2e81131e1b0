//! Prints what benches have found as one table, with the machine named, and writes it to
//! `target/bench/all.json`. Arguments: the benches' names.

use std::fs;
use std::io;

use selective_kv_bench::report::{self, Results};

fn main() -> io::Result<()> {
    let mut all = Results::default();
    for bench in std::env::args().skip(1) {
        let path = report::folder().join(format!("{bench}.json"));
        all.extend(Results::read(&path)?);
    }
    all.notes.push(machine());
    print!("{}", all.table());
    let path = all.write("all")?;
    println!("written to {}", path.display());
    Ok(())
}

/// Processor, cores, kernel.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let mut names = processors
        .lines()
        .filter_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let name = names.next().unwrap_or("an unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("measured on {name}, {cores} cores, Linux {}", kernel.trim())
}
