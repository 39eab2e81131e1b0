//! The decision of one request: gathers the facts from the host when the body reaches the point
//! where they count, asks the pure rules, and reports what came out.

use crate::sorted::SortedMap;
use std::rc::Rc;

use super::host::{self, SharedData, UPSTREAM_ADDRESS};
use super::loading::Loading;
use super::metrics::{self, Metric};
use super::policy_shared::{Shared, count_gate_events, property};
use crate::body::{Decide, Edits, ParamsFacts};
use crate::contract::evidence::{self, Absent, Lookup};
use crate::contract::keys;
use crate::contract::store::Store;
use crate::policy::admission::loads::Problem;
use crate::policy::admission::{Completion, Job, PolicyType, Refusal, Ticket, World};
use crate::policy::config::{ClientCaps, EndpointSource, LoadPolicy, OffloadPolicy, Policy};
use crate::policy::decision::{self, Age, EvidenceState, LoadDecision, LoadFacts, OffloadDecision};
use crate::policy::endpoint;
use crate::policy::engine::{Engine, Feature};
use crate::policy::evidence::external_tokens;
use crate::policy::gate::GateVerdict;
use crate::policy::reason::{Action, Direction, Reason};
use crate::policy::summary::Summary;
use crate::policy::tiers::TierFilter;

/// Where a load balancer's dynamic metadata has the destination, under the header's name.
const METADATA_DESTINATION: &str =
    "metadata\0filter_metadata\0envoy.lb\0x-gateway-destination-endpoint";

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
    /// What was decided, by filter and whether the client itself lets nothing be loaded: the host is
    /// asked once, however many members a hostile body repeats. There are only 512 different filters.
    settled: SortedMap<(TierFilter, bool), LoadDecision>,
    /// What admission said of the load; asked once.
    load_admission: Option<Result<(), Refusal>>,
    /// And of the offload.
    offload_admission: Option<Result<(), Refusal>>,
    /// The load that is counted.
    loading: Option<Loading>,
    /// With duplicated members the last one's.
    decided: Option<Decided>,
    reported: bool,
}

/// What was decided for one member.
#[derive(Clone, Copy)]
struct Decided {
    load: LoadDecision,
    offload: OffloadDecision,
    /// What the engine would have ignored.
    unsupported: [Option<Feature>; 2],
}

impl Decided {
    const fn request_wide(reason: Reason) -> Self {
        Self {
            load: LoadDecision::request_wide(reason),
            offload: OffloadDecision::request_wide(reason),
            unsupported: [None, None],
        }
    }
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
            settled: SortedMap::new(),
            load_admission: None,
            offload_admission: None,
            loading: None,
            decided: None,
            reported: false,
        }
    }

    /// The load that is counted, while the body is still being looked at.
    pub fn loading(&mut self) -> &mut Option<Loading> {
        &mut self.loading
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
        let disaggregated = |decided: Decided| decided.load.reason == Reason::Disaggregated;
        let wide = wide.filter(|_| !self.decided.is_some_and(disaggregated));
        let Decided {
            mut load,
            mut offload,
            unsupported,
        } = match (self.decided, wide) {
            (Some(decided), _) => decided,
            (None, Some(reason)) => Decided::request_wide(reason),
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
        if load.action != Action::Enable
            && let Some(mut loading) = self.loading.take()
        {
            loading.over("not_loading");
        }
        self.count_admission(load.reason, offload.reason, unsupported);
        metrics::count(Metric::Decision(Direction::Load, load.action, load.reason));
        metrics::count(Metric::Decision(
            Direction::Offload,
            offload.action,
            offload.reason,
        ));
        let summary = Summary {
            load,
            offload,
            tier: self.pressed_tier(),
            ewma: self.ewma,
            endpoint: self.endpoint.as_deref(),
        };
        if host::set_property("selective_kv.decision", summary.text().as_bytes()).is_err() {
            metrics::count(Metric::HostFailure("set_property"));
        }
    }

    /// `None`: evidence may still come.
    fn weigh(
        &mut self,
        member: &ParamsFacts<'_>,
        last_chance: bool,
    ) -> Option<(Decided, Option<TierFilter>)> {
        if member.disaggregated {
            return Some((Decided::request_wide(Reason::Disaggregated), None));
        }
        let own = member.load_tiers.filter(|raw| *raw != b"null");
        let default = self.policy.default_load_tiers.filter(|_| own.is_none());
        let honoured = default.filter(|_| !self.engine().ignores(Feature::KvLoadTiers));
        let (filter, invalid) = match own {
            Some(raw) => TierFilter::from_request(raw),
            None => (honoured.unwrap_or(TierFilter::ALL), 0),
        };
        // The client's own cap of 0 stays, and the engine honours it: there is no load to admit.
        let own_zero = member.loads_nothing
            && self.policy.client_caps == ClientCaps::Respect
            && !self.engine().ignores(Feature::MaxLoadTokens);
        let load = match self.policy.load {
            LoadPolicy::Threshold { .. } => self.settle_load(filter, own_zero, last_chance)?,
            LoadPolicy::Preserve | LoadPolicy::Disable => {
                decision::decide_load(&self.policy, &LoadFacts::NONE)
            }
        };
        metrics::add(Metric::InvalidLoadTiers, i64::from(invalid));
        let engine = match load.action {
            Action::Disable => self.engine(),
            _ if default.is_some() => self.engine(),
            Action::Preserve | Action::Enable => Engine::UNKNOWN,
        };
        let (load, no_load) = decision::supported_load(load, engine, default.is_some());
        let refused_by = self.admit_offload().err().map(|refusal| refusal.policy);
        let offload = decision::decide_offload(&self.policy, &load, refused_by);
        let engine = match offload.action {
            Action::Disable => self.engine(),
            Action::Preserve | Action::Enable => Engine::UNKNOWN,
        };
        let (offload, no_offload) = decision::supported_offload(offload, engine);
        let decided = Decided {
            load,
            offload,
            unsupported: [no_load, no_offload],
        };
        Some((decided, honoured))
    }

    /// What the endpoint's engine honours: only asked about what it might ignore.
    fn engine(&mut self) -> Engine {
        if self.endpoint.is_none() {
            self.find_endpoint();
        }
        let Some(endpoint) = self.endpoint.as_deref() else {
            return Engine::UNKNOWN;
        };
        let Ok(mut gatekeeper) = self.shared.vm.gatekeeper.try_borrow_mut() else {
            return Engine::UNKNOWN;
        };
        let (queue, problems) = gatekeeper.queue(&SharedData, endpoint);
        count_gate_events(&problems, None);
        let entry = queue.entries.get(endpoint);
        entry.map_or(Engine::UNKNOWN, |entry| {
            Engine::known(entry.engine.as_deref(), entry.version.as_deref())
        })
    }

    /// Asks the admission policy for this request's load, once, and counts it if it is admitted.
    fn admit_load(&mut self, tokens: u64) -> Result<(), Refusal> {
        if let Some(asked) = self.load_admission {
            return asked;
        }
        let Some(endpoint) = self.endpoint.as_deref() else {
            return Ok(());
        };
        let job = Job::Load { endpoint, tokens };
        let world = World {
            store: &SharedData,
            now_ms: 0,
        };
        // Never admitted uncounted.
        let busy = Err(Refusal {
            policy: PolicyType::PromotionConcurrency,
            tier: None,
            problem: Some(Problem::Store),
        });
        let admitted = match self.shared.vm.admission.try_borrow_mut() {
            Ok(mut state) => {
                self.shared.vm.take_in_orphans(&mut state);
                state.admit(&self.policy.admission, &job, world)
            }
            Err(_) if self.policy.admission.has(PolicyType::PromotionConcurrency) => busy,
            Err(_) => Ok(Ticket::default()),
        };
        let admitted = admitted.map(|ticket| {
            self.loading = Loading::new(&self.shared.vm, &self.policy, ticket);
        });
        self.load_admission = Some(admitted);
        admitted
    }

    /// Asks it for this request's offload, once; under another offload policy never.
    fn admit_offload(&mut self) -> Result<(), Refusal> {
        if self.policy.offload != OffloadPolicy::Backpressure {
            return Ok(());
        }
        if let Some(asked) = self.offload_admission {
            return asked;
        }
        if self.endpoint.is_none() {
            self.find_endpoint();
        }
        // Without an endpoint or a clock nothing is known, and what is not known is admitted.
        let (Some(endpoint), Some(now_ms)) = (self.endpoint.as_deref(), now_ms()) else {
            return Ok(());
        };
        let (Ok(mut gatekeeper), Ok(mut state)) = (
            self.shared.vm.gatekeeper.try_borrow_mut(),
            self.shared.vm.admission.try_borrow_mut(),
        ) else {
            return Ok(());
        };
        let (queue, problems) = gatekeeper.queue(&SharedData, endpoint);
        count_gate_events(&problems, None);
        let world = World {
            store: &SharedData,
            now_ms,
        };
        let policy = self.policy.admission.policy();
        if let Some(entry) = queue.entries.get(endpoint) {
            let mut done = Completion::Stores {
                endpoint,
                stores: &entry.stores,
            };
            policy.on_completed(&mut done, &mut state, world);
        }
        let admitted = policy.should_admit(&Job::Offload { endpoint }, &state, world);
        self.offload_admission = Some(admitted);
        admitted
    }

    /// The tier that an offload was refused for.
    fn pressed_tier(&self) -> Option<&'static str> {
        self.offload_admission?.err()?.tier
    }

    /// Counts the refusals that decided, and what the engine would have ignored.
    fn count_admission(&self, load: Reason, offload: Reason, unsupported: [Option<Feature>; 2]) {
        let refusals = [
            (Direction::Load, load, self.load_admission),
            (Direction::Offload, offload, self.offload_admission),
        ];
        for (direction, reason, asked) in refusals {
            let Some(Err(refusal)) = asked else { continue };
            if reason == refusal.policy.into() {
                let Refusal { policy, tier, .. } = refusal;
                metrics::count(Metric::AdmissionRefusal(direction, policy, tier));
            }
            if let Some(problem) = refusal.problem {
                metrics::count(Metric::LoadProblem(problem.as_str()));
            }
        }
        for feature in unsupported.into_iter().flatten() {
            metrics::count(Metric::EngineUnsupported(feature));
            self.say_unsupported(feature);
        }
    }

    /// One line for each endpoint.
    fn say_unsupported(&self, feature: Feature) {
        /// Past this nothing more is said: log lines are for people.
        const MAX_SAID: usize = 256;
        let (Some(endpoint), Ok(mut said)) = (
            self.endpoint.as_deref(),
            self.shared.vm.unsupported.try_borrow_mut(),
        ) else {
            return;
        };
        if said.len() < MAX_SAID && said.insert(endpoint.to_owned()) {
            let (name, since) = (feature.as_str(), feature.since_text());
            let message = format!(
                "selective-kv: endpoint {endpoint} runs a vLLM older than {since}, which ignores \
                 {name}: what needs it is not done (reason engine_unsupported)"
            );
            host::log(host::Level::Warn, &message);
        }
    }

    /// [`Self::weigh_load`], once for each filter.
    fn settle_load(
        &mut self,
        filter: TierFilter,
        own_zero: bool,
        last_chance: bool,
    ) -> Option<LoadDecision> {
        if let Some(load) = self.settled.get(&(filter, own_zero)) {
            return Some(*load);
        }
        let load = self.weigh_load(&filter, own_zero, last_chance)?;
        self.settled.insert((filter, own_zero), load);
        Some(load)
    }

    /// Under *threshold*. `None`: evidence may still come. `own_zero`: nothing will be loaded, so
    /// admission is not asked.
    fn weigh_load(
        &mut self,
        filter: &TierFilter,
        own_zero: bool,
        last_chance: bool,
    ) -> Option<LoadDecision> {
        self.find_endpoint();
        let now_ms = now_ms();
        let (evidence, problem) = self.find_evidence(filter, now_ms);
        let mut facts = LoadFacts {
            endpoint_known: self.endpoint.is_some(),
            evidence,
            ..LoadFacts::NONE
        };
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
        let load = decision::decide_load(&self.policy, &facts);
        if let (Action::Enable, Some(tokens), false) = (load.action, load.tokens, own_zero) {
            let refusal = self.admit_load(tokens).err();
            facts.refused_by = refusal.map(|refusal| refusal.policy);
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
                    property(UPSTREAM_ADDRESS).and_then(endpoint::into_canonical)
                }
                EndpointSource::Header => self
                    .destination
                    .as_deref()
                    .and_then(endpoint::first_destination),
                EndpointSource::Metadata => property(METADATA_DESTINATION)
                    .and_then(|list| endpoint::first_destination(&list)),
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
            Ok(Some(record)) => evidence::find_with_time(&record.value, request_id, endpoint),
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
        let (decided, load_tiers) = self.weigh(facts, last_chance)?;
        self.decided = Some(decided);
        let Decided { load, offload, .. } = decided;
        let edits = decision::edits(&self.policy, load.action, offload.action, load_tiers);
        Some(edits)
    }
}

fn now_ms() -> Option<u64> {
    host::now_ms()
        .inspect_err(|_| metrics::count(Metric::HostFailure("get_current_time")))
        .ok()
}
