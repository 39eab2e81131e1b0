//! The members of a body that matter, by endpoint.

use super::Endpoint;
use crate::json::walker::Names;

/// Members that matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Member {
    Other,
    Model,
    CacheSalt,
    /// What has the token ids at this endpoint: `prompt` or `token_ids`.
    Ids,
    /// `messages` or `input`.
    Conversation,
    TransferParams,
    /// `kv_transfer_params.prompt_token_ids`.
    StandIn,
    SamplingParams,
    Embeds,
    Features,
    Truncate,
    Echo,
    Logprobs,
    TopLogprobs,
    PromptLogprobs,
    SkipReading,
    N,
}

pub(super) const TOP: Names = &[
    "model",
    "cache_salt",
    "prompt",
    "token_ids",
    "messages",
    "input",
    "kv_transfer_params",
    "sampling_params",
    "prompt_embeds",
    "features",
    "truncate_prompt_tokens",
    "echo",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "n",
];

pub(super) const TRANSFER_PARAMS: Names = &["prompt_token_ids"];
pub(super) const IN_TRANSFER_PARAMS: &[Member] = &[Member::StandIn];

pub(super) const SAMPLING_PARAMS: Names = &[
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "skip_reading_prefix_cache",
    "n",
];
pub(super) const IN_SAMPLING_PARAMS: &[Member] = &[
    Member::Truncate,
    Member::PromptLogprobs,
    Member::SkipReading,
    Member::N,
];

impl Member {
    /// What a name of [`TOP`] is to an endpoint. Members that the engine does not read there count
    /// for nothing.
    pub fn top(name: &str, endpoint: Endpoint) -> Self {
        use Endpoint::{Batch, Chat, Completions, Generate, Invocations, Messages, Responses};
        match (name, endpoint) {
            ("model", _) => Member::Model,
            ("cache_salt", _) => Member::CacheSalt,
            ("prompt", Completions | Invocations) | ("token_ids", Generate) => Member::Ids,
            ("messages", Chat | Batch | Messages | Invocations) | ("input", Responses) => {
                Member::Conversation
            }
            ("sampling_params", Generate) => Member::SamplingParams,
            ("features", Generate) => Member::Features,
            (_, Completions | Generate) if name == "kv_transfer_params" => Member::Other,
            ("kv_transfer_params", _) => Member::TransferParams,
            (_, Generate | Responses | Messages) => Member::Other,
            ("prompt_embeds", Completions | Invocations) => Member::Embeds,
            ("logprobs", Completions | Invocations) => Member::Logprobs,
            ("top_logprobs", Chat | Batch | Invocations) => Member::TopLogprobs,
            ("truncate_prompt_tokens", _) => Member::Truncate,
            ("echo", _) => Member::Echo,
            ("prompt_logprobs", _) => Member::PromptLogprobs,
            ("n", _) => Member::N,
            _ => Member::Other,
        }
    }
}
