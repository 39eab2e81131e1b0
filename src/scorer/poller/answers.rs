//! What becomes of the answers.

use super::Poller;
use super::calls::{Answer, Ask, InFlight};
use crate::contract::keys;
use crate::contract::members;
use crate::contract::queue::{self, Measured, Sample};
use crate::contract::store::{Store, TRIES, Updated, update};
use crate::scorer::endpoints::Change;
use crate::scorer::event::{Event, PollResult, Problem};
use crate::scorer::facts::{self, Models, PageFacts};
use crate::scorer::{metrics_text, stores, version};
use std::rc::Rc;

impl Poller {
    /// A call ended at `now_ms`, which is the time of its sample.
    pub fn answered(&mut self, token: u32, answer: Answer<'_>, store: &dyn Store, now_ms: u64) {
        let Some(InFlight { address, ask, .. }) = self.in_flight.remove(&token) else {
            self.problem(Problem::LateAnswer);
            return;
        };
        match (ask, answer) {
            (Ask::Metrics, Answer::Http { status: 200, body }) => {
                self.page(&address, body, store, now_ms);
            }
            // Also Envoy's own word for an engine that cannot be reached: what is known stays.
            (Ask::Version, Answer::Http { status, .. }) if status >= 500 => {
                self.version(&address, None);
            }
            (Ask::Models, Answer::Http { status, .. }) if status >= 500 => {
                self.models(&address, None);
            }
            (Ask::Version, Answer::Http { status, body }) => {
                let version = (status == 200).then(|| version::read(body)).flatten();
                self.version(&address, Some(version));
            }
            (Ask::Version, Answer::TooLarge) => self.version(&address, Some(None)),
            (Ask::Models, Answer::Http { status, body }) => {
                let models = (status == 200).then(|| Models::read(body)).flatten();
                self.models(&address, Some(models));
            }
            (Ask::Models, Answer::TooLarge) => self.models(&address, Some(None)),
            (_, failure) => {
                let result = match failure {
                    Answer::Http { status: 504, .. } => PollResult::Timeout,
                    Answer::Http { .. } => PollResult::Status,
                    Answer::TooLarge => PollResult::TooLarge,
                    Answer::None => PollResult::NoAnswer,
                    Answer::Unreadable => PollResult::Unreadable,
                };
                self.failed(&address, ask, result);
            }
        }
    }

    fn page(&mut self, address: &Rc<str>, page: &[u8], store: &dyn Store, now_ms: u64) {
        let reading = metrics_text::read(page, &self.config.metric);
        if reading.ignored > 0 {
            let event = Event::Problem(Problem::InvalidSeries, reading.ignored);
            self.events.push(event);
        }
        let result = match reading.sum {
            Some(_) => PollResult::Ok,
            None => PollResult::NoMetric,
        };
        self.events.push(Event::Poll(result));
        let afresh = self.endpoints.succeeded(address) == Change::Returned;
        if afresh {
            self.members_changed();
            self.events.push(Event::Returned(Rc::clone(address)));
        }
        let Some(endpoint) = self.endpoints.get_mut(address) else {
            // Forgotten while the poll was out.
            return;
        };
        if self.config.evidence.is_some() && endpoint.engine.wants_page(facts::started(page)) {
            let facts = PageFacts::read(page, &self.config.metric);
            self.kept.stale |= endpoint.engine.page(facts);
        }
        let due = endpoint.engine.due();
        let asks = [(due.version, Ask::Version), (due.models, Ask::Models)];
        for (_, ask) in asks.into_iter().filter(|(due, _)| *due) {
            self.questions_due.push_back((Rc::clone(address), ask));
        }
        let Some(waiting) = reading.sum else {
            return;
        };
        let stores = stores::read(page);
        let measured = Measured {
            endpoint: address,
            sample: Sample {
                t_ms: now_ms,
                waiting,
            },
            engine: self.config.metric.engine(),
            version: endpoint.engine.version(),
            // A float-to-integer `as` saturates.
            started_ms: facts::started(page).map(|seconds| (seconds * 1_000.0) as u64),
            stores: (!stores.is_empty()).then_some(stores.as_slice()),
            afresh,
        };
        let written = update(store, &keys::queue_key(address), TRIES, &mut |old| {
            queue::push_sample(old, &measured, now_ms, members::KEEP_MS)
        });
        match written {
            Ok(Updated::Written) => self.events.push(Event::Sample),
            Ok(Updated::Left) => self.problem(Problem::SampleDropped),
            Err(_) => self.problem(Problem::QueueWrite),
        }
    }

    /// `version`: None without an answer, `Some(None)` if the answer tells none.
    fn version(&mut self, address: &str, version: Option<Option<String>>) {
        if !matches!(version, Some(Some(_))) {
            self.problem(Problem::Version);
        }
        if let Some(endpoint) = self.endpoints.get_mut(address) {
            self.kept.stale |= endpoint.engine.version_answered(version);
        }
    }

    /// `models`: as `version`.
    fn models(&mut self, address: &str, models: Option<Option<Models>>) {
        if !matches!(models, Some(Some(_))) {
            self.problem(Problem::Models);
        }
        if let Some(endpoint) = self.endpoints.get_mut(address) {
            self.kept.stale |= endpoint.engine.models_answered(models);
        }
    }

    pub(super) fn failed(&mut self, address: &Rc<str>, ask: Ask, result: PollResult) {
        match ask {
            Ask::Version => self.version(address, None),
            Ask::Models => self.models(address, None),
            Ask::Metrics => {
                self.events.push(Event::Poll(result));
                if self.endpoints.failed(address) == Change::Left {
                    self.members_changed();
                    let event = Event::Left(Rc::clone(address), result);
                    self.events.push(event);
                }
            }
        }
    }
}
