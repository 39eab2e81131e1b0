//! What is counted.

use crate::common::add;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Digests with counters of their own; a program that outlives more shares one among the rest.
const MAX_DIGESTS: usize = 64;
const THE_REST: &str = "other";

/// Upper bounds of the histograms (seconds).
pub const SECONDS: [f64; 11] = [
    0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0,
];

#[derive(Default)]
pub struct Counts {
    pub accepted: AtomicU64,
    pub bad: AtomicU64,
    pub too_large: AtomicU64,
    pub unauthorized: AtomicU64,
    pub busy: AtomicU64,
    /// Accepted, and no directory of the connector was known.
    pub no_layout: AtomicU64,
    pub blocks: AtomicU64,
    pub submitted: AtomicU64,
    pub dropped: AtomicU64,
    pub duplicates: AtomicU64,
    pub bytes: AtomicU64,
    pub read: Histogram,
    pub waited: Histogram,
    pub reading: AtomicU64,
    pub engine_ok: AtomicU64,
    pub engine_failed: AtomicU64,
    digests: Mutex<BTreeMap<String, Arc<DigestCounts>>>,
}

impl Counts {
    /// The counters of one directory, which outlive it.
    pub fn digest(&self, digest: &str) -> Arc<DigestCounts> {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if digests.len() < MAX_DIGESTS || digests.contains_key(digest) {
            digest
        } else {
            THE_REST
        };
        digests.entry(name.to_owned()).or_default().clone()
    }

    pub fn digests(&self) -> Vec<(String, Arc<DigestCounts>)> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests
            .iter()
            .map(|(digest, counts)| (digest.clone(), counts.clone()))
            .collect()
    }
}

/// What became of the files of one directory.
#[derive(Default, Debug)]
pub struct DigestCounts {
    pub read: AtomicU64,
    pub resident: AtomicU64,
    pub missing: AtomicU64,
    pub failed: AtomicU64,
    /// It was said that nothing is ever found.
    pub said: AtomicBool,
}

#[derive(Default)]
pub struct Histogram {
    buckets: [AtomicU64; SECONDS.len()],
    pub count: AtomicU64,
    pub nanos: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(SECONDS) {
            add(bucket, u64::from(seconds <= bound));
        }
        add(&self.count, 1);
        add(
            &self.nanos,
            u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    pub fn buckets(&self) -> impl Iterator<Item = (f64, &AtomicU64)> {
        SECONDS.into_iter().zip(&self.buckets)
    }
}
