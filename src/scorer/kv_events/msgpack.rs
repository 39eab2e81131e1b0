//! MessagePack read in place: items are slices of the payload, nothing is copied and nothing
//! recurses, so neither a length nor a depth that a payload claims costs anything.

use rmp::Marker;
use rmp::decode::{Bytes, RmpRead, read_marker};

/// The head of an item, with the content of those that have no items inside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    /// Below zero.
    Int(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// Items that follow.
    Array(u32),
    /// Pairs that follow.
    Map(u32),
    Ext,
}

/// What is left of a payload. A method that returns `None` found it cut or invalid, and the cursor
/// stands anywhere then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next head, and past it.
    pub fn next(&mut self) -> Option<Value<'a>> {
        let mut rd = Bytes::new(self.rest);
        let mut len = None;
        let value = match read_marker(&mut rd).ok()? {
            Marker::Null => Value::Nil,
            Marker::False => Value::Bool(false),
            Marker::True => Value::Bool(true),
            Marker::FixPos(n) => Value::Uint(n.into()),
            Marker::U8 => Value::Uint(rd.read_data_u8().ok()?.into()),
            Marker::U16 => Value::Uint(rd.read_data_u16().ok()?.into()),
            Marker::U32 => Value::Uint(rd.read_data_u32().ok()?.into()),
            Marker::U64 => Value::Uint(rd.read_data_u64().ok()?),
            Marker::FixNeg(n) => int(n.into()),
            Marker::I8 => int(rd.read_data_i8().ok()?.into()),
            Marker::I16 => int(rd.read_data_i16().ok()?.into()),
            Marker::I32 => int(rd.read_data_i32().ok()?.into()),
            Marker::I64 => int(rd.read_data_i64().ok()?),
            Marker::F32 => Value::Float(rd.read_data_f32().ok()?.into()),
            Marker::F64 => Value::Float(rd.read_data_f64().ok()?),
            Marker::FixStr(n) => content(&mut len, n.into(), Value::Str),
            Marker::Str8 => content(&mut len, rd.read_data_u8().ok()?.into(), Value::Str),
            Marker::Str16 => content(&mut len, rd.read_data_u16().ok()?.into(), Value::Str),
            Marker::Str32 => content(&mut len, rd.read_data_u32().ok()?, Value::Str),
            Marker::Bin8 => content(&mut len, rd.read_data_u8().ok()?.into(), Value::Bin),
            Marker::Bin16 => content(&mut len, rd.read_data_u16().ok()?.into(), Value::Bin),
            Marker::Bin32 => content(&mut len, rd.read_data_u32().ok()?, Value::Bin),
            Marker::FixArray(n) => Value::Array(n.into()),
            Marker::Array16 => Value::Array(rd.read_data_u16().ok()?.into()),
            Marker::Array32 => Value::Array(rd.read_data_u32().ok()?),
            Marker::FixMap(n) => Value::Map(n.into()),
            Marker::Map16 => Value::Map(rd.read_data_u16().ok()?.into()),
            Marker::Map32 => Value::Map(rd.read_data_u32().ok()?),
            Marker::FixExt1 => ext(&mut len, 1),
            Marker::FixExt2 => ext(&mut len, 2),
            Marker::FixExt4 => ext(&mut len, 4),
            Marker::FixExt8 => ext(&mut len, 8),
            Marker::FixExt16 => ext(&mut len, 16),
            Marker::Ext8 => ext(&mut len, rd.read_data_u8().ok()?.into()),
            Marker::Ext16 => ext(&mut len, rd.read_data_u16().ok()?.into()),
            Marker::Ext32 => ext(&mut len, rd.read_data_u32().ok()?),
            Marker::Reserved => return None,
        };
        self.rest = rd.remaining_slice();
        let Some(len) = len else {
            return Some(value);
        };
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(match value {
            Value::Str(_) => Value::Str(bytes),
            Value::Bin(_) => Value::Bin(bytes),
            other => other,
        })
    }

    /// Past the next item, however deep it is.
    pub fn skip(&mut self) -> Option<()> {
        let mut left = 1u64;
        while let Some(rest) = left.checked_sub(1) {
            left = rest.saturating_add(match self.next()? {
                Value::Array(n) => n.into(),
                Value::Map(n) => u64::from(n).saturating_mul(2),
                _ => 0,
            });
        }
        Some(())
    }

    /// The next item as it stands, and past it.
    pub fn item(&mut self) -> Option<Self> {
        let before = self.rest;
        self.skip()?;
        let len = before.len().checked_sub(self.rest.len())?;
        Some(Self::new(before.get(..len)?))
    }
}

/// Positive numbers come as unsigned, however wide they were written.
fn int<'a>(n: i64) -> Value<'a> {
    u64::try_from(n).map_or(Value::Int(n), Value::Uint)
}

/// The head says how long the content is; it is cut off in one place.
fn content<'a>(
    len: &mut Option<u64>,
    n: u32,
    value: impl FnOnce(&'a [u8]) -> Value<'a>,
) -> Value<'a> {
    *len = Some(n.into());
    value(&[])
}

fn ext<'a>(len: &mut Option<u64>, n: u32) -> Value<'a> {
    // One byte of type before the data.
    *len = Some(u64::from(n).saturating_add(1));
    Value::Ext
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn heads() {
        let table: &[(&[u8], Option<Value<'_>>)] = &[
            (b"\xc0", Some(Value::Nil)),
            (b"\xc2", Some(Value::Bool(false))),
            (b"\xc3", Some(Value::Bool(true))),
            (b"\x7f", Some(Value::Uint(127))),
            (b"\xcc\xff", Some(Value::Uint(255))),
            (b"\xcd\x01\x00", Some(Value::Uint(256))),
            (b"\xce\x00\x01\x00\x00", Some(Value::Uint(65_536))),
            (
                b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
                Some(Value::Uint(u64::MAX)),
            ),
            (b"\xff", Some(Value::Int(-1))),
            (b"\xd0\x80", Some(Value::Int(-128))),
            (b"\xd0\x05", Some(Value::Uint(5))),
            (b"\xd1\x80\x00", Some(Value::Int(-32_768))),
            (b"\xd2\xff\xff\xff\xff", Some(Value::Int(-1))),
            (
                b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
                Some(Value::Int(i64::MIN)),
            ),
            (b"\xca\x3f\xc0\x00\x00", Some(Value::Float(1.5))),
            (b"\xcb\x3f\xf8\0\0\0\0\0\0", Some(Value::Float(1.5))),
            (b"\xa2hi", Some(Value::Str(b"hi"))),
            (b"\xd9\x02hi", Some(Value::Str(b"hi"))),
            (b"\xda\x00\x02hi", Some(Value::Str(b"hi"))),
            (b"\xdb\x00\x00\x00\x02hi", Some(Value::Str(b"hi"))),
            (b"\xc4\x02hi", Some(Value::Bin(b"hi"))),
            (b"\xc5\x00\x02hi", Some(Value::Bin(b"hi"))),
            (b"\xc6\x00\x00\x00\x02hi", Some(Value::Bin(b"hi"))),
            (b"\x93", Some(Value::Array(3))),
            (b"\xdc\x00\x03", Some(Value::Array(3))),
            (b"\xdd\xff\xff\xff\xff", Some(Value::Array(u32::MAX))),
            (b"\x83", Some(Value::Map(3))),
            (b"\xde\x00\x03", Some(Value::Map(3))),
            (b"\xdf\xff\xff\xff\xff", Some(Value::Map(u32::MAX))),
            (b"\xd4\x01\x02", Some(Value::Ext)),
            (b"\xc7\x01\x05\x02", Some(Value::Ext)),
            (b"\xc1", None),
            (b"", None),
            (b"\xcd\x01", None),
            (b"\xa2h", None),
            (b"\xdb\xff\xff\xff\xffhi", None),
            (b"\xc6\xff\xff\xff\xffhi", None),
            (b"\xd4\x01", None),
            (b"\xc9\xff\xff\xff\xff\x01", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(Cursor::new(bytes).next(), *expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn an_item_is_passed_whole() {
        // [1, {"a": [2, 3]}, ext], 4
        let bytes = b"\x93\x01\x81\xa1a\x92\x02\x03\xd4\x01\x02\x04";
        let mut cursor = Cursor::new(bytes);
        assert_eq!(cursor.item(), Some(Cursor::new(&bytes[..11])));
        assert_eq!(cursor.next(), Some(Value::Uint(4)));
        assert!(cursor.is_empty());
        assert_eq!(cursor.item(), None);
        for cut in 0..11 {
            assert_eq!(Cursor::new(&bytes[..cut]).item(), None, "{cut}");
        }
    }

    #[test]
    fn bombs_end_with_their_bytes() {
        for byte in [0x9f, 0x8f, 0xdd, 0xdf] {
            assert_eq!(Cursor::new(&vec![byte; 1 << 20]).skip(), None);
        }
        // A million levels, closed: passed without a stack.
        let deep = [vec![0x91; 1 << 20], vec![0xc0]].concat();
        assert_eq!(Cursor::new(&deep).skip(), Some(()));
    }
}
