use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// The bytes of the manual's block of hexadecimal digits with comments.
fn manual() -> Vec<u8> {
    let text = include_str!("../../../../docs/kv-events-bridge.md");
    let block = text.split("### A page, byte by byte").nth(1).unwrap();
    let block = block.split("```").nth(1).unwrap();
    let digits: String = block
        .lines()
        .flat_map(|line| line.split('#').next())
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn the_example_of_the_manual() {
    let bytes = manual();
    let page = decode(&bytes).unwrap();
    assert_eq!(page.cursor, "0123456789abcdef-6");
    assert_eq!((page.reset, page.more), (false, false));
    let [first, second] = page.sections.as_slice() else {
        panic!("{page:?}");
    };
    assert_eq!(first.key(), ("10.0.0.7:8000", 0));
    assert_eq!((first.live, first.silent_ms), (true, Some(1200)));
    assert_eq!(first.topic, Some("kv@10.0.0.7"));
    let payload = b"\x93\xcb\x41\xda\xc3\x03\x92\x10\0\0\x90\0";
    let records = [
        Record::Start { complete: true },
        Record::Batch { seq: 0, payload },
        Record::Gap { next: 5 },
        Record::Batch { seq: 5, payload },
    ];
    assert!(first.records().eq(records));
    assert_eq!(second.key(), ("10.0.0.8:8000", 1));
    assert_eq!((second.live, second.silent_ms), (false, None));
    assert_eq!((second.topic, second.records().count()), (None, 0));
}

/// A page as JSON says it; a batch's payload is the text's bytes.
fn bytes(json: &serde_json::Value) -> Vec<u8> {
    fn binary(value: &mut ciborium::Value) {
        match value {
            ciborium::Value::Array(items) => {
                if items.first() == Some(&ciborium::Value::Text("batch".to_owned()))
                    && let Some(ciborium::Value::Text(text)) = items.get(2)
                {
                    items[2] = ciborium::Value::Bytes(text.clone().into_bytes());
                }
                items.iter_mut().for_each(binary);
            }
            ciborium::Value::Map(pairs) => pairs.iter_mut().for_each(|(_, v)| binary(v)),
            _ => {}
        }
    }
    let mut value = ciborium::Value::serialized(json).unwrap();
    binary(&mut value);
    let mut out = Vec::new();
    ciborium::into_writer(&value, &mut out).unwrap();
    out
}

#[test]
fn what_is_no_page_is_refused_as_a_whole() {
    use serde_json::{Value, json};
    let good = json!({"v": 1, "cursor": "e-1", "reset": false, "more": true, "future": [1], "endpoints": [
        {"endpoint": "b", "rank": 0, "state": "live", "items": [["start", true], ["batch", 0, "x"]]},
        {"endpoint": "a", "rank": 1, "state": "live", "silent_ms": 5, "topic": "t", "new": 1, "items": []},
        {"endpoint": "a", "rank": 0, "state": "sleeping", "items": [["gap", 3]]},
    ]});
    let encoded = bytes(&good);
    let page = decode(&encoded).unwrap();
    let keys: Vec<_> = page.sections.iter().map(Section::key).collect();
    assert_eq!(keys, [("a", 0), ("a", 1), ("b", 0)]);
    assert!(page.more && !page.sections[0].live && page.sections[1].live);
    let batch = Record::Batch {
        seq: 0,
        payload: b"x",
    };
    assert_eq!(page.sections[2].records().last(), Some(batch));

    let at = |pointer: &str, value: Value| {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        json
    };
    let item = |value| at("/endpoints/0/items/0", value);
    let table: &[(&str, Value, Malformed)] = &[
        ("another version", at("/v", json!(2)), Malformed::Version),
        ("no version", at("/v", json!("1")), Malformed::Shape),
        ("a list", json!([1]), Malformed::Shape),
        (
            "cursor is no text",
            at("/cursor", json!(1)),
            Malformed::Shape,
        ),
        ("cursor empty", at("/cursor", json!("")), Malformed::Shape),
        (
            "cursor with a space",
            at("/cursor", json!("a b")),
            Malformed::Shape,
        ),
        (
            "cursor too long",
            at("/cursor", json!("c".repeat(257))),
            Malformed::Shape,
        ),
        ("reset is no flag", at("/reset", json!(0)), Malformed::Shape),
        (
            "more is no flag",
            at("/more", json!(null)),
            Malformed::Shape,
        ),
        (
            "endpoints is no list",
            at("/endpoints", json!({})),
            Malformed::Shape,
        ),
        (
            "a section is no map",
            at("/endpoints/1", json!(3)),
            Malformed::Shape,
        ),
        (
            "no name",
            at("/endpoints/1/endpoint", json!("")),
            Malformed::Shape,
        ),
        (
            "a rank below 0",
            at("/endpoints/1/rank", json!(-1)),
            Malformed::Shape,
        ),
        (
            "a rank too high",
            at("/endpoints/1/rank", json!(1u64 << 32)),
            Malformed::Shape,
        ),
        (
            "a rank told twice",
            at("/endpoints/1/rank", json!(0)),
            Malformed::Shape,
        ),
        (
            "silence is a text",
            at("/endpoints/1/silent_ms", json!("5")),
            Malformed::Shape,
        ),
        (
            "topic is a number",
            at("/endpoints/1/topic", json!(5)),
            Malformed::Shape,
        ),
        (
            "items is no list",
            at("/endpoints/1/items", json!(0)),
            Malformed::Shape,
        ),
        ("an item is no list", item(json!("start")), Malformed::Shape),
        ("an item is empty", item(json!([])), Malformed::Shape),
        (
            "an item of a new kind",
            item(json!(["pause", 3])),
            Malformed::Shape,
        ),
        (
            "a start without a word",
            item(json!(["start"])),
            Malformed::Shape,
        ),
        (
            "a start that says more",
            item(json!(["start", true, 1])),
            Malformed::Shape,
        ),
        (
            "a start with a number",
            item(json!(["start", 1])),
            Malformed::Shape,
        ),
        (
            "a batch without payload",
            item(json!(["batch", 0])),
            Malformed::Shape,
        ),
        (
            "a batch with a number",
            item(json!(["batch", 0, 1])),
            Malformed::Shape,
        ),
        ("a gap below 0", item(json!(["gap", -1])), Malformed::Shape),
    ];
    for (name, json, expected) in table {
        assert_eq!(decode(&bytes(json)).err(), Some(*expected), "{name}");
    }
    for key in ["v", "cursor", "reset", "more", "endpoints"] {
        let mut json = good.clone();
        json.as_object_mut().unwrap().remove(key);
        assert_eq!(decode(&bytes(&json)).err(), Some(Malformed::Shape), "{key}");
    }
    for cut in 0..encoded.len() {
        assert_eq!(
            decode(&encoded[..cut]).err(),
            Some(Malformed::Cbor),
            "{cut}"
        );
    }
}

#[test]
fn a_page_is_bounded() {
    assert_eq!(
        decode(&vec![0; MAX_PAGE_BYTES + 1]).err(),
        Some(Malformed::TooLarge)
    );
    let sections = |n: usize| {
        let section =
            |i| serde_json::json!({"endpoint": "a", "rank": i, "state": "live", "items": []});
        let all: Vec<_> = (0..n).map(section).collect();
        bytes(
            &serde_json::json!({"v": 1, "cursor": "c", "reset": true, "more": false, "endpoints": all}),
        )
    };
    assert_eq!(
        decode(&sections(MAX_SECTIONS)).unwrap().sections.len(),
        1024
    );
    assert_eq!(
        decode(&sections(MAX_SECTIONS + 1)).err(),
        Some(Malformed::Shape)
    );
}

#[cfg(not(target_arch = "wasm32"))]
mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever the bytes are: an answer, and the same one again.
        #[test]
        fn damaged_pages_never_panic(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
            cut in any::<Option<prop::sample::Index>>(),
        ) {
            let mut bytes = manual();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(page) = decode(&bytes) {
                let records: usize = page.sections.iter().map(|s| s.records().count()).sum();
                let listed: usize = page.sections.iter().map(|s| s.items.iter().count()).sum();
                prop_assert_eq!(records, listed);
            }
        }
    }
}
