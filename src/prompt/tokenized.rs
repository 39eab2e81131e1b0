//! The token ids that an engine's `/tokenize` answers with.

use super::Limits;
use super::token_list::{Forms, Read, TokenList, TokenPrompts, Value};
use crate::json::walker::{Names, Step, Walker};

const NAMES: Names = &["tokens"];

/// The prompt in `tokens` of a whole answer, the last one of duplicates. None if it has none, or
/// more than the limits allow.
pub fn read_tokenized(answer: &[u8], limits: Limits) -> Option<TokenPrompts> {
    let mut walker = Walker::new(NAMES);
    let mut tokens = TokenList::new(Forms::Ids, limits);
    let mut value = Value::Null;
    let mut at = 0;
    loop {
        match walker.next(answer, &mut at)? {
            Step::Value { byte: b'[', .. } => {
                walker.take();
                tokens.begin();
                match tokens.feed(answer, &mut at) {
                    Read::End(read) => value = read,
                    Read::More | Read::Broken => return None,
                }
                walker.taken();
            }
            Step::Value { .. } => value = Value::Null,
            Step::End { .. } | Step::Leave => {}
            Step::Broken => return None,
            Step::Close { .. } => {
                return (value == Value::Tokens).then(|| tokens.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::HeldBudget;
    use std::rc::Rc;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(answer: &str, max_prompt_tokens: usize) -> Option<Vec<Vec<u32>>> {
        let budget = Rc::new(HeldBudget::new(1 << 20));
        let limits = Limits {
            max_prompt_tokens,
            budget: Rc::clone(&budget),
        };
        let tokens = read_tokenized(answer.as_bytes(), limits);
        assert_eq!(budget.held(), 0, "{answer}");
        tokens.map(|tokens| tokens.iter().map(<[u32]>::to_vec).collect())
    }

    #[test]
    fn answers() {
        for (answer, expected) in [
            (
                r#"{"count":3,"max_model_len":4096,"tokens":[1,0,4294967295],"token_strs":["[",null]}"#,
                Some(vec![1, 0, 4_294_967_295]),
            ),
            (r#"{"\u0074okens":[7]}"#, Some(vec![7])),
            (r#"{"tokens":[1],"tokens":[2,3]}"#, Some(vec![2, 3])),
            (r#"{"tokens":[1],"tokens":null}"#, None),
            (r#"{"tokens":[]}"#, None),
            (r#"{"tokens":null}"#, None),
            (r#"{"tokens":"1"}"#, None),
            (r#"{"tokens":[-1]}"#, None),
            (r#"{"tokens":[1.5]}"#, None),
            (r#"{"tokens":[4294967296]}"#, None),
            (r#"{"tokens":[[1]]}"#, None),
            (r#"{"tokens":["a"]}"#, None),
            (r#"{"nested":{"tokens":[1]}}"#, None),
            (r#"{"tokens":[1,2"#, None),
            (r#"{"tokens":[1,2]"#, None),
            (r#"{"tokens":[1 2]}"#, None),
            (r#"[1,2]"#, None),
            ("", None),
        ] {
            assert_eq!(read(answer, 10), expected.map(|t| vec![t]), "{answer}");
        }
    }

    #[test]
    fn no_more_tokens_than_allowed() {
        let answer = |n: usize| format!(r#"{{"tokens":{:?}}}"#, vec![9_u32; n]);
        assert_eq!(read(&answer(600), 600), Some(vec![vec![9; 600]]));
        assert_eq!(read(&answer(601), 600), None);
        // The budget of the VM has room for 262,144.
        assert_eq!(read(&answer(300_000), usize::MAX), None);
    }
}
