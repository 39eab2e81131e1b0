//! The Prometheus text of `GET /metrics`.

use super::hub::Hub;
use super::log::{Source, State};
use crate::common::exposition::Text;
use crate::common::get;
use std::fmt::Write;

/// A family of one value for each source.
type Family = (&'static str, &'static str, &'static str, fn(&Source) -> u64);

const SOURCES: [Family; 10] = [
    (
        "connected",
        "gauge",
        "1 while the engine's publisher is connected.",
        |source| u64::from(source.state != State::Connecting),
    ),
    (
        "connections_total",
        "counter",
        "Connections to the publisher.",
        |source| source.counts.connections,
    ),
    (
        "batch_bytes_total",
        "counter",
        "Payload bytes of the batches taken.",
        |source| source.counts.bytes,
    ),
    (
        "duplicates_total",
        "counter",
        "Batches that a replay had already brought.",
        |source| source.counts.duplicates,
    ),
    (
        "gaps_total",
        "counter",
        "Places where batches are lost, or where nobody can vouch that none are.",
        |source| source.counts.gaps,
    ),
    (
        "starts_total",
        "counter",
        "Engine processes seen to begin.",
        |source| source.counts.starts,
    ),
    (
        "log_records",
        "gauge",
        "Records now in the log.",
        |source| source.held().0 as u64,
    ),
    ("log_bytes", "gauge", "Bytes now in the log.", |source| {
        source.held().1 as u64
    }),
    (
        "log_evicted_total",
        "counter",
        "Records dropped from the log to keep its bounds.",
        |source| source.counts.evicted,
    ),
    (
        "log_complete",
        "gauge",
        "1 while a new reader gets the engine's whole history.",
        |source| u64::from(source.complete()),
    ),
];

/// A family of one value for each source and value of a label.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, fn(&Source) -> u64)],
);

const LABELLED: [Labelled; 3] = [
    (
        "batches_total",
        "via",
        "Batches taken.",
        &[
            ("live", |source| source.counts.live),
            ("replay", |source| source.counts.replayed),
        ],
    ),
    (
        "replays_total",
        "result",
        "Replays asked of the engine.",
        &[
            ("ok", |source| source.counts.replays_ok),
            ("failed", |source| source.counts.replays_failed),
        ],
    ),
    (
        "refused_total",
        "reason",
        "Messages of the engine that were not taken.",
        &[
            ("shape", |source| source.counts.refused_shape),
            ("topic", |source| source.counts.refused_topic),
            ("too_long", |source| source.counts.refused_too_long),
            ("displaced", |source| source.counts.refused_stale),
        ],
    ),
];

pub fn text(hub: &Hub) -> String {
    let mut out = Text::new("kv_events_bridge_");
    let log = hub.log();
    for (name, kind, help, value) in &SOURCES {
        out.head(name, kind, help);
        for source in log.sources() {
            out.line(name, &labels(source, None), value(source));
        }
    }
    for (name, label, help, values) in &LABELLED {
        out.head(name, "counter", help);
        for source in log.sources() {
            for (of, value) in *values {
                out.line(name, &labels(source, Some((label, of))), value(source));
            }
        }
    }
    drop(log);

    let http = &hub.http;
    out.by(
        "requests_total",
        "Requests for events, by what became of them.",
        "result",
        &[
            ("page", get(&http.pages)),
            ("bad_request", get(&http.bad)),
            ("unauthorized", get(&http.unauthorized)),
            ("busy", get(&http.busy)),
        ],
    );
    out.single(
        "page_bytes_total",
        "counter",
        "Bytes of the pages answered.",
        get(&http.page_bytes),
    );
    out.single(
        "resets_total",
        "counter",
        "Pages for readers that came without a cursor of this run.",
        get(&http.resets),
    );
    out.single(
        "readers",
        "gauge",
        "Requests for events being answered.",
        get(&http.readers),
    );
    out.by(
        "discoveries_total",
        "Engines asked where they publish.",
        "result",
        &[
            ("ok", get(&http.discoveries_ok)),
            ("failed", get(&http.discoveries_failed)),
        ],
    );
    out.head(
        "info",
        "gauge",
        "The version, and the run that cursors belong to.",
    );
    let info = format!(
        "version=\"{}\",epoch=\"{:016x}\"",
        env!("CARGO_PKG_VERSION"),
        hub.epoch
    );
    out.line("info", &info, 1);
    out.finish()
}

/// Names are checked when the configuration is read: nothing in them needs an escape.
fn labels(source: &Source, more: Option<(&str, &str)>) -> String {
    let mut out = format!(
        "endpoint=\"{}\",rank=\"{}\"",
        source.name.endpoint, source.name.rank
    );
    if let Some((label, value)) = more {
        let _ = write!(out, ",{label}=\"{value}\"");
    }
    out
}
