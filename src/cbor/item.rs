//! A reader of CBOR (RFC 8949) in place: the bytes are checked once, then walked without copies.
//!
//! Buckets are read on the request path and most of what is in them belongs to other requests; a
//! decoder that builds values spends nearly all its time on those. ciborium is the oracle in the
//! tests.

use crate::cbor;
use std::borrow::Cow;

use super::runs::Runs;
use super::skip::{BREAK, MAX_NESTING, initial, skip};

/// One well-formed item: exactly its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    bytes: &'a [u8],
}

/// What an item is.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    Uint(u64),
    /// −1 − n.
    Negative,
    Text,
    Array(List<'a>),
    Map(Map<'a>),
    Bool(bool),
    Float(f64),
    /// Byte strings, tags, null, undefined, other simple values: nothing a record uses.
    Other,
}

/// The elements of an array.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    items: Items<'a>,
}

/// The pairs of a map.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    items: Items<'a>,
}

/// Items that follow each other.
#[derive(Clone, Copy, Debug)]
struct Items<'a> {
    rest: &'a [u8],
    /// `None`: up to a break.
    left: Option<u64>,
}

impl<'a> Item<'a> {
    /// One well-formed item and nothing after it.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let rest = skip::<true>(bytes, MAX_NESTING, Some(&mut Runs::default()))?;
        rest.is_empty().then_some(Self { bytes })
    }

    /// Of bytes that are one well-formed item.
    pub(super) const fn checked(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub const fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    pub fn kind(self) -> Kind<'a> {
        let Some((first, argument, rest)) = initial(self.bytes) else {
            return Kind::Other;
        };
        let items = |left| Items { rest, left };
        match (first >> 5, argument) {
            (0, Some(n)) => Kind::Uint(n),
            (1, _) => Kind::Negative,
            (3, _) => Kind::Text,
            (4, len) => Kind::Array(List { items: items(len) }),
            // Two items a pair. No overflow: a pair takes two bytes at least.
            (5, len) => Kind::Map(Map {
                items: items(len.map(|n| n.saturating_mul(2))),
            }),
            (7, Some(n)) => simple_or_float(first, n),
            _ => Kind::Other,
        }
    }

    /// A non-negative integer of any encoded width; not a float.
    pub fn uint(self) -> Option<u64> {
        match self.kind() {
            Kind::Uint(n) => Some(n),
            _ => None,
        }
    }

    pub fn array(self) -> Option<List<'a>> {
        match self.kind() {
            Kind::Array(list) => Some(list),
            _ => None,
        }
    }

    pub fn map(self) -> Option<Map<'a>> {
        match self.kind() {
            Kind::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn text(self) -> Option<Cow<'a, str>> {
        let (first, len, rest) = initial(self.bytes)?;
        if first >> 5 != 3 {
            return None;
        }
        if len.is_some() {
            return std::str::from_utf8(rest).ok().map(Cow::Borrowed);
        }
        let mut joined = String::new();
        for chunk in (Items { rest, left: None }) {
            let (_, _, bytes) = initial(chunk.bytes)?;
            joined.push_str(std::str::from_utf8(bytes).ok()?);
        }
        Some(Cow::Owned(joined))
    }

    pub fn is_null(self) -> bool {
        self.bytes == [cbor::NULL]
    }

    /// A byte string in one piece.
    pub fn byte_string(self) -> Option<&'a [u8]> {
        let (first, len, rest) = initial(self.bytes)?;
        (first >> 5 == 2 && len.is_some()).then_some(rest)
    }

    pub fn is_text(self, wanted: &str) -> bool {
        match initial(self.bytes) {
            Some((first, Some(_), rest)) => first >> 5 == 3 && rest == wanted.as_bytes(),
            Some((0x7f, None, _)) => self.text().is_some_and(|t| t == wanted),
            _ => false,
        }
    }
}

impl<'a> List<'a> {
    pub fn iter(self) -> impl Iterator<Item = Item<'a>> {
        self.items
    }

    /// Exactly two elements.
    pub fn pair(self) -> Option<(Item<'a>, Item<'a>)> {
        let mut items = self.items;
        let pair = (items.next()?, items.next()?);
        items.next().is_none().then_some(pair)
    }
}

impl<'a> Map<'a> {
    pub const EMPTY: Self = Self {
        items: Items {
            rest: &[],
            left: Some(0),
        },
    };

    pub fn iter(self) -> impl Iterator<Item = (Item<'a>, Item<'a>)> {
        let mut items = self.items;
        std::iter::from_fn(move || Some((items.next()?, items.next()?)))
    }

    /// Of duplicate keys the last one counts, as in most decoders that build a map.
    pub fn get(self, key: &str) -> Option<Item<'a>> {
        let [value] = self.pick([key]);
        value
    }

    /// As [`Self::get`], several keys in one pass.
    pub fn pick<const N: usize>(self, keys: [&str; N]) -> [Option<Item<'a>>; N] {
        let mut values = [None; N];
        for (key, value) in self.iter() {
            let named = keys.iter().position(|k| key.is_text(k));
            if let Some(slot) = named.and_then(|i| values.get_mut(i)) {
                *slot = Some(value);
            }
        }
        values
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        match &mut self.left {
            Some(left) => *left = left.checked_sub(1)?,
            None if self.rest.first() == Some(&BREAK) => return None,
            None => {}
        }
        let after = skip::<false>(self.rest, MAX_NESTING, None)?;
        let len = self.rest.len().checked_sub(after.len())?;
        let bytes = self.rest.get(..len)?;
        self.rest = after;
        Some(Item { bytes })
    }
}

fn simple_or_float<'a>(first: u8, argument: u64) -> Kind<'a> {
    match first {
        0xf4 => Kind::Bool(false),
        0xf5 => Kind::Bool(true),
        0xf9 => u16::try_from(argument).map_or(Kind::Other, |b| Kind::Float(half(b))),
        0xfa => u32::try_from(argument)
            .map_or(Kind::Other, |b| Kind::Float(f64::from(f32::from_bits(b)))),
        0xfb => Kind::Float(f64::from_bits(argument)),
        _ => Kind::Other,
    }
}

/// IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let exponent = i32::from((bits >> 10) & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent.saturating_sub(15)),
    };
    if bits >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn kind_of(bytes: &[u8]) -> String {
        match Item::parse(bytes).map(Item::kind) {
            None => "malformed".to_owned(),
            Some(Kind::Text) => format!("text {}", Item::parse(bytes).unwrap().text().unwrap()),
            Some(Kind::Array(list)) => format!("array of {}", list.iter().count()),
            Some(Kind::Map(map)) => format!("map of {}", map.iter().count()),
            Some(other) => format!("{other:?}"),
        }
    }

    /// Examples of RFC 8949 appendix A, and malformed ones of appendix F.
    #[test]
    fn rfc_examples() {
        let table: &[(&[u8], &str)] = &[
            (b"\x00", "Uint(0)"),
            (b"\x17", "Uint(23)"),
            (b"\x18\x18", "Uint(24)"),
            (b"\x19\x03\xe8", "Uint(1000)"),
            (b"\x1a\x00\x0f\x42\x40", "Uint(1000000)"),
            (
                b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
                "Uint(18446744073709551615)",
            ),
            (b"\x20", "Negative"),
            (b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff", "Negative"),
            (b"\xf9\x00\x00", "Float(0.0)"),
            (b"\xf9\x80\x00", "Float(-0.0)"),
            (b"\xf9\x3c\x00", "Float(1.0)"),
            (b"\xf9\x3e\x00", "Float(1.5)"),
            (b"\xf9\x7b\xff", "Float(65504.0)"),
            (b"\xf9\x00\x01", "Float(5.960464477539063e-8)"),
            (b"\xf9\x04\x00", "Float(6.103515625e-5)"),
            (b"\xf9\xc4\x00", "Float(-4.0)"),
            (b"\xfa\x47\xc3\x50\x00", "Float(100000.0)"),
            (b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a", "Float(1.1)"),
            (b"\xf9\x7c\x00", "Float(inf)"),
            (b"\xf9\xfc\x00", "Float(-inf)"),
            (b"\xf9\x7e\x00", "Float(NaN)"),
            (b"\xfa\x7f\xc0\x00\x00", "Float(NaN)"),
            (b"\xf4", "Bool(false)"),
            (b"\xf5", "Bool(true)"),
            (b"\xf6", "Other"),
            (b"\xf7", "Other"),
            (b"\xf0", "Other"),
            (b"\xf8\xff", "Other"),
            (b"\xc1\x1a\x51\x4b\x67\xb0", "Other"),
            (b"\x44\x01\x02\x03\x04", "Other"),
            (b"\x5f\x42\x01\x02\x43\x03\x04\x05\xff", "Other"),
            (b"\x60", "text "),
            (b"\x62\xc3\xbc", "text \u{fc}"),
            (b"\x7f\x65strea\x64ming\xff", "text streaming"),
            (b"\x7f\xff", "text "),
            (b"\x80", "array of 0"),
            (b"\x83\x01\x82\x02\x03\x82\x04\x05", "array of 3"),
            (b"\x9f\x01\x82\x02\x03\x9f\x04\x05\xff\xff", "array of 3"),
            (b"\xa2\x61a\x01\x61b\x82\x02\x03", "map of 2"),
            (b"\xbf\x61a\x01\x61b\x9f\x02\x03\xff\xff", "map of 2"),
            // Malformed.
            (b"", "malformed"),
            (b"\x18", "malformed"),
            (b"\x1b\x00\x00\x00\x00\x00\x00\x00", "malformed"),
            (b"\xf8\x18", "malformed"),
            (b"\xf8", "malformed"),
            (b"\x41", "malformed"),
            (b"\x61", "malformed"),
            (b"\x62\xc3", "malformed"),
            (b"\x61\xff", "malformed"),
            (b"\x81", "malformed"),
            (b"\xa1\x00", "malformed"),
            (b"\xbf\x00\xff", "malformed"),
            (b"\x9f", "malformed"),
            (b"\x9f\xff\xff", "malformed"),
            (b"\x5f\x61a\xff", "malformed"),
            (b"\x7f\x41a\xff", "malformed"),
            (b"\x7f\x7f\x61a\xff\xff", "malformed"),
            (b"\x7f\x61\xc3\x61\xbc\xff", "malformed"),
            (b"\x7f\x61a", "malformed"),
            (b"\x1c", "malformed"),
            (b"\x1f", "malformed"),
            (b"\x3f", "malformed"),
            (b"\xdf", "malformed"),
            (b"\xff", "malformed"),
            (b"\x81\xff", "malformed"),
            (b"\xc1", "malformed"),
            (b"\xc1\xff", "malformed"),
            (b"\x00\x00", "malformed"),
        ];
        for (bytes, expected) in table {
            assert_eq!(kind_of(bytes), *expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn items_are_found_by_key_and_place() {
        let bytes = b"\xa4\x61a\x01\x7f\x61a\xff\x02\x61b\x82\x03\x04\x05\x06";
        let map = Item::parse(bytes).unwrap().map().unwrap();
        assert_eq!(map.get("a").and_then(Item::uint), Some(2)); // the last one
        assert_eq!(map.get("c"), None);
        let list = map.get("b").unwrap().array().unwrap();
        let (three, four) = list.pair().unwrap();
        assert_eq!((three.bytes(), four.uint()), (&b"\x03"[..], Some(4)));
        assert!(
            Item::parse(b"\x81\x01")
                .unwrap()
                .array()
                .unwrap()
                .pair()
                .is_none()
        );
        assert!(
            Item::parse(b"\x83\x01\x02\x03")
                .unwrap()
                .array()
                .unwrap()
                .pair()
                .is_none()
        );
    }

    /// ciborium is the oracle.
    #[cfg(not(target_arch = "wasm32"))]
    mod against_ciborium {
        use super::*;
        use ciborium::Value;
        use proptest::prelude::*;

        /// Any value ciborium builds, without tags.
        fn value() -> impl Strategy<Value = Value> {
            let leaf = prop_oneof![
                any::<u64>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                (0..40u8).prop_map(Value::from),
                any::<f64>().prop_map(Value::Float),
                any::<f32>().prop_map(|f| Value::Float(f64::from(f))),
                (-70_000..70_000i32).prop_map(|n| Value::Float(f64::from(n) / 16.0)),
                any::<bool>().prop_map(Value::Bool),
                Just(Value::Null),
                ".{0,30}".prop_map(Value::Text),
                prop::collection::vec(any::<u8>(), 0..30).prop_map(Value::Bytes),
            ];
            leaf.prop_recursive(6, 64, 6, |inner| {
                prop_oneof![
                    prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                    prop::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Map),
                ]
            })
        }

        fn same(item: Item<'_>, value: &Value) -> bool {
            match (item.kind(), value) {
                (Kind::Uint(n), Value::Integer(i)) => u64::try_from(*i) == Ok(n),
                (Kind::Negative, Value::Integer(i)) => i128::from(*i) < 0,
                (Kind::Float(a), Value::Float(b)) => a == *b || (a.is_nan() && b.is_nan()),
                (Kind::Bool(a), Value::Bool(b)) => a == *b,
                (Kind::Text, Value::Text(t)) => {
                    item.text().as_deref() == Some(t)
                        && item.is_text(t)
                        && !item.is_text(&format!("{t}x"))
                }
                (Kind::Array(list), Value::Array(values)) => {
                    let items: Vec<_> = list.iter().collect();
                    items.len() == values.len()
                        && items.iter().zip(values).all(|(i, v)| same(*i, v))
                }
                (Kind::Map(map), Value::Map(values)) => {
                    let pairs: Vec<_> = map.iter().collect();
                    pairs.len() == values.len()
                        && pairs
                            .iter()
                            .zip(values)
                            .all(|((k, v), (k2, v2))| same(*k, k2) && same(*v, v2))
                }
                (Kind::Other, Value::Bytes(b)) => item.byte_string() == Some(b),
                (Kind::Other, Value::Null | Value::Tag(..)) => item.byte_string().is_none(),
                // ciborium reads small bignums as integers; here they are tags.
                (Kind::Other, Value::Integer(_)) => item.bytes()[0] >> 5 == 6,
                _ => false,
            }
        }

        /// Many begin alike.
        fn tiers() -> impl Strategy<Value = Vec<String>> {
            let names = [
                "gpu",
                "cpu",
                "storage",
                "storage@local",
                "storage@remote",
                "ü",
            ];
            prop::sample::subsequence(names.map(str::to_owned).to_vec(), 0..4)
        }

        fn ciborium_parse(bytes: &[u8]) -> Option<Value> {
            let mut rest = bytes;
            let limit = MAX_NESTING;
            let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, limit).ok()?;
            rest.is_empty().then_some(value)
        }

        /// In what only ciborium refuses: unassigned simple values, large bignums.
        fn odd(byte: &u8) -> bool {
            matches!(byte, 0xc2 | 0xc3 | 0xe0..=0xf3 | 0xf8 | 0xd8..=0xdb)
        }

        fn encoded(value: &Value) -> Vec<u8> {
            let mut bytes = Vec::new();
            ciborium::into_writer(value, &mut bytes).unwrap();
            bytes
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(300))]

            #[test]
            fn valid_values_are_read_the_same(value in value()) {
                let bytes = encoded(&value);
                let item = Item::parse(&bytes).unwrap();
                prop_assert!(same(item, &value));
            }

            #[test]
            fn mutated_values_are_read_the_same_or_refused(
                value in value(),
                edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
                cut in any::<Option<prop::sample::Index>>(),
            ) {
                let mut bytes = encoded(&value);
                for (at, byte) in edits {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                if let Some(cut) = cut {
                    bytes.truncate(cut.index(bytes.len()));
                }
                let (item, oracle) = (Item::parse(&bytes), ciborium_parse(&bytes));
                if let Some(oracle) = &oracle {
                    let item = item.expect("ciborium reads it");
                    prop_assert!(same(item, oracle));
                }
                if item.is_some() && oracle.is_none() {
                    prop_assert!(bytes.iter().any(odd), "{bytes:02x?}");
                }
            }

            /// Lists of tiers that come again and again, with something wrong in one of them.
            #[test]
            fn runs_are_read_the_same_or_refused(
                lists in prop::collection::vec(tiers(), 1..7),
                runs in prop::collection::vec((0..70_000_u32, any::<prop::sample::Index>()), 0..60),
                edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            ) {
                let run = |(blocks, list): &(u32, prop::sample::Index)| {
                    let names = list.get(&lists).iter().cloned().map(Value::Text);
                    Value::Array(vec![(*blocks).into(), Value::Array(names.collect())])
                };
                let value = Value::Array(runs.iter().map(run).collect());
                let mut bytes = encoded(&value);
                prop_assert!(Item::parse(&bytes).is_some_and(|item| same(item, &value)));
                for (at, byte) in edits {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                let (item, oracle) = (Item::parse(&bytes), ciborium_parse(&bytes));
                if let (Some(item), Some(oracle)) = (item, &oracle) {
                    prop_assert!(same(item, oracle));
                }
                if item.is_some() != oracle.is_some() {
                    prop_assert!(item.is_some() && bytes.iter().any(odd), "{bytes:02x?}");
                }
            }

            #[test]
            fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
                if let (Some(item), Some(oracle)) = (Item::parse(&bytes), ciborium_parse(&bytes)) {
                    prop_assert!(same(item, &oracle));
                }
            }
        }
    }
}
