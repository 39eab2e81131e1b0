//! KV events: what an engine publishes about the blocks it stores and removes.
//!
//! A payload is the engine's own MessagePack, `[ts, [event, …], data_parallel_rank?]`. vLLM up to
//! 0.23 writes an event as an array that begins with its name, from 0.24 on as a map with `"type"`
//! that leaves out default values. llm-d's fs backend packs the events once more, as binary.
//! Everything is read in place: an event borrows from the payload and allocates nothing.

mod event;
mod groups;
mod lists;
mod msgpack;

#[cfg(test)]
mod tests;

pub use event::{Event, Removed, Stored};
pub use groups::{Groups, MAX_GROUPS};
pub use lists::{BlockExtras, Extra, ExtraKeys, Hashes, Tokens};

use msgpack::{Cursor, Value};

/// Longest payload that is read. The bridge's pages are smaller.
pub const MAX_PAYLOAD_BYTES: usize = 4 * 1024 * 1024;

/// Why a whole payload says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// More than [`MAX_PAYLOAD_BYTES`].
    TooLarge,
    /// Not one MessagePack item: cut, trailing bytes, a reserved byte.
    Msgpack,
    /// MessagePack, but not `[ts, events, …]`.
    Shape,
}

impl Malformed {
    /// The `kind` label of a problem counter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "payload_too_large",
            Self::Msgpack => "payload_msgpack",
            Self::Shape => "payload_shape",
        }
    }
}

/// One payload.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// When the engine made it, Unix seconds by the engine's clock. Finite.
    pub ts: f64,
    pub data_parallel_rank: Option<u64>,
    events: Events<'a>,
}

impl<'a> Batch<'a> {
    /// In the engine's order.
    #[must_use]
    pub fn events(&self) -> Events<'a> {
        self.events
    }
}

/// The events of a payload, one after the other. What is wrong inside one event is
/// [`Event::Malformed`] and does not spoil the others.
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    rest: Cursor<'a>,
    left: u32,
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        self.left = self.left.checked_sub(1)?;
        let item = self.rest.item()?;
        Some(event::parse(item))
    }
}

/// Reads a payload's frame. Time is linear in its bytes, memory constant, whatever they are.
///
/// # Errors
/// [`Malformed`].
pub fn decode(payload: &[u8]) -> Result<Batch<'_>, Malformed> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(Malformed::TooLarge);
    }
    let mut whole = Cursor::new(payload);
    let mut batch = whole.item().ok_or(Malformed::Msgpack)?;
    if !whole.is_empty() {
        return Err(Malformed::Msgpack);
    }
    frame(&mut batch).ok_or(Malformed::Shape)
}

fn frame<'a>(batch: &mut Cursor<'a>) -> Option<Batch<'a>> {
    let Value::Array(2..) = batch.next()? else {
        return None;
    };
    let ts = match batch.next()? {
        Value::Float(ts) if ts.is_finite() => ts,
        #[allow(clippy::cast_precision_loss)] // a clock
        Value::Uint(ts) => ts as f64,
        _ => return None,
    };
    let events = events(batch.item()?)?;
    let data_parallel_rank = match batch.next() {
        Some(Value::Uint(rank)) => Some(rank),
        _ => None,
    };
    Some(Batch {
        ts,
        data_parallel_rank,
        events,
    })
}

/// A list of events, or the same packed as binary: the whole list, or one event alone.
fn events(item: Cursor<'_>) -> Option<Events<'_>> {
    let mut rest = item;
    match rest.next()? {
        Value::Array(left) => Some(Events { rest, left }),
        Value::Bin(packed) => {
            let mut whole = Cursor::new(packed);
            let packed = whole.item()?;
            if !whole.is_empty() {
                return None;
            }
            let mut rest = packed;
            let list = rest.next()?;
            let mut first = rest;
            match list {
                Value::Array(left) if !matches!(first.next(), Some(Value::Str(_))) => {
                    Some(Events { rest, left })
                }
                Value::Array(_) | Value::Map(_) => Some(Events {
                    rest: packed,
                    left: 1,
                }),
                _ => None,
            }
        }
        _ => None,
    }
}
