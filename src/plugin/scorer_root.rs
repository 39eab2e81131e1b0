//! Root context of the scorer role: the timer that polls the engines, and the answers.

use std::cell::RefCell;
use std::rc::Rc;

use super::context::{Pass, Root, SharedStream};
use super::host::{self, Level, SharedData};
use super::metrics::{self, Metric};
use super::scorer_bodies::Bodies;
use super::scorer_http::ScorerHttp;
use super::scorer_pulling::Pulling;
use super::scorer_shared::{Discovering, Read, now_ms, problem};
use super::vm::vm;
use crate::scorer::config::ScorerConfig;
use crate::scorer::event::{Event, Problem};
use crate::scorer::events::page::MAX_PAGE_BYTES as MAX_EVENTS_BYTES;
use crate::scorer::evidence::Evidence;
use crate::scorer::poller::{Ask, Call, Counts, MAX_PAGE_BYTES, Poller};
use crate::scorer::sightings::Sightings;

pub struct ScorerRoot {
    config: Rc<ScorerConfig>,
    poller: Poller,
    discovering: Option<Rc<Discovering>>,
    /// Both there with `evidence`.
    evidence: Option<Rc<RefCell<Evidence>>>,
    bodies: Option<Rc<Bodies>>,
    pulling: Option<Pulling>,
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
        // Nobody outside knows the nanosecond.
        let seed = host::now_ns().unwrap_or_default();
        let evidence = Evidence::new(Rc::clone(&config), seed)
            .map(RefCell::new)
            .map(Rc::new);
        let bodies = config.evidence.as_ref().zip(evidence.as_ref());
        let bodies = bodies
            .map(|(config, evidence)| Rc::new(Bodies::new(config, evidence, vm().prompts, seed)));
        let poller = Poller::new(Rc::clone(&config));
        let pulling = config.evidence.as_ref();
        let pulling = pulling.map(|config| Pulling::new(config, poller.tick_ms()));
        let period = u32::try_from(poller.tick_ms()).unwrap_or(u32::MAX);
        if host::set_tick_period_ms(period).is_err() {
            // This VM will not poll; another may.
            problem(Problem::Timer);
        }
        Ok(Self {
            config,
            poller,
            discovering,
            evidence,
            bodies,
            pulling,
            shown: Counts::default(),
        })
    }

    fn write_sightings(&self, now_ms: u64) {
        if let Some(discovering) = &self.discovering
            && let Ok(mut sightings) = discovering.sightings.try_borrow_mut()
        {
            match sightings.write(&SharedData, now_ms) {
                Ok(true) => {}
                Ok(false) => problem(Problem::TooManyEndpoints),
                Err(_) => problem(Problem::SeenRecord),
            }
        }
    }

    /// What other VMs found out comes here.
    fn catch_up(&self, now_ms: u64) {
        if let Some(evidence) = &self.evidence
            && let Ok(mut evidence) = evidence.try_borrow_mut()
            && evidence.tick(&SharedData, now_ms).is_err()
        {
            problem(Problem::EnginesRecord);
        }
    }

    /// Does something about the bridge's events.
    fn pull(&mut self, f: impl FnOnce(&mut Pulling, &mut Evidence)) {
        if let Some(pulling) = &mut self.pulling
            && let Some(evidence) = &self.evidence
            && let Ok(mut evidence) = evidence.try_borrow_mut()
        {
            f(pulling, &mut evidence);
        }
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
            match event {
                Event::LeaseTaken => self.pull(|pulling, _| pulling.start()),
                Event::LeaseLost => self.pull(Pulling::stop),
                _ => {}
            }
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
        host::http_call(&call.target.cluster, &headers, &[], timeout_ms)
    }
}

impl Root for ScorerRoot {
    fn tick(&mut self) {
        if let Some(now_ms) = now_ms() {
            self.write_sightings(now_ms);
            self.poller.tick(&SharedData, now_ms);
            self.catch_up(now_ms);
            self.settle();
            self.pull(|pulling, evidence| pulling.tick(evidence, now_ms));
        }
        // Last: it may speak of other contexts.
        if let Some(bodies) = &self.bodies {
            bodies.tick(self.poller.tick_ms());
        }
    }

    fn http_call_response(&mut self, token: u32, headers: usize, body_size: usize) {
        if let Some(bodies) = &self.bodies
            && let Some(max_bytes) = bodies.expects(token)
        {
            bodies.answered(token, &Read::of_running(headers, body_size, max_bytes));
            return;
        }
        if let Some(bodies) = &self.bodies
            && bodies.prefetch_answered(token, headers, body_size)
        {
            return;
        }
        if self.pulling.as_ref().is_some_and(|p| p.is_mine(token)) {
            let answer = Read::of_running(headers, body_size, MAX_EVENTS_BYTES);
            self.pull(|pulling, evidence| pulling.answered(token, &answer, evidence, now_ms()));
            return;
        }
        let (now_ms, answer) = match (self.poller.asked(token), now_ms()) {
            (_, None) => (0, Read::Unreadable),
            (None, Some(now_ms)) => (now_ms, Read::None),
            (Some(_), Some(now_ms)) => {
                let answer = Read::of_running(headers, body_size, MAX_PAGE_BYTES);
                (now_ms, answer)
            }
        };
        self.poller
            .answered(token, answer.answer(), &SharedData, now_ms);
        self.settle();
    }

    fn new_stream(&self, id: u32) -> SharedStream {
        if self.discovering.is_none() && self.bodies.is_none() {
            return Rc::new(RefCell::new(Pass));
        }
        let (discovering, bodies) = (self.discovering.clone(), self.bodies.clone());
        let stream = ScorerHttp::new(id, discovering, bodies);
        Rc::new(RefCell::new(stream))
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
        self.pull(Pulling::stop);
        if let Some(bodies) = &self.bodies {
            bodies.release();
        }
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
