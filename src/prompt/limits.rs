//! How much of a request is kept.

use std::rc::Rc;

use crate::body::HeldBudget;

/// Prompts in one request; a record of evidence takes no more (DESIGN 4).
pub const MAX_PROMPTS: usize = 4_096;

/// Bytes of a `model` or `cache_salt`. vLLM takes salts of up to 1,024 characters, at most 4 bytes
/// each.
pub const MAX_TEXT_BYTES: usize = 4_096;

/// What one request, and all requests of a VM, may keep of their prompts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Tokens of all prompts of a request (`maxPromptTokens`).
    pub max_prompt_tokens: usize,
    /// Bytes of all requests of the VM.
    pub budget: Rc<HeldBudget>,
}

impl Limits {
    /// Default of `maxPromptTokens`.
    pub const MAX_PROMPT_TOKENS: usize = 1_000_000;
}
