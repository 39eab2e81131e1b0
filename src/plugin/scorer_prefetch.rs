//! Sends kv-prefetch-agent what there is to tell of a request. Nothing waits for it.

use super::host::{self, SharedData};
use super::metrics::{self, Metric};
use super::scorer_shared::Read;
use crate::prompt::Request;
use crate::scorer::config::PrefetchConfig;
use crate::scorer::evidence::Evidence;
use crate::scorer::prefetch::{Answered, Asked, Plan, Prefetch, PrefetchResult};

/// Longest answer that is read, bytes: it counts three things.
pub const MAX_ANSWER_BYTES: usize = 4_096;

/// One for each root, with `prefetch`.
pub struct Prefetching {
    prefetch: Prefetch,
    /// Value of `authorization`.
    authorization: Option<String>,
}

impl Prefetching {
    /// `seed` is a random number.
    pub fn new(config: &PrefetchConfig, seed: u64) -> Self {
        let token = config.token.as_ref();
        Prefetching {
            authorization: token.map(|token| format!("Bearer {token}")),
            prefetch: Prefetch::new(config.clone(), seed),
        }
    }

    /// A request whose evidence was just published. `chosen` is where it goes, if that is known;
    /// `likeliest` is where it will find most.
    pub fn tell(
        &mut self,
        evidence: &mut Evidence,
        request: &Request,
        chosen: Option<&str>,
        likeliest: Option<&str>,
        now_ms: u64,
    ) {
        let asked = Asked {
            request,
            chosen,
            likeliest,
        };
        let plan = self.prefetch.plan(evidence, &SharedData, asked, now_ms);
        let result = match plan {
            Ok(plan) => self.send(&plan),
            Err(why) => why,
        };
        metrics::count(Metric::ScorerPrefetch(result.as_str()));
    }

    fn send(&mut self, plan: &Plan) -> PrefetchResult {
        let config = self.prefetch.config();
        let mut headers = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", config.authority.as_str()),
            (":path", config.path.as_str()),
            ("content-type", "application/json"),
        ];
        if let Some(authorization) = &self.authorization {
            headers.push(("authorization", authorization));
        }
        let timeout_ms = u32::try_from(config.timeout_ms).unwrap_or(u32::MAX);
        match host::http_call(&config.cluster, &headers, &plan.body, timeout_ms) {
            Ok(token) => {
                self.prefetch.sent(plan, token);
                let digests = i64::try_from(plan.digests).unwrap_or(i64::MAX);
                metrics::add(Metric::ScorerPrefetchDigests, digests);
                PrefetchResult::Sent
            }
            Err(_) => PrefetchResult::NotSent,
        }
    }

    /// Whether an answer with this token belongs here.
    pub fn is_mine(&self, token: u32) -> bool {
        self.prefetch.is_mine(token)
    }

    pub fn answered(&mut self, token: u32, answer: &Read) {
        if let Some(result) = self.prefetch.answered(token, answer.answer()) {
            metrics::count(Metric::ScorerPrefetchAnswer(result.as_str()));
        }
    }

    /// The timer, every `tick_ms`.
    pub fn tick(&mut self, tick_ms: u64) {
        let lost = i64::try_from(self.prefetch.tick(tick_ms)).unwrap_or(i64::MAX);
        metrics::add(Metric::ScorerPrefetchAnswer(Answered::Lost.as_str()), lost);
    }
}
