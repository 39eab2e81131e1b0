//! Queue samples, `selective-kv/1/queue/<bucket of endpoint>`: a short history of how many
//! requests wait at each endpoint.

use crate::sorted::{SortedMap, sort_by};

use super::Malformed;
use super::cbor::{self, Item, Kind, List, Map, Out};
use super::stores::{self, Counters, Stores};

/// Samples of one endpoint that count, and that a writer keeps.
pub const MAX_SAMPLES: usize = 32;

/// A writer adds at most one sample of an endpoint in this time.
pub const MIN_SPACING_MS: u64 = 200;

/// A sample older than the newest one by at most this is a late answer and is dropped. By more,
/// the clock stepped back and the history starts afresh.
pub const LATE_MS: u64 = 2_000;

/// Requests waiting at one endpoint at one time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Unix ms.
    pub t_ms: u64,
    /// Requests; finite and not negative.
    pub waiting: f64,
}

/// The valid samples of one endpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct History {
    /// Strictly ascending in time, the newest 32. Empty if `out_of_order`.
    pub samples: Vec<Sample>,
    /// Entries that are no sample: not `[t, waiting]`, `t` no unsigned integer, `waiting` not a
    /// finite number from 0.
    pub invalid: u32,
    /// A sample was older than the one before it, so none of them can be trusted.
    pub out_of_order: bool,
}

/// What a queue record says about one endpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct QueueEntry {
    pub history: History,
    /// For example `vllm`.
    pub engine: Option<String>,
    /// For example `0.32.0`.
    pub version: Option<String>,
    /// When the engine's process started, Unix ms.
    pub started_ms: Option<u64>,
    /// What storing costs, by tier; empty if nobody said.
    pub stores: Stores,
    /// Parts of `stores` that are none.
    pub invalid_stores: u32,
    /// The entry is no map or has no `samples` array; all else is empty then.
    pub malformed: bool,
}

/// The endpoints of one bucket. An empty value is an empty bucket.
///
/// # Errors
/// [`Malformed`] for the value as a whole; a bad entry only sets its own `malformed`.
pub fn decode(value: &[u8]) -> Result<SortedMap<String, QueueEntry>, Malformed> {
    if value.is_empty() {
        return Ok(SortedMap::new());
    }
    let record = cbor::record(value)?;
    let endpoints = record.get("endpoints").and_then(Item::map);
    let endpoints = endpoints.ok_or(Malformed::Shape)?.iter();
    let endpoints =
        endpoints.filter_map(|(name, entry)| Some((name.text()?.into_owned(), queue_entry(entry))));
    Ok(endpoints.collect())
}

fn queue_entry(entry: Item<'_>) -> QueueEntry {
    let fields = entry.map().unwrap_or(Map::EMPTY);
    let [samples, engine, version, started, stores] =
        fields.pick(["samples", "engine", "version", "started", "stores"]);
    let Some(samples) = samples.and_then(Item::array) else {
        return QueueEntry {
            malformed: true,
            ..QueueEntry::default()
        };
    };
    let owned = |item: Option<Item<'_>>| Some(item?.text()?.into_owned());
    let (stores, invalid_stores) = stores::decode(stores);
    QueueEntry {
        history: history(samples),
        engine: owned(engine),
        version: owned(version),
        started_ms: started.and_then(Item::uint),
        stores,
        invalid_stores,
        malformed: false,
    }
}

fn history(raw: List<'_>) -> History {
    let mut out = History::default();
    for item in raw.iter() {
        let Some(sample) = sample(item) else {
            out.invalid = out.invalid.saturating_add(1);
            continue;
        };
        match out.samples.last() {
            Some(last) if sample.t_ms < last.t_ms => out.out_of_order = true,
            Some(last) if sample.t_ms == last.t_ms => {}
            _ => out.samples.push(sample),
        }
    }
    if out.out_of_order {
        out.samples = Vec::new();
    }
    keep_newest(&mut out.samples, MAX_SAMPLES);
    out
}

fn keep_newest<T>(items: &mut Vec<T>, n: usize) {
    items.drain(..items.len().saturating_sub(n));
}

fn sample(item: Item<'_>) -> Option<Sample> {
    let (t, waiting) = item.array()?.pair()?;
    #[allow(clippy::cast_precision_loss)] // a queue that long is long either way
    let waiting = match waiting.kind() {
        Kind::Uint(n) => n as f64,
        Kind::Float(w) if w.is_finite() && w >= 0.0 => w.abs(), // -0.0
        _ => return None,
    };
    Some(Sample {
        t_ms: t.uint()?,
        waiting,
    })
}

/// What a writer has to say of one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    pub endpoint: &'a str,
    pub sample: Sample,
    /// Replaces what the entry says; `None` leaves it.
    pub engine: Option<&'a str>,
    /// The same.
    pub version: Option<&'a str>,
    /// The same: when the engine's process started, Unix ms.
    pub started_ms: Option<u64>,
    /// Store counters by tier, of the sample's time. `None` leaves what the entry says.
    pub stores: Option<&'a [(String, Counters)]>,
    /// Forget what the entry said: the endpoint was away, and its old queue says nothing now.
    pub afresh: bool,
}

impl<'a> Measured<'a> {
    /// A sample and nothing else.
    #[must_use]
    pub const fn of(endpoint: &'a str, sample: Sample) -> Self {
        Self {
            endpoint,
            sample,
            engine: None,
            version: None,
            started_ms: None,
            stores: None,
            afresh: false,
        }
    }
}

/// The record with one more sample, ready for compare-and-swap; `None` if there is nothing to
/// write: the sample is invalid, less than [`MIN_SPACING_MS`] after the newest one, late
/// ([`LATE_MS`]), or the record would not fit.
///
/// Other endpoints' entries
/// and unknown keys stay as they are. Entries whose newest sample is more than `keep_ms` from
/// `now_ms` either way, or that have no valid sample, are dropped. A malformed `old` is replaced.
#[must_use]
pub fn push_sample(
    old: Option<&[u8]>,
    measured: &Measured<'_>,
    now_ms: u64,
    keep_ms: u64,
) -> Option<Vec<u8>> {
    let Measured {
        endpoint, sample, ..
    } = *measured;
    if !sample.waiting.is_finite() || sample.waiting < 0.0 {
        return None;
    }
    let record = cbor::old_record(old);
    let entries = record.get("endpoints").and_then(Item::map);
    let entries = entries.unwrap_or(Map::EMPTY).iter();
    let entries = entries.filter_map(|(name, entry)| Some((name.text()?, entry)));
    let mut entries: SortedMap<_, Item<'_>> = entries.collect();
    let before = entries.remove(endpoint).filter(|_| !measured.afresh);
    let own = own_entry(before, measured)?;
    let mut others: Vec<(u64, &str, Item<'_>)> = entries
        .iter()
        .filter_map(|(name, entry)| Some((newest(*entry)?, name.as_ref(), *entry)))
        .filter(|(newest, _, _)| newest.abs_diff(now_ms) <= keep_ms)
        .collect();
    // Newest first: if the record does not fit, the stalest entries go.
    sort_by(&mut others, |(a, a_name, _), (b, b_name, _)| {
        b.cmp(a).then(a_name.cmp(b_name))
    });

    loop {
        let others_bytes = others.iter().map(|&(_, n, e)| (n, e.bytes()));
        let mut all: SortedMap<&str, &[u8]> = others_bytes.collect();
        all.insert(endpoint, own.as_slice());
        let mut body = Out::default();
        body.map(all.len());
        for (name, entry) in all {
            body.text(name).raw(entry);
        }
        if let Some(bytes) = cbor::encode_record(record, "endpoints", body.as_slice()) {
            return Some(bytes);
        }
        if others.is_empty() {
            return None;
        }
        others.truncate(others.len() / 2);
    }
}

/// The endpoint's entry with the sample at its end, unknown keys kept.
fn own_entry(old: Option<Item<'_>>, measured: &Measured<'_>) -> Option<Out> {
    let Measured {
        sample,
        engine,
        version,
        started_ms,
        stores,
        ..
    } = *measured;
    let fields = old.and_then(Item::map).unwrap_or(Map::EMPTY);
    let old_samples = fields.get("samples").and_then(Item::array);
    let mut samples = old_samples.map(history).unwrap_or_default().samples;
    if let Some(newest) = samples.last().map(|s| s.t_ms) {
        let apart = sample.t_ms.abs_diff(newest);
        if sample.t_ms >= newest {
            if apart < MIN_SPACING_MS {
                return None;
            }
        } else if apart <= LATE_MS {
            return None;
        } else {
            samples.clear();
        }
    }
    samples.push(sample);
    keep_newest(&mut samples, MAX_SAMPLES);

    let mut out = Out::default();
    out.text("samples").array(samples.len());
    for sample in &samples {
        out.array(2).uint(sample.t_ms);
        write_number(&mut out, sample.waiting);
    }
    let mut len = 1usize;
    for (key, new) in [("engine", engine), ("version", version)] {
        match (new, fields.get(key)) {
            (Some(new), _) => out.text(key).text(new),
            (None, Some(old)) => out.text(key).raw(old.bytes()),
            (None, None) => continue,
        };
        len = len.saturating_add(1);
    }
    let old_started = fields.get("started");
    if started_ms.is_some() || old_started.is_some() {
        out.text("started");
        match (started_ms, old_started) {
            (Some(new), _) => out.uint(new),
            (None, old) => out.raw(old.map_or(&[], Item::bytes)),
        };
        len = len.saturating_add(1);
    }
    let old_stores = fields.get("stores");
    let merged = stores.map(|measured| stores::merged(old_stores, measured, sample.t_ms));
    let stores = match &merged {
        Some(merged) => merged.as_ref().map(Out::as_slice),
        None => old_stores.map(Item::bytes),
    };
    if let Some(stores) = stores {
        out.text("stores").raw(stores);
        len = len.saturating_add(1);
    }
    let known = ["samples", "engine", "version", "started", "stores"];
    for (key, value) in fields.iter() {
        if !known.iter().any(|k| key.is_text(k)) {
            out.raw(key.bytes()).raw(value.bytes());
            len = len.saturating_add(1);
        }
    }
    let mut entry = Out::default();
    entry.map(len).raw(out.as_slice());
    Some(entry)
}

/// Time of an entry's newest valid sample, Unix ms.
fn newest(entry: Item<'_>) -> Option<u64> {
    let samples = entry.map()?.get("samples")?.array()?;
    history(samples).samples.last().map(|s| s.t_ms)
}

/// An integer if it is one.
pub(super) fn write_number(out: &mut Out, number: f64) {
    /// 2⁵³: integers up to here are exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked
    if number.fract() == 0.0 && number <= EXACT {
        out.uint(number as u64);
    } else {
        out.float(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const EP: &str = "10.0.0.7:8000";
    const T: u64 = 1_790_000_000_000;
    const KEEP: u64 = 600_000;

    fn record(endpoints: &str) -> Vec<u8> {
        crate::contract::cbor::from_json(&format!(r#"{{"v":1,"endpoints":{endpoints}}}"#))
    }

    fn history_of(samples: &str) -> History {
        let bytes = record(&format!(r#"{{"e":{{"samples":{samples}}}}}"#));
        let entry = decode(&bytes).unwrap().remove("e").unwrap();
        assert!(!entry.malformed);
        entry.history
    }

    fn pairs(history: &History) -> Vec<(u64, f64)> {
        history
            .samples
            .iter()
            .map(|s| (s.t_ms, s.waiting))
            .collect()
    }

    #[test]
    fn samples_that_count() {
        type Row = (&'static str, &'static [(u64, f64)], u32, bool);
        let table: &[Row] = &[
            ("[]", &[], 0, false),
            (
                "[[1,0],[2,3],[5,2.5]]",
                &[(1, 0.0), (2, 3.0), (5, 2.5)],
                0,
                false,
            ),
            ("[[1,-0.0]]", &[(1, 0.0)], 0, false),
            (
                "[[0,18446744073709551615]]",
                &[(0, 18_446_744_073_709_551_615.0)],
                0,
                false,
            ),
            // Not a sample: counted, the others stay.
            (
                "[[1,2],[2,-1],[3,-0.5],[4,null],[5,\"6\"],[6,true],[7,8]]",
                &[(1, 2.0), (7, 8.0)],
                5,
                false,
            ),
            (
                "[5,null,{},[],[1],[1,2,3],[1.0,2],[-1,2],[\"1\",2],[9,1]]",
                &[(9, 1.0)],
                9,
                false,
            ),
            // Equal time: the first one stays.
            ("[[1,2],[1,9],[2,3]]", &[(1, 2.0), (2, 3.0)], 0, false),
            // Out of order: no history at all, invalid ones still counted.
            ("[[1,2],[3,4],[2,3],[9,9]]", &[], 0, true),
            ("[[1,2],[0,null],[3,4],[2,3]]", &[], 1, true),
            // An invalid sample has no place in the order.
            ("[[1,2],[9,null],[3,4]]", &[(1, 2.0), (3, 4.0)], 1, false),
        ];
        for (samples, expected, invalid, out_of_order) in table {
            let history = history_of(samples);
            assert_eq!(pairs(&history), *expected, "{samples}");
            assert_eq!(history.invalid, *invalid, "{samples}");
            assert_eq!(history.out_of_order, *out_of_order, "{samples}");
        }
    }

    #[test]
    fn floats_that_json_cannot_write_are_no_samples() {
        for w in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut out = Out::default();
            out.array(1).array(2).uint(1).float(w);
            let history = history(Item::parse(out.as_slice()).unwrap().array().unwrap());
            assert_eq!((history.samples.len(), history.invalid), (0, 1), "{w}");
        }
    }

    #[test]
    fn of_more_than_32_samples_the_newest_count() {
        let samples: Vec<String> = (0..40).map(|i| format!("[{i},{i}]")).collect();
        let history = history_of(&format!("[{}]", samples.join(",")));
        let expected: Vec<(u64, f64)> = (8..40u32).map(|i| (u64::from(i), f64::from(i))).collect();
        assert_eq!(pairs(&history), expected);
    }

    #[test]
    fn order_is_judged_before_the_cut_to_32() {
        let ascending = (2..40).map(|i| format!("[{i},{i}]"));
        let samples: Vec<String> = ["[1,0]".into(), "[0,0]".into()]
            .into_iter()
            .chain(ascending)
            .collect();
        let history = history_of(&format!("[{}]", samples.join(",")));
        assert_eq!((pairs(&history).len(), history.out_of_order), (0, true));
    }

    #[test]
    fn one_malformed_entry_does_not_spoil_the_others() {
        let bytes = record(
            r#"{"a":{"samples":[[1,2]],"engine":"vllm","version":"0.32.0","new":[1]},
                "b":5,"c":{},"d":{"samples":7},"e":{"samples":[[1,2]],"engine":1,"version":null}}"#,
        );
        let entries = decode(&bytes).unwrap();
        let malformed: Vec<&str> = entries
            .iter()
            .filter(|(_, e)| e.malformed)
            .map(|(n, _)| n.as_str())
            .collect();
        assert_eq!(malformed, ["b", "c", "d"]);
        let [a, e] = ["a", "e"].map(|name| entries.get(name).unwrap());
        assert_eq!(a.engine.as_deref(), Some("vllm"));
        assert_eq!(a.version.as_deref(), Some("0.32.0"));
        assert_eq!(pairs(&a.history), [(1, 2.0)]);
        assert_eq!((&e.engine, &e.version), (&None, &None));
    }

    #[test]
    fn a_value_that_is_no_record_is_malformed() {
        let json = crate::contract::cbor::from_json;
        assert_eq!(decode(b""), Ok(SortedMap::new()));
        assert_eq!(decode(&json(r#"{"v":1}"#)), Err(Malformed::Shape));
        assert_eq!(
            decode(&json(r#"{"v":1,"endpoints":[]}"#)),
            Err(Malformed::Shape)
        );
        assert_eq!(
            decode(&json(r#"{"v":2,"endpoints":{}}"#)),
            Err(Malformed::Version)
        );
        assert_eq!(decode(b"\xff"), Err(Malformed::Cbor));
    }

    #[test]
    fn a_returning_endpoint_begins_a_new_history() {
        let old = record(&format!(
            r#"{{"{EP}":{{"samples":[[{T},20]],"engine":"vllm","version":"0.31.0","more":1}}}}"#
        ));
        let back = Measured {
            afresh: true,
            version: Some("0.32.0"),
            ..Measured::of(
                EP,
                Sample {
                    t_ms: T + 5_000,
                    waiting: 0.0,
                },
            )
        };
        let new = push_sample(Some(&old), &back, T + 5_000, KEEP).unwrap();
        let expected = format!(
            r#"{{"{EP}":{{"samples":[[{},0]],"version":"0.32.0"}}}}"#,
            T + 5_000
        );
        assert_eq!(new, record(&expected));
        // Also at once: there is no history to be too close to.
        let at_once = Measured {
            sample: Sample {
                t_ms: T + 1,
                waiting: 0.0,
            },
            ..back
        };
        assert!(push_sample(Some(&old), &at_once, T + 1, KEEP).is_some());
    }

    #[test]
    fn store_counters_join_the_sample() {
        let counters = |bytes| Counters {
            bytes,
            seconds: 2.0,
            ema: None,
        };
        let at = |t_ms| Sample { t_ms, waiting: 1.0 };
        let write = |old: Option<&[u8]>, t_ms, stores: Option<&[(String, Counters)]>| {
            let measured = Measured {
                stores,
                ..Measured::of(EP, at(t_ms))
            };
            push_sample(old, &measured, t_ms, KEEP).unwrap()
        };
        let fs = |bytes| [("fs".to_owned(), counters(bytes))];
        let first = write(None, T, Some(&fs(7.0)));
        assert_eq!(
            first,
            record(&format!(
                r#"{{"{EP}":{{"samples":[[{T},1]],"stores":{{"fs":[[{T},7,2]]}}}}}}"#
            ))
        );
        let second = write(Some(&first), T + 1_000, Some(&fs(9.0)));
        let bytes = |record: &[u8]| -> Vec<f64> {
            let entry = decode(record).unwrap().remove(EP).unwrap();
            assert_eq!(entry.invalid_stores, 0);
            let fs = entry.stores.get("fs").cloned().unwrap_or_default();
            fs.iter().map(|sample| sample.counters.bytes).collect()
        };
        assert_eq!(bytes(&second), [7.0, 9.0]);
        // Not known: as it was. Known to be none: gone. Back after an absence: afresh.
        assert_eq!(bytes(&write(Some(&second), T + 2_000, None)), [7.0, 9.0]);
        assert!(bytes(&write(Some(&second), T + 2_000, Some(&[]))).is_empty());
        let stores = fs(9.5);
        let back = Measured {
            afresh: true,
            stores: Some(&stores),
            ..Measured::of(EP, at(T + 2_000))
        };
        let back = push_sample(Some(&second), &back, T + 2_000, KEEP).unwrap();
        assert_eq!(bytes(&back), [9.5]);
        // So does when the engine started.
        let started = |old: Option<&[u8]>, t_ms, started_ms| {
            let measured = Measured {
                started_ms,
                ..Measured::of(EP, at(t_ms))
            };
            push_sample(old, &measured, t_ms, KEEP).unwrap()
        };
        let of = |record: &[u8]| decode(record).unwrap().remove(EP).unwrap().started_ms;
        let first = started(None, T, Some(7));
        let text = format!(r#"{{"{EP}":{{"samples":[[{T},1]],"started":7}}}}"#);
        assert_eq!(first, record(&text));
        let second = started(Some(&first), T + 1_000, None);
        assert_eq!(of(&second), Some(7));
        assert_eq!(of(&started(Some(&second), T + 2_000, Some(9))), Some(9));
        // A bad `stores` spoils nothing else.
        let bad = record(r#"{"e":{"samples":[[1,2]],"stores":7}}"#);
        let entry = decode(&bad).unwrap().remove("e").unwrap();
        assert_eq!((entry.malformed, entry.invalid_stores), (false, 1));
        assert_eq!(pairs(&entry.history), [(1, 2.0)]);
    }

    fn push(old: Option<&[u8]>, t_ms: u64, waiting: f64) -> Option<Vec<u8>> {
        push_sample(old, &Measured::of(EP, Sample { t_ms, waiting }), t_ms, KEEP)
    }

    fn samples_of(bytes: &[u8], endpoint: &str) -> Vec<(u64, f64)> {
        pairs(&decode(bytes).unwrap().get(endpoint).unwrap().history)
    }

    #[test]
    fn a_pushed_sample_is_encoded_in_the_shortest_form() {
        let sample = Sample {
            t_ms: 5,
            waiting: 3.0,
        };
        let vllm = Measured {
            engine: Some("vllm"),
            ..Measured::of("e", sample)
        };
        let bytes = push_sample(None, &vllm, 5, KEEP).unwrap();
        let expected =
            b"\xa2\x61v\x01\x69endpoints\xa1\x61e\xa2\x67samples\x81\x82\x05\x03\x66engine\x64vllm";
        assert_eq!(bytes, expected);
        let bytes = push(None, T, 2.5).unwrap();
        assert_eq!(samples_of(&bytes, EP), [(T, 2.5)]);
    }

    #[test]
    fn which_samples_are_written() {
        let two = push(Some(&push(None, T, 1.0).unwrap()), T + 1_000, 2.0).unwrap();
        // (time after T, the history after it; None = nothing written)
        let table: &[(i64, Option<&[u64]>)] = &[
            (1_000, None),
            (1_199, None),
            (1_200, Some(&[0, 1_000, 1_200])),
            (999, None),         // late
            (-1_000, None),      // late by 2 s
            (-1_001, Some(&[])), // the clock stepped back: only the new one
        ];
        for (dt, expected) in table {
            let t = T.checked_add_signed(*dt).unwrap();
            let got = push(Some(&two), t, 3.0).map(|b| samples_of(&b, EP));
            let expected = expected.map(|times| {
                let mut all: Vec<(u64, f64)> = times
                    .iter()
                    .filter(|after| **after != 1_200)
                    .map(|after| (T + after, if *after == 0 { 1.0 } else { 2.0 }))
                    .collect();
                all.push((t, 3.0));
                all
            });
            assert_eq!(got, expected, "{dt}");
        }
        assert_eq!(push(None, T, f64::NAN), None);
        assert_eq!(push(None, T, -1.0), None);
    }

    #[test]
    fn a_history_that_does_not_count_is_replaced() {
        // (entry of EP, samples after the write)
        let table: [(String, &[u64]); 5] = [
            (format!(r#"{{"samples":[[{T},1],[{},2]]}}"#, T - 1), &[]),
            (r#"{"samples":[[1,null]]}"#.into(), &[]),
            (r#"{"samples":7}"#.into(), &[]),
            ("7".into(), &[]),
            // What is no sample goes, the others stay.
            (format!(r#"{{"samples":[[{T},1],7,[{T},2]]}}"#), &[0]),
        ];
        for (entry, before) in table {
            let old = record(&format!(r#"{{"{EP}":{entry}}}"#));
            let new = push(Some(&old), T + 1_000, 3.0).unwrap();
            let mut expected: Vec<_> = before.iter().map(|after| (T + after, 1.0)).collect();
            expected.push((T + 1_000, 3.0));
            assert_eq!(samples_of(&new, EP), expected, "{entry}");
            // Another endpoint's goes unless something in it counts.
            let name = "10.0.0.8:8000";
            let old = record(&format!(r#"{{"{name}":{entry}}}"#));
            let new = push(Some(&old), T + 1_000, 3.0).unwrap();
            let kept = decode(&new).unwrap().contains_key(name);
            assert_eq!(kept, !before.is_empty(), "{entry}");
        }
    }

    #[test]
    fn a_history_keeps_its_newest_32() {
        let mut bytes = None;
        for i in 0..40u64 {
            bytes = push(bytes.as_deref(), T + i * 200, 0.0);
        }
        let samples = samples_of(&bytes.unwrap(), EP);
        assert_eq!(samples.len(), 32);
        assert_eq!(samples[0].0, T + 8 * 200);
    }

    #[test]
    fn what_others_wrote_stays_and_what_is_old_goes() {
        let t = |ms: u64| T - ms;
        let old = crate::contract::cbor::from_json(&format!(
            r#"{{"v":1,"owner":"x","endpoints":{{
                "zz":{{"samples":[[{},4]],"engine":"sglang","extra":{{"a":[1,2]}}}},
                "aged":{{"samples":[[{},4]]}},
                "kept":{{"samples":[[{},4]]}},
                "future":{{"samples":[[{},4]]}},
                "empty":{{"samples":[]}},
                "bad":7,
                "{EP}":{{"samples":[[{},4]],"engine":"vllm","version":"0.31.0","more":1}}
            }}}}"#,
            t(0),
            t(KEEP + 1),
            t(KEEP),
            T + KEEP + 1,
            t(500),
        ));
        let sample = Sample {
            t_ms: T,
            waiting: 5.0,
        };
        let versioned = Measured {
            version: Some("0.32.0"),
            ..Measured::of(EP, sample)
        };
        let new = push_sample(Some(&old), &versioned, T, KEEP).unwrap();
        let expected = crate::contract::cbor::from_json(&format!(
            r#"{{"v":1,"endpoints":{{
                "{EP}":{{"samples":[[{},4],[{T},5]],"engine":"vllm","version":"0.32.0","more":1}},
                "kept":{{"samples":[[{},4]]}},
                "zz":{{"samples":[[{},4]],"engine":"sglang","extra":{{"a":[1,2]}}}}
            }},"owner":"x"}}"#,
            t(500),
            t(KEEP),
            t(0),
        ));
        assert_eq!(new, expected);
    }

    #[test]
    fn a_malformed_or_foreign_old_value_is_replaced() {
        let fresh = push(None, T, 1.0);
        for old in [&b"\xff\x00"[..], b"\xa1\x61v\x02", b"", b"\xa1\x61v\x01"] {
            assert_eq!(push(Some(old), T, 1.0), fresh, "{old:02x?}");
        }
    }

    #[test]
    fn a_full_record_loses_its_stalest_entries() {
        let entry = |i: u64| {
            let pad = "x".repeat(2_000);
            format!(r#""e{i}":{{"samples":[[{},1]],"pad":"{pad}"}}"#, T - i)
        };
        let entries: Vec<String> = (0..127).map(entry).collect();
        let old = record(&format!("{{{}}}", entries.join(",")));
        assert!(old.len() <= crate::contract::MAX_VALUE_BYTES);
        let name = "n".repeat(10_000);
        let sample = Sample {
            t_ms: T,
            waiting: 1.0,
        };
        let new = push_sample(Some(&old), &Measured::of(&name, sample), T, KEEP).unwrap();
        assert!(new.len() <= crate::contract::MAX_VALUE_BYTES);
        let kept = decode(&new).unwrap();
        assert_eq!(kept.len(), 64);
        assert!(kept.contains_key(&name) && kept.contains_key("e62"));
        assert!(!kept.contains_key("e63"));
        // A name too long for any record.
        let name = "n".repeat(crate::contract::MAX_VALUE_BYTES);
        assert_eq!(
            push_sample(None, &Measured::of(&name, sample), T, KEEP),
            None
        );
    }
}
