//! How far this index has read the bridge's log.

use super::wire::{In, Out};
use super::{Index, IndexError, TRIES};
use crate::contract::store::{Store, update};

/// Longest cursor, in bytes.
pub const MAX_CURSOR_BYTES: usize = 1024;

const FORMAT: u8 = 1;

/// The cursor record.
#[derive(Default)]
struct Record<'a> {
    /// Of the newest writer.
    term: u64,
    /// Of the index that was read so far: another one has to read from the beginning.
    fingerprint: u64,
    /// Empty: from the beginning.
    cursor: &'a [u8],
}

impl<'a> Record<'a> {
    fn decode(value: &'a [u8]) -> Option<Self> {
        let mut rest = In { rest: value };
        (rest.byte()? == FORMAT).then_some(())?;
        Some(Self {
            term: rest.number()?,
            fingerprint: rest.word()?,
            cursor: rest.rest,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.byte(FORMAT).number(self.term).word(self.fingerprint);
        out.bytes.extend_from_slice(self.cursor);
        out.bytes
    }
}

impl Index {
    /// The bridge's cursor, to be fetched from; `None`: from the beginning.
    ///
    /// # Errors
    /// [`IndexError::Host`].
    pub fn cursor(&self, store: &dyn Store) -> Result<Option<Vec<u8>>, IndexError> {
        let Some(key) = self.cursor_key() else {
            return Ok(None);
        };
        let value = store.get(&key)?.map(|v| v.value).unwrap_or_default();
        let record = Record::decode(&value);
        let record = record.filter(|r| r.fingerprint == self.fingerprint);
        Ok(record
            .map(|r| r.cursor.to_vec())
            .filter(|cursor| !cursor.is_empty()))
    }

    /// To be set once everything up to the cursor is ingested. An empty one: what was ingested does
    /// not count, and reading begins again.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn set_cursor(&mut self, store: &dyn Store, cursor: &[u8]) -> Result<(), IndexError> {
        self.written_place()?;
        if cursor.len() > MAX_CURSOR_BYTES {
            return Err(IndexError::Invalid);
        }
        self.change_cursor(store, Some(cursor))
    }

    /// From now on no older writer can set it. It stays, if it is of the same index.
    pub(super) fn claim_cursor(&self, store: &dyn Store) -> Result<(), IndexError> {
        self.change_cursor(store, None)
    }

    fn change_cursor(&self, store: &dyn Store, cursor: Option<&[u8]>) -> Result<(), IndexError> {
        let key = self.cursor_key().ok_or(IndexError::Superseded)?;
        let mut ours = true;
        update(store, &key, TRIES, &mut |old| {
            let old = old.and_then(Record::decode).unwrap_or_default();
            ours = old.term <= self.term;
            let same = old.fingerprint == self.fingerprint;
            let new = Record {
                term: self.term,
                fingerprint: self.fingerprint,
                cursor: cursor.unwrap_or(if same { old.cursor } else { &[] }),
            };
            ours.then(|| new.encode())
        })?;
        if ours {
            Ok(())
        } else {
            Err(IndexError::Superseded)
        }
    }

    fn cursor_key(&self) -> Option<String> {
        self.place.as_ref().map(|place| format!("{place}/cursor"))
    }
}
