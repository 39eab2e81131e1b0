//! Writing tier evidence: one request's entry into its bucket.

use crate::sorted::{SortedMap, sort_by};
use std::borrow::Cow;

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
    pub endpoints: &'a SortedMap<String, EndpointEvidence>,
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
///   16 KiB, the endpoints with the fewest external blocks go first. One that is above it alone is
///   cut at its end and marked partial, in the room that the others leave.
/// - An older entry of the same request is replaced, except for what other named writers say in it
///   about other endpoints, if it has the same block size; the time is then the older of the two.
///   Unknown keys of the entry go: nobody owns them.
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
    if request.id.is_empty() {
        return None;
    }
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

/// The record without what this writer says of a request, for one that comes with the same id and
/// of which nothing is known; `None` if there is nothing to take back. What other named writers say
/// stays.
#[must_use]
pub fn withdraw(
    old: &[u8],
    id: &str,
    writer: &str,
    now_ms: u64,
    max_age_ms: u64,
) -> Option<Vec<u8>> {
    let record = cbor::old_record(Some(old));
    let (same, others): (Vec<_>, Vec<_>) =
        current(record, now_ms, max_age_ms).partition(|entry| entry.id == id);
    let entry = same.last().filter(|entry| entry.is_by(writer))?;
    let request = RequestEvidence {
        id,
        writer,
        t_ms: entry.t_ms,
        block_size: u32::try_from(entry.request.block_size?.uint()?).ok()?,
        endpoints: &SortedMap::new(),
    };
    let theirs = others_part(&request, entry);
    let theirs = theirs.and_then(|theirs| request_entry(&request, Some(theirs)));
    let kept = others
        .iter()
        .skip(others.len().saturating_sub(MAX_REQUESTS - 1));
    let mut list = Out::default();
    list.array(kept.len().saturating_add(usize::from(theirs.is_some())));
    for entry in kept {
        list.raw(entry.item.bytes());
    }
    if let Some(theirs) = &theirs {
        list.raw(theirs.as_slice());
    }
    cbor::encode_record(record, "requests", list.as_slice())
}

/// A request's entry that is in the record already.
struct Entry<'a> {
    id: Cow<'a, str>,
    t_ms: u64,
    request: Request<'a>,
    endpoints: Option<Item<'a>>,
    item: Item<'a>,
}

impl Entry<'_> {
    /// The writer says something in it.
    fn is_by(&self, writer: &str) -> bool {
        let endpoints = self.endpoints.and_then(Item::map);
        endpoints.is_some_and(|endpoints| {
            let names = endpoints.iter().filter_map(|(_, e)| e.map()?.get("writer"));
            names.into_iter().any(|name| name.is_text(writer))
        })
    }
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

/// What other writers say, with its time.
struct Theirs<'a> {
    t_ms: u64,
    endpoints: Vec<Pair<'a>>,
}

/// An endpoint's name and encoded entry, and how many external blocks it shows.
struct Pair<'a> {
    external: u64,
    name: Cow<'a, str>,
    bytes: Out,
}

impl<'a> Pair<'a> {
    /// `None` if readers would not take it.
    fn new(request: &Request<'_>, name: Cow<'a, str>, entry: Item<'_>) -> Option<Self> {
        let Evidence { prompts, .. } = evidence::of_entry(request, entry).ok()?;
        let external = prompts
            .iter()
            .map(|prompt| prompt.external_blocks(&|_| true))
            .fold(0, u64::saturating_add);
        let mut bytes = Out::default();
        bytes.text(&name).raw(entry.bytes());
        Some(Self {
            external,
            name,
            bytes,
        })
    }
}

/// Only what carries another writer's name: a client may reuse an id, and what nobody owns nobody
/// would take back. `None` without any.
fn others_part<'a>(request: &RequestEvidence<'_>, old: &Entry<'a>) -> Option<Theirs<'a>> {
    if old.request.block_size?.uint()? != u64::from(request.block_size) {
        return None;
    }
    let endpoints = old.endpoints?.map()?.iter();
    let endpoints = endpoints.filter_map(|(name, entry)| Some((name.text()?, entry)));
    let endpoints: SortedMap<_, _> = endpoints.collect();
    let endpoints: Vec<_> = endpoints
        .into_iter()
        .filter(|(name, _)| !request.endpoints.contains_key(name.as_ref()))
        .filter_map(|(name, entry)| {
            let writer = entry.map()?.get("writer")?;
            if !matches!(writer.kind(), Kind::Text) || writer.is_text(request.writer) {
                return None;
            }
            Pair::new(&old.request, name, entry)
        })
        .collect();
    (!endpoints.is_empty()).then_some(Theirs {
        t_ms: old.t_ms,
        endpoints,
    })
}

fn request_entry<'a>(request: &RequestEvidence<'a>, theirs: Option<Theirs<'a>>) -> Option<Out> {
    let (t_ms, mut pairs) = match theirs {
        Some(theirs) => (request.t_ms.min(theirs.t_ms), theirs.endpoints),
        None => (request.t_ms, Vec::new()),
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
    let pair = |name: &'a str, endpoint: &EndpointEvidence| {
        let entry = endpoint_entry(request.writer, endpoint).into_bytes();
        Pair::new(&common, Cow::Borrowed(name), Item::parse(&entry)?)
    };
    let own = request.endpoints.iter();
    pairs.extend(own.filter_map(|(name, endpoint)| pair(name, endpoint)));
    sort_by(&mut pairs, |a, b| {
        b.external.cmp(&a.external).then(a.name.cmp(&b.name))
    });

    let mut room = MAX_REQUEST_BYTES
        .checked_sub(head.len())?
        .checked_sub(MAP_HEAD_BYTES)?;
    // One that fits nowhere must not push out the others.
    let (fitting, large): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|pair| pair.bytes.len() <= room);
    let mut kept = Vec::new();
    for pair in fitting {
        match room.checked_sub(pair.bytes.len()) {
            Some(rest) => room = rest,
            None => break,
        }
        kept.push((pair.name, pair.bytes));
    }
    let large: Vec<_> = large
        .iter()
        .filter_map(|pair| request.endpoints.get_key_value(pair.name.as_ref()))
        .collect();
    for (i, (name, endpoint)) in large.iter().enumerate() {
        let share = room.checked_div(large.len().saturating_sub(i)).unwrap_or(0);
        let beginning = longest_beginning(endpoint, |beginning| {
            pair(name, beginning).is_some_and(|pair| pair.bytes.len() <= share)
        });
        if let Some(pair) = pair(name, &beginning) {
            room = room.saturating_sub(pair.bytes.len());
            kept.push((pair.name, pair.bytes));
        }
    }
    let kept = SortedMap::from(kept);
    head.map(kept.len());
    for pair in kept.values() {
        head.raw(pair.as_slice());
    }
    (!kept.is_empty()).then_some(head)
}

/// As much of the evidence as `fits`, marked partial. It is a lower bound: what is loaded follows
/// the GPU prefix without a gap, so that a cut at the end only takes from it.
fn longest_beginning(
    endpoint: &EndpointEvidence,
    fits: impl Fn(&EndpointEvidence) -> bool,
) -> EndpointEvidence {
    /// `[0, []]`.
    const SMALLEST_PART: usize = 3;
    let parts: Vec<usize> = (1..=MAX_REQUEST_BYTES / SMALLEST_PART).collect();
    beginning(
        endpoint,
        parts.partition_point(|n| fits(&beginning(endpoint, *n))),
    )
}

/// The first `parts` runs, and prompts that have none.
fn beginning(endpoint: &EndpointEvidence, parts: usize) -> EndpointEvidence {
    let mut left = parts;
    let mut prompts = Vec::new();
    for prompt in &endpoint.prompts {
        if left == 0 {
            break;
        }
        let (prompt, taken) = match prompt {
            Prompt::Runs(runs) => {
                let runs = runs.beginning(left);
                let taken = runs.len().max(1);
                (Prompt::Runs(runs), taken)
            }
            Prompt::Tiers(_) => (prompt.clone(), 1),
        };
        left = left.saturating_sub(taken);
        prompts.push(prompt);
    }
    EndpointEvidence {
        prompts,
        partial: true,
    }
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
                for (blocks, tiers) in runs.iter() {
                    out.array(2).uint(blocks).array(tiers.len());
                    for tier in tiers {
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
        let tiers = SortedMap::from([("cpu".to_owned(), blocks)]);
        EndpointEvidence {
            prompts: vec![Prompt::Tiers(tiers)],
            partial: false,
        }
    }

    type Endpoints = SortedMap<String, EndpointEvidence>;

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
            prompts: vec![Prompt::Runs(
                [(4, vec!["gpu".to_owned(), "cpu".to_owned()])]
                    .into_iter()
                    .collect(),
            )],
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
        // Nothing of the other's is kept: its time does not matter.
        let both = endpoints(&[("x", cpu(8)), ("both", cpu(9))]);
        let two = request("r", "two", NOW, &both);
        assert_eq!(put(Some(&old), &two), put(None, &two));
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
    fn unknown_keys_stay_with_their_owners() {
        let old = from_json(&format!(
            r#"{{"v":1,"top":[1],"requests":[{{"id":"r","t":{NOW},"block_size":16,"endpoints":{{
                "x":{{"prompts":[{{"tiers":{{"cpu":1}},"more":2}}],"writer":"other","more":[3]}},
                "y":{{"prompts":[{{"tiers":{{"cpu":1}}}}],"writer":7}},
                "z":{{"prompts":[{{"tiers":{{"cpu":1}}}}],"writer":"w","more":4}}}},"more":5}}]}}"#
        ));
        let eps = endpoints(&[("z", cpu(3))]);
        let expected = format!(
            r#"{{"v":1,"requests":[{{"id":"r","t":{NOW},"block_size":16,"endpoints":{{
                "x":{{"prompts":[{{"tiers":{{"cpu":1}},"more":2}}],"writer":"other","more":[3]}},
                "z":{{"prompts":[{{"tiers":{{"cpu":3}}}}],"writer":"w"}}}}}}],"top":[1]}}"#
        );
        let new = put(Some(&old), &request("r", "w", NOW, &eps));
        assert_eq!(new, Some(from_json(&expected)));
    }

    #[test]
    fn a_request_without_an_id_has_no_evidence() {
        let eps = endpoints(&[("x", cpu(3))]);
        assert_eq!(put(None, &request("", "w", NOW, &eps)), None);
    }

    #[test]
    fn an_expired_entry_is_not_merged() {
        let first = endpoints(&[("x", cpu(3))]);
        let old = put(None, &request("r", "one", NOW - MAX_AGE - 1, &first)).unwrap();
        let second = endpoints(&[("y", cpu(4))]);
        let two = request("r", "two", NOW, &second);
        assert_eq!(put(Some(&old), &two), put(None, &two));
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
        // An id that leaves no room.
        let id = "i".repeat(MAX_REQUEST_BYTES);
        assert_eq!(put(None, &request(&id, "w", NOW, &eps)), None);
    }

    #[test]
    fn an_endpoint_too_large_alone_is_cut_at_its_end() {
        let runs = |list: &[(u64, &str)]| {
            let run = |(blocks, tier): &(u64, &str)| (*blocks, vec![(*tier).to_owned()]);
            Prompt::Runs(list.iter().map(run).collect())
        };
        let prompts = vec![
            runs(&[(4, "gpu")]),
            Prompt::Tiers(SortedMap::from([("cpu".to_owned(), 5)])),
            runs(&[vec![(1, "gpu")], vec![(2, "cpu"); 3_000]].concat()),
            runs(&[(6, "cpu")]),
        ];
        let large = EndpointEvidence {
            prompts: prompts.clone(),
            partial: false,
        };
        let read = |record: &[u8], endpoint: &str| match find(record, "r", endpoint) {
            Lookup::Found(e) => e,
            other => panic!("{other:?}"),
        };
        // (bytes of a name that is there as well, runs of 7 bytes that are left of prompt 3)
        for (name, left) in [(1, 2_319), (9_000, 1_033)] {
            let small = "s".repeat(name);
            let eps = endpoints(&[("large", large.clone()), (&small, cpu(1))]);
            let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
            assert!(record.len() <= MAX_REQUEST_BYTES + 20, "{}", record.len());
            assert!(record.len() > MAX_REQUEST_BYTES - 40, "{}", record.len());
            // It pushes out nobody.
            assert_eq!(blocks(&record, "r", &small), Some(1));
            assert!(!read(&record, &small).partial);
            let cut = read(&record, "large");
            assert!(cut.partial);
            let [first, second, Prompt::Runs(rest)] = cut.prompts.as_slice() else {
                panic!("{:?}", cut.prompts);
            };
            assert_eq!([first, second], [&prompts[0], &prompts[1]]);
            let Prompt::Runs(all) = &prompts[2] else {
                panic!()
            };
            assert_eq!(*rest, all.beginning(left));
            assert_eq!(rest.len(), left);
        }
        // Two such share the room; there is none beside a name of nearly that size.
        let eps = endpoints(&[("a", large.clone()), ("b", large.clone())]);
        let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
        let left = ["a", "b"].map(|name| blocks_of_all(&read(&record, name).prompts));
        assert!(
            left[0] > 2_000 && left[0].abs_diff(left[1]) < 10,
            "{left:?}"
        );
        let eps = endpoints(&[("large", large), (&"s".repeat(16_290), cpu(1))]);
        let record = put(None, &request("r", "w", NOW, &eps)).unwrap();
        assert_eq!(
            find(&record, "r", "large"),
            Lookup::Absent(Absent::NoEndpoint)
        );
    }

    fn blocks_of_all(prompts: &[Prompt]) -> u64 {
        prompts.iter().map(|p| p.external_blocks(&|_| true)).sum()
    }

    #[test]
    fn a_writer_takes_back_what_it_says() {
        let own = endpoints(&[("x", cpu(1)), ("y", cpu(2))]);
        let theirs = endpoints(&[("z", cpu(3))]);
        let withdraw = |old: &[u8]| super::withdraw(old, "r", "w", NOW, MAX_AGE);
        // Among other requests, alone, and of nobody.
        let mut other = put(None, &request("other", "w", NOW, &own)).unwrap();
        assert_eq!(withdraw(&other), None);
        for with_others in [true, false] {
            let old = with_others.then_some(other.as_slice());
            let record = put(old, &request("r", "w", NOW, &own)).unwrap();
            let left = withdraw(&record).unwrap();
            assert_eq!(find(&left, "r", "x"), Lookup::Absent(Absent::NoRequest));
            assert_eq!(blocks(&left, "other", "x"), with_others.then_some(1));
            assert_eq!(withdraw(&left), None);
        }
        // Another writer's stays, and is not this one's to take back.
        let both = put(None, &request("r", "v", NOW - 5, &theirs)).unwrap();
        assert_eq!(withdraw(&both), None);
        let both = put(Some(&both), &request("r", "w", NOW, &own)).unwrap();
        let left = withdraw(&both).unwrap();
        assert_eq!(find(&left, "r", "x"), Lookup::Absent(Absent::NoEndpoint));
        assert_eq!(blocks(&left, "r", "z"), Some(3));
        let Lookup::Found(theirs) = find(&left, "r", "z") else {
            panic!()
        };
        assert_eq!(theirs.t_ms, Some(NOW - 5));
        // What is broken or expired is nobody's.
        other = put(None, &request("r", "w", NOW - MAX_AGE - 1, &own)).unwrap_or_default();
        for old in [b"".as_slice(), b"x", &other] {
            assert_eq!(withdraw(old), None);
        }
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
