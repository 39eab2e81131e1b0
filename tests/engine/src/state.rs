//! What the serving side, the control side and the library handle share.

mod process;

pub(crate) use process::ToPublisher;
pub use process::{EventPorts, Published};

use crate::cache::{Cache, Served};
use crate::json::Value;
use crate::metrics::{self, CacheConfig, Figures, Stored};
use crate::models::Models;
use crate::options::Options;
use crate::record::{Record, Work};
use crate::version::Release;
use crate::{Job, Refusal};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore, mpsc};

/// The oldest records go when there are more.
const MAX_RECORDS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// This status instead of an answer.
    Status(u16),
    /// The connection (HTTP/2: the stream) is dropped without an answer.
    Reset,
    /// The answer is late by this much.
    Delay(Duration),
}

/// The next `count` requests go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub count: usize,
    pub kind: FaultKind,
    /// Only targets that begin so; without it every request but polls.
    pub path: Option<String>,
    /// Whether the body is read first.
    pub after_body: bool,
}

pub struct State {
    pub options: Options,
    pub models: Models,
    pub(crate) slots: Semaphore,
    /// Told at every change of a record.
    pub(crate) changed: Notify,
    inner: Mutex<Inner>,
}

struct Inner {
    version: String,
    /// Engine label to the text of the gauge.
    waiting: BTreeMap<String, String>,
    /// In place of the page of metrics.
    metrics: Option<String>,
    latency: Duration,
    token_interval: Duration,
    learn: bool,
    cache: Cache,
    faults: Vec<Fault>,
    records: VecDeque<Record>,
    sequence: u64,
    polls: BTreeMap<String, u64>,
    queued: usize,
    figures: Figures,
    loading: usize,
    most_loading: usize,
    publisher: Option<mpsc::UnboundedSender<ToPublisher>>,
    ports: Option<EventPorts>,
    published: Published,
    /// Batches still to be lost.
    lose: usize,
}

impl State {
    pub fn new(options: Options) -> Self {
        let hasher = options.hasher(&options.version);
        let inner = Inner {
            version: options.version.clone(),
            waiting: BTreeMap::from([("0".into(), metrics::sample(0.0))]),
            metrics: None,
            latency: options.latency,
            token_interval: options.token_interval,
            learn: options.learn,
            cache: Cache::new(options.geometry, &options.tiers, hasher),
            faults: Vec::new(),
            records: VecDeque::new(),
            sequence: 0,
            polls: BTreeMap::new(),
            queued: 0,
            figures: Figures::default(),
            loading: 0,
            most_loading: 0,
            publisher: None,
            ports: None,
            published: Published::default(),
            lose: 0,
        };
        Self {
            models: options.models(),
            slots: Semaphore::new(options.slots.unwrap_or(Semaphore::MAX_PERMITS)),
            changed: Notify::new(),
            inner: Mutex::new(inner),
            options,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Settings.

    pub fn version(&self) -> String {
        self.inner().version.clone()
    }

    pub fn set_version(&self, version: &str) {
        self.inner().version = version.into();
    }

    /// The gauge of one engine label, as text: nonsense is welcome.
    pub fn set_waiting(&self, engine: &str, waiting: &str) {
        self.inner().waiting.insert(engine.into(), waiting.into());
    }

    /// The gauges of all engine labels; labels not named are gone from the page.
    pub fn set_all_waiting(&self, waiting: BTreeMap<String, String>) {
        self.inner().waiting = waiting;
    }

    /// Replaces the whole page of metrics; `None` brings the engine's own back.
    pub fn set_metrics(&self, page: Option<String>) {
        self.inner().metrics = page;
    }

    /// What each tier has stored so far: `cpu`, or a tier's label such as `1:fs`. `None` brings the
    /// engine's own figures back.
    pub fn set_stores(&self, stores: Option<BTreeMap<String, Stored>>) {
        self.inner().figures.stores = stores;
    }

    pub fn set_latency(&self, latency: Duration) {
        self.inner().latency = latency;
    }

    pub fn set_token_interval(&self, interval: Duration) {
        self.inner().token_interval = interval;
    }

    pub(crate) fn timing(&self) -> (Duration, Duration) {
        let inner = self.inner();
        (inner.latency, inner.token_interval)
    }

    pub fn set_learn(&self, learn: bool) {
        self.inner().learn = learn;
    }

    // Faults.

    pub fn add_fault(&self, fault: Fault) {
        self.inner().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        self.inner().faults.clear();
    }

    /// Uses up one of the first fault that fits.
    pub(crate) fn take_fault(&self, target: &str, poll: bool) -> Option<Fault> {
        let mut inner = self.inner();
        let position = inner.faults.iter().position(|fault| match &fault.path {
            Some(path) => target.starts_with(path.as_str()),
            None => !poll,
        })?;
        let fault = inner.faults.get_mut(position)?;
        fault.count = fault.count.saturating_sub(1);
        let fault = fault.clone();
        if fault.count == 0 {
            inner.faults.remove(position);
        }
        Some(fault)
    }

    // The cache.

    /// Empties one tier, or all, and tells of it.
    pub fn clear_cache(&self, tier: Option<&str>) {
        let mut inner = self.inner();
        inner.cache.clear(tier);
        inner.publish();
    }

    /// `/reset_prefix_cache`, with `reset_external` or without.
    pub fn reset_prefix_cache(&self, external: bool) {
        self.inner().cache.reset(external);
    }

    /// Puts blocks `from..to` of each prompt of a request into a tier.
    pub fn place(
        &self,
        path: &str,
        body: &Value,
        from: usize,
        to: usize,
        tier: &str,
    ) -> Result<(), String> {
        let job = self
            .job(path, body)
            .map_err(|refusal| refusal.body.to_string())?;
        let mut inner = self.inner();
        for prompt in &job.prompts {
            if !inner.cache.place(prompt, from, to, tier) {
                return Err(format!(
                    "tier \"{tier}\": this engine has {}",
                    inner.cache.tier_names().join(", ")
                ));
            }
        }
        inner.publish();
        Ok(())
    }

    /// Takes blocks `from..to` of each prompt of a request out of the GPU or the primary tier.
    pub fn evict(
        &self,
        path: &str,
        body: &Value,
        from: usize,
        to: usize,
        tier: &str,
    ) -> Result<(), String> {
        let job = self
            .job(path, body)
            .map_err(|refusal| refusal.body.to_string())?;
        let mut inner = self.inner();
        for prompt in &job.prompts {
            if !inner.cache.evict(prompt, from, to, tier) {
                return Err(format!("tier \"{tier}\": gpu or cpu evict"));
            }
        }
        inner.publish();
        Ok(())
    }

    /// Tier evidence for a request, as an exact writer has it (DESIGN 5 and 7).
    pub fn evidence(&self, path: &str, body: &Value) -> Result<serde_json::Value, String> {
        let job = self
            .job(path, body)
            .map_err(|refusal| refusal.body.to_string())?;
        let inner = self.inner();
        let prompts: Vec<_> = inner
            .cache
            .evidence(&job.prompts, job.reads_cache)
            .iter()
            .map(|runs| {
                let runs: Vec<_> = runs
                    .iter()
                    .map(|run| serde_json::json!([run.blocks, run.tiers]))
                    .collect();
                serde_json::json!({ "runs": runs })
            })
            .collect();
        Ok(serde_json::json!({"block_size": inner.cache.geometry().block_size, "prompts": prompts}))
    }

    // Serving.

    pub fn job(&self, path: &str, body: &Value) -> Result<Job, Refusal> {
        let release = Release::of(&self.version());
        if path == "/inference/v1/generate"
            && release >= Release::SCALE_OUT_FLAG
            && !self.options.scale_out
        {
            return Err(Refusal::scale_out());
        }
        Job::parse(path, body, release, &self.models)
    }

    /// Serves all prompts of a request and notes the work in its record.
    pub(crate) fn serve(&self, sequence: u64, job: &Job) -> Vec<Served> {
        let mut inner = self.inner();
        // Without learning, prompts of one request still see what the earlier ones did.
        let mut scratch = (!inner.learn).then(|| inner.cache.clone());
        let cache = scratch.as_mut().unwrap_or(&mut inner.cache);
        let served: Vec<_> = job
            .prompts
            .iter()
            .map(|prompt| cache.serve(prompt, &job.params, job.reads_cache))
            .collect();
        let bytes_per_token = self.options.geometry.bytes_per_token;
        for one in &served {
            let figures = &mut inner.figures;
            figures.prompt_tokens += one.prompt_tokens as u64;
            figures.gpu_hit_tokens += one.gpu_tokens as u64;
            figures.external_hit_tokens += one.loaded_tokens as u64;
            figures.loaded_bytes += one.loaded_tokens as u64 * bytes_per_token;
            figures.stored_bytes += one.stored_tokens as u64 * bytes_per_token;
        }
        inner.publish();
        drop(inner);
        let work = Work {
            params: job.params.clone(),
            prompts: served.clone(),
        };
        self.update(sequence, |record| record.work = Some(work));
        served
    }

    pub(crate) fn queue_changed(&self, queued: isize, running: isize) {
        let mut inner = self.inner();
        inner.queued = inner.queued.saturating_add_signed(queued);
        inner.figures.running = inner.figures.running.saturating_add_signed(running);
        inner.figures.finished += u64::from(running < 0);
    }

    pub(crate) fn loading_changed(&self, by: isize) {
        let mut inner = self.inner();
        inner.loading = inner.loading.saturating_add_signed(by);
        inner.most_loading = inner.most_loading.max(inner.loading);
    }

    /// The most requests that ever loaded at a time: with something to load, and before their first
    /// token.
    pub fn most_loading(&self) -> usize {
        self.inner().most_loading
    }

    /// Requests that wait for a slot; they count on top of what was set for engine `0`.
    pub fn queued(&self) -> usize {
        self.inner().queued
    }

    pub fn metrics(&self) -> String {
        let inner = self.inner();
        if let Some(page) = &inner.metrics {
            return page.clone();
        }
        let mut figures = inner.figures.clone();
        figures.waiting = inner.waiting.clone();
        if inner.queued > 0 {
            let own = figures
                .waiting
                .entry("0".into())
                .or_insert_with(|| metrics::sample(0.0));
            if let Ok(set) = own.parse::<f64>() {
                *own = metrics::sample(set + inner.queued as f64);
            }
        }
        drop(inner);
        let config = CacheConfig {
            block_size: self.options.geometry.block_size,
            hash_algorithm: self.options.hash_algorithm.name(),
            gpu_blocks: self.options.geometry.gpu_blocks,
        };
        metrics::page(&self.options.model, &config, &figures)
    }

    // Records.

    pub(crate) fn count_poll(&self, path: &str) {
        *self.inner().polls.entry(path.into()).or_insert(0) += 1;
    }

    /// How often each of the paths that are only counted was asked for.
    pub fn polls(&self) -> BTreeMap<String, u64> {
        self.inner().polls.clone()
    }

    pub(crate) fn begin(&self, record: Record) -> u64 {
        let mut inner = self.inner();
        inner.sequence += 1;
        let sequence = inner.sequence;
        inner.records.push_back(Record {
            sequence,
            unix_ms: unix_ms(),
            ..record
        });
        if inner.records.len() > MAX_RECORDS {
            inner.records.pop_front();
        }
        drop(inner);
        self.changed.notify_waiters();
        sequence
    }

    pub(crate) fn update(&self, sequence: u64, change: impl FnOnce(&mut Record)) {
        let mut inner = self.inner();
        if let Some(record) = inner
            .records
            .iter_mut()
            .rev()
            .find(|record| record.sequence == sequence)
        {
            change(record);
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    pub fn records(&self) -> Vec<Record> {
        self.inner().records.iter().cloned().collect()
    }

    /// Forgets what was recorded; sequence numbers go on.
    pub fn clear_records(&self) {
        self.inner().records.clear();
    }

    pub fn summary(&self) -> serde_json::Value {
        let inner = self.inner();
        serde_json::json!({
            "name": self.options.name,
            "version": inner.version,
            "model": self.options.model,
            "tiers": inner.cache.tier_names(),
            "block_size": self.options.geometry.block_size,
            "blocks_per_chunk": self.options.geometry.blocks_per_chunk,
            "waiting": inner.waiting,
            "queued": inner.queued,
            "running": inner.figures.running,
            "learn": inner.learn,
            "events": inner.ports.map(|ports| {
                serde_json::json!({"port": ports.publisher, "replay_port": ports.replay})
            }),
            "faults": inner.faults.iter().map(|fault| fault.count).sum::<usize>(),
            "requests": inner.records.len(),
            "polls": inner.polls,
        })
    }
}

pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
