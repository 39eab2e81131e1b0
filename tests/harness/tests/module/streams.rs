//! How streams end: trailers, resets, answers in mid-body, many at once.

use crate::records::{prompts, runs};
use crate::rig::{CAPPED, DISABLE, DISABLE_BOTH, Rig, THRESHOLD, chat, counts};
use skv_harness::Fault;

/// Params first and no evidence: everything from the params on is held to the closing brace.
const HELD: &str = r#"{"kv_transfer_params":{"max_load_tokens":512},"prompt":"a long one"}"#;

#[test]
fn a_body_with_trailers_is_finished_at_its_closing_brace() {
    for cut in 0..CAPPED.len() {
        let rig = Rig::new(DISABLE_BOTH);
        let (first, second) = CAPPED.split_at(cut);
        let out = rig
            .policy
            .request(chat())
            .chunks([first, second])
            .trailers([("x-sum", "1")]);
        assert_eq!(
            out.text(),
            CAPPED.replace(":512", ":0").replace(":64", ":0")
        );
        assert!(out.complete());
        assert_eq!(rig.held(), 0);
        assert_eq!(rig.decisions().get("load disable policy"), Some(&1));
    }
    let rig = Rig::new(THRESHOLD);
    let out = rig
        .policy
        .request(chat())
        .chunks([HELD])
        .trailers([("x-sum", "1")]);
    assert_eq!(out.text(), HELD);
}

#[test]
fn a_body_cut_inside_its_json_passes_as_it_came() {
    for cut in 0..HELD.len() {
        let rig = Rig::new(THRESHOLD);
        let out = rig.policy.request(chat()).chunks([&HELD[..cut]]).end();
        assert_eq!(out.text(), HELD[..cut]);
        assert!(out.complete());
        assert_eq!(rig.held(), 0, "{cut}");
        assert_eq!(
            rig.decisions().get("load preserve not_json"),
            Some(&1),
            "{cut}"
        );
    }
}

#[test]
fn a_body_cut_inside_its_json_and_followed_by_trailers_is_answered_503_if_bytes_are_held() {
    let rig = Rig::new(THRESHOLD);
    let out = rig
        .policy
        .request(chat())
        .chunks([&HELD[..40]])
        .trailers([("x-sum", "1")]);
    assert_eq!(out.local_status(), Some(503));
    assert!(!out.complete());
    assert_eq!(rig.env.metric("selective_kv_unreturned_bytes_total"), 1);
    assert_eq!(rig.held(), 0);
    // Nothing held: nothing is missing.
    let rig = Rig::new(DISABLE);
    let out = rig
        .policy
        .request(chat())
        .chunks([r#"{"prompt":"#])
        .trailers([("x-sum", "1")]);
    assert_eq!(out.text(), r#"{"prompt":"#);
    assert!(out.complete());
    assert_eq!(rig.env.metric("selective_kv_unreturned_bytes_total"), 0);
}

#[test]
fn a_reset_in_mid_body_gives_back_what_was_held() {
    let rig = Rig::new(THRESHOLD);
    let mut stream = rig.policy.request(chat());
    stream.chunk(&HELD[..40]).chunk("");
    // From the params' value on.
    assert_eq!(rig.held(), 18);
    stream.chunk(&HELD[40..50]);
    assert_eq!(rig.held(), 28);
    let out = stream.reset();
    assert_eq!(out.text(), HELD[..22]);
    assert_eq!(rig.held(), 0);
    assert_eq!(rig.env.metric("selective_kv_held_bytes_total"), 28);
    // Nothing was decided yet.
    assert_eq!(rig.decisions(), counts([]));
    // And the VM goes on.
    rig.evidence(prompts([runs(&[(24, &["cpu"])])]));
    assert!(rig.policy.send(chat(), CAPPED).complete());
}

#[test]
fn an_answer_in_mid_body_gives_back_what_was_held() {
    let rig = Rig::new(THRESHOLD);
    let mut stream = rig.policy.request(chat());
    stream.chunk(&HELD[..40]);
    stream.respond(413, &[]);
    let out = stream.close();
    assert!(!out.complete());
    assert_eq!(rig.held(), 0);
}

#[test]
fn a_stream_destroyed_inside_any_callback_traps_nothing_and_holds_nothing() {
    let run = |rig: &Rig| {
        let mut stream = rig.policy.request(chat());
        stream
            .chunk(&HELD[..40])
            .chunk(&HELD[40..50])
            .last_chunk(&HELD[50..]);
        stream.close();
    };
    let rig = Rig::new(THRESHOLD);
    let before = rig.env.call_count();
    run(&rig);
    for k in 1..=rig.env.call_count() - before {
        let rig = Rig::new(THRESHOLD);
        rig.env.inject(Fault::call(k).destroy());
        run(&rig);
        assert_eq!(rig.env.faults_fired(), 1);
        assert_eq!(rig.held(), 0, "at call {k}");
    }
}

#[test]
fn many_streams_of_one_vm_interleave() {
    let rig = Rig::new(DISABLE);
    let mut streams: Vec<_> = (0..100).map(|_| rig.policy.request(chat())).collect();
    for chunk in CAPPED.as_bytes().chunks(5) {
        for stream in &mut streams {
            stream.chunk(chunk);
        }
    }
    for stream in streams {
        assert_eq!(stream.end().text(), CAPPED.replace(":512", ":0"));
    }
    assert_eq!(
        rig.decisions(),
        counts([
            ("load disable policy", 100),
            ("offload preserve policy", 100)
        ])
    );
    assert_eq!(rig.held(), 0);
}
