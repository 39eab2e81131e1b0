//! Writing tier evidence: one request's entry into its bucket.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::cbor::{self, Item, Kind, Map, Out};
use super::evidence::{self, Evidence, Prompt, Request};

/// Most encoded bytes of one request's entry.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Most requests in one bucket.
pub const MAX_REQUESTS: usize = 4;

/// Most bytes the head of an endpoints map takes in a record that is within the size limits.
const MAP_HEAD_BYTES: usize = 5;

/// What one writer knows about one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestEvidence<'a> {
    /// `x-request-id` as the filter sees it.
    pub id: &'a str,
    /// The writer's name. It owns the endpoints that carry it, so that two writers can speak of
    /// one request.
    pub writer: &'a str,
    /// When the snapshot was taken, Unix ms.
    pub t_ms: u64,
    /// Tokens a block.
    pub block_size: u32,
    /// By `ip:port`.
    pub endpoints: &'a BTreeMap<String, EndpointEvidence>,
}

/// What one endpoint holds for one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EndpointEvidence {
    /// One per prompt of the request.
    pub prompts: Vec<Prompt>,
    /// A lower bound (DESIGN 5 says when).
    pub partial: bool,
}

/// The record with this request's entry as the newest, ready for compare-and-swap; `None` if
/// there is nothing to write: no endpoint is left, or the entry or the record would not fit.
///
/// - An endpoint whose evidence readers would call invalid is left out. If the entry is above
///   16 KiB, the endpoints with the fewest external blocks go first.
/// - An older entry of the same request is replaced, except for what other named writers say in it
///   about other endpoints, if it has the same block size; the time is then the older of the two.
/// - Other requests' entries and unknown keys stay as they are. Entries more than `max_age_ms` from
///   `now_ms` either way, or without an id or a time, are dropped, and so are the oldest above 4 or
///   if room is needed. A malformed `old` is replaced.
#[must_use]
pub fn upsert(
    old: Option<&[u8]>,
    request: &RequestEvidence<'_>,
    now_ms: u64,
    max_age_ms: u64,
) -> Option<Vec<u8>> {
    let record = cbor::old_record(old);
    let (same, others): (Vec<_>, Vec<_>) =
        current(record, now_ms, max_age_ms).partition(|entry| entry.id == request.id);
    let theirs = same.last().and_then(|entry| others_part(request, entry));
    let own = request_entry(request, theirs)?;

    let keep = others.len().min(MAX_REQUESTS - 1);
    (0..=keep).rev().find_map(|keep| {
        let mut list = Out::default();
        list.array(keep.saturating_add(1));
        for entry in others.iter().skip(others.len().saturating_sub(keep)) {
            list.raw(entry.item.bytes());
        }
        list.raw(own.as_slice());
        cbor::encode_record(record, "requests", list.as_slice())
    })
}

/// A request's entry that is in the record already.
struct Entry<'a> {
    id: Cow<'a, str>,
    t_ms: u64,
    request: Request<'a>,
    endpoints: Option<Item<'a>>,
    item: Item<'a>,
}

/// The entries that have not expired.
fn current<'a>(record: Map<'a>, now_ms: u64, max_age_ms: u64) -> impl Iterator<Item = Entry<'a>> {
    let requests = record.get("requests").and_then(Item::array);
    requests
        .into_iter()
        .flat_map(cbor::List::iter)
        .filter_map(|item| {
            let [id, t, block_size, endpoints] =
                item.map()?.pick(["id", "t", "block_size", "endpoints"]);
            Some(Entry {
                id: id?.text()?,
                t_ms: t?.uint()?,
                request: Request { t, block_size },
                endpoints,
                item,
            })
        })
        .filter(move |entry| entry.t_ms.abs_diff(now_ms) <= max_age_ms)
}

/// An endpoint's entry, and how many external blocks it shows.
struct Ranked<'a> {
    external: u64,
    entry: Cow<'a, [u8]>,
}

/// What other writers say, with its time.
struct Theirs<'a> {
    t_ms: u64,
    endpoints: BTreeMap<Cow<'a, str>, Ranked<'a>>,
}

/// Only what carries another writer's name: a client may reuse an id, and what nobody owns nobody
/// would take back.
fn others_part<'a>(request: &RequestEvidence<'_>, old: &Entry<'a>) -> Option<Theirs<'a>> {
    if old.request.block_size?.uint()? != u64::from(request.block_size) {
        return None;
    }
    let endpoints: BTreeMap<_, _> = old
        .endpoints?
        .map()?
        .iter()
        .filter_map(|(name, entry)| {
            let fields = entry.map()?;
            let writer = fields.get("writer")?;
            if !matches!(writer.kind(), Kind::Text) || writer.is_text(request.writer) {
                return None;
            }
            let ranked = rank(&old.request, fields, Cow::Borrowed(entry.bytes()))?;
            Some((name.text()?, ranked))
        })
        .collect();
    (!endpoints.is_empty()).then_some(Theirs {
        t_ms: old.t_ms,
        endpoints,
    })
}

/// `None` if readers would not take it.
fn rank<'a>(request: &Request<'_>, fields: Map<'_>, entry: Cow<'a, [u8]>) -> Option<Ranked<'a>> {
    let Evidence { prompts, .. } = evidence::of_entry(request, fields).ok()?;
    let external = prompts
        .iter()
        .map(|prompt| prompt.external_blocks(&|_| true))
        .fold(0, u64::saturating_add);
    Some(Ranked { external, entry })
}

fn request_entry<'a>(request: &RequestEvidence<'a>, theirs: Option<Theirs<'a>>) -> Option<Out> {
    let (t_ms, mut endpoints) = match theirs {
        Some(theirs) => (request.t_ms.min(theirs.t_ms), theirs.endpoints),
        None => (request.t_ms, BTreeMap::new()),
    };
    let mut head = Out::default();
    head.map(4).text("id").text(request.id);
    head.text("t").uint(t_ms);
    head.text("block_size").uint(u64::from(request.block_size));
    head.text("endpoints");

    let (mut t, mut block_size) = (Out::default(), Out::default());
    t.uint(t_ms);
    block_size.uint(u64::from(request.block_size));
    let common = Request {
        t: Item::parse(t.as_slice()),
        block_size: Item::parse(block_size.as_slice()),
    };
    for (name, endpoint) in request.endpoints {
        let entry = endpoint_entry(request.writer, endpoint).into_bytes();
        let fields = Item::parse(&entry).and_then(Item::map)?;
        match rank(&common, fields, Cow::Borrowed(&[])) {
            Some(Ranked { external, .. }) => {
                let entry = Cow::Owned(entry);
                endpoints.insert(Cow::Borrowed(name), Ranked { external, entry })
            }
            None => endpoints.remove(name.as_str()),
        };
    }

    let mut room = MAX_REQUEST_BYTES
        .checked_sub(head.len())?
        .checked_sub(MAP_HEAD_BYTES)?;
    let mut ranked: Vec<(u64, &str, Out)> = endpoints
        .iter()
        .map(|(name, ranked)| {
            let mut pair = Out::default();
            pair.text(name).raw(&ranked.entry);
            (ranked.external, name.as_ref(), pair)
        })
        // One that fits nowhere must not push out the others.
        .filter(|(_, _, pair)| pair.len() <= room)
        .collect();
    ranked.sort_by_key(|&(external, name, _)| (Reverse(external), name));
    let mut kept: BTreeMap<&str, Out> = BTreeMap::new();
    for (_, name, pair) in ranked {
        match room.checked_sub(pair.len()) {
            Some(rest) => room = rest,
            None => break,
        }
        kept.insert(name, pair);
    }
    head.map(kept.len());
    for pair in kept.values() {
        head.raw(pair.as_slice());
    }
    (!kept.is_empty()).then_some(head)
}

fn endpoint_entry(writer: &str, endpoint: &EndpointEvidence) -> Out {
    let mut out = Out::default();
    out.map(if endpoint.partial { 3 } else { 2 });
    out.text("prompts").array(endpoint.prompts.len());
    for prompt in &endpoint.prompts {
        out.map(1);
        match prompt {
            Prompt::Runs(runs) => {
                out.text("runs").array(runs.len());
                for run in runs {
                    out.array(2).uint(run.blocks).array(run.tiers.len());
                    for tier in &run.tiers {
                        out.text(tier);
                    }
                }
            }
            Prompt::Tiers(tiers) => {
                out.text("tiers").map(tiers.len());
                for (tier, blocks) in tiers {
                    out.text(tier).uint(*blocks);
                }
            }
        }
    }
    if endpoint.partial {
        out.text("partial").bool(true);
    }
    out.text("writer").text(writer);
    out
}

#[cfg(test)]
mod tests {
    use super::super::cbor::from_json;
    use super::super::evidence::{Absent, Lookup, find};
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_790_000_000_000;
    const MAX_AGE: u64 = 30_000;

    fn cpu(blocks: u64) -> EndpointEvidence {
        let tiers = BTreeMap::from([("cpu".to_owned(), blocks)]);
        EndpointEvidence {
            prompts: vec![Prompt::Tiers(tiers)],
            partial: false,
        }
    }

    type Endpoints = BTreeMap<String, EndpointEvidence>;

    fn endpoints(list: &[(&str, EndpointEvidence)]) -> Endpoints {
        list.iter()
            .map(|(n, e)| ((*n).to_owned(), e.clone()))
            .collect()
    }

    fn request<'a>(
        id: &'a str,
        writer: &'a str,
        t_ms: u64,
        endpoints: &'a Endpoints,
    ) -> RequestEvidence<'a> {
        RequestEvidence {
            id,
            writer,
            t_ms,
            block_size: 16,
            endpoints,
        }
    }

    fn put(old: Option<&[u8]>, request: &RequestEvidence<'_>) -> Option<Vec<u8>> {
        upsert(old, request, NOW, MAX_AGE)
    }

    fn blocks(record: &[u8], id: &str, endpoint: &str) -> Option<u64> {
        match find(record, id, endpoint) {
            Lookup::Found(e) => Some(e.prompts[0].external_blocks(&|_| true)),
            _ => None,
        }
    }

    fn entry(id: &str, t: u64) -> String {
        format!(
            r#"{{"id":"{id}","t":{t},"block_size":16,"endpoints":{{"x":{{"prompts":[{{"tiers":{{"cpu":1}}}}]}}}},"more":[1]}}"#
        )
    }

    #[test]
    fn an_entry_is_written_in_a_fixed_order() {
        let runs = EndpointEvidence {
            prompts: vec![Prompt::Runs(vec![evidence::Run {
                blocks: 4,
                tiers: vec!["gpu".to_owned(), "cpu".to_owned()],
            }])],
            partial: true,
        };
        let eps = endpoints(&[("b", cpu(2)), ("a", runs)]);
        let expected = format!(
            r#"{{"v":1,"requests":[{{"id":"r","t":{NOW},"block_size":16,"endpoints":{{
                "a":{{"prompts":[{{"runs":[[4,["gpu","cpu"]]]}}],"partial":true,"writer":"w"}},
                "b":{{"prompts":[{{"tiers":{{"cpu":2}}}}],"writer":"w"}}}}}}]}}"#
        );
        let request = request("r", "w", NOW, &eps);
        assert_eq!(put(None, &request), Some(from_json(&expected)));
        for old in [&b"\xff"[..], b"\xa1\x61v\x02", b"", b"\xa1\x61v\x01"] {
            assert_eq!(put(Some(old), &request), put(None, &request), "{old:02x?}");
        }
    }

    #[test]
    fn other_requests_stay_until_they_expire() {
        let old = from_json(&format!(
            r#"{{"v":1,"requests":[{},{},{},7,{{"id":"no t"}},{}],"note":"n"}}"#,
            entry("expired", NOW - MAX_AGE - 1),
            entry("future", NOW + MAX_AGE + 1),
            entry("kept", NOW - MAX_AGE),
            entry("also", NOW),
        ));
        let eps = endpoints(&[("x", cpu(3))]);
        let new = put(Some(&old), &request("r", "w", NOW, &eps)).unwrap();
        let expected = format!(
            r#"{{"v":1,"requests":[{},{},{{"id":"r","t":{NOW},"block_size":16,"endpoints":{{
                "x":{{"prompts":[{{"tiers":{{"cpu":3}}}}],"writer":"w"}}}}}}],"note":"n"}}"#,
            entry("kept", NOW - MAX_AGE),
            entry("also", NOW),
        );
        assert_eq!(new, from_json(&expected));
    }

    #[test]
    fn the_newest_four_requests_stay() {
        let eps = endpoints(&[("x", cpu(3))]);
        let mut record = None;
        for i in 0..6 {
            record = put(
                record.as_deref(),
                &request(&format!("r{i}"), "w", NOW, &eps),
            );
        }
        let record = record.unwrap();
        let there: Vec<bool> = (0..6)
            .map(|i| blocks(&record, &format!("r{i}"), "x").is_some())
            .collect();
        assert_eq!(there, [false, false, true, true, true, true]);
    }

    #[test]
    fn a_request_written_again_is_replaced() {
        let first = endpoints(&[("x", cpu(3)), ("y", cpu(4))]);
        let second = endpoints(&[("x", cpu(5))]);
        let old = put(None, &request("r", "w", NOW - 9, &first)).unwrap();
        let new = put(Some(&old), &request("r", "w", NOW, &second)).unwrap();
        assert_eq!(Some(new), put(None, &request("r", "w", NOW, &second)));
    }

    #[test]
    fn two_writers_speak_of_one_request() {
        let first = endpoints(&[("x", cpu(3)), ("both", cpu(4))]);
        let second = endpoints(&[("y", cpu(5)), ("both", cpu(6))]);
        let old = put(None, &request("r", "one", NOW - 9, &first)).unwrap();
        let new = put(Some(&old), &request("r", "two", NOW, &second)).unwrap();
        let all = |record: &[u8]| ["x", "y", "both"].map(|e| blocks(record, "r", e));
        assert_eq!(all(&new), [Some(3), Some(5), Some(6)]);
        // One time for all: never fresher than the oldest part.
        let Lookup::Found(e) = find(&new, "r", "y") else {
            panic!()
        };
        assert_eq!(e.t_ms, Some(NOW - 9));
        // The first one takes back what it owns, and nothing else.
        let third = endpoints(&[("z", cpu(7))]);
        let new = put(Some(&new), &request("r", "one", NOW, &third)).unwrap();
        assert_eq!(all(&new), [None, Some(5), Some(6)]);
        // Another block size cannot share the entry, nor can a part without a writer.
        let other = RequestEvidence {
            block_size: 32,
            ..request("r", "three", NOW, &third)
        };
        assert_eq!(put(Some(&new), &other), put(None, &other));
        let nameless = from_json(&format!(r#"{{"v":1,"requests":[{}]}}"#, entry("r", NOW)));
        let request = request("r", "w", NOW, &third);
        assert_eq!(put(Some(&nameless), &request), put(None, &request));
    }

    #[test]
    fn what_readers_would_refuse_is_left_out() {
        let nothing = EndpointEvidence::default();
        let eps = endpoints(&[("a", nothing.clone()), ("b", cpu(1 << 40)), ("c", cpu(1))]);
        let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
        assert_eq!(find(&record, "r", "a"), Lookup::Absent(Absent::NoEndpoint));
        assert_eq!(find(&record, "r", "b"), Lookup::Absent(Absent::NoEndpoint));
        assert_eq!(blocks(&record, "r", "c"), Some(1));
        let eps = endpoints(&[("a", nothing)]);
        assert_eq!(put(None, &request("r", "w", NOW, &eps)), None);
        let zero = RequestEvidence {
            block_size: 0,
            ..request("r", "w", NOW, &eps)
        };
        assert_eq!(put(None, &zero), None);
    }

    #[test]
    fn of_too_many_endpoints_the_poorest_go_first() {
        let eps: Endpoints = (0..400)
            .map(|i| (format!("10.0.0.1:{i:04}"), cpu(1_000 + i)))
            .collect();
        let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
        assert!(record.len() <= MAX_REQUEST_BYTES + 20, "{}", record.len());
        assert!(record.len() > MAX_REQUEST_BYTES - 100, "{}", record.len());
        let there: Vec<bool> = (0..400)
            .map(|i| blocks(&record, "r", &format!("10.0.0.1:{i:04}")).is_some())
            .collect();
        let first = there.iter().position(|t| *t).unwrap();
        assert!(first > 0 && there[first..].iter().all(|t| *t), "{first}");
        // One that is too large alone is left out and pushes out nobody.
        let mut eps = endpoints(&[("small", cpu(1))]);
        let large = EndpointEvidence {
            prompts: vec![cpu(9).prompts[0].clone(); 2_000],
            partial: false,
        };
        eps.insert("large".to_owned(), large);
        let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
        assert_eq!(blocks(&record, "r", "small"), Some(1));
        assert_eq!(
            find(&record, "r", "large"),
            Lookup::Absent(Absent::NoEndpoint)
        );
        // An id that leaves no room.
        let id = "i".repeat(MAX_REQUEST_BYTES);
        assert_eq!(put(None, &request(&id, "w", NOW, &eps)), None);
    }

    #[test]
    fn a_record_full_of_foreign_bytes_makes_room() {
        let pad = "x".repeat(120_000);
        let old = from_json(&format!(
            r#"{{"v":1,"requests":[{{"id":"a","t":{NOW},"pad":"{pad}"}},{}],"pad":"{pad}"}}"#,
            entry("b", NOW)
        ));
        let eps: Endpoints = (0..300)
            .map(|i| (format!("10.0.0.1:{i:04}"), cpu(i)))
            .collect();
        let id = "r".repeat(10_000);
        let new = put(Some(&old), &request(&id, "w", NOW, &eps)).unwrap();
        assert!(new.len() <= crate::contract::MAX_VALUE_BYTES);
        assert_eq!(blocks(&new, "b", "x"), Some(1));
        assert_eq!(blocks(&new, &id, "10.0.0.1:0299"), Some(299));
    }
}
