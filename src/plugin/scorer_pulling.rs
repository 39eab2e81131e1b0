//! The scorer's reading of KV events from the bridge, while its VM holds the lease.

use std::rc::Rc;

use super::host::{self, SharedData};
use super::metrics::{self, Metric};
use super::scorer_shared::Read;
use crate::scorer::config::EvidenceConfig;
use crate::scorer::events::{Client, Event};
use crate::scorer::evidence::{Evidence, request_keys};
use crate::scorer::index::Ingested;
use crate::scorer::poller::Answer;

/// One for each root, with `evidence`.
pub struct Pulling {
    config: Rc<EvidenceConfig>,
    client: Client,
}

impl Pulling {
    /// `tick_ms`: period of the timer.
    pub fn new(config: &Rc<EvidenceConfig>, tick_ms: u64) -> Self {
        Pulling {
            config: Rc::clone(config),
            client: Client::new(Rc::clone(config), tick_ms),
        }
    }

    /// This VM holds the lease from now on.
    pub fn start(&mut self) {
        self.client.start();
    }

    /// Another one does.
    pub fn stop(&mut self, evidence: &mut Evidence) {
        self.client.stop(evidence.index().map(|(index, _)| index));
        self.report();
    }

    pub fn tick(&mut self, evidence: &mut Evidence, now_ms: u64) {
        self.client.tick();
        self.ask(evidence, now_ms);
    }

    /// Whether an answer with this token belongs here.
    pub fn is_mine(&self, token: u32) -> bool {
        self.client.is_mine(token)
    }

    /// `now_ms`: None if the host gave no time.
    pub fn answered(
        &mut self,
        token: u32,
        answer: &Read,
        evidence: &mut Evidence,
        now_ms: Option<u64>,
    ) {
        // Without an index nothing was asked for, unless it has just become another one.
        let block_size = evidence.block_size();
        let Some(((index, fleet), block_size)) = evidence.index().zip(block_size) else {
            return;
        };
        let answer = match now_ms {
            Some(_) => answer.answer(),
            None => Answer::Unreadable,
        };
        let keys = request_keys(&self.config, block_size);
        let at_ms = now_ms.unwrap_or_default();
        self.client
            .answered(token, answer, index, &SharedData, fleet, &keys, at_ms);
        match now_ms {
            Some(now_ms) => self.ask(evidence, now_ms),
            None => self.report(),
        }
    }

    /// Sends what is due, reports what happened.
    fn ask(&mut self, evidence: &mut Evidence, now_ms: u64) {
        if let Some((index, _)) = evidence.index()
            && let Some(pull) = self.client.due(index, &SharedData, now_ms)
        {
            let events = &self.config.events;
            let headers = [
                (":method", "GET"),
                (":scheme", "http"),
                (":authority", events.authority.as_str()),
                (":path", pull.path.as_str()),
            ];
            let timeout_ms = u32::try_from(pull.timeout_ms).unwrap_or(u32::MAX);
            match host::http_call(&events.target_cluster, &headers, &[], timeout_ms) {
                Ok(token) => self.client.sent(token),
                Err(_) => self.client.not_sent(),
            }
        }
        self.report();
    }

    fn report(&mut self) {
        for event in self.client.take_events() {
            match event {
                Event::Pull(result) => metrics::count(Metric::ScorerPull(result.as_str())),
                Event::Problem(problem) => {
                    metrics::count(Metric::ScorerEventsProblem(problem.as_str()));
                }
                Event::Ingested(ingested) => count(&ingested),
            }
        }
    }
}

fn count(ingested: &Ingested) {
    let add = |metric, n: u32| {
        if n > 0 {
            metrics::add(metric, i64::from(n));
        }
    };
    for (what, n) in [
        ("stored", ingested.stored),
        ("removed", ingested.removed),
        ("evicted", ingested.evicted),
    ] {
        add(Metric::ScorerBlocks(what), n);
    }
    for (what, n) in [
        ("applied", ingested.events),
        ("ignored", ingested.ignored),
        ("unresolved", ingested.unresolved),
        ("unreadable", ingested.unreadable),
    ] {
        add(Metric::ScorerEvents(what), n);
    }
    for (what, n) in [
        ("restart", ingested.restarted),
        ("gap", ingested.gaps),
        ("hash_mismatch", ingested.mismatches),
        ("duplicate", ingested.duplicates),
    ] {
        add(Metric::ScorerEventsProblem(what), n);
    }
}
