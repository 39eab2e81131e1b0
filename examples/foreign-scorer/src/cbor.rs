//! CBOR (RFC 8949) as a tree that keeps what it does not understand: a writer of shared data changes
//! its part of a record and must give everything else back.

/// Arrays, maps and tags in one another; the outermost counts.
pub const MAX_DEPTH: u32 = 32;

/// One data item. Map entries keep their order and their duplicates.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Uint(u64),
    /// The number −1 − n.
    Negative(u64),
    Bytes(Vec<u8>),
    Text(String),
    Array(Vec<Item>),
    Map(Vec<(Item, Item)>),
    Tag(u64, Box<Item>),
    Simple(u8),
    /// Floats by their bits, so that payloads of NaN survive.
    Half(u16),
    Single(u32),
    Double(u64),
}

const FALSE: u8 = 20;
const TRUE: u8 = 21;

impl Item {
    pub fn text(text: &str) -> Self {
        Item::Text(text.to_owned())
    }

    pub fn bool(value: bool) -> Self {
        Item::Simple(if value { TRUE } else { FALSE })
    }

    /// The shortest float that is exactly this number.
    pub fn float(value: f64) -> Self {
        let single = value as f32;
        if f64::from(single) != value && !value.is_nan() {
            return Item::Double(value.to_bits());
        }
        exact_half(single).map_or(Item::Single(single.to_bits()), Item::Half)
    }

    /// A map with text keys.
    pub fn map<const N: usize>(entries: [(&str, Item); N]) -> Self {
        Item::Map(entries.map(|(key, value)| (Item::text(key), value)).into())
    }

    pub fn as_uint(&self) -> Option<u64> {
        match self {
            Item::Uint(n) => Some(*n),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Item::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[Item]> {
        match self {
            Item::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&[(Item, Item)]> {
        match self {
            Item::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Any integer or float.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Item::Uint(n) => Some(*n as f64),
            Item::Negative(n) => Some(-1.0 - *n as f64),
            Item::Half(bits) => Some(half_value(*bits)),
            Item::Single(bits) => Some(f64::from(f32::from_bits(*bits))),
            Item::Double(bits) => Some(f64::from_bits(*bits)),
            _ => None,
        }
    }

    /// Of this key in a map; of duplicates the last.
    pub fn get(&self, key: &str) -> Option<&Item> {
        let mut entries = self.as_map()?.iter().rev();
        entries
            .find(|(k, _)| k.as_text() == Some(key))
            .map(|(_, v)| v)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Item> {
        match self {
            Item::Map(entries) => entries
                .iter_mut()
                .rev()
                .find(|(k, _)| k.as_text() == Some(key))
                .map(|(_, v)| v),
            _ => None,
        }
    }

    /// Replaces the key's value where it stands, or adds it. Nothing happens to what is no map.
    pub fn set(&mut self, key: &str, value: Item) {
        if let Some(found) = self.get_mut(key) {
            *found = value;
        } else if let Item::Map(entries) = self {
            entries.push((Item::text(key), value));
        }
    }
}

/// The only item in `bytes`; nothing if it is cut, followed by more, too deep or not well-formed.
pub fn decode(bytes: &[u8]) -> Option<Item> {
    let mut reader = Reader { rest: bytes };
    let item = reader.item(MAX_DEPTH)?;
    reader.rest.is_empty().then_some(item)
}

const BREAK: u8 = 0xff;

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(n).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn unsigned(&mut self, width: u64) -> Option<u64> {
        let bytes = self.take(width)?;
        Some(bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    /// Major type, additional information, and the argument unless the length is indefinite.
    fn head(&mut self) -> Option<(u8, u8, Option<u64>)> {
        let initial = *self.take(1)?.first()?;
        let (major, info) = (initial >> 5, initial & 31);
        let argument = match info {
            0..=23 => Some(u64::from(info)),
            24 => Some(self.unsigned(1)?),
            25 => Some(self.unsigned(2)?),
            26 => Some(self.unsigned(4)?),
            27 => Some(self.unsigned(8)?),
            31 => None,
            _ => return None,
        };
        Some((major, info, argument))
    }

    fn item(&mut self, levels: u32) -> Option<Item> {
        let item = match self.head()? {
            (0, _, Some(n)) => Item::Uint(n),
            (1, _, Some(n)) => Item::Negative(n),
            (2, _, Some(n)) => Item::Bytes(self.take(n)?.to_vec()),
            (2, _, None) => Item::Bytes(self.chunks(2, |bytes| Some(bytes.to_vec()))?.concat()),
            (3, _, Some(n)) => Item::Text(utf8(self.take(n)?)?),
            (3, _, None) => Item::Text(self.chunks(3, utf8)?.concat()),
            (4, _, length) => {
                let mut items = Vec::new();
                let levels = levels.checked_sub(1)?;
                let mut left = length;
                while self.goes_on(&mut left)? {
                    items.push(self.item(levels)?);
                }
                Item::Array(items)
            }
            (5, _, length) => {
                let mut entries = Vec::new();
                let levels = levels.checked_sub(1)?;
                let mut left = length;
                while self.goes_on(&mut left)? {
                    entries.push((self.item(levels)?, self.item(levels)?));
                }
                Item::Map(entries)
            }
            (6, _, Some(tag)) => Item::Tag(tag, Box::new(self.item(levels.checked_sub(1)?)?)),
            (7, 25, Some(bits)) => Item::Half(u16::try_from(bits).ok()?),
            (7, 26, Some(bits)) => Item::Single(u32::try_from(bits).ok()?),
            (7, 27, Some(bits)) => Item::Double(bits),
            // Two bytes for a value below 32 are not well-formed.
            (7, 24, Some(0..=31)) => return None,
            (7, _, Some(n)) => Item::Simple(u8::try_from(n).ok()?),
            _ => return None,
        };
        Some(item)
    }

    /// Whether another element follows: counts `left` down, or takes the break.
    fn goes_on(&mut self, left: &mut Option<u64>) -> Option<bool> {
        match left {
            Some(0) => Some(false),
            Some(n) => {
                *n -= 1;
                Some(true)
            }
            None if *self.rest.first()? == BREAK => {
                self.take(1)?;
                Some(false)
            }
            None => Some(true),
        }
    }

    /// The pieces of a string of indefinite length: each a definite one of the same type.
    fn chunks<T>(&mut self, major: u8, piece: impl Fn(&[u8]) -> Option<T>) -> Option<Vec<T>> {
        let mut pieces = Vec::new();
        while self.goes_on(&mut None)? {
            match self.head()? {
                (m, _, Some(n)) if m == major => pieces.push(piece(self.take(n)?)?),
                _ => return None,
            }
        }
        Some(pieces)
    }
}

fn utf8(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// In RFC 8949's preferred form: shortest heads, definite lengths.
pub fn encode(item: &Item) -> Vec<u8> {
    let mut out = Vec::new();
    write(item, &mut out);
    out
}

/// The bytes that `encode` makes of it.
pub fn encoded_len(item: &Item) -> usize {
    let content = match item {
        Item::Bytes(bytes) => bytes.len(),
        Item::Text(text) => text.len(),
        Item::Array(items) => items.iter().map(encoded_len).sum(),
        Item::Map(entries) => entries
            .iter()
            .map(|(key, value)| encoded_len(key) + encoded_len(value))
            .sum(),
        Item::Tag(_, inner) => encoded_len(inner),
        Item::Half(_) => 2,
        Item::Single(_) => 4,
        Item::Double(_) => 8,
        Item::Uint(_) | Item::Negative(_) | Item::Simple(_) => 0,
    };
    let head = match head_of(item) {
        None | Some((_, 0..=23)) => 1,
        Some((_, 24..=0xff)) => 2,
        Some((_, 0x100..=0xffff)) => 3,
        Some((_, 0x1_0000..=0xffff_ffff)) => 5,
        Some(_) => 9,
    };
    head + content
}

/// Major type and argument; nothing for floats.
fn head_of(item: &Item) -> Option<(u8, u64)> {
    Some(match item {
        Item::Uint(n) => (0, *n),
        Item::Negative(n) => (1, *n),
        Item::Bytes(bytes) => (2, bytes.len() as u64),
        Item::Text(text) => (3, text.len() as u64),
        Item::Array(items) => (4, items.len() as u64),
        Item::Map(entries) => (5, entries.len() as u64),
        Item::Tag(tag, _) => (6, *tag),
        Item::Simple(n) => (7, u64::from(*n)),
        Item::Half(_) | Item::Single(_) | Item::Double(_) => return None,
    })
}

fn write(item: &Item, out: &mut Vec<u8>) {
    if let Some((major, argument)) = head_of(item) {
        write_head(major << 5, argument, out);
    }
    match item {
        Item::Bytes(bytes) => out.extend(bytes),
        Item::Text(text) => out.extend(text.as_bytes()),
        Item::Array(items) => items.iter().for_each(|item| write(item, out)),
        Item::Map(entries) => entries.iter().for_each(|(key, value)| {
            write(key, out);
            write(value, out);
        }),
        Item::Tag(_, inner) => write(inner, out),
        Item::Half(bits) => {
            out.push(0xf9);
            out.extend(bits.to_be_bytes());
        }
        Item::Single(bits) => {
            out.push(0xfa);
            out.extend(bits.to_be_bytes());
        }
        Item::Double(bits) => {
            out.push(0xfb);
            out.extend(bits.to_be_bytes());
        }
        Item::Uint(_) | Item::Negative(_) | Item::Simple(_) => {}
    }
}

fn write_head(major: u8, argument: u64, out: &mut Vec<u8>) {
    if let Ok(n) = u8::try_from(argument) {
        if n < 24 {
            out.push(major | n);
        } else {
            out.extend([major | 24, n]);
        }
    } else if let Ok(n) = u16::try_from(argument) {
        out.push(major | 25);
        out.extend(n.to_be_bytes());
    } else if let Ok(n) = u32::try_from(argument) {
        out.push(major | 26);
        out.extend(n.to_be_bytes());
    } else {
        out.push(major | 27);
        out.extend(argument.to_be_bytes());
    }
}

const HALF_INFINITY: u16 = 0x7c00;
const HALF_NAN: u16 = 0x7e00;

/// The half-precision bits of exactly this number, if there are any.
fn exact_half(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let exponent = i32::try_from(bits >> 23 & 0xff).ok()? - 127;
    let fraction = bits & 0x7f_ffff;
    let magnitude = match exponent {
        128 if value.is_nan() => return Some(HALF_NAN),
        128 => u32::from(HALF_INFINITY),
        // The exponent is biased by 15 and ten bits of the fraction remain.
        -14..=15 if fraction & 0x1fff == 0 => {
            u32::try_from(exponent + 15).ok()? << 10 | fraction >> 13
        }
        // Subnormal: multiples of 2^-24.
        -24..=-15 => {
            let significand = fraction | 0x80_0000;
            let shift = u32::try_from(-1 - exponent).ok()?;
            if significand.trailing_zeros() < shift {
                return None;
            }
            significand >> shift
        }
        _ if value == 0.0 => 0,
        _ => return None,
    };
    Some(sign | u16::try_from(magnitude).ok()?)
}

fn half_value(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match bits >> 10 & 0x1f {
        0 => fraction * 2f64.powi(-24),
        31 if bits & 0x3ff == 0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    };
    if bits & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::{from_hex, to_hex};

    fn decoded(hex: &str) -> Option<Item> {
        decode(&from_hex(hex).expect("hex"))
    }

    #[test]
    fn floats_take_the_shortest_exact_form() {
        for (value, hex) in [
            (0.0, "f90000"),
            (-0.0, "f98000"),
            (1.0, "f93c00"),
            (2.5, "f94100"),
            (65504.0, "f97bff"),
            (5.960464477539063e-8, "f90001"),
            (0.00006103515625, "f90400"),
            (0.000030517578125, "f90200"),
            (f64::INFINITY, "f97c00"),
            (f64::NAN, "f97e00"),
            (65505.0, "fa477fe100"),
            (100000.0, "fa47c35000"),
            (2.9802322387695312e-8, "fa33000000"),
            (3.4028234663852886e+38, "fa7f7fffff"),
            (1.1, "fb3ff199999999999a"),
            (1.0e300, "fb7e37e43c8800759c"),
        ] {
            let item = Item::float(value);
            assert_eq!(to_hex(&encode(&item)), hex, "{value}");
            let back = decoded(hex).and_then(|i| i.as_number()).expect("a number");
            assert!(
                back.to_bits() == value.to_bits() || value.is_nan() && back.is_nan(),
                "{value} {back}"
            );
        }
    }

    #[test]
    fn every_half_keeps_its_value() {
        for bits in 0..=u16::MAX {
            let value = half_value(bits);
            if !value.is_nan() {
                assert_eq!(Item::float(value), Item::Half(bits));
            }
        }
    }

    #[test]
    fn other_forms_say_the_same() {
        for (hex, preferred) in [
            ("1800", "00"),
            ("1b0000000000000007", "07"),
            ("3b0000000000000000", "20"),
            ("1bffffffffffffffff", "1bffffffffffffffff"),
            ("5f42010243030405ff", "450102030405"),
            ("7f657374726561646d696e67ff", "6973747265616d696e67"),
            ("7f61766131ff", "627631"),
            ("9f018202039f0405ffff", "8301820203820405"),
            ("bf61610161629f0203ffff", "a26161016162820203"),
            ("98020102", "820102"),
            ("b801617601", "a1617601"),
            ("d9d9f7a0", "d9d9f7a0"),
            ("f0", "f0"),
            ("f8ff", "f8ff"),
            ("f7", "f7"),
            ("f97e01", "f97e01"),
            ("a10102", "a10102"),
        ] {
            let item = decoded(hex).unwrap_or_else(|| panic!("{hex}"));
            assert_eq!(to_hex(&encode(&item)), preferred, "{hex}");
            assert_eq!(encoded_len(&item), preferred.len() / 2, "{hex}");
        }
    }

    #[test]
    fn what_is_not_well_formed_is_nothing() {
        for hex in [
            "",
            "18",
            "1c",
            "1d",
            "1e",
            "1f",
            "3f",
            "df",
            "ff",
            "61",
            "62c3",
            "61c3",
            "62c328",
            "8201",
            "a101",
            "9f01",
            "bf01ff",
            "9fffff",
            "0000",
            "f800",
            "f81f",
            "5f6161ff",
            "7f5f6161ffff",
            "7f61c361a9ff",
            "c1",
            "9b00000000ffffffff01",
            "5bffffffffffffffff00",
        ] {
            assert_eq!(decoded(hex), None, "{hex}");
        }
    }

    #[test]
    fn the_thirty_third_level_is_too_deep() {
        for (open, close) in [("81", "00"), ("c1", "00"), ("a100", "00"), ("9f", "ff")] {
            let nested = |levels: usize| {
                let tail = if close == "ff" {
                    close.repeat(levels)
                } else {
                    close.into()
                };
                open.repeat(levels) + &tail
            };
            assert!(decoded(&nested(32)).is_some(), "{open}");
            assert_eq!(decoded(&nested(33)), None, "{open}");
        }
    }

    #[test]
    fn of_duplicate_keys_the_last_counts_and_is_the_one_replaced() {
        let mut map = decoded("a3617601617802617603").expect("a map");
        assert_eq!(map.get("v"), Some(&Item::Uint(3)));
        map.set("v", Item::Uint(4));
        map.set("w", Item::Uint(5));
        assert_eq!(map.get("v"), Some(&Item::Uint(4)));
        assert_eq!(map.get("w"), Some(&Item::Uint(5)));
        assert_eq!(map.get("z"), None);
    }

    #[test]
    fn lengths_are_those_of_the_encoding() {
        for size in [0, 23, 24, 255, 256, 65_535, 65_536] {
            let item = Item::Array(vec![
                Item::Text("x".repeat(size)),
                Item::Bytes(vec![0; size]),
                Item::Tag(size as u64, Box::new(Item::Uint(size as u64))),
                Item::Negative(size as u64),
                Item::float(1.1),
                Item::float(65505.0),
                Item::float(1.0),
            ]);
            assert_eq!(encoded_len(&item), encode(&item).len(), "{size}");
        }
    }
}
