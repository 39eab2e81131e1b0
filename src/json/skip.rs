//! To the end of a string, and to what is next behind numbers: a block of bytes at a time, not a byte.

use super::block::{self, BLOCK, Block, CLOSING, Escapes, Nesting, Quoting, RUN};

/// Blocks looked at one by one before a whole run is tried.
pub(super) const BLOCKS_FIRST: usize = RUN / BLOCK;

/// Inside a string: the index of the closing quote, or None if the string goes on behind `bytes`.
/// `escaped` says whether the first byte stands behind a backslash, and afterwards whether the next
/// one does.
#[inline(never)]
pub fn string_end(bytes: &[u8], escaped: &mut bool) -> Option<usize> {
    let quoting = Quoting::new().kept();
    let mut rest = bytes;
    let mut next = *escaped;
    let mut blocks = BLOCKS_FIRST;
    while let Some((block, behind)) = rest.split_first_chunk() {
        if blocks == 0 {
            if let Some((run, behind)) = rest.split_first_chunk()
                && !(quoting.any_quote(run) && may_close(bytes, rest, &quoting))
            {
                next = is_escaped(run, next);
                rest = behind;
                continue;
            }
            blocks = BLOCKS_FIRST;
        }
        blocks = blocks.saturating_sub(1);
        let block = Block::new(block);
        let escapes = Escapes::new(block.slashes(&quoting), next);
        if let Some(first) = block::lowest(block.quotes(&quoting) & !escapes.escaped) {
            return Some(before(bytes, rest).saturating_add(first));
        }
        next = escapes.last;
        rest = behind;
    }
    while !rest.is_empty() {
        if std::mem::take(&mut next) {
            rest = rest.get(1..).unwrap_or_default();
        }
        let Some(mark) = find_mark(rest) else {
            break;
        };
        if rest.get(mark) == Some(&b'"') {
            return Some(before(bytes, rest).saturating_add(mark));
        }
        next = true;
        rest = rest.get(mark.saturating_add(1)..).unwrap_or_default();
    }
    *escaped = next;
    None
}

/// The first quote or backslash of less than a block: eight bytes at a time, since most keys are short.
#[inline]
fn find_mark(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // The high bit of each byte that is `mark`; above the first one, perhaps of others.
    let marked = |word: u64, mark: u8| {
        let differing = word ^ ONES.wrapping_mul(u64::from(mark));
        differing.wrapping_sub(ONES) & !differing & ONES.wrapping_shl(7)
    };
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk() {
        let word = u64::from_le_bytes(*word);
        if let Some(bit) = block::lowest(marked(word, b'"') | marked(word, b'\\')) {
            return Some(before(bytes, rest).saturating_add(bit / 8));
        }
        rest = behind;
    }
    let mark = rest.iter().position(|b| matches!(b, b'"' | b'\\'))?;
    Some(before(bytes, rest).saturating_add(mark))
}

/// Whether the run at the beginning of `rest` may have the closing quote. There are blocks before it.
#[inline]
fn may_close(bytes: &[u8], rest: &[u8], quoting: &Quoting) -> bool {
    let from = before(bytes, rest).saturating_sub(CLOSING - RUN);
    let run = bytes.get(from..).and_then(<[u8]>::first_chunk);
    run.is_none_or(|run| quoting.any_closing(run))
}

/// Whether the byte behind `run`, which is inside a string, is escaped; `first` says so for the first
/// byte of `run`.
#[inline]
fn is_escaped(run: &[u8; RUN], first: bool) -> bool {
    match run.last() {
        Some(b'\\') => {
            let slashes = run.iter().rev().take_while(|&&b| b == b'\\').count();
            (slashes % 2 == 1) != (first && slashes == RUN)
        }
        _ => false,
    }
}

/// How many bytes stand before `rest`, the end of `bytes`.
#[inline]
pub(super) fn before(bytes: &[u8], rest: &[u8]) -> usize {
    bytes.len().saturating_sub(rest.len())
}

pub(super) fn is_structural(byte: u8) -> bool {
    // Square and curly brackets differ only in bit 0x20.
    byte == b'"' || matches!(byte | 0x20, b'{' | b'}')
}

/// The first quote or bracket.
pub fn find_structural(bytes: &[u8]) -> Option<(usize, u8)> {
    let nesting = Nesting::new();
    let mut rest = bytes;
    let mut blocks = BLOCKS_FIRST;
    while let Some((block, behind)) = rest.split_first_chunk() {
        if blocks == 0
            && let Some((run, behind)) = rest.split_first_chunk()
            && !nesting.any_structure(run)
        {
            rest = behind;
            continue;
        }
        blocks = blocks.saturating_sub(1);
        let block = Block::new(block);
        let (open, close) = block.brackets(&nesting);
        if let Some(first) = block::lowest(block.quotes(&nesting.quoting) | open | close) {
            let index = before(bytes, rest).saturating_add(first);
            return Some((index, *bytes.get(index)?));
        }
        rest = behind;
    }
    let index = rest.iter().position(|&byte| is_structural(byte))?;
    Some((before(bytes, rest).saturating_add(index), *rest.get(index)?))
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
        let tails: [&[u8]; 5] = [br#"""#, br#"\"" "#, br#"\\""#, br#"\\\"","x"#, b"\\"];
        for (tail, length) in tails
            .iter()
            .flat_map(|tail| (500..580).map(move |n| (tail, n)))
        {
            for stretch in [&b"x"[..], b"\\", br#"x\""#, br#"\\x"#, br#"\\\""#] {
                let stretch = stretch.repeat(length).split_at(length).0.to_vec();
                let text = [&stretch, *tail, &stretch, tail].concat();
                let (mut plain, mut escaped) = (false, false);
                let expected = plain_string_end(&text, &mut plain);
                let context = String::from_utf8_lossy(&text);
                assert_eq!(string_end(&text, &mut escaped), expected, "{context}");
                assert!(expected.is_some() || escaped == plain, "{context}");
            }
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
pub(super) mod properties {
    use super::tests::plain_string_end;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// Bytes in which quotes, backslashes and brackets meet often, in runs longer than a block too.
    pub(in crate::json) fn text() -> impl Strategy<Value = Vec<u8>> {
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

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn a_string_ends_where_it_ends_byte_by_byte(text in text(), first in any::<bool>()) {
            let mut plain = first;
            let expected = plain_string_end(&text, &mut plain);
            for cut in 0..=text.len() {
                let mut escaped = first;
                let found = string_end(&text[..cut], &mut escaped)
                    .or_else(|| Some(cut + string_end(&text[cut..], &mut escaped)?));
                prop_assert_eq!(found, expected, "cut at {}", cut);
                prop_assert!(found.is_some() || escaped == plain, "cut at {}", cut);
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
