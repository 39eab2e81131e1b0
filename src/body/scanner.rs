//! A resumable walk through one JSON object that knows where `kv_transfer_params` counts.
//!
//! It checks the grammar (keys, colons, values, commas) of the objects it walks through: the
//! top-level one and, for `/inference/v1/generate`, `sampling_params` and its `extra_args`. Every
//! other value it skips by quotes and brackets. State survives any split of the stream.

use super::Places;
use super::key::KeyMatcher;
use super::skip::{self, Nest, Skipped};

/// What the scanner found. Indices are those of the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A `kv_transfer_params` value begins with the byte at this index.
    Params { at: usize, nested: bool, kind: Kind },
    /// That value ended before this index; `kind` is now certain. Not sent for [`Kind::Other`] at
    /// its first byte.
    ParamsEnd { at: usize, nested: bool, kind: Kind },
    /// A `sampling_params`, or an `extra_args` in one, begins: an earlier one no longer counts.
    NestedAfresh,
    /// The closing brace of the top-level object is at this index. `empty`: it has no member.
    Close { at: usize, empty: bool },
    /// No JSON object, or broken.
    Broken,
}

/// What a params value is, as far as its first byte tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Object,
    /// Begins as `null` does; at its end: it is `null`.
    Null,
    Other,
}

#[derive(Debug)]
pub(super) struct Scanner {
    places: Places,
    state: State,
    level: Level,
    /// What the value is that comes next, or is being read.
    role: Role,
    /// The top-level object has a member.
    any_member: bool,
}

#[derive(Debug)]
enum State {
    /// At the very start, behind this many bytes of a byte-order mark.
    Mark(usize),
    /// Before the top-level object.
    Before,
    /// Behind an opening brace: a key or the closing brace.
    First,
    /// Behind a comma: a key.
    Next,
    Key(KeyMatcher),
    Colon,
    Value,
    Text {
        escaped: bool,
    },
    /// A number or literal; how much of `null` it has been so far.
    Scalar(Option<usize>),
    Nest(Nest),
    /// Behind a value: a comma or the closing brace.
    After,
    /// Closed, or broken: nothing more is read.
    Done,
}

/// The object being walked through.
#[derive(Clone, Copy, Debug)]
enum Level {
    Top,
    SamplingParams,
    ExtraArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Plain,
    Params,
    /// An object to walk into, if it is one: `sampling_params` or `extra_args`.
    Inner,
}

const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
const NULL: &[u8] = b"null";

impl Level {
    fn names(self, places: Places) -> &'static [&'static str] {
        match (self, places) {
            (Level::Top, Places::TopLevel) | (Level::ExtraArgs, _) => &["kv_transfer_params"],
            (Level::Top, Places::TopLevelOrNested) => &["kv_transfer_params", "sampling_params"],
            (Level::SamplingParams, _) => &["extra_args"],
        }
    }

    /// The role of a value by the index of its key's name.
    fn role(self, name: Option<usize>) -> Role {
        match (self, name) {
            (_, None) => Role::Plain,
            (Level::Top | Level::ExtraArgs, Some(0)) => Role::Params,
            (_, Some(_)) => Role::Inner,
        }
    }
}

impl Scanner {
    pub fn new(places: Places) -> Self {
        Scanner {
            places,
            state: State::Mark(0),
            level: Level::Top,
            role: Role::Plain,
            any_member: false,
        }
    }

    /// True if the opening brace has not been seen.
    pub fn before_object(&self) -> bool {
        matches!(self.state, State::Mark(_) | State::Before)
    }

    /// Reads on from `*at`, which moves, to the next event; None once the chunk is used up.
    pub fn next(&mut self, chunk: &[u8], at: &mut usize) -> Option<Event> {
        while let Some(&byte) = chunk.get(*at) {
            let rest = chunk.get(*at..).unwrap_or_default();
            let event = match &mut self.state {
                // States that take many bytes at once.
                State::Text { escaped } => match skip::string_end(rest, escaped) {
                    None => {
                        *at = chunk.len();
                        None
                    }
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.state = State::After;
                        None
                    }
                },
                State::Nest(nest) => match nest.skip(rest) {
                    Skipped::More => {
                        *at = chunk.len();
                        None
                    }
                    Skipped::End(end) => {
                        *at = at.saturating_add(end);
                        self.state = State::After;
                        self.params_end(*at, Kind::Object)
                    }
                    Skipped::Broken(_) => self.broken(),
                },
                State::Key(matcher) => match matcher.feed(rest) {
                    None => {
                        *at = chunk.len();
                        None
                    }
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.role = self.level.role(matcher.matched());
                        self.state = State::Colon;
                        None
                    }
                },
                State::Scalar(null) => {
                    if ends_scalar(byte) {
                        let kind = if *null == Some(NULL.len()) {
                            Kind::Null
                        } else {
                            Kind::Other
                        };
                        self.state = State::After;
                        self.params_end(*at, kind)
                    } else {
                        *null = null
                            .filter(|&seen| NULL.get(seen) == Some(&byte))
                            .map(|seen| seen.saturating_add(1));
                        *at = at.saturating_add(1);
                        None
                    }
                }
                // States of one byte.
                State::Mark(seen) => {
                    if MARK.get(*seen) == Some(&byte) {
                        *seen = seen.saturating_add(1);
                        *at = at.saturating_add(1);
                        if *seen == MARK.len() {
                            self.state = State::Before;
                        }
                        None
                    } else if *seen == 0 {
                        self.state = State::Before;
                        None
                    } else {
                        self.broken()
                    }
                }
                State::Done => return None,
                _ => {
                    let here = *at;
                    *at = at.saturating_add(1);
                    if is_space(byte) {
                        None
                    } else {
                        self.step(byte, here)
                    }
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// One byte that is no white space, at index `at`, between strings and scalars.
    fn step(&mut self, byte: u8, at: usize) -> Option<Event> {
        match (&self.state, byte) {
            (State::Before, b'{') => {
                self.state = State::First;
                None
            }
            (State::First | State::Next, b'"') => {
                if matches!(self.level, Level::Top) {
                    self.any_member = true;
                }
                self.state = State::Key(KeyMatcher::new(self.level.names(self.places)));
                None
            }
            (State::Colon, b':') => {
                self.state = State::Value;
                None
            }
            (State::Value, _) => self.value(byte, at),
            (State::After, b',') => {
                self.state = State::Next;
                None
            }
            (State::First | State::After, b'}') => match self.level {
                Level::Top => {
                    self.state = State::Done;
                    Some(Event::Close {
                        at,
                        empty: !self.any_member,
                    })
                }
                Level::SamplingParams => {
                    self.level = Level::Top;
                    self.state = State::After;
                    None
                }
                Level::ExtraArgs => {
                    self.level = Level::SamplingParams;
                    self.state = State::After;
                    None
                }
            },
            _ => self.broken(),
        }
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8, at: usize) -> Option<Event> {
        let role = self.role;
        self.state = match byte {
            b'"' => State::Text { escaped: false },
            b'[' => State::Nest(Nest::new(true)),
            b'{' if role == Role::Inner => {
                self.level = match self.level {
                    Level::Top => Level::SamplingParams,
                    Level::SamplingParams | Level::ExtraArgs => Level::ExtraArgs,
                };
                self.role = Role::Plain;
                State::First
            }
            b'{' => State::Nest(Nest::new(false)),
            _ if ends_scalar(byte) => return self.broken(),
            _ => State::Scalar((NULL.first() == Some(&byte)).then_some(1)),
        };
        match role {
            Role::Plain => None,
            Role::Inner => Some(Event::NestedAfresh),
            Role::Params => {
                let kind = match byte {
                    b'{' => Kind::Object,
                    b'n' => Kind::Null,
                    _ => {
                        self.role = Role::Plain;
                        Kind::Other
                    }
                };
                Some(Event::Params {
                    at,
                    nested: self.is_nested(),
                    kind,
                })
            }
        }
    }

    /// At the end of an object or scalar.
    fn params_end(&mut self, at: usize, kind: Kind) -> Option<Event> {
        (self.role == Role::Params).then(|| Event::ParamsEnd {
            at,
            nested: self.is_nested(),
            kind,
        })
    }

    fn is_nested(&self) -> bool {
        matches!(self.level, Level::ExtraArgs)
    }

    fn broken(&mut self) -> Option<Event> {
        self.state = State::Done;
        Some(Event::Broken)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Whether a number or literal ends before this byte. Its spelling is the engine's business.
fn ends_scalar(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// All events with indices of the whole text, for one way to split it.
    fn events(places: Places, text: &[u8], split: usize) -> Vec<Event> {
        let mut scanner = Scanner::new(places);
        let mut all = Vec::new();
        for (base, chunk) in [(0, &text[..split]), (split, &text[split..])] {
            let mut at = 0;
            while let Some(event) = scanner.next(chunk, &mut at) {
                all.push(match event {
                    Event::Params { at, nested, kind } => Event::Params {
                        at: base + at,
                        nested,
                        kind,
                    },
                    Event::ParamsEnd { at, nested, kind } => Event::ParamsEnd {
                        at: base + at,
                        nested,
                        kind,
                    },
                    Event::Close { at, empty } => Event::Close {
                        at: base + at,
                        empty,
                    },
                    other => other,
                });
            }
        }
        all
    }

    fn params(at: usize, nested: bool, kind: Kind) -> Event {
        Event::Params { at, nested, kind }
    }

    fn end(at: usize, nested: bool, kind: Kind) -> Event {
        Event::ParamsEnd { at, nested, kind }
    }

    fn close(at: usize, empty: bool) -> Event {
        Event::Close { at, empty }
    }

    fn check(places: Places, table: &[(&str, Vec<Event>)]) {
        for (text, expected) in table {
            for split in 0..=text.len() {
                let found = events(places, text.as_bytes(), split);
                assert_eq!(&found, expected, "{text} split at {split}");
            }
        }
    }

    #[test]
    fn finds_the_top_level_member() {
        check(
            Places::TopLevel,
            &[
                ("{}", vec![close(1, true)]),
                (" {\n} trailing {", vec![close(3, true)]),
                ("\u{feff}{}", vec![close(4, true)]),
                (
                    r#"{"kv_transfer_params":{"a":{}} ,"b":1}"#,
                    vec![
                        params(22, false, Kind::Object),
                        end(30, false, Kind::Object),
                        close(37, false),
                    ],
                ),
                (
                    r#"{"kv_transfer_params" : null}"#,
                    vec![
                        params(24, false, Kind::Null),
                        end(28, false, Kind::Null),
                        close(28, false),
                    ],
                ),
                (
                    r#"{"kv_transfer_params":nulls }"#,
                    vec![
                        params(22, false, Kind::Null),
                        end(27, false, Kind::Other),
                        close(28, false),
                    ],
                ),
                (
                    r#"{"kv_transfer_params":NaN}"#,
                    vec![params(22, false, Kind::Other), close(25, false)],
                ),
                (
                    r#"{"a":"\"kv_transfer_params\":{","kv_transfer_params":[{}]}"#,
                    vec![params(53, false, Kind::Other), close(57, false)],
                ),
                (
                    r#"{"a":{"kv_transfer_params":{}},"b":[{"kv_transfer_params":null}]}"#,
                    vec![close(64, false)],
                ),
                (
                    r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#,
                    vec![close(59, false)],
                ),
            ],
        );
    }

    #[test]
    fn finds_both_places_of_generate() {
        check(
            Places::TopLevelOrNested,
            &[
                (
                    r#"{"sampling_params":{"a":1,"extra_args":{"kv_transfer_params":{}}},"kv_transfer_params":"x"}"#,
                    vec![
                        Event::NestedAfresh,
                        Event::NestedAfresh,
                        params(61, true, Kind::Object),
                        end(63, true, Kind::Object),
                        params(87, false, Kind::Other),
                        close(90, false),
                    ],
                ),
                (
                    r#"{"sampling_params":{"kv_transfer_params":{},"extra_args":5},"extra_args":{"kv_transfer_params":{}}}"#,
                    vec![Event::NestedAfresh, Event::NestedAfresh, close(98, false)],
                ),
                (
                    r#"{"sampling_params":[],"sampling_params":{},"x":{"kv_transfer_params":1}}"#,
                    vec![Event::NestedAfresh, Event::NestedAfresh, close(71, false)],
                ),
            ],
        );
    }

    #[test]
    fn refuses_what_is_no_object() {
        let texts: &[&[u8]] = &[
            b"[]",
            b"1",
            b"\"{}\"",
            b"x{}",
            b"\xef\xbb{}",
            b"\xef\xbb\xbf\xef\xbb\xbf{}",
            b" \xef\xbb\xbf{}",
            b"\xff\xfe{\0}\0",
            b"{\0\"\0",
            b"{,}",
            b"{a:1}",
            b"{'a':1}",
            b"{\"a\"}",
            b"{\"a\" 1}",
            b"{\"a\"::1}",
            b"{\"a\":}",
            b"{\"a\":,}",
            b"{\"a\":1,}",
            b"{\"a\":1,,\"b\":2}",
            b"{\"a\":1 2}",
            b"{\"a\":1:2}",
            b"{\"a\":1\"b\":2}",
            b"{\"a\":tru\"e\"}",
            b"{\"a\":1{}}",
            b"{\"a\":\"b\"c}",
            b"{\"a\":{]}",
            b"{\"a\":[}",
            b"{\"a\":1]",
            b"{\"a\":]}",
        ];
        for text in texts {
            for split in 0..=text.len() {
                for places in [Places::TopLevel, Places::TopLevelOrNested] {
                    let found = events(places, text, split);
                    assert_eq!(found, [Event::Broken], "{text:?} split at {split}");
                }
            }
        }
    }

    #[test]
    fn knows_whether_the_object_has_begun() {
        for (text, expected) in [("", true), (" \n", true), ("\u{feff}", true), (" {", false)] {
            let mut scanner = Scanner::new(Places::TopLevel);
            assert_eq!(scanner.next(text.as_bytes(), &mut 0), None);
            assert_eq!(scanner.before_object(), expected, "{text:?}");
        }
    }
}
