//! Scanning a body in pieces, and saying in short what was found, for the `prompt_*` tests.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::rc::Rc;

use selective_kv::body::HeldBudget;
use selective_kv::prompt::{Endpoint, Limits, Progress, Prompt, Request, Scanner};

pub const ENDPOINTS: [Endpoint; 7] = [
    Endpoint::Completions,
    Endpoint::Chat,
    Endpoint::Batch,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Generate,
    Endpoint::Invocations,
];

pub fn limits() -> Limits {
    Limits {
        max_prompt_tokens: Limits::MAX_PROMPT_TOKENS,
        budget: Rc::new(HeldBudget::new(1 << 30)),
    }
}

/// Feeds the body cut at these ascending positions.
pub fn scan(endpoint: Endpoint, body: &[u8], cuts: &[usize]) -> Option<Request> {
    let mut scanner = Scanner::new(endpoint, limits());
    let mut from = 0;
    for &to in cuts {
        scanner.feed(&body[from..to]);
        from = to;
    }
    scanner.feed(&body[from..]);
    scanner.finish()
}

/// The prompt (ids in brackets, a kind of text, or `!` and why not), then what else there is.
pub fn say(request: Option<&Request>) -> String {
    let Some(request) = request else {
        return "not complete".into();
    };
    let mut said = match &request.prompt {
        Prompt::Tokens(prompts) => {
            let prompts: Vec<String> = prompts.iter().map(|ids| format!("{ids:?}")).collect();
            prompts.join(" ")
        }
        Prompt::Text(text) => text.as_str().to_owned(),
        Prompt::Unknown(unknown) => format!("!{}", unknown.as_str()),
    };
    if let Some(model) = &request.model {
        said += &format!(" model={model}");
    }
    if let Some(salt) = &request.cache_salt {
        said += &format!(" salt={salt}");
    }
    if !request.reads_cache {
        said += " reads nothing";
    }
    if let Some(n) = request.n {
        said += &format!(" n={n}");
    }
    said
}

/// The same for a whole body.
pub fn said(endpoint: Endpoint, body: &[u8]) -> String {
    say(scan(endpoint, body, &[]).as_ref())
}

/// Whether a scanner that was fed this has given up on it.
pub fn is_no_json(endpoint: Endpoint, body: &[u8]) -> bool {
    Scanner::new(endpoint, limits()).feed(body) == Progress::NotJson
}
