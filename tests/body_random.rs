//! Generated bodies, valid, damaged and random: the editor against the naive edit and against
//! itself on an uncut body.
#![cfg(not(target_arch = "wasm32"))]
// Helpers outside the test functions are tests too.
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod body;

use body::dom::{self, Body};
use body::{Answer, all_edits, editor, pass_on, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use selective_kv::body::{Decide, Edits, Outcome, ParamsFacts, Places};

fn space() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just(String::new()),
        1 => Just(" ".to_owned()),
        1 => "[ \t\r\n]{1,5}",
    ]
}

/// A key's name, quoted, some characters escaped.
fn key(name: String) -> impl Strategy<Value = String> {
    let escapes = prop_oneof![
        3 => Just(Vec::new()),
        1 => vec(0..4_u8, name.chars().count()),
    ];
    escapes.prop_map(move |escapes| {
        let mut text = String::from("\"");
        for (index, character) in name.chars().enumerate() {
            match escapes.get(index) {
                Some(2) if character.is_ascii() => {
                    text += &format!("\\u{:04x}", u32::from(character));
                }
                Some(3) if character.is_ascii() => {
                    text += &format!("\\u{:04X}", u32::from(character));
                }
                _ => text.push(character),
            }
        }
        text + "\""
    })
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => select(vec![
            "0", "1", "-0", "0.0", "0e0", "null", "true", "false", "NaN", "-Infinity", "1e400",
            "\"\"", "\"0\"", "123456789012345678901234567890", r#""\"}{\\""#, r#""\\\\""#,
            r#""\ud83d\ude00""#,
        ])
        .prop_map(str::to_owned),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => "[ -~é€😀]{0,12}".prop_map(|text| serde_json::Value::from(text).to_string()),
    ]
}

/// An object's text from texts of keys and values.
fn object(
    member: impl Strategy<Value = (String, String)>,
    members: std::ops::Range<usize>,
) -> impl Strategy<Value = String> {
    let member = (space(), member, space(), space(), space())
        .prop_map(|(a, (key, value), b, c, d)| format!("{a}{key}{b}:{c}{value}{d}"));
    (vec(member, members), space()).prop_map(|(members, inside)| match members.is_empty() {
        true => format!("{{{inside}}}"),
        false => format!("{{{}}}", members.join(",")),
    })
}

fn any_key() -> impl Strategy<Value = String> {
    let names = vec![
        "a",
        "",
        "é",
        "kv_transfer_param",
        "max_load_tokens",
        "extra_args",
        "kv",
        "messages",
    ];
    select(names).prop_flat_map(|name| key(name.to_owned()))
}

fn value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 4, |value| {
        let array = (vec((space(), value.clone(), space()), 1..4)).prop_map(|items| {
            let items = items.into_iter().map(|(a, value, b)| a + &value + &b);
            format!("[{}]", items.collect::<Vec<_>>().join(","))
        });
        prop_oneof![
            array,
            space().prop_map(|inside| format!("[{inside}]")),
            object((any_key(), value), 0..4),
        ]
    })
}

fn params() -> impl Strategy<Value = String> {
    let names = vec![
        "max_load_tokens",
        "max_load_tokens",
        "max_offload_tokens",
        "kv_load_tiers",
        "remote_engine_id",
        "do_remote_prefill",
        "disagg_spec",
        "x",
    ];
    let key = select(names).prop_flat_map(|name| key(name.to_owned()));
    let caps = select(vec!["0", "0.0", "null", "false", "7"]).prop_map(str::to_owned);
    prop_oneof![
        6 => object((key, prop_oneof![caps, value()]), 0..6),
        2 => Just("null".to_owned()),
        1 => value(),
    ]
}

fn named(
    name: &'static str,
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = (String, String)> {
    (key(name.to_owned()), value)
}

fn plain() -> impl Strategy<Value = (String, String)> {
    (any_key(), value())
}

fn body() -> impl Strategy<Value = String> {
    let extra = object(
        prop_oneof![2 => named("kv_transfer_params", params()), 1 => plain()],
        0..4,
    );
    let extra = prop_oneof![4 => extra, 1 => value()];
    let sampling = object(
        prop_oneof![2 => named("extra_args", extra), 1 => plain()],
        0..4,
    );
    let sampling = prop_oneof![4 => sampling, 1 => value()];
    let member = prop_oneof![
        3 => named("kv_transfer_params", params()),
        2 => named("sampling_params", sampling),
        3 => plain(),
    ];
    let before = prop_oneof![6 => Just(""), 1 => Just("\u{feff}")];
    let behind =
        prop_oneof![6 => Just(""), 1 => Just("\n"), 1 => Just("}{\"kv_transfer_params\":{}}")];
    (before, space(), object(member, 0..6), behind)
        .prop_map(|(before, space, object, behind)| format!("{before}{space}{object}{behind}"))
}

fn places() -> impl Strategy<Value = Places> {
    select(vec![Places::TopLevel, Places::TopLevelOrNested])
}

fn answer() -> impl Strategy<Value = Answer> {
    (select(all_edits()), any::<bool>()).prop_map(|(edits, at_once)| match at_once {
        true => Answer::AtOnce(edits),
        false => Answer::AtTheEnd(edits),
    })
}

/// Ascending positions in a body of this length.
fn cuts(indices: &[Index], length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = indices
        .iter()
        .map(|index| index.index(length + 1))
        .collect();
    cuts.sort_unstable();
    cuts
}

/// Damages a body in one place.
fn damage(body: &mut Vec<u8>, at: &Index, kind: u8, byte: u8) {
    let index = at.index(body.len() + 1);
    match kind {
        0 => body.insert(index, byte),
        1 => body.truncate(index),
        _ if index == body.len() => {}
        2 => body[index] = byte,
        _ => {
            body.remove(index);
        }
    }
}

/// What holds for every body, valid or not, and however it is cut.
fn check_any(
    places: Places,
    body: &[u8],
    cuts: &[usize],
    answer: Answer,
) -> Result<(), TestCaseError> {
    let whole = run(places, body, &[], answer);
    let cut = run(places, body, cuts, answer);
    prop_assert_eq!(&cut.out, &whole.out);
    prop_assert_eq!(cut.outcome, whole.outcome);
    prop_assert_eq!(cut.edited, whole.edited);
    prop_assert_eq!(cut.left, 0);
    prop_assert_ne!(cut.outcome, Outcome::Pending);
    prop_assert_eq!(cut.edited.any(), cut.out != body);
    let early = matches!(answer, Answer::AtOnce(_));
    prop_assert!(early || cut.outcome == Outcome::Complete || cut.out == body);
    if let Some(expected) = dom::edited(places, body, answer.edits()) {
        prop_assert_eq!(
            String::from_utf8_lossy(&cut.out),
            String::from_utf8_lossy(&expected)
        );
        prop_assert_eq!(cut.outcome, Outcome::Complete);
        prop_assert!(Body::parse(&cut.out).is_some());
    }
    Ok(())
}

/// Knows some members at once, others only at the end, and decides each by its own facts.
struct Moody;

impl Decide for Moody {
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits> {
        let tiers = facts.load_tiers.map_or(0, <[u8]>::len);
        if tiers % 2 == 1 && !last_chance {
            return None;
        }
        let all = all_edits();
        Some(all[tiers % all.len()])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn valid_bodies_get_the_naive_edit(
        body in body(),
        places in places(),
        answer in answer(),
        indices in vec(any::<Index>(), 0..6),
    ) {
        prop_assert!(Body::parse(body.as_bytes()).is_some());
        check_any(places, body.as_bytes(), &cuts(&indices, body.len()), answer)?;
    }

    #[test]
    fn damaged_bodies_stay_what_they_were(
        body in body(),
        places in places(),
        answer in answer(),
        indices in vec(any::<Index>(), 0..6),
        damages in vec((any::<Index>(), 0..4_u8, select(b"\"\\{}[]:,u0n x\xff".to_vec())), 1..4),
    ) {
        let mut body = body.into_bytes();
        for (at, kind, byte) in damages {
            damage(&mut body, &at, kind, byte);
        }
        check_any(places, &body, &cuts(&indices, body.len()), answer)?;
    }

    #[test]
    fn random_bytes_go_through(
        mut body in vec(prop_oneof![any::<u8>(), select(b"{}[]\":,\\ n0".to_vec())], 0..200),
        brace in any::<bool>(),
        places in places(),
        answer in answer(),
        indices in vec(any::<Index>(), 0..6),
    ) {
        if brace {
            body.insert(0, b'{');
        }
        check_any(places, &body, &cuts(&indices, body.len()), answer)?;
    }

    #[test]
    fn decisions_differ_by_member_but_not_by_cut(
        body in body(),
        places in places(),
        indices in vec(any::<Index>(), 0..6),
    ) {
        let feed = |cuts: &[usize]| {
            let mut editor = editor(places);
            let mut out = Vec::new();
            let mut from = 0;
            for &to in cuts.iter().chain([&body.len()]) {
                let chunk = &body.as_bytes()[from..to];
                pass_on(editor.feed(chunk, to == body.len(), &mut Moody), chunk, &mut out);
                from = to;
            }
            (out, editor.outcome(), editor.edited())
        };
        let whole = feed(&[]);
        prop_assert!(Body::parse(&whole.0).is_some());
        prop_assert_eq!(feed(&cuts(&indices, body.len())), whole);
    }
}
