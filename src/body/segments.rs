//! Bytes that grow by chunks and are never moved: a vector that grows leaves holes as large as itself
//! behind, in a memory that WebAssembly cannot give back.

use std::borrow::Cow;
use std::ops::Range;

/// Room of a segment, unless one chunk is larger.
const ROOM: usize = 64 * 1024;

#[derive(Default, Debug)]
pub(super) struct Segments {
    /// None is empty.
    segments: Vec<Vec<u8>>,
    len: usize,
}

impl Segments {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `bytes`; a new segment has room for at most `more` bytes beside them. False, with
    /// nothing changed, if there is no memory.
    pub fn push(&mut self, bytes: &[u8], more: usize) -> bool {
        let spare = self.segments.last().map_or(0, |last| {
            last.capacity().saturating_sub(last.len()).min(bytes.len())
        });
        let (here, beyond) = bytes.split_at_checked(spare).unwrap_or((bytes, &[]));
        if !beyond.is_empty() {
            // As much again as is held already, so that many small chunks make few segments.
            let room = self.len.min(more).min(ROOM.saturating_sub(beyond.len()));
            let mut segment = Vec::new();
            if segment
                .try_reserve_exact(beyond.len().saturating_add(room))
                .is_err()
                || self.segments.try_reserve(1).is_err()
            {
                return false;
            }
            segment.extend_from_slice(beyond);
            self.fill(here);
            self.segments.push(segment);
        } else {
            self.fill(here);
        }
        self.len = self.len.saturating_add(bytes.len());
        true
    }

    /// Into the room that the last segment has.
    fn fill(&mut self, bytes: &[u8]) {
        if let Some(last) = self.segments.last_mut() {
            last.extend_from_slice(bytes);
        }
    }

    /// The parts of a range, in order; what lies outside is left out.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let mut start = 0usize;
        self.segments.iter().filter_map(move |segment| {
            let from = range.start.saturating_sub(start).min(segment.len());
            let to = range.end.saturating_sub(start).min(segment.len());
            start = start.saturating_add(segment.len());
            segment.get(from..to).filter(|part| !part.is_empty())
        })
    }

    /// A range in one slice: copied only if it lies in several segments.
    pub fn slice(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        let mut parts = self.parts(range.clone());
        let first = parts.next().unwrap_or_default();
        if first.len() == range.len() {
            return Cow::Borrowed(first);
        }
        let mut whole = Vec::with_capacity(range.len());
        whole.extend_from_slice(first);
        parts.for_each(|part| whole.extend_from_slice(part));
        Cow::Owned(whole)
    }

    pub fn truncate(&mut self, len: usize) {
        let mut kept = 0usize;
        self.segments.retain_mut(|segment| {
            segment.truncate(len.saturating_sub(kept));
            kept = kept.saturating_add(segment.len());
            !segment.is_empty()
        });
        self.len = kept;
    }

    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.segments.len() <= 1 {
            return self.segments.pop().unwrap_or_default();
        }
        self.slice(0..self.len).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn of(chunks: &[&[u8]]) -> Segments {
        let mut segments = Segments::default();
        for chunk in chunks {
            // No room beside them: a segment each.
            assert!(segments.push(chunk, 0));
        }
        segments
    }

    #[test]
    fn ranges_are_what_a_vector_would_give() {
        let segments = of(&[b"abc", b"", b"d", b"efgh"]);
        assert_eq!((segments.len(), segments.segments.len()), (8, 3));
        let whole = b"abcdefgh";
        for start in 0..=8 {
            for end in start..=8 {
                let slice = segments.slice(start..end);
                assert_eq!(slice, &whole[start..end], "{start}..{end}");
                let parts: Vec<_> = segments.parts(start..end).collect();
                assert_eq!(parts.concat(), &whole[start..end], "{start}..{end}");
                let within = [0..3, 3..4, 4..8]
                    .iter()
                    .any(|s| s.start <= start && end <= s.end);
                let borrowed = matches!(slice, Cow::Borrowed(_));
                assert_eq!(borrowed, within || start == end, "{start}..{end}");
            }
        }
        assert_eq!(segments.slice(6..20), &b"gh"[..]);
        assert_eq!(segments.into_bytes(), whole);
    }

    #[test]
    fn truncating_leaves_the_beginning() {
        for len in 0..=9 {
            let mut segments = of(&[b"abc", b"d", b"efgh"]);
            segments.truncate(len);
            assert_eq!(segments.len(), len.min(8));
            assert_eq!(segments.into_bytes(), &b"abcdefgh"[..len.min(8)]);
        }
    }

    #[test]
    fn small_chunks_share_segments_and_large_ones_have_their_own() {
        let mut segments = Segments::default();
        for _ in 0..200_000 {
            assert!(segments.push(b"x", usize::MAX));
        }
        // 1, 2, 4, … 64 KiB, then one for each 64 KiB.
        assert_eq!(segments.segments.len(), 17 + 2);
        assert!(segments.push(&[b'y'; 3 * ROOM], usize::MAX));
        let last = segments.segments.last().unwrap();
        assert_eq!(last.len(), last.capacity());
        assert_eq!(segments.len(), 200_000 + 3 * ROOM);
        assert_eq!(segments.slice(199_999..200_001), &b"xy"[..]);
    }

    #[test]
    fn room_is_never_more_than_allowed() {
        let mut segments = of(&[b"abcd"]);
        assert!(segments.push(b"e", 1));
        assert_eq!(segments.segments[1].capacity(), 2);
    }
}
