//! One answer of the bridge's `GET /events` (docs/kv-events-bridge.md), read in place.

use crate::contract::cbor::{Item, List};
use crate::sorted::sort_by;
use std::borrow::Cow;

/// The longest page that a bridge can be told to write.
pub const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;
/// Ranks that one bridge follows at most.
pub const MAX_SECTIONS: usize = 1024;
/// Longest cursor and longest name of a publisher, in bytes.
const MAX_TEXT: usize = 256;
/// The format that is read.
const VERSION: u64 = 1;

/// Why a page does not count at all: nothing of it is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// More than [`MAX_PAGE_BYTES`].
    TooLarge,
    /// Not one well-formed CBOR item.
    Cbor,
    /// `"v"` is not 1.
    Version,
    /// Well-formed CBOR, but no page: a member missing, of another type or too long; an item of
    /// unknown kind; a rank told twice.
    Shape,
}

impl Malformed {
    /// The `kind` label of a problem counter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "page_too_large",
            Self::Cbor => "page_cbor",
            Self::Version => "page_version",
            Self::Shape => "page_shape",
        }
    }
}

/// A page that is well-formed throughout.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// For the next request; printable ASCII.
    pub cursor: &'a str,
    /// The cursor that was sent is none of this bridge's run: the page begins anew.
    pub reset: bool,
    /// There is more, to be asked for at once.
    pub more: bool,
    /// By endpoint and rank; each is there once.
    pub sections: Vec<Section<'a>>,
}

/// What one rank of one endpoint published.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// `ip:port`, or the name of a publisher that is no endpoint.
    pub endpoint: &'a str,
    pub rank: u32,
    /// The bridge is connected to the engine and has what it published.
    pub live: bool,
    /// Since the engine's last sign of life; `None`: never heard of.
    pub silent_ms: Option<u64>,
    pub topic: Option<&'a str>,
    items: List<'a>,
}

/// One item of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// An engine process begins. `complete`: what follows is all that it ever published.
    Start { complete: bool },
    /// The engine's own bytes.
    Batch { seq: u64, payload: &'a [u8] },
    /// What came before `next` may be lost.
    Gap { next: u64 },
}

impl<'a> Section<'a> {
    /// In order.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> + use<'a> {
        // Every one was read when the page was.
        self.items.iter().filter_map(record)
    }

    /// Parts of its ascending order.
    pub(super) fn key(&self) -> (&'a str, u32) {
        (self.endpoint, self.rank)
    }
}

/// Reads a page. Time is linear in its bytes; the payloads stay where they are.
///
/// # Errors
/// [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Page<'_>, Malformed> {
    if bytes.len() > MAX_PAGE_BYTES {
        return Err(Malformed::TooLarge);
    }
    let page = Item::parse(bytes).ok_or(Malformed::Cbor)?;
    let fields = page.map().ok_or(Malformed::Shape)?;
    let [v, cursor, reset, more, endpoints] =
        fields.pick(["v", "cursor", "reset", "more", "endpoints"]);
    if v.and_then(Item::uint).ok_or(Malformed::Shape)? != VERSION {
        return Err(Malformed::Version);
    }
    let fields = || {
        let endpoints = endpoints?.array()?;
        let mut sections = Vec::new();
        for item in endpoints.iter() {
            (sections.len() < MAX_SECTIONS).then_some(())?;
            sections.push(section(item)?);
        }
        sort_by(&mut sections, |a, b| a.key().cmp(&b.key()));
        let twice = sections.windows(2).any(|two| match two {
            [a, b] => a.key() == b.key(),
            _ => false,
        });
        let printable = |text: &&str| text.bytes().all(|b| b.is_ascii_graphic());
        Some(Page {
            cursor: text(cursor?).filter(printable)?,
            reset: flag(reset?)?,
            more: flag(more?)?,
            sections: (!twice).then_some(sections)?,
        })
    };
    fields().ok_or(Malformed::Shape)
}

fn section(item: Item<'_>) -> Option<Section<'_>> {
    let [endpoint, rank, state, silent_ms, topic, items] =
        item.map()?
            .pick(["endpoint", "rank", "state", "silent_ms", "topic", "items"]);
    let items = items?.array()?;
    for item in items.iter() {
        record(item)?;
    }
    Some(Section {
        endpoint: text(endpoint?)?,
        rank: u32::try_from(rank?.uint()?).ok()?,
        // A state that is not known is not to be relied on.
        live: text(state?)? == "live",
        silent_ms: silent_ms.map_or(Some(None), |item| item.uint().map(Some))?,
        topic: topic.map_or(Some(None), |item| text(item).map(Some))?,
        items,
    })
}

fn record(item: Item<'_>) -> Option<Record<'_>> {
    let mut items = item.array()?.iter();
    let kind = items.next()?;
    let first = items.next()?;
    let record = if kind.is_text("batch") {
        Record::Batch {
            seq: first.uint()?,
            payload: items.next()?.byte_string()?,
        }
    } else if kind.is_text("start") {
        let complete = flag(first)?;
        Record::Start { complete }
    } else if kind.is_text("gap") {
        let next = first.uint()?;
        Record::Gap { next }
    } else {
        return None;
    };
    items.next().is_none().then_some(record)
}

/// Not empty, not too long, and in one piece.
fn text(item: Item<'_>) -> Option<&str> {
    match item.text()? {
        Cow::Borrowed(text) if (1..=MAX_TEXT).contains(&text.len()) => Some(text),
        _ => None,
    }
}

fn flag(item: Item<'_>) -> Option<bool> {
    match item.kind() {
        crate::contract::cbor::Kind::Bool(flag) => Some(flag),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
