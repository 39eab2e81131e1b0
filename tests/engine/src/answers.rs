//! Answers in each endpoint's shape, whole or as server-sent events.

use crate::api::{Endpoint, Job};
use crate::cache::Served;
use bytes::Bytes;
use serde_json::{Value, json};

/// Every generated token; its text and id.
const TOKEN: &str = " ok";
const TOKEN_ID: u32 = 98;
const DONE: &[u8] = b"data: [DONE]\n\n";

pub struct Answer<'j> {
    pub job: &'j Job,
    pub served: &'j [Served],
    /// Unique on this engine.
    pub sequence: u64,
    pub model: &'j str,
    /// Unix time, seconds.
    pub created: u64,
}

impl Answer<'_> {
    /// Answers to all prompts: `n` to each.
    fn choices(&self) -> usize {
        self.job.prompts.len() * self.job.n
    }

    fn text(&self) -> String {
        TOKEN.repeat(self.job.answer_tokens)
    }

    fn prompt_tokens(&self) -> usize {
        self.served.iter().map(|served| served.prompt_tokens).sum()
    }

    fn answer_tokens(&self) -> usize {
        self.job.answer_tokens * self.choices()
    }

    /// With several prompts the last one's, as vLLM has it.
    fn cached_tokens(&self) -> usize {
        self.served.last().map_or(0, Served::cached_tokens)
    }

    fn usage(&self) -> Value {
        match self.job.endpoint {
            Endpoint::Responses => json!({
                "input_tokens": self.prompt_tokens(),
                "input_tokens_details": {"cached_tokens": self.cached_tokens()},
                "output_tokens": self.answer_tokens(),
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens() + self.answer_tokens(),
            }),
            Endpoint::Messages => json!({
                "input_tokens": self.prompt_tokens(),
                "output_tokens": self.answer_tokens(),
                "cache_read_input_tokens": self.cached_tokens(),
            }),
            _ => json!({
                "prompt_tokens": self.prompt_tokens(),
                "completion_tokens": self.answer_tokens(),
                "total_tokens": self.prompt_tokens() + self.answer_tokens(),
                "prompt_tokens_details": {"cached_tokens": self.cached_tokens()},
            }),
        }
    }

    fn id(&self) -> String {
        let prefix = match self.job.endpoint {
            Endpoint::Completions => "cmpl",
            Endpoint::Chat | Endpoint::ChatBatch => "chatcmpl",
            Endpoint::Responses => "resp",
            Endpoint::Messages => "msg",
            Endpoint::Generate => "generate-tokens",
        };
        format!("{prefix}-{}", self.sequence)
    }

    pub fn whole(&self) -> Value {
        let choices = |choice: &dyn Fn(usize) -> Value| -> Value {
            (0..self.choices()).map(choice).collect()
        };
        let text = self.text();
        match self.job.endpoint {
            Endpoint::Completions => json!({
                "id": self.id(), "object": "text_completion", "created": self.created, "model": self.model,
                "choices": choices(&|index| json!({
                    "index": index, "text": text, "logprobs": null, "finish_reason": "length", "stop_reason": null,
                })),
                "usage": self.usage(), "kv_transfer_params": null,
            }),
            Endpoint::Chat | Endpoint::ChatBatch => json!({
                "id": self.id(), "object": "chat.completion", "created": self.created, "model": self.model,
                "choices": choices(&|index| json!({
                    "index": index, "message": {"role": "assistant", "content": text},
                    "logprobs": null, "finish_reason": "length", "stop_reason": null,
                })),
                "usage": self.usage(), "kv_transfer_params": null,
            }),
            Endpoint::Responses => self.response("completed", Some(&text)),
            Endpoint::Messages => json!({
                "id": self.id(), "type": "message", "role": "assistant", "model": self.model,
                "content": [{"type": "text", "text": text}], "stop_reason": "max_tokens", "usage": self.usage(),
            }),
            Endpoint::Generate => json!({
                "request_id": self.id(),
                "choices": choices(&|index| json!({
                    "index": index, "token_ids": vec![TOKEN_ID; self.job.answer_tokens],
                    "logprobs": null, "finish_reason": "length",
                })),
                "usage": self.usage(), "kv_transfer_params": null,
            }),
        }
    }

    fn response(&self, status: &str, text: Option<&str>) -> Value {
        let output: Vec<_> = text
            .iter()
            .map(|text| {
                json!({
                    "type": "message", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                })
            })
            .collect();
        json!({
            "id": self.id(), "object": "response", "created_at": self.created, "model": self.model,
            "status": status, "output": output, "usage": text.map(|_| self.usage()),
        })
    }

    /// The events of a streamed answer, one a generated token, `[DONE]` last.
    pub fn events(&self) -> Vec<Bytes> {
        let mut events = match self.job.endpoint {
            Endpoint::Responses => self.response_events(),
            Endpoint::Messages => self.message_events(),
            _ => self.chunks(),
        };
        events.push(Bytes::from_static(DONE));
        events
    }

    fn chunks(&self) -> Vec<Bytes> {
        let chat = matches!(self.job.endpoint, Endpoint::Chat | Endpoint::ChatBatch);
        let generate = self.job.endpoint == Endpoint::Generate;
        let object = if chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let chunk = |choices: Value, usage: Value| {
            data(&if generate {
                json!({"request_id": self.id(), "choices": choices, "usage": usage})
            } else {
                json!({
                    "id": self.id(), "object": object, "created": self.created, "model": self.model,
                    "choices": choices, "usage": usage,
                })
            })
        };
        let mut events = Vec::new();
        if chat {
            let roles = (0..self.choices())
                .map(|index| json!({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}))
                .collect();
            events.push(chunk(roles, Value::Null));
        }
        for token in 1..=self.job.answer_tokens {
            let finish = (token == self.job.answer_tokens).then_some("length");
            for index in 0..self.choices() {
                let choice = match self.job.endpoint {
                    Endpoint::Generate => {
                        json!({"index": index, "token_ids": [TOKEN_ID], "finish_reason": finish})
                    }
                    _ if chat => {
                        json!({"index": index, "delta": {"content": TOKEN}, "logprobs": null, "finish_reason": finish})
                    }
                    _ => {
                        json!({"index": index, "text": TOKEN, "logprobs": null, "finish_reason": finish, "stop_reason": null})
                    }
                };
                events.push(chunk(json!([choice]), Value::Null));
            }
        }
        if self.job.include_usage || generate {
            events.push(chunk(json!([]), self.usage()));
        }
        events
    }

    fn response_events(&self) -> Vec<Bytes> {
        let created =
            json!({"type": "response.created", "response": self.response("in_progress", None)});
        let delta = json!({"type": "response.output_text.delta", "delta": TOKEN});
        let completed = json!({"type": "response.completed", "response": self.response("completed", Some(&self.text()))});
        let deltas = vec![named(&delta); self.job.answer_tokens];
        [vec![named(&created)], deltas, vec![named(&completed)]].concat()
    }

    fn message_events(&self) -> Vec<Bytes> {
        let mut message = self.whole();
        message["content"] = json!([]);
        message["stop_reason"] = Value::Null;
        let start = [
            json!({"type": "message_start", "message": message}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ];
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TOKEN}});
        let end = [
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": self.usage()}),
            json!({"type": "message_stop"}),
        ];
        let deltas = std::iter::repeat_n(&delta, self.job.answer_tokens);
        start.iter().chain(deltas).chain(&end).map(named).collect()
    }
}

fn data(event: &Value) -> Bytes {
    format!("data: {event}\n\n").into()
}

/// With the event's type as its name.
fn named(event: &Value) -> Bytes {
    format!(
        "event: {}\ndata: {event}\n\n",
        event["type"].as_str().unwrap_or_default()
    )
    .into()
}
