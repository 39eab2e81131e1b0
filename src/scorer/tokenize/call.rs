//! The body of a call to `/tokenize`, cut from the request's own bytes.
//!
//! Values are copied as they came, so that the engine reads the same text. A member that changes
//! the prompt, and that `/tokenize` does not take, means no call at all.

use std::ops::Range;

use crate::json::key::KeyMatcher;
use crate::json::walker::{Names, Step, Walker};
use crate::json::{is_space, skip};
use crate::json_value;
use crate::prompt::Text;

/// The two forms that `/tokenize` takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Completion,
    Chat,
}

impl Form {
    /// None: the engine tokenises such a text, and `/tokenize` does not.
    pub fn of(text: Text) -> Option<Self> {
        match text {
            Text::One => Some(Form::Completion),
            Text::Messages => Some(Form::Chat),
            Text::Several | Text::Batch | Text::Input | Text::Anthropic => None,
        }
    }
}

/// Why there is no call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCall {
    /// This member changes the prompt, and `/tokenize` does not take it.
    Unsupported(&'static str),
    /// The bytes are no complete JSON object, or have no prompt of this form.
    Broken,
}

const NAMES: Names = &[
    "model",
    "prompt",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "response_format",
    "tool_choice",
];

/// What a completion's tokens follow from.
const COMPLETION: Names = &["model", "prompt", "add_special_tokens"];
/// What a chat's tokens follow from and `/tokenize` takes.
const CHAT: Names = &[
    "model",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
    "chat_template_kwargs",
];
/// What a chat template sees, and `/tokenize` does not take; `response_format` only with the
/// renderers of some models.
const NOT_TAKEN: Names = &["documents", "reasoning_effort", "response_format"];

/// The call's body, for a whole request whose prompt is of this form. `model`: what the engines call
/// the request's model, where that is not what the request says.
///
/// # Errors
/// The request's tokens cannot be asked for.
pub fn call(request: &[u8], form: Form, model: Option<&str>) -> Result<Vec<u8>, NoCall> {
    let values = values(request).ok_or(NoCall::Broken)?;
    let value = |name: &str| {
        let index = NAMES.iter().position(|known| *known == name)?;
        let range = values.get(index)?.clone()?;
        request.get(range)
    };
    let given = |name: &str| value(name).filter(|value| *value != b"null");
    let (taken, prompt) = match form {
        Form::Completion => (COMPLETION, "prompt"),
        Form::Chat => (CHAT, "messages"),
    };
    let text = given(prompt).ok_or(NoCall::Broken)?;
    if form == Form::Chat {
        if let Some(name) = NOT_TAKEN.iter().find(|name| given(name).is_some()) {
            return Err(NoCall::Unsupported(name));
        }
        // Engines may leave the tools out under "none", or tell the model of the choice.
        let chosen = given("tool_choice").is_some_and(|choice| choice != br#""auto""#);
        if chosen && given("tools").is_some() {
            return Err(NoCall::Unsupported("tool_choice"));
        }
        // A chat takes it for `reasoning`; `/tokenize` does so in some versions only.
        if has_key(text, &["reasoning_content"]) {
            return Err(NoCall::Unsupported("reasoning_content"));
        }
    }
    let model = model.map(json_value::string);
    let mut body = Vec::with_capacity(request.len());
    for name in taken {
        let renamed = model.as_deref().filter(|_| *name == "model");
        if let Some(value) = renamed.map(str::as_bytes).or_else(|| value(name)) {
            body.push(if body.is_empty() { b'{' } else { b',' });
            body.push(b'"');
            body.extend_from_slice(name.as_bytes());
            body.extend_from_slice(b"\":");
            body.extend_from_slice(value);
        }
    }
    body.push(b'}');
    Ok(body)
}

/// Where the value of each of [`NAMES`] is, the last one of duplicates. None: no whole object.
fn values(request: &[u8]) -> Option<[Option<Range<usize>>; NAMES.len()]> {
    let mut walker = Walker::new(NAMES);
    let mut values = [const { None }; NAMES.len()];
    let mut current = (0, 0);
    let mut at = 0;
    loop {
        match walker.next(request, &mut at)? {
            Step::Value { at, name, .. } => current = (at, name),
            Step::End { at, .. } => {
                let (start, name) = current;
                *values.get_mut(name)? = Some(start..at);
            }
            Step::Leave => {}
            Step::Close { .. } => return Some(values),
            Step::Broken => return None,
        }
    }
}

/// Whether any object within a value has a key of these names.
fn has_key(value: &[u8], names: Names) -> bool {
    let mut rest = value;
    while let Some((quote, byte)) = skip::find_structural(rest) {
        rest = rest.get(quote.saturating_add(1)..).unwrap_or_default();
        if byte != b'"' {
            continue;
        }
        let mut matcher = KeyMatcher::new(names);
        let Some(end) = matcher.feed(rest) else {
            return false;
        };
        rest = rest.get(end.saturating_add(1)..).unwrap_or_default();
        let behind = rest.iter().find(|byte| !is_space(**byte));
        if behind == Some(&b':') && matcher.matched().is_some() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn check(form: Form, table: &[(&str, Result<&str, NoCall>)]) {
        for (request, expected) in table {
            let found = call(request.as_bytes(), form, None);
            let found = found.map(|body| String::from_utf8(body).unwrap());
            assert_eq!(
                found.as_deref().map_err(|e| *e),
                *expected,
                "{form:?} {request}"
            );
        }
    }

    #[test]
    fn completions() {
        check(
            Form::Completion,
            &[
                (r#"{"prompt":"a"}"#, Ok(r#"{"prompt":"a"}"#)),
                (
                    " { \"prompt\" : \"a \\\" \\u00e9\" ,\"n\":2, \"model\":\"m\"\n}\n",
                    Ok(r#"{"model":"m","prompt":"a \" \u00e9"}"#),
                ),
                (
                    r#"{"add_special_tokens":false,"prompt":"a","model":null}"#,
                    Ok(r#"{"model":null,"prompt":"a","add_special_tokens":false}"#),
                ),
                // Keys are compared decoded, and the last of duplicates counts.
                (
                    r#"{"prompt":"a","pro\u006dpt":"b","prompt ":"c"}"#,
                    Ok(r#"{"prompt":"b"}"#),
                ),
                ("\u{feff}{\"prompt\":\"a\"}", Ok(r#"{"prompt":"a"}"#)),
                // What only chats have says nothing here.
                (
                    r#"{"prompt":"a","messages":[],"documents":[{}],"tools":[],"reasoning_effort":"low"}"#,
                    Ok(r#"{"prompt":"a"}"#),
                ),
                (r#"{"prompt":null}"#, Err(NoCall::Broken)),
                (r#"{"prompt":"a","prompt":null}"#, Err(NoCall::Broken)),
                (r#"{}"#, Err(NoCall::Broken)),
                (r#"{"prompt":"a""#, Err(NoCall::Broken)),
                (r#"{"prompt":"a"]"#, Err(NoCall::Broken)),
                (r#"["prompt"]"#, Err(NoCall::Broken)),
                ("", Err(NoCall::Broken)),
            ],
        );
    }

    #[test]
    fn chats() {
        let unsupported = |name| Err(NoCall::Unsupported(name));
        check(
            Form::Chat,
            &[
                (
                    r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,"prompt":"no"}"#,
                    Ok(r#"{"messages":[{"role":"user","content":"hi"}]}"#),
                ),
                (
                    r#"{"chat_template_kwargs":{"enable_thinking":false},"chat_template":"t","tools":[{"x":1}],
                        "continue_final_message":true,"add_generation_prompt":false,"add_special_tokens":true,
                        "messages":[ ],"model":"m"}"#,
                    Ok(
                        r#"{"model":"m","messages":[ ],"add_special_tokens":true,"add_generation_prompt":false,"continue_final_message":true,"tools":[{"x":1}],"chat_template":"t","chat_template_kwargs":{"enable_thinking":false}}"#,
                    ),
                ),
                (
                    r#"{"messages":[1],"messages":[2],"tools":[3],"tools":null}"#,
                    Ok(r#"{"messages":[2],"tools":null}"#),
                ),
                // Members that /tokenize does not take.
                (
                    r#"{"messages":[],"documents":[]}"#,
                    unsupported("documents"),
                ),
                (
                    r#"{"documents":[{}],"messages":[],"documents":null}"#,
                    Ok(r#"{"messages":[]}"#),
                ),
                (
                    r#"{"messages":[],"reasoning_effort":"low"}"#,
                    unsupported("reasoning_effort"),
                ),
                (
                    r#"{"messages":[],"reasoning\u005feffort":"low"}"#,
                    unsupported("reasoning_effort"),
                ),
                (
                    r#"{"messages":[],"response_format":{"type":"text"}}"#,
                    unsupported("response_format"),
                ),
                // The choice says nothing without tools.
                (
                    r#"{"messages":[],"tool_choice":"none"}"#,
                    Ok(r#"{"messages":[]}"#),
                ),
                (
                    r#"{"messages":[],"tools":null,"tool_choice":"none"}"#,
                    Ok(r#"{"messages":[],"tools":null}"#),
                ),
                (
                    r#"{"messages":[],"tools":[1],"tool_choice":"auto"}"#,
                    Ok(r#"{"messages":[],"tools":[1]}"#),
                ),
                (
                    r#"{"messages":[],"tools":[1],"tool_choice":null}"#,
                    Ok(r#"{"messages":[],"tools":[1]}"#),
                ),
                (
                    r#"{"messages":[],"tools":[1],"tool_choice":"none"}"#,
                    unsupported("tool_choice"),
                ),
                (
                    r#"{"messages":[],"tool_choice":{"type":"function"},"tools":[]}"#,
                    unsupported("tool_choice"),
                ),
                (
                    r#"{"messages":[{"role":"assistant","reasoning_content" :"r"}]}"#,
                    unsupported("reasoning_content"),
                ),
                (
                    r#"{"messages":[{"a":[{"reasoning\u005fcontent":1}]}]}"#,
                    unsupported("reasoning_content"),
                ),
                (
                    r#"{"messages":[{"content":"reasoning_content"},{"content":"\"reasoning_content\":"}]}"#,
                    Ok(
                        r#"{"messages":[{"content":"reasoning_content"},{"content":"\"reasoning_content\":"}]}"#,
                    ),
                ),
                (r#"{"prompt":"a"}"#, Err(NoCall::Broken)),
                (r#"{"messages":null}"#, Err(NoCall::Broken)),
            ],
        );
    }

    /// An alias of the configuration: `/tokenize` answers 404 to a name that the engine does not serve.
    #[test]
    fn the_model_is_called_as_the_engine_calls_it() {
        let name = "a \"b\"/ü";
        for (request, form, expected) in [
            (
                r#"{"model":"gpt-x","prompt":"a"}"#,
                Form::Completion,
                r#"{"model":"a \"b\"/ü","prompt":"a"}"#,
            ),
            (
                r#"{"messages":[1],"model":"x","model" : "gpt\u002dx"}"#,
                Form::Chat,
                r#"{"model":"a \"b\"/ü","messages":[1]}"#,
            ),
        ] {
            let body = call(request.as_bytes(), form, Some(name)).unwrap();
            assert_eq!(String::from_utf8(body).unwrap(), expected);
        }
    }

    #[test]
    fn forms() {
        for (text, expected) in [
            (Text::One, Some(Form::Completion)),
            (Text::Messages, Some(Form::Chat)),
            (Text::Several, None),
            (Text::Batch, None),
            (Text::Input, None),
            (Text::Anthropic, None),
        ] {
            assert_eq!(Form::of(text), expected, "{text:?}");
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod properties {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\\\]{0,4}", inner, 0..3)
                    .prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        /// serde_json is the oracle: the call has exactly the request's members that decide.
        #[test]
        fn the_call_is_the_request_less_what_does_not_count(
            members in prop::collection::vec((prop::sample::select(NAMES), value()), 0..12),
            chat: bool,
        ) {
            let text: Vec<String> = members.iter().map(|(k, v)| format!("{k:?} : {v}")).collect();
            let request = format!("{{{}}}", text.join(" , "));
            let last: Map<String, Value> =
                members.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
            let given = |name: &str| last.get(name).is_some_and(|v| !v.is_null());
            let (form, taken, prompt) = match chat {
                true => (Form::Chat, CHAT, "messages"),
                false => (Form::Completion, COMPLETION, "prompt"),
            };
            let choice = given("tool_choice") && last["tool_choice"] != "auto" && given("tools");
            let no_call = chat && (NOT_TAKEN.iter().any(|name| given(name)) || choice);
            match call(request.as_bytes(), form, None) {
                Ok(body) => {
                    prop_assert!(given(prompt) && !no_call);
                    let body: Map<String, Value> = serde_json::from_slice(&body).unwrap();
                    let mut expected = last.clone();
                    expected.retain(|key, _| taken.contains(&key.as_str()));
                    prop_assert_eq!(body, expected);
                }
                Err(NoCall::Broken) => prop_assert!(!given(prompt)),
                Err(NoCall::Unsupported(_)) => prop_assert!(no_call && given(prompt)),
            }
        }

        #[test]
        fn no_bytes_are_too_hostile(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = call(&bytes, Form::Chat, Some("m"));
            let _ = call(&[br#"{"messages":["#, &bytes[..], b"]}"].concat(), Form::Chat, None);
        }
    }
}
