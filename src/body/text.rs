//! Reading a complete piece of JSON text strictly, without recursion.

use crate::json::skip;

/// A strict reader of JSON text; every method is None, or false, if the text is not what it says.
pub(super) struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Text { bytes, at: 0 }
    }

    /// The index of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn step(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes);
    }

    pub fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.step(1);
        }
        found
    }

    pub fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    pub fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.step(1);
        }
    }

    /// A string; its inside.
    #[inline(never)]
    pub fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = self.rest();
        let end = skip::string_end(rest, &mut false)?;
        self.step(end.saturating_add(1));
        rest.get(..end)
    }

    /// A whole value, nested as deeply as it likes: open brackets are one bit each, on the heap.
    pub fn value(&mut self) -> Option<()> {
        let mut open = Brackets::default();
        loop {
            // A value begins here.
            match self.peek()? {
                b'{' => {
                    self.step(1);
                    self.space();
                    if !self.eat(b'}') {
                        open.push(false);
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    self.step(1);
                    self.space();
                    if !self.eat(b']') {
                        open.push(true);
                        continue;
                    }
                }
                b'"' => {
                    self.string()?;
                }
                b'0'..=b'9' => self.number()?,
                _ => self.scalar()?,
            }
            // A value ended here, and perhaps those around it.
            loop {
                let Some(square) = open.last() else {
                    return Some(());
                };
                self.space();
                if self.eat(b',') {
                    self.space();
                    if !square {
                        self.key()?;
                    }
                    break;
                }
                self.expect(if square { b']' } else { b'}' })?;
                open.pop();
            }
        }
    }

    /// A key, its colon and the white space up to the value.
    #[inline(never)]
    fn key(&mut self) -> Option<()> {
        self.string()?;
        self.space();
        self.expect(b':')?;
        self.space();
        Some(())
    }

    #[inline(never)]
    fn scalar(&mut self) -> Option<()> {
        const LITERALS: [&[u8]; 6] = [
            b"true",
            b"false",
            b"null",
            b"NaN",
            b"Infinity",
            b"-Infinity",
        ];
        let rest = self.rest();
        match LITERALS.iter().find(|literal| rest.starts_with(literal)) {
            Some(literal) => self.step(literal.len()),
            None => self.number()?,
        }
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        Some(())
    }

    #[inline(never)]
    fn digits(&mut self) -> Option<()> {
        let count = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.step(count);
        (count > 0).then_some(())
    }
}

/// A stack of bracket kinds, eight to a byte.
#[derive(Default)]
struct Brackets {
    bits: Vec<u8>,
    /// Used bits of the last byte, 1 to 8; 0 if there is none.
    used: u32,
}

impl Brackets {
    fn push(&mut self, square: bool) {
        if self.used.is_multiple_of(8) {
            self.bits.push(0);
            self.used = 0;
        }
        if let Some(last) = self.bits.last_mut() {
            *last = last.wrapping_shl(1) | u8::from(square);
            self.used = self.used.saturating_add(1);
        }
    }

    /// True for a square bracket.
    fn last(&self) -> Option<bool> {
        self.bits.last().map(|last| last & 1 == 1)
    }

    fn pop(&mut self) {
        if let Some(last) = self.bits.last_mut() {
            *last = last.wrapping_shr(1);
            self.used = self.used.saturating_sub(1);
            if self.used == 0 {
                self.bits.pop();
                self.used = if self.bits.is_empty() { 0 } else { 8 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Whether the text is exactly one value.
    fn is_value(text: &str) -> bool {
        let mut reader = Text::new(text.as_bytes());
        reader.value().is_some() && reader.peek().is_none()
    }

    #[test]
    fn takes_every_value_that_the_engine_takes() {
        for text in [
            "0",
            "-0",
            "10",
            "0.5",
            "-1.25e-10",
            "1E+5",
            "1e400",
            "123456789012345678901234567890",
            "true",
            "false",
            "null",
            "NaN",
            "Infinity",
            "-Infinity",
            "\"\"",
            r#""a\"\\""#,
            r#""\ud83d\q""#,
            "[]",
            "[ ]",
            "{}",
            "{ }",
            "[1,[2,{\"a\":[]}] , {} ]",
            "{\"a\":1 , \"a\" : [{}]}",
        ] {
            assert!(is_value(text), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            " ",
            "-",
            "+1",
            "01",
            "-01",
            "1.",
            ".5",
            "1e",
            "1e+",
            "0x1",
            "1_0",
            "--1",
            "-NaN",
            "nan",
            "nul",
            "nulll",
            "True",
            "infinity",
            "'a'",
            "\"",
            "\"\\\"",
            "[",
            "]",
            "[1",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1:2]",
            "{",
            "}",
            "{]",
            "[}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\" 1}",
            "{1:1}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":1}}",
            "[{\"a\":[1}]]",
        ] {
            assert!(!is_value(text), "{text}");
        }
    }

    #[test]
    fn nesting_costs_a_bit_a_level() {
        let depth = 100_000;
        let kinds = |open: [&str; 2], close: [&str; 2]| {
            let opened: String = (0..depth).map(|level| open[level % 2]).collect();
            let closed: String = (0..depth).rev().map(|level| close[level % 2]).collect();
            format!("{opened}1{closed}")
        };
        assert!(is_value(&kinds(["[", "{\"a\":"], ["]", "}"])));
        assert!(!is_value(&kinds(["[", "{\"a\":"], ["]", "]"])));
        assert!(!is_value(&kinds(["[", "{\"a\":"], ["}", "]"])));
    }
}
