//! The Prometheus text of `GET /metrics`.

use super::Agent;
use super::counts::{DigestCounts, Histogram};
use super::engine::Field;
use crate::common::exposition::Text;
use crate::common::get;
use std::sync::atomic::AtomicU64;

type Result = (&'static str, fn(&DigestCounts) -> &AtomicU64);

const RESULTS: [Result; 4] = [
    ("read", |counts| &counts.read),
    ("resident", |counts| &counts.resident),
    ("missing", |counts| &counts.missing),
    ("failed", |counts| &counts.failed),
];

pub fn text(agent: &Agent) -> String {
    let counts = &agent.counts;
    let mut out = Text::new("kv_prefetch_agent_");
    out.by(
        "requests_total",
        "Messages with digests, by what became of them.",
        "result",
        &[
            ("accepted", get(&counts.accepted)),
            ("no_directory", get(&counts.no_layout)),
            ("bad_request", get(&counts.bad)),
            ("too_large", get(&counts.too_large)),
            ("unauthorized", get(&counts.unauthorized)),
            ("busy", get(&counts.busy)),
        ],
    );
    let single = |out: &mut Text, name, help, counter| {
        out.single(name, "counter", help, get(counter));
    };
    single(
        &mut out,
        "digests_total",
        "Digests of blocks in accepted messages.",
        &counts.blocks,
    );
    single(
        &mut out,
        "submitted_total",
        "Files put into the queue.",
        &counts.submitted,
    );
    single(
        &mut out,
        "dropped_total",
        "Files for which the queue had no room.",
        &counts.dropped,
    );
    single(
        &mut out,
        "duplicates_total",
        "Files that were in the queue, or being read, already.",
        &counts.duplicates,
    );
    out.head(
        "files_total",
        "counter",
        "Files that a reader was done with, by the digest of their directory.",
    );
    for (digest, of) in counts.digests() {
        for (result, value) in RESULTS {
            let labels = format!("digest=\"{digest}\",result=\"{result}\"");
            out.line("files_total", &labels, get(value(&of)));
        }
    }
    single(
        &mut out,
        "read_bytes_total",
        "Bytes of the heads that were read.",
        &counts.bytes,
    );
    histogram(
        &mut out,
        "read_seconds",
        "How long it took to read one head.",
        &counts.read,
    );
    histogram(
        &mut out,
        "queue_seconds",
        "How long a file waited for a reader.",
        &counts.waited,
    );
    out.single(
        "queue_length",
        "gauge",
        "Files that wait.",
        agent.pool.queued(),
    );
    out.single(
        "readers_busy",
        "gauge",
        "Readers at a file.",
        get(&counts.reading),
    );
    out.head(
        "directory_info",
        "gauge",
        "Directories of the connector that are read from.",
    );
    for directory in agent.directories().iter() {
        let layout = &directory.layout;
        let labels = format!(
            "digest=\"{}\",ranks=\"{}\",groups=\"{}\",blocks_per_file=\"{}\",config_json=\"{}\"",
            layout.digest,
            layout.sizes.ranks,
            layout.sizes.groups,
            layout.sizes.blocks_per_file,
            directory.connector.is_some()
        );
        out.line("directory_info", &labels, 1);
    }
    out.by(
        "engine_checks_total",
        "How often the engine was asked for its configuration.",
        "result",
        &[
            ("ok", get(&counts.engine_ok)),
            ("failed", get(&counts.engine_failed)),
        ],
    );
    out.head(
        "engine_mismatch",
        "gauge",
        "1 while the engine says something else than the agent reads by.",
    );
    let wrong = agent.mismatches();
    for field in Field::ALL {
        let is_wrong = wrong.iter().any(|wrong| wrong.field == field);
        out.line(
            "engine_mismatch",
            &format!("field=\"{}\"", field.as_str()),
            u8::from(is_wrong),
        );
    }
    out.head("info", "gauge", "The version.");
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    out.line("info", &version, 1);
    out.finish()
}

fn histogram(out: &mut Text, name: &str, help: &str, of: &Histogram) {
    out.head(name, "histogram", help);
    let bucket = format!("{name}_bucket");
    for (bound, count) in of.buckets() {
        out.line(&bucket, &format!("le=\"{bound}\""), get(count));
    }
    out.line(&bucket, "le=\"+Inf\"", get(&of.count));
    let seconds = get(&of.nanos) as f64 / 1e9;
    out.line(&format!("{name}_sum"), "", seconds);
    out.line(&format!("{name}_count"), "", get(&of.count));
}
