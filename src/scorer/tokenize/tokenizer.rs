//! From a request's bytes to a call, from the call's answer to tokens.

use super::{Cache, Form, Key, NoCall, Tokenized, call, key};
use crate::prompt::{Limits, TokenPrompts, read_tokenized};
use crate::scorer::config::TokenizeConfig;
use crate::scorer::poller::Answer;

/// What a text needs.
#[derive(Debug)]
pub enum Needs {
    Nothing(TokenPrompts),
    /// A POST of `body`; its answer goes to [`Tokenizer::answered`] with the key.
    Call {
        body: Vec<u8>,
        key: Key,
    },
    /// Its tokens cannot be asked for.
    NoCall(Tokenized),
}

/// One for each root context.
#[derive(Debug)]
pub struct Tokenizer {
    cache: Cache,
    limits: Limits,
    max_answer_bytes: usize,
}

impl Tokenizer {
    pub fn new(config: &TokenizeConfig, limits: Limits) -> Self {
        Tokenizer {
            cache: Cache::new(config.max_cache_bytes),
            limits,
            max_answer_bytes: max_answer_bytes(config.max_body_bytes),
        }
    }

    /// Longest answer that is read, bytes.
    pub fn max_answer_bytes(&self) -> usize {
        self.max_answer_bytes
    }

    /// `request`: a whole body whose prompt has this form. `model`: the engines' name for its model,
    /// if it says another one.
    pub fn needs(&mut self, request: &[u8], form: Form, model: Option<&str>, now_ms: u64) -> Needs {
        let body = match call(request, form, model) {
            Ok(body) => body,
            Err(NoCall::Unsupported(_)) => return Needs::NoCall(Tokenized::Unsupported),
            Err(NoCall::Broken) => return Needs::NoCall(Tokenized::Unreadable),
        };
        let key = key(&body);
        match self.cache.get(&key, now_ms) {
            Some(tokens) => Needs::Nothing(tokens),
            None => Needs::Call { body, key },
        }
    }

    /// # Errors
    /// Why the call brought no tokens.
    pub fn answered(
        &mut self,
        key: Key,
        answer: Answer<'_>,
        now_ms: u64,
    ) -> Result<TokenPrompts, Tokenized> {
        let body = match answer {
            Answer::Http { status: 200, body } => body,
            Answer::Http { status: 504, .. } => return Err(Tokenized::Timeout),
            Answer::Http { .. } => return Err(Tokenized::Status),
            Answer::TooLarge => return Err(Tokenized::Malformed),
            Answer::None => return Err(Tokenized::NoAnswer),
            Answer::Unreadable => return Err(Tokenized::Unreadable),
        };
        let tokens = read_tokenized(body, self.limits.clone()).ok_or(Tokenized::Malformed)?;
        self.cache.put(key, &tokens, now_ms);
        Ok(tokens)
    }
}

/// A token stands for a byte of text at least, and takes eight bytes of the answer at most (six
/// digits, a comma, a space); a chat template and the answer's other members come on top.
fn max_answer_bytes(max_body_bytes: usize) -> usize {
    const EXTRA: usize = 1 << 20;
    max_body_bytes.saturating_mul(8).saturating_add(EXTRA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::HeldBudget;
    use std::rc::Rc;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;
    const CHAT: &[u8] = br#"{"messages":[{"role":"user","content":"a"}],"stream":true}"#;

    fn tokenizer() -> Tokenizer {
        let config = TokenizeConfig {
            cluster: "engines".into(),
            authority: "vllm".into(),
            path: "/tokenize".into(),
            timeout_ms: 200,
            max_body_bytes: 24_576,
            max_cache_bytes: 10_000,
        };
        let limits = Limits {
            max_prompt_tokens: 1_000,
            budget: Rc::new(HeldBudget::new(1 << 20)),
        };
        Tokenizer::new(&config, limits)
    }

    fn ids(tokens: &TokenPrompts) -> Vec<Vec<u32>> {
        tokens.iter().map(<[u32]>::to_vec).collect()
    }

    #[test]
    fn an_answer_is_asked_for_once() {
        let mut tokenizer = tokenizer();
        let Needs::Call { body, key } = tokenizer.needs(CHAT, Form::Chat, None, NOW) else {
            panic!("a call");
        };
        assert_eq!(body, br#"{"messages":[{"role":"user","content":"a"}]}"#);
        let answer = Answer::Http {
            status: 200,
            body: br#"{"count":2,"tokens":[5,6]}"#,
        };
        let tokens = tokenizer.answered(key, answer, NOW).unwrap();
        assert_eq!(ids(&tokens), [[5, 6]]);
        // The same text in another request, which differs in what makes no tokens.
        let again = br#"{"n":2, "messages" : [{"role":"user","content":"a"}]}"#;
        match tokenizer.needs(again, Form::Chat, None, NOW + 1_000) {
            Needs::Nothing(tokens) => assert_eq!(ids(&tokens), [[5, 6]]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failure_is_no_answer_and_is_not_kept() {
        let ok = |body| Answer::Http { status: 200, body };
        let status = |status| Answer::Http { status, body: b"" };
        for (answer, expected) in [
            (status(504), Tokenized::Timeout),
            (status(503), Tokenized::Status),
            (status(400), Tokenized::Status),
            (ok(b""), Tokenized::Malformed),
            (ok(b"{\"tokens\":[]}"), Tokenized::Malformed),
            (ok(b"{\"tokens\":[1]"), Tokenized::Malformed),
            (Answer::TooLarge, Tokenized::Malformed),
            (Answer::None, Tokenized::NoAnswer),
            (Answer::Unreadable, Tokenized::Unreadable),
        ] {
            let mut tokenizer = tokenizer();
            let Needs::Call { key, .. } = tokenizer.needs(CHAT, Form::Chat, None, NOW) else {
                panic!("a call");
            };
            let answered = tokenizer.answered(key, answer, NOW).map(|t| ids(&t));
            assert_eq!(answered, Err(expected));
            let again = tokenizer.needs(CHAT, Form::Chat, None, NOW);
            assert!(matches!(again, Needs::Call { .. }), "{again:?}");
        }
    }

    #[test]
    fn what_cannot_be_asked() {
        for (request, form, expected) in [
            (
                &br#"{"messages":[],"documents":[]}"#[..],
                Form::Chat,
                Tokenized::Unsupported,
            ),
            (b"{}", Form::Chat, Tokenized::Unreadable),
            (CHAT, Form::Completion, Tokenized::Unreadable),
        ] {
            match tokenizer().needs(request, form, None, NOW) {
                Needs::NoCall(why) => assert_eq!(why, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
