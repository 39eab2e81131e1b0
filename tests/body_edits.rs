//! The edit rules of DESIGN 3 as tables: body, answer → body. Every row holds at every split, with
//! the answer known at once and only at the last chance.

mod body;

use body::{Answer, Run, generate, keep, run, top_level};
use selective_kv::body::{Cap, Edits, Outcome};

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const KEEP: Edits = Edits::KEEP;
const LOAD: Edits = edits(Cap::SetZero, Cap::Keep);
const OFFLOAD: Edits = edits(Cap::Keep, Cap::SetZero);
const BOTH: Edits = edits(Cap::SetZero, Cap::SetZero);
const ENABLE: Edits = edits(Cap::Remove, Cap::Keep);
const ENABLE_OFFLOAD: Edits = edits(Cap::Remove, Cap::SetZero);
const REMOVE_BOTH: Edits = edits(Cap::Remove, Cap::Remove);

const fn edits(load: Cap, offload: Cap) -> Edits {
    Edits::caps(load, offload)
}

/// `expected` is what comes out for `input` however it is cut, and the editor knows whether it
/// changed anything.
fn check(places: selective_kv::body::Places, table: &[(Edits, &str, &str)]) {
    for &(edits, input, expected) in table {
        for answer in [Answer::AtOnce(edits), Answer::AtTheEnd(edits)] {
            for split in 0..=input.len() {
                let run: Run = run(places, input.as_bytes(), &[split], answer);
                let out = String::from_utf8_lossy(&run.out);
                assert_eq!(out, expected, "{input} {answer:?} split at {split}");
                assert_eq!(run.outcome, Outcome::Complete, "{input}");
                assert_eq!(run.edited.any(), input != expected, "{input} {answer:?}");
                assert_eq!(run.left, 0);
            }
            // Behind so much that it stays where it is, and the edit is made at the end of the chunk. A
            // byte order mark comes first.
            let spaces = " ".repeat(4096);
            let far = |text: &str| match text.strip_prefix('\u{feff}') {
                Some(text) => format!("\u{feff}{spaces}{text}"),
                None => format!("{spaces}{text}"),
            };
            for split in [0, 512, far(input).len().saturating_sub(input.len() / 2)] {
                let run = run(places, far(input).as_bytes(), &[split], answer);
                let out = String::from_utf8_lossy(&run.out);
                assert_eq!(out, far(expected), "{input} {answer:?} split at {split}");
            }
        }
    }
}

#[test]
fn inserts_before_the_closing_brace() {
    check(
        top_level(),
        &[
            (KEEP, r#"{"a":1}"#, r#"{"a":1}"#),
            (ENABLE, r#"{"a":1}"#, r#"{"a":1}"#),
            (REMOVE_BOTH, r#"{"a":1}"#, r#"{"a":1}"#),
            (
                LOAD,
                r#"{"a":1}"#,
                r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                OFFLOAD,
                r#"{"a":1}"#,
                r#"{"a":1,"kv_transfer_params":{"max_offload_tokens":0}}"#,
            ),
            (
                BOTH,
                r#"{"a":1}"#,
                r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#,
            ),
            (
                ENABLE_OFFLOAD,
                r#"{"a":1}"#,
                r#"{"a":1,"kv_transfer_params":{"max_offload_tokens":0}}"#,
            ),
            (
                LOAD,
                "{}",
                r#"{"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                " { } x}",
                r#" { "kv_transfer_params":{"max_load_tokens":0}} x}"#,
            ),
            (
                LOAD,
                "\u{feff}{\n  \"a\" : \"b\"\n}\n",
                "\u{feff}{\n  \"a\" : \"b\"\n,\"kv_transfer_params\":{\"max_load_tokens\":0}}\n",
            ),
        ],
    );
}

#[test]
fn replaces_null() {
    check(
        top_level(),
        &[
            (
                KEEP,
                r#"{"kv_transfer_params":null}"#,
                r#"{"kv_transfer_params":null}"#,
            ),
            (
                ENABLE,
                r#"{"kv_transfer_params":null}"#,
                r#"{"kv_transfer_params":null}"#,
            ),
            (
                BOTH,
                r#"{"kv_transfer_params" : null , "a":1}"#,
                r#"{"kv_transfer_params" : {"max_load_tokens":0,"max_offload_tokens":0} , "a":1}"#,
            ),
            (
                LOAD,
                r#"{"kv_transfer_params":null,"kv_transfer_params":null}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
        ],
    );
}

#[test]
fn leaves_values_alone_that_are_neither_object_nor_null() {
    for value in [
        "5", "\"x\"", "[]", "[{}]", "true", "nul", "nullx", "NaN", "\"null\"", "0",
    ] {
        let body = format!(r#"{{"kv_transfer_params":{value} ,"a":1}}"#);
        check(top_level(), &[(BOTH, &body, &body)]);
        check(generate(), &[(BOTH, &body, &body)]);
    }
}

/// Edits inside one object; rows are the params object before and after.
fn check_object(table: &[(Edits, &str, &str)]) {
    for &(edits, before, after) in table {
        let wrap = |params: &str| format!(r#"{{"a":1,"kv_transfer_params":{params},"b":2}}"#);
        check(top_level(), &[(edits, &wrap(before), &wrap(after))]);
        let wrap = |params: &str| format!(r#"{{"kv_transfer_params":{params}}}"#);
        check(generate(), &[(edits, &wrap(before), &wrap(after))]);
        let wrap = |params: &str| {
            format!(r#"{{"sampling_params":{{"extra_args":{{"kv_transfer_params":{params}}}}}}}"#)
        };
        check(generate(), &[(edits, &wrap(before), &wrap(after))]);
    }
}

#[test]
fn sets_in_place() {
    check_object(&[
        (LOAD, "{}", r#"{"max_load_tokens":0}"#),
        (LOAD, "{ }", r#"{ "max_load_tokens":0}"#),
        (
            BOTH,
            "{}",
            r#"{"max_load_tokens":0,"max_offload_tokens":0}"#,
        ),
        (
            BOTH,
            r#"{"a":1 }"#,
            r#"{"a":1 ,"max_load_tokens":0,"max_offload_tokens":0}"#,
        ),
        (
            BOTH,
            r#"{"max_offload_tokens":7}"#,
            r#"{"max_offload_tokens":0,"max_load_tokens":0}"#,
        ),
        (LOAD, r#"{"max_load_tokens":0}"#, r#"{"max_load_tokens":0}"#),
        (
            LOAD,
            r#"{"max_load_tokens" : 512 }"#,
            r#"{"max_load_tokens" : 0 }"#,
        ),
        (
            LOAD,
            r#"{"max_load_tokens":0.0,"max_load_tokens":-0,"max_load_tokens":0e0}"#,
            r#"{"max_load_tokens":0,"max_load_tokens":0,"max_load_tokens":0}"#,
        ),
        (
            LOAD,
            r#"{"max_load_tokens":"0","max_load_tokens":false,"max_load_tokens":null}"#,
            r#"{"max_load_tokens":0,"max_load_tokens":0,"max_load_tokens":0}"#,
        ),
        (
            LOAD,
            r#"{"max_load_tokens":{"a":[1]},"max_load_tokens":[],"max_load_tokens":0}"#,
            r#"{"max_load_tokens":0,"max_load_tokens":0,"max_load_tokens":0}"#,
        ),
        (
            LOAD,
            r#"{"max\u005fload_tokens":5}"#,
            r#"{"max\u005fload_tokens":0}"#,
        ),
        (
            LOAD,
            r#"{"x":{"max_load_tokens":5},"y":"max_load_tokens"}"#,
            r#"{"x":{"max_load_tokens":5},"y":"max_load_tokens","max_load_tokens":0}"#,
        ),
        (
            OFFLOAD,
            r#"{"max_load_tokens":5,"max_offload_tokens":5}"#,
            r#"{"max_load_tokens":5,"max_offload_tokens":0}"#,
        ),
    ]);
}

#[test]
fn removes_with_comma_and_white_space() {
    check_object(&[
        (ENABLE, "{}", "{}"),
        (ENABLE, r#"{"a":1}"#, r#"{"a":1}"#),
        (ENABLE, r#"{ "max_load_tokens":1 }"#, "{  }"),
        (ENABLE, r#"{"max_load_tokens":0}"#, "{}"),
        // First: with the comma after it and the white space up to the next key.
        (
            ENABLE,
            r#"{ "max_load_tokens" : 1 , "a":1 }"#,
            r#"{ "a":1 }"#,
        ),
        // In the middle.
        (
            ENABLE,
            r#"{"a":1, "max_load_tokens":1,  "b":2}"#,
            r#"{"a":1, "b":2}"#,
        ),
        // Last: with the comma before it and the white space between.
        (
            ENABLE,
            r#"{ "a":1 , "max_load_tokens":1 }"#,
            r#"{ "a":1  }"#,
        ),
        (
            ENABLE,
            "{\n  \"a\": 1,\n  \"max_load_tokens\": 1\n}",
            "{\n  \"a\": 1\n}",
        ),
        // Several in a row, as if one after the other.
        (
            ENABLE,
            r#"{ "max_load_tokens":1 , "max_load_tokens":2 }"#,
            "{  }",
        ),
        (
            ENABLE,
            r#"{"a":1 , "max_load_tokens":1 , "max_load_tokens":2 }"#,
            r#"{"a":1  }"#,
        ),
        (
            ENABLE,
            r#"{"max_load_tokens":1 , "max_load_tokens":2 , "a":1}"#,
            r#"{"a":1}"#,
        ),
        (
            ENABLE,
            r#"{"max_load_tokens":1, "a":1, "max_load_tokens":2, "b":2, "max_load_tokens":3}"#,
            r#"{"a":1, "b":2}"#,
        ),
        (
            REMOVE_BOTH,
            r#"{"max_offload_tokens":1, "a":1, "max_load_tokens":2, "max_offload_tokens":3}"#,
            r#"{"a":1}"#,
        ),
        // Together with a set, in place or added.
        (
            ENABLE_OFFLOAD,
            r#"{"max_load_tokens":1,"max_offload_tokens":2}"#,
            r#"{"max_offload_tokens":0}"#,
        ),
        (
            ENABLE_OFFLOAD,
            r#"{"max_offload_tokens":2, "max_load_tokens":1}"#,
            r#"{"max_offload_tokens":0}"#,
        ),
        (
            ENABLE_OFFLOAD,
            r#"{"max_load_tokens":1}"#,
            r#"{"max_offload_tokens":0}"#,
        ),
        (
            ENABLE_OFFLOAD,
            r#"{ "a":1, "max_load_tokens":1 }"#,
            r#"{ "a":1 ,"max_offload_tokens":0}"#,
        ),
        (
            ENABLE_OFFLOAD,
            r#"{ "max_load_tokens":1 , "max_load_tokens":1 }"#,
            r#"{  "max_offload_tokens":0}"#,
        ),
    ]);
}

#[test]
fn edits_every_duplicate() {
    check(
        top_level(),
        &[
            (
                LOAD,
                r#"{"kv_transfer_params":{},"a":{},"kv\u005ftransfer_params":{"max_load_tokens":3},"kv_transfer_params":null,"kv_transfer_params":7}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"a":{},"kv\u005ftransfer_params":{"max_load_tokens":0},"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":7}"#,
            ),
            (
                LOAD,
                r#"{"kv_transfer_params":7,"kv_transfer_params":{}}"#,
                r#"{"kv_transfer_params":7,"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
        ],
    );
}

#[test]
fn generate_edits_the_place_in_effect() {
    check(
        generate(),
        &[
            // Neither: added to the top level.
            (
                LOAD,
                r#"{"token_ids":[1,2]}"#,
                r#"{"token_ids":[1,2],"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{}}}"#,
                r#"{"sampling_params":{"extra_args":{}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":null}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":null}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // Not objects on the way: nested absent.
            (
                LOAD,
                r#"{"sampling_params":[{"extra_args":{"kv_transfer_params":{}}}]}"#,
                r#"{"sampling_params":[{"extra_args":{"kv_transfer_params":{}}}],"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":null}}"#,
                r#"{"sampling_params":{"extra_args":null},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                r#"{"extra_args":{"kv_transfer_params":{}}}"#,
                r#"{"extra_args":{"kv_transfer_params":{}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // Nested alone, with escapes in every key.
            (
                LOAD,
                r#"{"sampling\u005fparams":{"extra\u005fargs":{"kv\u005ftransfer_params":{"a":1}},"b":1},"c":2}"#,
                r#"{"sampling\u005fparams":{"extra\u005fargs":{"kv\u005ftransfer_params":{"a":1,"max_load_tokens":0}},"b":1},"c":2}"#,
            ),
            // Top level before and after nested: even an empty one replaces it.
            (
                LOAD,
                r#"{"kv_transfer_params":{},"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"kv_transfer_params":{}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // Top level of another kind: the engine answers 400, nothing is edited.
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":5}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":5}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":nope}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":nope}"#,
            ),
            // Top-level null counts as absent.
            (
                LOAD,
                r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#,
                r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":0}}}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":null}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":0}}},"kv_transfer_params":null}"#,
            ),
            (
                LOAD,
                r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":null}}}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"sampling_params":{"extra_args":{"kv_transfer_params":null}}}"#,
            ),
            (
                LOAD,
                r#"{"kv_transfer_params":null,"sampling_params":{}}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"sampling_params":{}}"#,
            ),
            // Nested of another kind in effect: left alone, nothing added.
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":5}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":5}}}"#,
            ),
            (
                LOAD,
                r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":"x"}}}"#,
                r#"{"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":"x"}}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":nope}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":nope}}}"#,
            ),
        ],
    );
}

#[test]
fn generate_takes_the_last_of_duplicates_as_the_engine_does() {
    check(
        generate(),
        &[
            // A null before an object is not in effect.
            (
                LOAD,
                r#"{"kv_transfer_params":null,"kv_transfer_params":{}}"#,
                r#"{"kv_transfer_params":null,"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // A null behind one is.
            (
                LOAD,
                r#"{"kv_transfer_params":{},"kv_transfer_params":null}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // ... and brings back a nested object that was let go: nothing more is edited.
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"kv_transfer_params":{},"kv_transfer_params":null}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":null}"#,
            ),
            // One that comes after the null is still at hand.
            (
                LOAD,
                r#"{"kv_transfer_params":{},"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}"#,
                r#"{"kv_transfer_params":{"max_load_tokens":0},"kv_transfer_params":null,"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1,"max_load_tokens":0}}}}"#,
            ),
            // The last sampling_params, and the last extra_args in it.
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"sampling_params":{"extra_args":{"kv_transfer_params":{"b":1}}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"sampling_params":{"extra_args":{"kv_transfer_params":{"b":1,"max_load_tokens":0}}}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"sampling_params":5}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"sampling_params":5,"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}},"extra_args":{}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}},"extra_args":{}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
            // Every copy in the extra_args in effect.
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1},"kv_transfer_params":{}}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1,"max_load_tokens":0},"kv_transfer_params":{"max_load_tokens":0}}}}"#,
            ),
            (
                LOAD,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1},"kv_transfer_params":null}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1},"kv_transfer_params":null}},"kv_transfer_params":{"max_load_tokens":0}}"#,
            ),
        ],
    );
}

#[test]
fn ordinary_endpoints_do_not_look_into_sampling_params() {
    check(
        top_level(),
        &[(
            LOAD,
            r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#,
            r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":{"max_load_tokens":0}}"#,
        )],
    );
}

#[test]
fn keeping_everything_changes_nothing() {
    for body in [
        r#"{"a":1}"#,
        r#"{"kv_transfer_params":{"max_load_tokens":5}}"#,
        r#"{"kv_transfer_params":null}"#,
    ] {
        check(top_level(), &[(keep(), body, body)]);
        check(generate(), &[(keep(), body, body)]);
    }
}

const TIERS: &str = body::DEFAULT_TIERS;

fn with_tiers(edits: Edits) -> Edits {
    Edits {
        load_tiers: Some(body::default_tiers()),
        ..edits
    }
}

#[test]
fn a_default_for_the_tiers_is_added_where_the_client_sent_none() {
    let rows = |rows: &[(Edits, &str, &str)]| {
        for (edits, input, expected) in rows {
            let expected = expected.replace("TIERS", TIERS);
            check(top_level(), &[(*edits, input, &expected)]);
        }
    };
    let tiers = with_tiers(KEEP);
    rows(&[
        // No params at all, null, empty.
        (
            tiers,
            r#"{}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":TIERS}}"#,
        ),
        (
            tiers,
            r#"{"a":1,"kv_transfer_params":null}"#,
            r#"{"a":1,"kv_transfer_params":{"kv_load_tiers":TIERS}}"#,
        ),
        (
            tiers,
            r#"{"kv_transfer_params":{ } , "a":1}"#,
            r#"{"kv_transfer_params":{ "kv_load_tiers":TIERS} , "a":1}"#,
        ),
        // Behind the caps: load, offload, tiers.
        (
            with_tiers(BOTH),
            r#"{"a":1}"#,
            r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0,"kv_load_tiers":TIERS}}"#,
        ),
        (
            with_tiers(ENABLE_OFFLOAD),
            r#"{"kv_transfer_params":{"max_load_tokens":5,"x":1 }}"#,
            r#"{"kv_transfer_params":{"x":1 ,"max_offload_tokens":0,"kv_load_tiers":TIERS}}"#,
        ),
        (
            with_tiers(ENABLE),
            r#"{"kv_transfer_params":{"max_load_tokens":5}}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":TIERS}}"#,
        ),
        // What the client sent stays, whatever it is.
        (
            tiers,
            r#"{"kv_transfer_params":{"kv_load_tiers":[]}}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":[]}}"#,
        ),
        (
            tiers,
            r#"{"kv_transfer_params":{"kv_load_tiers": "all" }}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers": "all" }}"#,
        ),
        (
            tiers,
            r#"{"kv_transfer_params":"x"}"#,
            r#"{"kv_transfer_params":"x"}"#,
        ),
        // A null is none: it becomes the list where it stands.
        (
            with_tiers(LOAD),
            r#"{"kv_transfer_params":{"kv\u005fload_tiers" : null ,"a":1}}"#,
            r#"{"kv_transfer_params":{"kv\u005fload_tiers" : TIERS ,"a":1,"max_load_tokens":0}}"#,
        ),
        // Of several copies the last counts.
        (
            tiers,
            r#"{"kv_transfer_params":{"kv_load_tiers":null,"kv_load_tiers":[{}]}}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":null,"kv_load_tiers":[{}]}}"#,
        ),
        (
            tiers,
            r#"{"kv_transfer_params":{"kv_load_tiers":[{}],"kv_load_tiers":null,"kv_load_tiers":null}}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":[{}],"kv_load_tiers":TIERS,"kv_load_tiers":TIERS}}"#,
        ),
    ]);
}
