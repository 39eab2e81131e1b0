//! Members (section 6).

use serde::Deserialize;

use crate::cbor::Item;
use crate::json;
use crate::record::{close, entry_len, excess, keep_known, moment, open, time_of};
use crate::{NAME, Refusal};

const MAX_OTHERS: usize = 16;
const FRESH_MS: u64 = 60_000;
/// An entry from further away is forgotten.
const FORGET_MS: u64 = 600_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    writer: Option<String>,
    endpoints: Vec<String>,
    t: Option<u64>,
    ago: Option<i64>,
}

impl Membership {
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        json::parse(body)
    }

    pub fn merge(&self, stored: Option<&[u8]>, now: u64) -> Result<Vec<u8>, Refusal> {
        let name = self.writer.as_deref().unwrap_or(NAME);
        let mut record = open(stored, "writers", Item::Map(Vec::new()));
        if let Some(Item::Map(writers)) = record.get_mut("writers") {
            let own = |key: &Item| key.as_text() == Some(name);
            writers.retain(|(key, entry)| {
                own(key) || distance(entry, now).is_some_and(|d| d <= FORGET_MS)
            });
            let others = |writers: &[(Item, Item)]| writers.iter().filter(|(k, _)| !own(k)).count();
            while others(writers) >= MAX_OTHERS {
                if !drop_furthest(writers, name, now) {
                    return Err(Refusal("16 other writers are there".into()));
                }
            }
        }
        if let Some(writers) = record.get_mut("writers") {
            writers.set(name, self.entry(now));
        }
        fit(&mut record, name, now);
        close(&record)
    }

    fn entry(&self, now: u64) -> Item {
        let endpoints = self.endpoints.iter().map(|e| Item::text(e)).collect();
        Item::map([
            ("t", Item::Uint(moment(self.t, self.ago, now))),
            ("endpoints", Item::Array(endpoints)),
        ])
    }
}

/// How far a well-formed entry is from now, in ms.
fn distance(entry: &Item, now: u64) -> Option<u64> {
    let endpoints = entry.get("endpoints")?.as_array()?;
    let well_formed = endpoints.iter().all(|e| e.as_text().is_some());
    time_of(entry, "t")
        .filter(|_| well_formed)
        .map(|t| t.abs_diff(now))
}

/// Drops the other writer that is furthest from now, if it is not fresh. Whether one went.
fn drop_furthest(writers: &mut Vec<(Item, Item)>, own: &str, now: u64) -> bool {
    let others = writers.iter().enumerate();
    let stale = others
        .filter(|(_, (key, _))| key.as_text() != Some(own))
        .filter_map(|(i, (_, entry))| Some((distance(entry, now)?, i)))
        .filter(|(distance, _)| *distance > FRESH_MS)
        .max();
    stale.map(|(_, i)| writers.remove(i)).is_some()
}

/// Within the value's limit: first without unknown keys, then without writers that are not fresh.
fn fit(record: &mut Item, own: &str, now: u64) {
    if excess(record) == 0 {
        return;
    }
    keep_known(record, &["v", "writers"]);
    let mut surplus = excess(record);
    if let Some(Item::Map(writers)) = record.get_mut("writers") {
        while surplus > 0 {
            let before: usize = writers.iter().map(entry_len).sum();
            if !drop_furthest(writers, own, now) {
                break;
            }
            let after: usize = writers.iter().map(entry_len).sum();
            surplus = surplus.saturating_sub(before.saturating_sub(after));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor::{decode, encode};
    use crate::hex::{from_hex, to_hex};

    const NOW: u64 = 1_790_000_000_000;

    fn write(stored: Option<&[u8]>, body: &str) -> Result<Vec<u8>, Refusal> {
        Membership::parse(body.as_bytes())?.merge(stored, NOW)
    }

    fn names(value: &[u8]) -> Vec<String> {
        let record = decode(value).expect("a record");
        let writers = record.get("writers").and_then(Item::as_map);
        let keys = writers
            .expect("writers")
            .iter()
            .filter_map(|(k, _)| k.as_text());
        keys.map(str::to_owned).collect()
    }

    fn record(writers: Vec<(String, Item)>) -> Vec<u8> {
        let writers = writers
            .into_iter()
            .map(|(name, entry)| (Item::Text(name), entry));
        encode(&Item::map([
            ("v", Item::Uint(1)),
            ("writers", Item::Map(writers.collect())),
        ]))
    }

    fn entry(t: u64) -> Item {
        Item::map([("t", Item::Uint(t)), ("endpoints", Item::Array(vec![]))])
    }

    #[test]
    fn the_documents_example_comes_out_exactly() {
        let example = from_hex(include_str!("../testdata/members.hex")).expect("hex");
        let body =
            r#"{"writer":"my-scorer","endpoints":["10.0.0.7:8000","10.0.0.8:8000"],"ago":0}"#;
        let value = write(None, body).expect("it fits");
        assert_eq!(to_hex(&value), to_hex(&example));
        // A second time it replaces its own entry.
        assert_eq!(write(Some(&value), body).expect("it fits"), example);
    }

    #[test]
    fn old_and_malformed_writers_go_and_the_others_stay_as_they_are() {
        let mut noted = entry(NOW + 600_000);
        noted.set("acme", Item::Simple(23));
        let mut wrong = entry(NOW);
        wrong.set("endpoints", Item::Array(vec![Item::Uint(1)]));
        let stored = record(vec![
            ("old".into(), entry(NOW - 600_001)),
            ("far".into(), entry(NOW + 600_001)),
            ("noted".into(), noted.clone()),
            ("wrong".into(), wrong),
            ("none".into(), Item::Uint(1)),
        ]);
        let value = write(Some(&stored), r#"{"writer":"me","endpoints":[]}"#).expect("it fits");
        assert_eq!(names(&value), ["noted", "me"]);
        let record = decode(&value).expect("a record");
        let kept = record.get("writers").and_then(|w| w.get("noted"));
        assert_eq!(kept, Some(&noted));
    }

    #[test]
    fn the_seventeenth_writer_waits_for_one_that_is_not_fresh() {
        for (ages, outcome) in [
            (vec![0; 15], Ok(16)),
            (vec![60_000; 16], Err("16 other writers are there")),
            ([vec![60_001, 70_000], vec![0; 14]].concat(), Ok(16)),
        ] {
            let writers = ages.iter().enumerate();
            let stored = record(
                writers
                    .map(|(i, age)| (format!("w{i}"), entry(NOW - age)))
                    .collect(),
            );
            let value = write(Some(&stored), r#"{"writer":"me","endpoints":[]}"#);
            match outcome {
                Ok(count) => {
                    let names = names(&value.expect("it fits"));
                    assert_eq!(names.len(), count);
                    // The furthest went, not the next one.
                    assert_eq!(names.contains(&"w1".to_owned()), count > ages.len());
                    assert!(names.contains(&"w0".to_owned()));
                }
                Err(message) => assert_eq!(value, Err(Refusal(message.into()))),
            }
        }
    }

    #[test]
    fn too_large_a_value_loses_unknown_keys_then_stale_writers_or_is_not_written() {
        let big = |t: u64| {
            let text = Item::Text("x".repeat(100_000));
            Item::map([("t", Item::Uint(t)), ("endpoints", Item::Array(vec![text]))])
        };
        let body = |padding: usize| {
            format!(
                r#"{{"writer":"me","endpoints":["{}"]}}"#,
                "y".repeat(padding)
            )
        };
        let two = |age| {
            let writers = [("a", big(NOW - age)), ("b", big(NOW)), ("c", entry(NOW))];
            let writers = writers.map(|(name, entry)| (Item::text(name), entry));
            encode(&Item::map([
                ("v", Item::Uint(1)),
                ("acme", Item::Bytes(vec![0; 50_000])),
                ("writers", Item::Map(writers.into())),
            ]))
        };
        let value = write(Some(&two(0)), &body(30_000)).expect("it fits");
        assert_eq!(names(&value), ["a", "b", "c", "me"]);
        assert!(decode(&value).is_some_and(|record| record.get("acme").is_none()));

        let value = write(Some(&two(60_001)), &body(100_000)).expect("it fits");
        assert_eq!(names(&value), ["b", "c", "me"]);
        let refusal = write(Some(&two(60_000)), &body(100_000)).expect_err("no room");
        assert!(refusal.0.starts_with("the value would be "), "{refusal:?}");
    }
}
