//! The life of the endpoints one scorer polls.
//!
//! An endpoint is *listed* (a member) from its first good poll until `failuresToRemove` polls
//! failed in a row; it goes on being polled, and the next good poll lists it again. Until the
//! first poll after a change of the polling VM, what the members record says is taken over.

use super::config::{MAX_ENDPOINTS, ScorerConfig, Target};
use super::facts::{Asks, Engine};
use super::sightings::{self, Seen};
use crate::sorted::SortedMap;
use std::rc::Rc;

/// With `evidence` engines are asked again what they are, this often, ms.
const ASK_AGAIN_MS: u64 = 60_000;

/// One polled endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub target: Target,
    /// Last traffic, Unix ms; None: configured, never forgotten.
    seen_ms: Option<u64>,
    listed: bool,
    /// Failed polls in a row.
    failures: u32,
    /// A poll of it is queued or in flight.
    pub busy: bool,
    /// Since it last came up.
    pub engine: Engine,
}

/// What a poll changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    None,
    Returned,
    Left,
}

/// The endpoints by address.
#[derive(Debug)]
pub struct Endpoints {
    by_address: SortedMap<Rc<str>, Endpoint>,
    failures_to_remove: u32,
    asks: Asks,
    discovered_target: Option<Target>,
}

impl Endpoints {
    /// The configured ones, none listed yet.
    pub fn new(config: &ScorerConfig) -> Self {
        let mut endpoints = Self {
            by_address: SortedMap::new(),
            failures_to_remove: config.failures_to_remove,
            asks: asks(config),
            discovered_target: config.discovery.as_ref().map(|d| d.target.clone()),
        };
        for configured in &config.endpoints {
            let endpoint = endpoints.endpoint(configured.target.clone(), None);
            endpoints
                .by_address
                .insert(Rc::clone(&configured.address), endpoint);
        }
        endpoints
    }

    fn endpoint(&self, target: Target, seen_ms: Option<u64>) -> Endpoint {
        Endpoint {
            target,
            seen_ms,
            listed: false,
            failures: 0,
            busy: false,
            engine: Engine::new(self.asks),
        }
    }

    /// Lists these, as another VM did before this one took over.
    pub fn inherit<'a>(&mut self, listed: impl IntoIterator<Item = &'a String>) {
        for address in listed {
            if let Some(endpoint) = self.by_address.get_mut(address.as_str()) {
                endpoint.listed = true;
            }
        }
    }

    /// Adds what was seen in traffic, forgets what has not been for ten minutes. True if the
    /// listed ones changed.
    pub fn discover(&mut self, seen: &Seen, now_ms: u64) -> bool {
        let Some(target) = self.discovered_target.clone() else {
            return false;
        };
        let mut changed = false;
        self.by_address.retain(|address, endpoint| {
            let Some(last) = endpoint.seen_ms.as_mut() else {
                return true;
            };
            if let Some(newer) = seen.get(address.as_ref()) {
                *last = *newer;
            }
            *last = (*last).min(now_ms);
            let forgotten = sightings::is_forgotten(*last, now_ms);
            changed |= forgotten && endpoint.listed;
            !forgotten
        });
        for (address, last_ms) in seen {
            if self.by_address.len() >= MAX_ENDPOINTS {
                break;
            }
            if !self.by_address.contains_key(address.as_str()) {
                let endpoint = self.endpoint(target.clone(), Some(*last_ms));
                self.by_address.insert(address.as_str().into(), endpoint);
            }
        }
        changed
    }

    /// The idle endpoints, now marked busy: a poll of each is due.
    pub fn start_round(&mut self) -> Vec<Rc<str>> {
        self.by_address
            .iter_mut()
            .filter(|(_, endpoint)| !endpoint.busy)
            .map(|(address, endpoint)| {
                endpoint.busy = true;
                Rc::clone(address)
            })
            .collect()
    }

    pub fn get(&self, address: &str) -> Option<&Endpoint> {
        self.by_address.get(address)
    }

    pub fn get_mut(&mut self, address: &str) -> Option<&mut Endpoint> {
        self.by_address.get_mut(address)
    }

    /// A poll was answered. A returning engine may be another one.
    pub fn succeeded(&mut self, address: &str) -> Change {
        let Some(endpoint) = self.by_address.get_mut(address) else {
            return Change::None;
        };
        endpoint.busy = false;
        endpoint.failures = 0;
        if std::mem::replace(&mut endpoint.listed, true) {
            return Change::None;
        }
        endpoint.engine = Engine::new(self.asks);
        Change::Returned
    }

    /// A poll failed.
    pub fn failed(&mut self, address: &str) -> Change {
        let Some(endpoint) = self.by_address.get_mut(address) else {
            return Change::None;
        };
        endpoint.busy = false;
        endpoint.failures = endpoint.failures.saturating_add(1);
        if endpoint.failures < self.failures_to_remove || !endpoint.listed {
            return Change::None;
        }
        endpoint.listed = false;
        Change::Left
    }

    /// The members.
    pub fn listed(&self) -> Vec<&str> {
        self.by_address
            .iter()
            .filter(|(_, endpoint)| endpoint.listed)
            .map(|(address, _)| address.as_ref())
            .collect()
    }

    /// The members, one by one.
    pub fn each_listed(&mut self, mut see: impl FnMut(&Rc<str>, &mut Endpoint)) {
        for (address, endpoint) in &mut self.by_address {
            if endpoint.listed {
                see(address, endpoint);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
}

fn asks(config: &ScorerConfig) -> Asks {
    let evidence = config.evidence.as_ref();
    let polls = ASK_AGAIN_MS.div_ceil(config.interval_ms.max(1));
    Asks {
        version: config.version_path.is_some(),
        models: evidence.is_some_and(|evidence| evidence.models_path.is_some()),
        again_after: evidence.map(|_| u32::try_from(polls).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorer::facts::Due;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;
    const A: &str = "10.0.0.1:8000";
    const B: &str = "10.0.0.2:8000";

    fn endpoints(text: &str) -> Endpoints {
        Endpoints::new(&ScorerConfig::parse(text.as_bytes()).unwrap())
    }

    fn two() -> Endpoints {
        endpoints(r#"{"endpoints":["10.0.0.1:8000","10.0.0.2:8000"],"scrape":{"cluster":"s"}}"#)
    }

    fn discovering() -> Endpoints {
        endpoints(r#"{"endpoints":["10.0.0.1:8000"],"discover":true,"scrape":{"cluster":"s"}}"#)
    }

    #[test]
    fn listed_from_the_first_good_poll_until_three_failures_in_a_row() {
        let mut all = two();
        assert_eq!(all.listed(), [""; 0]);
        let ok = |all: &mut Endpoints| all.succeeded(A);
        let fail = |all: &mut Endpoints| all.failed(A);
        type Poll<'a> = &'a dyn Fn(&mut Endpoints) -> Change;
        let rows: &[(&str, Poll<'_>, Change, &[&str])] = &[
            ("never answered", &fail, Change::None, &[]),
            ("never answered", &fail, Change::None, &[]),
            ("never answered", &fail, Change::None, &[]),
            ("answers", &ok, Change::Returned, &[A]),
            ("answers again", &ok, Change::None, &[A]),
            ("one failure", &fail, Change::None, &[A]),
            ("two", &fail, Change::None, &[A]),
            ("a good one between", &ok, Change::None, &[A]),
            ("one failure", &fail, Change::None, &[A]),
            ("two", &fail, Change::None, &[A]),
            ("three", &fail, Change::Left, &[]),
            ("four", &fail, Change::None, &[]),
            ("returns", &ok, Change::Returned, &[A]),
        ];
        for (what, poll, change, listed) in rows {
            assert_eq!(poll(&mut all), *change, "{what}");
            assert_eq!(all.listed(), *listed, "{what}");
        }
        assert_eq!(all.succeeded("10.9.9.9:1"), Change::None);
        assert_eq!(all.failed("10.9.9.9:1"), Change::None);
    }

    #[test]
    fn the_members_of_the_vm_before_are_taken_over() {
        let mut all = two();
        all.inherit(&[B.to_owned(), "10.9.9.9:1".to_owned()]);
        assert_eq!(all.listed(), [B]);
        // It still takes all its failures to leave.
        assert_eq!([all.failed(B), all.failed(B), all.failed(B)], {
            [Change::None, Change::None, Change::Left]
        });
    }

    #[test]
    fn a_round_polls_each_idle_endpoint_once() {
        let mut all = two();
        assert_eq!(all.start_round(), [A.into(), B.into()]);
        assert_eq!(all.start_round(), []);
        all.succeeded(B);
        assert_eq!(all.start_round(), [B.into()]);
        all.failed(A);
        assert_eq!(all.start_round(), [A.into()]);
    }

    #[test]
    fn seen_endpoints_come_and_go_and_configured_ones_stay() {
        let mut all = discovering();
        let seen = |endpoint: &str, t| Seen::from([(endpoint.to_owned(), t)]);
        let forget = sightings::FORGET_MS + sightings::REFRESH_MS;
        assert!(!all.discover(&seen(B, NOW), NOW));
        assert_eq!(all.start_round(), [A.into(), B.into()]);
        all.succeeded(A);
        all.succeeded(B);
        assert_eq!(all.listed(), [A, B]);
        // Traffic keeps it
        assert!(!all.discover(&seen(B, NOW + 1), NOW + forget));
        assert!(!all.discover(&Seen::new(), NOW + forget + 1));
        assert_eq!(all.listed(), [A, B]);
        // and without traffic it is gone, the configured one is not.
        assert!(all.discover(&Seen::new(), NOW + forget + 2));
        assert_eq!(all.listed(), [A]);
        // One that was never listed goes without a change.
        assert!(!all.discover(&seen(B, NOW + forget), NOW + forget));
        assert_eq!(all.len(), 2);
        assert!(!all.discover(&Seen::new(), NOW + 3 * forget));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn without_discover_nothing_is_added() {
        let mut all = two();
        let seen = Seen::from([("10.0.0.3:8000".to_owned(), NOW)]);
        assert!(!all.discover(&seen, NOW));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn at_most_256_endpoints() {
        let mut all = discovering();
        let seen = (0..300u64).map(|i| (format!("10.1.{}.{}:80", i / 200, i % 200), NOW));
        all.discover(&seen.collect(), NOW);
        assert_eq!(all.len(), 256);
        assert!(all.get(A).is_some());
    }

    #[test]
    fn a_clock_that_steps_back_delays_forgetting_by_nothing_more() {
        let mut all = discovering();
        let forget = sightings::FORGET_MS + sightings::REFRESH_MS;
        let hour = 3_600_000;
        all.discover(&Seen::from([(B.to_owned(), NOW + hour)]), NOW + hour);
        all.discover(&Seen::new(), NOW);
        assert_eq!(all.len(), 2);
        all.discover(&Seen::new(), NOW + forget + 1);
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn an_engine_that_comes_up_is_asked_anew() {
        let mut all = two();
        let due = |all: &mut Endpoints| all.get_mut(A).unwrap().engine.due();
        let version = |version| Due {
            version,
            models: false,
        };
        all.succeeded(A);
        assert_eq!(
            [due(&mut all), due(&mut all)],
            [version(true), version(false)]
        );
        let engine = &mut all.get_mut(A).unwrap().engine;
        engine.version_answered(Some(Some("0.32.0".to_owned())));
        all.succeeded(A);
        assert_eq!(due(&mut all), version(false));
        assert_eq!(all.get(A).unwrap().engine.version(), Some("0.32.0"));
        for _ in 0..3 {
            all.failed(A);
        }
        all.succeeded(A);
        assert_eq!(all.get(A).unwrap().engine.version(), None);
        assert_eq!(due(&mut all), version(true));
    }

    #[test]
    fn what_is_asked_and_how_often() {
        let asks = |more: &str| {
            let text =
                format!(r#"{{"endpoints":["10.0.0.1:8000"],"scrape":{{"cluster":"s"}}{more}}}"#);
            endpoints(&text).asks
        };
        let row = |version, models, again_after| Asks {
            version,
            models,
            again_after,
        };
        let evidence = r#","evidence":{"events":{"cluster":"b"}}"#;
        let no_models = r#","evidence":{"events":{"cluster":"b"},"modelsPath":null}"#;
        for (more, expected) in [
            ("", row(true, false, None)),
            (r#","versionPath":null"#, row(false, false, None)),
            (evidence, row(true, true, Some(60))),
            (no_models, row(true, false, Some(60))),
            (
                &format!(r#","interval":"250ms"{evidence}"#),
                row(true, true, Some(240)),
            ),
            (
                &format!(r#","interval":"40s"{evidence}"#),
                row(true, true, Some(2)),
            ),
        ] {
            assert_eq!(asks(more), expected, "{more}");
        }
    }
}
