//! The requests that are shown, each with what DESIGN says must come of it.

use serde_json::json;
use stand_in_engine::tokenizer::tokenize;

/// One request. Its prompt's KV is in both engines, so that it does not matter which one the load
/// balancer takes.
pub struct Case {
    pub name: &'static str,
    pub path: &'static str,
    pub headers: &'static [(&'static str, &'static str)],
    /// The body around its params member.
    before: String,
    after: &'static str,
    sent: &'static str,
    received: &'static str,
    /// Leading blocks of every prompt by tier.
    pub held: &'static [(&'static str, usize)],
    pub decision: &'static str,
    pub reason: &'static str,
    /// External reusable tokens that the policy must find.
    pub tokens: Option<u64>,
    /// Tokens that the engine must load.
    pub loads: usize,
}

impl Case {
    pub fn sent(&self) -> String {
        self.with(self.sent)
    }

    /// What must arrive at the engine, byte for byte.
    pub fn received(&self) -> String {
        self.with(self.received)
    }

    /// Whether a body is this request's, whatever became of its params.
    pub fn is_of(&self, body: &[u8]) -> bool {
        body.starts_with(self.before.as_bytes())
    }

    fn with(&self, member: &str) -> String {
        format!("{}{member}{}", self.before, self.after)
    }

    /// The params member of a body that arrived, for the table; the whole body if it is another.
    pub fn params_of<'b>(&self, body: &'b str) -> &'b str {
        let member = body
            .strip_prefix(self.before.as_str())
            .and_then(|rest| rest.strip_suffix(self.after));
        let member = member.map(|member| member.trim_start_matches(','));
        match member {
            None => body,
            Some("") => "none",
            Some(member) => member
                .strip_prefix("\"kv_transfer_params\":")
                .unwrap_or(member),
        }
    }

    pub fn streams(&self) -> bool {
        self.before.contains("\"stream\":true")
    }
}

/// Text of this many tokens, its own for each topic.
fn prompt(topic: &str, tokens: usize) -> String {
    format!("{topic}, told at length. ")
        .chars()
        .cycle()
        .take(tokens)
        .collect()
}

fn chat(topic: &str, tokens: usize, stream: bool) -> String {
    let text = prompt(topic, tokens);
    let stream = if stream { ",\"stream\":true" } else { "" };
    format!(
        "{{\"model\":\"tiny\",\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\"max_tokens\":4{stream}"
    )
}

/// Only an engine can tell what the image becomes.
fn with_image(topic: &str, tokens: usize) -> String {
    let text = prompt(topic, tokens);
    let parts = json!([
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]);
    format!(
        "{{\"model\":\"tiny\",\"messages\":[{{\"role\":\"user\",\"content\":{parts}}}],\"max_tokens\":4"
    )
}

fn completion(prompt: &str) -> String {
    format!("{{\"model\":\"tiny\",\"max_tokens\":4,\"prompt\":{prompt}")
}

fn quoted(topic: &str, tokens: usize) -> String {
    format!("\"{}\"", prompt(topic, tokens))
}

/// Token ids.
fn numbers(topic: &str, tokens: usize) -> String {
    format!("{:?}", tokenize(&prompt(topic, tokens))).replace(' ', "")
}

/// The request that is sent again and again while pressure builds and eases.
pub fn repeated() -> Case {
    Case {
        name: "chat",
        path: "/v1/chat/completions",
        headers: &[],
        before: chat("A river", 3000, false),
        after: "}",
        sent: "",
        received: "",
        held: &[("cpu", 80)],
        decision: "enable",
        reason: "admitted",
        tokens: Some(2560),
        loads: 2560,
    }
}

/// The same while the gate of its engine is closed.
pub fn repeated_under_pressure() -> Case {
    Case {
        received: ",\"kv_transfer_params\":{\"max_load_tokens\":0}",
        decision: "disable",
        reason: "queue_pressure",
        loads: 0,
        ..repeated()
    }
}

/// The life of one chat: what both engines hold of it changes, and the decision with it. Its prompt has
/// 94 full blocks.
pub struct Life;

impl Life {
    const DISABLED: &str = ",\"kv_transfer_params\":{\"max_load_tokens\":0}";

    pub fn first(name: &'static str) -> Case {
        Case {
            name,
            path: "/v1/chat/completions",
            headers: &[],
            before: chat("A life", 3000, false),
            after: "}",
            sent: "",
            received: Self::DISABLED,
            held: &[],
            decision: "disable",
            reason: "below_threshold",
            tokens: Some(0),
            loads: 0,
        }
    }

    pub fn again(name: &'static str) -> Case {
        Case {
            received: "",
            decision: "enable",
            reason: "admitted",
            tokens: Some(3008),
            loads: 3008,
            ..Self::first(name)
        }
    }
}

pub fn all() -> Vec<Case> {
    const DISABLED: &str = ",\"kv_transfer_params\":{\"max_load_tokens\":0}";
    let ids = numbers("Numbers", 1200);
    let completions = Case {
        name: "",
        path: "/v1/completions",
        headers: &[],
        before: String::new(),
        after: "}",
        sent: "",
        received: "",
        held: &[],
        decision: "enable",
        reason: "admitted",
        tokens: None,
        loads: 0,
    };
    vec![
        Case {
            name: "chat with an image",
            path: "/v1/chat/completions",
            before: with_image("A picture", 3000),
            held: &[("cpu", 80)],
            decision: "preserve",
            reason: "no_evidence",
            loads: 2560,
            ..completions
        },
        Case {
            name: "completions, client's own cap",
            before: completion(&quoted("A cap", 2000)),
            sent: ",\"kv_transfer_params\":{\"max_load_tokens\":64}",
            received: ",\"kv_transfer_params\":{}",
            held: &[("gpu", 4), ("cpu", 44)],
            tokens: Some(1280),
            loads: 1280,
            ..completions
        },
        Case {
            name: "completions, token ids",
            before: completion(&ids),
            received: DISABLED,
            held: &[("cpu", 16)],
            decision: "disable",
            reason: "below_threshold",
            tokens: Some(512),
            ..completions
        },
        Case {
            name: "completions, two prompts",
            before: completion(&format!(
                "[{},{}]",
                numbers("One", 700),
                numbers("Two", 700)
            )),
            held: &[("cpu", 20)],
            tokens: Some(1280),
            loads: 1280,
            ..completions
        },
        Case {
            name: "chat, streamed (route: 2048)",
            path: "/v1/chat/completions",
            before: chat("A short story", 3000, true),
            received: DISABLED,
            held: &[("cpu", 48)],
            decision: "disable",
            reason: "below_threshold",
            tokens: Some(1536),
            ..completions
        },
        Case {
            name: "chat, streamed (route: 2048)",
            path: "/v1/chat/completions",
            before: chat("A long story", 3000, true),
            held: &[("gpu", 2), ("cpu", 82)],
            tokens: Some(2560),
            loads: 2560,
            ..completions
        },
        Case {
            name: "generate, nested params",
            path: "/inference/v1/generate",
            before: format!(
                "{{\"token_ids\":{ids},\"sampling_params\":{{\"max_tokens\":4,\"extra_args\":{{"
            ),
            after: "}}}",
            sent: "\"kv_transfer_params\":{\"max_load_tokens\":\"0\"}",
            received: "\"kv_transfer_params\":{\"max_load_tokens\":0}",
            held: &[("cpu", 16)],
            decision: "disable",
            reason: "below_threshold",
            tokens: Some(512),
            ..completions
        },
        Case {
            name: "completions, no disk for me",
            before: completion(&quoted("A disk", 2000)),
            sent: ",\"kv_transfer_params\":{\"kv_load_tiers\":[]}",
            received: ",\"kv_transfer_params\":{\"kv_load_tiers\":[],\"max_load_tokens\":0}",
            held: &[("fs", 60)],
            decision: "disable",
            reason: "below_threshold",
            tokens: Some(0),
            ..completions
        },
        Case {
            name: "completions, route of batches",
            before: completion(&quoted("A batch", 2000)),
            headers: &[("x-batch", "yes")],
            received: DISABLED,
            held: &[("cpu", 60)],
            decision: "disable",
            reason: "policy",
            ..completions
        },
        Case {
            name: "completions, from a prefiller",
            before: completion(&quoted("A peer", 2000)),
            sent: ",\"kv_transfer_params\":{\"do_remote_prefill\":true}",
            received: ",\"kv_transfer_params\":{\"do_remote_prefill\":true}",
            held: &[("cpu", 8)],
            decision: "preserve",
            reason: "disaggregated",
            loads: 256,
            ..completions
        },
    ]
}
