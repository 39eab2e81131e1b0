//! What was found in a body, and what follows from it.

use super::members::Member;
use super::scalar::Scalar;
use super::token_list::{Forms, TokenList, Value};
use super::{Endpoint, Limits, Prompt, Request, Text, Unknown};

/// The last value of each member so far.
#[derive(Debug)]
pub(super) struct Found {
    pub model: Kept,
    pub cache_salt: Kept,
    pub ids: TokenList,
    pub ids_value: Value,
    pub stand_in: TokenList,
    pub stand_in_value: Value,
    pub conversation: Value,
    embeds: Presence,
    features: Presence,
    truncate: Presence,
    logprobs: Presence,
    top_logprobs: Presence,
    prompt_logprobs: Presence,
    pub echo: Scalar,
    pub skip_reading: Scalar,
    pub n: Scalar,
}

#[derive(Debug)]
pub(super) enum Kept {
    /// Or null.
    Absent,
    Text(String),
    Unusable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Absent,
    Null,
    Present,
}

impl Found {
    pub fn new(endpoint: Endpoint, limits: Limits) -> Self {
        let forms = match endpoint {
            Endpoint::Generate => Forms::Ids,
            _ => Forms::Prompts,
        };
        Found {
            model: Kept::Absent,
            cache_salt: Kept::Absent,
            ids: TokenList::new(forms, limits.clone()),
            ids_value: Value::Null,
            stand_in: TokenList::new(Forms::Ids, limits),
            stand_in_value: Value::Null,
            conversation: Value::Null,
            embeds: Presence::Absent,
            features: Presence::Absent,
            truncate: Presence::Absent,
            logprobs: Presence::Absent,
            top_logprobs: Presence::Absent,
            prompt_logprobs: Presence::Absent,
            echo: Scalar::Null,
            skip_reading: Scalar::Null,
            n: Scalar::Null,
        }
    }

    /// Before a member's value is known, it is one that is no use.
    pub fn begin(&mut self, member: Member) {
        const UNKNOWN: Value = Value::Unknown(Unknown::Malformed);
        match member {
            Member::Other => {}
            Member::Model => self.model = Kept::Unusable,
            Member::CacheSalt => self.cache_salt = Kept::Unusable,
            Member::Ids => {
                self.ids.begin();
                self.ids_value = UNKNOWN;
            }
            Member::Conversation => self.conversation = UNKNOWN,
            Member::TransferParams => {
                self.stand_in.clear();
                self.stand_in_value = Value::Null;
            }
            Member::StandIn => {
                self.stand_in.begin();
                self.stand_in_value = UNKNOWN;
            }
            Member::SamplingParams => {
                self.truncate = Presence::Absent;
                self.prompt_logprobs = Presence::Absent;
                self.skip_reading = Scalar::Null;
                self.n = Scalar::Null;
            }
            Member::Embeds => self.embeds = Presence::Present,
            Member::Features => self.features = Presence::Present,
            Member::Truncate => self.truncate = Presence::Present,
            Member::Logprobs => self.logprobs = Presence::Present,
            Member::TopLogprobs => self.top_logprobs = Presence::Present,
            Member::PromptLogprobs => self.prompt_logprobs = Presence::Present,
            Member::Echo => self.echo = Scalar::Other,
            Member::SkipReading => self.skip_reading = Scalar::Other,
            Member::N => self.n = Scalar::Other,
        }
    }

    /// The value that was skipped is null.
    pub fn set_null(&mut self, member: Member) {
        match member {
            Member::Model => self.model = Kept::Absent,
            Member::CacheSalt => self.cache_salt = Kept::Absent,
            Member::Ids => self.ids_value = Value::Null,
            Member::Conversation => self.conversation = Value::Null,
            Member::StandIn => self.stand_in_value = Value::Null,
            Member::Embeds => self.embeds = Presence::Null,
            Member::Features => self.features = Presence::Null,
            Member::Truncate => self.truncate = Presence::Null,
            Member::Logprobs => self.logprobs = Presence::Null,
            Member::TopLogprobs => self.top_logprobs = Presence::Null,
            Member::PromptLogprobs => self.prompt_logprobs = Presence::Null,
            // Nothing more to know, or read as scalars.
            Member::Other
            | Member::TransferParams
            | Member::SamplingParams
            | Member::Echo
            | Member::SkipReading
            | Member::N => {}
        }
    }

    /// Whether what has come so far leaves room for one text or a chat.
    pub fn may_be_text(&self, endpoint: Endpoint) -> bool {
        // A value counts as malformed while it is read.
        const READ: Value = Value::Unknown(Unknown::Malformed);
        let absent = |value| matches!(value, Value::Null | READ);
        let prompt = absent(self.ids_value) || self.ids_value == Value::Text(Text::One);
        let chat = (absent(self.conversation) || self.conversation == Value::Text(Text::Messages))
            && absent(self.stand_in_value);
        match endpoint {
            Endpoint::Completions => prompt,
            Endpoint::Chat => chat,
            Endpoint::Invocations => prompt && chat,
            Endpoint::Batch | Endpoint::Responses | Endpoint::Messages | Endpoint::Generate => {
                false
            }
        }
    }

    pub fn request(mut self, endpoint: Endpoint) -> Request {
        let is_chat = match endpoint {
            Endpoint::Completions | Endpoint::Generate => false,
            Endpoint::Chat | Endpoint::Batch | Endpoint::Responses | Endpoint::Messages => true,
            Endpoint::Invocations => self.conversation != Value::Null,
        };
        let unknown = self.unknown(endpoint, is_chat);
        let prompt = match (unknown, is_chat) {
            (Some(unknown), _) => Prompt::Unknown(unknown),
            (None, false) => prompt(self.ids_value, &mut self.ids),
            (None, true) if self.stand_in_value == Value::Null => {
                prompt(self.conversation, &mut self.ids)
            }
            // Only a chat takes a prompt that stands in for its own; whether others pass it on is not
            // known.
            (None, true) if !matches!(endpoint, Endpoint::Chat | Endpoint::Invocations) => {
                Prompt::Unknown(Unknown::Malformed)
            }
            (None, true) => prompt(self.stand_in_value, &mut self.stand_in),
        };
        Request {
            reads_cache: self.reads_cache(is_chat),
            prompt,
            model: self.model.text(),
            cache_salt: self.cache_salt.text(),
            n: match self.n {
                Scalar::Integer(n) => Some(n),
                Scalar::Null | Scalar::Bool(_) | Scalar::Other => None,
            },
        }
    }

    /// The first reason why nothing can be looked up, the prompt itself apart.
    fn unknown(&self, endpoint: Endpoint, is_chat: bool) -> Option<Unknown> {
        let multimodal = self.features == Presence::Present
            || self.conversation == Value::Unknown(Unknown::Multimodal);
        let ambiguous = endpoint == Endpoint::Invocations
            && is_chat
            && (self.ids_value != Value::Null || self.embeds == Presence::Present);
        let unclear = self.echo == Scalar::Other
            || matches!(self.echo, Scalar::Integer(_))
            || matches!(self.skip_reading, Scalar::Other | Scalar::Integer(_));
        [
            (multimodal, Unknown::Multimodal),
            (self.embeds == Presence::Present, Unknown::Embeds),
            (self.truncate == Presence::Present, Unknown::Truncated),
            (
                matches!(self.cache_salt, Kept::Unusable),
                Unknown::CacheSalt,
            ),
            (matches!(self.model, Kept::Unusable), Unknown::Model),
            (ambiguous, Unknown::Ambiguous),
            (unclear, Unknown::Flag),
        ]
        .into_iter()
        .find_map(|(holds, unknown)| holds.then_some(unknown))
    }

    /// vLLM's `skip_reading_prefix_cache`: said, or else implied by log probabilities of prompt
    /// tokens, which an echo asks for too.
    fn reads_cache(&self, is_chat: bool) -> bool {
        let echoes = self.echo == Scalar::Bool(true)
            && match is_chat {
                // Its default is 0, not null.
                true => self.top_logprobs != Presence::Null,
                false => self.logprobs == Presence::Present,
            };
        match self.skip_reading {
            Scalar::Bool(skip) => !skip,
            Scalar::Null | Scalar::Integer(_) | Scalar::Other => {
                !echoes && self.prompt_logprobs != Presence::Present
            }
        }
    }
}

impl Kept {
    pub fn of(text: Option<String>) -> Self {
        text.map_or(Kept::Unusable, Kept::Text)
    }

    fn text(self) -> Option<String> {
        match self {
            Kept::Text(text) => Some(text),
            Kept::Absent | Kept::Unusable => None,
        }
    }
}

fn prompt(value: Value, tokens: &mut TokenList) -> Prompt {
    match value {
        Value::Null => Prompt::Unknown(Unknown::Missing),
        Value::Tokens => Prompt::Tokens(tokens.take()),
        Value::Text(text) => Prompt::Text(text),
        Value::Unknown(unknown) => Prompt::Unknown(unknown),
    }
}
