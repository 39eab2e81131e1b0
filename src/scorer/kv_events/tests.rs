use super::event::tier;
use super::*;
use serde_json::{Value as Json, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const VECTORS: &str = include_str!("../../../testdata/kv_events.json");

fn vectors() -> Json {
    serde_json::from_str(VECTORS).unwrap()
}

fn bytes(hex: &Json) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(hex.get(i..i + 2).unwrap(), 16).unwrap())
        .collect()
}

/// The plainest decoder there is: the oracle. Binary becomes `{"bin": [bytes]}`.
fn naive(rest: &mut &[u8]) -> Json {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> &'a [u8] {
        let (head, tail) = rest.split_at(n);
        *rest = tail;
        head
    }
    fn number(rest: &mut &[u8], n: usize) -> u64 {
        take(rest, n)
            .iter()
            .fold(0, |sum, b| (sum << 8) | u64::from(*b))
    }
    let array = |rest: &mut &[u8], n: u64| (0..n).map(|_| naive(rest)).collect::<Vec<_>>();
    let text = |rest: &mut &[u8], n: u64| {
        json!(String::from_utf8(take(rest, n as usize).to_vec()).unwrap())
    };
    let map = |rest: &mut &[u8], n: u64| {
        let pairs = (0..n).map(|_| (naive(rest).as_str().unwrap().to_owned(), naive(rest)));
        Json::Object(pairs.collect())
    };
    let head = take(rest, 1)[0];
    match head {
        0..=0x7f => json!(head),
        0x80..=0x8f => map(rest, u64::from(head & 15)),
        0x90..=0x9f => Json::Array(array(rest, u64::from(head & 15))),
        0xa0..=0xbf => text(rest, u64::from(head & 31)),
        0xc0 => Json::Null,
        0xc4 => {
            let n = number(rest, 1);
            json!({ "bin": take(rest, n as usize) })
        }
        0xcb => json!(f64::from_bits(number(rest, 8))),
        0xcc => json!(number(rest, 1)),
        0xcd => json!(number(rest, 2)),
        0xce => json!(number(rest, 4)),
        0xcf => json!(number(rest, 8)),
        0xd9 => {
            let n = number(rest, 1);
            text(rest, n)
        }
        0xdc => {
            let n = number(rest, 2);
            Json::Array(array(rest, n))
        }
        0xde => {
            let n = number(rest, 2);
            map(rest, n)
        }
        other => panic!("{other:02x} is in no vector"),
    }
}

/// The oracle's event as a map without nils, whichever form it has.
fn members(event: &Json) -> serde_json::Map<String, Json> {
    let mut members = match event {
        Json::Object(members) => members.clone(),
        Json::Array(list) => {
            let names: &[&str] = match list[0].as_str().unwrap() {
                "BlockStored" => &[
                    "type",
                    "block_hashes",
                    "parent_block_hash",
                    "token_ids",
                    "block_size",
                    "lora_id",
                    "medium",
                    "lora_name",
                    "extra_keys",
                    "group_idx",
                    "kv_cache_spec_kind",
                    "kv_cache_spec_sliding_window",
                ],
                _ => &["type", "block_hashes", "medium", "group_idx"],
            };
            assert!(list.len() <= names.len());
            let pairs = names.iter().map(|n| (*n).to_owned());
            pairs.zip(list.iter().cloned()).collect()
        }
        other => panic!("{other}"),
    };
    members.retain(|_, v| !v.is_null());
    // Not read: they say nothing about where a block is.
    for ignored in [
        "kv_cache_spec_sliding_window",
        "ownership",
        "session_id",
        "lookahead_token_ids",
    ] {
        members.remove(ignored);
    }
    for key in ["block_hashes", "parent_block_hash"] {
        if let Some(value) = members.get_mut(key) {
            match value {
                Json::Array(list) => list.iter_mut().for_each(digest),
                one => digest(one),
            }
        }
    }
    members
}

fn digest(hash: &mut Json) {
    if let Some(bytes) = hash.get("bin") {
        let bytes: Vec<u8> = serde_json::from_value(bytes.clone()).unwrap();
        *hash = json!(u64::from_be_bytes(*bytes.last_chunk().unwrap()));
    }
}

/// What the reader made of an event, in the oracle's form.
fn read(event: Event<'_>) -> serde_json::Map<String, Json> {
    let value = match event {
        Event::Stored(e) => {
            let extra: Option<Vec<Json>> = e.extra_keys.is_given().then(|| {
                e.extra_keys
                    .blocks()
                    .map(|block| match block.map(extra).collect::<Vec<_>>() {
                        none if none.is_empty() => Json::Null,
                        some => Json::Array(some),
                    })
                    .collect()
            });
            json!({
                "type": "BlockStored",
                "block_hashes": e.hashes.collect::<Vec<_>>(),
                "parent_block_hash": e.parent,
                "token_ids": e.tokens.collect::<Vec<_>>(),
                "block_size": e.block_size,
                "lora_id": e.lora_id,
                "lora_name": e.lora_name,
                "medium": e.medium,
                "locality": e.locality,
                "extra_keys": extra,
                "group_idx": e.group_idx,
                "kv_cache_spec_kind": e.kv_cache_spec_kind,
            })
        }
        Event::Removed(e) => json!({
            "type": "BlockRemoved",
            "block_hashes": e.hashes.collect::<Vec<_>>(),
            "medium": e.medium,
            "locality": e.locality,
            "group_idx": e.group_idx,
        }),
        Event::AllBlocksCleared => json!({"type": "AllBlocksCleared"}),
        Event::Unknown => json!({"type": "unknown"}),
        Event::Malformed => json!({"type": "malformed"}),
    };
    let mut members = value.as_object().unwrap().clone();
    members.retain(|_, v| !v.is_null());
    members
}

fn extra(extra: Extra<'_>) -> Json {
    match extra {
        Extra::Text(text) => json!(text),
        Extra::TextAt(text, at) => json!([text, at]),
        Extra::Bytes(bytes) => json!({ "bin": bytes }),
        Extra::Other => json!("other"),
    }
}

/// Returns the oracle's batch.
fn check(payload: &[u8], name: &str) -> Json {
    let mut rest = payload;
    let expected = naive(&mut rest);
    assert!(rest.is_empty());
    let batch = decode(payload).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    assert_eq!(json!(batch.ts), expected[0], "{name}");
    let rank = expected.get(2).cloned().unwrap_or_default();
    assert_eq!(json!(batch.data_parallel_rank), rank, "{name}");
    let events: Vec<_> = batch.events().map(read).collect();
    let list: Vec<_> = expected[1]
        .as_array()
        .unwrap()
        .iter()
        .map(members)
        .collect();
    assert_eq!(events, list, "{name}");
    expected
}

#[test]
fn every_payload_says_what_the_vectors_say() {
    let vectors = vectors();
    let mut cases = 0;
    for case in vectors["constructed"].as_array().unwrap() {
        let name = format!("{} {}", case["vllm"], case["case"]);
        let decoded = check(&bytes(&case["batch_hex_dp0"]), &name);
        if !case["decoded"].is_null() {
            assert_eq!(decoded, case["decoded"], "{name}");
        }
        check(&bytes(&case["batch_hex_no_dp"]), &name);
        cases += 1;
    }
    assert_eq!(cases, 20);
    let mut events = Vec::new();
    for case in vectors["live"].as_array().unwrap() {
        let decoded = check(&bytes(&case["payload_hex"]), &case["seq"].to_string());
        let list = decoded[1].as_array().unwrap().clone();
        let shown = case["example_of"].clone();
        let there = |e: &Json| json!([e["type"], e["medium"]]) == shown;
        assert!(list.iter().any(there), "{shown}");
        events.push(list.len());
    }
    assert_eq!(events, [33, 32, 33, 32, 2]);
}

#[test]
fn bytes_hashes_count_by_their_last_eight_bytes() {
    let vectors = vectors();
    let cases = vectors["constructed"].as_array().unwrap();
    for case in cases.iter().filter(|c| c["case"] == "bytes_hash") {
        let payload = bytes(&case["batch_hex_dp0"]);
        let Some(Event::Stored(e)) = decode(&payload).unwrap().events().next() else {
            panic!()
        };
        assert_eq!(e.hashes.collect::<Vec<_>>(), [0x1819_1a1b_1c1d_1e1f]);
        assert_eq!(e.parent, Some(0));
        assert_eq!((e.tokens.len(), e.block_size), (16, 16));
    }
}

/// `[1.5, <events>]`.
fn batch(events: &[u8]) -> Vec<u8> {
    [b"\x92\xcb\x3f\xf8\0\0\0\0\0\0".as_slice(), events].concat()
}

fn one(event: &[u8]) -> Event<'static> {
    let payload: &'static [u8] = Vec::leak(batch(&[b"\x91", event].concat()));
    let events: Vec<_> = decode(payload).unwrap().events().collect();
    assert_eq!(events.len(), 1);
    events[0]
}

fn hashes(event: Event<'_>) -> Option<Vec<u64>> {
    match event {
        Event::Stored(e) => Some(e.hashes.collect()),
        Event::Removed(e) => Some(e.hashes.collect()),
        _ => None,
    }
}

#[test]
fn hashes_come_in_every_spelling() {
    let table: &[(&[u8], Option<Vec<u64>>)] = &[
        (b"\x90", Some(vec![])),
        (b"\x92\x01\xcd\x01\x00", Some(vec![1, 256])),
        (
            b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xfe",
            Some(vec![u64::MAX - 1]),
        ),
        (
            b"\x91\xd3\xff\xff\xff\xff\xff\xff\xff\xfe",
            Some(vec![u64::MAX - 1]),
        ),
        (b"\x91\xff", Some(vec![u64::MAX])),
        (b"\x91\xc4\x02\x01\x02", Some(vec![0x102])),
        (
            b"\x91\xc4\x09\xff\x01\x02\x03\x04\x05\x06\x07\x08",
            Some(vec![0x0102_0304_0506_0708]),
        ),
        (b"\x91\xc4\x00", None),
        (b"\x91\xc0", None),
        (b"\x91\xcb\0\0\0\0\0\0\0\0", None),
        (b"\x91\xa1x", None),
        (b"\xc0", None),
        (b"\x05", None),
    ];
    for (list, expected) in table {
        let event = [b"\x93\xacBlockRemoved".as_slice(), list, b"\xa3GPU"].concat();
        assert_eq!(hashes(one(&event)), *expected, "{list:02x?}");
        let event = [
            b"\x82\xa4type\xacBlockRemoved\xacblock_hashes".as_slice(),
            list,
        ]
        .concat();
        assert_eq!(hashes(one(&event)), *expected, "{list:02x?}");
    }
}

#[test]
fn one_bad_event_does_not_spoil_the_others() {
    let stored = b"\x82\xacblock_hashes\x91\x07\xa4type\xabBlockStored";
    let bad: &[&[u8]] = &[
        b"\xc0",
        b"\x05",
        b"\x90",
        b"\x80",
        b"\x91\x05",
        b"\x81\x05\x05",
        b"\x81\xa4type\x05",
        b"\x81\xa1x\x05",
        b"\x91\xabBlockStored",
        b"\x81\xa4type\xacBlockRemoved",
        // A token, a block size, a parent, a medium, a group, extra keys of the wrong kind.
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xa9token_ids\x91\xff",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xa9token_ids\x91\xcf\0\0\0\x01\0\0\0\0",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xaablock_size\xff",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xb1parent_block_hash\xa1x",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xa6medium\x05",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xa6medium\xa1\xff",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xa9group_idx\xa10",
        b"\x83\xa4type\xabBlockStored\xacblock_hashes\x91\x07\xaaextra_keys\x91\x05",
        // Binary in binary, binary that is no event, binary that is cut.
        b"\xc4\x03\xc4\x01\x90",
        b"\xc4\x01\x05",
        b"\xc4\x00",
    ];
    for event in bad {
        let list = [b"\x93".as_slice(), stored, event, stored].concat();
        let payload = batch(&list);
        let events: Vec<_> = decode(&payload).unwrap().events().collect();
        assert_eq!(events.len(), 3, "{event:02x?}");
        assert_eq!(events[1], Event::Malformed, "{event:02x?}");
        for i in [0, 2] {
            assert_eq!(hashes(events[i]), Some(vec![7]), "{event:02x?}");
        }
    }
    // A type of its own, an empty clear in both forms, members from the future.
    assert_eq!(one(b"\x91\xa5Later"), Event::Unknown);
    assert_eq!(one(b"\x82\xa1z\x90\xa4type\xa5Later"), Event::Unknown);
    assert_eq!(one(b"\x91\xb0AllBlocksCleared"), Event::AllBlocksCleared);
    assert_eq!(
        one(b"\x81\xa4type\xb0AllBlocksCleared"),
        Event::AllBlocksCleared
    );
    let long = [
        b"\xdc\x00\x0e\xabBlockStored\x91\x07".as_slice(),
        &[0xc0; 12],
    ]
    .concat();
    assert_eq!(hashes(one(&long)), Some(vec![7]));
}

#[test]
fn events_packed_once_more_are_read() {
    let removed = b"\x93\xacBlockRemoved\x91\x07\xaeSHARED_STORAGE";
    let bin = |bytes: &[u8]| [&[0xc4, bytes.len() as u8], bytes].concat();
    let two = [b"\x92".as_slice(), removed, removed].concat();
    let two_packed = [b"\x92".to_vec(), bin(removed), bin(removed)].concat();
    let map = b"\x82\xa4type\xacBlockRemoved\xacblock_hashes\x91\x07";
    let table: &[(&str, Vec<u8>, usize)] = &[
        ("packed events", two_packed.clone(), 2),
        ("a packed list", bin(&two), 2),
        ("a packed list of packed events", bin(&two_packed), 2),
        ("a packed event", bin(removed), 1),
        ("a packed map event", bin(map), 1),
        ("a packed empty list", bin(b"\x90"), 0),
    ];
    for (name, events, n) in table {
        let payload = batch(events);
        let events: Vec<_> = decode(&payload).unwrap().events().collect();
        assert_eq!(events.len(), *n, "{name}");
        for event in events {
            assert_eq!(hashes(event), Some(vec![7]), "{name}");
        }
    }
    for bad in [
        &b"\xc4\x00"[..],
        b"\xc4\x01\x05",
        b"\xc4\x02\x90\x90",
        b"\xc4\x01\x91",
    ] {
        let payload = batch(bad);
        // A cut list inside is no payload; the rest is no list of events.
        assert_eq!(decode(&payload).err(), Some(Malformed::Shape), "{bad:02x?}");
    }
}

#[test]
fn frames_that_say_nothing() {
    let table: &[(&[u8], Malformed)] = &[
        (b"", Malformed::Msgpack),
        (b"\xc1", Malformed::Msgpack),
        (b"\x92\x01", Malformed::Msgpack),
        (b"\x92\x01\x90\x00", Malformed::Msgpack),
        (b"\xdd\xff\xff\xff\xff", Malformed::Msgpack),
        (b"\x05", Malformed::Shape),
        (b"\x90", Malformed::Shape),
        (b"\x91\x01", Malformed::Shape),
        (b"\x92\xa1x\x90", Malformed::Shape),
        (b"\x92\x01\xc0", Malformed::Shape),
        (b"\x92\x01\x80", Malformed::Shape),
        (b"\x92\xcb\x7f\xf8\0\0\0\0\0\0\x90", Malformed::Shape), // NaN
    ];
    for (payload, expected) in table {
        assert_eq!(decode(payload).err(), Some(*expected), "{payload:02x?}");
    }
    let large = vec![0xc0; MAX_PAYLOAD_BYTES + 1];
    assert_eq!(decode(&large).err(), Some(Malformed::TooLarge));
    // An integer clock, no events, a rank of nil, members from the future.
    let batch = decode(b"\x94\x05\x90\xc0\x01").unwrap();
    assert_eq!((batch.ts, batch.data_parallel_rank), (5.0, None));
    assert_eq!(batch.events().count(), 0);
}

#[test]
fn tiers_are_lower_case_and_say_where() {
    let table = [
        (None, None, "gpu"),
        (Some(""), None, "gpu"),
        (Some("GPU"), None, "gpu"),
        (Some("gpu"), Some("LOCAL"), "gpu"),
        (None, Some("LOCAL"), "gpu"),
        (Some("CPU"), None, "cpu"),
        (Some("cpu"), None, "cpu"),
        (Some("STORAGE"), None, "storage"),
        (Some("STORAGE"), Some("LOCAL"), "storage@local"),
        (Some("STORAGE"), Some("REMOTE"), "storage@remote"),
        (Some("storage"), Some("remote"), "storage@remote"),
        (Some("STORAGE"), Some("ELSEWHERE"), "storage"),
        (Some("FS"), None, "fs"),
        (Some("OBJ"), None, "obj"),
        (Some("SHARED_STORAGE"), None, "shared_storage"),
        (Some("CPU_TIER1"), None, "cpu_tier1"),
    ];
    for (medium, locality, expected) in table {
        assert_eq!(tier(medium, locality), expected, "{medium:?} {locality:?}");
    }
}

#[test]
fn extra_keys_are_read_block_by_block() {
    // [["salt", ["img", -3], bin 01 02, 5], nil, []]
    let event = b"\x83\xa4type\xabBlockStored\xacblock_hashes\x90\xaaextra_keys\
        \x93\x94\xa4salt\x92\xa3img\xfd\xc4\x02\x01\x02\x05\xc0\x90";
    let Event::Stored(e) = one(event) else {
        panic!()
    };
    let blocks: Vec<Vec<Extra<'_>>> = e.extra_keys.blocks().map(Iterator::collect).collect();
    let first = vec![
        Extra::Text("salt"),
        Extra::TextAt("img", -3),
        Extra::Bytes(&[1, 2]),
        Extra::Other,
    ];
    assert_eq!(blocks, [first, vec![], vec![]]);
    assert!(e.extra_keys.is_given());
}

/// Goes over every list of an event.
fn walk(event: Event<'_>) -> usize {
    match event {
        Event::Stored(e) => {
            let extras: usize = e.extra_keys.blocks().map(Iterator::count).sum();
            e.hashes.count() + e.tokens.count() + extras
        }
        Event::Removed(e) => e.hashes.count(),
        _ => 0,
    }
}

/// Every payload, cut anywhere and with any byte changed: read to its end, without a panic.
#[test]
fn damaged_payloads_are_survived() {
    let vectors = vectors();
    let constructed = vectors["constructed"].as_array().unwrap();
    let mut payloads: Vec<_> = constructed
        .iter()
        .map(|c| bytes(&c["batch_hex_dp0"]))
        .collect();
    payloads.push(bytes(&vectors["live"][4]["payload_hex"]));
    let mut events = 0;
    let mut go = |payload: &[u8]| {
        if let Ok(batch) = decode(payload) {
            events += batch.events().map(walk).count();
        }
    };
    for payload in payloads {
        for cut in 0..payload.len() {
            assert_eq!(decode(&payload[..cut]).err(), Some(Malformed::Msgpack));
        }
        // The recorded one is long: not every byte.
        for at in (0..payload.len()).step_by(1 + payload.len() / 1000 * 13) {
            let mut damaged = payload.clone();
            for byte in [
                0x00, 0x7f, 0x80, 0x90, 0xc0, 0xc1, 0xc6, 0xd3, 0xdd, 0xdf, 0xff,
            ] {
                damaged[at] = byte;
                go(&damaged);
            }
        }
    }
    assert!(events > 1000);
}
