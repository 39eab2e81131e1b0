//! What the editor asks the decider: which members, with which facts, when.

mod body;

use body::{editor, generate, top_level};
use selective_kv::body::{Decide, Edits, Outcome, Output, ParamsFacts, Places};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Writes down what it is asked.
#[derive(Default)]
struct Witness {
    answers: Vec<Option<Edits>>,
    asked: Vec<(Option<String>, bool, bool)>,
}

impl Decide for Witness {
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits> {
        let tiers = facts
            .load_tiers
            .map(|raw| String::from_utf8_lossy(raw).into_owned());
        self.asked.push((tiers, facts.disaggregated, last_chance));
        match self.answers.is_empty() {
            true => Some(Edits::KEEP),
            false => self.answers.remove(0),
        }
    }
}

/// What is asked for a body, in order: `kv_load_tiers`, disaggregated, last chance.
fn asked(
    places: Places,
    body: &str,
    answers: &[Option<Edits>],
) -> Vec<(Option<String>, bool, bool)> {
    let mut all = Vec::new();
    for split in 0..=body.len() {
        let mut witness = Witness {
            answers: answers.to_vec(),
            asked: Vec::new(),
        };
        let mut editor = editor(places);
        let (head, tail) = body.as_bytes().split_at(split);
        editor.feed(head, false, &mut witness);
        editor.feed(tail, true, &mut witness);
        assert_eq!(editor.outcome(), Outcome::Complete);
        all.push(witness.asked);
    }
    all.dedup();
    assert_eq!(all.len(), 1, "the same at every split");
    all.remove(0)
}

#[test]
fn the_decider_gets_the_facts_of_each_member_in_order() {
    const NONE: Option<String> = None;
    let some = |text: &str| Some(text.to_owned());
    let top = top_level();
    // Absent: once, at the closing brace.
    assert_eq!(asked(top, r#"{"a":1}"#, &[]), [(NONE, false, true)]);
    assert_eq!(asked(generate(), "{}", &[]), [(NONE, false, true)]);
    // Nothing that could be edited: once, all the same.
    assert_eq!(
        asked(top, r#"{"kv_transfer_params":5}"#, &[]),
        [(NONE, false, true)]
    );
    // At the member's end; once if the answer is known.
    let body = r#"{"kv_transfer_params":{"kv_load_tiers" : [ {"medium":"cpu"} ] ,"do_remote_prefill":true}}"#;
    let facts = (some(r#"[ {"medium":"cpu"} ]"#), true);
    assert_eq!(asked(top, body, &[]), [(facts.0.clone(), facts.1, false)]);
    // Again at the last chance if it was not.
    assert_eq!(
        asked(top, body, &[None]),
        [
            (facts.0.clone(), facts.1, false),
            (facts.0.clone(), facts.1, true)
        ]
    );
    // The last copy of kv_load_tiers; any copy of a peer key.
    let body = r#"{"kv_transfer_params":{"kv_load_tiers":[],"disagg_spec":{},"kv\u005fload_tiers":null,"disagg_spec":null}}"#;
    assert_eq!(asked(top, body, &[]), [(some("null"), true, false)]);
    for off in ["null", "false"] {
        let body = format!(
            r#"{{"kv_transfer_params":{{"remote_decoder":{off},"do_remote_decode":{off}}}}}"#
        );
        assert_eq!(asked(top, &body, &[]), [(NONE, false, false)]);
    }
    for key in [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_prefiller",
        "remote_decoder",
        "remote_kv_source",
        "disagg_spec",
    ] {
        for on in ["true", "0", "\"\"", "{}", "[]"] {
            let body = format!(r#"{{"kv_transfer_params":{{"{key}":{on}}}}}"#);
            assert_eq!(asked(top, &body, &[]), [(NONE, true, false)]);
        }
    }
    // Behind one that waits, the others wait and are asked in turn.
    let body = r#"{"kv_transfer_params":{"kv_load_tiers":1},"kv_transfer_params":{"kv_load_tiers":2},"kv_transfer_params":null}"#;
    assert_eq!(
        asked(top, body, &[]),
        [
            (some("1"), false, false),
            (some("2"), false, false),
            (NONE, false, false)
        ]
    );
    assert_eq!(
        asked(top, body, &[None]),
        [
            (some("1"), false, false),
            (some("1"), false, true),
            (some("2"), false, true),
            (NONE, false, true)
        ]
    );
}

#[test]
fn for_generate_the_decider_is_asked_for_the_place_in_effect() {
    const NONE: Option<String> = None;
    let some = |text: &str| Some(text.to_owned());
    let nested = r#""sampling_params":{"extra_args":{"kv_transfer_params":{"kv_load_tiers":1}}}"#;
    let top = r#""kv_transfer_params":{"kv_load_tiers":2}"#;
    let null = r#""kv_transfer_params":null"#;
    let other = r#""kv_transfer_params":"x""#;
    for (members, expected) in [
        ([nested, top].join(","), (some("2"), false, false)),
        ([top, nested].join(","), (some("2"), false, false)),
        (nested.to_owned(), (some("1"), false, true)),
        ([null, nested].join(","), (some("1"), false, true)),
        ([nested, null].join(","), (some("1"), false, true)),
        (null.to_owned(), (NONE, false, true)),
        ([nested, other].join(","), (NONE, false, true)),
        ([other, nested].join(","), (NONE, false, true)),
    ] {
        let body = format!("{{{members}}}");
        assert_eq!(asked(generate(), &body, &[]), [expected], "{body}");
    }
}

#[test]
fn no_answer_at_the_last_chance_keeps() {
    for body in [r#"{"kv_transfer_params":{"max_load_tokens":1}}"#, "{}"] {
        let mut witness = Witness {
            answers: vec![None, None],
            asked: Vec::new(),
        };
        let mut editor = editor(top_level());
        assert_eq!(
            editor.feed(body.as_bytes(), true, &mut witness),
            Output::Pass
        );
        assert_eq!(editor.outcome(), Outcome::Complete);
    }
}
