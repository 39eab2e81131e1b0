//! One layer of the configuration: base, a `routes` entry or route metadata. Each key is checked
//! on its own here; the rules across keys hold for the effective policy (`compile.rs`).

use std::num::NonZeroU64;
use std::rc::Rc;

use super::{ClientCaps, EndpointSource, OffloadPolicy};
use crate::config::{ConfigError, Field, Json, Place, duration, is_header_name, listed, object};
use crate::policy::admission::Admission;
use crate::policy::tiers::{Locality, Medium, TierFilter};

/// The policy keys of DESIGN 8, in the order messages list them.
pub(super) const POLICY_KEYS: [&str; 17] = [
    "loadPolicy",
    "offloadPolicy",
    "minExternalReusableTokens",
    "maxWaitingRequests",
    "ewmaHalfLife",
    "reopenRatio",
    "maxSampleAge",
    "maxEvidenceAge",
    "admission",
    "defaultLoadTiers",
    "clientCaps",
    "dryRun",
    "maxHeldBytes",
    "maxHeldBytesPerVm",
    "evidenceHeader",
    "paths",
    "endpointSources",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadKind {
    Preserve,
    Disable,
    Threshold,
}

/// The keys that a layer sets; None is "not set here".
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layer {
    pub load: Option<LoadKind>,
    pub offload: Option<OffloadPolicy>,
    pub min_tokens: Option<NonZeroU64>,
    /// 0 is "no gate".
    pub max_waiting: Option<u32>,
    pub half_life_ms: Option<u64>,
    pub reopen_ratio: Option<f64>,
    pub max_sample_age_ms: Option<u64>,
    pub max_evidence_age_ms: Option<u64>,
    pub admission: Option<Rc<Admission>>,
    /// `Some(None)`: switched off by `null`.
    pub default_load_tiers: Option<Option<TierFilter>>,
    pub client_caps: Option<ClientCaps>,
    pub dry_run: Option<bool>,
    pub max_held_bytes: Option<usize>,
    pub max_held_bytes_per_vm: Option<usize>,
    /// `Some(None)`: switched off by `null`.
    pub evidence_header: Option<Option<String>>,
    pub paths: Option<Vec<String>>,
    pub endpoint_sources: Option<Vec<EndpointSource>>,
}

impl Layer {
    /// This layer's keys, the other's where this one has none.
    pub fn over(self, below: &Layer) -> Layer {
        let below = below.clone();
        Layer {
            load: self.load.or(below.load),
            offload: self.offload.or(below.offload),
            min_tokens: self.min_tokens.or(below.min_tokens),
            max_waiting: self.max_waiting.or(below.max_waiting),
            half_life_ms: self.half_life_ms.or(below.half_life_ms),
            reopen_ratio: self.reopen_ratio.or(below.reopen_ratio),
            max_sample_age_ms: self.max_sample_age_ms.or(below.max_sample_age_ms),
            max_evidence_age_ms: self.max_evidence_age_ms.or(below.max_evidence_age_ms),
            admission: self.admission.or(below.admission),
            default_load_tiers: self.default_load_tiers.or(below.default_load_tiers),
            client_caps: self.client_caps.or(below.client_caps),
            dry_run: self.dry_run.or(below.dry_run),
            max_held_bytes: self.max_held_bytes.or(below.max_held_bytes),
            max_held_bytes_per_vm: self.max_held_bytes_per_vm.or(below.max_held_bytes_per_vm),
            evidence_header: self.evidence_header.or(below.evidence_header),
            paths: self.paths.or(below.paths),
            endpoint_sources: self.endpoint_sources.or(below.endpoint_sources),
        }
    }

    /// Takes one member. False: no policy key.
    pub fn set(&mut self, place: &Place, key: &str, value: &Json) -> Result<bool, ConfigError> {
        let field = Field { place, key, value };
        match key {
            "loadPolicy" => self.load = Some(field.one_of(&LOAD_POLICIES)?),
            "offloadPolicy" => self.offload = Some(field.one_of(&OFFLOAD_POLICIES)?),
            "minExternalReusableTokens" => self.min_tokens = Some(tokens(&field)?),
            "maxWaitingRequests" => {
                let max = field.whole(0..=u64::from(u32::MAX))?;
                self.max_waiting = Some(u32::try_from(max).unwrap_or(u32::MAX));
            }
            "ewmaHalfLife" => {
                self.half_life_ms = Some(field.duration_ms(duration::RANGE_MS, duration::ALLOWED)?)
            }
            "reopenRatio" => self.reopen_ratio = Some(ratio(&field)?),
            "maxSampleAge" => {
                self.max_sample_age_ms =
                    Some(field.duration_ms(duration::RANGE_MS, duration::ALLOWED)?)
            }
            "maxEvidenceAge" => {
                self.max_evidence_age_ms =
                    Some(field.duration_ms(duration::RANGE_MS, duration::ALLOWED)?)
            }
            "admission" => self.admission = Some(Rc::new(Admission::parse(&field)?)),
            "defaultLoadTiers" => self.default_load_tiers = Some(load_tiers(&field)?),
            "clientCaps" => self.client_caps = Some(field.one_of(&CLIENT_CAPS)?),
            "dryRun" => self.dry_run = Some(field.boolean()?),
            "maxHeldBytes" => self.max_held_bytes = Some(bytes(&field)?),
            "maxHeldBytesPerVm" => self.max_held_bytes_per_vm = Some(bytes(&field)?),
            "evidenceHeader" => self.evidence_header = Some(header(&field)?),
            "paths" => self.paths = Some(field.paths(MAX_PATHS)?),
            "endpointSources" => self.endpoint_sources = Some(sources(&field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

type Names<T, const N: usize> = [(&'static str, T); N];

const LOAD_POLICIES: Names<LoadKind, 3> = [
    ("preserve", LoadKind::Preserve),
    ("disable", LoadKind::Disable),
    ("threshold", LoadKind::Threshold),
];

const OFFLOAD_POLICIES: Names<OffloadPolicy, 4> = [
    ("preserve", OffloadPolicy::Preserve),
    ("disable", OffloadPolicy::Disable),
    ("pressure", OffloadPolicy::Pressure),
    ("backpressure", OffloadPolicy::Backpressure),
];

const CLIENT_CAPS: Names<ClientCaps, 2> = [
    ("override", ClientCaps::Override),
    ("respect", ClientCaps::Respect),
];

const ENDPOINT_SOURCES: Names<EndpointSource, 3> = [
    ("upstream", EndpointSource::Upstream),
    ("header", EndpointSource::Header),
    ("metadata", EndpointSource::Metadata),
];

/// Most bytes that may be held, a request or a VM: V8 gives a module no more memory than this.
const MAX_HELD_BYTES: u64 = 1 << 30;

const MAX_PATHS: usize = 256;

/// Headers that mean something to the request, its framing or this filter. The evidence header is
/// removed from every request, so it can be none of them.
const TAKEN_HEADERS: [&str; 13] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "x-encoder-hosts-ports",
    "x-gateway-destination-endpoint",
    "x-kv-cache-source-host-port",
    "x-prefiller-host-port",
    "x-request-id",
];

fn tokens(field: &Field<'_>) -> Result<NonZeroU64, ConfigError> {
    let tokens = field.value.as_whole().and_then(NonZeroU64::new);
    tokens.ok_or_else(|| field.wrong("a whole number of tokens greater than 0"))
}

fn bytes(field: &Field<'_>) -> Result<usize, ConfigError> {
    let bytes = field.value.as_whole().filter(|n| *n <= MAX_HELD_BYTES);
    let bytes = bytes.and_then(|n| usize::try_from(n).ok());
    bytes.ok_or_else(|| {
        field.wrong(&format!(
            "a whole number of bytes from 0 to {MAX_HELD_BYTES}"
        ))
    })
}

fn ratio(field: &Field<'_>) -> Result<f64, ConfigError> {
    let ratio = field.value.as_f64().filter(|r| *r > 0.0 && *r <= 1.0);
    ratio.ok_or_else(|| field.wrong("a number greater than 0 and at most 1"))
}

/// A header name in lower case, as Envoy has it; `null` is "off", for a route that does not want
/// the base's.
fn header(field: &Field<'_>) -> Result<Option<String>, ConfigError> {
    let allowed = "an HTTP header name that means nothing else, or null for none";
    let name = match field.value {
        Json::Null => return Ok(None),
        Json::Text(text) => text.to_ascii_lowercase(),
        _ => return Err(field.wrong(allowed)),
    };
    if !is_header_name(&name) || TAKEN_HEADERS.contains(&name.as_str()) {
        return Err(field.wrong(allowed));
    }
    Ok(Some(name))
}

const MEDIA: Names<Medium, 2> = [("cpu", Medium::Cpu), ("storage", Medium::Storage)];

const LOCALITIES: Names<Locality, 2> = [("local", Locality::Local), ("remote", Locality::Remote)];

/// More are repetitions: there are nine different matchers.
const MAX_MATCHERS: usize = 9;

/// Tier matchers as vLLM takes them, and none that it would skip: of a list in which it skips
/// everything it makes "all tiers". An empty list is "no secondary tier"; `null` is "off".
fn load_tiers(field: &Field<'_>) -> Result<Option<TierFilter>, ConfigError> {
    if *field.value == Json::Null {
        return Ok(None);
    }
    let items = field.list(0..=MAX_MATCHERS, "tier matchers, or null for none")?;
    let mut matchers = Vec::new();
    for (i, item) in items.iter().enumerate() {
        matchers.push(matcher(&field.place.element(field.key, i), item)?);
    }
    Ok(Some(TierFilter::of(matchers)))
}

fn matcher(place: &Place, item: &Json) -> Result<(Option<Medium>, Option<Locality>), ConfigError> {
    let (mut medium, mut locality) = (None, None);
    for (key, value) in object(place, place.itself(), item.clone())? {
        let field = Field {
            place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "medium" => medium = Some(word(&field, &MEDIA)?),
            "locality" => locality = Some(word(&field, &LOCALITIES)?),
            _ => {
                return Err(ConfigError::unknown(
                    place.member(&key),
                    &["medium", "locality"],
                ));
            }
        }
    }
    Ok((medium, locality))
}

/// In upper or lower case, as the engine takes them.
fn word<T: Copy>(field: &Field<'_>, names: &[(&'static str, T)]) -> Result<T, ConfigError> {
    let found = match field.value {
        Json::Text(text) => names
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text)),
        _ => None,
    };
    found.map(|(_, word)| *word).ok_or_else(|| {
        let allowed = format!("{}; the engine skips a matcher with another", listed(names));
        field.wrong(&allowed)
    })
}

fn sources(field: &Field<'_>) -> Result<Vec<EndpointSource>, ConfigError> {
    let items = field.list(1..=ENDPOINT_SOURCES.len(), "endpoint sources")?;
    let mut sources: Vec<EndpointSource> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let place = field.place.element(field.key, i);
        let found = match item {
            Json::Text(text) => ENDPOINT_SOURCES.iter().find(|(name, _)| name == text),
            _ => None,
        };
        match found {
            Some((_, source)) if !sources.contains(source) => sources.push(*source),
            _ => {
                let allowed = format!("{}, each once", listed(&ENDPOINT_SOURCES));
                return Err(ConfigError::value(place.itself(), item, &allowed));
            }
        }
    }
    Ok(sources)
}
