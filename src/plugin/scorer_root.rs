//! Root context of the scorer role: the timer that polls the engines, and the answers.

use std::cell::RefCell;
use std::rc::Rc;

use super::context::{Pass, Root, Stream};
use super::host::{self, Buffer, Level, Map, SharedData};
use super::metrics::{self, Metric};
use super::scorer_http::ScorerHttp;
use super::scorer_shared::{Discovering, now_ms, parse_status, problem};
use crate::scorer::config::ScorerConfig;
use crate::scorer::event::{Event, Problem};
use crate::scorer::poller::{Answer, Ask, Call, Counts, MAX_PAGE_BYTES, Poller};
use crate::scorer::sightings::Sightings;

pub struct ScorerRoot {
    config: Rc<ScorerConfig>,
    poller: Poller,
    discovering: Option<Rc<Discovering>>,
    /// What this VM has added to the gauges.
    shown: Counts,
}

impl ScorerRoot {
    pub fn new(configuration: &[u8]) -> Result<Self, String> {
        let config = Rc::new(ScorerConfig::parse(configuration).map_err(|e| e.to_string())?);
        let discovering = config.discovery.is_some().then(|| {
            let configured = config.endpoints.iter().map(|e| e.address.to_string());
            Rc::new(Discovering {
                config: Rc::clone(&config),
                sightings: RefCell::new(Sightings::new(&config.name, configured)),
            })
        });
        let poller = Poller::new(Rc::clone(&config));
        let period = u32::try_from(poller.tick_ms()).unwrap_or(u32::MAX);
        if host::set_tick_period_ms(period).is_err() {
            // This VM will not poll; another may.
            problem(Problem::Timer);
        }
        Ok(Self {
            config,
            poller,
            discovering,
            shown: Counts::default(),
        })
    }

    /// Sends what is due, reports what happened.
    fn settle(&mut self) {
        while let Some(call) = self.poller.next_call() {
            match self.send(&call) {
                Ok(token) => self.poller.sent(call, token),
                Err(_) => self.poller.not_sent(&call),
            }
        }
        for event in self.poller.take_events() {
            report(&self.config.name, &event);
        }
        let Counts { listed, unlisted } = self.poller.counts();
        show("listed", &mut self.shown.listed, listed);
        show("unlisted", &mut self.shown.unlisted, unlisted);
    }

    fn send(&self, call: &Call) -> host::HostResult<u32> {
        let path = match call.ask {
            Ask::Metrics => Some(&self.config.path),
            Ask::Version => self.config.version_path.as_ref(),
            Ask::Models => {
                let evidence = self.config.evidence.as_ref();
                evidence.and_then(|evidence| evidence.models_path.as_ref())
            }
        };
        let mut headers = vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", call.address.as_ref()),
            (":path", path.map_or("/", String::as_str)),
        ];
        if let Some(header) = &call.target.destination_header {
            headers.push((header, &call.address));
        }
        let timeout_ms = u32::try_from(self.config.timeout_ms).unwrap_or(u32::MAX);
        host::http_call(&call.target.cluster, &headers, timeout_ms)
    }
}

impl Root for ScorerRoot {
    fn tick(&mut self) {
        let Some(now_ms) = now_ms() else { return };
        if let Some(discovering) = &self.discovering
            && let Ok(mut sightings) = discovering.sightings.try_borrow_mut()
        {
            match sightings.write(&SharedData, now_ms) {
                Ok(true) => {}
                Ok(false) => problem(Problem::TooManyEndpoints),
                Err(_) => problem(Problem::SeenRecord),
            }
        }
        self.poller.tick(&SharedData, now_ms);
        self.settle();
    }

    fn http_call_response(&mut self, token: u32, headers: usize, body_size: usize) {
        let (now_ms, answer) = match (self.poller.asked(token), now_ms()) {
            (_, None) => (0, Read::Unreadable),
            (None, Some(now_ms)) => (now_ms, Read::None),
            (Some(_), Some(now_ms)) => (now_ms, read_answer(headers, body_size)),
        };
        let answer = match &answer {
            Read::Http(status, body) => Answer::Http {
                status: *status,
                body,
            },
            Read::TooLarge => Answer::TooLarge,
            Read::None => Answer::None,
            Read::Unreadable => Answer::Unreadable,
        };
        self.poller.answered(token, answer, &SharedData, now_ms);
        self.settle();
    }

    fn new_stream(&self) -> Box<dyn Stream> {
        match &self.discovering {
            Some(discovering) => Box::new(ScorerHttp::new(Rc::clone(discovering))),
            None => Box::new(Pass),
        }
    }
}

/// Moves a gauge from what this VM has `shown` to `now`. By difference: several scorers add to the
/// same gauges.
fn show(state: &'static str, shown: &mut usize, now: usize) {
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let change = signed(now).saturating_sub(signed(*shown));
    if metrics::add(Metric::ScorerEndpoints(state), change) {
        *shown = now;
    }
}

/// The plugin goes away (a new configuration): another VM takes over with its next tick.
impl Drop for ScorerRoot {
    fn drop(&mut self) {
        self.poller.release(&SharedData);
        self.settle();
    }
}

enum Read {
    Http(u16, Vec<u8>),
    TooLarge,
    None,
    Unreadable,
}

/// The answer whose callback is running.
fn read_answer(headers: usize, body_size: usize) -> Read {
    if headers == 0 {
        return Read::None;
    }
    let status = match host::header(Map::HttpCallResponseHeaders, ":status") {
        Ok(status) => status.as_deref().and_then(parse_status),
        Err(_) => None,
    };
    match status {
        None => Read::Unreadable,
        Some(200) if body_size > MAX_PAGE_BYTES => Read::TooLarge,
        Some(200) if body_size > 0 => {
            match host::buffer(Buffer::HttpCallResponseBody, 0, body_size) {
                Ok(body) => Read::Http(200, body),
                Err(_) => Read::Unreadable,
            }
        }
        Some(status) => Read::Http(status, Vec::new()),
    }
}

fn report(scorer: &str, event: &Event) {
    match event {
        Event::LeaseTaken => metrics::count(Metric::ScorerLease("taken")),
        Event::LeaseLost => metrics::count(Metric::ScorerLease("lost")),
        Event::Poll(result) => metrics::count(Metric::ScorerPoll(result.as_str())),
        Event::Sample => metrics::count(Metric::ScorerSamples),
        Event::Problem(kind, count) => {
            metrics::add(Metric::ScorerProblem(kind.as_str()), i64::from(*count));
        }
        Event::Returned(endpoint) => {
            let message = format!("kv-scorer {scorer}: {endpoint} answers: it is a member");
            host::log(Level::Info, &message);
        }
        Event::Mismatch(endpoint, mismatch) => {
            problem(Problem::ConfigMismatch);
            let message = format!("kv-scorer {scorer}: {endpoint} has no evidence: {mismatch}");
            host::log(Level::Warn, &message);
        }
        Event::Left(endpoint, result) => {
            let message = format!(
                "kv-scorer {scorer}: {endpoint} fails its polls ({}): it is no member until it answers",
                result.as_str()
            );
            host::log(Level::Warn, &message);
        }
    }
}
