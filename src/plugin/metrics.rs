//! What an operator sees: Envoy metrics, defined at first use, with bounded names.
//!
//! Labels stand in the stat name as `.<tag>=.=<value>;.;`, the form that Istio's `extraStatTags`
//! reads; `stats_tags` of the shipped bootstraps read the same.

use std::cell::RefCell;

use super::host::{self, HostResult, MetricKind};
use crate::policy::admission::{LOAD_PROBLEMS, LOADS_ENDED, MetricDef, PolicyType, REFUSALS};
use crate::policy::endpoint;
use crate::policy::engine::Feature;
use crate::policy::reason::{Action, Direction, Reason};
use crate::policy::request::SkipReason;
use crate::scorer::tokenize::Tokenized;
use crate::sorted::{SortedMap, SortedSet};

/// One time series. Every label value comes from a closed set, so names are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    Decision(Direction, Action, Reason),
    Skipped(SkipReason),
    Edits(Direction),
    /// Gauge, bytes, over all VMs.
    HeldBytes,
    /// Bytes ever held.
    HeldBytesTotal,
    EvidenceProblem(&'static str),
    QueueProblem(&'static str),
    GateTransition(&'static str),
    InvalidLoadTiers,
    /// Direction, policy, and for offloads the tier.
    AdmissionRefusal(Direction, PolicyType, Option<&'static str>),
    LoadEnded(&'static str),
    LoadProblem(&'static str),
    EngineUnsupported(Feature),
    /// Bodies to which a route's `kv_load_tiers` were added.
    TierEdits,
    HostFailure(&'static str),
    InvalidRouteConfig,
    UnreturnedBytes,
    ScorerPoll(&'static str),
    ScorerSamples,
    /// Gauge: endpoints by state, set by the VM that polls.
    ScorerEndpoints(&'static str),
    ScorerLease(&'static str),
    ScorerProblem(&'static str),
    /// One for each request whose body was to be read.
    ScorerEvidence(&'static str),
    /// One for each of its endpoints.
    ScorerEndpointEvidence(&'static str),
    /// One for each reason why an endpoint's evidence is partial.
    ScorerPartial(&'static str),
    ScorerTokenize(Tokenized),
    ScorerPull(&'static str),
    ScorerEvents(&'static str),
    ScorerBlocks(&'static str),
    ScorerEventsProblem(&'static str),
    /// One for each request that was looked at.
    ScorerPrefetch(&'static str),
    ScorerPrefetchDigests,
    ScorerPrefetchAnswer(&'static str),
}

impl Metric {
    fn kind(self) -> MetricKind {
        match self {
            Self::HeldBytes | Self::ScorerEndpoints(_) => MetricKind::Gauge,
            _ => MetricKind::Counter,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Decision(direction, action, reason) => labelled(
                "selective_kv_decisions_total",
                &[
                    ("direction", direction.as_str()),
                    ("action", action.as_str()),
                    ("reason", reason.as_str()),
                ],
            ),
            Self::Skipped(reason) => one("selective_kv_skipped_total", "reason", reason.as_str()),
            Self::Edits(direction) => {
                one("selective_kv_edits_total", "direction", direction.as_str())
            }
            Self::HeldBytes => "selective_kv_held_bytes".into(),
            Self::HeldBytesTotal => "selective_kv_held_bytes_total".into(),
            Self::EvidenceProblem(kind) => {
                one("selective_kv_evidence_problems_total", "kind", kind)
            }
            Self::QueueProblem(kind) => one("selective_kv_queue_problems_total", "kind", kind),
            Self::GateTransition(to) => one("selective_kv_gate_transitions_total", "to", to),
            Self::InvalidLoadTiers => "selective_kv_invalid_kv_load_tiers_total".into(),
            Self::AdmissionRefusal(direction, policy, tier) => labelled(
                REFUSALS.name,
                &[
                    ("direction", direction.as_str()),
                    ("policy", policy.as_str()),
                    ("tier", tier.unwrap_or("-")),
                ],
            ),
            Self::LoadEnded(event) => one(LOADS_ENDED.name, "event", event),
            Self::LoadProblem(kind) => one(LOAD_PROBLEMS.name, "kind", kind),
            Self::EngineUnsupported(feature) => one(
                "selective_kv_engine_unsupported_total",
                "kind",
                feature.as_str(),
            ),
            Self::TierEdits => one("selective_kv_edits_total", "direction", "load_tiers"),
            Self::HostFailure(call) => one("selective_kv_host_failures_total", "call", call),
            Self::InvalidRouteConfig => "selective_kv_invalid_route_config_total".into(),
            Self::UnreturnedBytes => "selective_kv_unreturned_bytes_total".into(),
            Self::ScorerPoll(result) => one("selective_kv_scorer_polls_total", "result", result),
            Self::ScorerSamples => "selective_kv_scorer_samples_total".into(),
            Self::ScorerEndpoints(state) => one("selective_kv_scorer_endpoints", "state", state),
            Self::ScorerLease(event) => one("selective_kv_scorer_lease_total", "event", event),
            Self::ScorerProblem(kind) => one("selective_kv_scorer_problems_total", "kind", kind),
            Self::ScorerEvidence(result) => {
                one("selective_kv_scorer_evidence_total", "result", result)
            }
            Self::ScorerEndpointEvidence(result) => one(
                "selective_kv_scorer_endpoint_evidence_total",
                "result",
                result,
            ),
            Self::ScorerPartial(reason) => one(
                "selective_kv_scorer_partial_evidence_total",
                "reason",
                reason,
            ),
            Self::ScorerPull(result) => one("selective_kv_scorer_pulls_total", "result", result),
            Self::ScorerEvents(result) => one("selective_kv_scorer_events_total", "result", result),
            Self::ScorerBlocks(event) => one("selective_kv_scorer_blocks_total", "event", event),
            Self::ScorerEventsProblem(kind) => {
                one("selective_kv_scorer_events_problems_total", "kind", kind)
            }
            Self::ScorerTokenize(result) => one(
                "selective_kv_scorer_tokenize_total",
                "result",
                result.as_str(),
            ),
            Self::ScorerPrefetch(result) => {
                one("selective_kv_scorer_prefetch_total", "result", result)
            }
            Self::ScorerPrefetchDigests => "selective_kv_scorer_prefetch_digests_total".into(),
            Self::ScorerPrefetchAnswer(result) => one(
                "selective_kv_scorer_prefetch_answers_total",
                "result",
                result,
            ),
        }
    }
}

fn one(base: &str, tag: &str, value: &str) -> String {
    labelled(base, &[(tag, value)])
}

fn labelled(base: &str, labels: &[(&str, &str)]) -> String {
    let mut name = format!("{base}.");
    for (tag, value) in labels {
        name.push_str(tag);
        name.push_str("=.=");
        name.push_str(value);
        name.push_str(";.;");
    }
    name
}

/// Endpoints with gauges of their own, in one VM's life: stat names live for ever.
const MAX_GAUGE_ENDPOINTS: usize = 64;

/// A gauge's base name, endpoint and tier; the tier is empty if it has none.
type Gauge = (&'static str, String, &'static str);

#[derive(Clone, Copy)]
struct Shown {
    id: u32,
    value: u64,
}

#[derive(Default)]
struct Registry {
    ids: SortedMap<Metric, u32>,
    endpoint_ids: SortedMap<String, (u32, u32)>,
    /// Gauges by endpoint and tier, and what they show.
    gauges: SortedMap<Gauge, Shown>,
    /// Of those gauges.
    endpoints: SortedSet<String>,
    broken: SortedSet<Metric>,
}

thread_local! {
    static REGISTRY: RefCell<Registry> = RefCell::new(Registry::default());
}

fn registry<R>(f: impl FnOnce(&mut Registry) -> R) -> Option<R> {
    REGISTRY.with(|registry| registry.try_borrow_mut().ok().map(|mut r| f(&mut r)))
}

fn id(metric: Metric) -> HostResult<u32> {
    if let Some(id) = registry(|r| r.ids.get(&metric).copied()).flatten() {
        return Ok(id);
    }
    let id = host::define_metric(metric.kind(), &metric.name())?;
    registry(|r| r.ids.insert(metric, id));
    Ok(id)
}

/// Adds 1. A metric that the host refuses is not worth a request: logged once, then dropped.
pub fn count(metric: Metric) {
    add(metric, 1);
}

/// Adds `amount`, which may be negative for a gauge. False if the host refused it: a gauge must not
/// be taken down by what was never added.
pub fn add(metric: Metric, amount: i64) -> bool {
    if amount == 0 {
        return true;
    }
    let result = id(metric).and_then(|id| host::increment_metric(id, amount));
    settle(metric, result);
    result.is_ok()
}

fn settle(metric: Metric, result: HostResult<()>) {
    let Err(error) = result else { return };
    if registry(|r| r.broken.insert(metric)) == Some(true) {
        host::log(
            host::Level::Warn,
            &format!("selective-kv: metric {}: {error}", metric.name()),
        );
    }
}

/// The gate's gauges of one endpoint; endpoints past the first 64 have none, nor has what is no
/// `ip:port`: a record's writer may put any text there.
pub fn set_endpoint_gauges(endpoint: &str, ewma: f64, closed: bool) {
    let ids = match registry(|r| (r.endpoint_ids.get(endpoint).copied(), r.endpoint_ids.len())) {
        Some((Some(ids), _)) => ids,
        Some((None, known))
            if known < MAX_GAUGE_ENDPOINTS
                && endpoint::canonical(endpoint.as_bytes()).as_deref() == Some(endpoint) =>
        {
            let define =
                |base| host::define_metric(MetricKind::Gauge, &one(base, "endpoint", endpoint));
            let (Ok(ewma), Ok(closed)) = (
                define("selective_kv_waiting_ewma_milli"),
                define("selective_kv_gate_closed"),
            ) else {
                return;
            };
            registry(|r| r.endpoint_ids.insert(endpoint.to_owned(), (ewma, closed)));
            (ewma, closed)
        }
        _ => return,
    };
    // A float-to-integer `as` saturates; NaN becomes 0.
    let _ = host::record_metric(ids.0, (ewma * 1000.0) as u64);
    let _ = host::record_metric(ids.1, u64::from(closed));
}

/// An endpoint that lost its gates reads as an open one without a queue.
pub fn clear_endpoint_gauges(endpoint: &str) {
    let ids = registry(|r| r.endpoint_ids.get(endpoint).copied()).flatten();
    if let Some((ewma, closed)) = ids {
        let _ = host::record_metric(ewma, 0);
        let _ = host::record_metric(closed, 0);
    }
}

/// Everything that a gauge shows now, by endpoint and tier: what is not among it falls to 0. Under
/// the same bound on endpoints as the gates' gauges.
pub fn show_all<'a>(def: MetricDef, now: impl Iterator<Item = (&'a str, &'static str, u64)>) {
    let mut stale: SortedSet<Gauge> = registry(|r| {
        let shown = r.gauges.iter();
        let shown = shown.filter(|((name, ..), shown)| *name == def.name && shown.value > 0);
        shown.map(|(gauge, _)| gauge.clone()).collect()
    })
    .unwrap_or_default();
    for (endpoint, tier, value) in now {
        let gauge = (def.name, endpoint.to_owned(), tier);
        stale.remove(&gauge);
        show(gauge, value);
    }
    for gauge in stale {
        show(gauge, 0);
    }
}

fn show(gauge: Gauge, value: u64) {
    let known = registry(|r| r.gauges.get(&gauge).copied()).flatten();
    let id = match known {
        Some(shown) if shown.value == value => return,
        Some(shown) => Some(shown.id),
        None => define_gauge(&gauge),
    };
    let Some(id) = id else { return };
    if host::record_metric(id, value).is_ok() {
        registry(|r| r.gauges.insert(gauge, Shown { id, value }));
    }
}

fn define_gauge(gauge: &Gauge) -> Option<u32> {
    let (base, endpoint, tier) = gauge;
    let named = endpoint::canonical(endpoint.as_bytes()).as_ref() == Some(endpoint);
    let room = registry(|r| {
        let room = r.endpoints.contains(endpoint) || r.endpoints.len() < MAX_GAUGE_ENDPOINTS;
        if named && room {
            r.endpoints.insert(endpoint.clone());
        }
        room
    });
    if !named || room != Some(true) {
        return None;
    }
    let mut labels = vec![("endpoint", endpoint.as_str())];
    if !tier.is_empty() {
        labels.push(("tier", tier));
    }
    host::define_metric(MetricKind::Gauge, &labelled(base, &labels)).ok()
}
