//! Texts to token ids, by asking an engine's `/tokenize`: the call's body, its answer, a cache.
//!
//! Only the engine knows its tokenizer and chat template, so tokens are never guessed. Facts of
//! vLLM 0.22 to 0.33 (`entrypoints/serve/tokenize`, `openai/chat_completion/protocol`).

mod cache;
mod call;
mod tokenizer;

pub use cache::Key;
use cache::{Cache, key};
pub use call::Form;
use call::{NoCall, call};
pub use tokenizer::{Needs, Tokenizer};

/// What became of a text; label `result` of `selective_kv_scorer_tokenize_total`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tokenized {
    /// The engine answered.
    Ok,
    /// The same text was asked for a short time ago.
    Cached,
    /// The body, or its declared length, is above `maxBodyBytes`, or its beginning was let go
    /// because it seemed to need no call.
    TooLarge,
    /// The body's length is not declared, so it was not waited for.
    NoLength,
    /// A member changes the prompt that `/tokenize` does not take.
    Unsupported,
    /// Too many requests wait for an answer already.
    Busy,
    /// The host refused the call (no such cluster, or no healthy host in it).
    NotSent,
    /// No answer within `timeout`.
    Timeout,
    /// Another status than 200.
    Status,
    /// The call ended without an answer.
    NoAnswer,
    /// The answer has no valid token ids, or too many.
    Malformed,
    /// The host did not give the body or the answer.
    Unreadable,
    /// The stream ended while the call was out.
    Gone,
    /// The host never reported an end of the call.
    Lost,
}

impl Tokenized {
    pub const ALL: [Self; 14] = [
        Self::Ok,
        Self::Cached,
        Self::TooLarge,
        Self::NoLength,
        Self::Unsupported,
        Self::Busy,
        Self::NotSent,
        Self::Timeout,
        Self::Status,
        Self::NoAnswer,
        Self::Malformed,
        Self::Unreadable,
        Self::Gone,
        Self::Lost,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cached => "cached",
            Self::TooLarge => "too_large",
            Self::NoLength => "no_length",
            Self::Unsupported => "unsupported",
            Self::Busy => "busy",
            Self::NotSent => "not_sent",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::NoAnswer => "no_answer",
            Self::Malformed => "malformed",
            Self::Unreadable => "unreadable",
            Self::Gone => "gone",
            Self::Lost => "lost",
        }
    }
}
