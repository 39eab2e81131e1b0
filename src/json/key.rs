//! Comparing a JSON key, decoded, with a few known names, in constant memory and across chunks.

use super::skip;

/// Follows one key from behind its opening quote. `"kv_transfer\u005fparams"` is
/// `kv_transfer_params`. Escapes that JSON does not know match nothing.
#[derive(Debug)]
pub struct KeyMatcher {
    names: &'static [&'static str],
    /// Bit `i`: all characters so far are those of `names[i]`.
    alive: u16,
    /// Decoded characters so far, while any name is alive.
    length: usize,
    escape: Escape,
}

#[derive(Clone, Copy, Debug)]
enum Escape {
    None,
    /// Behind a backslash.
    Slash,
    /// Behind `\u` and this many hexadecimal digits.
    Unicode {
        digits: u8,
        value: u16,
    },
}

impl KeyMatcher {
    /// At most 16 names, all ASCII.
    pub fn new(names: &'static [&'static str]) -> Self {
        let spare = 16_usize.saturating_sub(names.len());
        KeyMatcher {
            names,
            alive: u16::MAX
                .checked_shr(u32::try_from(spare).unwrap_or(u32::MAX))
                .unwrap_or(0),
            length: 0,
            escape: Escape::None,
        }
    }

    /// Reads on. The index of the closing quote, or None if the key goes on.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        if let Some(end) = self.whole(bytes) {
            return Some(end);
        }
        for (at, &byte) in bytes.iter().enumerate() {
            if self.alive == 0 {
                let mut escaped = matches!(self.escape, Escape::Slash);
                let end = skip::string_end(bytes.get(at..).unwrap_or_default(), &mut escaped);
                self.escape = if escaped { Escape::Slash } else { Escape::None };
                return end.map(|end| at.saturating_add(end));
            }
            match self.escape {
                Escape::None => match byte {
                    b'"' => return Some(at),
                    b'\\' => self.escape = Escape::Slash,
                    _ => self.push(byte),
                },
                Escape::Slash => {
                    self.escape = Escape::None;
                    match byte {
                        b'u' => {
                            self.escape = Escape::Unicode {
                                digits: 0,
                                value: 0,
                            }
                        }
                        b'"' | b'\\' | b'/' => self.push(byte),
                        // A control character, or no escape at all: in no name.
                        _ => self.alive = 0,
                    }
                }
                Escape::Unicode { digits, value } => match char::from(byte).to_digit(16) {
                    Some(digit) => {
                        let digit = u16::try_from(digit).unwrap_or_default();
                        let value = value.wrapping_shl(4) | digit;
                        if digits < 3 {
                            self.escape = Escape::Unicode {
                                digits: digits.saturating_add(1),
                                value,
                            };
                        } else {
                            self.escape = Escape::None;
                            // A byte past ASCII is in no name.
                            self.push(u8::try_from(value).unwrap_or(u8::MAX));
                        }
                    }
                    None => {
                        self.alive = 0;
                        self.escape = match byte {
                            b'"' => return Some(at),
                            b'\\' => Escape::Slash,
                            _ => Escape::None,
                        };
                    }
                },
            }
        }
        None
    }

    /// A name that is spelled plainly and not cut is not followed character by character.
    fn whole(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.alive == 0 || self.length != 0 || !matches!(self.escape, Escape::None) {
            return None;
        }
        let is_key = |name: &&str| {
            bytes.get(name.len()) == Some(&b'"') && bytes.starts_with(name.as_bytes())
        };
        let index = self.names.iter().position(is_key)?;
        self.alive = bit(index);
        self.length = self.names.get(index)?.len();
        Some(self.length)
    }

    /// At the closing quote: the index of the name that the key is.
    pub fn matched(&self) -> Option<usize> {
        self.names
            .iter()
            .enumerate()
            .position(|(index, name)| self.alive & bit(index) != 0 && name.len() == self.length)
    }

    fn push(&mut self, byte: u8) {
        for (index, name) in self.names.iter().enumerate() {
            if name.as_bytes().get(self.length) != Some(&byte) {
                self.alive &= !bit(index);
            }
        }
        self.length = self.length.saturating_add(1);
    }
}

fn bit(index: usize) -> u16 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u16.checked_shl(index))
        .unwrap_or(0)
}

/// The index of the name that a whole key, given without its quotes, is.
pub fn find(key: &[u8], names: &'static [&'static str]) -> Option<usize> {
    let plain = names.iter().position(|name| name.as_bytes() == key);
    if plain.is_some() || !key.contains(&b'\\') {
        return plain;
    }
    let mut matcher = KeyMatcher::new(names);
    match (matcher.feed(key), matcher.escape) {
        (None, Escape::None) => matcher.matched(),
        // Ends inside itself, or inside an escape.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NAMES: &[&str] = &["kv_transfer_params", "kv", "sampling_params"];

    /// Key text behind the opening quote, up to and with the closing one → name.
    const TABLE: &[(&str, Option<usize>)] = &[
        (r#"kv_transfer_params""#, Some(0)),
        (r#"kv_transfer\u005fparams""#, Some(0)),
        (r#"kv_transfer\u005Fparams""#, Some(0)),
        (r#"\u006b\u0076""#, Some(1)),
        (
            r#"\u0073\u0061\u006d\u0070\u006c\u0069\u006e\u0067\u005f\u0070\u0061\u0072\u0061\u006d\u0073""#,
            Some(2),
        ),
        (r#"kv""#, Some(1)),
        (r#"""#, None),
        (r#"k""#, None),
        (r#"kv_transfer_param""#, None),
        (r#"kv_transfer_params ""#, None),
        (r#"kv_transfer_paramsx""#, None),
        (r#"KV_transfer_params""#, None),
        (r#"kv_transfer\_params""#, None),
        (r#"kv_transfer\U005fparams""#, None),
        (r#"kv_transfer\u015fparams""#, None),
        (r#"kv_transfer\u5fparams""#, None),
        (r#"kv_transfer\u00""#, None),
        (r#"kv_transfer_params\u0000""#, None),
        (r#"kv_transfer_params\n""#, None),
        (r#"kv_transfer_params\u""#, None),
        (r#"kv_transfer_params\u00""#, None),
        (r#"kv_transfer_params\u005""#, None),
        (r#"kv\"""#, None),
        (r#"kv\\""#, None),
        (r#"\\kv""#, None),
        ("kv\u{e9}\"", None),
    ];

    #[test]
    fn compares_decoded_keys_at_every_split() {
        for &(text, expected) in TABLE {
            let bytes = text.as_bytes();
            for split in 0..=bytes.len() {
                let mut matcher = KeyMatcher::new(NAMES);
                let end = match matcher.feed(&bytes[..split]) {
                    Some(end) => end,
                    None => split + matcher.feed(&bytes[split..]).expect("a closing quote"),
                };
                assert_eq!(end, bytes.len() - 1, "{text} split at {split}");
                assert_eq!(matcher.matched(), expected, "{text} split at {split}");
            }
            assert_eq!(find(&bytes[..bytes.len() - 1], NAMES), expected, "{text}");
        }
    }

    #[test]
    fn a_long_key_costs_no_memory_and_matches_nothing() {
        let mut matcher = KeyMatcher::new(NAMES);
        let long = [b'k'; 1 << 16];
        for _ in 0..64 {
            assert_eq!(matcher.feed(&long), None);
        }
        assert_eq!(matcher.feed(b"\\\"\\"), None);
        assert_eq!(matcher.feed(b"\"\""), Some(1));
        assert_eq!(matcher.matched(), None);
    }
}
