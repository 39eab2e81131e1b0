//! Request bodies to measure with. The same arguments give the same bytes, always.

use std::fmt::Write;

/// What a body consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A few long messages of text and code, full of escapes.
    Chat,
    /// One long text, seldom an escape.
    Prompt,
    /// One array of numbers.
    TokenIds,
    /// Messages of some dozen bytes each.
    Messages,
    /// JSON schemas of tools: deep, and of short strings.
    Tools,
}

impl Shape {
    pub const ALL: [Self; 5] = [
        Self::Chat,
        Self::Prompt,
        Self::TokenIds,
        Self::Messages,
        Self::Tools,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Prompt => "prompt",
            Self::TokenIds => "token_ids",
            Self::Messages => "messages",
            Self::Tools => "tools",
        }
    }

    /// The path such a request goes to.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::Tools => "/v1/chat/completions",
            Self::Prompt | Self::TokenIds => "/v1/completions",
        }
    }
}

/// Where `kv_transfer_params` stands in the body's object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Params {
    Absent,
    First,
    Last,
}

impl Params {
    pub const ALL: [Self; 3] = [Self::Absent, Self::First, Self::Last];

    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// 4 KiB, 64 KiB, 1 MiB, 8 MiB.
pub const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The client's cap in [`body`].
pub const CAP: &str = r#""max_load_tokens":8192"#;
const MEMBER: &str = r#""kv_transfer_params":{"max_load_tokens":8192}"#;
/// The same as a policy leaves it that disables loading.
const EDITED: &str = r#""kv_transfer_params":{"max_load_tokens":0}"#;

/// A JSON object of exactly `bytes` bytes.
///
/// # Panics
/// If there is no room for one item of that shape: 4 KiB are enough for each.
pub fn body(shape: Shape, bytes: usize, params: Params) -> Vec<u8> {
    assemble(shape, bytes, params, MEMBER)
}

/// What becomes of [`body`] where loading is disabled: the cap is 0, a missing member stands before
/// the closing brace, and every other byte is the same.
pub fn edited(shape: Shape, bytes: usize, params: Params) -> Vec<u8> {
    let mut body = body(shape, bytes, params);
    let at = match params {
        Params::First => 1..1 + MEMBER.len(),
        Params::Last => bytes - 1 - MEMBER.len()..bytes - 1,
        Params::Absent => {
            body.splice(bytes - 1.., format!(",{EDITED}}}").into_bytes());
            return body;
        }
    };
    body.splice(at, EDITED.bytes());
    body
}

fn assemble(shape: Shape, bytes: usize, params: Params, member: &str) -> Vec<u8> {
    let mut text = String::with_capacity(bytes);
    text.push('{');
    if params == Params::First {
        text.push_str(member);
        text.push(',');
    }
    text.push_str(
        r#""model":"meta-llama/Llama-3.1-70B-Instruct","stream":true,"temperature":0.7,"#,
    );
    // `user` fills up what is left: its text, then the end.
    let padding = r#","user":""#;
    let end = match params {
        Params::Last => format!("\",{member}}}"),
        Params::Absent | Params::First => "\"}".to_owned(),
    };
    let (open, close) = match shape {
        Shape::Chat | Shape::Messages => (r#""messages":["#, "]"),
        Shape::Prompt => (r#""prompt":""#, "\""),
        Shape::TokenIds => (r#""prompt":["#, "]"),
        Shape::Tools => (
            r#""messages":[{"role":"user","content":"What can you do?"}],"tools":["#,
            "]",
        ),
    };
    text.push_str(open);
    let room = bytes
        .checked_sub(text.len() + close.len() + padding.len() + end.len())
        .expect("room for the frame");
    fill(shape, room, &mut text);
    text.push_str(close);
    text.push_str(padding);
    let missing = bytes - text.len() - end.len();
    text.extend(std::iter::repeat_n('x', missing));
    text.push_str(&end);
    text.into_bytes()
}

/// Appends as many items as fit into `room` bytes, at least one.
fn fill(shape: Shape, room: usize, text: &mut String) {
    let mut random = Random(0x5e1e_c71e);
    let limit = text.len() + room;
    let before = text.len();
    let mut item = String::new();
    // A chat has eight messages, whatever its size.
    let message = room / 8;
    for number in 0.. {
        item.clear();
        let comma = match shape {
            Shape::Prompt => "",
            _ if number == 0 => "",
            _ => ",",
        };
        item.push_str(comma);
        match shape {
            Shape::Chat => chat_message(&mut random, number, message, &mut item),
            Shape::Prompt => paragraph(&mut random, &mut item),
            Shape::TokenIds => {
                let _ = write!(item, "{}", random.below(VOCABULARY));
            }
            Shape::Messages => small_message(&mut random, number, &mut item),
            Shape::Tools => tool(&mut random, number, &mut item),
        }
        if text.len() + item.len() > limit {
            break;
        }
        text.push_str(&item);
    }
    assert!(text.len() > before, "{} bytes hold no {shape:?}", room);
}

const VOCABULARY: usize = 128_256;

const WORDS: [&str; 32] = [
    "the",
    "cache",
    "of",
    "a",
    "request",
    "is",
    "to",
    "load",
    "prefix",
    "and",
    "engine",
    "in",
    "block",
    "that",
    "memory",
    "for",
    "token",
    "it",
    "attention",
    "with",
    "on",
    "storage",
    "be",
    "throughput",
    "as",
    "latency",
    "this",
    "scheduler",
    "by",
    "an",
    "are",
    "recompute",
];

fn word(random: &mut Random) -> &'static str {
    WORDS[random.below(WORDS.len())]
}

fn role(number: usize) -> &'static str {
    match number {
        0 => "system",
        n if n % 2 == 1 => "user",
        _ => "assistant",
    }
}

/// Prose with quotations and code with indented lines, as `json.dumps` writes it: what is not ASCII
/// as `\uXXXX`. Of at most `size` bytes with its frame.
fn chat_message(random: &mut Random, number: usize, size: usize, out: &mut String) {
    let begin = out.len();
    let _ = write!(out, r#"{{"role":"{}","content":""#, role(number));
    let mut sentence = String::new();
    loop {
        sentence.clear();
        match random.below(8) {
            0 => {
                let (a, b) = (word(random), word(random));
                let _ = write!(
                    sentence,
                    r#"    if {a}[\"{b}\"] != '\\n':\n        return f\"{b}: {{{a}}}\"\n"#
                );
            }
            1 => {
                let (a, b) = (word(random), word(random));
                let _ = write!(
                    sentence,
                    r"The {a} \u2014 caf\u00e9 {b} \u65e5\u672c\u8a9e \ud83d\ude00.\n\n"
                );
            }
            2 => {
                let (a, b) = (word(random), word(random));
                let _ = write!(sentence, r#"He said: \"{a} {b}\", C:\\{a}\\{b}.txt.\n"#);
            }
            _ => {
                for _ in 0..12 {
                    sentence.push_str(word(random));
                    sentence.push(' ');
                }
                sentence.push_str(r"so.\n");
            }
        }
        if out.len() - begin + sentence.len() + 2 > size {
            break;
        }
        out.push_str(&sentence);
    }
    out.push_str("\"}");
}

/// About 500 bytes of prose and one line feed.
fn paragraph(random: &mut Random, out: &mut String) {
    for _ in 0..80 {
        out.push_str(word(random));
        out.push(' ');
    }
    out.push_str(r"so it is.\n");
}

fn small_message(random: &mut Random, number: usize, out: &mut String) {
    let (a, b) = (word(random), word(random));
    let _ = write!(out, r#"{{"role":"{}","content":"{a} {b}?"}}"#, role(number));
}

fn tool(random: &mut Random, number: usize, out: &mut String) {
    let mut next = || word(random);
    let (a, b, c, d) = (next(), next(), next(), next());
    let _ = write!(
        out,
        r#"{{"type":"function","function":{{"name":"{a}_{b}_{number}","description":"Returns the {c} of the {d} ({a}).","parameters":{{"type":"object","properties":{{"{b}":{{"type":"string","description":"The {b}, e.g. \"{d}\""}},"{c}_limit":{{"type":"integer","minimum":1,"maximum":100}},"unit":{{"type":"string","enum":["{c}","{d}"]}},"filter":{{"type":"array","items":{{"type":"object","properties":{{"key":{{"type":"string"}},"value":{{"type":["string","null"]}}}}}}}}}},"required":["{b}"],"additionalProperties":false}},"strict":true}}}}"#
    );
}

/// A linear congruential generator (the multiplier is Knuth's for MMIX): its high bits are random enough.
struct Random(u64);

impl Random {
    /// 0 to `limit` - 1.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_baselines::{raw_value, round_trip};
    use serde_json::Value;

    /// Every body of up to 64 KiB; the larger ones differ in length only.
    fn each(mut check: impl FnMut(Shape, usize, Params)) {
        for shape in Shape::ALL {
            for bytes in SIZES.into_iter().filter(|bytes| *bytes <= 64 << 10) {
                for params in Params::ALL {
                    check(shape, bytes, params);
                }
            }
        }
    }

    fn json(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("valid JSON")
    }

    #[test]
    fn a_body_is_json_of_the_asked_size_with_its_params_in_place() {
        each(|shape, bytes, params| {
            let body = body(shape, bytes, params);
            assert_eq!(body.len(), bytes, "{shape:?} {params:?}");
            let tree = json(&body);
            let text = String::from_utf8(body).expect("text");
            let found = text.matches("kv_transfer_params").count();
            assert_eq!(found, usize::from(params != Params::Absent));
            match params {
                Params::Absent => assert!(tree.get("kv_transfer_params").is_none()),
                _ if !text.contains(CAP) => panic!("no cap in {shape:?}"),
                Params::First => assert!(text.starts_with(&format!("{{{MEMBER},"))),
                Params::Last => assert!(text.ends_with(&format!(",{MEMBER}}}"))),
            }
        });
    }

    #[test]
    fn the_padding_is_less_than_an_item() {
        each(|shape, bytes, params| {
            let tree = json(&body(shape, bytes, params));
            let padding = tree["user"].as_str().expect("padding").len();
            // Of a chat an item is an eighth of the body, of which hardly anything is left over.
            let most = match shape {
                Shape::Chat => bytes / 8,
                Shape::Tools | Shape::Prompt => 800,
                Shape::Messages => 80,
                Shape::TokenIds => 7,
            };
            assert!(padding < most, "{shape:?} {bytes}: {padding}");
        });
    }

    #[test]
    fn what_the_shapes_are_made_of() {
        for (shape, items, count) in [
            (Shape::Chat, "/messages", 8),
            (Shape::TokenIds, "/prompt", 10_677),
            (Shape::Messages, "/messages", 1_554),
            (Shape::Tools, "/tools", 126),
        ] {
            let tree = json(&body(shape, 64 << 10, Params::Absent));
            let items = tree.pointer(items).and_then(Value::as_array);
            assert_eq!(items.map(Vec::len), Some(count), "{shape:?}");
        }
    }

    #[test]
    fn the_baselines_make_the_same_edit() {
        each(|shape, bytes, params| {
            let (body, expected) = (body(shape, bytes, params), edited(shape, bytes, params));
            let name = format!("{shape:?} {bytes} {params:?}");
            assert_eq!(raw_value::edited(&body), Some(expected.clone()), "{name}");
            let round_trip = round_trip::edited(&body).expect("an edit");
            assert!(json(&round_trip) == json(&expected), "{name}");
            assert_eq!(json(&expected)["kv_transfer_params"]["max_load_tokens"], 0);
        });
    }
}
