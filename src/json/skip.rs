//! Past values nobody looks into: at the speed of a search, not of a state machine.

/// Inside a string: the index of the closing quote, or None if the string goes on behind `bytes`.
/// `escaped` says whether the first byte stands behind a backslash, and afterwards whether the next
/// one does.
pub(crate) fn string_end(bytes: &[u8], escaped: &mut bool) -> Option<usize> {
    // Text is full of `\n`, and quotes inside are rare: look for quotes, then back.
    for quote in memchr::memchr_iter(b'"', bytes) {
        if !is_escaped(bytes.get(..quote).unwrap_or_default(), *escaped) {
            return Some(quote);
        }
    }
    *escaped = is_escaped(bytes, *escaped);
    None
}

/// Whether the byte behind `before` is escaped; `first` says so for the first byte of `before`.
fn is_escaped(before: &[u8], first: bool) -> bool {
    let slashes = before.iter().rev().take_while(|&&b| b == b'\\').count();
    let odd = slashes % 2 == 1;
    if slashes == before.len() {
        odd != first
    } else {
        odd
    }
}

/// Inside an object or array that is skipped: strings and brackets only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nest {
    /// Open brackets; a 64-bit count cannot overflow within a stream.
    depth: u64,
    /// Bit `d`: the bracket opened at depth `d` is a square one, for the first [`CHECKED`] depths.
    /// Deeper down brackets are only counted, so that nesting costs nothing.
    square: u64,
    /// Inside a string; and whether its next byte is escaped.
    string: Option<bool>,
}

const CHECKED: u64 = u64::BITS as u64;

/// Where a [`Nest`] stands after some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Skipped {
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
            string: None,
        }
    }

    pub fn skip(&mut self, bytes: &[u8]) -> Skipped {
        let mut at = 0_usize;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            if let Some(mut escaped) = self.string {
                match string_end(rest, &mut escaped) {
                    Some(quote) => {
                        self.string = None;
                        at = at.saturating_add(quote).saturating_add(1);
                        continue;
                    }
                    None => {
                        self.string = Some(escaped);
                        return Skipped::More;
                    }
                }
            }
            let Some((found, byte)) = find_structural(rest) else {
                return Skipped::More;
            };
            let index = at.saturating_add(found);
            at = index.saturating_add(1);
            if byte == b'"' {
                self.string = Some(false);
                continue;
            }
            match self.bracket(byte) {
                None => return Skipped::Broken(index),
                Some(0) => return Skipped::End(at),
                Some(_) => {}
            }
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
    fn close(&mut self, square: bool) -> bool {
        self.depth = self.depth.saturating_sub(1);
        self.depth >= CHECKED || (self.square & 1_u64.rotate_left(self.depth_bits()) != 0) == square
    }

    /// The depth as a bit position; only meaningful below [`CHECKED`].
    fn depth_bits(&self) -> u32 {
        u32::try_from(self.depth).unwrap_or(0)
    }
}

fn is_structural(byte: u8) -> bool {
    // Square and curly brackets differ only in bit 0x20.
    byte == b'"' || matches!(byte | 0x20, b'{' | b'}')
}

/// The first quote or bracket.
pub(crate) fn find_structural(bytes: &[u8]) -> Option<(usize, u8)> {
    // Bytes of a block are tested together, which compilers turn into SIMD.
    const BLOCK: usize = 32;
    let mut skipped = 0_usize;
    for block in bytes.chunks(BLOCK) {
        if block.len() < BLOCK
            || skipped == 0
            || block.iter().fold(false, |hit, &b| hit | is_structural(b))
        {
            let hit = block.iter().enumerate().find(|&(_, &b)| is_structural(b));
            if let Some((index, &byte)) = hit {
                return Some((skipped.saturating_add(index), byte));
            }
        }
        skipped = skipped.saturating_add(block.len());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

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
