//! Memory: what is held, up to which limit, what is given back, and what a host that refuses an
//! output gets back.

// Helpers outside the test functions are tests too.
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod body;

use std::rc::Rc;

use body::{Answer, ROOM, editor, generate, pass_on, top_level};
use selective_kv::body::{Cap, Decide, Edited, Editor, Edits, HeldBudget, Outcome, Output, Places};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const LOAD: Edits = Edits::caps(Cap::SetZero, Cap::Keep);

fn replaced(text: &str) -> Output {
    Output::Replace(text.as_bytes().to_vec())
}

#[test]
fn what_stands_far_before_an_edit_is_not_written_again() {
    let far = format!(r#"{{"prompt":"{}""#, "x".repeat(2_000));
    let mut answer = Answer::AtOnce(LOAD);
    let chunk = far.clone() + "} ";
    let mut editor = Editor::new(top_level(), 100, Rc::new(HeldBudget::new(100)));
    let output = editor.feed(chunk.as_bytes(), false, &mut answer);
    let bytes = br#","kv_transfer_params":{"max_load_tokens":0}} "#.to_vec();
    let start = far.len();
    assert_eq!(output, Output::ReplaceFrom { start, bytes });
    // What is held is taken out in the same way.
    let begun = far + r#","kv_transfer_params":{"a""#;
    let mut editor = Editor::new(top_level(), 100, Rc::new(HeldBudget::new(100)));
    let output = editor.feed(begun.as_bytes(), false, &mut answer);
    let start = begun.len() - editor.held();
    assert_eq!(
        output,
        Output::ReplaceFrom {
            start,
            bytes: Vec::new()
        }
    );
    assert_eq!(editor.held(), r#"{"a""#.len());
    // Too little to be worth it.
    let mut editor = Editor::new(top_level(), 100, Rc::new(HeldBudget::new(100)));
    let output = editor.feed(br#"{"a":1}"#, false, &mut answer);
    assert_eq!(
        output,
        replaced(r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0}}"#)
    );
}

#[test]
fn an_untouched_chunk_is_not_copied() {
    let mut editor = editor(top_level());
    let mut answer = Answer::AtOnce(LOAD);
    let steps: &[(&str, Output)] = &[
        ("", Output::Pass),
        (r#"{"a":[1,2"#, Output::Pass),
        // Decided within the chunk, nothing to change.
        (
            r#"],"kv_transfer_params":{"max_load_tokens":0}"#,
            Output::Pass,
        ),
        // Decided within the chunk.
        (
            r#","kv_transfer_params":{"max_load_tokens":5},"b""#,
            replaced(r#","kv_transfer_params":{"max_load_tokens":0},"b""#),
        ),
        (":1}", Output::Pass),
        ("}}}", Output::Pass),
    ];
    for (chunk, expected) in steps {
        let output = editor.feed(chunk.as_bytes(), false, &mut answer);
        assert_eq!(&output, expected, "{chunk}");
        assert_eq!(editor.held(), 0);
    }
    assert_eq!(editor.outcome(), Outcome::Complete);
    assert_eq!(editor.held_total(), 0);
}

#[test]
fn holds_from_the_value_on_and_releases_when_decided() {
    let budget = Rc::new(HeldBudget::new(ROOM));
    let mut editor = Editor::new(top_level(), ROOM, budget.clone());
    let mut answer = Answer::AtOnce(LOAD);
    let steps: &[(&str, Output, usize)] = &[
        (r#"{"kv_transfer_params": "#, Output::Pass, 0),
        (r#"{"a""#, replaced(""), 4),
        ("", Output::Pass, 4),
        (":1", replaced(""), 6),
        (
            r#" } ,"z":"#,
            replaced(r#"{"a":1 ,"max_load_tokens":0} ,"z":"#),
            0,
        ),
        ("null}", Output::Pass, 0),
    ];
    for (chunk, expected, held) in steps {
        let output = editor.feed(chunk.as_bytes(), false, &mut answer);
        assert_eq!(&output, expected, "{chunk}");
        assert_eq!((editor.held(), budget.held()), (*held, *held), "{chunk}");
    }
    assert_eq!(editor.held_total(), 6);
}

#[test]
fn an_unknown_decision_holds_to_the_closing_brace() {
    let mut editor = editor(top_level());
    let mut answer = Answer::AtTheEnd(LOAD);
    let steps: &[(&str, Output, usize)] = &[
        (
            r#"{"kv_transfer_params":null,"#,
            replaced(r#"{"kv_transfer_params":"#),
            5,
        ),
        (r#""b":[1]"#, replaced(""), 12),
        ("}", replaced(r#"{"max_load_tokens":0},"b":[1]}"#), 0),
    ];
    for (chunk, expected, held) in steps {
        let output = editor.feed(chunk.as_bytes(), false, &mut answer);
        assert_eq!(&output, expected, "{chunk}");
        assert_eq!(editor.held(), *held, "{chunk}");
    }
    assert_eq!(editor.outcome(), Outcome::Complete);
    assert_eq!(editor.held_total(), 12);
}

#[test]
fn generate_holds_only_what_may_be_in_effect() {
    let steps: &[(&str, Output, usize)] = &[
        // Nested, and nothing at the top level yet: held.
        (
            r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"#,
            replaced(r#"{"sampling_params":{"extra_args":{"kv_transfer_params":"#),
            1,
        ),
        (r#"}}},"kv_transfer_params":"#, replaced(""), 26),
        // Null changes nothing.
        (r#"null,"#, replaced(""), 31),
        // A later sampling_params takes the place of the first; the null still waits.
        (r#""sampling_params":5,"#, replaced(""), 51),
        // A value at the top level: everything goes on as it came.
        (
            r#""kv_transfer_params":7,"#,
            replaced(
                r#"{}}},"kv_transfer_params":null,"sampling_params":5,"kv_transfer_params":7,"#,
            ),
            0,
        ),
        // From now on nested ones do not matter.
        (
            r#""sampling_params":{"extra_args":{"kv_transfer_params":{"#,
            Output::Pass,
            0,
        ),
        // ... and are not looked into.
        ("1 2}}}}", Output::Pass, 0),
    ];
    let mut editor = editor(generate());
    let mut answer = Answer::AtOnce(LOAD);
    for (chunk, expected, held) in steps {
        let output = editor.feed(chunk.as_bytes(), false, &mut answer);
        assert_eq!((&output, editor.held()), (expected, *held), "{chunk}");
    }
    assert_eq!(editor.outcome(), Outcome::Complete);
    assert!(!editor.edited().any());
}

#[test]
fn an_empty_last_chunk_gives_back_what_is_held() {
    for (head, tail, outcome) in [
        (r#"{"kv_transfer_params":"#, r#"{"a":1"#, Outcome::Cut),
        (r#"{"kv_transfer_params":"#, "nul", Outcome::Cut),
        (r#"{"kv_transfer_params":"#, r#"{},"b":"#, Outcome::Cut),
    ] {
        let mut editor = editor(top_level());
        let mut answer = Answer::AtTheEnd(LOAD);
        let body = [head, tail].concat();
        let output = editor.feed(body.as_bytes(), false, &mut answer);
        assert_eq!(output, replaced(head));
        assert_eq!(editor.held(), tail.len());
        assert_eq!(editor.feed(b"", true, &mut answer), replaced(tail));
        assert_eq!(editor.outcome(), outcome);
        assert_eq!((editor.held(), editor.edited()), (0, Edited::default()));
    }
}

#[test]
fn a_body_that_ends_early_is_cut_or_no_json() {
    for (body, outcome) in [
        ("", Outcome::NotJson),
        (" ", Outcome::NotJson),
        ("\u{feff}", Outcome::NotJson),
        ("[1]", Outcome::NotJson),
        ("{", Outcome::Cut),
        (r#"{"a":1"#, Outcome::Cut),
        (r#"{"a":1,}"#, Outcome::NotJson),
        (r#"{"kv_transfer_params":{"a":01}}"#, Outcome::NotJson),
        (r#"{"kv_transfer_params":{"a"1}}"#, Outcome::NotJson),
        (r#"{"kv_transfer_params":{"a":nope}}"#, Outcome::NotJson),
        (r#"{"kv_transfer_params":{"a":[}}"#, Outcome::NotJson),
        ("{}", Outcome::Complete),
    ] {
        let mut editor = editor(top_level());
        let output = editor.feed(body.as_bytes(), true, &mut Answer::AtOnce(Edits::KEEP));
        assert_eq!(
            (output, editor.outcome()),
            (Output::Pass, outcome),
            "{body}"
        );
    }
}

#[test]
fn an_edit_already_sent_stands_when_the_body_breaks() {
    let mut editor = editor(top_level());
    let body = r#"{"kv_transfer_params":{},"a":1 2,"kv_transfer_params":{}}"#;
    let output = editor.feed(body.as_bytes(), true, &mut Answer::AtOnce(LOAD));
    assert_eq!(
        output,
        replaced(r#"{"kv_transfer_params":{"max_load_tokens":0},"a":1 2,"kv_transfer_params":{}}"#)
    );
    assert_eq!(editor.outcome(), Outcome::NotJson);
    assert!(editor.edited().load);
}

/// Feeds in chunks of `size`; the bytes that go on, and the most that was held.
fn feed_all(
    editor: &mut Editor,
    body: &[u8],
    size: usize,
    decide: &mut dyn Decide,
) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    let mut most = 0;
    for chunk in body.chunks(size) {
        pass_on(editor.feed(chunk, false, decide), chunk, &mut out);
        most = most.max(editor.held());
    }
    pass_on(editor.feed(b"", true, decide), b"", &mut out);
    (out, most)
}

#[test]
fn the_limit_of_a_request_is_exact() {
    // 22 bytes before the value, 30 from it up to the brace that ends the wait.
    let body = format!(
        r#"{{"kv_transfer_params":{{"a":"{}"}},"b":1}}"#,
        "x".repeat(16)
    );
    let held = body.len() - 22 - 1;
    assert_eq!(held, 30);
    for size in 1..=body.len() {
        for limit in [0, 1, held - 1, held, held + 1] {
            let budget = Rc::new(HeldBudget::new(ROOM));
            let mut editor = Editor::new(top_level(), limit, budget.clone());
            let (out, most) = feed_all(
                &mut editor,
                body.as_bytes(),
                size,
                &mut Answer::AtTheEnd(LOAD),
            );
            assert!(most <= limit);
            assert_eq!(budget.held(), 0);
            if editor.outcome() == Outcome::HeldLimit {
                assert!(limit < held, "{limit} of {held} in chunks of {size}");
                assert_eq!(out, body.as_bytes());
                assert!(!editor.edited().any());
            } else {
                assert_eq!(editor.outcome(), Outcome::Complete);
                assert!(size > 1 || limit >= held);
                assert_eq!(out.len(), body.len() + r#","max_load_tokens":0"#.len());
            }
        }
    }
}

#[test]
fn the_limit_of_a_vm_counts_all_requests() {
    let budget = Rc::new(HeldBudget::new(100));
    let head = r#"{"kv_transfer_params":"#;
    let open = || Editor::new(top_level(), ROOM, budget.clone());
    let mut answer = Answer::AtOnce(LOAD);
    let long = format!("{head}{{\"a\":\"{}", "x".repeat(54));
    let (mut first, mut second, mut third) = (open(), open(), open());
    assert_eq!(
        first.feed(long.as_bytes(), false, &mut answer),
        replaced(head)
    );
    assert_eq!((first.held(), budget.held()), (60, 60));

    // 60 more do not fit: this one goes on as it came.
    assert_eq!(
        second.feed(long.as_bytes(), false, &mut answer),
        Output::Pass
    );
    assert_eq!(second.outcome(), Outcome::HeldLimit);
    assert_eq!(budget.held(), 60);

    // 40 do.
    let short = format!("{head}{{\"a\":\"{}", "x".repeat(34));
    assert_eq!(
        third.feed(short.as_bytes(), false, &mut answer),
        replaced(head)
    );
    assert_eq!(budget.held(), 100);

    // The first one wants one byte more: it lets go of everything, unchanged.
    let rest = format!("{{\"a\":\"{}y", "x".repeat(54));
    assert_eq!(first.feed(b"y", false, &mut answer), replaced(&rest));
    assert_eq!((first.outcome(), budget.held()), (Outcome::HeldLimit, 40));

    // A stream that is reset gives back what it had reserved.
    drop(third);
    assert_eq!(budget.held(), 0);
    let mut fourth = open();
    assert_eq!(
        fourth.feed(long.as_bytes(), false, &mut answer),
        replaced(head)
    );
    assert_eq!(
        fourth.feed(b"\"}}", false, &mut answer),
        replaced(&format!(
            "{{\"a\":\"{}\",\"max_load_tokens\":0}}}}",
            "x".repeat(54)
        ))
    );
    assert_eq!(budget.held(), 0);
}

#[test]
fn copies_that_wait_are_bounded() {
    let copy = r#""kv_transfer_params":{},"#;
    for (copies, outcome) in [(256, Outcome::Complete), (257, Outcome::HeldLimit)] {
        let body = format!("{{{}\"a\":1}}", copy.repeat(copies));
        for size in [1, 1000, body.len()] {
            let mut editor = editor(top_level());
            let (out, _) = feed_all(
                &mut editor,
                body.as_bytes(),
                size,
                &mut Answer::AtTheEnd(LOAD),
            );
            assert_eq!(editor.outcome(), outcome);
            assert_eq!(out == body.as_bytes(), outcome == Outcome::HeldLimit);
        }
        // Known at once, none of them waits.
        let mut editor = editor(top_level());
        feed_all(&mut editor, body.as_bytes(), 7, &mut Answer::AtOnce(LOAD));
        assert_eq!(editor.outcome(), Outcome::Complete);
    }
}

#[test]
fn deep_nesting_costs_nothing() {
    const DEPTH: usize = 1_000_000;
    let nest = |open: &str, close: &str| [open.repeat(DEPTH), close.repeat(DEPTH)].concat();
    for value in [nest("[", "]"), nest(r#"{"a":"#, "}").replace(":}", ":1}")] {
        let body = format!(r#"{{"x":{value},"kv_transfer_params":null}}"#);
        for places in [top_level(), generate()] {
            let mut editor = editor(places);
            let (out, most) = feed_all(
                &mut editor,
                body.as_bytes(),
                65_536,
                &mut Answer::AtOnce(LOAD),
            );
            assert_eq!(editor.outcome(), Outcome::Complete);
            assert!(most <= 4);
            assert_eq!(out.len(), body.len() - 4 + r#"{"max_load_tokens":0}"#.len());
        }

        // Inside the params it is held and read strictly.
        let body = format!(r#"{{"kv_transfer_params":{{"x":{value}}}}}"#);
        let mut editor = editor(top_level());
        let (out, _) = feed_all(
            &mut editor,
            body.as_bytes(),
            65_536,
            &mut Answer::AtOnce(LOAD),
        );
        assert_eq!(editor.outcome(), Outcome::Complete);
        assert_eq!(out.len(), body.len() + r#","max_load_tokens":0"#.len());
    }

    // Never closed.
    let body = format!(r#"{{"x":{}"#, "[{".repeat(DEPTH));
    let mut editor = editor(top_level());
    let (out, most) = feed_all(
        &mut editor,
        body.as_bytes(),
        65_536,
        &mut Answer::AtOnce(LOAD),
    );
    assert_eq!((editor.outcome(), most), (Outcome::Cut, 0));
    assert_eq!(out, body.as_bytes());
}

#[test]
fn long_strings_and_keys_are_not_held() {
    const CHUNKS: usize = 1600;
    let chunk = vec![b'x'; 65_536];
    for head in [r#"{"prompt":""#, r#"{"prompt":["#, r#"{""#, r#"{"a":"#] {
        let mut editor = editor(generate());
        let mut answer = Answer::AtOnce(LOAD);
        assert_eq!(
            editor.feed(head.as_bytes(), false, &mut answer),
            Output::Pass
        );
        for _ in 0..CHUNKS {
            assert_eq!(editor.feed(&chunk, false, &mut answer), Output::Pass);
            assert_eq!(editor.held(), 0);
        }
        assert_eq!(
            (editor.outcome(), editor.held_total()),
            (Outcome::Pending, 0)
        );
    }
}

#[test]
fn holding_much_in_small_chunks_is_bounded_by_the_limit() {
    const LIMIT: usize = 1 << 20;
    let budget = Rc::new(HeldBudget::new(ROOM));
    let mut editor = Editor::new(top_level(), LIMIT, budget.clone());
    let mut answer = Answer::AtOnce(LOAD);
    editor.feed(br#"{"kv_transfer_params":{"a":""#, false, &mut answer);
    let held = editor.held();
    for fed in 1.. {
        let output = editor.feed(b"xyz", false, &mut answer);
        if held + fed * 3 > LIMIT {
            let Output::Replace(out) = output else {
                panic!("held bytes come back");
            };
            assert_eq!(out.len(), held + fed * 3);
            break;
        }
        assert_eq!((output, editor.held()), (replaced(""), held + fed * 3));
        assert_eq!(budget.held(), editor.held());
    }
    assert_eq!((editor.outcome(), budget.held()), (Outcome::HeldLimit, 0));
}

/// The host refuses the output of chunk number `refused`, and takes what [`Editor::refused`] returns
/// in front of the chunk as it came: what went on before it stands, everything else is as it was.
fn check_refusal(places: Places, body: &[u8], size: usize, refused: usize, mut answer: Answer) {
    let budget = Rc::new(HeldBudget::new(ROOM));
    let mut editor = Editor::new(places, ROOM, budget.clone());
    let chunks: Vec<&[u8]> = body.chunks(size).chain([&b""[..]]).collect();
    let (early, late) = chunks.split_at(refused);
    let mut out = Vec::new();
    let mut fed = 0;
    for chunk in early {
        let output = editor.feed(chunk, false, &mut answer);
        pass_on(output, chunk, &mut out);
        editor.accepted();
        fed += chunk.len();
    }
    let gone_on = fed - editor.held();
    let mut expected = out.clone();
    expected.extend_from_slice(&body[gone_on..]);
    let edited = editor.edited();

    for (index, chunk) in late.iter().enumerate() {
        let end = index + 1 == late.len();
        let output = editor.feed(chunk, end, &mut answer);
        if index == 0 {
            out.extend(editor.refused());
            assert_eq!(editor.refused(), b"", "once only");
            out.extend_from_slice(chunk);
        } else {
            assert_eq!(output, Output::Pass);
            out.extend_from_slice(chunk);
        }
        assert_eq!((editor.held(), budget.held()), (0, 0));
    }
    assert_eq!(out, expected);
    assert_eq!(editor.edited(), edited);
    assert_eq!(edited.any(), expected != body);
}

#[test]
fn a_refused_output_can_be_taken_back_at_every_chunk() {
    let bodies = [
        r#"{"a":1,"kv_transfer_params":{"x":{},"max_load_tokens":1},"b":2}"#,
        r#"{"kv_transfer_params":null,"b":2}"#,
        r#"{"b":2}"#,
        r#"{"kv_transfer_params":{"a":1},"c":1,"kv_transfer_params":null,"kv_transfer_params":{}}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"a":1,"kv_transfer_params":{}}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}},"kv_transfer_params":null}"#,
        r#"{"kv_transfer_params":{"broken":1 2}}"#,
        r#"{"kv_transfer_params":{"cut":"#,
    ];
    for body in bodies {
        for places in [top_level(), generate()] {
            for size in 1..=body.len() {
                for refused in 0..=body.len().div_ceil(size) {
                    for answer in [Answer::AtOnce(LOAD), Answer::AtTheEnd(LOAD)] {
                        check_refusal(places, body.as_bytes(), size, refused, answer);
                    }
                }
            }
        }
    }
}

#[test]
fn a_refusal_keeps_the_reason_of_a_body_that_was_given_up() {
    for (body, limit, outcome) in [
        (
            r#"{"kv_transfer_params":{"a":1 2}}"#,
            ROOM,
            Outcome::NotJson,
        ),
        (r#"{"kv_transfer_params":{"a":1"#, 4, Outcome::HeldLimit),
        (r#"{"kv_transfer_params":{"a":"#, ROOM, Outcome::Cut),
    ] {
        let mut editor = Editor::new(top_level(), limit, Rc::new(HeldBudget::new(ROOM)));
        let (head, tail) = body.as_bytes().split_at(25);
        editor.feed(head, false, &mut Answer::AtOnce(LOAD));
        assert_eq!(editor.held(), 3);
        editor.feed(tail, limit == ROOM, &mut Answer::AtTheEnd(LOAD));
        assert_eq!(editor.outcome(), outcome);
        assert_eq!(editor.refused(), &head[22..]);
        assert_eq!(editor.outcome(), outcome);
    }
}
