//! Where `kv_transfer_params` counts, found in a body as it streams by.

use super::Places;
use crate::json::walker::{Names, Step, Walker};

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
    walker: Walker,
    /// What the params value that is being skipped began as, if its end is to be told.
    open: Option<Kind>,
}

/// The depths of the walk.
const TOP: usize = 0;
const SAMPLING_PARAMS: usize = 1;

const PARAMS: Names = &["kv_transfer_params"];
const PARAMS_OR_SAMPLING_PARAMS: Names = &["kv_transfer_params", "sampling_params"];
const EXTRA_ARGS: Names = &["extra_args"];

impl Scanner {
    pub fn new(places: Places) -> Self {
        Scanner {
            walker: Walker::new(match places {
                Places::TopLevel => PARAMS,
                Places::TopLevelOrNested => PARAMS_OR_SAMPLING_PARAMS,
            }),
            open: None,
        }
    }

    /// True if the opening brace has not been seen.
    pub fn before_object(&self) -> bool {
        self.walker.before_object()
    }

    /// Reads on from `*at`, which moves, to the next event; None once the chunk is used up.
    pub fn next(&mut self, chunk: &[u8], at: &mut usize) -> Option<Event> {
        loop {
            match self.walker.next(chunk, at)? {
                Step::Value { at, byte, name } => return Some(self.value(at, byte, name)),
                Step::End { at, null } => {
                    if let Some(kind) = self.open.take() {
                        return Some(Event::ParamsEnd {
                            at,
                            nested: self.is_nested(),
                            kind: match kind {
                                Kind::Null if !null => Kind::Other,
                                kind => kind,
                            },
                        });
                    }
                }
                Step::Leave => {}
                Step::Close { at, empty } => return Some(Event::Close { at, empty }),
                Step::Broken => return Some(Event::Broken),
            }
        }
    }

    /// A value with a name begins.
    fn value(&mut self, at: usize, byte: u8, name: usize) -> Event {
        let depth = self.walker.depth();
        if depth == SAMPLING_PARAMS || (depth == TOP && name != 0) {
            if byte == b'{' {
                self.walker.enter(match depth {
                    TOP => EXTRA_ARGS,
                    _ => PARAMS,
                });
            }
            return Event::NestedAfresh;
        }
        let kind = match byte {
            b'{' => Kind::Object,
            b'n' => Kind::Null,
            _ => Kind::Other,
        };
        self.open = (kind != Kind::Other).then_some(kind);
        Event::Params {
            at,
            nested: self.is_nested(),
            kind,
        }
    }

    /// In `sampling_params.extra_args`.
    fn is_nested(&self) -> bool {
        self.walker.depth() > SAMPLING_PARAMS
    }
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
