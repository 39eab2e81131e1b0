//! The endpoints: what each body asks for.

use crate::hashing::Prompt;
use crate::json::Value;
use crate::models::Models;
use crate::params::{self, Params};
use crate::refusal::Refusal;
use crate::tokenizer::{chat, conversation, text_of, tokenize};
use crate::version::Release;

/// VLLM_MAX_COMPLETION_PROMPTS.
const MAX_PROMPTS: usize = 1024;
const MAX_SALT_CHARACTERS: usize = 128;
/// Token ids at or above are out of vocabulary.
pub const VOCABULARY: u32 = 200_000;
/// Answers are never longer, whatever `max_tokens` says.
const MAX_ANSWER_TOKENS: usize = 4096;
const DEFAULT_ANSWER_TOKENS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Completions,
    Chat,
    ChatBatch,
    Responses,
    Messages,
    Generate,
}

/// A request that the engine would serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub endpoint: Endpoint,
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt.
    pub n: usize,
    pub answer_tokens: usize,
    pub stream: bool,
    pub include_usage: bool,
    /// False if every prompt position must be computed.
    pub reads_cache: bool,
    pub params: Params,
}

impl Endpoint {
    /// `/invocations` is whichever of the others its body looks like: see [`Job::parse`].
    pub fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/completions" => Self::Completions,
            "/v1/chat/completions" => Self::Chat,
            "/v1/chat/completions/batch" => Self::ChatBatch,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/inference/v1/generate" => Self::Generate,
            _ => return None,
        })
    }
}

impl Job {
    pub fn parse(
        path: &str,
        body: &Value,
        release: Release,
        models: &Models,
    ) -> Result<Self, Refusal> {
        if body.as_object().is_none() {
            let message = "Input should be a valid dictionary or object to extract fields from";
            return Err(Refusal::schema(
                "model_attributes_type",
                "body",
                message,
                body,
            ));
        }
        let endpoint = match Endpoint::of_path(path) {
            Some(endpoint) => endpoint,
            None if body.get("messages").is_some() => Endpoint::Chat,
            None if body.get("prompt").is_some() => Endpoint::Completions,
            None => return Err(Refusal::bad_request("no endpoint takes such a body")),
        };
        let in_effect = match endpoint {
            Endpoint::Generate => params::top_level_or_nested(body)?,
            _ => params::top_level(body)?,
        };
        // Beam search never reads the object.
        let beam = body.get("use_beam_search").is_some_and(Value::is_true);
        let params = Params::of(in_effect.filter(|_| !beam), release);
        extra_arguments(body, &params)?;

        let override_ids = in_effect.and_then(|v| v.given("prompt_token_ids"));
        let salt = salt(body)?;
        let model = body.get("model").and_then(Value::as_str);
        let adapter = models.adapter(model)?;
        let prompts = prompts(endpoint, body, override_ids)?
            .into_iter()
            .map(|tokens| Prompt {
                tokens,
                salt: salt.clone(),
                adapter: adapter.clone(),
            })
            .collect();
        let sampling = match endpoint {
            Endpoint::Generate => body.get("sampling_params").unwrap_or(&Value::Null),
            _ => body,
        };
        let count = |from: &Value, key| {
            from.given(key)
                .and_then(Value::as_int)
                .and_then(|n| usize::try_from(n).ok())
        };
        let echo_logprobs =
            body.get("echo").is_some_and(Value::is_true) && body.given("logprobs").is_some();
        let prompt_logprobs = ["prompt_logprobs", "prompt_logprob_token_ids"]
            .iter()
            .any(|key| sampling.given(key).is_some());
        let answer_tokens = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
            .iter()
            .find_map(|key| count(sampling, key))
            .unwrap_or(DEFAULT_ANSWER_TOKENS);
        Ok(Self {
            endpoint,
            model: model.map(str::to_owned),
            prompts,
            n: count(sampling, "n").unwrap_or(1).clamp(1, 128),
            answer_tokens: answer_tokens.min(MAX_ANSWER_TOKENS),
            stream: body.get("stream").is_some_and(Value::is_true),
            include_usage: body
                .get("stream_options")
                .and_then(|v| v.get("include_usage"))
                .is_some_and(Value::is_true),
            reads_cache: !(echo_logprobs || prompt_logprobs),
            params,
        })
    }
}

/// `vllm_xargs` takes text, numbers and lists; an object under our name there breaks the engine's
/// front end, unless the top level overrides it.
fn extra_arguments(body: &Value, params: &Params) -> Result<(), Refusal> {
    let Some(extra) = body
        .given("vllm_xargs")
        .and_then(|v| v.given("kv_transfer_params"))
    else {
        return Ok(());
    };
    match extra {
        Value::Object(_) | Value::Bool(_) => {
            let loc = "body.vllm_xargs.kv_transfer_params";
            Err(Refusal::schema(
                "string_type",
                loc,
                "Input should be a valid string",
                extra,
            ))
        }
        _ if params.in_effect.is_some() => Ok(()),
        _ => Err(Refusal::internal("AttributeError: no attribute 'get'")),
    }
}

fn salt(body: &Value) -> Result<Option<String>, Refusal> {
    let Some(value) = body.given("cache_salt") else {
        return Ok(None);
    };
    let valid = |text: &&str| {
        !text.is_empty()
            && text.chars().count() <= MAX_SALT_CHARACTERS
            && !text.contains(['@', '/', '\\', '\0'])
    };
    match value.as_str().filter(valid) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(Refusal::bad_request("Parameter 'cache_salt' is not valid")),
    }
}

/// Each prompt's tokens.
fn prompts(
    endpoint: Endpoint,
    body: &Value,
    override_ids: Option<&Value>,
) -> Result<Vec<Vec<u32>>, Refusal> {
    match endpoint {
        Endpoint::Completions => completion_prompts(body.get("prompt").unwrap_or(&Value::Null)),
        Endpoint::Chat => {
            let messages = list(body, "messages")?;
            match override_ids {
                Some(ids) => Ok(vec![token_ids(ids).ok_or_else(bad_prompt)?]),
                None => Ok(vec![tokenize(&chat(body, messages))]),
            }
        }
        Endpoint::ChatBatch if override_ids.is_some() => Err(Refusal::bad_request(
            "prompt_token_ids is not supported in a batch",
        )),
        Endpoint::ChatBatch => list(body, "messages")?
            .iter()
            .map(|messages| {
                let messages = messages.as_array().ok_or_else(bad_prompt)?;
                Ok(tokenize(&chat(body, messages)))
            })
            .collect(),
        Endpoint::Responses => {
            let input = body.given("input").ok_or_else(|| missing("input"))?;
            let mut text = body.get("instructions").map(text_of).unwrap_or_default();
            match input {
                Value::Array(items) => text.push_str(&conversation(items)),
                input => text.push_str(&text_of(input)),
            }
            Ok(vec![tokenize(&text)])
        }
        Endpoint::Messages => {
            let mut text = body.get("system").map(text_of).unwrap_or_default();
            text.push_str(&conversation(list(body, "messages")?));
            Ok(vec![tokenize(&text)])
        }
        Endpoint::Generate => {
            let ids = body
                .given("token_ids")
                .ok_or_else(|| missing("token_ids"))?;
            Ok(vec![token_ids(ids).ok_or_else(bad_prompt)?])
        }
    }
}

/// Text, token ids, or a list of either.
fn completion_prompts(prompt: &Value) -> Result<Vec<Vec<u32>>, Refusal> {
    if let Some(text) = prompt.as_str().filter(|text| !text.is_empty()) {
        return Ok(vec![tokenize(text)]);
    }
    if let Some(ids) = token_ids(prompt) {
        return Ok(vec![ids]);
    }
    let items = prompt
        .as_array()
        .filter(|items| !items.is_empty())
        .ok_or_else(bad_prompt)?;
    if items.len() > MAX_PROMPTS {
        return Err(Refusal::bad_request("too many prompts"));
    }
    let texts: Option<Vec<_>> = items
        .iter()
        .map(|item| item.as_str().filter(|text| !text.is_empty()).map(tokenize))
        .collect();
    let lists = || items.iter().map(token_ids).collect();
    texts.or_else(lists).ok_or_else(bad_prompt)
}

/// A list of ids in the vocabulary, one at least. `true` and `false` are 1 and 0, as in Python.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    items
        .iter()
        .map(|item| match item {
            Value::Int(id) => u32::try_from(*id).ok().filter(|id| *id < VOCABULARY),
            Value::Bool(id) => Some(u32::from(*id)),
            _ => None,
        })
        .collect()
}

fn list<'v>(body: &'v Value, key: &str) -> Result<&'v [Value], Refusal> {
    let value = body.get(key).ok_or_else(|| missing(key))?;
    value
        .as_array()
        .filter(|items| !items.is_empty())
        .ok_or_else(|| {
            Refusal::schema(
                "list_type",
                &format!("body.{key}"),
                "Input should be a valid list",
                value,
            )
        })
}

fn missing(key: &str) -> Refusal {
    Refusal::schema(
        "missing",
        &format!("body.{key}"),
        "Field required",
        &Value::Null,
    )
}

fn bad_prompt() -> Refusal {
    Refusal::bad_request("prompt must be text, token ids, or a list of either")
}
