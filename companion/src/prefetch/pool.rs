//! Worker threads, which may block in the file system for long, and the bounded queue before them.

use super::counts::Counts;
use super::digest::Digest;
use super::head::{Head, Outcome, Promote};
use super::layout::Layout;
use crate::common::{add, get};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

/// So many files of a directory were looked for and none found: something is configured wrong.
const NEVER_FOUND: u64 = 64;
/// Failures are logged at most this often; all are counted.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// One file to promote.
pub struct Job {
    pub layout: Arc<Layout>,
    pub block: Digest,
    pub rank: u32,
    pub group: u32,
}

/// What makes a file another one.
type Name = (Arc<str>, Digest, u32, u32);

impl Job {
    fn name(&self) -> Name {
        (
            self.layout.digest.clone(),
            self.block,
            self.rank,
            self.group,
        )
    }
}

/// What became of a message's files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Submitted {
    pub submitted: u64,
    /// Waiting or being read already.
    pub duplicates: u64,
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub workers: usize,
    pub queue: usize,
    pub head: Head,
}

pub struct Pool {
    limits: Limits,
    waiting: Mutex<Waiting>,
    more: Condvar,
    counts: Arc<Counts>,
    started: Instant,
    logged: AtomicU64,
}

struct Waiting {
    jobs: VecDeque<(Job, Instant)>,
    /// Waiting or being read.
    names: HashSet<Name>,
    open: bool,
    workers: usize,
}

impl Pool {
    pub fn start(
        limits: Limits,
        promote: Arc<dyn Promote>,
        counts: Arc<Counts>,
    ) -> io::Result<Arc<Self>> {
        let pool = Arc::new(Self {
            limits,
            waiting: Mutex::new(Waiting {
                jobs: VecDeque::new(),
                names: HashSet::new(),
                open: true,
                workers: 0,
            }),
            more: Condvar::new(),
            counts,
            started: Instant::now(),
            logged: AtomicU64::new(0),
        });
        for number in 0..limits.workers {
            let (worker, promote) = (pool.clone(), promote.clone());
            // Detached: one that hangs in the file system must not keep the program from ending.
            thread::Builder::new()
                .name(format!("reader-{number}"))
                .spawn(move || worker.work(&*promote))?;
            pool.waiting().workers += 1;
        }
        Ok(pool)
    }

    /// A panic elsewhere leaves the queue whole.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits: what finds no room is dropped. `count` is how many `jobs` are, of which those
    /// beyond the room are not even asked for.
    pub fn submit(&self, mut jobs: impl Iterator<Item = Job>, count: u64) -> Submitted {
        let now = Instant::now();
        let mut result = Submitted::default();
        // More duplicates than there are names come from one message that repeats itself.
        let most = (self.limits.queue + self.limits.workers) as u64;
        let mut waiting = self.waiting();
        while waiting.open && waiting.jobs.len() < self.limits.queue && result.duplicates <= most {
            let Some(job) = jobs.next() else {
                break;
            };
            if waiting.names.insert(job.name()) {
                waiting.jobs.push_back((job, now));
                result.submitted += 1;
                self.more.notify_one();
            } else {
                result.duplicates += 1;
            }
        }
        drop(waiting);
        result.dropped = count.saturating_sub(result.submitted + result.duplicates);
        add(&self.counts.submitted, result.submitted);
        add(&self.counts.duplicates, result.duplicates);
        add(&self.counts.dropped, result.dropped);
        result
    }

    pub fn queued(&self) -> usize {
        self.waiting().jobs.len()
    }

    /// Drops what waits. Workers end after the file that they are at.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.open = false;
        add(&self.counts.dropped, waiting.jobs.len() as u64);
        waiting.jobs.clear();
        self.more.notify_all();
    }

    /// True once no worker is left.
    pub fn ended(&self) -> bool {
        self.waiting().workers == 0
    }

    fn next(&self) -> Option<(Job, Instant)> {
        let mut waiting = self.waiting();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if !waiting.open {
                waiting.workers -= 1;
                return None;
            }
            waiting = self
                .more
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, promote: &dyn Promote) {
        let mut buffer = Vec::new();
        while let Some((job, since)) = self.next() {
            self.counts.waited.observe(since.elapsed());
            // Not before the first file: an agent that is never asked takes no memory.
            buffer.resize(self.limits.head.block_size, 0);
            add(&self.counts.reading, 1);
            self.promote(&job, promote, &mut buffer);
            self.counts.reading.fetch_sub(1, Ordering::Relaxed);
            self.waiting().names.remove(&job.name());
        }
    }

    fn promote(&self, job: &Job, promote: &dyn Promote, buffer: &mut [u8]) {
        let path = job.layout.path(job.block, job.rank, job.group);
        let began = Instant::now();
        let outcome = promote.promote(&path, self.limits.head, buffer);
        let counts = &job.layout.counts;
        match outcome {
            Ok(Outcome::Read(bytes)) => {
                self.counts.read.observe(began.elapsed());
                add(&counts.read, 1);
                add(&self.counts.bytes, bytes);
                tracing::debug!(path = %path.display(), bytes, "read");
            }
            Ok(Outcome::Resident) => add(&counts.resident, 1),
            Ok(Outcome::Missing) => {
                add(&counts.missing, 1);
                let found = get(&counts.read) + get(&counts.resident) + get(&counts.failed);
                if found == 0
                    && get(&counts.missing) >= NEVER_FOUND
                    && !counts.said.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(
                        digest = &*job.layout.digest,
                        missing = get(&counts.missing),
                        example = %path.display(),
                        "no file was ever found: the digest or a size differs from the engine's, or the engine hashes otherwise (it needs sha256_cbor and the scorer's seed)"
                    );
                }
            }
            Err(error) => {
                add(&counts.failed, 1);
                if self.may_log() {
                    tracing::warn!(path = %path.display(), %error, "cannot read");
                }
            }
        }
    }

    fn may_log(&self) -> bool {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let every = u64::try_from(LOG_EVERY.as_millis()).unwrap_or(u64::MAX);
        self.logged
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                (last == 0 || now.saturating_sub(last) >= every).then_some(now.max(1))
            })
            .is_ok()
    }
}
