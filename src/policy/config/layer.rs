//! One layer of the configuration: base, a `routes` entry or route metadata. Each key is checked
//! on its own here; the rules across keys hold for the effective policy (`compile.rs`).

use std::num::NonZeroU64;

use super::error::{ConfigError, Place, WHOLE};
use super::json::Json;
use super::{ClientCaps, EndpointSource, OffloadPolicy};
use crate::policy::duration;

/// The policy keys of DESIGN 8, in the order messages list them.
pub(super) const POLICY_KEYS: [&str; 15] = [
    "loadPolicy",
    "offloadPolicy",
    "minExternalReusableTokens",
    "maxWaitingRequests",
    "ewmaHalfLife",
    "reopenRatio",
    "maxSampleAge",
    "maxEvidenceAge",
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
            "minExternalReusableTokens" => self.min_tokens = Some(field.tokens()?),
            "maxWaitingRequests" => {
                let max = field.whole(u64::from(u32::MAX))?;
                self.max_waiting = Some(u32::try_from(max).unwrap_or(u32::MAX));
            }
            "ewmaHalfLife" => self.half_life_ms = Some(field.duration_ms()?),
            "reopenRatio" => self.reopen_ratio = Some(field.ratio()?),
            "maxSampleAge" => self.max_sample_age_ms = Some(field.duration_ms()?),
            "maxEvidenceAge" => self.max_evidence_age_ms = Some(field.duration_ms()?),
            "clientCaps" => self.client_caps = Some(field.one_of(&CLIENT_CAPS)?),
            "dryRun" => self.dry_run = Some(field.boolean()?),
            "maxHeldBytes" => self.max_held_bytes = Some(field.bytes()?),
            "maxHeldBytesPerVm" => self.max_held_bytes_per_vm = Some(field.bytes()?),
            "evidenceHeader" => self.evidence_header = Some(field.header()?),
            "paths" => self.paths = Some(field.paths()?),
            "endpointSources" => self.endpoint_sources = Some(field.sources()?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The members of the text's top-level object. No bytes, or white space only, is `{}`.
pub(super) fn members(text: &[u8]) -> Result<Vec<(String, Json)>, ConfigError> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let json = serde_json::from_slice(text).map_err(|why| ConfigError::not_json(&why))?;
    object(&Place::default(), WHOLE.to_owned(), json)
}

/// The members of an object, each key once.
pub(super) fn object(
    place: &Place,
    field: String,
    json: Json,
) -> Result<Vec<(String, Json)>, ConfigError> {
    let members = match json {
        Json::Object(members) => members,
        other => return Err(ConfigError::value(field, &other, "a JSON object")),
    };
    for (i, (key, _)) in members.iter().enumerate() {
        if members.iter().take(i).any(|(earlier, _)| earlier == key) {
            return Err(ConfigError::twice(place.member(key)));
        }
    }
    Ok(members)
}

type Names<T, const N: usize> = [(&'static str, T); N];

const LOAD_POLICIES: Names<LoadKind, 3> = [
    ("preserve", LoadKind::Preserve),
    ("disable", LoadKind::Disable),
    ("threshold", LoadKind::Threshold),
];

const OFFLOAD_POLICIES: Names<OffloadPolicy, 2> = [
    ("preserve", OffloadPolicy::Preserve),
    ("disable", OffloadPolicy::Disable),
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
const MAX_HEADER_NAME: usize = 256;

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

struct Field<'a> {
    place: &'a Place,
    key: &'a str,
    value: &'a Json,
}

impl Field<'_> {
    fn wrong(&self, allowed: &str) -> ConfigError {
        ConfigError::value(self.place.member(self.key), self.value, allowed)
    }

    fn one_of<T: Copy>(&self, names: &[(&'static str, T)]) -> Result<T, ConfigError> {
        let found = match self.value {
            Json::Text(text) => names.iter().find(|(name, _)| name == text),
            _ => None,
        };
        match found {
            Some((_, value)) => Ok(*value),
            None => Err(self.wrong(&listed(names))),
        }
    }

    fn boolean(&self) -> Result<bool, ConfigError> {
        match self.value {
            Json::Bool(b) => Ok(*b),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn whole(&self, max: u64) -> Result<u64, ConfigError> {
        let allowed = |n: &u64| *n <= max;
        let whole = self.value.as_whole().filter(allowed);
        whole.ok_or_else(|| self.wrong(&format!("a whole number from 0 to {max}")))
    }

    fn tokens(&self) -> Result<NonZeroU64, ConfigError> {
        let tokens = self.value.as_whole().and_then(NonZeroU64::new);
        tokens.ok_or_else(|| self.wrong("a whole number of tokens greater than 0"))
    }

    fn bytes(&self) -> Result<usize, ConfigError> {
        let bytes = self.value.as_whole().filter(|n| *n <= MAX_HELD_BYTES);
        let bytes = bytes.and_then(|n| usize::try_from(n).ok());
        bytes.ok_or_else(|| {
            self.wrong(&format!(
                "a whole number of bytes from 0 to {MAX_HELD_BYTES}"
            ))
        })
    }

    fn ratio(&self) -> Result<f64, ConfigError> {
        let ratio = self.value.as_f64().filter(|r| *r > 0.0 && *r <= 1.0);
        ratio.ok_or_else(|| self.wrong("a number greater than 0 and at most 1"))
    }

    fn duration_ms(&self) -> Result<u64, ConfigError> {
        let ms = match self.value {
            Json::Text(text) => duration::parse_ms(text),
            _ => None,
        };
        ms.ok_or_else(|| self.wrong(duration::ALLOWED))
    }

    /// A header name in lower case, as Envoy has it; `null` is "off", for a route that does not
    /// want the base's.
    fn header(&self) -> Result<Option<String>, ConfigError> {
        let allowed = "an HTTP header name that means nothing else, or null for none";
        let name = match self.value {
            Json::Null => return Ok(None),
            Json::Text(text) => text.to_ascii_lowercase(),
            _ => return Err(self.wrong(allowed)),
        };
        let fits = (1..=MAX_HEADER_NAME).contains(&name.len()) && name.bytes().all(is_token);
        if !fits || TAKEN_HEADERS.contains(&name.as_str()) {
            return Err(self.wrong(allowed));
        }
        Ok(Some(name))
    }

    fn paths(&self) -> Result<Vec<String>, ConfigError> {
        let items = self.list(MAX_PATHS, "paths")?;
        let mut paths: Vec<String> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            match item {
                Json::Text(path) if is_path(path) && !paths.contains(path) => {
                    paths.push(path.clone());
                }
                _ => {
                    let field = self.place.element(self.key, i).itself();
                    let allowed = "a path, once, that starts with / and has no ?, # or space";
                    return Err(ConfigError::value(field, item, allowed));
                }
            }
        }
        Ok(paths)
    }

    fn sources(&self) -> Result<Vec<EndpointSource>, ConfigError> {
        let items = self.list(ENDPOINT_SOURCES.len(), "endpoint sources")?;
        let mut sources: Vec<EndpointSource> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let place = self.place.element(self.key, i);
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

    fn list(&self, max: usize, what: &str) -> Result<&[Json], ConfigError> {
        match self.value {
            Json::Array(items) if (1..=max).contains(&items.len()) => Ok(items),
            _ => Err(self.wrong(&format!("a list of 1 to {max} {what}"))),
        }
    }
}

/// `"a", "b" or "c"`.
fn listed<T>(names: &[(&'static str, T)]) -> String {
    let quoted: Vec<String> = names
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// RFC 9110 token characters.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#')
}
