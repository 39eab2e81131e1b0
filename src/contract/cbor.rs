//! The part of CBOR that every record shares: size, syntax, nesting, version, typed fields.

use ciborium::Value;

/// Readers refuse values above this many bytes before they decode them (DESIGN 7).
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Deepest nesting a value may have. Our records need 11 levels; the rest is for unknown keys.
const MAX_NESTING: usize = 32;

/// The contract's version, `"v"` of every public record.
pub(super) const VERSION: u64 = 1;

pub(super) type Map = Vec<(Value, Value)>;

/// Why a whole value does not count. Treated as absent, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// More than [`MAX_VALUE_BYTES`].
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

/// One CBOR item and nothing after it.
fn item(bytes: &[u8]) -> Result<Value, Malformed> {
    if bytes.len() > MAX_VALUE_BYTES {
        return Err(Malformed::TooLarge);
    }
    let mut rest = bytes;
    let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_NESTING)
        .map_err(|_| Malformed::Cbor)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(Malformed::Cbor)
    }
}

/// The fields of a version-1 record.
pub(super) fn record(bytes: &[u8]) -> Result<Map, Malformed> {
    let Value::Map(map) = item(bytes)? else {
        return Err(Malformed::Shape);
    };
    match field(&map, "v") {
        Some(v) if uint(v) == Some(VERSION) => Ok(map),
        Some(_) => Err(Malformed::Version),
        None => Err(Malformed::Shape),
    }
}

/// The fields of a record for a writer about to replace it: `None` to start afresh.
pub(super) fn old_record(old: Option<&[u8]>) -> Map {
    old.and_then(|bytes| record(bytes).ok()).unwrap_or_default()
}

/// Of duplicate keys the last one counts, as in most decoders that build a map.
pub(super) fn field<'a>(map: &'a [(Value, Value)], key: &str) -> Option<&'a Value> {
    map.iter()
        .rev()
        .find(|(k, _)| k.as_text() == Some(key))
        .map(|(_, v)| v)
}

/// A non-negative integer of any encoded width; not a float.
pub(super) fn uint(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|i| u64::try_from(i).ok())
}

pub(super) fn map(value: &Value) -> Option<&[(Value, Value)]> {
    value.as_map().map(Vec::as_slice)
}

pub(super) fn array(value: &Value) -> Option<&[Value]> {
    value.as_array().map(Vec::as_slice)
}

pub(super) fn text(key: &str) -> Value {
    Value::Text(key.to_owned())
}

/// Encodes the record `{"v": 1, <key>: <body>, …foreign}`. Keys of `old` that are not ours follow
/// in their old order, so that another team's additions survive our writes; they are left out if
/// the value would be too large with them. `None` if it is too large without.
pub(super) fn encode_record(old: &[(Value, Value)], key: &str, body: Value) -> Option<Vec<u8>> {
    let ours = |k: &Value| matches!(k.as_text(), Some(t) if t == "v" || t == key);
    let mut fields = vec![(text("v"), Value::from(VERSION)), (text(key), body)];
    let own_len = fields.len();
    fields.extend(old.iter().filter(|(k, _)| !ours(k)).cloned());
    let mut record = Value::Map(fields);
    let fits = |record: &Value| encode(record).filter(|out| out.len() <= MAX_VALUE_BYTES);
    if let Some(out) = fits(&record) {
        return Some(out);
    }
    record.as_map_mut()?.truncate(own_len);
    fits(&record)
}

/// Encoded bytes. `None` only if the encoder refuses, which it has no reason to.
pub(super) fn encode(value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    ciborium::into_writer(value, &mut out).ok()?;
    Some(out)
}

/// Test records are written as JSON: same data model, keys in the order given.
#[cfg(test)]
pub(super) fn from_json(json: &str) -> Vec<u8> {
    encode(&serde_json::from_str(json).unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
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
            (b"\xc2\x41\x05", Some(5)), // bignum
            (b"\x20", None),
            (b"\xf9\x45\x00", None), // 5.0
            (b"\x615", None),
            (b"\xf5", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(uint(&item(bytes).unwrap()), *expected, "{bytes:02x?}");
        }
    }
}
