//! The part of CBOR that every record shares: size, syntax, nesting, version, typed fields.

mod write;

pub use crate::cbor::{Cursor, Item, Kind, List, Map};
pub use write::Out;

use crate::json_value::{self, Json};

/// Readers refuse values above this many bytes before they decode them (DESIGN 7).
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// The contract's version, `"v"` of every public record.
pub(super) const VERSION: u64 = 1;

/// Why a whole value does not count. Treated as absent, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// More than [`MAX_VALUE_BYTES`], or than a record of this kind has.
    TooLarge,
    /// Not one well-formed CBOR item: cut, trailing bytes, invalid UTF-8, nested too deep.
    Cbor,
    /// `"v"` is there and is not 1.
    Version,
    /// Well-formed CBOR, but not a record of this kind.
    Shape,
}

impl Malformed {
    /// The `kind` label of the problem counters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "malformed_too_large",
            Self::Cbor => "malformed_cbor",
            Self::Version => "malformed_version",
            Self::Shape => "malformed_shape",
        }
    }
}

/// The fields of a version-1 record.
pub(super) fn record(bytes: &[u8]) -> Result<Map<'_>, Malformed> {
    if bytes.len() > MAX_VALUE_BYTES {
        return Err(Malformed::TooLarge);
    }
    let item = Item::parse(bytes).ok_or(Malformed::Cbor)?;
    let fields = item.map().ok_or(Malformed::Shape)?;
    version(fields.get("v"))?;
    Ok(fields)
}

/// Walks a version-1 record; `field` is called behind each key but `"v"` and passes what belongs to it.
/// What it finds counts only if the whole value does.
pub(super) fn walk_record<'a>(
    bytes: &'a [u8],
    mut field: impl FnMut(Item<'a>, &mut Cursor<'a>) -> Option<()>,
) -> Result<(), Malformed> {
    if bytes.len() > MAX_VALUE_BYTES {
        return Err(Malformed::TooLarge);
    }
    let mut v = None;
    let mut cursor = Cursor::new(bytes);
    let is_map = cursor.map(|key, cursor| {
        if key.is_text("v") {
            v = Some(cursor.item()?);
            return Some(());
        }
        field(key, cursor)
    });
    match is_map.filter(|_| cursor.is_at_end()) {
        None => Err(Malformed::Cbor),
        Some(false) => Err(Malformed::Shape),
        Some(true) => version(v),
    }
}

fn version(v: Option<Item<'_>>) -> Result<(), Malformed> {
    match v.map(Item::uint) {
        Some(Some(VERSION)) => Ok(()),
        Some(_) => Err(Malformed::Version),
        None => Err(Malformed::Shape),
    }
}

/// The fields of a record for a writer about to replace it: none if it must start afresh.
pub(super) fn old_record(old: Option<&[u8]>) -> Map<'_> {
    old.and_then(|bytes| record(bytes).ok())
        .unwrap_or(Map::EMPTY)
}

/// The record `{"v": 1, <key>: <body>, …foreign}`. Keys of `old` that are not ours follow in their
/// old order, so that another team's additions survive our writes; they are left out if the value
/// would be too large with them. `None` if it is too large without.
pub(super) fn encode_record(old: Map<'_>, key: &str, body: &[u8]) -> Option<Vec<u8>> {
    let foreign = |k: Item<'_>| !k.is_text("v") && !k.is_text(key);
    let foreign: Vec<_> = old.iter().filter(|(k, _)| foreign(*k)).collect();
    let with = |foreign: &[(Item<'_>, Item<'_>)]| {
        let mut out = Out::default();
        out.map(foreign.len().saturating_add(2));
        out.text("v").uint(VERSION).text(key).raw(body);
        for (key, value) in foreign {
            out.raw(key.bytes()).raw(value.bytes());
        }
        Some(out.into_bytes()).filter(|bytes| bytes.len() <= MAX_VALUE_BYTES)
    };
    with(&foreign).or_else(|| with(&[]))
}

/// JSON's values are a part of CBOR's. `None` if it is not one JSON text.
pub(super) fn json_to_cbor(json: &[u8]) -> Option<Vec<u8>> {
    let mut out = Out::default();
    put_json(&json_value::read(json).ok()?, &mut out);
    Some(out.into_bytes())
}

/// No deeper than the reader of JSON goes.
fn put_json(json: &Json, out: &mut Out) {
    match json {
        Json::Null => out.null(),
        Json::Bool(b) => out.bool(*b),
        Json::Unsigned(n) => out.uint(*n),
        Json::Signed(n) => out.int(*n),
        Json::Float(x) => out.float(*x),
        Json::Text(text) => out.text(text),
        Json::Array(items) => {
            out.array(items.len());
            items.iter().for_each(|item| put_json(item, out));
            out
        }
        Json::Object(members) => {
            out.map(members.len());
            for (key, value) in members {
                put_json(value, out.text(key));
            }
            out
        }
    };
}

/// Test records are written as JSON: same data model, keys in the order given.
#[cfg(test)]
pub(super) fn from_json(json: &str) -> Vec<u8> {
    json_to_cbor(json.as_bytes()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor::MAX_NESTING;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// `{"v":1,"x":<x>}`.
    fn with_x(x: &[u8]) -> Vec<u8> {
        [b"\xa2\x61v\x01\x61x".as_slice(), x].concat()
    }

    #[test]
    fn a_record_is_one_map_with_v_1() {
        let nested = |n: usize| with_x(&[vec![0x81; n], vec![0x00]].concat());
        let table: &[(&str, Vec<u8>, Result<(), Malformed>)] = &[
            ("smallest", b"\xa1\x61v\x01".to_vec(), Ok(())),
            ("indefinite map", b"\xbf\x61v\x01\xff".to_vec(), Ok(())),
            ("indefinite key", b"\xa1\x7f\x61v\xff\x01".to_vec(), Ok(())),
            (
                "v as u64",
                b"\xa1\x61v\x1b\0\0\0\0\0\0\0\x01".to_vec(),
                Ok(()),
            ),
            (
                "v twice, last counts",
                b"\xa2\x61v\x02\x61v\x01".to_vec(),
                Ok(()),
            ),
            (
                "v twice, last counts",
                b"\xa2\x61v\x01\x61v\x02".to_vec(),
                Err(Malformed::Version),
            ),
            ("v 2", b"\xa1\x61v\x02".to_vec(), Err(Malformed::Version)),
            (
                "v 1.0",
                b"\xa1\x61v\xf9\x3c\x00".to_vec(),
                Err(Malformed::Version),
            ),
            ("v -1", b"\xa1\x61v\x20".to_vec(), Err(Malformed::Version)),
            (
                "v \"1\"",
                b"\xa1\x61v\x611".to_vec(),
                Err(Malformed::Version),
            ),
            ("no v", b"\xa0".to_vec(), Err(Malformed::Shape)),
            ("array", b"\x81\x01".to_vec(), Err(Malformed::Shape)),
            ("nothing", b"".to_vec(), Err(Malformed::Cbor)),
            ("cut", b"\xa1\x61v".to_vec(), Err(Malformed::Cbor)),
            (
                "trailing byte",
                b"\xa1\x61v\x01\x00".to_vec(),
                Err(Malformed::Cbor),
            ),
            (
                "not UTF-8",
                b"\xa1\x61\xff\x01".to_vec(),
                Err(Malformed::Cbor),
            ),
            ("lone break", b"\xff".to_vec(), Err(Malformed::Cbor)),
            (
                "tagged record",
                b"\xd9\xd9\xf7\xa1\x61v\x01".to_vec(),
                Err(Malformed::Shape),
            ),
            (
                "a key that is no text",
                b"\xa2\x01\x02\x61v\x01".to_vec(),
                Ok(()),
            ),
            ("tagged unknown value", with_x(b"\xc1\x00"), Ok(())),
            ("bignum unknown value", with_x(b"\xc2\x42\x01\x00"), Ok(())),
            (
                "long bignum",
                with_x(&[b"\xc2\x58\x20".as_slice(), &[0xff; 32]].concat()),
                Ok(()),
            ),
            ("undefined unknown value", with_x(b"\xf7"), Ok(())),
            ("nested within the limit", nested(MAX_NESTING - 1), Ok(())),
            (
                "nested past the limit",
                nested(MAX_NESTING),
                Err(Malformed::Cbor),
            ),
            ("nesting bomb", nested(200_000), Err(Malformed::Cbor)),
            ("tag bomb", with_x(&[0xc1; 200_000]), Err(Malformed::Cbor)),
            (
                "indefinite bomb",
                with_x(&[0x9f; 200_000]),
                Err(Malformed::Cbor),
            ),
            (
                "array of 2^62",
                with_x(b"\x9b\x40\0\0\0\0\0\0\0"),
                Err(Malformed::Cbor),
            ),
            (
                "map of 2^62",
                with_x(b"\xbb\x40\0\0\0\0\0\0\0"),
                Err(Malformed::Cbor),
            ),
            (
                "text of 2^62",
                with_x(b"\x7b\x40\0\0\0\0\0\0\0abc"),
                Err(Malformed::Cbor),
            ),
            (
                "bytes of 2^64-1",
                with_x(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xffabc"),
                Err(Malformed::Cbor),
            ),
            (
                "too large",
                vec![0; MAX_VALUE_BYTES + 1],
                Err(Malformed::TooLarge),
            ),
        ];
        for (name, bytes, expected) in table {
            assert_eq!(record(bytes).map(|_| ()), *expected, "{name}");
        }
    }

    #[test]
    fn the_largest_value_is_decoded() {
        let filler = MAX_VALUE_BYTES - 11;
        let mut bytes = with_x(b"\x5a");
        bytes.extend(u32::try_from(filler).unwrap().to_be_bytes());
        bytes.extend(vec![0; filler]);
        assert_eq!(bytes.len(), MAX_VALUE_BYTES);
        assert!(record(&bytes).is_ok());
    }

    #[test]
    fn unsigned_integers_come_in_any_width() {
        let table: &[(&[u8], Option<u64>)] = &[
            (b"\x05", Some(5)),
            (b"\x18\x05", Some(5)),
            (b"\x19\x00\x05", Some(5)),
            (b"\x1a\x00\x00\x00\x05", Some(5)),
            (b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\xc2\x41\x05", None), // bignum
            (b"\x20", None),
            (b"\xf9\x45\x00", None), // 5.0
            (b"\x615", None),
            (b"\xf5", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(
                Item::parse(bytes).unwrap().uint(),
                *expected,
                "{bytes:02x?}"
            );
        }
    }

    #[test]
    fn json_is_read_as_ciborium_reads_it() {
        let nested = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        let (deep, deeper) = (nested(127), nested(128));
        let table: &[&[u8]] = &[
            br#"{"block_size":64,"tiers":{"gpu":4,"cpu":20},"partial":true}"#,
            br#"{"a":1,"b":null,"a":[false,"",{}]}"#,
            b"[0,23,24,255,256,65536,4294967296,18446744073709551615]",
            b"[-1,-24,-25,-256,-257,-9223372036854775808]",
            b"[18446744073709551616,-9223372036854775809,1.0,-0.0,-0,1.1,1e300]",
            br#""\u00fc\ud83d\ude00\n""#,
            b" 1 ",
            &deep,
            // None of it.
            &deeper,
            b"",
            b"1 1",
            b"[1,]",
            b"{1:2}",
            b"1e999",
            br#""\ud800""#,
            b"\"\xff\"",
        ];
        for json in table {
            let expected: Option<ciborium::Value> = serde_json::from_slice(json).ok();
            let read = |bytes: Vec<u8>| ciborium::from_reader(&bytes[..]).unwrap();
            let text = json.escape_ascii();
            assert_eq!(json_to_cbor(json).map(read), expected, "{text:.80}");
        }
    }
}
