//! Reads a text that is kept, decoded.

use super::MAX_TEXT_BYTES;
use super::token_list::Read;
use crate::json::skip;

/// A string, decoded. One that is no valid text (invalid UTF-8, a lone surrogate, a control
/// character, an unknown escape) or too long is read to its end and is None.
#[derive(Debug, Default)]
pub(super) struct TextReader {
    text: Vec<u8>,
    state: State,
    /// The first half of a pair of `\u` escapes.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Plain,
    /// Behind a backslash.
    Slash,
    /// Behind `\u` and this many digits.
    Unicode { digits: u8, value: u16 },
    /// It is None whatever follows.
    Lost { escaped: bool },
}

impl TextReader {
    /// Behind the opening quote.
    pub fn new() -> Self {
        TextReader::default()
    }

    /// Reads on from `*at`, which moves, to behind the closing quote.
    pub fn feed(&mut self, chunk: &[u8], at: &mut usize) -> Read<Option<String>> {
        while let Some(&byte) = chunk.get(*at) {
            if let State::Lost { escaped } = &mut self.state {
                let rest = chunk.get(*at..).unwrap_or_default();
                return match skip::string_end(rest, escaped) {
                    None => {
                        *at = chunk.len();
                        Read::More
                    }
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        Read::End(None)
                    }
                };
            }
            *at = at.saturating_add(1);
            if byte == b'"' && matches!(self.state, State::Plain) {
                let text = std::mem::take(&mut self.text);
                let whole = self.high.is_none();
                return Read::End(String::from_utf8(text).ok().filter(|_| whole));
            }
            if self.byte(byte).is_none() {
                // Reads the byte again: it may be the closing quote, or a backslash.
                *at = at.saturating_sub(1);
                self.lose(matches!(self.state, State::Slash));
            } else if self.text.len() > MAX_TEXT_BYTES {
                self.lose(false);
            }
        }
        Read::More
    }

    fn lose(&mut self, escaped: bool) {
        self.text = Vec::new();
        self.state = State::Lost { escaped };
    }

    /// None: it is no text.
    fn byte(&mut self, byte: u8) -> Option<()> {
        match self.state {
            State::Plain if byte == b'\\' => self.state = State::Slash,
            State::Plain => {
                if byte < b' ' || self.high.is_some() {
                    return None;
                }
                self.text.push(byte);
            }
            State::Slash if byte == b'u' => {
                self.state = State::Unicode {
                    digits: 0,
                    value: 0,
                };
            }
            State::Slash => {
                let byte = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 0x08,
                    b'f' => 0x0c,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return None,
                };
                if self.high.is_some() {
                    return None;
                }
                self.text.push(byte);
                self.state = State::Plain;
            }
            State::Unicode { digits, value } => {
                let digit = u16::try_from(char::from(byte).to_digit(16)?).ok()?;
                let value = value.wrapping_shl(4) | digit;
                if digits < 3 {
                    self.state = State::Unicode {
                        digits: digits.saturating_add(1),
                        value,
                    };
                } else {
                    self.state = State::Plain;
                    self.unit(value)?;
                }
            }
            State::Lost { .. } => return None,
        }
        Some(())
    }

    /// A UTF-16 code unit from an escape.
    fn unit(&mut self, unit: u16) -> Option<()> {
        let decoded = match self.high.take() {
            None if is_high(unit) => {
                self.high = Some(unit);
                return Some(());
            }
            None => char::decode_utf16([unit]).next()?.ok()?,
            Some(high) => char::decode_utf16([high, unit]).next()?.ok()?,
        };
        let mut utf8 = [0; 4];
        let utf8 = decoded.encode_utf8(&mut utf8);
        self.text.extend_from_slice(utf8.as_bytes());
        Some(())
    }
}

/// Whether it is the first half of a surrogate pair.
fn is_high(unit: u16) -> bool {
    (0xD800..0xDC00).contains(&unit)
}
