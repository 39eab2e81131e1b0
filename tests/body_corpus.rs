//! Every body of `testdata/bodies`, with every decision, cut everywhere: the bytes that go on are
//! those of the naive edit ([`body::dom`]).
#![cfg(not(target_arch = "wasm32"))]
// Helpers outside the test functions are tests too.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod body;

use std::fs;
use std::path::Path;

use body::dom::{self, Body};
use body::{Answer, answers, generate, run, top_level};
use selective_kv::body::{Cap, Outcome, Places};
use serde_json::{Value, json};

/// Pairs of splits are tried for bodies up to this many bytes.
const SHORT: usize = 130;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/bodies");
    let mut bodies: Vec<_> = fs::read_dir(folder)
        .expect("the corpus")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("a body"))
        })
        .collect();
    bodies.sort();
    assert!(bodies.len() >= 35, "the corpus is there");
    bodies
}

/// A body, where params count, what is decided, and what has to come out.
type Case = (String, Vec<u8>, Places, Answer, Vec<u8>);

fn cases() -> impl Iterator<Item = Case> {
    corpus().into_iter().flat_map(|(name, body)| {
        [top_level(), generate()]
            .into_iter()
            .flat_map(move |places| {
                let (name, body) = (name.clone(), body.clone());
                answers().into_iter().map(move |answer| {
                    let expected = dom::edited(places, &body, answer.edits())
                        .unwrap_or_else(|| panic!("{name} is valid JSON"));
                    (name.clone(), body.clone(), places, answer, expected)
                })
            })
    })
}

/// The cases of a body's own endpoint.
fn own_cases() -> impl Iterator<Item = Case> {
    cases().filter(|(name, _, places, _, _)| {
        name.starts_with("generate") == (*places == Places::TopLevelOrNested)
    })
}

fn check(name: &str, body: &[u8], places: Places, cuts: &[usize], answer: Answer, expected: &[u8]) {
    let run = run(places, body, cuts, answer);
    if run.out != expected {
        let (out, expected) = (
            String::from_utf8_lossy(&run.out),
            String::from_utf8_lossy(expected),
        );
        panic!("{name}, {places:?}, {answer:?}, cut at {cuts:?}\n{out}\n{expected}");
    }
    assert_eq!(run.outcome, Outcome::Complete, "{name}");
    assert_eq!(run.edited.any(), expected != body, "{name} {answer:?}");
    assert_eq!(run.left, 0, "{name}");
}

#[test]
fn every_split_gives_the_naive_edit() {
    for (name, body, places, answer, expected) in own_cases() {
        for cut in 0..=body.len() {
            check(&name, &body, places, &[cut], answer, &expected);
        }
    }
}

#[test]
fn every_pair_of_splits_of_short_bodies() {
    for (name, body, places, answer, expected) in own_cases() {
        if body.len() > SHORT {
            continue;
        }
        for first in 0..=body.len() {
            for second in first..=body.len() {
                check(&name, &body, places, &[first, second], answer, &expected);
            }
        }
    }
}

#[test]
fn byte_by_byte_and_in_small_chunks() {
    for (name, body, places, answer, expected) in cases() {
        for step in 1..=7 {
            let cuts: Vec<usize> = (0..body.len()).step_by(step).collect();
            check(&name, &body, places, &cuts, answer, &expected);
        }
    }
}

#[test]
fn valid_json_stays_valid() {
    for (name, _, _, answer, expected) in cases() {
        assert!(Body::parse(&expected).is_some(), "{name} {answer:?}");
    }
}

/// What an engine makes of the caps: strict integers, the last of duplicates, for generate the
/// nested place unless the top level has a value.
fn in_effect(places: Places, body: &Value) -> [Value; 3] {
    let top = &body["kv_transfer_params"];
    let nested = &body["sampling_params"]["extra_args"]["kv_transfer_params"];
    let params = match places {
        Places::TopLevelOrNested if top.is_null() => nested,
        _ => top,
    };
    CONTROLLED.map(|name| params[name].clone())
}

const CONTROLLED: [&str; 3] = ["max_load_tokens", "max_offload_tokens", "kv_load_tiers"];

/// The body without what the policy controls, and without what an insertion adds besides that.
fn rest(mut body: Value) -> Value {
    for pointer in [
        "/kv_transfer_params",
        "/sampling_params/extra_args/kv_transfer_params",
    ] {
        if let Some(Value::Object(params)) = body.pointer_mut(pointer) {
            for name in CONTROLLED {
                params.remove(name);
            }
        }
    }
    let top = body.as_object_mut().expect("an object");
    if top
        .get("kv_transfer_params")
        .is_some_and(|params| params.is_null() || *params == json!({}))
    {
        top.remove("kv_transfer_params");
    }
    body
}

#[test]
fn an_engine_reads_the_decision_and_nothing_else_has_changed() {
    let mut compared = 0;
    for (name, body, places, answer, expected) in cases() {
        // serde_json has no NaN, mark or invalid UTF-8; like the engine it takes the last of
        // duplicates. Bodies where the params are not to be edited have their own tests.
        let special = ["not_object", "disaggregated", "duplicates", "null_after"];
        let object = |bytes: &[u8]| Body::parse(bytes).map(|body| body.object_text());
        let parse =
            |bytes: &[u8]| -> Option<Value> { serde_json::from_slice(&object(bytes)?).ok() };
        let (Some(before), Some(after)) = (parse(&body), parse(&expected)) else {
            continue;
        };
        if special.iter().any(|part| name.contains(part)) {
            continue;
        }
        compared += 1;
        let edits = answer.edits();
        let [load, offload, tiers] = in_effect(places, &after);
        let [load_before, offload_before, tiers_before] = in_effect(places, &before);
        let wanted = |cap, before| match cap {
            Cap::Keep => before,
            Cap::SetZero => json!(0),
            Cap::Remove => Value::Null,
        };
        assert_eq!(load, wanted(edits.load, load_before), "{name} {answer:?}");
        assert_eq!(
            offload,
            wanted(edits.offload, offload_before),
            "{name} {answer:?}"
        );
        let default: Value = serde_json::from_str(body::DEFAULT_TIERS).expect("JSON");
        let wanted = match edits.load_tiers {
            Some(_) if tiers_before.is_null() => default,
            _ => tiers_before,
        };
        assert_eq!(tiers, wanted, "{name} {answer:?}");
        assert_eq!(rest(after), rest(before), "{name} {answer:?}");
    }
    assert!(compared > 500, "{compared} cases compared");
}
