//! Measuring with criterion, and its samples as rows.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use criterion::{Bencher, BenchmarkId, Criterion};
use selective_kv_bench::figures::{median, spread};
use selective_kv_bench::report::{self, Results, Row};
use serde::Deserialize;

pub struct Run {
    criterion: Criterion,
    since: SystemTime,
    /// With the folder of each below criterion's own.
    rows: Vec<(PathBuf, Row)>,
}

/// A row of no body.
pub fn row(bench: &str, variant: &str) -> Row {
    Row {
        bench: format!("native {bench}"),
        variant: variant.to_owned(),
        shape: None,
        bytes: None,
        chunk: None,
        params: None,
        unit: "µs".to_owned(),
        value: 0.0,
        spread: None,
        ratio_to: None,
    }
}

/// What criterion writes of a benchmark's rounds: iterations, and nanoseconds of all of them.
#[derive(Deserialize)]
struct Sample {
    iters: Vec<f64>,
    times: Vec<f64>,
}

impl Run {
    pub fn new() -> Self {
        // Some hundred cases are to end within two minutes.
        let criterion = Criterion::default()
            .sample_size(10)
            .nresamples(1_001)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(500))
            .configure_from_args();
        Self {
            criterion,
            since: SystemTime::now(),
            rows: Vec::new(),
        }
    }

    /// Measures what is to become of this row, whose figures are still open.
    pub fn measure(&mut self, row: Row, routine: impl FnMut(&mut Bencher<'_>)) {
        let mut routine = routine;
        let case: Vec<String> = [
            row.shape.clone(),
            row.params.clone(),
            row.bytes.map(|bytes| bytes.to_string()),
            row.chunk.map(|chunk| format!("in {chunk}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        // Else criterion would write elsewhere than `rounds` looks.
        assert!(
            row.variant.len() <= 64 && !row.variant.contains([':', '/', '*']),
            "no name of a folder: {}",
            row.variant
        );
        let mut group = self.criterion.benchmark_group(&row.bench);
        let mut folder = criterion_folder().join(&row.bench).join(&row.variant);
        if case.is_empty() {
            group.bench_function(row.variant.as_str(), &mut routine);
        } else {
            let case = case.join(" ");
            group.bench_function(BenchmarkId::new(row.variant.as_str(), &case), &mut routine);
            folder.push(case);
        }
        group.finish();
        self.rows.push((folder, row));
    }

    /// Writes the rows of what was measured; arguments may have left some out, or all.
    pub fn finish(self) {
        self.criterion.final_summary();
        let mut results = Results::default();
        for (folder, mut row) in self.rows {
            let Some(rounds) = rounds(&folder, self.since) else {
                continue;
            };
            row.value = median(&rounds);
            row.spread = Some(spread(&rounds));
            results.rows.push(row);
        }
        if results.rows.is_empty() {
            return;
        }
        if std::env::args().any(|argument| argument == "--quick") {
            results
                .notes
                .push("native: a quick run, of few rounds".to_owned());
        }
        let path = results.write("native").expect("the results are written");
        println!("{}", path.display());
    }
}

/// Microseconds an iteration, of each round; None if this run did not measure it.
fn rounds(folder: &std::path::Path, since: SystemTime) -> Option<Vec<f64>> {
    let path = folder.join("new/sample.json");
    let written = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
    if written < since {
        return None;
    }
    let text = fs::read(&path).expect("a sample");
    let sample: Sample = serde_json::from_slice(&text).expect("criterion's sample");
    let each = sample.times.iter().zip(&sample.iters);
    Some(each.map(|(ns, iters)| ns / iters / 1_000.0).collect())
}

/// Where criterion writes.
fn criterion_folder() -> PathBuf {
    std::env::var_os("CRITERION_HOME").map_or_else(
        || report::folder().with_file_name("criterion"),
        PathBuf::from,
    )
}
