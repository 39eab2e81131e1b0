//! One chunk on its way through.

use super::Output;

/// A chunk and what becomes of it: nothing is copied before something has to change.
pub(super) struct Piece<'c> {
    pub chunk: &'c [u8],
    /// Bytes of the chunk that are dealt with: copied to `out`, replaced, or held.
    pub copied: usize,
    /// As many bytes of the chunk stay where they are, in front of `out`.
    stay: usize,
    out: Option<Vec<u8>>,
}

impl<'c> Piece<'c> {
    /// Room for the largest insertion, so that it seldom makes the output grow.
    const INSERTION: usize = 96;
    /// So many bytes are worth not copying. They are the first half at least: those behind them are
    /// copied twice.
    const WORTH: usize = 1024;

    pub fn new(chunk: &'c [u8]) -> Self {
        Piece {
            chunk,
            copied: 0,
            stay: 0,
            out: None,
        }
    }

    pub fn out(&mut self) -> &mut Vec<u8> {
        self.out_for(0)
    }

    /// The output, with room for `more` bytes beside the chunk's.
    pub fn out_for(&mut self, more: usize) -> &mut Vec<u8> {
        self.out.get_or_insert_with(|| {
            Vec::with_capacity(
                self.chunk
                    .len()
                    .saturating_sub(self.stay)
                    .saturating_add(more)
                    .saturating_add(Self::INSERTION),
            )
        })
    }

    /// What is not dealt with yet.
    pub fn line(&self) -> &'c [u8] {
        self.chunk.get(self.copied..).unwrap_or_default()
    }

    /// Copies the chunk up to `at`.
    pub fn copy_to(&mut self, at: usize) {
        if self.out.is_none() && self.copied == 0 && at >= Self::WORTH.max(self.chunk.len() / 2) {
            self.stay = at;
        } else {
            let bytes = self.chunk.get(self.copied..at).unwrap_or_default();
            self.out().extend_from_slice(bytes);
        }
        self.copied = at;
    }

    pub fn finish(mut self) -> Output {
        if self.out.is_some() {
            self.copy_to(self.chunk.len());
        }
        match self.out {
            Some(bytes) if self.stay > 0 => Output::ReplaceFrom {
                start: self.stay,
                bytes,
            },
            // An empty chunk cannot be taken out.
            Some(out) if !(out.is_empty() && self.chunk.is_empty()) => Output::Replace(out),
            _ => Output::Pass,
        }
    }
}
