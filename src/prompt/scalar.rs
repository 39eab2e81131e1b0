//! Reads a number or literal of which only a few values matter.

use super::token_list::Read;
use crate::json::ends_scalar;

/// A number or literal: its text, if it is short enough to matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScalarReader {
    text: [u8; MAX_SCALAR],
    /// Past [`MAX_SCALAR`] it counts no further.
    length: usize,
}

/// The digits of `u64::MAX`.
const MAX_SCALAR: usize = 20;

/// What a number or literal says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    /// In plain digits.
    Integer(u64),
    Other,
}

impl ScalarReader {
    /// With its first byte.
    pub fn new(first: u8) -> Self {
        let mut reader = ScalarReader {
            text: [0; MAX_SCALAR],
            length: 0,
        };
        reader.push(first);
        reader
    }

    /// Reads on from `*at`, which moves, to the first byte that is not its own.
    pub fn feed(&mut self, chunk: &[u8], at: &mut usize) -> Read<Scalar> {
        while let Some(&byte) = chunk.get(*at) {
            if ends_scalar(byte) {
                return Read::End(self.scalar());
            }
            self.push(byte);
            *at = at.saturating_add(1);
        }
        Read::More
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    fn scalar(&self) -> Scalar {
        match self.text.get(..self.length) {
            Some(b"null") => Scalar::Null,
            Some(b"true") => Scalar::Bool(true),
            Some(b"false") => Scalar::Bool(false),
            // A plus sign, which JSON does not know, would parse.
            Some(text) if text.iter().all(u8::is_ascii_digit) => str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .map_or(Scalar::Other, Scalar::Integer),
            _ => Scalar::Other,
        }
    }
}
