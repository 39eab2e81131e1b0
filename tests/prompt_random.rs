//! Random bodies, cut at random: the scanner says what a naive reading of the parsed document says.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod prompt;

use prompt::{ENDPOINTS, say, scan};
use proptest::prelude::*;
use selective_kv::prompt::Endpoint;
use serde_json::Value;

/// The naive reading.
mod naive {
    use super::*;

    fn id(value: &Value) -> Option<u64> {
        match value {
            Value::Bool(value) => Some((*value).into()),
            value => value.as_u64().filter(|&id| u32::try_from(id).is_ok()),
        }
    }

    /// A list of ids, as text.
    fn ids(value: &Value) -> Option<String> {
        let list = value.as_array().filter(|list| !list.is_empty())?;
        let ids: Option<Vec<u64>> = list.iter().map(id).collect();
        ids.map(|ids| format!("{ids:?}"))
    }

    fn prompt(value: &Value) -> Option<String> {
        if value.is_string() {
            return Some("text".into());
        }
        let list = value.as_array().filter(|list| !list.is_empty())?;
        if list.iter().all(Value::is_string) {
            return Some("texts".into());
        }
        ids(value).or_else(|| {
            let lists: Option<Vec<String>> = list.iter().map(ids).collect();
            lists.map(|lists| lists.join(" "))
        })
    }

    fn multimodal(value: &Value) -> bool {
        const KEYS: [&str; 4] = ["image_url", "input_audio", "video_url", "image_embeds"];
        const TYPES: [&str; 4] = ["image", "image_url", "file", "audio"];
        match value {
            Value::Array(list) => list.iter().any(multimodal),
            Value::Object(members) => members.iter().any(|(key, value)| {
                KEYS.contains(&key.as_str())
                    || (key == "type" && value.as_str().is_some_and(|text| TYPES.contains(&text)))
                    || multimodal(value)
            }),
            _ => false,
        }
    }

    pub fn said(endpoint: Endpoint, body: &Value) -> String {
        use Endpoint::{Batch, Chat, Completions, Generate, Invocations, Messages, Responses};
        let at = |pointer: &str| body.pointer(pointer).filter(|value| !value.is_null());
        let chat = match endpoint {
            Completions | Generate => false,
            Invocations => at("/messages").is_some(),
            _ => true,
        };
        let sampled = endpoint == Generate;
        let sampling = |name: &str| match endpoint {
            Generate => at(&format!("/sampling_params/{name}")),
            Responses | Messages => None,
            _ => at(&format!("/{name}")),
        };
        let has_flags = matches!(endpoint, Completions | Chat | Batch | Invocations);
        let echo = at("/echo").filter(|_| has_flags);
        let skip = sampling("skip_reading_prefix_cache").filter(|_| sampled);
        let embeds = at("/prompt_embeds").filter(|_| matches!(endpoint, Completions | Invocations));
        let conversation = match endpoint {
            Completions | Generate => None,
            Responses => at("/input"),
            _ => at("/messages"),
        };
        let images = conversation.is_some_and(|list| list.is_array() && multimodal(list))
            || (sampled && at("/features").is_some());
        let stand_in = at("/kv_transfer_params/prompt_token_ids");
        let mut said = if images {
            "!multimodal".into()
        } else if embeds.is_some() {
            "!prompt_embeds".into()
        } else if sampling("truncate_prompt_tokens").is_some() {
            "!truncated_prompt".into()
        } else if at("/cache_salt").is_some_and(|salt| salt.as_str().is_none_or(str::is_empty)) {
            "!invalid_cache_salt".into()
        } else if at("/model").is_some_and(|model| !model.is_string()) {
            "!invalid_model".into()
        } else if endpoint == Invocations && chat && at("/prompt").is_some() {
            "!ambiguous_body".into()
        } else if [echo, skip]
            .into_iter()
            .flatten()
            .any(|flag| !flag.is_boolean())
        {
            "!unclear_flag".into()
        } else {
            let (value, found) = match (endpoint, stand_in) {
                (Chat | Invocations, Some(list)) if chat => (Some(list), ids(list)),
                (_, Some(list)) if chat => (Some(list), None),
                (Generate, _) => (at("/token_ids"), at("/token_ids").and_then(ids)),
                _ if !chat => (at("/prompt"), at("/prompt").and_then(prompt)),
                _ => {
                    let kind = match endpoint {
                        Batch => "batch",
                        Messages => "anthropic",
                        Responses => "input",
                        _ => "messages",
                    };
                    let fits = conversation.is_some_and(|value| {
                        value.is_array() || (endpoint == Responses && value.is_string())
                    });
                    (conversation, fits.then(|| kind.to_owned()))
                }
            };
            match value {
                None => "!no_prompt".into(),
                Some(_) => found.unwrap_or("!malformed_prompt".into()),
            }
        };
        for (name, pointer) in [("model", "/model"), ("salt", "/cache_salt")] {
            let text = at(pointer).and_then(Value::as_str);
            if let Some(text) = text.filter(|text| name == "model" || !text.is_empty()) {
                said += &format!(" {name}={text}");
            }
        }
        let echoes = echo == Some(&Value::Bool(true))
            && match chat {
                true => body.get("top_logprobs") != Some(&Value::Null),
                false => at("/logprobs").is_some(),
            };
        let reads = match skip {
            Some(&Value::Bool(skip)) => !skip,
            _ => !echoes && sampling("prompt_logprobs").is_none(),
        };
        if !reads {
            said += " reads nothing";
        }
        if let Some(n) = sampling("n").and_then(Value::as_u64) {
            said += &format!(" n={n}");
        }
        said
    }
}

/// Any of these texts.
fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(texts).prop_map(str::to_owned)
}

fn space() -> impl Strategy<Value = String> {
    one_of(&["", "", "", " ", "\n\t", "\r "])
}

/// A list with white space around its elements.
fn list(element: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (proptest::collection::vec(element, 0..5), space(), space()).prop_map(
        |(elements, before, behind)| {
            format!(
                "[{before}{}{behind}]",
                elements.join(&format!("{behind},{before}"))
            )
        },
    )
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => any::<u32>().prop_map(|id| id.to_string()),
        4 => (0..300_u32).prop_map(|id| id.to_string()),
        1 => any::<i64>().prop_map(|id| id.to_string()),
        1 => one_of(&["true", "false", "null", "1.5", "0.0", "1e3", "4294967296", "\"x\"", "{}"]),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    one_of(&[
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "-3",
        "2.5",
        "\"\"",
        "\"s\"",
        "[]",
        "{}",
        "\"type\"",
        "18446744073709551615",
        "99999999999999999999",
    ])
}

fn ids() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => list(any::<u32>().prop_map(|id| id.to_string())),
        2 => list(number()),
        2 => list(list(any::<u32>().prop_map(|id| id.to_string()))),
        1 => list(list(number())),
        1 => list(one_of(&["\"a\"", "\"]\"", "\"\\\"\"", "1"])),
        1 => scalar(),
    ]
}

/// Conversations, and anything like them.
fn document() -> impl Strategy<Value = String> {
    let leaf = one_of(&[
        "1",
        "null",
        "\"x\"",
        "\"type\"",
        "\"image\"",
        "\"image_url\"",
        "\"\\\\\"",
        "\"\\\"]\"",
    ]);
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = one_of(&[
            "role",
            "content",
            "type",
            "image_url",
            "input_audio",
            "image",
            "image\\u005furl",
            "",
        ]);
        let member =
            (space(), inner.clone()).prop_map(|(space, value)| format!("{space}:{space}{value}"));
        prop_oneof![
            list(inner),
            // Each key once: a part that a duplicate hides is one too, for the scanner.
            proptest::collection::hash_map(key, member, 0..4).prop_map(|members| {
                let members: Vec<String> = members
                    .into_iter()
                    .map(|(k, v)| format!("\"{k}\"{v}"))
                    .collect();
                format!("{{{}}}", members.join(" , "))
            }),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => any::<String>().prop_map(|text| Value::String(text).to_string()),
        1 => any::<String>().prop_map(|text| {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            format!("\"{}\"", units.collect::<String>())
        }),
        1 => scalar(),
    ]
}

/// Members of an object, from names and their values.
fn object(member: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (proptest::collection::vec(member, 0..6), space())
        .prop_map(|(members, space)| format!("{{{space}{}{space}}}", members.join(",")))
}

fn member(
    names: &'static [&'static str],
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    (one_of(names), any::<bool>(), space(), value).prop_map(|(name, escaped, space, value)| {
        let name = match name.split_at(1) {
            (first, rest) if escaped => format!("\\u{:04x}{rest}", first.as_bytes()[0]),
            _ => name.clone(),
        };
        format!("{space}\"{name}\"{space}:{space}{value}{space}")
    })
}

const FLAGS: &[&str] = &[
    "echo",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "skip_reading_prefix_cache",
    "n",
    "truncate_prompt_tokens",
];

fn body() -> impl Strategy<Value = String> {
    let sampling = prop_oneof![
        3 => object(member(FLAGS, scalar())),
        1 => scalar(),
    ];
    let params = prop_oneof![
        3 => object(member(&["prompt_token_ids", "max_load_tokens"], ids())),
        1 => scalar(),
    ];
    object(prop_oneof![
        4 => member(&["prompt", "token_ids"], ids()),
        2 => member(&["model", "cache_salt"], text()),
        2 => member(FLAGS, scalar()),
        1 => member(&["prompt_embeds", "features"], one_of(&["null", "null", "\"x\""])),
        2 => member(&["messages", "input"], document()),
        2 => member(&["kv_transfer_params"], params),
        2 => member(&["sampling_params"], sampling),
        1 => member(&["other", "prompts"], document()),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    #[test]
    fn says_what_a_naive_reading_says(
        body in body(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..5),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.sort_unstable();
        let document: Value = serde_json::from_str(&body).expect("valid JSON");
        for endpoint in ENDPOINTS {
            let found = say(scan(endpoint, body.as_bytes(), &cuts).as_ref());
            prop_assert_eq!(found, naive::said(endpoint, &document), "{:?} {}", endpoint, &body);
        }
    }

    /// Whatever the bytes, nothing panics, and the split changes nothing.
    #[test]
    fn damaged_bodies_say_the_same_however_they_are_cut(
        body in body(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        step in 1_usize..9,
    ) {
        let mut body = body.into_bytes();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let cuts: Vec<usize> = (0..body.len()).step_by(step).collect();
        for endpoint in ENDPOINTS {
            prop_assert_eq!(
                say(scan(endpoint, &body, &cuts).as_ref()),
                say(scan(endpoint, &body, &[]).as_ref())
            );
        }
    }
}
