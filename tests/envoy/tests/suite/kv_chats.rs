//! Text and chats: their tokens come from an engine's `/tokenize`.

use std::time::Duration;

use serde_json::{Value, json};
use stand_in_engine::{Fault, FaultKind};

use crate::kv_rig::{Rig, engine, options};
use crate::support::{CHAT, COMPLETIONS, with};

fn chat(content: &str, more: Value) -> String {
    let messages = json!([
        {"role": "system", "content": "Be brief. \u{1F642}"},
        {"role": "user", "content": content},
    ]);
    with(
        json!({"model": "tiny", "messages": messages, "max_tokens": 1}),
        more,
    )
    .to_string()
}

fn text(words: &str, tokens: usize) -> String {
    words.chars().cycle().take(tokens).collect()
}

fn tokenizing() -> Value {
    json!({"tokenize": {"cluster": "tokenize", "timeout": "5s"}})
}

/// Serves a prompt and pushes the blocks from `kept` on out of the CPU, and all out of the GPU.
fn warm(rig: &Rig, path: &str, body: &str, kept: usize) {
    let outcome = rig.ask(0, path, body);
    assert_eq!(outcome.status, 200, "{outcome:?}");
    for (tier, from) in [("gpu", 0), ("cpu", kept)] {
        rig.engines[0]
            .evict(path, body.as_bytes(), from, usize::MAX, tier)
            .expect("a prompt");
    }
}

#[test]
fn a_chat_changes_its_decision_through_tokenize() {
    let body = chat(&text("A river, told at length. ", 300), json!({}));
    for (evidence, decided) in [
        (json!({}), "preserve: no_evidence, no tokens, 48 loaded"),
        (
            tokenizing(),
            "disable: below_threshold, 48 tokens, 0 loaded",
        ),
    ] {
        let rig = Rig::start(vec![engine(options())], evidence);
        warm(&rig, CHAT, &body, 3);
        if decided.contains("48 tokens") {
            rig.until_decided(0, CHAT, &body, "below_threshold", 48);
        }
        assert_eq!(rig.ask(0, CHAT, &body).told(), decided);
    }
}

#[test]
fn whatever_a_template_takes_counts() {
    let rig = Rig::start(vec![engine(options())], tokenizing());
    let words = text("An answer. ", 200);
    for more in [
        json!({}),
        json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"add_generation_prompt": false}),
        json!({"cache_salt": "a"}),
    ] {
        let body = chat(&words, more);
        warm(&rig, CHAT, &body, usize::MAX);
        let expected = rig.loadable(0, CHAT, &body);
        assert!(expected > 200, "{expected}");
        rig.until_decided(0, CHAT, &body, "admitted", expected);
        let outcome = rig.ask(0, CHAT, &body);
        assert_eq!(outcome.loaded(), expected, "{body}: {outcome:?}");
    }
}

#[test]
fn a_text_is_tokenised_too() {
    let rig = Rig::start(vec![engine(options())], tokenizing());
    let body = json!({"prompt": text("Words \"quoted\" and \n broken. ", 300), "max_tokens": 1});
    let body = body.to_string();
    warm(&rig, COMPLETIONS, &body, usize::MAX);
    rig.until_decided(0, COMPLETIONS, &body, "admitted", 288);
    let outcome = rig.ask(0, COMPLETIONS, &body);
    assert_eq!(outcome.told(), "enable: admitted, 288 tokens, 288 loaded");
}

/// A tokenizer that fails, or is slow, costs evidence and no request.
#[test]
fn without_tokens_a_chat_goes_on_as_it_came() {
    let evidence = json!({"tokenize": {"cluster": "tokenize", "timeout": "300ms"}});
    let rig = Rig::start(vec![engine(options())], evidence);
    for (number, kind) in [
        FaultKind::Status(500),
        FaultKind::Reset,
        FaultKind::Delay(Duration::from_secs(2)),
    ]
    .into_iter()
    .enumerate()
    {
        let body = chat(&text("A failure. ", 200 + number), json!({}));
        rig.engines[0].add_fault(Fault {
            count: 1,
            kind,
            path: Some("/tokenize".into()),
            after_body: true,
        });
        let outcome = rig.ask(0, CHAT, &body);
        assert_eq!(outcome.status, 200, "{kind:?}: {outcome:?}");
        assert_eq!(outcome.told(), "preserve: no_evidence, no tokens, 0 loaded");
    }
    let body = chat(&text("A success. ", 200), json!({}));
    warm(&rig, CHAT, &body, usize::MAX);
    let expected = rig.loadable(0, CHAT, &body);
    rig.until_decided(0, CHAT, &body, "admitted", expected);
}

/// Longer than what is ever held up.
#[test]
fn a_long_chat_is_not_held_up() {
    let rig = Rig::start(vec![engine(options())], tokenizing());
    let body = chat(&text("A novel. ", 100_000), json!({}));
    let outcome = rig.ask(0, CHAT, &body);
    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.told(), "preserve: no_evidence, no tokens, 0 loaded");
    let asked = rig.engines[0].records();
    assert!(asked.iter().all(|record| record.target != "/tokenize"));
}
