//! A stream's state without its blocks: cheap, for endpoints that have nothing to say.

use super::head::{Head, Stream};
use super::pages::Pages;
use super::reasons::Reasons;
use super::{Index, IndexError};
use crate::contract::store::Store;

impl Index {
    /// The stream's state as stored; `None` if nothing of this publisher was read.
    ///
    /// # Errors
    /// [`IndexError::Host`].
    pub fn stream(&self, store: &dyn Store, publisher: &str) -> Result<Option<Stream>, IndexError> {
        Ok(self.head(store, publisher)?.map(|(.., head)| head.stream))
    }

    /// The publisher has said nothing, and its engine was last heard of at `heard_ms` (Unix ms;
    /// `None`: as before). `behind`: it may have said something that is not here yet.
    ///
    /// True if there is a stream: an unknown one has no heart.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn heartbeat(
        &mut self,
        store: &dyn Store,
        publisher: &str,
        heard_ms: Option<u64>,
        behind: bool,
    ) -> Result<bool, IndexError> {
        self.written_place()?;
        let Some((key, cas, mut head)) = self.head(store, publisher)? else {
            return Ok(false);
        };
        if head.term != self.term {
            return Err(IndexError::Superseded);
        }
        head.stream.heard(heard_ms, behind);
        store.set(&key, &head.encode(), cas)?;
        Ok(true)
    }

    fn head(
        &self,
        store: &dyn Store,
        publisher: &str,
    ) -> Result<Option<(String, u32, Head)>, IndexError> {
        let place = self.place.as_ref();
        let listed = self.directory.as_ref();
        let slot = listed.and_then(|listed| listed.slot(publisher));
        let Some((place, slot)) = place.zip(slot) else {
            return Ok(None);
        };
        let key = Pages::new(place, slot).head_key();
        let Some(value) = store.get(&key)? else {
            return Ok(None);
        };
        let head = Head::decode(&value.value)
            .filter(|head| head.endpoint == publisher && head.fingerprint == self.fingerprint)
            .filter(|head| head.stream.run != 0);
        Ok(head.map(|head| (key, value.cas, head)))
    }
}

impl Stream {
    pub(super) fn heard(&mut self, heard_ms: Option<u64>, behind: bool) {
        if let Some(heard_ms) = heard_ms {
            self.heard_ms = heard_ms;
        }
        self.reasons = if behind {
            self.reasons | Reasons::BEHIND
        } else {
            self.reasons.without(Reasons::BEHIND)
        };
    }
}
