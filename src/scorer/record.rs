//! The scorer's private records in shared data: `{"v":1,"scorers":{"<name>":…}}` in CBOR, one
//! bucket of names a key (names come and go with configurations, keys cannot be deleted).

use crate::contract::MAX_VALUE_BYTES;
use crate::contract::cbor::{Item, Out};
use crate::sorted::SortedMap;
use std::borrow::Cow;

/// Buckets of each kind of private record.
pub const BUCKETS: u64 = 64;
/// Most names in one bucket.
pub const MAX_NAMES: usize = 16;
const VERSION: u64 = 1;

/// What a record is made of.
pub(crate) trait Value: Sized {
    /// None: not such a value, and then the whole record is none of ours.
    fn read(item: Item<'_>) -> Option<Self>;
    fn write(&self, out: &mut Out);
}

impl Value for u64 {
    fn read(item: Item<'_>) -> Option<Self> {
        item.uint()
    }

    fn write(&self, out: &mut Out) {
        out.uint(*self);
    }
}

impl Value for u32 {
    fn read(item: Item<'_>) -> Option<Self> {
        item.uint()?.try_into().ok()
    }

    fn write(&self, out: &mut Out) {
        out.uint((*self).into());
    }
}

impl Value for String {
    fn read(item: Item<'_>) -> Option<Self> {
        item.text().map(Cow::into_owned)
    }

    fn write(&self, out: &mut Out) {
        out.text(self);
    }
}

/// None is `null`.
impl<T: Value> Value for Option<T> {
    fn read(item: Item<'_>) -> Option<Self> {
        match item.is_null() {
            true => Some(None),
            false => T::read(item).map(Some),
        }
    }

    fn write(&self, out: &mut Out) {
        match self {
            Some(value) => value.write(out),
            None => {
                out.null();
            }
        }
    }
}

/// Of a name that comes twice the last value counts.
impl<T: Value> Value for SortedMap<String, T> {
    fn read(item: Item<'_>) -> Option<Self> {
        let mut values = Vec::new();
        for (name, value) in item.map()?.iter() {
            values.push((String::read(name)?, T::read(value)?));
        }
        Some(values.into())
    }

    fn write(&self, out: &mut Out) {
        out.map(self.len());
        for (name, value) in self {
            value.write(out.text(name));
        }
    }
}

/// The values of these keys in a map. None: no map, a key that is no text, or one of these twice.
/// Other keys are a younger version's.
pub(crate) fn fields<'a, const N: usize>(
    item: Item<'a>,
    keys: [&str; N],
) -> Option<[Option<Item<'a>>; N]> {
    let mut values = [None; N];
    fill(item, &keys, &mut values)?;
    Some(values)
}

fn fill<'a>(item: Item<'a>, keys: &[&str], values: &mut [Option<Item<'a>>]) -> Option<()> {
    for (key, value) in item.map()?.iter() {
        let Cow::Borrowed(key) = key.text()? else {
            return None;
        };
        let known = keys.iter().position(|known| *known == key);
        if let Some(slot) = known.and_then(|i| values.get_mut(i)) {
            if slot.is_some() {
                return None;
            }
            *slot = Some(value);
        }
    }
    Some(())
}

/// The entries by scorer name. Anything that is no such record (another version of this module's,
/// somebody else's) is an empty one: it is ours to overwrite.
pub(crate) fn decode<T: Value>(bytes: Option<&[u8]>) -> SortedMap<String, T> {
    let scorers = bytes.and_then(scorers);
    scorers.and_then(Value::read).unwrap_or_default()
}

fn scorers(bytes: &[u8]) -> Option<Item<'_>> {
    if bytes.len() > MAX_VALUE_BYTES {
        return None;
    }
    let [v, scorers] = fields(Item::parse(bytes)?, ["v", "scorers"])?;
    scorers.filter(|_| v.and_then(Item::uint) == Some(VERSION))
}

/// None if the record would be larger than readers take.
pub(crate) fn encode<T: Value>(scorers: &SortedMap<String, T>) -> Option<Vec<u8>> {
    let mut out = Out::default();
    scorers.write(out.map(2).text("v").uint(VERSION).text("scorers"));
    Some(out.into_bytes()).filter(|bytes| bytes.len() <= MAX_VALUE_BYTES)
}

/// Makes room for `name` beside at most [`MAX_NAMES`] − 1 others: the oldest by `t_ms` go.
pub fn make_room<T>(scorers: &mut SortedMap<String, T>, name: &str, t_ms: fn(&T) -> u64) {
    while scorers.keys().filter(|other| *other != name).count() >= MAX_NAMES {
        let oldest = scorers
            .iter()
            .filter(|(other, _)| *other != name)
            .min_by_key(|(_, entry)| t_ms(entry))
            .map(|(other, _)| other.clone());
        match oldest {
            Some(oldest) => scorers.remove(&oldest),
            None => return,
        };
    }
}

#[cfg(test)]
#[cfg(not(target_arch = "wasm32"))]
pub(super) mod against_ciborium;

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_no_record_is_an_empty_one() {
        let one = SortedMap::from([("a".to_owned(), 7u64)]);
        let good = encode(&one).unwrap();
        let mut other_version = good.clone();
        other_version[3] = 2;
        let nested = [vec![0x81; 100_000], vec![0]].concat();
        type Row<'a> = (&'a str, Option<&'a [u8]>, SortedMap<String, u64>);
        let rows: &[Row<'_>] = &[
            ("good", Some(&good), one),
            ("none", None, SortedMap::new()),
            ("empty", Some(b""), SortedMap::new()),
            ("cut", good.get(..good.len() - 1), SortedMap::new()),
            ("text", Some(b"hello"), SortedMap::new()),
            ("another version", Some(&other_version), SortedMap::new()),
            ("nested", Some(&nested), SortedMap::new()),
            ("large", Some(&[0; MAX_VALUE_BYTES + 1]), SortedMap::new()),
        ];
        for (what, bytes, expected) in rows {
            assert_eq!(decode::<u64>(*bytes), *expected, "{what}");
        }
    }

    #[test]
    fn the_oldest_names_make_room() {
        let mut scorers: SortedMap<String, u64> =
            (0..17u64).map(|t| (format!("s{t}"), 100 - t)).collect();
        make_room(&mut scorers, "new", |t| *t);
        assert_eq!(scorers.len(), 15);
        assert!(!scorers.contains_key("s16") && !scorers.contains_key("s15"));
        // A name that is there already needs no room.
        scorers.insert("s16".to_owned(), 1);
        make_room(&mut scorers, "s16", |t| *t);
        assert_eq!(scorers.len(), 16);
    }
}
