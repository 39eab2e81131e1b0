//! CBOR (RFC 8949): values are read in place, and heads of items are written in the shortest form, which
//! is also the canonical one.

mod cursor;
mod item;
mod pattern;
mod runs;
mod skip;

pub use cursor::Cursor;
pub use item::{Item, Kind, List, Map};
pub use skip::MAX_NESTING;

/// Kinds of items, as the first three bits of a head.
pub mod major {
    pub const UINT: u8 = 0;
    pub const NEGATIVE: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const ARRAY: u8 = 4;
    pub const MAP: u8 = 5;
}

pub const NULL: u8 = 0xf6;

/// Where encoded bytes go: a buffer, or a hash.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The head of an item; `n` is its value or its length.
#[inline]
pub fn head<S: Sink>(out: &mut S, major: u8, n: u64) {
    let major = major.wrapping_shl(5);
    // One call of a fixed length a case: no loop over a length known only at run time.
    if let Ok(n) = u8::try_from(n) {
        if n < 24 {
            out.put(&[major | n]);
        } else {
            out.put(&[major | 24, n]);
        }
    } else if let Ok(n) = u16::try_from(n) {
        let [a, b] = n.to_be_bytes();
        out.put(&[major | 25, a, b]);
    } else if let Ok(n) = u32::try_from(n) {
        let [a, b, c, d] = n.to_be_bytes();
        out.put(&[major | 26, a, b, c, d]);
    } else {
        out.put(&[major | 27]);
        out.put(&n.to_be_bytes());
    }
}

pub fn text<S: Sink>(out: &mut S, text: &str) {
    head(out, major::TEXT, text.len() as u64);
    out.put(text.as_bytes());
}

/// A tuple of token ids, or the items of one.
#[inline]
pub fn uints<S: Sink>(out: &mut S, numbers: &[u32]) {
    for &number in numbers {
        head(out, major::UINT, number.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn heads_are_the_shortest() {
        let table: &[(u64, &[u8])] = &[
            (0, b"\x00"),
            (23, b"\x17"),
            (24, b"\x18\x18"),
            (255, b"\x18\xff"),
            (256, b"\x19\x01\x00"),
            (65_535, b"\x19\xff\xff"),
            (65_536, b"\x1a\x00\x01\x00\x00"),
            (4_294_967_295, b"\x1a\xff\xff\xff\xff"),
            (4_294_967_296, b"\x1b\x00\x00\x00\x01\x00\x00\x00\x00"),
            (u64::MAX, b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff"),
        ];
        for (n, expected) in table {
            let mut out = Vec::new();
            head(&mut out, major::UINT, *n);
            assert_eq!(out, *expected, "{n}");
        }
    }

    #[test]
    fn the_first_three_bits_are_the_kind() {
        let mut out = Vec::new();
        head(&mut out, major::NEGATIVE, 11);
        head(&mut out, major::BYTES, 32);
        text(&mut out, "s1");
        head(&mut out, major::ARRAY, 3);
        uints(&mut out, &[1, 100, 300]);
        head(&mut out, major::MAP, 1);
        assert_eq!(out, b"\x2b\x58\x20\x62s1\x83\x01\x18\x64\x19\x01\x2c\xa1");
    }
}
