//! Runs of evidence, `[blocks, [tier, …]]`: a record has hundreds, most of them with one of a few lists of
//! tiers, and comparing is quicker than looking through.

/// The last few lists that were looked through.
#[derive(Default)]
pub struct Runs {
    known: Vec<List>,
    /// The next one to be replaced.
    oldest: usize,
}

/// A list of at most 32 bytes.
struct List {
    /// Its bytes, and which of them count.
    words: [u64; 4],
    masks: [u64; 4],
    len: usize,
    /// Among those that are known.
    place: usize,
}

/// Bytes of the longest run that is known.
const WINDOW: usize = Runs::LONGEST + 4;

/// A run whose list is known.
pub struct Known {
    pub blocks: u16,
    /// The list's place, as [`Runs::learn`] said it.
    pub list: usize,
    /// Bytes of the run.
    pub len: usize,
}

impl Runs {
    pub const KNOWN: usize = 4;
    const LONGEST: usize = 32;

    /// Whether it is worth it to ask for a run here.
    #[inline]
    pub fn may_begin(bytes: &[u8]) -> bool {
        matches!(
            *bytes,
            [0x82, 0..=0x17, 0x80..=0x9f, ..]
                | [0x82, 0x18, _, 0x80..=0x9f, ..]
                | [0x82, 0x19, _, _, 0x80..=0x9f, ..]
        )
    }

    /// The run at the beginning of the bytes.
    pub fn known(&self, bytes: &[u8]) -> Option<Known> {
        let padded;
        let window = match bytes.first_chunk() {
            Some(window) => window,
            None => {
                padded = self::padded(bytes)?;
                &padded
            }
        };
        let (blocks, behind, start) = head(window)?;
        let list = self.known.iter().position(|list| list.begins(&start))?;
        let len = self.known.get(list)?.len.checked_add(behind)?;
        (len <= bytes.len()).then_some(Known { blocks, list, len })
    }

    /// Passes runs, at most so many, up to one whose list is not known: what follows, and how many there
    /// were. `None` for none.
    pub fn pass<'a>(&self, mut bytes: &'a [u8], most: usize) -> Option<(&'a [u8], usize)> {
        let mut passed = 0_usize;
        // Neighbours hardly ever have the same list, and often a few take turns: each is likely to be
        // followed by what followed it the last time.
        let mut last = self.known.first()?;
        let mut followed_by = [last; Self::KNOWN];
        while passed < most
            && let Some(window) = bytes.first_chunk()
            && let Some((_, behind, start)) = head(window)
        {
            let likely = followed_by.get_mut(last.place % Self::KNOWN)?;
            if !likely.begins(&start) {
                let Some(list) = self.known.iter().find(|list| list.begins(&start)) else {
                    break;
                };
                *likely = list;
            }
            last = likely;
            bytes = bytes.get(behind..)?.get(last.len..)?;
            passed = passed.saturating_add(1);
        }
        while passed < most
            && bytes.len() < WINDOW
            && let Some(run) = self.known(bytes)
        {
            bytes = bytes.get(run.len..)?;
            passed = passed.saturating_add(1);
        }
        (passed > 0).then_some((bytes, passed))
    }

    /// Keeps a well-formed list: its place, unless it is too long.
    pub fn learn(&mut self, list: &[u8]) -> Option<usize> {
        if list.len() > Self::LONGEST {
            return None;
        }
        let (mut words, mut masks) = ([0; 4], [0; 4]);
        for ((word, mask), bytes) in words.iter_mut().zip(&mut masks).zip(list.chunks(8)) {
            for byte in bytes.iter().rev() {
                *word = (*word << 8) | u64::from(*byte);
                *mask = (*mask << 8) | 0xff;
            }
        }
        let place = self.oldest;
        let list = List {
            words,
            masks,
            len: list.len(),
            place,
        };
        self.oldest = place.wrapping_add(1) % Self::KNOWN;
        match self.known.get_mut(place) {
            Some(oldest) => *oldest = list,
            None => {
                self.known.reserve_exact(Self::KNOWN.saturating_sub(place));
                self.known.push(list);
            }
        }
        Some(place)
    }
}

impl List {
    #[inline]
    fn begins(&self, start: &Start<'_>) -> bool {
        let [a, b] = start.first;
        let [wa, wb, ..] = self.words;
        let [ma, mb, ..] = self.masks;
        ((a & ma) ^ wa) | ((b & mb) ^ wb) == 0 && (self.len <= Start::FIRST || self.goes_on(start))
    }

    /// Behind those first bytes.
    fn goes_on(&self, start: &Start<'_>) -> bool {
        let [_, _, c, d] = words(start.bytes);
        let [_, _, wc, wd] = self.words;
        let [_, _, mc, md] = self.masks;
        ((c & mc) ^ wc) | ((d & md) ^ wd) == 0
    }
}

/// The bytes where a list begins.
struct Start<'a> {
    /// Nearly every list ends in these.
    first: [u64; 2],
    bytes: &'a [u8; Runs::LONGEST],
}

impl Start<'_> {
    /// Bytes.
    const FIRST: usize = 16;
}

/// A run's blocks, where its list begins, and the beginning of that.
#[inline]
fn head(window: &[u8; WINDOW]) -> Option<(u16, usize, Start<'_>)> {
    let [0x82, first, behind @ ..] = window else {
        return None;
    };
    let (blocks, at, bytes) = match (*first, behind) {
        (0..=0x17, [bytes @ .., _, _]) => (u16::from(*first), 2, bytes),
        (0x18, [blocks, bytes @ .., _]) => (u16::from(*blocks), 3, bytes),
        (0x19, [high, low, bytes @ ..]) => (u16::from_be_bytes([*high, *low]), 4, bytes),
        _ => return None,
    };
    let [a, b, ..] = words(bytes);
    Some((
        blocks,
        at,
        Start {
            first: [a, b],
            bytes,
        },
    ))
}

/// Near the end of a record.
#[cold]
fn padded(bytes: &[u8]) -> Option<[u8; WINDOW]> {
    let mut window = [0; WINDOW];
    window.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(window)
}

#[inline]
fn words(bytes: &[u8; Runs::LONGEST]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Of one tier, whose name differs from another's in its last byte.
    fn list(len: usize, last: u8) -> Vec<u8> {
        let name = len - 2;
        assert!((1..24).contains(&name));
        let mut list = vec![b'x'; len];
        list[..2].copy_from_slice(&[0x81, 0x60 + name as u8]);
        list[len - 1] = last;
        list
    }

    #[test]
    fn a_list_is_known_by_all_its_bytes() {
        for len in 3..=25 {
            let mut runs = Runs::default();
            assert_eq!(runs.learn(&list(len, b'a')), Some(0));
            let run = |last| [b"\x82\x07".as_slice(), &list(len, last), &[0; 40]].concat();
            assert!(runs.known(&run(b'a')).is_some(), "{len}");
            assert!(runs.known(&run(b'b')).is_none(), "{len}");
            assert_eq!(runs.pass(&run(b'b'), 1), None, "{len}");
        }
    }

    #[test]
    fn lists_in_any_order_are_passed() {
        let lists = [list(5, b'a'), list(13, b'b'), list(20, b'c')];
        let mut runs = Runs::default();
        for list in &lists {
            runs.learn(list);
        }
        for order in [
            "aaaa",
            "ababab",
            "abcabcabc",
            "acbbcabbacc",
            "cabbd",
            "da",
            "",
        ] {
            let place = |letter: u8| usize::from(letter - b'a');
            let known = order.bytes().take_while(|letter| *letter < b'd');
            let known = known.count();
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for letter in order.bytes() {
                let unknown = list(7, letter);
                bytes.extend(b"\x82\x18\x40");
                bytes.extend(lists.get(place(letter)).unwrap_or(&unknown));
                ends.push(bytes.len());
            }
            // With and without a whole window behind the last one.
            for more in [0, 40] {
                let bytes = [bytes.as_slice(), &vec![0; more]].concat();
                let passed = runs.pass(&bytes, 64);
                let expected = (known > 0).then(|| (&bytes[ends[known]..], known));
                assert_eq!(passed, expected, "{order}");
            }
            let one = runs.pass(&bytes, 1).map(|(_, passed)| passed);
            assert_eq!(one, (known > 0).then_some(1), "{order}");
        }
    }
}
