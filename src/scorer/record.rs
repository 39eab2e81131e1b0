//! The scorer's private records in shared data: `{"v":1,"scorers":{"<name>":…}}` in CBOR, one
//! bucket of names a key (names come and go with configurations, keys cannot be deleted).

use crate::contract::MAX_VALUE_BYTES;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// Buckets of each kind of private record.
pub const BUCKETS: u64 = 64;
/// Most names in one bucket.
pub const MAX_NAMES: usize = 16;
/// Ours have five levels.
const MAX_NESTING: usize = 16;
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Record<T> {
    v: u32,
    scorers: BTreeMap<String, T>,
}

/// The entries by scorer name. Anything that is no such record (another version of this module's,
/// somebody else's) is an empty one: it is ours to overwrite.
pub fn decode<T: DeserializeOwned>(bytes: Option<&[u8]>) -> BTreeMap<String, T> {
    let Some(bytes) = bytes.filter(|b| b.len() <= MAX_VALUE_BYTES) else {
        return BTreeMap::new();
    };
    let record: Result<Record<T>, _> =
        ciborium::de::from_reader_with_recursion_limit(bytes, MAX_NESTING);
    match record {
        Ok(record) if record.v == VERSION => record.scorers,
        _ => BTreeMap::new(),
    }
}

/// None if the record would be larger than readers take.
pub fn encode<T: Serialize>(scorers: BTreeMap<String, T>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let v = VERSION;
    ciborium::into_writer(&Record { v, scorers }, &mut bytes).ok()?;
    (bytes.len() <= MAX_VALUE_BYTES).then_some(bytes)
}

/// Makes room for `name` beside at most [`MAX_NAMES`] − 1 others: the oldest by `t_ms` go.
pub fn make_room<T>(scorers: &mut BTreeMap<String, T>, name: &str, t_ms: fn(&T) -> u64) {
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
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_no_record_is_an_empty_one() {
        let one = BTreeMap::from([("a".to_owned(), 7u64)]);
        let good = encode(one.clone()).unwrap();
        let mut other_version = good.clone();
        other_version[3] = 2;
        let nested = [vec![0x81; 100_000], vec![0]].concat();
        type Row<'a> = (&'a str, Option<&'a [u8]>, BTreeMap<String, u64>);
        let rows: &[Row<'_>] = &[
            ("good", Some(&good), one),
            ("none", None, BTreeMap::new()),
            ("empty", Some(b""), BTreeMap::new()),
            ("cut", good.get(..good.len() - 1), BTreeMap::new()),
            ("text", Some(b"hello"), BTreeMap::new()),
            ("another version", Some(&other_version), BTreeMap::new()),
            ("nested", Some(&nested), BTreeMap::new()),
            ("large", Some(&[0; MAX_VALUE_BYTES + 1]), BTreeMap::new()),
        ];
        for (what, bytes, expected) in rows {
            assert_eq!(decode::<u64>(*bytes), *expected, "{what}");
        }
    }

    #[test]
    fn the_oldest_names_make_room() {
        let mut scorers: BTreeMap<String, u64> =
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
