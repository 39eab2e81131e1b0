//! One event, in either form.

use super::lists::{Element, ExtraKeys, Hash, Hashes, Tokens};
use super::msgpack::{Cursor, Value};
use std::borrow::Cow;

/// What an engine says happened.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event<'a> {
    /// `BlockStored`.
    Stored(Stored<'a>),
    /// `BlockRemoved`.
    Removed(Removed<'a>),
    /// `AllBlocksCleared`: the GPU's cache was reset. It names no medium.
    AllBlocksCleared,
    /// A well-formed event of a type this version does not know.
    Unknown,
    /// A known event with a member missing or of the wrong type, or no event at all.
    Malformed,
}

/// Blocks that are in `medium` from now on, each one the next one's parent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored<'a> {
    /// The engine's block keys.
    pub hashes: Hashes<'a>,
    /// Engine key of the block before the first one; none for a prompt's first block.
    pub parent: Option<u64>,
    /// All blocks' tokens; empty in the offloading connector's placeholders.
    pub tokens: Tokens<'a>,
    /// Tokens a block; 0 in placeholders.
    pub block_size: u32,
    /// The adapter's name. Engines that know only a number leave it out.
    pub lora_name: Option<&'a str>,
    /// The adapter's number; without a name, what it stands for is unknown.
    pub lora_id: Option<u64>,
    /// Per block what is hashed beside the tokens (salt, images); not there: unknown for offload
    /// events, none for GPU events.
    pub extra_keys: ExtraKeys<'a>,
    /// As written; see [`tier`].
    pub medium: Option<&'a str>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    pub group_idx: Option<u64>,
    pub kv_cache_spec_kind: Option<&'a str>,
}

/// Blocks of which `medium` has one copy fewer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Removed<'a> {
    pub hashes: Hashes<'a>,
    pub medium: Option<&'a str>,
    pub locality: Option<&'a str>,
    pub group_idx: Option<u64>,
}

/// The tier's name in evidence: the medium in lower case, `gpu` for none, with `@local` or
/// `@remote` if the event says where (DESIGN 5).
#[must_use]
pub fn tier<'a>(medium: Option<&'a str>, locality: Option<&str>) -> Cow<'a, str> {
    let medium = match medium {
        None | Some("") => "gpu",
        Some(medium) => medium,
    };
    let at = match locality {
        Some(at) if at.eq_ignore_ascii_case("local") => "@local",
        Some(at) if at.eq_ignore_ascii_case("remote") => "@remote",
        _ => "",
    };
    if at.is_empty() && !medium.contains(|c: char| c.is_ascii_uppercase()) {
        return Cow::Borrowed(medium);
    }
    if medium.eq_ignore_ascii_case("gpu") {
        return Cow::Borrowed("gpu");
    }
    Cow::Owned(medium.to_ascii_lowercase() + at)
}

impl<'a> Stored<'a> {
    /// See [`tier`].
    #[must_use]
    pub fn tier(&self) -> Cow<'a, str> {
        tier(self.medium, self.locality)
    }
}

impl<'a> Removed<'a> {
    /// See [`tier`].
    #[must_use]
    pub fn tier(&self) -> Cow<'a, str> {
        tier(self.medium, self.locality)
    }
}

/// Members that matter. Engines add some with every release.
#[derive(Clone, Copy)]
enum Member {
    BlockHashes,
    ParentBlockHash,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    GroupIdx,
    KvCacheSpecKind,
    Locality,
}

/// In the order of the array form, behind the name.
const STORED: [Member; 10] = [
    Member::BlockHashes,
    Member::ParentBlockHash,
    Member::TokenIds,
    Member::BlockSize,
    Member::LoraId,
    Member::Medium,
    Member::LoraName,
    Member::ExtraKeys,
    Member::GroupIdx,
    Member::KvCacheSpecKind,
];
const REMOVED: [Member; 3] = [Member::BlockHashes, Member::Medium, Member::GroupIdx];

impl Member {
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"block_hashes" => Self::BlockHashes,
            b"parent_block_hash" => Self::ParentBlockHash,
            b"token_ids" => Self::TokenIds,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::GroupIdx,
            b"kv_cache_spec_kind" => Self::KvCacheSpecKind,
            b"locality" => Self::Locality,
            _ => return None,
        })
    }
}

/// The members found; nil is the same as not there.
#[derive(Default)]
struct Members<'a> {
    block_hashes: Option<Cursor<'a>>,
    parent_block_hash: Option<Cursor<'a>>,
    token_ids: Option<Cursor<'a>>,
    block_size: Option<Cursor<'a>>,
    lora_id: Option<Cursor<'a>>,
    medium: Option<Cursor<'a>>,
    lora_name: Option<Cursor<'a>>,
    extra_keys: Option<Cursor<'a>>,
    group_idx: Option<Cursor<'a>>,
    kv_cache_spec_kind: Option<Cursor<'a>>,
    locality: Option<Cursor<'a>>,
}

impl<'a> Members<'a> {
    fn set(&mut self, member: Member, item: Cursor<'a>) {
        let nil = matches!({ item }.next(), Some(Value::Nil));
        let slot = match member {
            Member::BlockHashes => &mut self.block_hashes,
            Member::ParentBlockHash => &mut self.parent_block_hash,
            Member::TokenIds => &mut self.token_ids,
            Member::BlockSize => &mut self.block_size,
            Member::LoraId => &mut self.lora_id,
            Member::Medium => &mut self.medium,
            Member::LoraName => &mut self.lora_name,
            Member::ExtraKeys => &mut self.extra_keys,
            Member::GroupIdx => &mut self.group_idx,
            Member::KvCacheSpecKind => &mut self.kv_cache_spec_kind,
            Member::Locality => &mut self.locality,
        };
        *slot = (!nil).then_some(item);
    }

    fn stored(&self) -> Option<Stored<'a>> {
        Some(Stored {
            hashes: Hashes::read(self.block_hashes?)?,
            parent: optional(self.parent_block_hash, |c| Hash::read(&mut { c }))?,
            tokens: optional(self.token_ids, Tokens::read)?.unwrap_or_default(),
            block_size: optional(self.block_size, |c| u32::try_from(uint(c)?).ok())?.unwrap_or(0),
            lora_name: optional(self.lora_name, text)?,
            lora_id: optional(self.lora_id, uint)?,
            extra_keys: optional(self.extra_keys, ExtraKeys::read)?.unwrap_or_default(),
            medium: optional(self.medium, text)?,
            locality: optional(self.locality, text)?,
            group_idx: optional(self.group_idx, uint)?,
            kv_cache_spec_kind: optional(self.kv_cache_spec_kind, text)?,
        })
    }

    fn removed(&self) -> Option<Removed<'a>> {
        Some(Removed {
            hashes: Hashes::read(self.block_hashes?)?,
            medium: optional(self.medium, text)?,
            locality: optional(self.locality, text)?,
            group_idx: optional(self.group_idx, uint)?,
        })
    }
}

/// `Some(None)` if the member is not there, `None` if it is and wrong.
fn optional<'a, T>(
    member: Option<Cursor<'a>>,
    read: impl FnOnce(Cursor<'a>) -> Option<T>,
) -> Option<Option<T>> {
    match member {
        None => Some(None),
        Some(item) => read(item).map(Some),
    }
}

fn uint(mut item: Cursor<'_>) -> Option<u64> {
    match item.next()? {
        Value::Uint(n) => Some(n),
        _ => None,
    }
}

fn text(mut item: Cursor<'_>) -> Option<&str> {
    match item.next()? {
        Value::Str(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// `item` is one whole item.
pub(super) fn parse(item: Cursor<'_>) -> Event<'_> {
    let mut inner = item;
    if let Some(Value::Bin(packed)) = inner.next() {
        // One level: binary inside binary is no event.
        return unpacked(Cursor::new(packed)).unwrap_or(Event::Malformed);
    }
    unpacked(item).unwrap_or(Event::Malformed)
}

fn unpacked(mut item: Cursor<'_>) -> Option<Event<'_>> {
    match item.next()? {
        Value::Array(n) => from_array(n.checked_sub(1)?, item),
        Value::Map(n) => from_map(n, item),
        _ => None,
    }
}

fn from_array(members: u32, mut rest: Cursor<'_>) -> Option<Event<'_>> {
    let Value::Str(name) = rest.next()? else {
        return None;
    };
    let order: &[Member] = match name {
        b"BlockStored" => &STORED,
        b"BlockRemoved" => &REMOVED,
        _ => &[],
    };
    let mut found = Members::default();
    for (member, _) in order.iter().zip(0..members) {
        found.set(*member, rest.item()?);
    }
    named(name, &found)
}

fn from_map(pairs: u32, mut rest: Cursor<'_>) -> Option<Event<'_>> {
    let mut name = None;
    let mut found = Members::default();
    for _ in 0..pairs {
        let Value::Str(key) = rest.next()? else {
            return None;
        };
        let mut value = rest.item()?;
        if key == b"type" {
            name = Some(value.next()?);
        } else if let Some(member) = Member::named(key) {
            found.set(member, value);
        }
    }
    match name? {
        Value::Str(name) => named(name, &found),
        _ => None,
    }
}

fn named<'a>(name: &[u8], members: &Members<'a>) -> Option<Event<'a>> {
    Some(match name {
        b"BlockStored" => Event::Stored(members.stored()?),
        b"BlockRemoved" => Event::Removed(members.removed()?),
        b"AllBlocksCleared" => Event::AllBlocksCleared,
        _ => Event::Unknown,
    })
}
