//! Reads a value that may be token ids: a list of integers, or a list of such lists. In strict JSON
//! as Python's decoder takes it; once the value is something else it is skipped.

use super::{Limits, MAX_PROMPTS, Text, Unknown};
use crate::json::nest::{Nest, Stop};
use crate::json::skip;
use crate::json::{ends_scalar, is_space};

/// The prompts of a request, as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenPrompts {
    tokens: Vec<u32>,
    /// Where each prompt ends in `tokens`.
    ends: Vec<usize>,
}

impl TokenPrompts {
    /// One prompt of these tokens; there is none if they are empty.
    pub fn one(tokens: Vec<u32>) -> Self {
        TokenPrompts {
            ends: (!tokens.is_empty())
                .then_some(tokens.len())
                .into_iter()
                .collect(),
            tokens,
        }
    }

    /// In the order of the request; none is empty.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| self.tokens.get(start..end).unwrap_or_default())
    }
}

/// What the value turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Null,
    Tokens,
    Text(Text),
    Unknown(Unknown),
}

/// What a reader makes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read<T> {
    /// The value goes on.
    More,
    /// It has ended; the first byte behind it is where reading stopped.
    End(T),
    /// It is no JSON.
    Broken,
}

impl<T> Read<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Read<U> {
        match self {
            Read::More => Read::More,
            Read::End(value) => Read::End(f(value)),
            Read::Broken => Read::Broken,
        }
    }
}

/// Which forms the member takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forms {
    /// One list of ids.
    Ids,
    /// The same, a list of lists of ids, a text, or a list of texts.
    Prompts,
}

#[derive(Debug)]
pub(super) struct TokenList {
    limits: Limits,
    forms: Forms,
    prompts: TokenPrompts,
    /// Bytes taken out of the budget.
    reserved: usize,
    state: State,
    /// What the elements of the outer list are.
    elements: Elements,
    /// In a list in the list.
    inner: bool,
    /// Why it is no tokens; then the rest is skipped.
    unknown: Option<Unknown>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Elements {
    None,
    Ids,
    Lists,
    Texts,
}

#[derive(Debug)]
enum State {
    /// Behind an opening bracket: an element or the closing bracket.
    First,
    /// Behind a comma: an element.
    Next,
    Number(Number),
    /// `true` or `false`, and how many of its bytes there were.
    Literal(bool, usize),
    /// A text in the list.
    Text {
        escaped: bool,
    },
    /// Behind an element: a comma or the closing bracket.
    After,
    /// The rest of a list that is no tokens.
    Skip(Nest),
}

/// The digits so far.
#[derive(Clone, Copy, Default, Debug)]
struct Number {
    negative: bool,
    digits: Digits,
    /// Past `u32::MAX` it counts no further.
    value: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Digits {
    #[default]
    None,
    /// A zero, behind which no digit may follow.
    Zero,
    Some,
}

impl TokenList {
    pub fn new(forms: Forms, limits: Limits) -> Self {
        TokenList {
            limits,
            forms,
            prompts: TokenPrompts::default(),
            reserved: 0,
            state: State::First,
            elements: Elements::None,
            inner: false,
            unknown: None,
        }
    }

    /// Behind the opening bracket of a value; whatever an earlier one said is forgotten.
    pub fn begin(&mut self) {
        self.clear();
        self.state = State::First;
        self.elements = Elements::None;
        self.inner = false;
        self.unknown = None;
    }

    /// The tokens, after [`Value::Tokens`].
    pub fn take(&mut self) -> TokenPrompts {
        let prompts = std::mem::take(&mut self.prompts);
        self.clear();
        prompts
    }

    /// Frees what is kept.
    pub fn clear(&mut self) {
        self.prompts = TokenPrompts::default();
        self.limits.budget.give_back(self.reserved);
        self.reserved = 0;
    }

    /// Reads on from `*at`, which moves.
    pub fn feed(&mut self, chunk: &[u8], at: &mut usize) -> Read<Value> {
        while let Some(&byte) = chunk.get(*at) {
            let rest = chunk.get(*at..).unwrap_or_default();
            match &mut self.state {
                State::Number(number) => {
                    let digits = number.feed(rest);
                    *at = at.saturating_add(digits);
                    let Some(&byte) = rest.get(digits) else {
                        break;
                    };
                    let number = *number;
                    if number.digits == Digits::None {
                        // `-Infinity` is one more that Python takes.
                        if byte != b'I' {
                            return Read::Broken;
                        }
                        self.refuse(Unknown::Malformed);
                    } else if ends_scalar(byte) {
                        match number.token() {
                            Some(token) => self.push(token),
                            None => self.refuse(Unknown::Malformed),
                        }
                    } else if matches!(byte, b'.' | b'e' | b'E') {
                        self.refuse(Unknown::Malformed);
                    } else {
                        return Read::Broken;
                    }
                }
                State::Literal(value, seen) => {
                    let text: &[u8] = if *value { b"true" } else { b"false" };
                    if text.get(*seen) == Some(&byte) {
                        *seen = seen.saturating_add(1);
                        *at = at.saturating_add(1);
                    } else if *seen == text.len() && ends_scalar(byte) {
                        let token = u32::from(*value);
                        self.push(token);
                    } else {
                        return Read::Broken;
                    }
                }
                State::Text { escaped } => match skip::string_end(rest, escaped) {
                    None => *at = chunk.len(),
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.state = State::After;
                    }
                },
                State::Skip(nest) => match nest.skip(rest) {
                    None => *at = chunk.len(),
                    Some(Stop::End(end)) => {
                        *at = at.saturating_add(end);
                        return Read::End(self.value());
                    }
                    Some(Stop::Broken(_)) => return Read::Broken,
                },
                State::First | State::Next | State::After if is_space(byte) => {
                    *at = at.saturating_add(1);
                }
                State::First | State::After if byte == b']' => {
                    *at = at.saturating_add(1);
                    if self.list_ends() {
                        return Read::End(self.value());
                    }
                }
                State::After => {
                    if byte != b',' {
                        return Read::Broken;
                    }
                    *at = at.saturating_add(1);
                    self.state = State::Next;
                }
                State::Next if byte.is_ascii_digit() => {
                    let plain = self.plain_ids(rest);
                    *at = at.saturating_add(plain);
                    // The last one of the chunk or list, or one of another kind.
                    if plain == 0 && self.element(byte).is_none() {
                        return Read::Broken;
                    }
                }
                // The byte is read again if the element is none that is looked into.
                State::First | State::Next => match self.element(byte) {
                    Some(true) => *at = at.saturating_add(1),
                    Some(false) => {}
                    None => return Read::Broken,
                },
            }
        }
        Read::More
    }

    /// The bulk of a list: ids in a few plain digits, each with its comma. How many bytes they are;
    /// where they end, another element begins.
    fn plain_ids(&mut self, bytes: &[u8]) -> usize {
        /// As many as fit `u32` whatever they are.
        const MAX_DIGITS: u32 = 9;
        if !self.inner && self.elements != Elements::Ids {
            return 0;
        }
        let mut done = 0;
        let mut value = 0_u32;
        let mut digits = 0_u32;
        for (at, &byte) in bytes.iter().enumerate() {
            let digit = byte.wrapping_sub(b'0');
            if digit <= 9 {
                let leading_zero = digits > 0 && value == 0;
                if digits == MAX_DIGITS || leading_zero {
                    break;
                }
                value = value.wrapping_mul(10).wrapping_add(digit.into());
                digits = digits.wrapping_add(1);
            } else if byte == b',' && digits > 0 {
                self.push(value);
                if !matches!(self.state, State::After) {
                    return at;
                }
                self.state = State::Next;
                done = at.saturating_add(1);
                value = 0;
                digits = 0;
            } else if byte != b' ' || digits > 0 {
                break;
            }
        }
        done
    }

    /// The first byte of an element. True if it has been read, None if it begins nothing.
    fn element(&mut self, byte: u8) -> Option<bool> {
        let kind = match byte {
            b'0'..=b'9' | b'-' | b't' | b'f' => Elements::Ids,
            b'"' => Elements::Texts,
            b'[' => Elements::Lists,
            _ if ends_scalar(byte) && byte != b'{' => return None,
            _ => Elements::None,
        };
        let fits = match (self.inner, kind) {
            (_, Elements::None) => false,
            (true, kind) => kind == Elements::Ids,
            (false, Elements::Ids) => matches!(self.elements, Elements::None | Elements::Ids),
            (false, kind) => {
                self.forms == Forms::Prompts
                    && (self.elements == Elements::None || self.elements == kind)
            }
        };
        if !fits {
            self.refuse(Unknown::Malformed);
            return Some(false);
        }
        if !self.inner {
            self.elements = kind;
        }
        match byte {
            b'-' => {
                self.state = State::Number(Number {
                    negative: true,
                    ..Number::default()
                });
            }
            b't' | b'f' => self.state = State::Literal(byte == b't', 1),
            b'"' => {
                self.state = State::Text { escaped: false };
            }
            b'[' => {
                self.inner = true;
                self.state = State::First;
            }
            _ => {
                self.state = State::Number(Number::default());
                return Some(false);
            }
        }
        Some(true)
    }

    /// A closing bracket has been read; true if it was that of the value.
    fn list_ends(&mut self) -> bool {
        let outer = !std::mem::take(&mut self.inner);
        self.state = State::After;
        let problem = match self.elements {
            Elements::Lists | Elements::Texts if outer => None,
            _ => self.prompt_ends().err(),
        };
        match problem {
            Some(unknown) if outer => {
                self.clear();
                self.unknown = Some(unknown);
            }
            Some(unknown) => self.refuse(unknown),
            None => {}
        }
        outer
    }

    fn prompt_ends(&mut self) -> Result<(), Unknown> {
        let start = self.prompts.ends.last().copied().unwrap_or(0);
        let end = self.prompts.tokens.len();
        if start == end {
            return Err(Unknown::Malformed);
        }
        if self.prompts.ends.len() >= MAX_PROMPTS {
            return Err(Unknown::TooLarge);
        }
        self.prompts.ends.push(end);
        Ok(())
    }

    #[inline]
    fn push(&mut self, token: u32) {
        let tokens = &mut self.prompts.tokens;
        if tokens.len() < tokens.capacity() || self.grow() {
            self.prompts.tokens.push(token);
            self.state = State::After;
        } else {
            self.refuse(Unknown::TooLarge);
        }
    }

    /// Makes room for more tokens; false at a limit.
    #[cold]
    fn grow(&mut self) -> bool {
        /// What a short prompt needs.
        const FIRST: usize = 1_024;
        let tokens = &mut self.prompts.tokens;
        let held = tokens.len();
        let room = held.max(FIRST / 2).saturating_mul(2);
        let more = room.min(self.limits.max_prompt_tokens).saturating_sub(held);
        let bytes = more.saturating_mul(size_of::<u32>());
        if more == 0 || !self.limits.budget.reserve(bytes) {
            return false;
        }
        self.reserved = self.reserved.saturating_add(bytes);
        tokens.try_reserve_exact(more).is_ok()
    }

    /// It is no tokens: skips the rest of the list, from the byte read last on.
    fn refuse(&mut self, unknown: Unknown) {
        self.clear();
        self.unknown = Some(unknown);
        let mut nest = Nest::new(true);
        if self.inner {
            nest.skip(b"[");
        }
        self.state = State::Skip(nest);
    }

    fn value(&self) -> Value {
        match (self.unknown, self.elements) {
            (Some(unknown), _) => Value::Unknown(unknown),
            (None, Elements::Texts) => Value::Text(Text::Several),
            (None, Elements::Ids | Elements::Lists) => Value::Tokens,
            (None, Elements::None) => Value::Unknown(Unknown::Malformed),
        }
    }
}

impl Drop for TokenList {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Number {
    /// Reads digits; how many. It stops at the first digit behind a leading zero.
    #[inline]
    fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut count = 0_usize;
        for &byte in bytes {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 || self.digits == Digits::Zero {
                break;
            }
            self.digits = match (self.digits, digit) {
                (Digits::None, 0) => Digits::Zero,
                _ => Digits::Some,
            };
            if self.value <= u64::from(u32::MAX) {
                self.value = self
                    .value
                    .saturating_mul(10)
                    .saturating_add(u64::from(digit));
            }
            count = count.saturating_add(1);
        }
        count
    }

    /// The id; None if it is none. `-0` is the integer 0.
    fn token(self) -> Option<u32> {
        match u32::try_from(self.value) {
            Ok(token) if token == 0 || !self.negative => Some(token),
            _ => None,
        }
    }
}
