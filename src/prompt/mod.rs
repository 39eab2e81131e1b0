//! What the engine will look up for a request: its prompts as token ids, and the members of the
//! body that change the keys of their blocks.
//!
//! Chunks are read as they stream by and never kept. Only tokens are, up to a limit, since nothing is
//! final before the closing brace: a `cache_salt`, or a duplicate of any member, may come after
//! them. An answer before that, for another tenant's salt, would tell about his cache.

mod endpoint;
mod found;
mod limits;
mod members;
mod parts;
mod scalar;
mod scanner;
mod text_reader;
mod token_list;
mod tokenized;

pub use endpoint::Endpoint;
pub use limits::{Limits, MAX_PROMPTS, MAX_TEXT_BYTES};
pub use scanner::{Progress, Scanner};
pub use token_list::TokenPrompts;
pub use tokenized::read_tokenized;

/// What a complete body says.
#[derive(Debug)]
pub struct Request {
    /// Model or adapter; None if the engine is to take its first one.
    pub model: Option<String>,
    pub cache_salt: Option<String>,
    pub prompt: Prompt,
    /// False if the engine computes the whole prompt, whatever is cached: it is asked for log
    /// probabilities of prompt tokens.
    pub reads_cache: bool,
    /// Answers to each prompt, if the request says so in an integer. They share one look-up.
    pub n: Option<u64>,
}

/// What is known of the prompts.
#[derive(Debug)]
pub enum Prompt {
    /// Exactly what the engine will compute.
    Tokens(TokenPrompts),
    /// Text that the engine would tokenise.
    Text(Text),
    /// Nothing that could be looked up.
    Unknown(Unknown),
}

/// Which kind of text. Of these `/tokenize` takes [`Text::One`] and [`Text::Messages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Text {
    /// `prompt` is a string.
    One,
    /// `prompt` is a list of strings.
    Several,
    /// `messages` of a chat, without images and the like.
    Messages,
    /// A list of chats (`/v1/chat/completions/batch`).
    Batch,
    /// `input` of `/v1/responses`.
    Input,
    /// `messages` in Anthropic's form (`/v1/messages`).
    Anthropic,
}

/// Why there is nothing to look up. In the order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unknown {
    /// Images, sound, video or files: their keys need what only the engine knows.
    Multimodal,
    /// `prompt_embeds`.
    Embeds,
    /// `truncate_prompt_tokens`: the engine will compute other tokens.
    Truncated,
    /// A `cache_salt` that no engine takes, or longer than [`MAX_TEXT_BYTES`].
    CacheSalt,
    /// The same of `model`.
    Model,
    /// `/invocations` with members of both a completion and a chat.
    Ambiguous,
    /// `echo` or `skip_reading_prefix_cache` is neither true nor false.
    Flag,
    /// More tokens than `maxPromptTokens`, more than [`MAX_PROMPTS`] prompts, or no memory left
    /// for them.
    TooLarge,
    /// The prompt, or an id in it, is none the engine takes.
    Malformed,
    /// No prompt at all.
    Missing,
}

impl Text {
    pub const ALL: [Self; 6] = [
        Text::One,
        Text::Several,
        Text::Messages,
        Text::Batch,
        Text::Input,
        Text::Anthropic,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Text::One => "text",
            Text::Several => "texts",
            Text::Messages => "messages",
            Text::Batch => "batch",
            Text::Input => "input",
            Text::Anthropic => "anthropic",
        }
    }
}

impl Unknown {
    pub const ALL: [Self; 10] = [
        Unknown::Multimodal,
        Unknown::Embeds,
        Unknown::Truncated,
        Unknown::CacheSalt,
        Unknown::Model,
        Unknown::Ambiguous,
        Unknown::Flag,
        Unknown::TooLarge,
        Unknown::Malformed,
        Unknown::Missing,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Unknown::Multimodal => "multimodal",
            Unknown::Embeds => "prompt_embeds",
            Unknown::Truncated => "truncated_prompt",
            Unknown::CacheSalt => "invalid_cache_salt",
            Unknown::Model => "invalid_model",
            Unknown::Ambiguous => "ambiguous_body",
            Unknown::Flag => "unclear_flag",
            Unknown::TooLarge => "prompt_too_large",
            Unknown::Malformed => "malformed_prompt",
            Unknown::Missing => "no_prompt",
        }
    }
}
