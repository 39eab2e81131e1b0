//! A writer of CBOR (RFC 8949): definite lengths, shortest heads, and other writers' items copied
//! byte by byte.

use crate::cbor::{self, major};

/// Encoded items, one after the other.
#[derive(Clone, Default, Debug)]
pub struct Out {
    bytes: Vec<u8>,
}

impl Out {
    pub fn uint(&mut self, n: u64) -> &mut Self {
        self.head(major::UINT, n)
    }

    pub fn int(&mut self, n: i64) -> &mut Self {
        match u64::try_from(n) {
            Ok(n) => self.uint(n),
            // −1 − n, which is all bits of n turned around
            Err(_) => self.head(major::NEGATIVE, !n as u64),
        }
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.head(major::TEXT, text.len() as u64)
            .raw(text.as_bytes())
    }

    /// The head of an array of `len` items.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.head(major::ARRAY, len as u64)
    }

    /// The head of a map of `len` pairs.
    pub fn map(&mut self, len: usize) -> &mut Self {
        self.head(major::MAP, len as u64)
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.raw(&[if value { 0xf5 } else { 0xf4 }])
    }

    pub fn null(&mut self) -> &mut Self {
        self.raw(&[cbor::NULL])
    }

    pub fn float(&mut self, value: f64) -> &mut Self {
        self.raw(&[0xfb]).raw(&value.to_be_bytes())
    }

    /// Items encoded already.
    pub fn raw(&mut self, items: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(items);
        self
    }

    pub(in crate::contract) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn head(&mut self, major: u8, n: u64) -> &mut Self {
        cbor::head(&mut self.bytes, major, n);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_kind_of_item() {
        let mut out = Out::default();
        out.map(2).text("a").array(3).bool(true).bool(false).null();
        out.text(&"x".repeat(24)).float(2.5);
        out.int(0).int(-1).int(-25).int(i64::MIN);
        let expected =
            b"\xa2\x61a\x83\xf5\xf4\xf6\x78\x18xxxxxxxxxxxxxxxxxxxxxxxx\xfb\x40\x04\0\0\0\0\0\0\
              \x00\x20\x38\x18\x3b\x7f\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(out.as_slice(), expected);
        assert_eq!(out.len(), out.clone().into_bytes().len());
    }
}
