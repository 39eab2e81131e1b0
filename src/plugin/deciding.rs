//! The decision of one request: gathers the facts from the host when the body reaches the point
//! where they count, asks the pure rules, and reports what came out.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::host::{self, SharedData};
use super::metrics::{self, Metric};
use super::policy_shared::{Shared, count_gate_events, property};
use crate::body::{Decide, Edits, ParamsFacts};
use crate::contract::evidence::{self, Absent, Lookup};
use crate::contract::keys;
use crate::contract::store::Store;
use crate::policy::config::{EndpointSource, LoadPolicy, Policy};
use crate::policy::decision::{self, Age, EvidenceState, LoadDecision, LoadFacts, OffloadDecision};
use crate::policy::endpoint::{self, DESTINATION};
use crate::policy::evidence::external_tokens;
use crate::policy::gate::GateVerdict;
use crate::policy::reason::{Direction, Reason};
use crate::policy::summary::Summary;
use crate::policy::tiers::TierFilter;

pub struct Deciding {
    shared: Rc<Shared>,
    policy: Rc<Policy>,
    /// `x-request-id`: what evidence in shared data is found by.
    pub request_id: Option<String>,
    /// The raw destination header: request headers are not readable in the body phase.
    pub destination: Option<Vec<u8>>,
    /// The raw evidence header.
    pub evidence_header: Option<Vec<u8>>,
    endpoint: Option<String>,
    /// Of waiting requests.
    ewma: Option<f64>,
    gate_asked: bool,
    /// What was decided, by filter: the host is asked once, however many members a
    /// hostile body repeats. There are only 512 different filters.
    settled: BTreeMap<TierFilter, LoadDecision>,
    /// With duplicated members the last one's.
    decided: Option<(LoadDecision, OffloadDecision)>,
    reported: bool,
}

impl Deciding {
    pub fn new(shared: &Rc<Shared>, policy: &Rc<Policy>) -> Self {
        Self {
            shared: Rc::clone(shared),
            policy: Rc::clone(policy),
            request_id: None,
            destination: None,
            evidence_header: None,
            endpoint: None,
            ewma: None,
            gate_asked: false,
            settled: BTreeMap::new(),
            decided: None,
            reported: false,
        }
    }

    /// A reason for both directions that was found before the body.
    pub fn report_request_wide(&mut self, reason: Reason) {
        self.report(Some(reason), false, false);
    }

    /// Counts the decision of each direction, once; `wide` holds for a direction that was not
    /// edited yet.
    pub fn report(&mut self, wide: Option<Reason>, load_edited: bool, offload_edited: bool) {
        if self.reported {
            return;
        }
        self.reported = true;
        // Every request that is looked at feeds its endpoint's gate, whatever is decided.
        if self.endpoint.is_none() {
            self.find_endpoint();
        }
        if !self.gate_asked && self.policy.gate().is_some() {
            self.consult_gate(now_ms());
        }
        // Of the reasons for the whole request it comes before what is wrong with the body.
        let disaggregated = |(load, _): &(LoadDecision, _)| load.reason == Reason::Disaggregated;
        let wide = wide.filter(|_| !self.decided.as_ref().is_some_and(disaggregated));
        let (mut load, mut offload) = match (self.decided, wide) {
            (Some(decided), _) => decided,
            (None, Some(reason)) => (
                LoadDecision::request_wide(reason),
                OffloadDecision::request_wide(reason),
            ),
            // The stream ended before there was anything to decide.
            (None, None) => return,
        };
        if let Some(reason) = wide {
            if !load_edited {
                load = LoadDecision::request_wide(reason);
            }
            if !offload_edited {
                offload = OffloadDecision::request_wide(reason);
            }
        }
        metrics::count(Metric::Decision(Direction::Load, load.action, load.reason));
        metrics::count(Metric::Decision(
            Direction::Offload,
            offload.action,
            offload.reason,
        ));
        let summary = Summary {
            load,
            offload,
            ewma: self.ewma,
            endpoint: self.endpoint.as_deref(),
        };
        if host::set_property("selective_kv.decision", summary.to_string().as_bytes()).is_err() {
            metrics::count(Metric::HostFailure("set_property"));
        }
    }

    /// `None`: evidence may still come.
    fn weigh(
        &mut self,
        member: &ParamsFacts<'_>,
        last_chance: bool,
    ) -> Option<(LoadDecision, OffloadDecision)> {
        if member.disaggregated {
            return Some((
                LoadDecision::request_wide(Reason::Disaggregated),
                OffloadDecision::request_wide(Reason::Disaggregated),
            ));
        }
        let (filter, invalid) = match member.load_tiers {
            Some(raw) => TierFilter::from_request(raw),
            None => (TierFilter::ALL, 0),
        };
        let load = match self.settled.get(&filter) {
            Some(load) => *load,
            None => {
                let load = self.weigh_load(&filter, last_chance)?;
                self.settled.insert(filter, load);
                load
            }
        };
        metrics::add(Metric::InvalidLoadTiers, i64::from(invalid));
        Some((load, decision::decide_offload(&self.policy)))
    }

    /// `None`: evidence may still come.
    fn weigh_load(&mut self, filter: &TierFilter, last_chance: bool) -> Option<LoadDecision> {
        let mut facts = LoadFacts {
            endpoint_known: false,
            evidence: EvidenceState::None,
            gate: None,
        };
        if matches!(self.policy.load, LoadPolicy::Threshold { .. }) {
            self.find_endpoint();
            let now_ms = now_ms();
            facts.endpoint_known = self.endpoint.is_some();
            let (evidence, problem) = self.find_evidence(filter, now_ms);
            facts.evidence = evidence;
            let load = decision::decide_load(&self.policy, &facts);
            let may_still_come = matches!(
                load.reason,
                Reason::NoEndpoint | Reason::NoEvidence | Reason::StaleEvidence
            );
            if may_still_come && !last_chance {
                return None;
            }
            if let Some(kind) = problem {
                metrics::count(Metric::EvidenceProblem(kind));
            }
            facts.gate = self.consult_gate(now_ms);
        }
        Some(decision::decide_load(&self.policy, &facts))
    }

    /// The endpoint the request goes to: the first source that knows it now. The router may pick
    /// its host while the body is held.
    fn find_endpoint(&mut self) {
        let found = self
            .policy
            .endpoint_sources
            .iter()
            .find_map(|source| match source {
                EndpointSource::Upstream => {
                    property(&["upstream", "address"]).and_then(|a| endpoint::canonical(&a))
                }
                EndpointSource::Header => self
                    .destination
                    .as_deref()
                    .and_then(endpoint::first_destination),
                EndpointSource::Metadata => {
                    property(&["metadata", "filter_metadata", "envoy.lb", DESTINATION])
                        .and_then(|list| endpoint::first_destination(&list))
                }
            });
        self.endpoint = found.or_else(|| self.endpoint.take());
    }

    /// Consumes the endpoint's new queue samples. `None`: there is no gate to ask.
    fn consult_gate(&mut self, now_ms: Option<u64>) -> Option<GateVerdict> {
        self.gate_asked = true;
        let (gate, endpoint, now_ms) = (self.policy.gate()?, self.endpoint.as_deref()?, now_ms?);
        let mut gatekeeper = self.shared.vm.gatekeeper.try_borrow_mut().ok()?;
        let report = gatekeeper.check(&SharedData, endpoint, gate, now_ms);
        self.ewma = report.ewma;
        if report.verdict == GateVerdict::Unlisted {
            metrics::clear_endpoint_gauges(endpoint);
        }
        count_gate_events(&report.problems, report.transitions);
        Some(report.verdict)
    }

    /// And what is wrong with it, to be counted if nothing else comes.
    fn find_evidence(
        &self,
        filter: &TierFilter,
        now_ms: Option<u64>,
    ) -> (EvidenceState, Option<&'static str>) {
        let Some(endpoint) = self.endpoint.as_deref() else {
            return (EvidenceState::None, None);
        };
        let (lookup, written_ms) = match self.evidence_of_header(endpoint) {
            Some(lookup) => (lookup, None),
            None => self.evidence_of_shared_data(endpoint),
        };
        let age = match (written_ms, now_ms) {
            (None, _) => Some(Age::Now),
            (Some(t_ms), Some(now_ms)) => Some(Age::At { t_ms, now_ms }),
            // No clock: nobody can say how old it is.
            (Some(_), None) => None,
        };
        match (lookup, age) {
            // Nothing there, or only other requests of the same bucket.
            (Lookup::Absent(Absent::NoRecord | Absent::NoRequest), _) => {
                (EvidenceState::None, None)
            }
            (Lookup::Absent(kind), _) => (EvidenceState::None, Some(kind.as_str())),
            (_, None) => (EvidenceState::None, None),
            (Lookup::Found(evidence), Some(age)) => {
                let found = EvidenceState::Found {
                    tokens: external_tokens(&evidence, filter),
                    partial: evidence.partial,
                    age,
                };
                (found, None)
            }
            (Lookup::Invalid(kind), Some(age)) => {
                (EvidenceState::Invalid { age }, Some(kind.as_str()))
            }
        }
    }

    /// `None`: there is no such header, or it speaks of another endpoint.
    fn evidence_of_header(&self, endpoint: &str) -> Option<Lookup> {
        let evidence = self.evidence_header.as_deref()?;
        let about = self.destination.as_deref().map(endpoint::first_destination);
        match about {
            Some(about) if about.as_deref() != Some(endpoint) => None,
            _ => Some(evidence::from_header(evidence)),
        }
    }

    /// And when it was written, Unix ms.
    fn evidence_of_shared_data(&self, endpoint: &str) -> (Lookup, Option<u64>) {
        const NO_RECORD: (Lookup, Option<u64>) = (Lookup::Absent(Absent::NoRecord), None);
        let Some(request_id) = self.request_id.as_deref() else {
            return NO_RECORD;
        };
        match SharedData.get(&keys::evidence_key(request_id)) {
            Ok(Some(record)) => match evidence::find(&record.value, request_id, endpoint) {
                Lookup::Found(found) => {
                    let written_ms = found.t_ms;
                    (Lookup::Found(found), written_ms)
                }
                other => (other, evidence::written_ms(&record.value, request_id)),
            },
            Ok(None) => NO_RECORD,
            Err(_) => {
                metrics::count(Metric::HostFailure("get_shared_data"));
                NO_RECORD
            }
        }
    }
}

impl Decide for Deciding {
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits> {
        let (load, offload) = self.weigh(facts, last_chance)?;
        self.decided = Some((load, offload));
        Some(decision::edits(&self.policy, load.action, offload.action))
    }
}

fn now_ms() -> Option<u64> {
    host::now_ms()
        .inspect_err(|_| metrics::count(Metric::HostFailure("get_current_time")))
        .ok()
}
