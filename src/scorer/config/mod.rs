//! The scorer's configuration: strict JSON, compiled to what poller and evidence need.
//!
//! | key | default | rule |
//! |---|---|---|
//! | `name` | hash of the configuration | 1 to 64 letters, digits, `.`, `_`, `-`, `/`, `:` |
//! | `endpoints` | `[]` | `"ip:port"`, or `{"address":"ip:port","cluster":"…"}`; needed unless `discover` |
//! | `scrape` | – | `{"cluster":"…","destinationHeader":"…"}`, an ORIGINAL_DST cluster; needed for endpoints without a cluster of their own and for `discover` |
//! | `interval` | `1s` | `200ms` to `60s` |
//! | `timeout` | the interval, at least `1s`, at most `5s` | `50ms` to `60s` |
//! | `path` | `/metrics` | |
//! | `metric` | `vllm:num_requests_waiting` | a metric name, or `name{label=value,…}` |
//! | `failuresToRemove` | 3 | 1 to 1000 |
//! | `versionPath` | `/version` | `null`: never asked |
//! | `discover` | false | |
//! | `paths` | DESIGN 4's list | the paths whose answers `discover` and whose bodies `evidence` looks at |
//! | `evidence` | – | see [`EvidenceConfig`]; without it bodies are not read |

mod endpoints;
mod evidence;
mod parse;

#[cfg(test)]
mod tests;

pub(super) use endpoints::address;
pub use evidence::{EventsConfig, EvidenceConfig, KeysConfig, PrefetchConfig, TokenizeConfig};

use super::metric_spec::MetricSpec;
use crate::config::{ConfigError, Place, members};
use crate::policy::route::PathSet;
use parse::Keys;
use std::rc::Rc;

/// Most endpoints of one scorer, configured and discovered together.
pub const MAX_ENDPOINTS: usize = 256;

/// How a poll reaches its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the Envoy cluster.
    pub cluster: Rc<str>,
    /// The header that tells an ORIGINAL_DST cluster the address; None: the cluster has one host.
    pub destination_header: Option<Rc<str>>,
}

/// An endpoint that is polled as long as the configuration holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// `ip:port`, IPv6 as `[::1]:8000`, in the spelling Envoy gives `upstream.address`.
    pub address: Rc<str>,
    pub target: Target,
}

/// `discover: true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    pub paths: PathSet,
    pub target: Target,
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct ScorerConfig {
    /// Names this scorer's entries in shared data.
    pub name: String,
    /// FNV-1a-64 of everything but the name: equal for equal configurations however written.
    pub fingerprint: u64,
    pub endpoints: Vec<Configured>,
    pub discovery: Option<Discovery>,
    pub interval_ms: u64,
    pub timeout_ms: u64,
    pub path: String,
    pub version_path: Option<String>,
    pub metric: MetricSpec,
    /// Failed polls in a row after which an endpoint leaves `members`.
    pub failures_to_remove: u32,
    /// None: bodies are not read, events not fetched.
    pub evidence: Option<Rc<EvidenceConfig>>,
}

impl ScorerConfig {
    /// Reads the plugin configuration. No bytes are `{}`, which lacks `endpoints`.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let place = Place::default();
        let mut keys = Keys::default();
        for (key, value) in members(text)? {
            keys.set(&place, &key, &value)?;
        }
        keys.compile(&place)
    }
}
