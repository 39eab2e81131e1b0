//! Generated bodies made to meet the borders of blocks and runs (tests/body/blocks.rs): what the
//! module's SIMD makes of them is what the native editor, which has none, makes of them.

#[path = "../../../body/blocks.rs"]
pub mod blocks;

use crate::native;
use crate::rig::{CHAT, DISABLE_BOTH, GENERATE, Rig, post};
use blocks::Random;
use selective_kv::body::{Cap, Edits};
use skv_harness::{Answer, Chain, Harness, Placement, Request};

const BODIES: u64 = 150;
/// All is held to the closing brace: nothing says what the endpoint has.
const HOLDING: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
    "offloadPolicy":"disable"}"#;

#[test]
fn valid_and_damaged_bodies_become_what_they_do_natively() {
    let both = Edits::caps(Cap::SetZero, Cap::SetZero);
    let offload = Edits::caps(Cap::Keep, Cap::SetZero);
    for (configuration, edits, late) in [(DISABLE_BOTH, both, false), (HOLDING, offload, true)] {
        let rig = Rig::new(configuration);
        let mut changed = 0;
        for seed in 0..BODIES {
            let mut random = Random::new(seed);
            let valid = blocks::body(&mut random);
            let damaged = blocks::damaged(&mut random, valid.clone());
            for body in [valid, damaged] {
                for path in [CHAT, GENERATE] {
                    let expected = native::decided(path, &body, edits, late);
                    let mut pieces: Vec<&[u8]> = Vec::new();
                    let mut from = 0;
                    for to in blocks::cuts(&mut random, body.len()) {
                        pieces.push(&body[from..to]);
                        from = to;
                    }
                    let stream = rig.policy.request(post(path)).chunks(pieces);
                    let out = stream.end_with(&body[from..]);
                    assert!(out.complete(), "body {seed}");
                    assert!(out.body() == expected, "body {seed}: {}", out.text());
                    assert_eq!(rig.held(), 0, "body {seed}");
                    changed += u32::from(expected != body);
                }
            }
        }
        assert!(changed > 300, "{changed}");
    }
}

#[test]
fn a_scorer_in_front_that_waits_for_tokens_changes_no_byte_of_it() {
    const SCORER: &str = r#"{"name":"pool","endpoints":["10.0.0.7:8000"],
        "scrape":{"cluster":"kv-scrape"},
        "evidence":{"events":{"cluster":"kv-events-bridge"},"tokenize":{"cluster":"engines"}}}"#;
    let env = Harness::new();
    let vm = env.vm("");
    let scorer = vm.plugin("kv-scorer", SCORER);
    let policy = vm.plugin("selective-kv", DISABLE_BOTH);
    let chain = Chain::default()
        .then(&scorer, Placement::Downstream)
        .then(&policy, Placement::Downstream);
    let mut asked = 0;
    for seed in 0..BODIES {
        let mut random = Random::new(seed);
        let mut body = blocks::body(&mut random);
        if random.below(4) == 0 {
            body = blocks::damaged(&mut random, body);
        }
        if let Some(brace) = body.iter().position(|byte| *byte == b'{') {
            // Another one each time: answers are kept.
            let chat = format!(r#""messages":[{{"role":"user","content":"{seed}"}}]"#);
            let last = body[brace + 1..].trim_ascii_start().starts_with(b"}");
            let comma: &[u8] = if last { b"" } else { b"," };
            body.splice(brace + 1..brace + 1, [chat.as_bytes(), comma].concat());
        }
        let both = Edits::caps(Cap::SetZero, Cap::SetZero);
        let expected = native::edited(CHAT, &body, both);
        let request: Request = post(CHAT).header("content-length", body.len().to_string());
        let mut stream = chain.request(request);
        let mut from = 0;
        for to in blocks::cuts(&mut random, body.len()) {
            stream.chunk(&body[from..to]);
            from = to;
            if random.below(3) > 0 {
                continue;
            }
            for call in scorer.http_calls() {
                asked += u32::from(call.headers.text(":path").as_deref() == Some("/tokenize"));
                match random.below(3) {
                    0 => scorer.fail_call(call.token),
                    _ => scorer.answer(call.token, Answer::new(200, r#"{"tokens":[5,6,7]}"#)),
                }
            }
        }
        stream.last_chunk(&body[from..]);
        for call in scorer.http_calls() {
            asked += u32::from(call.headers.text(":path").as_deref() == Some("/tokenize"));
            scorer.answer(call.token, Answer::new(200, r#"{"tokens":[5,6,7]}"#));
        }
        stream.resume();
        let out = stream.close();
        assert!(out.complete(), "body {seed}");
        assert!(out.body() == expected, "body {seed}: {}", out.text());
        assert_eq!(env.metric("selective_kv_held_bytes"), 0, "body {seed}");
    }
    assert!(asked > 30, "{asked}");
}
