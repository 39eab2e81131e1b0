//! What all records have in common (sections 2 and 8).

use crate::Refusal;
use crate::cbor::{Item, decode, encode, encoded_len};

pub const VALUE_LIMIT: usize = 262_144;
const VERSION: Item = Item::Uint(1);

/// The stored record, or a fresh one where it is missing, malformed or of another version. `main` is
/// the name of the field that everything is in, `empty` its value in a fresh record.
pub fn open(stored: Option<&[u8]>, main: &str, empty: Item) -> Item {
    let same_type = |item: &Item| std::mem::discriminant(item) == std::mem::discriminant(&empty);
    stored
        .filter(|bytes| bytes.len() <= VALUE_LIMIT)
        .and_then(decode)
        .filter(|record| record.get("v") == Some(&VERSION))
        .filter(|record| record.get(main).is_some_and(same_type))
        .unwrap_or_else(|| Item::map([("v", VERSION), (main, empty)]))
}

/// Removes every key but these.
pub fn keep_known(map: &mut Item, known: &[&str]) {
    if let Item::Map(entries) = map {
        entries.retain(|(key, _)| key.as_text().is_some_and(|key| known.contains(&key)));
    }
}

/// How many bytes a value has too many.
pub fn excess(record: &Item) -> usize {
    encoded_len(record).saturating_sub(VALUE_LIMIT)
}

pub fn entry_len((key, value): &(Item, Item)) -> usize {
    encoded_len(key) + encoded_len(value)
}

/// The value to store.
pub fn close(record: &Item) -> Result<Vec<u8>, Refusal> {
    match excess(record) {
        0 => Ok(encode(record)),
        n => Err(Refusal(format!(
            "the value would be {n} bytes over the limit of {VALUE_LIMIT}"
        ))),
    }
}

/// An unsigned integer under this key.
pub fn time_of(entry: &Item, key: &str) -> Option<u64> {
    entry.get(key)?.as_uint()
}

/// The time that a request names: `t`, or so many milliseconds before now.
pub fn moment(t: Option<u64>, ago: Option<i64>, now: u64) -> u64 {
    t.unwrap_or_else(|| {
        let ago = ago.unwrap_or(0);
        if ago < 0 {
            now.saturating_add(ago.unsigned_abs())
        } else {
            now.saturating_sub(ago.unsigned_abs())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::{from_hex, to_hex};

    #[test]
    fn what_is_kept_and_what_starts_afresh() {
        let empty = "a2617601 69656e64706f696e7473 a0";
        for (stored, kept) in [
            ("a2617601 69656e64706f696e7473 a0", true),
            ("a3617601 69656e64706f696e7473 a0 617801", true),
            ("a2 69656e64706f696e7473 a0 61761b0000000000000001", true),
            ("a3617602 69656e64706f696e7473 a0 617601", true),
            ("", false),
            ("a2617601 69656e64706f696e7473 a0 00", false),
            ("a2617601 69656e64706f696e7473", false),
            ("a2617602 69656e64706f696e7473 a0", false),
            ("a26176f93c00 69656e64706f696e7473 a0", false),
            ("a26176c2410169656e64706f696e7473 a0", false),
            ("a2617601 69656e64706f696e7473 80", false),
            ("a1617601", false),
            ("a1 69656e64706f696e7473 a0", false),
            ("80", false),
            ("d9d9f7a2617601 69656e64706f696e7473 a0", false),
        ] {
            let bytes = from_hex(stored).expect("hex");
            let record = open(Some(&bytes), "endpoints", Item::Map(vec![]));
            let fresh = open(None, "endpoints", Item::Map(vec![]));
            assert_eq!(to_hex(&encode(&fresh)), empty.replace(' ', ""));
            if kept {
                assert_eq!(Some(record), decode(&bytes), "{stored}");
            } else {
                assert_eq!(record, fresh, "{stored}");
            }
        }
    }

    #[test]
    fn a_value_has_at_most_262144_bytes() {
        let record = |padding: usize| {
            Item::map([
                ("v", VERSION),
                ("endpoints", Item::Map(vec![])),
                ("x", Item::Bytes(vec![0; padding])),
            ])
        };
        let most = VALUE_LIMIT - encoded_len(&record(0x1_0000)) + 0x1_0000;
        let bytes = close(&record(most)).expect("it fits");
        assert_eq!(bytes.len(), VALUE_LIMIT);
        assert_eq!(
            open(Some(&bytes), "endpoints", Item::Map(vec![])),
            record(most)
        );

        let refusal = close(&record(most + 1)).expect_err("one byte too many");
        assert_eq!(
            refusal.0,
            "the value would be 1 bytes over the limit of 262144"
        );
        let bytes = encode(&record(most + 1));
        let fresh = open(None, "endpoints", Item::Map(vec![]));
        assert_eq!(open(Some(&bytes), "endpoints", Item::Map(vec![])), fresh);
    }

    #[test]
    fn moments() {
        for (t, ago, at) in [
            (None, None, 10_000),
            (None, Some(1000), 9_000),
            (None, Some(-1000), 11_000),
            (Some(5), Some(1000), 5),
            (None, Some(i64::MAX), 0),
        ] {
            assert_eq!(moment(t, ago, 10_000), at);
        }
    }
}
