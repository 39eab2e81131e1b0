//! Walking a value from its first byte to its last, each byte once: what is passed over is checked on
//! the way, so that a large record with one entry that counts is not read twice.

use super::item::Item;
use super::runs::Runs;
use super::skip::{BREAK, MAX_NESTING, initial, skip};

/// Stands before an item that was not looked at yet. `None` of its methods: not well-formed, and
/// nothing that was read before counts.
pub struct Cursor<'a> {
    rest: &'a [u8],
    /// Levels that may still be entered.
    depth: usize,
    runs: Runs,
}

impl<'a> Cursor<'a> {
    pub const KNOWN_LISTS: usize = Runs::KNOWN;

    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            depth: MAX_NESTING,
            runs: Runs::default(),
        }
    }

    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Passes runs, at most so many, whose lists are among those that were passed or learnt: `run` is
    /// told the blocks and the list's place, in order. How many there were; `None` for none.
    pub fn known_runs(&mut self, most: usize, run: impl FnMut(u16, usize)) -> Option<usize> {
        // Of two levels.
        self.depth.checked_sub(2)?;
        let (rest, passed) = self.runs.pass(self.rest, most, run)?;
        self.rest = rest;
        Some(passed)
    }

    /// For a caller that has something for each list it makes the cursor learn.
    pub fn forget_lists(&mut self) {
        self.runs = Runs::default();
    }

    /// Makes a list of tiers a known one: its place, unless it is too long.
    pub fn learn(&mut self, list: Item<'_>) -> Option<usize> {
        self.runs.learn(list.bytes())
    }

    /// Passes one item, and learns the lists of tiers in it.
    pub fn item(&mut self) -> Option<Item<'a>> {
        let after = skip::<true>(self.rest, self.depth, Some(&mut self.runs))?;
        self.up_to(after)
    }

    /// Passes one item, and learns nothing.
    pub fn new_item(&mut self) -> Option<Item<'a>> {
        let after = skip::<true>(self.rest, self.depth, None)?;
        self.up_to(after)
    }

    fn up_to(&mut self, after: &'a [u8]) -> Option<Item<'a>> {
        let len = self.rest.len().checked_sub(after.len())?;
        let bytes = self.rest.get(..len)?;
        self.rest = after;
        Some(Item::checked(bytes))
    }

    /// Passes a map; `value` is called behind each key and passes what belongs to it. False: an item of
    /// another kind was passed.
    pub fn map(
        &mut self,
        mut value: impl FnMut(Item<'a>, &mut Self) -> Option<()>,
    ) -> Option<bool> {
        self.container(5, |cursor, _| {
            let key = cursor.item()?;
            value(key, cursor)?;
            Some(1)
        })
    }

    /// Passes an array; `element` is called before each and passes it. False: an item of another kind
    /// was passed.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<bool> {
        self.container(4, |cursor, _| element(cursor).map(|()| 1))
    }

    /// As [`Self::array`], but `elements` is told how many there are at most, and says how many it has
    /// passed: one or more.
    pub fn array_by(
        &mut self,
        elements: impl FnMut(&mut Self, usize) -> Option<usize>,
    ) -> Option<bool> {
        self.container(4, elements)
    }

    fn container(
        &mut self,
        major: u8,
        mut inside: impl FnMut(&mut Self, usize) -> Option<usize>,
    ) -> Option<bool> {
        let (first, len, rest) = initial(self.rest)?;
        if first >> 5 != major {
            self.item()?;
            return Some(false);
        }
        self.rest = rest;
        self.depth = self.depth.checked_sub(1)?;
        match len {
            // A false length ends with the bytes.
            Some(len) => {
                let mut left = usize::try_from(len).ok()?;
                while left > 0 {
                    left = left.checked_sub(inside(self, left)?)?;
                }
            }
            None => loop {
                if let Some(rest) = self.rest.strip_prefix(&[BREAK]) {
                    self.rest = rest;
                    break;
                }
                inside(self, usize::MAX)?;
            },
        }
        self.depth = self.depth.saturating_add(1);
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// The bytes of keys, values and elements, in order; `None`: not well-formed.
    fn walk<'a>(cursor: &mut Cursor<'a>, into: &mut Vec<&'a [u8]>) -> Option<()> {
        match cursor.rest.first()? >> 5 {
            4 => cursor.array(|cursor| walk(cursor, into)),
            5 => cursor.map(|key, cursor| {
                into.push(key.bytes());
                walk(cursor, into)
            }),
            _ => cursor.item().map(|item| {
                into.push(item.bytes());
                true
            }),
        }
        .map(|_| ())
    }

    fn walked(bytes: &[u8]) -> Option<Vec<&[u8]>> {
        let (mut cursor, mut into) = (Cursor::new(bytes), Vec::new());
        walk(&mut cursor, &mut into)?;
        cursor.is_at_end().then_some(into)
    }

    #[test]
    fn every_item_is_passed_once() {
        type Row<'a> = (&'a [u8], Option<&'a [&'a [u8]]>);
        let table: &[Row<'_>] = &[
            (b"\x07", Some(&[b"\x07"])),
            (b"\x82\x01\x61a", Some(&[b"\x01", b"\x61a"])),
            (b"\xa1\x61a\x81\x02", Some(&[b"\x61a", b"\x02"])),
            (b"\xbf\x61a\x9f\x02\xff\xff", Some(&[b"\x61a", b"\x02"])),
            (b"\x80", Some(&[])),
            (b"\x82\x01", None),
            (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
            (b"\xa1\x61a", None),
            (b"\xbf\x61a\xff", None),
            (b"\x9f\x01", None),
            (b"\x81\x61\xff", None),
            (b"\x01\x01", None),
            (b"", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(walked(bytes).as_deref(), *expected, "{bytes:02x?}");
        }
        let nested = |levels: usize| [vec![0x81; levels], vec![0x01]].concat();
        assert!(walked(&nested(MAX_NESTING)).is_some());
        assert!(walked(&nested(MAX_NESTING + 1)).is_none());
        assert!(walked(&[[0x81; 31].as_slice(), b"\x81\x81\x01"].concat()).is_none());
    }

    #[test]
    fn an_item_of_another_kind_is_passed() {
        let mut cursor = Cursor::new(b"\x82\x01\x02\xa1\x01\x02\x07");
        assert_eq!(cursor.map(|_, _| None), Some(false));
        assert_eq!(cursor.array(|_| None), Some(false));
        assert_eq!(cursor.array(|_| None), Some(false));
        assert!(cursor.is_at_end());
    }

    #[test]
    fn runs_with_a_known_list_are_told_by_its_place() {
        let run = |blocks: &[u8], list: &[u8]| [b"\x82", blocks, list].concat();
        let (cpu, both) = (b"\x81\x63cpu".as_slice(), b"\x82\x63cpu\x63gpu".as_slice());
        let long = [b"\x81\x78\x1f".as_slice(), &[b'x'; 31]].concat();
        let runs = [
            run(b"\x01", cpu),
            run(b"\x18\xff", cpu),
            run(b"\x19\x01\x00", cpu),
            run(b"\x1a\x00\x01\x00\x00", cpu),
            run(b"\x02", both),
            run(b"\x03", &long),
            run(b"\x17", cpu),
        ]
        .concat();
        let mut cursor = Cursor::new(&runs);
        let known = |cursor: &mut Cursor<'_>, most| {
            let mut told = Vec::new();
            let passed = cursor.known_runs(most, |blocks, list| told.push((blocks, list)));
            assert_eq!(passed.unwrap_or(0), told.len());
            told
        };
        assert_eq!(known(&mut cursor, 9), []);
        let list = Item::parse(cpu).unwrap();
        assert!(cursor.new_item().is_some() && known(&mut cursor, 9).is_empty());
        assert_eq!(cursor.learn(list), Some(0));
        assert_eq!(known(&mut cursor, 1), [(255, 0)]);
        // As many blocks as no run has are read the long way, and so is a long list.
        assert_eq!(known(&mut cursor, 9), [(256, 0)]);
        assert!(cursor.item().is_some());
        assert_eq!(cursor.learn(Item::parse(both).unwrap()), Some(2));
        assert_eq!(known(&mut cursor, 9), [(2, 2)]);
        assert_eq!(cursor.learn(Item::parse(&long).unwrap()), None);
        assert!(known(&mut cursor, 9).is_empty() && cursor.item().is_some());
        assert_eq!(known(&mut cursor, 9), [(23, 0)]);
        assert!(cursor.is_at_end());
    }
}
