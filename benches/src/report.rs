//! Results: each bench writes its rows to `target/bench/<bench>.json`, and `bench-table` prints them all.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One figure.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Row {
    /// What is measured: `"envoy cpu"`, `"module scan"`.
    pub bench: String,
    /// Who: `"ours"`, `"copy"`.
    pub variant: String,
    /// Of the body, see [`crate::shapes::Shape::name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Length of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// Length of the chunks, where the bench chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// See [`crate::shapes::Params::name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// `"µs"`, `"ns"`, `"MiB"`, …
    pub unit: String,
    pub value: f64,
    /// The smallest and the largest of the rounds that `value` is the median of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// The variant whose row, the same in everything else, this one is a ratio to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to: Option<String>,
}

/// One line of what is to be reached.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Reach {
    pub what: String,
    pub unit: String,
    pub measured: f64,
    /// At most.
    pub limit: f64,
}

impl Reach {
    pub fn reached(&self) -> bool {
        self.measured <= self.limit
    }
}

/// What one bench has found.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
pub struct Results {
    pub rows: Vec<Row>,
    #[serde(default)]
    pub reach: Vec<Reach>,
    /// What a reader has to know, such as that the run was a quick one.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Results {
    pub fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.reach.extend(other.reach);
        self.notes.extend(other.notes);
    }

    /// Of a row's value to that of its `ratio_to`.
    pub fn ratio(&self, row: &Row) -> Option<f64> {
        let base = Row {
            variant: row.ratio_to.clone()?,
            ..row.clone()
        };
        let base = self.rows.iter().find(|other| same_case(other, &base))?;
        (base.value != 0.0).then(|| row.value / base.value)
    }

    /// Writes `target/bench/<bench>.json`; says where.
    pub fn write(&self, bench: &str) -> io::Result<PathBuf> {
        let folder = folder();
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{bench}.json"));
        fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        Ok(path)
    }

    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    /// The rows as a table, one bench after the other, then what was to be reached.
    pub fn table(&self) -> String {
        let mut cells = vec![HEADS.map(str::to_owned)];
        for bench in self.benches() {
            let rows = self.rows.iter().filter(|row| row.bench == bench);
            cells.extend(rows.map(|row| self.cells(row)));
        }
        let mut text = String::new();
        let widths: Vec<usize> = (0..HEADS.len())
            .map(|column| {
                let widths = cells.iter().map(|line| line[column].chars().count());
                widths.max().unwrap_or(0)
            })
            .collect();
        for line in &cells {
            let mut out = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                // Figures to the right.
                let (before, after) = if column >= FIRST_FIGURE {
                    (gap.as_str(), "")
                } else {
                    ("", gap.as_str())
                };
                let _ = write!(out, "{before}{cell}{after}  ");
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
        for reach in &self.reach {
            let answer = if reach.reached() { "yes" } else { "NO" };
            let _ = writeln!(
                text,
                "reach: {}: {} {unit}, at most {} {unit}: {answer}",
                reach.what,
                number(reach.measured),
                number(reach.limit),
                unit = reach.unit,
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    /// In the order of their first rows.
    fn benches(&self) -> Vec<&str> {
        let mut benches: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !benches.contains(&row.bench.as_str()) {
                benches.push(&row.bench);
            }
        }
        benches
    }

    fn cells(&self, row: &Row) -> [String; 10] {
        let size = |bytes: Option<usize>| bytes.map(size).unwrap_or_default();
        let spread = row
            .spread
            .map(|(low, high)| format!("{}–{}", number(low), number(high)));
        let ratio = self.ratio(row).map(|ratio| format!("{ratio:.2} ×"));
        [
            row.bench.clone(),
            row.variant.clone(),
            row.shape.clone().unwrap_or_default(),
            row.params.clone().unwrap_or_default(),
            size(row.bytes),
            size(row.chunk),
            number(row.value),
            row.unit.clone(),
            spread.unwrap_or_default(),
            ratio.map_or_else(String::new, |ratio| {
                format!("{ratio} {}", row.ratio_to.as_deref().unwrap_or_default())
            }),
        ]
    }
}

const HEADS: [&str; 10] = [
    "bench", "variant", "shape", "params", "bytes", "chunk", "value", "unit", "spread", "ratio",
];
const FIRST_FIGURE: usize = 4;

/// Whether two rows differ in their figures only.
fn same_case(a: &Row, b: &Row) -> bool {
    (
        &a.bench, &a.variant, &a.shape, a.bytes, a.chunk, &a.params, &a.unit,
    ) == (
        &b.bench, &b.variant, &b.shape, b.bytes, b.chunk, &b.params, &b.unit,
    )
}

/// `target/bench` of the workspace, or below `CARGO_TARGET_DIR`.
pub fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"),
        PathBuf::from,
    );
    target.join("bench")
}

/// Three significant digits, as a person would write it.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 || v == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(variant: &str, value: f64) -> Row {
        Row {
            bench: "envoy cpu".into(),
            variant: variant.into(),
            shape: Some("chat".into()),
            bytes: Some(65_536),
            chunk: None,
            params: Some("last".into()),
            unit: "µs".into(),
            value,
            spread: None,
            ratio_to: None,
        }
    }

    #[test]
    fn a_table_has_ratios_and_says_what_was_reached() {
        let mut ours = row("ours", 24.0);
        ours.ratio_to = Some("copy".into());
        ours.spread = Some((22.5, 25.0));
        let mut elsewhere = row("copy", 1.0);
        elsewhere.bytes = Some(5000);
        let mut idle = row("copy", 0.5);
        idle.bench = "memory".into();
        let reach = |limit| Reach {
            what: "an edit, over the copy".into(),
            unit: "×".into(),
            measured: 1.5,
            limit,
        };
        let results = Results {
            rows: vec![elsewhere, idle, row("copy", 16.0), ours],
            reach: vec![reach(3.0), reach(1.25)],
            notes: vec!["quick".into()],
        };
        assert_eq!(
            results.table(),
            "bench      variant  shape  params   bytes  chunk  value  unit     spread        ratio\n\
             envoy cpu  copy     chat   last      5000          1.00    µs\n\
             envoy cpu  copy     chat   last    64 KiB          16.0    µs\n\
             envoy cpu  ours     chat   last    64 KiB          24.0    µs  22.5–25.0  1.50 × copy\n\
             memory     copy     chat   last    64 KiB         0.500    µs\n\
             reach: an edit, over the copy: 1.50 ×, at most 3.00 ×: yes\n\
             reach: an edit, over the copy: 1.50 ×, at most 1.25 ×: NO\n\
             note: quick\n"
        );
        let text = serde_json::to_string(&results).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Results>(&text).expect("JSON"),
            results
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.1234, "0.123"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (42.42, "42.4"),
            (99.96, "100"),
            (123_456.0, "123456"),
            (-1.5, "-1.50"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            [1, 4096, 1 << 20, (1 << 20) + 1].map(size),
            ["1", "4 KiB", "1 MiB", "1048577"]
        );
    }
}
