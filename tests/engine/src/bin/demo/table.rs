//! The table that a person reads.

/// Columns but the last, which takes what it needs.
const WIDTHS: [usize; 6] = [29, 18, 6, 5, 24, 5];
const RULE: usize = 124;

pub struct Row {
    pub request: String,
    pub held: String,
    pub engine: String,
    pub ewma: String,
    pub decision: String,
    pub loads: String,
    pub params: String,
    /// What is not as it must be; nothing if all is.
    pub wrong: Vec<String>,
}

pub fn head() {
    let titles = [
        "request",
        "it holds (blocks)",
        "engine",
        "EWMA",
        "decision: reason",
        "loads",
    ];
    println!("  {}    kv_transfer_params: sent → received", line(titles));
    println!("  {}", "─".repeat(RULE));
}

impl Row {
    pub fn print(&self) {
        let cells = [
            &self.request,
            &self.held,
            &self.engine,
            &self.ewma,
            &self.decision,
            &self.loads,
        ];
        let mark = if self.wrong.is_empty() { '✓' } else { '✗' };
        println!(
            "  {}  {mark} {}",
            line(cells.map(String::as_str)),
            self.params
        );
        for wrong in &self.wrong {
            println!("      ✗ {wrong}");
        }
    }
}

fn line(cells: [&str; 6]) -> String {
    let cells = cells.iter().zip(WIDTHS);
    cells
        .map(|(cell, width)| format!("{:width$}", shortened(cell, width)))
        .collect::<Vec<_>>()
        .join("  ")
}

fn shortened(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept: String = cell.chars().take(width - 1).collect();
    format!("{kept}…")
}
