//! Queue samples (section 4).

use serde::Deserialize;
use serde_json::Number;

use crate::Refusal;
use crate::cbor::Item;
use crate::json;
use crate::record::{close, entry_len, excess, keep_known, moment, open};

const MAX_SAMPLES: usize = 32;
const MIN_INTERVAL_MS: u64 = 200;
/// A step back of the clock by more starts the history afresh.
const LATE_MS: u64 = 2_000;
/// An endpoint without a sample for longer is forgotten.
const FORGET_MS: u64 = 600_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    endpoint: String,
    samples: Vec<Reading>,
    engine: Option<String>,
    version: Option<String>,
    #[serde(default)]
    afresh: bool,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a sample is [t, waiting] or {\"ago\": ms, \"waiting\": n}"
)]
enum Reading {
    At(u64, Number),
    Before { ago: i64, waiting: Number },
}

/// Samples of one endpoint to add.
#[derive(Debug, PartialEq)]
pub struct Update {
    pub endpoint: String,
    /// (Unix time in ms, requests waiting)
    samples: Vec<(u64, Item)>,
    engine: Option<String>,
    version: Option<String>,
    /// The endpoint was away: its entry begins anew.
    afresh: bool,
}

impl Update {
    pub fn parse(body: &[u8], now: u64) -> Result<Self, Refusal> {
        let body: Body = json::parse(body)?;
        if body.samples.is_empty() {
            return Err(Refusal("samples: at least one".into()));
        }
        let samples = body.samples.into_iter().map(|reading| match reading {
            Reading::At(t, waiting) => Ok((t, number(&waiting)?)),
            Reading::Before { ago, waiting } => {
                Ok((moment(None, Some(ago), now), number(&waiting)?))
            }
        });
        Ok(Update {
            endpoint: body.endpoint,
            samples: samples.collect::<Result<_, _>>()?,
            engine: body.engine,
            version: body.version,
            afresh: body.afresh,
        })
    }

    /// The new value, and how many of the samples went in.
    pub fn merge(&self, stored: Option<&[u8]>, now: u64) -> Result<(Vec<u8>, usize), Refusal> {
        let mut record = open(stored, "endpoints", Item::Map(Vec::new()));
        let mut added = 0;
        if let Some(endpoints) = record.get_mut("endpoints") {
            let mut entry = match endpoints.get(&self.endpoint) {
                Some(map @ Item::Map(_)) if !self.afresh => map.clone(),
                _ => Item::Map(Vec::new()),
            };
            added = self.add_to(&mut entry);
            endpoints.set(&self.endpoint, entry);
            forget(endpoints, &self.endpoint, now);
        }
        fit(&mut record, &self.endpoint);
        Ok((close(&record)?, added))
    }

    fn add_to(&self, entry: &mut Item) -> usize {
        let mut samples = history(entry);
        let mut added = 0;
        for (t, waiting) in &self.samples {
            match samples.last() {
                Some((newest, _)) if newest.saturating_sub(*t) > LATE_MS => samples.clear(),
                Some((newest, _)) if *t < newest.saturating_add(MIN_INTERVAL_MS) => continue,
                _ => {}
            }
            samples.push((*t, waiting.clone()));
            added += 1;
        }
        let surplus = samples.len().saturating_sub(MAX_SAMPLES);
        let kept = samples.into_iter().skip(surplus);
        let arrays = kept.map(|(t, waiting)| Item::Array(vec![Item::Uint(t), waiting]));
        entry.set("samples", Item::Array(arrays.collect()));
        for (key, text) in [("engine", &self.engine), ("version", &self.version)] {
            if let Some(text) = text {
                entry.set(key, Item::text(text));
            }
        }
        added
    }
}

fn number(waiting: &Number) -> Result<Item, Refusal> {
    let item = match (waiting.as_u64(), waiting.as_f64()) {
        (Some(n), _) => Some(Item::Uint(n)),
        (None, Some(x)) if x >= 0.0 && x.is_finite() => Some(Item::float(x)),
        _ => None,
    };
    item.ok_or_else(|| Refusal(format!("waiting: {waiting} is no number ≥ 0")))
}

/// An endpoint's samples as a reader counts them.
fn history(entry: &Item) -> Vec<(u64, Item)> {
    let mut samples: Vec<(u64, Item)> = Vec::new();
    let stored = entry.get("samples").and_then(Item::as_array);
    for (t, waiting) in stored.unwrap_or_default().iter().filter_map(sample) {
        match samples.last() {
            Some((before, _)) if t < *before => return Vec::new(),
            Some((before, _)) if t == *before => {}
            _ => samples.push((t, waiting.clone())),
        }
    }
    samples
}

fn sample(item: &Item) -> Option<(u64, &Item)> {
    match item.as_array()? {
        [t, waiting] => {
            let counts = waiting
                .as_number()
                .is_some_and(|n| n >= 0.0 && n.is_finite());
            Some((t.as_uint()?, waiting)).filter(|_| counts)
        }
        _ => None,
    }
}

fn newest(entry: &Item) -> Option<u64> {
    history(entry).last().map(|(t, _)| *t)
}

/// Drops endpoints without a valid sample near now; what was just asked for stays.
fn forget(endpoints: &mut Item, own: &str, now: u64) {
    if let Item::Map(entries) = endpoints {
        entries.retain(|(key, entry)| {
            key.as_text() == Some(own)
                || newest(entry).is_some_and(|t| t.abs_diff(now) <= FORGET_MS)
        });
    }
}

/// Within the value's limit: first without unknown keys, then without the other endpoints not
/// measured for longest.
fn fit(record: &mut Item, own: &str) {
    if excess(record) == 0 {
        return;
    }
    keep_known(record, &["v", "endpoints"]);
    let mut surplus = excess(record);
    if let Some(Item::Map(entries)) = record.get_mut("endpoints") {
        entries.sort_by_cached_key(|(_, entry)| newest(entry));
        entries.retain(|entry| {
            let goes = surplus > 0 && entry.0.as_text() != Some(own);
            if goes {
                surplus = surplus.saturating_sub(entry_len(entry));
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor::{decode, encode};
    use crate::hex::{from_hex, to_hex};
    use crate::record::VALUE_LIMIT;

    const NOW: u64 = 1_790_000_002_000;
    const ENDPOINT: &str = "10.0.0.7:8000";

    fn post(stored: Option<&[u8]>, body: &str) -> Result<(Vec<u8>, usize), Refusal> {
        Update::parse(body.as_bytes(), NOW)?.merge(stored, NOW)
    }

    fn samples_of(value: &[u8], endpoint: &str) -> Option<Vec<(u64, f64)>> {
        let record = decode(value)?;
        let entry = record.get("endpoints")?.get(endpoint)?;
        let samples = history(entry).into_iter();
        Some(
            samples
                .map(|(t, w)| (t, w.as_number().expect("a number")))
                .collect(),
        )
    }

    #[test]
    fn the_documents_example_comes_out_exactly() {
        let example = from_hex(include_str!("../testdata/queue.hex")).expect("hex");
        let whole = r#"{"endpoint":"10.0.0.7:8000","samples":[[1790000000000,3],[1790000001000,0],[1790000002000,2.5]],"engine":"vllm","version":"0.32.0"}"#;
        let (value, added) = post(None, whole).expect("it fits");
        assert_eq!((to_hex(&value), added), (to_hex(&example), 3));

        let relative = r#"{"endpoint":"10.0.0.7:8000","engine":"vllm","version":"0.32.0","samples":[{"ago":2000,"waiting":3},{"ago":1000,"waiting":0},{"ago":0,"waiting":2.5}]}"#;
        assert_eq!(post(None, relative).expect("it fits").0, example);

        let first = r#"{"endpoint":"10.0.0.7:8000","samples":[{"ago":2000,"waiting":3}],"engine":"vllm","version":"0.32.0"}"#;
        let second = r#"{"endpoint":"10.0.0.7:8000","samples":[{"ago":1000,"waiting":0}]}"#;
        let third = r#"{"endpoint":"10.0.0.7:8000","samples":[{"ago":0,"waiting":2.5}]}"#;
        let mut stored = None;
        for body in [first, second, third] {
            stored = Some(post(stored.as_deref(), body).expect("it fits").0);
        }
        assert_eq!(stored, Some(example));
    }

    #[test]
    fn what_a_new_sample_does_to_the_history() {
        let t = 1_790_000_000_000;
        for (new, added, after) in [
            (t + 1200, 1, vec![t, t + 1000, t + 1200]),
            (t + 1199, 0, vec![t, t + 1000]),
            (t + 1000, 0, vec![t, t + 1000]),
            (t + 500, 0, vec![t, t + 1000]),
            (t - 1000, 0, vec![t, t + 1000]),
            (t - 1001, 1, vec![t - 1001]),
        ] {
            let (value, _) = post(
                None,
                &format!(
                    r#"{{"endpoint":"{ENDPOINT}","samples":[[{t},1],[{},1]]}}"#,
                    t + 1000
                ),
            )
            .expect("it fits");
            let body = format!(r#"{{"endpoint":"{ENDPOINT}","samples":[[{new},1]]}}"#);
            let (value, n) = post(Some(&value), &body).expect("it fits");
            let times: Vec<u64> = samples_of(&value, ENDPOINT)
                .expect("samples")
                .into_iter()
                .map(|(t, _)| t)
                .collect();
            assert_eq!((n, times), (added, after), "{new}");
        }
    }

    #[test]
    fn the_newest_32_stay() {
        let list: Vec<String> = (0..40)
            .map(|i| format!("[{},{i}]", NOW + i * 200))
            .collect();
        let body = format!(
            r#"{{"endpoint":"{ENDPOINT}","samples":[{}]}}"#,
            list.join(",")
        );
        let (value, added) = post(None, &body).expect("it fits");
        let samples = samples_of(&value, ENDPOINT).expect("samples");
        assert_eq!((added, samples.len()), (40, 32));
        assert_eq!(samples.first(), Some(&(NOW + 8 * 200, 8.0)));
    }

    #[test]
    fn the_rest_of_the_bucket_stays_unless_it_is_old_or_nonsense() {
        let entry = |t: u64, more: Vec<(&str, Item)>| {
            let samples = Item::Array(vec![Item::Array(vec![Item::Uint(t), Item::Uint(1)])]);
            let mut map = Item::map([("samples", samples)]);
            more.into_iter().for_each(|(k, v)| map.set(k, v));
            map
        };
        let unknown = || vec![("acme_note", Item::Array(vec![Item::Simple(23)]))];
        let own = entry(NOW - 1000, unknown());
        let kept = entry(NOW - 600_000, unknown());
        let ahead = entry(NOW + 600_000, vec![]);
        let record = Item::map([
            ("v", Item::Uint(1)),
            (
                "endpoints",
                Item::map([
                    ("kept", kept.clone()),
                    ("ahead", ahead.clone()),
                    (ENDPOINT, own),
                    ("old", entry(NOW - 600_001, vec![])),
                    ("far", entry(NOW + 600_001, vec![])),
                    ("none", Item::map([("samples", Item::Array(vec![]))])),
                    ("other", Item::Uint(1)),
                ]),
            ),
            ("acme_top", Item::Negative(0)),
        ]);

        let body = format!(r#"{{"endpoint":"{ENDPOINT}","samples":[{{"ago":0,"waiting":2}}]}}"#);
        let (value, _) = post(Some(&encode(&record)), &body).expect("it fits");
        let after = decode(&value).expect("a record");

        let endpoints = after.get("endpoints").expect("endpoints");
        assert_eq!(endpoints.as_map().map(<[_]>::len), Some(3));
        assert_eq!(endpoints.get("kept"), Some(&kept));
        assert_eq!(endpoints.get("ahead"), Some(&ahead));
        assert_eq!(
            endpoints.get(ENDPOINT).and_then(|e| e.get("acme_note")),
            Some(&Item::Array(vec![Item::Simple(23)]))
        );
        assert_eq!(
            samples_of(&value, ENDPOINT),
            Some(vec![(NOW - 1000, 1.0), (NOW, 2.0)])
        );
        assert_eq!(after.get("acme_top"), Some(&Item::Negative(0)));
    }

    #[test]
    fn too_large_a_value_loses_unknown_keys_then_the_endpoints_longest_unmeasured() {
        let stored = |padding: usize, unknown: usize| {
            let endpoints = (0..4u64).map(|i| {
                let t = Item::Uint(NOW - 1000 * (i + 1));
                let samples = Item::Array(vec![Item::Array(vec![t, Item::Uint(1)])]);
                let engine = Item::Text("x".repeat(padding));
                let entry = Item::map([("samples", samples), ("engine", engine)]);
                (Item::Text(i.to_string()), entry)
            });
            encode(&Item::map([
                ("v", Item::Uint(1)),
                ("acme", Item::Bytes(vec![0; unknown])),
                ("endpoints", Item::Map(endpoints.collect())),
            ]))
        };
        let body = format!(
            r#"{{"endpoint":"{ENDPOINT}","samples":[{{"ago":9000,"waiting":2}}],"engine":"{}"}}"#,
            "y".repeat(50_000)
        );
        let names = |value: &[u8]| {
            let record = decode(value).expect("a record");
            let mut names: Vec<String> = record
                .get("endpoints")
                .and_then(Item::as_map)
                .expect("a map")
                .iter()
                .filter_map(|(k, _)| k.as_text().map(str::to_owned))
                .collect();
            names.sort();
            (names, record.get("acme").is_some())
        };

        // given 4 × 1,000 bytes and 257,000 that nobody knows
        let (value, _) = post(Some(&stored(1000, 257_000)), &body).expect("it fits");
        assert_eq!(
            names(&value),
            (
                ["0", "1", ENDPOINT, "2", "3"].map(String::from).into(),
                false
            )
        );
        // given 4 × 65,000 bytes
        let (value, _) = post(Some(&stored(65_000, 0)), &body).expect("it fits");
        assert!(value.len() <= VALUE_LIMIT);
        assert_eq!(
            names(&value),
            (["0", "1", ENDPOINT, "2"].map(String::from).into(), false)
        );
    }

    #[test]
    fn an_endpoint_that_was_away_begins_a_new_entry() {
        let body = |more: &str| {
            format!(r#"{{"endpoint":"{ENDPOINT}","samples":[{{"ago":0,"waiting":2}}]{more}}}"#)
        };
        let old =
            r#"{"endpoint":"10.0.0.7:8000","samples":[{"ago":1000,"waiting":9}],"engine":"vllm"}"#;
        let (old, _) = post(None, old).expect("it fits");
        for (more, samples, engine) in [
            ("", vec![(NOW - 1000, 9.0), (NOW, 2.0)], true),
            (r#","afresh":true"#, vec![(NOW, 2.0)], false),
        ] {
            let (value, _) = post(Some(&old), &body(more)).expect("it fits");
            assert_eq!(samples_of(&value, ENDPOINT), Some(samples));
            let record = decode(&value).expect("a record");
            let entry = record.get("endpoints").and_then(|e| e.get(ENDPOINT));
            assert_eq!(entry.is_some_and(|e| e.get("engine").is_some()), engine);
        }
    }

    #[test]
    fn what_cannot_be_a_sample_is_refused() {
        for (samples, message) in [
            ("[]", "samples: at least one"),
            ("[[1,-1]]", "waiting: -1 is no number ≥ 0"),
            ("[[1,-0.5]]", "waiting: -0.5 is no number ≥ 0"),
            ("[[-1,1]]", "JSON: a sample is [t, waiting]"),
            ("[[1,\"2\"]]", "JSON: a sample is [t, waiting]"),
            ("[{\"waiting\":1}]", "JSON: a sample is [t, waiting]"),
            ("1", "JSON: invalid type: integer `1`, expected a sequence"),
        ] {
            let body = format!(r#"{{"endpoint":"a","samples":{samples}}}"#);
            let refusal = post(None, &body).expect_err(samples);
            assert!(refusal.0.starts_with(message), "{refusal:?}");
        }
    }
}
