//! Tier evidence (section 5): what a request says of itself, and how it joins the bucket's record.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::cbor::{Item, encoded_len};
use crate::external::external_blocks;
use crate::json::{self, Object};
use crate::record::{close, entry_len, excess, keep_known, moment, open, time_of};
use crate::{NAME, Refusal};

const MAX_REQUESTS: usize = 4;
const ENTRY_LIMIT: usize = 16_384;
const MAX_PROMPTS: usize = 4_096;
const MAX_RUNS: usize = 65_536;
/// Of blocks, and of tokens.
const MAX_COUNT: u64 = u32::MAX as u64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    id: Option<String>,
    block_size: NonZeroU32,
    endpoints: Object<Endpoint>,
    t: Option<u64>,
    ago: Option<i64>,
    writer: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    prompts: Vec<Prompt>,
    partial: Option<bool>,
    /// Absent: the name of this filter. `null`: nobody's.
    #[serde(default, deserialize_with = "json::present")]
    writer: Option<Option<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    runs: Option<Vec<(u64, Vec<String>)>>,
    tiers: Option<Object<u64>>,
}

/// Checked evidence of one request.
#[derive(Debug)]
pub struct Evidence {
    /// The request id, if the text named one.
    pub id: Option<String>,
    t: Option<u64>,
    ago: Option<i64>,
    block_size: u64,
    endpoints: Item,
    /// Names under which this request speaks.
    own_names: Vec<String>,
}

impl Evidence {
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let body: Body = json::parse(body)?;
        let block_size = u64::from(body.block_size.get());
        let name = body.writer.unwrap_or_else(|| NAME.to_owned());
        let mut own_names = vec![name.clone()];
        let mut endpoints = Vec::new();
        for (address, endpoint) in body.endpoints.0 {
            check_limits(&endpoint.prompts, block_size)
                .map_err(|e| Refusal(format!("{address}: {e}")))?;
            let writer = endpoint.writer.unwrap_or_else(|| Some(name.clone()));
            own_names.extend(writer.clone());
            let item = endpoint_item(endpoint.prompts, endpoint.partial, writer.as_deref());
            endpoints.push((Item::Text(address), item));
        }
        Ok(Evidence {
            id: body.id,
            t: body.t,
            ago: body.ago,
            block_size,
            endpoints: Item::Map(endpoints),
            own_names,
        })
    }

    /// The bucket's new value, and how many endpoints did not fit into the request's entry.
    /// `max_age` is the longest `maxEvidenceAge` in use, in ms.
    pub fn merge(
        &self,
        id: &str,
        stored: Option<&[u8]>,
        now: u64,
        max_age: u64,
    ) -> Result<(Vec<u8>, usize), Refusal> {
        let mut record = open(stored, "requests", Item::Array(Vec::new()));
        let mut dropped = 0;
        if let Some(Item::Array(requests)) = record.get_mut("requests") {
            requests.retain(|entry| {
                entry.get("id").and_then(Item::as_text).is_some()
                    && time_of(entry, "t").is_some_and(|t| t.abs_diff(now) <= max_age)
            });
            let older = requests
                .iter()
                .rfind(|entry| is_of(entry, id))
                .filter(|entry| time_of(entry, "block_size") == Some(self.block_size))
                .cloned();
            requests.retain(|entry| !is_of(entry, id));
            let mut entry = self.entry(id, older.as_ref(), now);
            dropped = fit_entry(&mut entry);
            requests.push(entry);
            let surplus = requests.len().saturating_sub(MAX_REQUESTS);
            requests.drain(..surplus);
        }
        fit(&mut record);
        Ok((close(&record)?, dropped))
    }

    /// This request's entry, with the endpoints of other writers in an older one.
    fn entry(&self, id: &str, older: Option<&Item>, now: u64) -> Item {
        let mut t = moment(self.t, self.ago, now);
        let mut endpoints = older.map(|older| self.others(older)).unwrap_or_default();
        if !endpoints.is_empty()
            && let Some(theirs) = older.and_then(|older| time_of(older, "t"))
        {
            t = t.min(theirs);
        }
        endpoints.extend(self.endpoints.as_map().into_iter().flatten().cloned());
        Item::map([
            ("id", Item::text(id)),
            ("t", Item::Uint(t)),
            ("block_size", Item::Uint(self.block_size)),
            ("endpoints", Item::Map(endpoints)),
        ])
    }

    /// The endpoints of an older entry that belong to another writer and that we do not speak of.
    fn others(&self, older: &Item) -> Vec<(Item, Item)> {
        let entries = older.get("endpoints").and_then(Item::as_map);
        let kept = entries.into_iter().flatten().filter(|(address, endpoint)| {
            let writer = endpoint.get("writer").and_then(Item::as_text);
            let ours = address
                .as_text()
                .is_none_or(|a| self.endpoints.get(a).is_some());
            !ours && writer.is_some_and(|w| self.own_names.iter().all(|own| own != w))
        });
        kept.cloned().collect()
    }
}

fn is_of(entry: &Item, id: &str) -> bool {
    entry.get("id").and_then(Item::as_text) == Some(id)
}

fn endpoint_item(prompts: Vec<Prompt>, partial: Option<bool>, writer: Option<&str>) -> Item {
    let prompts = prompts.into_iter().map(prompt_item).collect();
    let mut item = Item::map([("prompts", Item::Array(prompts))]);
    if let Some(partial) = partial {
        item.set("partial", Item::bool(partial));
    }
    if let Some(writer) = writer {
        item.set("writer", Item::text(writer));
    }
    item
}

fn prompt_item(prompt: Prompt) -> Item {
    let mut item = Item::map([]);
    if let Some(runs) = prompt.runs {
        let runs = runs.into_iter().map(|(blocks, tiers)| {
            let tiers = tiers.into_iter().map(Item::Text).collect();
            Item::Array(vec![Item::Uint(blocks), Item::Array(tiers)])
        });
        item.set("runs", Item::Array(runs.collect()));
    }
    if let Some(tiers) = prompt.tiers {
        let tiers = tiers.0.into_iter();
        let tiers = tiers.map(|(tier, blocks)| (Item::Text(tier), Item::Uint(blocks)));
        item.set("tiers", Item::Map(tiers.collect()));
    }
    item
}

/// What a reader would call invalid.
fn check_limits(prompts: &[Prompt], block_size: u64) -> Result<(), String> {
    if prompts.is_empty() {
        return Err("prompts: at least one".into());
    }
    if prompts.len() > MAX_PROMPTS {
        return Err(format!("more than {MAX_PROMPTS} prompts"));
    }
    if prompts
        .iter()
        .any(|p| p.runs.is_none() && p.tiers.is_none())
    {
        return Err("a prompt needs runs or tiers".into());
    }
    let runs = prompts.iter().flat_map(|p| p.runs.as_deref());
    if runs.map(<[_]>::len).sum::<usize>() > MAX_RUNS {
        return Err(format!("more than {MAX_RUNS} runs"));
    }
    let blocks = prompts.iter().map(all_blocks).fold(0, u64::saturating_add);
    if blocks > MAX_COUNT || blocks.saturating_mul(block_size) > MAX_COUNT {
        return Err(format!("more than {MAX_COUNT} blocks or tokens"));
    }
    Ok(())
}

fn all_blocks(prompt: &Prompt) -> u64 {
    match (&prompt.runs, &prompt.tiers) {
        (Some(runs), _) => runs.iter().fold(0, |sum, (n, _)| sum.saturating_add(*n)),
        (None, Some(tiers)) => tiers.0.iter().map(|(_, n)| *n).max().unwrap_or(0),
        (None, None) => 0,
    }
}

/// Within the entry's limit: without the endpoints that are too large alone (they must not push out
/// the others), then without those that have the fewest external blocks. Returns how many went.
fn fit_entry(entry: &mut Item) -> usize {
    let all = encoded_len(entry);
    let mut surplus = all.saturating_sub(ENTRY_LIMIT);
    let Some(Item::Map(endpoints)) = entry.get_mut("endpoints").filter(|_| surplus > 0) else {
        return 0;
    };
    let before = endpoints.len();
    let head = all.saturating_sub(endpoints.iter().map(entry_len).sum());
    let room = ENTRY_LIMIT.saturating_sub(head);
    // Those that go first come first.
    endpoints
        .sort_by_cached_key(|endpoint| (entry_len(endpoint) <= room, external_blocks(&endpoint.1)));
    endpoints.retain(|endpoint| {
        let goes = surplus > 0;
        if goes {
            surplus = surplus.saturating_sub(entry_len(endpoint));
        }
        !goes
    });
    before - endpoints.len()
}

/// Within the value's limit: first without unknown keys, then without the oldest other requests.
fn fit(record: &mut Item) {
    if excess(record) == 0 {
        return;
    }
    keep_known(record, &["v", "requests"]);
    let mut surplus = excess(record);
    if let Some(Item::Array(requests)) = record.get_mut("requests") {
        while surplus > 0 && requests.len() > 1 {
            surplus = surplus.saturating_sub(encoded_len(&requests.remove(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor::{decode, encode};
    use crate::hex::{from_hex, to_hex};

    const NOW: u64 = 1_790_000_000_000;
    const ID: &str = "5b1c0f6e-8d1a-4a53-9c39-0e6d3c1f7a20";
    const MAX_AGE: u64 = 30_000;

    fn write(stored: Option<&[u8]>, body: &str) -> Result<(Vec<u8>, usize), Refusal> {
        let evidence = Evidence::parse(body.as_bytes())?;
        let id = evidence.id.clone().unwrap_or_else(|| ID.to_owned());
        evidence.merge(&id, stored, NOW, MAX_AGE)
    }

    fn requests(value: &[u8]) -> Vec<Item> {
        let record = decode(value).expect("a record");
        let requests = record.get("requests").and_then(Item::as_array);
        requests.expect("requests").to_vec()
    }

    fn ids(value: &[u8]) -> Vec<String> {
        let text = |entry: &Item| entry.get("id")?.as_text().map(str::to_owned);
        requests(value).iter().filter_map(text).collect()
    }

    #[test]
    fn the_documents_examples_come_out_exactly() {
        let examples = [
            (
                include_str!("../testdata/evidence-runs.hex"),
                r#"{"id":"5b1c0f6e-8d1a-4a53-9c39-0e6d3c1f7a20","ago":0,"block_size":16,"endpoints":{"10.0.0.7:8000":{"prompts":[{"runs":[[4,["gpu","cpu"]],[16,["cpu"]],[8,["storage@local"]]]}],"partial":false,"writer":"my-scorer"}}}"#,
            ),
            (
                include_str!("../testdata/evidence-tiers.hex"),
                r#"{"t":1790000000000,"block_size":64,"endpoints":{"10.0.0.7:8000":{"prompts":[{"tiers":{"gpu":4,"cpu":20}},{"tiers":{"storage":10}}],"partial":true,"writer":null}}}"#,
            ),
        ];
        for (hex, body) in examples {
            let example = from_hex(hex).expect("hex");
            let (value, dropped) = write(None, body).expect("it fits");
            assert_eq!((to_hex(&value), dropped), (to_hex(&example), 0));
        }
    }

    fn body(id: &str, ago: i64) -> String {
        format!(
            r#"{{"id":"{id}","ago":{ago},"block_size":16,"endpoints":{{"a:1":{{"prompts":[{{"tiers":{{"cpu":1}}}}]}}}}}}"#
        )
    }

    #[test]
    fn a_bucket_keeps_the_newest_four_and_nothing_expired() {
        let mut stored = None;
        let mut put = |id: &str, ago| {
            stored = Some(write(stored.as_deref(), &body(id, ago)).expect("it fits").0);
            ids(stored.as_deref().expect("written"))
        };
        put("a", 30_000);
        put("b", 0);
        put("c", 30_001);
        assert_eq!(put("d", 0), ["a", "b", "d"]);
        put("a", 0);
        assert_eq!(put("e", 0), ["b", "d", "a", "e"]);
        assert_eq!(put("f", -30_001), ["d", "a", "e", "f"]);
        assert_eq!(put("g", 0), ["d", "a", "e", "g"]);
    }

    #[test]
    fn entries_without_id_or_time_go_and_unknown_keys_stay() {
        let entry = |more: [(&str, Item); 2]| Item::map(more);
        let odd = entry([("id", Item::text("odd")), ("t", Item::Uint(NOW))]);
        let record = Item::map([
            ("v", Item::Uint(1)),
            ("acme", Item::Simple(22)),
            (
                "requests",
                Item::Array(vec![
                    odd.clone(),
                    entry([("id", Item::Uint(1)), ("t", Item::Uint(NOW))]),
                    entry([("id", Item::text("x")), ("t", Item::float(1.79e12))]),
                    Item::Uint(7),
                ]),
            ),
        ]);
        let (value, _) = write(Some(&encode(&record)), &body("n", 0)).expect("it fits");
        assert_eq!(ids(&value), ["odd", "n"]);
        assert_eq!(requests(&value).first(), Some(&odd));
        assert_eq!(
            decode(&value).expect("a record").get("acme"),
            Some(&Item::Simple(22))
        );
    }

    /// Of the only entry: its time, and by endpoint its writer.
    fn spoken(value: &[u8]) -> (u64, Vec<(String, String)>) {
        let all = requests(value);
        let [entry] = all.as_slice() else {
            panic!("{all:?}")
        };
        let endpoints = entry
            .get("endpoints")
            .and_then(Item::as_map)
            .expect("a map");
        let text = |item: Option<&Item>| item.and_then(Item::as_text).unwrap_or("-").to_owned();
        let endpoints = endpoints
            .iter()
            .map(|(k, v)| (text(Some(k)), text(v.get("writer"))));
        (time_of(entry, "t").expect("t"), endpoints.collect())
    }

    fn by(writer: &str, endpoint: &str, ago: i64, block_size: u32) -> String {
        format!(
            r#"{{"ago":{ago},"block_size":{block_size},"endpoints":{{"{endpoint}":{{"prompts":[{{"runs":[]}}],"writer":{writer}}}}}}}"#
        )
    }

    #[test]
    fn another_writers_endpoints_stay_in_the_entry() {
        type Row<'a> = (&'a str, &'a str, i64, u32, u64, &'a [(&'a str, &'a str)]);
        let table: [Row; 7] = [
            // writer, endpoint, ago, block size → t before now, endpoints
            ("\"b\"", "b:1", 0, 16, 5000, &[("a:1", "a"), ("b:1", "b")]),
            (
                "\"b\"",
                "b:1",
                9000,
                16,
                9000,
                &[("a:1", "a"), ("b:1", "b")],
            ),
            ("null", "b:1", 0, 16, 5000, &[("a:1", "a"), ("b:1", "-")]),
            ("\"b\"", "b:1", 0, 32, 0, &[("b:1", "b")]),
            ("\"b\"", "a:1", 0, 16, 0, &[("a:1", "b")]),
            ("\"a\"", "b:1", 0, 16, 0, &[("b:1", "a")]),
            ("\"a\"", "a:1", 0, 16, 0, &[("a:1", "a")]),
        ];
        for (writer, endpoint, ago, block_size, before, endpoints) in table {
            let (first, _) = write(None, &by("\"a\"", "a:1", 5000, 16)).expect("it fits");
            let second = by(writer, endpoint, ago, block_size);
            let (value, _) = write(Some(&first), &second).expect("it fits");
            let (t, spoken) = spoken(&value);
            let spoken: Vec<_> = spoken
                .iter()
                .map(|(a, b)| (a.as_str(), b.as_str()))
                .collect();
            assert_eq!(
                (NOW - t, spoken.as_slice()),
                (before, endpoints),
                "{second}"
            );
        }

        // What nobody owns is not kept.
        let (first, _) = write(None, &by("null", "a:1", 0, 16)).expect("it fits");
        let (value, _) = write(Some(&first), &by("\"b\"", "b:1", 0, 16)).expect("it fits");
        assert_eq!(spoken(&value).1, [("b:1".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn of_too_large_an_entry_the_endpoints_with_the_fewest_external_blocks_go() {
        let endpoint = |blocks: u32| {
            let runs = vec![format!(r#"[{blocks},["cpu"]]"#); 1000].join(",");
            format!(r#""e{blocks}:1":{{"prompts":[{{"runs":[{runs}]}}]}}"#)
        };
        let all = [3, 1, 2].map(endpoint).join(",");
        let body = format!(r#"{{"block_size":16,"endpoints":{{{all}}}}}"#);
        let (value, dropped) = write(None, &body).expect("it fits");
        let names: Vec<String> = spoken(&value).1.into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            (dropped, names),
            (1, vec!["e2:1".to_owned(), "e3:1".to_owned()])
        );
        assert!(
            requests(&value)
                .iter()
                .all(|r| encoded_len(r) <= ENTRY_LIMIT)
        );
    }

    #[test]
    fn an_endpoint_too_large_alone_pushes_out_nobody() {
        let runs = vec![r#"[9,["cpu"]]"#; 3000].join(",");
        let body = format!(
            r#"{{"block_size":16,"endpoints":{{"large:1":{{"prompts":[{{"runs":[{runs}]}}]}},"small:1":{{"prompts":[{{"runs":[]}}]}}}}}}"#
        );
        let (value, dropped) = write(None, &body).expect("it fits");
        let own = ("small:1".to_owned(), "foreign-scorer".to_owned());
        assert_eq!((dropped, spoken(&value).1), (1, vec![own]));
    }

    #[test]
    fn the_documents_merge() {
        let example = |hex| from_hex(hex).expect("hex");
        let before = example(include_str!("../testdata/merge-before.hex"));
        let after = example(include_str!("../testdata/merge-after.hex"));
        let body = r#"{"id":"r1","t":1790000000250,"block_size":16,"writer":"b","endpoints":{"10.0.0.8:8000":{"prompts":[{"tiers":{"cpu":20}}]}}}"#;
        let (value, _) = write(Some(&before), body).expect("it fits");
        assert_eq!(decode(&value), decode(&after));

        // An unknown key of the older entry has no owner: it goes.
        let mut stored = decode(&before).expect("a record");
        if let Some(Item::Array(requests)) = stored.get_mut("requests") {
            requests
                .iter_mut()
                .for_each(|r| r.set("acme", Item::Uint(1)));
        }
        let (value, _) = write(Some(&encode(&stored)), body).expect("it fits");
        assert_eq!(decode(&value), decode(&after));
    }

    #[test]
    fn what_a_reader_would_call_invalid_is_refused() {
        let prompts = |list: &str| {
            format!(r#"{{"block_size":16,"endpoints":{{"a:1":{{"prompts":{list}}}}}}}"#)
        };
        for (body, message) in [
            (prompts("[]"), "a:1: prompts: at least one"),
            (prompts("[{}]"), "a:1: a prompt needs runs or tiers"),
            (
                prompts(r#"[{"runs":[[-1,[]]]}]"#),
                "JSON: invalid value: integer `-1`",
            ),
            (
                prompts(r#"[{"runs":[[1,[2]]]}]"#),
                "JSON: invalid type: integer `2`",
            ),
            (prompts(r#"[{"runs":[[1]]}]"#), "JSON: invalid length 1"),
            (
                prompts(r#"[{"tiers":{"cpu":1,"cpu":2}}]"#),
                "JSON: cpu is there twice",
            ),
            (
                prompts(r#"[{"tiers":{"cpu":4294967296}}]"#),
                "a:1: more than 4294967295 blocks",
            ),
            (
                prompts(r#"[{"tiers":{"cpu":268435456}}]"#),
                "a:1: more than 4294967295 blocks",
            ),
            (prompts(r#"[{"runs":[],"x":1}]"#), "JSON: unknown field `x`"),
            (
                r#"{"block_size":0,"endpoints":{}}"#.into(),
                "JSON: invalid value: integer `0`",
            ),
            (
                r#"{"endpoints":{}}"#.into(),
                "JSON: missing field `block_size`",
            ),
            ("[".into(), "JSON: "),
        ] {
            let refusal = write(None, &body).expect_err(&body);
            assert!(refusal.0.starts_with(message), "{refusal:?}");
        }
    }
}
