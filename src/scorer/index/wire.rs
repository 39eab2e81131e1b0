//! The flat binary form of the index's records: numbers as LEB128, texts with their length.

/// Bytes written so far.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Out {
    pub bytes: Vec<u8>,
}

impl Out {
    pub fn byte(&mut self, byte: u8) -> &mut Self {
        self.bytes.push(byte);
        self
    }

    /// LEB128: 7 bits a byte, the low ones first.
    pub fn number(&mut self, mut n: u64) -> &mut Self {
        while n >= 0x80 {
            self.bytes.push(0x80 | (n & 0x7f) as u8);
            n >>= 7;
        }
        self.byte(n as u8)
    }

    /// 8 bytes, little endian.
    pub fn word(&mut self, n: u64) -> &mut Self {
        self.bytes.extend_from_slice(&n.to_le_bytes());
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }
}

/// Bytes left to read. `None` means that this version did not write them.
#[derive(Clone, Copy, Debug)]
pub(super) struct In<'a> {
    pub rest: &'a [u8],
}

impl<'a> In<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    pub fn number(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits {
                return None;
            }
            n |= shifted;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    pub fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*word))
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_written_is_read() {
        let numbers = [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX];
        let mut out = Out::default();
        for n in numbers {
            out.number(n);
        }
        out.word(u64::MAX).text("10.0.0.7:8000").byte(9);
        let mut rest = In { rest: &out.bytes };
        for n in numbers {
            assert_eq!(rest.number(), Some(n));
        }
        assert_eq!(rest.word(), Some(u64::MAX));
        assert_eq!(rest.text(), Some("10.0.0.7:8000"));
        assert_eq!((rest.byte(), rest.byte()), (Some(9), None));
        let mut short = Out::default();
        assert_eq!(short.number(300).bytes, [0xac, 0x02]);
    }

    #[test]
    fn what_nobody_wrote_is_refused() {
        let number = |rest: &[u8]| In { rest }.number();
        assert_eq!(number(&[]), None);
        assert_eq!(number(&[0x80]), None);
        assert_eq!(number(&[0xff; 20]), None);
        let mut past = [0x80; 10];
        past[9] = 2;
        assert_eq!(number(&past), None);
        past[9] = 1;
        assert_eq!(number(&past), Some(1 << 63));
        let text = |rest: &[u8]| In { rest }.text().map(str::to_owned);
        assert_eq!(text(b"\x02a"), None);
        assert_eq!(text(b"\x01\xff"), None);
        assert_eq!(In { rest: &[0; 7] }.word(), None);
    }
}
