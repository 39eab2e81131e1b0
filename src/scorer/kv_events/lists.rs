//! The lists inside an event. Each was read through once, so going over it cannot fail.

use std::marker::PhantomData;

use super::msgpack::{Cursor, Value};

/// What a list holds.
pub trait Element {
    type Item;

    /// The next one; `None` if it is none.
    fn read(rest: &mut Cursor<'_>) -> Option<Self::Item>;
}

/// An engine's block key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hash;

impl Element for Hash {
    type Item = u64;

    /// A key is an unsigned number, the same bits as a signed one, or a digest's last 8 bytes (big
    /// endian; a shorter one has zeros in front, none at all is no key).
    fn read(rest: &mut Cursor<'_>) -> Option<u64> {
        match rest.next()? {
            Value::Uint(n) => Some(n),
            Value::Int(n) => Some(n.cast_unsigned()),
            Value::Bin(digest) if !digest.is_empty() => {
                let last = digest.iter().skip(digest.len().saturating_sub(8));
                Some(last.fold(0, |n, byte| (n << 8) | u64::from(*byte)))
            }
            _ => None,
        }
    }
}

/// A token id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token;

impl Element for Token {
    type Item = u32;

    fn read(rest: &mut Cursor<'_>) -> Option<u32> {
        match rest.next()? {
            Value::Uint(n) => u32::try_from(n).ok(),
            _ => None,
        }
    }
}

/// A list of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List<'a, E> {
    rest: Cursor<'a>,
    left: u32,
    of: PhantomData<E>,
}

/// Engine block keys.
pub type Hashes<'a> = List<'a, Hash>;
/// Token ids.
pub type Tokens<'a> = List<'a, Token>;

impl<E> Default for List<'_, E> {
    fn default() -> Self {
        Self {
            rest: Cursor::new(&[]),
            left: 0,
            of: PhantomData,
        }
    }
}

impl<'a, E: Element + Copy> List<'a, E> {
    pub(super) fn read(mut item: Cursor<'a>) -> Option<Self> {
        let Value::Array(left) = item.next()? else {
            return None;
        };
        let list = Self {
            rest: item,
            left,
            of: PhantomData,
        };
        let mut check = list;
        for _ in 0..left {
            E::read(&mut check.rest)?;
        }
        Some(list)
    }

    /// The first `n` at most.
    #[must_use]
    pub fn first(mut self, n: u32) -> Self {
        self.left = self.left.min(n);
        self
    }

    #[must_use]
    pub fn len(&self) -> u32 {
        self.left
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<E: Element> Iterator for List<'_, E> {
    type Item = E::Item;

    fn next(&mut self) -> Option<E::Item> {
        self.left = self.left.checked_sub(1)?;
        E::read(&mut self.rest)
    }
}

/// One list of extra keys (or nil) per block; or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtraKeys<'a> {
    list: Option<(Cursor<'a>, u32)>,
}

impl<'a> ExtraKeys<'a> {
    pub(super) fn read(mut item: Cursor<'a>) -> Option<Self> {
        let Value::Array(blocks) = item.next()? else {
            return None;
        };
        let list = Some((item, blocks));
        let mut check = item;
        for _ in 0..blocks {
            let block = check.item()?;
            if !matches!({ block }.next()?, Value::Nil | Value::Array(_)) {
                return None;
            }
        }
        Some(Self { list })
    }

    /// False if the event does not speak of extra keys.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.list.is_some()
    }

    /// Block by block; a block without extra keys is empty.
    pub fn blocks(&self) -> impl Iterator<Item = BlockExtras<'a>> + use<'a> {
        let (mut rest, blocks) = self.list.unwrap_or((Cursor::new(&[]), 0));
        (0..blocks).map_while(move |_| {
            let mut block = rest.item()?;
            let left = match block.next()? {
                Value::Array(n) => n,
                _ => 0,
            };
            Some(BlockExtras { rest: block, left })
        })
    }
}

/// The extra keys of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockExtras<'a> {
    rest: Cursor<'a>,
    left: u32,
}

/// Events carry them untagged, in every version: a text may be a salt, an adapter or an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra<'a> {
    Text(&'a str),
    /// An image's identifier and where it begins in the block.
    TextAt(&'a str, i64),
    /// A digest of prompt embeddings.
    Bytes(&'a [u8]),
    /// Anything else.
    Other,
}

impl<'a> Iterator for BlockExtras<'a> {
    type Item = Extra<'a>;

    fn next(&mut self) -> Option<Extra<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut item = self.rest.item()?;
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let extra = match item.next()? {
            Value::Str(bytes) => text(bytes).map(Extra::Text),
            Value::Bin(bytes) => Some(Extra::Bytes(bytes)),
            Value::Array(2) => match (item.next()?, item.next()?) {
                (Value::Str(id), Value::Uint(at)) => text(id)
                    .zip(i64::try_from(at).ok())
                    .map(|(id, at)| Extra::TextAt(id, at)),
                (Value::Str(id), Value::Int(at)) => text(id).map(|id| Extra::TextAt(id, at)),
                _ => None,
            },
            _ => None,
        };
        Some(extra.unwrap_or(Extra::Other))
    }
}
