//! Which members of a body make the prompt, by endpoint.

/// An endpoint whose requests have a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `/v1/completions`: `prompt`.
    Completions,
    /// `/v1/chat/completions`: `messages`, unless `kv_transfer_params.prompt_token_ids` stands in.
    Chat,
    /// `/v1/chat/completions/batch`: a list of `messages`.
    Batch,
    /// `/v1/responses`: `input`.
    Responses,
    /// `/v1/messages`: `messages`.
    Messages,
    /// `/inference/v1/generate`: `token_ids`.
    Generate,
    /// `/invocations`: a chat if there are `messages`, else a completion.
    Invocations,
}

impl Endpoint {
    /// The endpoint of a `:path` without query; None for a path of nobody's.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        Some(match path {
            b"/v1/completions" => Endpoint::Completions,
            b"/v1/chat/completions" => Endpoint::Chat,
            b"/v1/chat/completions/batch" => Endpoint::Batch,
            b"/v1/responses" => Endpoint::Responses,
            b"/v1/messages" => Endpoint::Messages,
            b"/inference/v1/generate" => Endpoint::Generate,
            b"/invocations" => Endpoint::Invocations,
            _ => return None,
        })
    }
}
