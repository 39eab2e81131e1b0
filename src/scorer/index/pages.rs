//! An endpoint's pages in shared data: its snapshot and its logs, as byte strings cut to size.
//!
//! Keys cannot be deleted, so names repeat: generations take turns at two sets of keys. A page says
//! which generation it belongs to, and a reader that finds another one starts over.
//!
//! A writer that has lost its lease may not know yet. Each page therefore carries the term of its
//! writer, is read before it is written, and is written by compare-and-swap: an old writer finds the
//! younger term, or its write fails.

use super::wire::{In, Out};
use crate::contract::store::{CREATE, Store, StoreError};

/// Bytes of a log page: it is written again with every commit until it is full.
pub(super) const LOG_PAGE: u64 = 16 * 1024;
/// Bytes of a snapshot page.
pub(super) const SNAPSHOT_PAGE: u64 = 128 * 1024;

const FORMAT: u8 = 1;
const TRIES: u32 = 4;

/// Which byte string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Log,
    Snapshot,
}

impl Kind {
    const fn page(self) -> u64 {
        match self {
            Self::Log => LOG_PAGE,
            Self::Snapshot => SNAPSHOT_PAGE,
        }
    }

    /// The page that has byte `at`.
    const fn page_of(self, at: u64) -> u64 {
        match self {
            Self::Log => at / LOG_PAGE,
            Self::Snapshot => at / SNAPSHOT_PAGE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Why pages could not be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// Another VM writes this index now.
    Superseded,
    /// Raw proxy-wasm status.
    Host(u32),
}

/// The pages of one slot.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    prefix: String,
}

impl Pages {
    pub fn new(index: &str, slot: u16) -> Self {
        let prefix = format!("{index}/{slot}");
        Self { prefix }
    }

    pub fn head_key(&self) -> String {
        format!("{}/head", self.prefix)
    }

    fn key(&self, kind: Kind, generation: u64, page: u64) -> String {
        let turn = generation & 1;
        format!("{}/{}{turn}/{page}", self.prefix, kind.name())
    }

    /// The bytes `from..to`; `None` if they are not there (any more). Adds what was moved to
    /// `moved`.
    ///
    /// # Errors
    /// Raw proxy-wasm status.
    pub fn read(
        &self,
        store: &dyn Store,
        kind: Kind,
        generation: u64,
        (from, to): (u64, u64),
        moved: &mut u64,
    ) -> Result<Option<Vec<u8>>, u32> {
        let mut all = Vec::new();
        let mut at = from;
        while at < to {
            let page = kind.page_of(at);
            let key = self.key(kind, generation, page);
            let value = store.get(&key).map_err(host)?;
            let value = value.map(|v| v.value).unwrap_or_default();
            *moved = moved.saturating_add(value.len() as u64);
            let begin = page.saturating_mul(kind.page());
            let end = begin.saturating_add(kind.page()).min(to);
            let range = at.saturating_sub(begin)..end.saturating_sub(begin);
            let Some(bytes) = content(&value, generation).and_then(|c| slice(c, &range)) else {
                return Ok(None);
            };
            all.extend_from_slice(bytes);
            at = end;
        }
        Ok(Some(all))
    }

    /// Writes `bytes` behind the first `at` bytes, which stay.
    ///
    /// # Errors
    /// [`WriteError`]; some of the pages may have been written then.
    pub fn append(
        &self,
        store: &dyn Store,
        kind: Kind,
        (term, generation): (u64, u64),
        at: u64,
        mut bytes: &[u8],
    ) -> Result<(), WriteError> {
        let mut page = kind.page_of(at);
        let mut keep = at.saturating_sub(page.saturating_mul(kind.page()));
        while !bytes.is_empty() {
            let room = usize::try_from(kind.page().saturating_sub(keep)).unwrap_or(0);
            let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            let key = self.key(kind, generation, page);
            put(store, &key, (term, generation), keep, now)?;
            bytes = later;
            page = page.saturating_add(1);
            keep = 0;
        }
        Ok(())
    }

    /// Empties the pages that hold `len` bytes behind the first `from`.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn blank(
        &self,
        store: &dyn Store,
        kind: Kind,
        (term, generation): (u64, u64),
        (from, len): (u64, u64),
    ) -> Result<(), WriteError> {
        for page in from.div_ceil(kind.page())..len.div_ceil(kind.page()) {
            put(
                store,
                &self.key(kind, generation, page),
                (term, generation),
                0,
                &[],
            )?;
        }
        Ok(())
    }
}

fn host(e: StoreError) -> u32 {
    match e {
        // No read fails like that.
        StoreError::CasMismatch => 8,
        StoreError::Host(status) => status,
    }
}

fn slice<'a>(bytes: &'a [u8], range: &std::ops::Range<u64>) -> Option<&'a [u8]> {
    let from = usize::try_from(range.start).ok()?;
    bytes.get(from..usize::try_from(range.end).ok()?)
}

/// Term, generation, content.
fn stamp(value: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut rest = In { rest: value };
    if rest.byte()? != FORMAT {
        return None;
    }
    Some((rest.number()?, rest.number()?, rest.rest))
}

fn content(value: &[u8], generation: u64) -> Option<&[u8]> {
    let (_, of, content) = stamp(value)?;
    (of == generation).then_some(content)
}

fn put(
    store: &dyn Store,
    key: &str,
    (term, generation): (u64, u64),
    keep: u64,
    bytes: &[u8],
) -> Result<(), WriteError> {
    let host = |e| match e {
        StoreError::CasMismatch => WriteError::Superseded,
        StoreError::Host(status) => WriteError::Host(status),
    };
    for _ in 0..TRIES {
        let old = store.get(key).map_err(host)?;
        let cas = old.as_ref().map_or(CREATE, |v| v.cas);
        let value = old.map(|v| v.value).unwrap_or_default();
        if stamp(&value).is_some_and(|(theirs, ..)| theirs > term) {
            return Err(WriteError::Superseded);
        }
        let mut out = Out::default();
        out.byte(FORMAT).number(term).number(generation);
        if keep > 0 {
            let kept = content(&value, generation).and_then(|c| slice(c, &(0..keep)));
            // Not as this writer read it: it will read again.
            let kept = kept.ok_or(WriteError::Superseded)?;
            out.bytes.extend_from_slice(kept);
        }
        out.bytes.extend_from_slice(bytes);
        match store.set(key, &out.bytes, cas) {
            Err(StoreError::CasMismatch) => {}
            done => return done.map_err(host),
        }
    }
    Err(WriteError::Superseded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::store::MemoryStore;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(
        store: &MemoryStore,
        kind: Kind,
        generation: u64,
        from: u64,
        to: u64,
    ) -> Option<Vec<u8>> {
        let pages = Pages::new("i", 3);
        pages
            .read(store, kind, generation, (from, to), &mut 0)
            .unwrap()
    }

    #[test]
    fn a_byte_string_goes_over_pages() {
        let store = MemoryStore::new();
        let pages = Pages::new("i", 3);
        let all: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let mut at = 0;
        for step in [1, 16_383, 1, 40_000, 0, 43_615] {
            let bytes = &all[at..at + step];
            pages
                .append(&store, Kind::Log, (1, 5), at as u64, bytes)
                .unwrap();
            at += step;
        }
        assert_eq!(at, all.len());
        for (from, to) in [
            (0, at),
            (5, 6),
            (16_384, 32_768),
            (16_383, 16_385),
            (99_999, at),
            (7, 7),
        ] {
            let part = read(&store, Kind::Log, 5, from as u64, to as u64);
            assert_eq!(part.as_deref(), Some(&all[from..to]), "{from}..{to}");
        }
        // Past the end, of another generation, of another kind.
        assert_eq!(read(&store, Kind::Log, 5, 0, at as u64 + 1), None);
        assert_eq!(read(&store, Kind::Log, 3, 0, 1), None);
        assert_eq!(read(&store, Kind::Snapshot, 5, 0, 1), None);
        assert!(store.get("i/3/log1/6").unwrap().is_some());
        assert!(store.get("i/3/log1/7").unwrap().is_none());
        // Emptied from the second page on.
        pages
            .blank(&store, Kind::Log, (1, 5), (16_384, at as u64))
            .unwrap();
        assert_eq!(read(&store, Kind::Log, 5, 0, 16_384).unwrap().len(), 16_384);
        assert_eq!(read(&store, Kind::Log, 5, 16_384, 16_385), None);
        let left = store.get("i/3/log1/6").unwrap().unwrap().value;
        assert_eq!(left, [1, 1, 5]);
    }

    #[test]
    fn an_older_writer_cannot_write_over_a_younger_one() {
        let store = MemoryStore::new();
        let pages = Pages::new("i", 3);
        let append = |term, at, bytes: &[u8]| pages.append(&store, Kind::Log, (term, 1), at, bytes);
        assert_eq!(append(1, 0, b"ab"), Ok(()));
        assert_eq!(append(2, 2, b"cd"), Ok(()));
        assert_eq!(append(1, 2, b"zz"), Err(WriteError::Superseded));
        assert_eq!(read(&store, Kind::Log, 1, 0, 4).unwrap(), b"abcd");
        // What an older one had not committed is written over.
        assert_eq!(append(3, 2, b"e"), Ok(()));
        assert_eq!(read(&store, Kind::Log, 1, 0, 3).unwrap(), b"abe");
        // One that continues what is not there.
        assert_eq!(append(3, 9, b"x"), Err(WriteError::Superseded));
        assert_eq!(
            pages.blank(&store, Kind::Log, (2, 1), (0, 3)),
            Err(WriteError::Superseded)
        );
    }
}
