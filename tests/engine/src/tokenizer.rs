//! A toy tokenizer and chat template: one token a UTF-8 byte, the byte minus 30 (so `hello` is 74, 71,
//! 78, 78, 81, as on the server the facts were read from). `/tokenize` and the requests use the same.

use crate::json::Value;

pub fn tokenize(text: &str) -> Vec<u32> {
    text.bytes()
        .map(|byte| u32::from(byte.wrapping_sub(30)))
        .collect()
}

/// A chat request's text. Like a model's own template it depends on more than the messages: whoever
/// asks `/tokenize` for a chat has to pass these members on.
pub fn chat(body: &Value, messages: &[Value]) -> String {
    let mut text = String::new();
    for key in ["tools", "chat_template_kwargs"] {
        if let Some(value) = body.given(key) {
            text.push_str(&format!("<{key}>{}\n", value.repr()));
        }
    }
    text.push_str(&conversation(messages));
    let prompted = body.get("add_generation_prompt") != Some(&Value::Bool(false));
    if prompted {
        text.push_str("<assistant>");
    }
    text
}

pub fn conversation(messages: &[Value]) -> String {
    messages
        .iter()
        .map(|message| {
            let role = message
                .get("role")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let content = message.get("content").map(text_of).unwrap_or_default();
            format!("<{role}>{content}\n")
        })
        .collect()
}

/// A text, or the texts of a list of parts; anything else is no text.
pub fn text_of(content: &Value) -> String {
    match content {
        Value::Str(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => String::new(),
    }
}
