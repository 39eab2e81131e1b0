//! Runs of evidence, `[blocks, [tier, …]]`: a record has hundreds, most of them with one of a few lists of
//! tiers, and comparing is quicker than looking through.

use super::pattern::Pattern;

/// The last few lists that were looked through.
#[derive(Default)]
pub struct Runs {
    known: Vec<List>,
    /// The next one to be replaced.
    oldest: usize,
}

struct List {
    bytes: Pattern,
    /// Among those that are known.
    place: usize,
}

/// Bytes of the longest run that is known.
const WINDOW: usize = Pattern::LONGEST + 4;

impl Runs {
    pub const KNOWN: usize = 8;

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

    /// Passes runs, at most so many, up to one whose list is not known: what follows, and how many there
    /// were. `None` for none. `run` is told the blocks and the list's place, as [`Self::learn`] said it.
    pub fn pass<'a>(
        &self,
        mut bytes: &'a [u8],
        most: usize,
        mut run: impl FnMut(u16, usize),
    ) -> Option<(&'a [u8], usize)> {
        let mut passed = 0_usize;
        // Neighbours hardly ever have the same list, and often a few take turns: each is likely to be
        // followed by what followed it the last time.
        let mut last = self.known.first()?;
        let mut followed_by = [last; Self::KNOWN];
        let mut known = |window: &[u8; WINDOW]| {
            let (blocks, behind, start) = head(window)?;
            let likely = followed_by.get_mut(last.place % Self::KNOWN)?;
            if !likely.bytes.begins(start) {
                *likely = self.known.iter().find(|list| list.bytes.begins(start))?;
            }
            last = likely;
            Some((blocks, last.place, behind.saturating_add(last.bytes.len())))
        };
        while passed < most {
            let padded;
            let window = match bytes.first_chunk() {
                Some(window) => window,
                None => {
                    padded = self::padded(bytes);
                    &padded
                }
            };
            // Behind the end there is what makes the window full.
            let Some((blocks, place, len)) = known(window) else {
                break;
            };
            let Some(rest) = bytes.get(len..) else { break };
            bytes = rest;
            run(blocks, place);
            passed = passed.saturating_add(1);
        }
        (passed > 0).then_some((bytes, passed))
    }

    /// Keeps a well-formed list: its place, unless it is too long.
    pub fn learn(&mut self, list: &[u8]) -> Option<usize> {
        let bytes = Pattern::new(list)?;
        let place = self.oldest;
        self.oldest = place.wrapping_add(1) % Self::KNOWN;
        let list = List { bytes, place };
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

/// A run's blocks, the bytes before its list, and where that begins.
#[inline]
fn head(window: &[u8; WINDOW]) -> Option<(u16, usize, &[u8; Pattern::LONGEST])> {
    let [0x82, first, behind @ ..] = window else {
        return None;
    };
    Some(match (*first, behind) {
        (0..=0x17, [list @ .., _, _]) => (u16::from(*first), 2, list),
        (0x18, [blocks, list @ .., _]) => (u16::from(*blocks), 3, list),
        (0x19, [high, low, list @ ..]) => (u16::from_be_bytes([*high, *low]), 4, list),
        _ => return None,
    })
}

/// Near the end of a record.
#[cold]
fn padded(bytes: &[u8]) -> [u8; WINDOW] {
    let mut window = [0; WINDOW];
    for (to, from) in window.iter_mut().zip(bytes) {
        *to = *from;
    }
    window
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
            assert!(runs.pass(&run(b'a'), 1, |_, _| {}).is_some(), "{len}");
            assert_eq!(runs.pass(&run(b'b'), 1, |_, _| {}), None, "{len}");
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
            let places: Vec<(u16, usize)> = order
                .bytes()
                .take(known)
                .map(|letter| (0x40, place(letter)))
                .collect();
            // With and without a whole window behind the last one.
            for more in [0, 40] {
                let bytes = [bytes.as_slice(), &vec![0; more]].concat();
                let mut told = Vec::new();
                let passed = runs.pass(&bytes, 64, |blocks, place| told.push((blocks, place)));
                let expected = (known > 0).then(|| (&bytes[ends[known]..], known));
                assert_eq!(passed, expected, "{order}");
                assert_eq!(told, places, "{order}");
            }
            let one = runs.pass(&bytes, 1, |_, _| {}).map(|(_, passed)| passed);
            assert_eq!(one, (known > 0).then_some(1), "{order}");
        }
    }

    #[test]
    fn a_run_that_is_cut_is_not_passed() {
        // A list whose last bytes are what a window is filled up with.
        let list = b"\x81\x63c\0\0";
        let mut runs = Runs::default();
        runs.learn(list);
        let pass = |bytes: &[u8]| {
            let mut told = 0;
            let passed = runs.pass(bytes, 2, |_, _| told += 1);
            (passed.map(|(rest, passed)| (rest.len(), passed)), told)
        };
        for head in [&b"\x82\x07"[..], b"\x82\x18\x40", b"\x82\x19\x01\x00"] {
            let run = [head, list].concat();
            assert_eq!(pass(&run), (Some((0, 1)), 1));
            for len in 0..run.len() {
                assert_eq!(pass(&run[..len]), (None, 0), "{len}");
                let two = [&run, &run[..len]].concat();
                assert_eq!(pass(&two), (Some((len, 1)), 1), "{len}");
            }
        }
    }
}
