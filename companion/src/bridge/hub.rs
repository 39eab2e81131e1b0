//! The log and who waits for it, shared by all tasks.

use super::log::{Bounds, Counts, Log, Name, Page, Record, State};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::Instant;

/// Counted at the HTTP side.
#[derive(Default)]
pub struct HttpCounts {
    pub pages: AtomicU64,
    pub page_bytes: AtomicU64,
    pub resets: AtomicU64,
    pub unauthorized: AtomicU64,
    pub busy: AtomicU64,
    pub bad: AtomicU64,
    pub readers: AtomicU64,
    pub discoveries_ok: AtomicU64,
    pub discoveries_failed: AtomicU64,
}

pub struct Hub {
    log: Mutex<Log>,
    newest: watch::Sender<u64>,
    /// Of this run of the bridge: a cursor of another run means nothing.
    pub epoch: u64,
    pub http: HttpCounts,
}

impl Hub {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            log: Mutex::new(Log::new(bounds)),
            newest: watch::Sender::new(0),
            epoch: random(),
            http: HttpCounts::default(),
        }
    }

    /// A panic elsewhere leaves the log whole: records are appended one by one.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add_source(&self, name: Name) -> usize {
        self.log().add_source(name)
    }

    pub fn append(&self, source: usize, record: Record) {
        let mut log = self.log();
        log.append(source, record);
        let newest = log.last();
        drop(log);
        self.newest.send_replace(newest);
    }

    pub fn page(&self, after: u64, max_bytes: usize) -> Page {
        self.log().page(after, max_bytes)
    }

    /// Tells of every newest position.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub fn set_state(&self, source: usize, state: State) {
        if let Some(source) = self.log().source(source) {
            source.state = state;
        }
    }

    /// The engine gave a sign of life.
    pub fn heard(&self, source: usize) {
        if let Some(source) = self.log().source(source) {
            source.heard = Some(Instant::now());
        }
    }

    pub fn set_topic(&self, source: usize, topic: &[u8]) {
        /// Bytes of a topic that are shown; a longer one is not.
        const MAX_SHOWN: usize = 128;
        let text = std::str::from_utf8(topic)
            .ok()
            .filter(|text| text.len() <= MAX_SHOWN)
            .unwrap_or_default();
        if let Some(source) = self.log().source(source)
            && source.topic != text
        {
            source.topic = text.to_owned();
        }
    }

    pub fn count(&self, source: usize, add: impl FnOnce(&mut Counts)) {
        if let Some(source) = self.log().source(source) {
            add(&mut source.counts);
        }
    }
}

/// Of the operating system's randomness, which seeds every `RandomState` of a process.
pub fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}
