//! A resumable walk through one JSON object, looking for members by name.
//!
//! It checks the grammar (keys, colons, values, commas) of the objects it walks through: the
//! top-level one, and those in it that its user asks it to enter. Every other value it skips by
//! quotes and brackets, unless its user reads it.

use super::key::KeyMatcher;
use super::nest::{Nest, Stop};
use super::skip;
use super::{ends_scalar, is_space};

/// Keys to look for in one object; at most 16, all ASCII.
pub type Names = &'static [&'static str];

/// What comes next. Indices are those of the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The value of the key `names[name]` begins with `byte`, at this index. It is skipped, unless
    /// [`Walker::enter`] or [`Walker::take`] is called now.
    Value { at: usize, byte: u8, name: usize },
    /// That value was skipped and ended before this index. `null`: it is `null`.
    End { at: usize, null: bool },
    /// The object entered last is closed.
    Leave,
    /// The closing brace of the top-level object is at this index. `empty`: it has no member.
    Close { at: usize, empty: bool },
    /// No JSON object, or broken.
    Broken,
}

#[derive(Debug)]
pub struct Walker {
    state: State,
    /// Names in the object being walked through.
    names: Names,
    /// Those of the objects around it.
    outer: [Names; MAX_DEPTH],
    depth: usize,
    /// The value that is skipped is one that was asked for.
    named: bool,
    /// The top-level object has a member.
    any_member: bool,
}

/// Objects entered within each other, the top-level one not counted.
const MAX_DEPTH: usize = 2;

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
    /// Behind a key; which name it is.
    Colon(Option<usize>),
    Value(Option<usize>),
    Text {
        escaped: bool,
    },
    /// A number or literal; how much of `null` it has been so far.
    Scalar(Option<usize>),
    Nest(Nest),
    /// Behind a value: a comma or the closing brace.
    After,
    /// A value that the user reads.
    Taken,
    /// Closed, or broken: nothing more is read.
    Done,
}

const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
const NULL: &[u8] = b"null";

impl Walker {
    /// `names` are those of the top-level object.
    pub fn new(names: Names) -> Self {
        Walker {
            state: State::Mark(0),
            names,
            outer: [&[]; MAX_DEPTH],
            depth: 0,
            named: false,
            any_member: false,
        }
    }

    /// True if the opening brace has not been seen.
    pub fn before_object(&self) -> bool {
        matches!(self.state, State::Mark(_) | State::Before)
    }

    /// How many objects are around the one being walked through; 0 for the top-level one.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// After [`Step::Value`] with an opening brace: walks through that object instead of skipping
    /// it. False, and it is skipped, if it is too deep.
    pub fn enter(&mut self, names: Names) -> bool {
        let Some(outer) = self.outer.get_mut(self.depth) else {
            return false;
        };
        *outer = std::mem::replace(&mut self.names, names);
        self.depth = self.depth.saturating_add(1);
        self.named = false;
        self.state = State::First;
        true
    }

    /// After [`Step::Value`]: the user reads the value itself, from behind its first byte, and then
    /// calls [`Self::taken`]. Until then nothing is to be read here.
    pub fn take(&mut self) {
        self.named = false;
        self.state = State::Taken;
    }

    /// The value that was taken has been read to its end.
    pub fn taken(&mut self) {
        self.state = State::After;
    }

    /// Reads on from `*at`, which moves, to the next step; None once the chunk is used up.
    pub fn next(&mut self, chunk: &[u8], at: &mut usize) -> Option<Step> {
        while let Some(&byte) = chunk.get(*at) {
            let rest = chunk.get(*at..).unwrap_or_default();
            let step = match &mut self.state {
                // States that take many bytes at once.
                State::Text { escaped } => match skip::string_end(rest, escaped) {
                    None => {
                        *at = chunk.len();
                        None
                    }
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.end(*at, false)
                    }
                },
                State::Nest(nest) => match nest.skip(rest) {
                    None => {
                        *at = chunk.len();
                        None
                    }
                    Some(Stop::End(end)) => {
                        *at = at.saturating_add(end);
                        self.end(*at, false)
                    }
                    Some(Stop::Broken(_)) => self.broken(),
                },
                State::Key(matcher) => match matcher.feed(rest) {
                    None => {
                        *at = chunk.len();
                        None
                    }
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.state = State::Colon(matcher.matched());
                        None
                    }
                },
                State::Scalar(null) => {
                    if ends_scalar(byte) {
                        let null = *null == Some(NULL.len());
                        self.end(*at, null)
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
                State::Taken | State::Done => return None,
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
            if step.is_some() {
                return step;
            }
        }
        None
    }

    /// One byte that is no white space, at index `at`, between strings and scalars.
    fn step(&mut self, byte: u8, at: usize) -> Option<Step> {
        match (&self.state, byte) {
            (State::Before, b'{') => {
                self.state = State::First;
                None
            }
            (State::First | State::Next, b'"') => {
                if self.depth == 0 {
                    self.any_member = true;
                }
                self.state = State::Key(KeyMatcher::new(self.names));
                None
            }
            (&State::Colon(name), b':') => {
                self.state = State::Value(name);
                None
            }
            (&State::Value(name), _) => self.value(name, byte, at),
            (State::After, b',') => {
                self.state = State::Next;
                None
            }
            (State::First | State::After, b'}') => match self.depth.checked_sub(1) {
                None => {
                    self.state = State::Done;
                    Some(Step::Close {
                        at,
                        empty: !self.any_member,
                    })
                }
                Some(depth) => {
                    self.depth = depth;
                    self.names = self.outer.get(depth).copied().unwrap_or_default();
                    self.state = State::After;
                    Some(Step::Leave)
                }
            },
            _ => self.broken(),
        }
    }

    /// The first byte of a value.
    fn value(&mut self, name: Option<usize>, byte: u8, at: usize) -> Option<Step> {
        self.state = match byte {
            b'"' => State::Text { escaped: false },
            b'[' => State::Nest(Nest::new(true)),
            b'{' => State::Nest(Nest::new(false)),
            _ if ends_scalar(byte) => return self.broken(),
            _ => State::Scalar((NULL.first() == Some(&byte)).then_some(1)),
        };
        self.named = name.is_some();
        name.map(|name| Step::Value { at, byte, name })
    }

    /// A value that was skipped has ended.
    fn end(&mut self, at: usize, null: bool) -> Option<Step> {
        self.state = State::After;
        self.named.then_some(Step::End { at, null })
    }

    fn broken(&mut self) -> Option<Step> {
        self.state = State::Done;
        Some(Step::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NAMES: Names = &["a", "b"];

    /// Every step of a whole text; values of `a` are entered, those of `b` are taken and end
    /// behind the next full stop.
    fn steps(text: &str) -> Vec<Step> {
        let mut walker = Walker::new(NAMES);
        let mut all = Vec::new();
        let mut at = 0;
        while let Some(step) = walker.next(text.as_bytes(), &mut at) {
            all.push(step);
            match step {
                Step::Value { name: 0, .. } => {
                    walker.enter(NAMES);
                }
                Step::Value { .. } => {
                    walker.take();
                    assert_eq!(walker.next(text.as_bytes(), &mut at), None);
                    // The first byte has been read.
                    let rest = &text.as_bytes()[at - 1..];
                    at += rest.iter().position(|&b| b == b'.').expect("a full stop");
                    walker.taken();
                }
                _ => {}
            }
        }
        all
    }

    fn value(at: usize, byte: u8, name: usize) -> Step {
        Step::Value { at, byte, name }
    }

    #[test]
    fn values_that_are_taken_are_their_users() {
        assert_eq!(
            steps("{\"b\":'{]\"'. ,\"c\":1}"),
            [
                value(5, b'\'', 1),
                Step::Close {
                    at: 18,
                    empty: false
                }
            ]
        );
    }

    #[test]
    fn objects_are_entered_down_to_a_depth() {
        assert_eq!(
            steps(r#"{"a":{"a":{"a":{"b":1}},"b":.},"b":.}"#),
            [
                value(5, b'{', 0),
                value(10, b'{', 0),
                // Skipped.
                value(15, b'{', 0),
                Step::End {
                    at: 22,
                    null: false
                },
                Step::Leave,
                value(28, b'.', 1),
                Step::Leave,
                value(35, b'.', 1),
                Step::Close {
                    at: 36,
                    empty: false
                },
            ]
        );
    }
}
