//! Writing tier evidence: one request's entry into its bucket.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ciborium::Value;

use super::cbor::{self, Map, array, field, map, text, uint};
use super::evidence::{self, Evidence, Prompt};

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
        current(&record, now_ms, max_age_ms).partition(|(id, _, _)| *id == request.id);
    let theirs = same
        .last()
        .and_then(|(_, t, fields)| others_part(request, *t, fields));
    let own = request_entry(request, theirs)?;

    let mut entries: Vec<Value> = others
        .into_iter()
        .map(|(_, _, fields)| Value::Map(fields.to_vec()))
        .collect();
    entries.drain(..entries.len().saturating_sub(MAX_REQUESTS - 1));
    entries.push(own);
    while !entries.is_empty() {
        let list = Value::Array(entries.clone());
        if let Some(bytes) = cbor::encode_record(&record, "requests", list) {
            return Some(bytes);
        }
        entries.remove(0);
    }
    None
}

/// The entries that have not expired: id, time (Unix ms), fields.
fn current(
    record: &Map,
    now_ms: u64,
    max_age_ms: u64,
) -> impl Iterator<Item = (&str, u64, &[(Value, Value)])> {
    field(record, "requests")
        .and_then(array)
        .unwrap_or_default()
        .iter()
        .filter_map(move |entry| {
            let fields = map(entry)?;
            let id = field(fields, "id")?.as_text()?;
            let t = uint(field(fields, "t")?)?;
            (t.abs_diff(now_ms) <= max_age_ms).then_some((id, t, fields))
        })
}

/// An endpoint's entry and how many external blocks it shows.
type Ranked<'a> = BTreeMap<&'a str, (u64, Value)>;

/// What other writers say in an older entry of the same request, with its time. Only what carries
/// another writer's name: a client may reuse an id, and what nobody owns nobody would take back.
fn others_part<'a>(
    request: &RequestEvidence<'_>,
    t_ms: u64,
    old: &'a [(Value, Value)],
) -> Option<(u64, Ranked<'a>)> {
    if field(old, "block_size").and_then(uint) != Some(u64::from(request.block_size)) {
        return None;
    }
    let endpoints: Ranked<'a> = field(old, "endpoints")
        .and_then(map)?
        .iter()
        .filter_map(|(name, entry)| {
            let fields = map(entry)?;
            let writer = field(fields, "writer")?.as_text()?;
            let ranked = rank(old, fields, entry.clone())?;
            (writer != request.writer).then_some((name.as_text()?, ranked))
        })
        .collect();
    (!endpoints.is_empty()).then_some((t_ms, endpoints))
}

/// `None` if readers would not take it.
fn rank(
    request: &[(Value, Value)],
    fields: &[(Value, Value)],
    entry: Value,
) -> Option<(u64, Value)> {
    let Evidence { prompts, .. } = evidence::of_entry(request, fields).ok()?;
    let external = prompts
        .iter()
        .map(|prompt| prompt.external_blocks(&|_| true))
        .fold(0, u64::saturating_add);
    Some((external, entry))
}

fn request_entry(
    request: &RequestEvidence<'_>,
    theirs: Option<(u64, Ranked<'_>)>,
) -> Option<Value> {
    let (their_t, mut endpoints) = theirs.unwrap_or((request.t_ms, BTreeMap::new()));
    let head = vec![
        (text("id"), text(request.id)),
        (text("t"), Value::from(request.t_ms.min(their_t))),
        (text("block_size"), Value::from(request.block_size)),
    ];
    for (name, endpoint) in request.endpoints {
        let fields = endpoint_fields(request.writer, endpoint);
        match rank(&head, &fields, Value::Map(fields.clone())) {
            Some(ranked) => endpoints.insert(name, ranked),
            None => endpoints.remove(name.as_str()),
        };
    }

    let with = |endpoints: Vec<(Value, Value)>| {
        let mut fields = head.clone();
        fields.push((text("endpoints"), Value::Map(endpoints)));
        Value::Map(fields)
    };
    let fixed = cbor::encode(&with(Vec::new()))?.len();
    let mut room = MAX_REQUEST_BYTES
        .checked_sub(fixed)?
        .checked_sub(MAP_HEAD_BYTES)?;

    let mut ranked: Vec<(u64, usize, &str, Value)> = endpoints
        .into_iter()
        .filter_map(|(name, (external, entry))| {
            let key = cbor::encode(&text(name))?.len();
            let size = cbor::encode(&entry)?.len().saturating_add(key);
            // One that fits nowhere must not push out the others.
            (size <= room).then_some((external, size, name, entry))
        })
        .collect();
    ranked.sort_by_key(|&(external, _, name, _)| (Reverse(external), name));
    let mut kept: BTreeMap<&str, Value> = BTreeMap::new();
    for (_, size, name, entry) in ranked {
        match room.checked_sub(size) {
            Some(rest) => room = rest,
            None => break,
        }
        kept.insert(name, entry);
    }
    let kept: Vec<_> = kept.into_iter().map(|(n, e)| (text(n), e)).collect();
    (!kept.is_empty()).then(|| with(kept))
}

fn endpoint_fields(writer: &str, endpoint: &EndpointEvidence) -> Map {
    let prompts = endpoint.prompts.iter().map(prompt).collect();
    let mut fields = vec![(text("prompts"), Value::Array(prompts))];
    if endpoint.partial {
        fields.push((text("partial"), Value::Bool(true)));
    }
    fields.push((text("writer"), text(writer)));
    fields
}

fn prompt(prompt: &Prompt) -> Value {
    let (key, value) = match prompt {
        Prompt::Runs(runs) => {
            let run = |run: &evidence::Run| {
                let tiers = run.tiers.iter().map(|t| text(t)).collect();
                Value::Array(vec![Value::from(run.blocks), Value::Array(tiers)])
            };
            ("runs", Value::Array(runs.iter().map(run).collect()))
        }
        Prompt::Tiers(tiers) => {
            let count = |(tier, blocks): (&String, &u64)| (text(tier), Value::from(*blocks));
            ("tiers", Value::Map(tiers.iter().map(count).collect()))
        }
    };
    Value::Map(vec![(text(key), value)])
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
