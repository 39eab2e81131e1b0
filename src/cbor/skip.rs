//! Passing over items: the whole of a record passes here, most of it other requests' and endpoints'.

use super::runs::Runs;

/// Deepest nesting of arrays, maps and tags. Our records need 11 levels; the rest is for unknown
/// keys.
pub const MAX_NESTING: usize = 32;

pub(super) const BREAK: u8 = 0xff;

/// The initial byte, its argument (`None`: indefinite or a break), and what follows.
#[inline]
pub(super) fn initial(bytes: &[u8]) -> Option<(u8, Option<u64>, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (argument, rest) = match first & 0x1f {
        info @ 0..=23 => (u64::from(info), rest),
        24 => number::<1>(rest)?,
        25 => number::<2>(rest)?,
        26 => number::<4>(rest)?,
        27 => number::<8>(rest)?,
        31 => return Some((first, None, rest)),
        _ => return None,
    };
    Some((first, Some(argument), rest))
}

#[inline]
fn number<const N: usize>(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (digits, rest) = bytes.split_first_chunk::<N>()?;
    let n = digits.iter().fold(0, |n, b| (n << 8) | u64::from(*b));
    Some((n, rest))
}

/// What follows the first item. `CHECK`: text must be UTF-8 (checked once is enough). With `runs` lists
/// of tiers that were passed before are passed quickly.
#[inline]
pub(super) fn skip<'a, const CHECK: bool>(
    bytes: &'a [u8],
    depth: usize,
    runs: Option<&mut Runs>,
) -> Option<&'a [u8]> {
    let first = *bytes.first()?;
    match short_len(first) {
        0 => skip_nested::<CHECK>(bytes, depth, runs),
        len => {
            let (item, rest) = bytes.split_at_checked(len)?;
            (!CHECK || first >> 5 != 3 || is_utf8(item.get(1..)?)).then_some(rest)
        }
    }
}

/// What is nested deeper takes a loop of its own: the records of the contract are not, and a table of
/// all levels would cost more than most items.
const LEVELS: usize = 12;

/// One loop for all levels.
fn skip_nested<'a, const CHECK: bool>(
    bytes: &'a [u8],
    depth: usize,
    mut runs: Option<&mut Runs>,
) -> Option<&'a [u8]> {
    // Items still to come: of this array, map or tag, and of those around it.
    let mut left = 1_usize;
    let mut around = [0_usize; LEVELS];
    let mut level = 0_usize;
    // Where an array has begun that has nothing nested in it so far.
    let mut list: Option<&[u8]> = None;
    let mut rest = bytes;
    loop {
        let first = *rest.first()?;
        let len = short_len(first);
        if len > 0 {
            let (item, after) = rest.split_at_checked(len)?;
            if CHECK && first >> 5 == 3 && !is_utf8(item.get(1..)?) {
                return None;
            }
            rest = after;
            left = left.saturating_sub(1);
        } else if Runs::may_begin(rest)
            && level.saturating_add(2) <= depth
            && let Some((after, passed)) = runs
                .as_ref()
                .and_then(|runs| runs.pass(rest, left, |_, _| {}))
        {
            rest = after;
            left = left.saturating_sub(passed);
            list = None;
        } else {
            let begun = rest;
            left = left.saturating_sub(1);
            list = None;
            match inside::<CHECK>(rest)? {
                Inside::Nothing(after) => rest = after,
                Inside::Items(items, after) => {
                    if level >= depth {
                        return None;
                    }
                    if let Some(around) = around.get_mut(level) {
                        *around = left;
                        level = level.saturating_add(1);
                        // A false length ends with the bytes.
                        left = usize::try_from(items).ok()?;
                        list = (first >> 5 == 4).then_some(begun);
                        rest = after;
                    } else {
                        let depth = depth.checked_sub(level)?;
                        rest = skip_nested::<CHECK>(begun, depth, None)?;
                    }
                }
                Inside::UntilBreak(group, after) => {
                    let depth = depth.checked_sub(level)?.checked_sub(1)?;
                    rest = until_break::<CHECK>(after, group, depth)?;
                }
            }
        }
        while left == 0 {
            if level == 0 {
                return Some(rest);
            }
            if let Some(begun) = list.take()
                && let Some(runs) = &mut runs
            {
                let len = begun.len().saturating_sub(rest.len());
                runs.learn(begun.get(..len)?);
            }
            level = level.saturating_sub(1);
            left = *around.get(level)?;
        }
    }
}

/// What an item's head says of what is inside, and what follows.
enum Inside<'a> {
    /// Nothing more to look at: what follows the item.
    Nothing(&'a [u8]),
    Items(u64, &'a [u8]),
    /// Groups of so many items, up to a break.
    UntilBreak(usize, &'a [u8]),
}

fn inside<const CHECK: bool>(bytes: &[u8]) -> Option<Inside<'_>> {
    let (first, argument, after) = initial(bytes)?;
    Some(match (first >> 5, argument) {
        (4, Some(len)) => Inside::Items(len, after),
        (5, Some(len)) => Inside::Items(len.checked_mul(2)?, after),
        (6, Some(_)) => Inside::Items(1, after),
        (2, Some(len)) => Inside::Nothing(string::<false>(after, len)?),
        (3, Some(len)) => Inside::Nothing(string::<CHECK>(after, len)?),
        (2, None) => Inside::Nothing(chunks::<false>(after, 2)?),
        (3, None) => Inside::Nothing(chunks::<CHECK>(after, 3)?),
        (4, None) => Inside::UntilBreak(1, after),
        (5, None) => Inside::UntilBreak(2, after),
        // A simple value below 32 has no second byte.
        (7, Some(n)) if first != 0xf8 || n >= 32 => Inside::Nothing(after),
        _ => return None,
    })
}

/// Bytes of an item by its first one, if that tells it all and nothing is nested in it: numbers,
/// simple values, short strings. Else 0.
#[inline]
fn short_len(first: u8) -> usize {
    #[allow(clippy::indexing_slicing)] // By the compiler, once.
    const LENGTHS: [u8; 256] = {
        let mut lengths = [0; 256];
        let mut first = 0;
        while first < lengths.len() {
            let info = (first & 0x1f) as u8;
            let head = match info {
                0..=23 => 1,
                24 => 2,
                25 => 3,
                26 => 5,
                27 => 9,
                _ => 0,
            };
            lengths[first] = match first >> 5 {
                0 | 1 => head,
                2 | 3 if info < 24 => head + info,
                7 if info != 24 => head,
                _ => 0,
            };
            first += 1;
        }
        lengths
    };
    let len = LENGTHS.get(usize::from(first)).copied();
    len.map_or(0, usize::from)
}

/// Of short text; the standard library's way is made for long one.
#[inline]
fn is_utf8(text: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    let all = match *text {
        [] => 0,
        [a] => u64::from(a),
        [a, b] => u64::from(a | b),
        [a, b, c] => u64::from(a | b | c),
        _ => match (text.first_chunk(), text.last_chunk()) {
            (Some(a), Some(b)) if text.len() <= 16 => word(a) | word(b),
            (None, _) => match (text.first_chunk(), text.last_chunk()) {
                (Some(a), Some(b)) => half(a) | half(b),
                _ => HIGH,
            },
            _ => HIGH,
        },
    };
    all & HIGH == 0 || std::str::from_utf8(text).is_ok()
}

fn string<const UTF8: bool>(bytes: &[u8], len: u64) -> Option<&[u8]> {
    let (string, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    (!UTF8 || is_utf8(string)).then_some(rest)
}

/// Strings of one major type, up to a break.
fn chunks<const UTF8: bool>(mut rest: &[u8], major: u8) -> Option<&[u8]> {
    loop {
        if let Some(rest) = rest.strip_prefix(&[BREAK]) {
            return Some(rest);
        }
        let (first, len, after) = initial(rest)?;
        if first >> 5 != major {
            return None;
        }
        rest = string::<UTF8>(after, len?)?;
    }
}

/// Groups of so many items, up to a break.
fn until_break<const CHECK: bool>(mut rest: &[u8], group: usize, depth: usize) -> Option<&[u8]> {
    loop {
        if let Some(rest) = rest.strip_prefix(&[BREAK]) {
            return Some(rest);
        }
        for _ in 0..group {
            rest = skip::<CHECK>(rest, depth, None)?;
        }
    }
}
