//! MessagePack as msgspec writes it.

pub enum Item {
    Nil,
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<Item>),
    Map(Vec<(&'static str, Item)>),
    /// With a long head whatever its length: msgspec writes one for a class of more than 15 fields, before it
    /// knows how many it leaves out.
    WideMap(Vec<(&'static str, Item)>),
}

impl Item {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// Nil if there is nothing.
    pub fn or_nil<T>(value: Option<T>, item: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Nil, item)
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Uint(number) => uint(out, *number),
            Self::Float(number) => {
                out.push(0xcb);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::Text(text) => {
                length(out, text.len(), (0xa0, 32), Some(0xd9), 0xda);
                out.extend_from_slice(text.as_bytes());
            }
            Self::List(items) => {
                length(out, items.len(), (0x90, 16), None, 0xdc);
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(members) => {
                length(out, members.len(), (0x80, 16), None, 0xde);
                write_members(out, members);
            }
            Self::WideMap(members) => {
                length(out, members.len(), (0x80, 0), None, 0xde);
                write_members(out, members);
            }
        }
    }
}

fn write_members(out: &mut Vec<u8>, members: &[(&'static str, Item)]) {
    for (key, value) in members {
        Item::text(key).write(out);
        value.write(out);
    }
}

fn uint(out: &mut Vec<u8>, number: u64) {
    let bytes = number.to_be_bytes();
    let (tag, width) = match number {
        0..=0x7f => return out.push(number as u8),
        0x80..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        _ => (0xcf, 8),
    };
    out.push(tag);
    out.extend_from_slice(&bytes[8 - width..]);
}

/// `fix` is the tag of the short form and the first length that it cannot say; `long` the tag for two
/// bytes of length, the next one is for four.
fn length(out: &mut Vec<u8>, length: usize, fix: (u8, usize), byte: Option<u8>, long: u8) {
    let (tag, below) = fix;
    match (length, byte) {
        (length, _) if length < below => out.push(tag | length as u8),
        (length @ 0..=0xff, Some(byte)) => out.extend_from_slice(&[byte, length as u8]),
        (length @ 0..=0xffff, _) => {
            out.push(long);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        (length, _) => {
            out.push(long + 1);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}
