//! Bodies that no honest client sends: they pass, nothing traps, memory stays bounded.

use crate::rig::{CHAT, DISABLE_BOTH, GENERATE, Rig, THRESHOLD, chat, post};

const MIB: usize = 1 << 20;

/// Sends `count` times `piece` between `before` and `after`; gives the growth of linear memory.
fn send_long(rig: &Rig, before: &str, piece: &[u8], count: usize, after: &str) -> usize {
    let start = rig.vm.memory_bytes();
    let mut stream = rig.policy.request(chat());
    stream.chunk(before);
    for _ in 0..count {
        stream.chunk(piece);
    }
    let out = stream.end_with(after);
    assert!(out.complete());
    let sent = before.len() + piece.len() * count + after.len();
    assert!(out.body().len() >= sent);
    assert!(out.body().starts_with(before.as_bytes()));
    rig.vm.memory_bytes() - start
}

#[test]
fn a_hundred_megabytes_of_string_need_no_memory() {
    let rig = Rig::new(DISABLE_BOTH);
    let piece = vec![b'x'; 64 * 1024];
    let grown = send_long(&rig, r#"{"prompt":""#, &piece, 1_600, r#""}"#);
    assert!(grown <= MIB, "{grown}");
    assert_eq!(rig.decisions().get("load disable policy"), Some(&1));
}

#[test]
fn a_long_key_needs_no_memory() {
    let rig = Rig::new(DISABLE_BOTH);
    let piece = vec![b'k'; 64 * 1024];
    let grown = send_long(&rig, "{\"", &piece, 160, "\":1}");
    assert!(grown <= MIB, "{grown}");
}

#[test]
fn a_long_number_in_the_params_is_held_and_limited() {
    let rig = Rig::new(r#"{"loadPolicy":"disable","maxHeldBytes":1048576}"#);
    let piece = vec![b'7'; 64 * 1024];
    let grown = send_long(
        &rig,
        r#"{"kv_transfer_params":{"max_load_tokens":"#,
        &piece,
        160,
        "}}",
    );
    assert!(grown <= 4 * MIB, "{grown}");
    assert_eq!(rig.held(), 0);
    assert_eq!(rig.decisions().get("load preserve held_limit"), Some(&1));
}

#[test]
fn a_million_deep_nesting_needs_no_stack_and_no_memory() {
    for configuration in [DISABLE_BOTH, THRESHOLD] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let rig = Rig::new(configuration);
            let start = rig.vm.memory_bytes();
            let depth = 1_000_000;
            let body = format!(
                r#"{{"prompt":{}1{},"x":1}}"#,
                open.repeat(depth),
                close.repeat(depth)
            );
            let out = rig
                .policy
                .request(chat())
                .chunks(body.as_bytes().chunks(16 * 1024))
                .end();
            assert!(out.complete());
            assert!(out.text().starts_with(&body[..body.len() - 1]));
            let grown = rig.vm.memory_bytes() - start;
            assert!(grown <= MIB, "{grown}");
            assert_eq!(rig.decisions().get("load preserve not_json"), None);
        }
    }
}

#[test]
fn nesting_inside_the_params_too() {
    let rig = Rig::new(r#"{"loadPolicy":"disable","maxHeldBytes":4194304}"#);
    let depth = 1_000_000;
    let body = format!(
        r#"{{"kv_transfer_params":{{"x":{}{},"max_load_tokens":7}}}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    let out = rig.policy.send(chat(), &body);
    assert!(out.text() == body.replace(":7", ":0"));
}

#[test]
fn thousands_of_params_members_stay_bounded() {
    let rig = Rig::new(THRESHOLD);
    let start = rig.vm.memory_bytes();
    let member = r#""kv_transfer_params":{"max_load_tokens":1},"#;
    let body = format!("{{{}\"x\":1}}", member.repeat(20_000));
    let out = rig
        .policy
        .request(chat())
        .chunks(body.as_bytes().chunks(4_096))
        .end();
    assert!(out.text() == body);
    assert!(out.complete());
    assert_eq!(rig.held(), 0);
    let grown = rig.vm.memory_bytes() - start;
    assert!(grown <= 8 * MIB, "{grown}");
}

#[test]
fn random_bytes_pass_as_they_came() {
    let mut state: u64 = 7;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let rig = Rig::new(DISABLE_BOTH);
    // Bytes of any kind, and bytes that look like JSON.
    const JSON: &[u8] = br#"{}[]:,"\ 0"#;
    const MEMBER: &str = r#""kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}"#;
    for round in 0..2_000 {
        let length = usize::from(random()) % 64;
        let mut body = vec![b'{'];
        for _ in 0..length {
            let byte = random();
            body.push(match round % 2 {
                0 => byte,
                _ => JSON[usize::from(byte) % JSON.len()],
            });
        }
        for path in [CHAT, GENERATE] {
            let mut stream = rig.policy.request(post(path));
            for chunk in body.chunks(1 + usize::from(random()) % 8) {
                stream.chunk(chunk);
            }
            let out = stream.end();
            assert!(out.complete());
            // An object may have come out by chance: then a member was put before its brace.
            let sent = String::from_utf8_lossy(&body).into_owned();
            let got = out.text();
            let unchanged = got == sent
                || got.replacen(&format!(",{MEMBER}"), "", 1) == sent
                || got.replacen(MEMBER, "", 1) == sent;
            assert!(unchanged, "{sent:?} became {got:?}");
            assert_eq!(rig.held(), 0);
        }
    }
}
