//! Past values nobody looks into: a block of bytes at a time, not a byte.

use super::block::{self, BLOCK, Block, RUN};

/// Inside a string: the index of the closing quote, or None if the string goes on behind `bytes`.
/// `escaped` says whether the first byte stands behind a backslash, and afterwards whether the next
/// one does.
pub fn string_end(bytes: &[u8], escaped: &mut bool) -> Option<usize> {
    scan(bytes, &mut Text { escaped })
}

struct Text<'e> {
    escaped: &'e mut bool,
}

impl Scan for Text<'_> {
    type Found = usize;

    #[inline]
    fn run(&mut self, run: &[u8; RUN]) -> bool {
        if block::any_quote(run) {
            return false;
        }
        *self.escaped = is_escaped(run, *self.escaped);
        true
    }

    #[inline]
    fn block(&mut self, before: usize, block: Block, bytes: &[u8]) -> Step<usize> {
        let quotes = block.quotes();
        if quotes != 0 {
            let closing = quotes & !block::escaped(block.slashes(), *self.escaped);
            if let Some(first) = block::lowest(closing) {
                return Step::Found(before.saturating_add(first));
            }
        }
        *self.escaped = is_escaped(bytes, *self.escaped);
        Step::On { quiet: quotes == 0 }
    }
}

/// How to look at bytes, see [`scan`].
trait Scan {
    type Found;

    /// True if there is nothing in all of these bytes, and they are dealt with.
    fn run(&mut self, run: &[u8; RUN]) -> bool;

    /// One block, whose first byte has the index `before`, and its bytes: fewer than [`BLOCK`] at
    /// the end.
    fn block(&mut self, before: usize, block: Block, bytes: &[u8]) -> Step<Self::Found>;
}

/// What came of a block.
enum Step<T> {
    Found(T),
    /// `quiet`: [`Scan::run`] would be true of bytes like these.
    On {
        quiet: bool,
    },
}

/// Looks at `bytes` in blocks until something is found; where nothing was for a while, in runs.
#[inline]
fn scan<S: Scan>(bytes: &[u8], scan: &mut S) -> Option<S::Found> {
    let mut rest = bytes;
    let mut before = 0_usize;
    let mut quiet_blocks = 0_usize;
    while !rest.is_empty() {
        if quiet_blocks >= RUN / BLOCK
            && let Some((run, behind)) = rest.split_first_chunk::<RUN>()
        {
            if scan.run(run) {
                rest = behind;
                before = before.saturating_add(RUN);
                continue;
            }
            quiet_blocks = 0;
        }
        let (bytes, behind) = rest.split_at_checked(BLOCK).unwrap_or((rest, &[]));
        let block = match bytes.first_chunk() {
            Some(block) => Block::new(block),
            None => Block::short(bytes),
        };
        match scan.block(before, block, bytes) {
            Step::Found(found) => return Some(found),
            Step::On { quiet: true } => quiet_blocks = quiet_blocks.saturating_add(1),
            Step::On { quiet: false } => quiet_blocks = 0,
        }
        rest = behind;
        before = before.saturating_add(BLOCK);
    }
    None
}

/// Whether the byte behind `before`, which is inside a string, is escaped; `first` says so for the
/// first byte of `before`.
#[inline]
fn is_escaped(before: &[u8], first: bool) -> bool {
    match before.last() {
        None => first,
        Some(b'\\') => ends_escaped(before, first),
        Some(_) => false,
    }
}

fn ends_escaped(before: &[u8], first: bool) -> bool {
    let slashes = before.iter().rev().take_while(|&&b| b == b'\\').count();
    let odd = slashes % 2 == 1;
    if slashes == before.len() {
        odd != first
    } else {
        odd
    }
}

/// Inside an object or array that is skipped: strings and brackets only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nest {
    /// Open brackets; a 64-bit count cannot overflow within a stream.
    depth: u64,
    /// Bit `d`: the bracket opened at depth `d` is a square one, for the first [`CHECKED`] depths.
    /// Deeper down brackets are only counted, so that nesting costs nothing.
    square: u64,
    inside_string: bool,
    /// The next byte is, inside a string.
    escaped: bool,
}

const CHECKED: u64 = u64::BITS as u64;

/// Where a [`Nest`] stands after some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skipped {
    /// It goes on.
    More,
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

    pub fn skip(&mut self, bytes: &[u8]) -> Skipped {
        // A copy, which the compiler keeps in registers.
        let mut nest = *self;
        let skipped = scan(bytes, &mut nest);
        *self = nest;
        skipped.unwrap_or(Skipped::More)
    }

    /// Byte by byte.
    fn bytewise(&mut self, before: usize, bytes: &[u8]) -> Option<Skipped> {
        for (index, &byte) in bytes.iter().enumerate() {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'"' {
                self.inside_string = !self.inside_string;
            } else if self.inside_string {
                self.escaped = byte == b'\\';
            } else if is_structural(byte) {
                let stop = self.stop(before.saturating_add(index), byte);
                if stop.is_some() {
                    return stop;
                }
            }
        }
        None
    }

    /// The bracket at this index. None: the value goes on.
    #[inline]
    fn stop(&mut self, index: usize, byte: u8) -> Option<Skipped> {
        match self.bracket(byte) {
            None => Some(Skipped::Broken(index)),
            Some(0) => Some(Skipped::End(index.saturating_add(1))),
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
            let bit = 1_u64.rotate_left(self.depth_bits());
            if square {
                self.square |= bit;
            } else {
                self.square &= !bit;
            }
        }
        self.depth = self.depth.saturating_add(1);
    }

    /// False if the bracket that is closed is known to be of the other kind.
    #[inline]
    fn close(&mut self, square: bool) -> bool {
        self.depth = self.depth.saturating_sub(1);
        self.depth >= CHECKED || (self.square & 1_u64.rotate_left(self.depth_bits()) != 0) == square
    }

    /// The depth as a bit position; only meaningful below [`CHECKED`].
    fn depth_bits(&self) -> u32 {
        u32::try_from(self.depth).unwrap_or(0)
    }
}

impl Scan for Nest {
    type Found = Skipped;

    #[inline]
    fn run(&mut self, run: &[u8; RUN]) -> bool {
        if !self.inside_string {
            return !block::any_structure(run);
        }
        if block::any_quote(run) {
            return false;
        }
        self.escaped = is_escaped(run, self.escaped);
        true
    }

    #[inline]
    fn block(&mut self, before: usize, block: Block, bytes: &[u8]) -> Step<Skipped> {
        let around = if self.inside_string { u64::MAX } else { 0 };
        let mut quotes = block.quotes();
        if quotes == 0 && self.inside_string {
            self.escaped = is_escaped(bytes, self.escaped);
            return Step::On { quiet: true };
        }
        // From each opening quote up to its closing one.
        let strings;
        if block.has_slash() {
            let slashes = block.slashes();
            quotes &= !block::escaped(slashes, self.escaped);
            strings = block::parity(quotes) ^ around;
            if slashes & !strings != 0 {
                // Between strings, where a backslash escapes nothing: no JSON, but what comes of
                // it must not depend on how the text is cut.
                return match self.bytewise(before, bytes) {
                    Some(stop) => Step::Found(stop),
                    None => Step::On { quiet: false },
                };
            }
            self.escaped = is_escaped(bytes, self.escaped);
        } else {
            quotes &= !u64::from(std::mem::take(&mut self.escaped));
            strings = block::parity(quotes) ^ around;
        }
        let mut brackets = block.brackets() & !strings;
        let quiet = quotes | brackets == 0;
        while let Some(index) = block::take_lowest(&mut brackets) {
            let byte = bytes.get(index).copied().unwrap_or_default();
            if let Some(stop) = self.stop(before.saturating_add(index), byte) {
                self.inside_string = false;
                self.escaped = false;
                return Step::Found(stop);
            }
        }
        // As behind the last byte, which for a short block is one of the spaces behind it.
        self.inside_string = strings.leading_zeros() == 0;
        Step::On { quiet }
    }
}

fn is_structural(byte: u8) -> bool {
    // Square and curly brackets differ only in bit 0x20.
    byte == b'"' || matches!(byte | 0x20, b'{' | b'}')
}

/// The first quote or bracket.
pub fn find_structural(bytes: &[u8]) -> Option<(usize, u8)> {
    let index = scan(bytes, &mut Structure)?;
    Some((index, *bytes.get(index)?))
}

struct Structure;

impl Scan for Structure {
    type Found = usize;

    #[inline]
    fn run(&mut self, run: &[u8; RUN]) -> bool {
        !block::any_structure(run)
    }

    #[inline]
    fn block(&mut self, before: usize, block: Block, _: &[u8]) -> Step<usize> {
        match block::lowest(block.quotes() | block.brackets()) {
            Some(first) => Step::Found(before.saturating_add(first)),
            None => Step::On { quiet: true },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// [`string_end`] byte by byte, as it was first written: what the fast one is held against.
    pub(super) fn plain_string_end(bytes: &[u8], escaped: &mut bool) -> Option<usize> {
        for (index, &byte) in bytes.iter().enumerate() {
            match byte {
                _ if *escaped => *escaped = false,
                b'\\' => *escaped = true,
                b'"' => return Some(index),
                _ => {}
            }
        }
        None
    }

    /// [`Nest::skip`], the same way.
    pub(super) fn plain_skip(nest: &mut Nest, bytes: &[u8]) -> Skipped {
        nest.bytewise(0, bytes).unwrap_or(Skipped::More)
    }

    #[test]
    fn finds_the_end_of_a_string_at_every_split() {
        // Text behind the opening quote → index of the closing one.
        let table: &[(&[u8], Option<usize>)] = &[
            (br#"""#, Some(0)),
            (br#"abc" "#, Some(3)),
            (br#"a\"b""#, Some(4)),
            (br#"a\\""#, Some(3)),
            (br#"a\\\"""#, Some(5)),
            (br#"\\\\""#, Some(4)),
            (br#"\\\\\"""#, Some(6)),
            (br#"\u0022""#, Some(6)),
            (b"\xff\x00\"", Some(2)),
            (br#"abc"#, None),
            (br#"abc\"#, None),
            (br#"abc\""#, None),
        ];
        for &(text, expected) in table {
            for head in [0, 1, 14, 15, 16, 17, 40] {
                let text = [&vec![b'x'; head], text].concat();
                let expected = expected.map(|end| head + end);
                for split in 0..=text.len() {
                    let mut escaped = false;
                    let found = string_end(&text[..split], &mut escaped).or_else(|| {
                        string_end(&text[split..], &mut escaped).map(|end| split + end)
                    });
                    assert_eq!(found, expected, "{text:?} split at {split}");
                }
            }
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
            br#"]"#,
        ];
        for (tail, length) in tails
            .iter()
            .flat_map(|tail| (500..580).map(move |n| (tail, n)))
        {
            for (byte, inside_string) in [(b'x', true), (b'\\', true), (b'1', false)] {
                let text = [&vec![byte; length], *tail, &vec![byte; length], tail].concat();
                let context = format!("{length} of {byte}, {tail:?}");
                let (mut plain, mut escaped) = (false, false);
                let expected = plain_string_end(&text, &mut plain);
                assert_eq!(string_end(&text, &mut escaped), expected, "{context}");
                assert!(expected.is_some() || escaped == plain, "{context}");

                let mut plain = Nest {
                    inside_string,
                    ..Nest::new(true)
                };
                let mut nest = plain;
                let expected = plain_skip(&mut plain, &text);
                assert_eq!((nest.skip(&text), nest), (expected, plain), "{context}");
            }
        }
    }

    #[test]
    fn finds_the_end_of_a_value_at_every_split() {
        // Text behind the opening square bracket.
        let table: &[(&[u8], Skipped)] = &[
            (b"]", Skipped::End(1)),
            (b"1,2,3] ]", Skipped::End(6)),
            (b"[[{}]],{\"]\":\"\\\"]\"}]", Skipped::End(19)),
            (b"}", Skipped::Broken(0)),
            (b"{]", Skipped::Broken(1)),
            (b"[{}}]", Skipped::Broken(3)),
            (b"\"]\"", Skipped::More),
            (b"[]", Skipped::More),
        ];
        for &(text, expected) in table {
            for split in 0..=text.len() {
                let mut nest = Nest::new(true);
                let found = match nest.skip(&text[..split]) {
                    Skipped::More => match nest.skip(&text[split..]) {
                        Skipped::More => Skipped::More,
                        Skipped::End(at) => Skipped::End(split + at),
                        Skipped::Broken(at) => Skipped::Broken(split + at),
                    },
                    done => done,
                };
                assert_eq!(found, expected, "{text:?} split at {split}");
            }
        }
    }

    #[test]
    fn kinds_are_checked_for_the_first_64_depths_and_counted_below() {
        // The first bracket stands before the text, so `outer` more make the wrong pair number
        // `outer` + 2.
        for (outer, expected) in [
            (0, Skipped::Broken(1)),
            (62, Skipped::Broken(63)),
            (63, Skipped::End(129)),
            (1000, Skipped::End(2003)),
        ] {
            let text = ["[".repeat(outer), "{]".into(), "]".repeat(outer + 1)].concat();
            assert_eq!(Nest::new(true).skip(text.as_bytes()), expected, "{outer}");
        }
    }

    #[test]
    fn structural_bytes_are_exactly_quotes_and_brackets() {
        for byte in 0..=u8::MAX {
            assert_eq!(
                is_structural(byte),
                b"\"{}[]".contains(&byte),
                "byte {byte:#x}"
            );
        }
        for length in 0..200 {
            let mut text = vec![b'1'; length];
            assert_eq!(find_structural(&text), None);
            text.push(b']');
            text.extend_from_slice(b"[[[");
            assert_eq!(find_structural(&text), Some((length, b']')));
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
mod properties {
    use super::tests::{plain_skip, plain_string_end};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// Bytes in which quotes, backslashes and brackets meet often, in runs longer than a block too.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            6 => select(b"\"\"\"\\\\[]{}a, 1:|~\xff".to_vec()).prop_map(|b| vec![b]),
            2 => select(vec![
                &b"\"text\":"[..], b"\\\"", b"\\\\\"", b"[\"]\"]", b"{\"a\":[1]}", b"\\u005c", b"\\x\"",
            ])
            .prop_map(<[u8]>::to_vec),
            1 => (select(b"\\ax1[]\"".to_vec()), 0..150_usize).prop_map(|(b, n)| vec![b; n]),
        ];
        vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    /// The first found over the two pieces, as an index of the whole.
    fn over_a_cut<T>(
        text: &[u8],
        cut: usize,
        mut find: impl FnMut(&[u8]) -> Option<T>,
        moved: impl Fn(T, usize) -> T,
    ) -> Option<T> {
        match find(&text[..cut]) {
            None => find(&text[cut..]).map(|found| moved(found, cut)),
            found => found,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn a_string_ends_where_it_ends_byte_by_byte(text in text(), first in any::<bool>()) {
            let mut plain = first;
            let expected = plain_string_end(&text, &mut plain);
            for cut in 0..=text.len() {
                let mut escaped = first;
                let found =
                    over_a_cut(&text, cut, |bytes| string_end(bytes, &mut escaped), |a, b| a + b);
                prop_assert_eq!(found, expected, "cut at {}", cut);
                prop_assert!(found.is_some() || escaped == plain, "cut at {}", cut);
            }
        }

        #[test]
        fn a_value_ends_where_it_ends_byte_by_byte(
            text in text(),
            square in any::<bool>(),
            inside_string in any::<bool>(),
            escaped in any::<bool>(),
            depth in select(vec![1, 2, 63, 64, 65]),
        ) {
            let start = || {
                let mut nest = Nest::new(square);
                for level in 1..depth {
                    nest.bracket(if level % 3 == 0 { b'[' } else { b'{' });
                }
                nest.inside_string = inside_string;
                nest.escaped = inside_string && escaped;
                nest
            };
            let mut plain = start();
            let expected = plain_skip(&mut plain, &text);
            for cut in 0..=text.len() {
                let mut nest = start();
                let found = over_a_cut(
                    &text,
                    cut,
                    |bytes| Some(nest.skip(bytes)).filter(|skipped| *skipped != Skipped::More),
                    |skipped, cut| match skipped {
                        Skipped::End(at) => Skipped::End(at + cut),
                        Skipped::Broken(at) => Skipped::Broken(at + cut),
                        Skipped::More => Skipped::More,
                    },
                );
                prop_assert_eq!(found.unwrap_or(Skipped::More), expected, "cut at {}", cut);
                prop_assert_eq!(nest, plain, "cut at {}", cut);
            }
        }

        #[test]
        fn the_first_structural_byte_is_found(text in text()) {
            for from in 0..=text.len() {
                let rest = &text[from..];
                let expected = rest.iter().position(|&b| is_structural(b));
                prop_assert_eq!(find_structural(rest), expected.map(|at| (at, rest[at])));
            }
        }
    }
}
