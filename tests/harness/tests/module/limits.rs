//! Held bytes: a limit for each request and one for the VM.

use crate::records::{self, prompts, runs};
use crate::rig::{ENDPOINT, Rig, chat, counts};

fn rig(per_request: usize, per_vm: usize) -> Rig {
    Rig::new(&format!(
        r#"{{"loadPolicy":"threshold","minExternalReusableTokens":1024,
            "maxHeldBytes":{per_request},"maxHeldBytesPerVm":{per_vm}}}"#
    ))
}

/// Params first, then a prompt of so many bytes.
fn params_first(prompt: usize) -> String {
    let prompt = "x".repeat(prompt);
    format!(r#"{{"kv_transfer_params":{{"max_load_tokens":512}},"prompt":"{prompt}"}}"#)
}

#[test]
fn evidence_that_comes_while_the_body_is_held_still_counts() {
    let rig = rig(1 << 20, 1 << 20);
    let body = params_first(1_000);
    let mut stream = rig.policy.request(chat());
    stream.chunk(&body[..500]);
    // From the params' value on.
    assert_eq!(rig.held(), 478);
    rig.evidence(prompts([runs(&[(1, &["cpu"])])]));
    let out = stream.end_with(&body[500..]);
    assert_eq!(out.text(), body.replace(":512", ":0"));
    assert_eq!(
        rig.decisions(),
        counts([
            ("load disable below_threshold", 1),
            ("offload preserve policy", 1)
        ])
    );
}

#[test]
fn at_the_requests_limit_everything_goes_on_unchanged() {
    let body = params_first(1_000);
    let rig = rig(500, 1 << 20);
    let out = rig
        .policy
        .request(chat())
        .chunks(body.as_bytes().chunks(64))
        .end();
    assert_eq!(out.text(), body);
    assert_eq!(
        rig.decisions(),
        counts([
            ("load preserve held_limit", 1),
            ("offload preserve held_limit", 1)
        ])
    );
    assert!(rig.env.metric("selective_kv_held_bytes_total") <= 500);
}

#[test]
fn two_hundred_uploads_at_once_stay_under_the_vms_limit() {
    let per_vm = 256 * 1024;
    let rig = rig(64 * 1024, per_vm);
    let body = params_first(16 * 1024);
    let mut streams: Vec<_> = (0..200)
        .map(|i| rig.policy.request(chat().id(&format!("r-{i}"))))
        .collect();
    for chunk in body.as_bytes().chunks(1_024) {
        for stream in &mut streams {
            stream.chunk(chunk);
            assert!(rig.held() <= per_vm as u64, "{}", rig.held());
        }
    }
    for stream in streams {
        let out = stream.end();
        assert!(out.text() == body);
        assert!(out.complete());
    }
    assert_eq!(rig.held(), 0);
    let decisions = rig.decisions();
    let (limited, held) = (
        decisions["load preserve held_limit"],
        decisions["load preserve no_evidence"],
    );
    assert_eq!(limited + held, 200);
    // 16 requests of 16 KiB fit; how many come through depends on who reserves when.
    assert!((1..=16).contains(&held), "{held}");
    assert!(
        rig.vm.memory_bytes() < 16 << 20,
        "{}",
        rig.vm.memory_bytes()
    );

    // The room is free again.
    let out = rig.policy.send(chat(), &body);
    assert_eq!(out.text(), body);
    assert_eq!(rig.decisions()["load preserve no_evidence"], held + 1);
}

#[test]
fn another_requests_evidence_frees_it_at_once() {
    // With evidence at hand nothing is held past the member.
    let rig = rig(64, 64);
    let record = records::evidence(
        "r-1",
        rig.env.now_ms(),
        ENDPOINT,
        64,
        prompts([runs(&[(1, &["cpu"])])]),
    );
    records::write(&rig.env, "", &records::evidence_key("r-1"), &record);
    let body = params_first(10_000);
    let out = rig
        .policy
        .request(chat())
        .chunks(body.as_bytes().chunks(100))
        .end();
    assert_eq!(out.text(), body.replace(":512", ":0"));
}
