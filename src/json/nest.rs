//! Past a value nobody looks into, whatever is nested in it: a block of bytes at a time, not a byte,
//! and all brackets of a block at once.

use super::block::{self, BLOCK, Block, Escapes, Nesting};
use super::skip::{BLOCKS_FIRST, before, is_structural, string_end};

/// Inside an object or array that is skipped: strings and brackets only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nest {
    /// Open brackets; a 64-bit count cannot overflow within a stream.
    depth: u64,
    /// Bit `d`: the bracket opened at depth `d` is a square one, for the first [`CHECKED`] depths.
    /// Deeper down brackets are only counted, so that nesting costs nothing. No bit is set from
    /// `depth` on.
    square: u64,
    inside_string: bool,
    /// The next byte is, inside a string.
    escaped: bool,
}

const CHECKED: u64 = u64::BITS as u64;

/// Where a [`Nest`] ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It was closed by the byte before this index.
    End(usize),
    /// The closing bracket at this index is of the wrong kind.
    Broken(usize),
}

impl Nest {
    /// Behind an opening bracket.
    pub fn new(square: bool) -> Self {
        Nest {
            depth: 1,
            square: u64::from(square),
            inside_string: false,
            escaped: false,
        }
    }

    /// Past these bytes, or up to where it ends. None: it goes on.
    #[inline(never)]
    pub fn skip(&mut self, bytes: &[u8]) -> Option<Stop> {
        let nesting = Nesting::new().kept();
        // A copy, which the compiler keeps in registers.
        let mut nest = *self;
        let mut rest = bytes;
        let mut blocks = BLOCKS_FIRST;
        let mut mixed = 0;
        let mut padded;
        let stop = loop {
            let (block, behind) = match rest.split_first_chunk() {
                Some(split) => split,
                None if rest.is_empty() => break None,
                None => {
                    // Spaces change nothing outside strings, nor in them.
                    padded = [b' '; BLOCK];
                    for (to, from) in padded.iter_mut().zip(rest) {
                        *to = *from;
                    }
                    (&padded, &[][..])
                }
            };
            let length = rest.len().min(BLOCK);
            if blocks == 0 {
                if let Some((run, behind)) = rest.split_first_chunk()
                    && !nesting.any_structure(run)
                {
                    rest = behind;
                    continue;
                }
                blocks = BLOCKS_FIRST;
            }
            if mixed == 0 && !nest.escaped {
                let behind = nest.plain(rest, &nesting);
                if behind.len() < rest.len() {
                    rest = behind;
                    blocks = BLOCKS_FIRST;
                    continue;
                }
            }
            match nest.block(block, length, &nesting, &mut mixed) {
                Step::Nothing => blocks = blocks.saturating_sub(1),
                Step::On => blocks = BLOCKS_FIRST,
                Step::Text => {
                    let mut escaped = nest.escaped;
                    let end = string_end(behind, &mut escaped);
                    nest.escaped = escaped && end.is_none();
                    let Some(end) = end else {
                        break None;
                    };
                    nest.inside_string = false;
                    rest = behind.get(end.saturating_add(1)..).unwrap_or_default();
                    blocks = BLOCKS_FIRST;
                    continue;
                }
                Step::Stop(stop) => break Some((stop, rest)),
            }
            rest = behind;
        };
        *self = nest;
        stop.map(|(stop, rest)| stop.behind(before(bytes, rest)))
    }

    /// Past blocks like most of most values: with quotes, without square brackets and backslashes,
    /// which one test tells. What is behind them.
    #[inline(never)]
    fn plain<'a>(&mut self, mut rest: &'a [u8], nesting: &Nesting) -> &'a [u8] {
        let mut nest = *self;
        while let Some((block, behind)) = rest.split_first_chunk() {
            let block = Block::new(block);
            if block.any_square_or_slash(nesting) {
                break;
            }
            let quotes = block.quotes(&nesting.quoting);
            let strings = nest.strings(quotes);
            let (open, close) = block.curly_brackets(nesting);
            let brackets = Brackets::new(open, close, u64::MAX, strings);
            if quotes == 0 || !nest.at_once(&brackets) {
                break;
            }
            nest.inside_string = strings.leading_zeros() == 0;
            rest = behind;
        }
        *self = nest;
        rest
    }

    /// `length`: how many of the bytes there are; the others are spaces.
    /// `mixed`: for how many blocks square brackets and backslashes are expected; where they come and
    /// go, a test for them would be guessed wrong.
    #[inline]
    fn block(
        &mut self,
        bytes: &[u8; BLOCK],
        length: usize,
        nesting: &Nesting,
        mixed: &mut u32,
    ) -> Step {
        const EXPECT: u32 = 16;
        let block = Block::new(bytes);
        let slashes = block.slashes(&nesting.quoting);
        let escapes = match slashes {
            0 if !self.escaped => Escapes::NONE,
            _ => Escapes::new(slashes, self.escaped),
        };
        let quotes = block.quotes(&nesting.quoting) & !escapes.escaped;
        if quotes == 0 && self.inside_string {
            self.escaped = escapes.behind(length);
            return Step::Text;
        }
        let strings = self.strings(quotes);
        if slashes & !strings != 0 {
            // Between strings, where a backslash escapes nothing: no JSON, but what comes of
            // it must not depend on how the text is cut.
            let bytes = bytes.get(..length).unwrap_or_default();
            return self.rest(bytes).map_or(Step::On, Step::Stop);
        }
        let (open, close) = block.brackets(nesting);
        let brackets = Brackets::new(open, close, block.curly(), strings);
        *mixed = match slashes | brackets.square() {
            0 => mixed.saturating_sub(1),
            _ => EXPECT,
        };
        self.escaped = escapes.behind(length);
        let all = brackets.open | brackets.close;
        if !self.at_once(&brackets)
            && let Some(stop) = self.one_by_one(all, bytes)
        {
            self.inside_string = false;
            self.escaped = false;
            return Step::Stop(stop);
        }
        self.inside_string = strings.leading_zeros() == 0;
        if quotes | all == 0 {
            Step::Nothing
        } else {
            Step::On
        }
    }

    /// From each opening quote of a block up to its closing one.
    #[inline]
    fn strings(&self, quotes: u64) -> u64 {
        let around = if self.inside_string { u64::MAX } else { 0 };
        block::parity(quotes) ^ around
    }

    /// The brackets at these bits.
    #[cold]
    #[inline(never)]
    fn one_by_one(&mut self, mut brackets: u64, bytes: &[u8; BLOCK]) -> Option<Stop> {
        while let Some(index) = block::take_lowest(&mut brackets) {
            let byte = bytes.get(index).copied().unwrap_or_default();
            let stop = self.stop(index, byte);
            if stop.is_some() {
                return stop;
            }
        }
        None
    }

    /// Byte by byte.
    fn rest(&mut self, bytes: &[u8]) -> Option<Stop> {
        for (index, &byte) in bytes.iter().enumerate() {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'"' {
                self.inside_string = !self.inside_string;
            } else if self.inside_string {
                self.escaped = byte == b'\\';
            } else if is_structural(byte) {
                let stop = self.stop(index, byte);
                if stop.is_some() {
                    return stop;
                }
            }
        }
        None
    }

    /// The bracket at this index. None: the value goes on.
    #[inline]
    fn stop(&mut self, index: usize, byte: u8) -> Option<Stop> {
        match self.bracket(byte) {
            None => Some(Stop::Broken(index)),
            Some(0) => Some(Stop::End(index.saturating_add(1))),
            Some(_) => None,
        }
    }

    /// A bracket outside strings: how many are open behind it. None if it closes one that is known
    /// to be of the other kind.
    #[inline]
    pub fn bracket(&mut self, byte: u8) -> Option<u64> {
        match byte {
            b'{' => self.open(false),
            b'[' => self.open(true),
            _ => {
                if !self.close(byte == b']') {
                    return None;
                }
            }
        }
        Some(self.depth)
    }

    #[inline]
    fn open(&mut self, square: bool) {
        if self.depth < CHECKED {
            self.square |= u64::from(square).rotate_left(bits(self.depth));
        }
        self.depth = self.depth.saturating_add(1);
    }

    /// False if the bracket that is closed is known to be of the other kind.
    #[inline]
    fn close(&mut self, square: bool) -> bool {
        self.depth = self.depth.saturating_sub(1);
        if self.depth >= CHECKED {
            return true;
        }
        let bit = 1_u64.rotate_left(bits(self.depth));
        let was_square = self.square & bit != 0;
        self.square &= !bit;
        was_square == square
    }

    /// The brackets of one block. False if they are to be gone through one by one; then nothing has
    /// changed.
    #[inline(always)]
    fn at_once(&mut self, brackets: &Brackets) -> bool {
        let Brackets { open, close, curly } = *brackets;
        // Pairs with no bracket in between never take the depth below what it was before them.
        let paired = brackets.next(open) & close;
        let curly_paired = brackets.next(open & curly) & close;
        let unpaired = close & !paired;
        let least = self.depth.saturating_sub(u64::from(unpaired.count_ones()));
        let square_opens = (open & !curly).count_ones();
        let square_pairs = (paired & !curly).count_ones();
        // Square brackets in pairs alone, each pair of one kind; all others curly, on top of curly
        // ones: whatever of them belongs together is of one kind.
        let of_one_kind = (curly_paired ^ paired & curly) | unpaired & !curly == 0
            && square_opens == square_pairs
            && (least >= CHECKED || self.square.wrapping_shr(bits(least)) == 0);
        if least == 0 || !of_one_kind {
            return false;
        }
        let opens = u64::from(open.count_ones());
        let closes = u64::from(close.count_ones());
        self.depth = self.depth.wrapping_add(opens).wrapping_sub(closes);
        true
    }
}

/// A depth below [`CHECKED`] as a bit position.
#[inline]
fn bits(depth: u64) -> u32 {
    u32::try_from(depth & (CHECKED - 1)).unwrap_or(0)
}

/// The brackets of a block that are outside strings.
struct Brackets {
    open: u64,
    close: u64,
    /// The curly ones of them; other bytes may be in it.
    curly: u64,
}

impl Brackets {
    #[inline]
    fn new(open: u64, close: u64, curly: u64, strings: u64) -> Self {
        Brackets {
            open: open & !strings,
            close: close & !strings,
            curly,
        }
    }

    #[inline]
    fn square(&self) -> u64 {
        (self.open | self.close) & !self.curly
    }

    /// The next bracket behind each of these brackets.
    #[inline]
    fn next(&self, these: u64) -> u64 {
        let all = self.open | self.close;
        let behind = these.wrapping_shl(1);
        // Added to the gap that it begins, a bit carries to the bracket at the end of the gap.
        let carried = (!all).wrapping_add(behind & !all);
        (carried | behind) & all
    }
}

/// What a piece of a value came to. Indices are those of the piece.
enum Step {
    /// Outside strings, and it has neither quotes nor brackets.
    Nothing,
    On,
    /// Inside a string that began before.
    Text,
    Stop(Stop),
}

impl Stop {
    /// With indices from so many bytes before.
    fn behind(self, bytes: usize) -> Self {
        match self {
            Stop::End(at) => Stop::End(bytes.saturating_add(at)),
            Stop::Broken(at) => Stop::Broken(bytes.saturating_add(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// [`Nest::skip`], the same way.
    pub(super) fn plain_skip(nest: &mut Nest, bytes: &[u8]) -> Option<Stop> {
        nest.rest(bytes)
    }

    /// [`Nest::skip`] over both pieces, as if the text had come whole.
    pub(super) fn skip_in_two(nest: &mut Nest, text: &[u8], cut: usize) -> Option<Stop> {
        let first = nest.skip(&text[..cut]);
        first.or_else(|| Some(nest.skip(&text[cut..])?.behind(cut)))
    }

    #[test]
    fn finds_the_end_of_a_value_at_every_split() {
        // Text behind the opening square bracket.
        let table: &[(&[u8], Option<Stop>)] = &[
            (b"]", Some(Stop::End(1))),
            (b"1,2,3] ]", Some(Stop::End(6))),
            (b"[[{}]],{\"]\":\"\\\"]\"}]", Some(Stop::End(19))),
            (b"}", Some(Stop::Broken(0))),
            (b"{]", Some(Stop::Broken(1))),
            (b"[{}}]", Some(Stop::Broken(3))),
            (b"\"]\"", None),
            (b"[]", None),
        ];
        for &(text, expected) in table {
            for split in 0..=text.len() {
                let mut nest = Nest::new(true);
                let found = skip_in_two(&mut nest, text, split);
                assert_eq!(found, expected, "{text:?} split at {split}");
            }
        }
    }

    #[test]
    fn kinds_are_checked_for_the_first_64_depths_and_counted_below() {
        // The first bracket stands before the text, so `outer` more make the wrong pair number
        // `outer` + 2.
        for (outer, expected) in [
            (0, Some(Stop::Broken(1))),
            (62, Some(Stop::Broken(63))),
            (63, Some(Stop::End(129))),
            (1000, Some(Stop::End(2003))),
        ] {
            let text = ["[".repeat(outer), "{]".into(), "]".repeat(outer + 1)].concat();
            assert_eq!(Nest::new(true).skip(text.as_bytes()), expected, "{outer}");
        }
    }

    #[test]
    fn stretches_that_are_passed_in_runs_lose_nothing() {
        // What stands behind a long stretch, wherever that ends in a block or a run.
        let tails: [&[u8]; 6] = [
            br#"""#,
            br#"\"" "#,
            br#"\\""#,
            br#"\\\"]","x"]"#,
            br#"",[1,2],{"a":"b"}]"#,
            b"]",
        ];
        for (tail, length) in tails
            .iter()
            .flat_map(|tail| (500..580).map(move |n| (tail, n)))
        {
            for (byte, inside_string) in [(b'x', true), (b'\\', true), (b'1', false)] {
                let stretch = vec![byte; length];
                let text = [&stretch, *tail, &stretch, tail].concat();
                let mut plain = Nest {
                    inside_string,
                    ..Nest::new(true)
                };
                let mut nest = plain;
                let expected = plain_skip(&mut plain, &text);
                let context = format!("{length} of {byte}, {tail:?}");
                assert_eq!((nest.skip(&text), nest), (expected, plain), "{context}");
            }
        }
    }

    /// Every order of up to six brackets, around each of them enough for a block to end there.
    #[test]
    fn all_brackets_of_a_block_come_to_the_same_as_one_by_one() {
        let kinds = b"[]{}";
        for length in 1..=6 {
            for order in 0..4_usize.pow(length) {
                let brackets: Vec<u8> = (0..length).map(|i| kinds[order >> (2 * i) & 3]).collect();
                for gap in [0, 1, 9] {
                    let mut text = b",\"]\",".repeat(gap);
                    for bracket in &brackets {
                        text.push(*bracket);
                        text.resize(text.len() + gap, b'1');
                    }
                    text.resize(text.len() + BLOCK, b' ');
                    for outer in [&b""[..], b"{", b"[", b"{[", b"{{", b"[{"] {
                        let start = outer.iter().fold(Nest::new(true), |mut nest, bracket| {
                            nest.bracket(*bracket);
                            nest
                        });
                        let (mut nest, mut plain) = (start, start);
                        let expected = plain_skip(&mut plain, &text);
                        let context = String::from_utf8_lossy(&text);
                        assert_eq!(nest.skip(&text), expected, "{outer:?} {context}");
                        assert_eq!(nest, plain, "{outer:?} {context}");
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
mod properties {
    use super::tests::{plain_skip, skip_in_two};
    use super::*;
    use crate::json::skip::properties::text;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// Mostly JSON: now and then a bracket that closes what it must not.
    fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
        let piece = (0..100_u32, 0..90_usize);
        vec(piece, 0..150).prop_map(|pieces| {
            let mut open = Vec::new();
            let mut text = Vec::new();
            for (kind, length) in pieces {
                match kind {
                    0..20 => open.push((b'{', b'}')),
                    20..30 => open.push((b'[', b']')),
                    30..55 => text.extend(open.pop().map(|(_, close)| close)),
                    55 if length < 3 => text.push(b']'),
                    56 if length < 3 => text.push(b'}'),
                    55..80 => {
                        text.push(b'"');
                        text.extend_from_slice(&br#"a{\"[\\}:,"#[..length % 11 / 2 * 2]);
                        text.resize(text.len() + length / 2, b'x');
                        text.push(b'"');
                    }
                    _ => text.extend_from_slice(&b"12,345, 6"[..length % 9]),
                }
                if kind < 30 {
                    text.extend(open.last().map(|(open, _)| open));
                }
            }
            text
        })
    }

    /// Over every cut, from every kind of start.
    fn holds(
        text: &[u8],
        start: Nest,
        cuts: impl Iterator<Item = usize>,
    ) -> Result<(), TestCaseError> {
        let mut plain = start;
        let expected = plain_skip(&mut plain, text);
        for cut in cuts {
            let mut nest = start;
            let found = skip_in_two(&mut nest, text, cut);
            prop_assert_eq!(found, expected, "cut at {}", cut);
            prop_assert_eq!(nest, plain, "cut at {}", cut);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn a_value_ends_where_it_ends_byte_by_byte(
            text in prop_oneof![text(), nearly_json()],
            square in any::<bool>(),
            inside_string in any::<bool>(),
            escaped in any::<bool>(),
            depth in select(vec![1, 2, 3, 5, 62, 63, 64, 65]),
            squares in any::<u64>(),
        ) {
            let mut nest = Nest::new(square);
            for level in 1..depth {
                nest.bracket(if squares >> (level % 64) & 1 == 1 { b'[' } else { b'{' });
            }
            nest.inside_string = inside_string;
            nest.escaped = inside_string && escaped;
            holds(&text, nest, 0..=text.len())?;
        }
    }
}
