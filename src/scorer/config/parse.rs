//! The top level: keys as they come, then the rules across them.

use super::endpoints::{OR_NULL_RULE, TARGET_RULE, endpoints, is_request_target, scrape};
use super::evidence::{self, EvidenceConfig};
use super::{Configured, Discovery, ScorerConfig, Target};
use crate::config::{ConfigError, Field, Json, Place};
use crate::contract::keys::fnv1a64;
use crate::policy::route::{DEFAULT_PATHS, PathSet};
use crate::scorer::metric_spec::MetricSpec;
use crate::sorted::sort_by;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

const KEYS: [&str; 12] = [
    "name",
    "endpoints",
    "scrape",
    "interval",
    "timeout",
    "path",
    "metric",
    "failuresToRemove",
    "versionPath",
    "discover",
    "paths",
    "evidence",
];

/// At least the spacing that the contract asks of samples; at most the age at which a writer of
/// `members` stops counting.
const INTERVAL_MS: RangeInclusive<u64> = 200..=60_000;
const DEFAULT_INTERVAL_MS: u64 = 1_000;

/// An engine answers `/metrics` late exactly when its queue is long, so the default leaves it a
/// second even when polls are asked for more often (polls of one endpoint never overlap).
const TIMEOUT_MS: RangeInclusive<u64> = 50..=60_000;
const DEFAULT_TIMEOUT_MS: RangeInclusive<u64> = 1_000..=5_000;

const DEFAULT_METRIC: &str = "vllm:num_requests_waiting";
const DEFAULT_FAILURES: u32 = 3;
const MAX_FAILURES: u64 = 1_000;
const MAX_PATHS: usize = 256;
const MAX_NAME: usize = 64;

const NAME_RULE: &str = "1 to 64 of the characters a-z A-Z 0-9 . _ - / :";

/// The keys as they came; rules across keys follow in `compile`.
#[derive(Default)]
pub(super) struct Keys {
    name: Option<String>,
    endpoints: Vec<(SocketAddr, Option<String>)>,
    scrape: Option<Target>,
    interval_ms: Option<u64>,
    timeout_ms: Option<u64>,
    path: Option<String>,
    metric: Option<(String, MetricSpec)>,
    failures: Option<u32>,
    version_path: Option<Option<String>>,
    discover: bool,
    paths: Option<Vec<String>>,
    evidence: Option<EvidenceConfig>,
}

impl Keys {
    pub(super) fn set(
        &mut self,
        place: &Place,
        key: &str,
        value: &Json,
    ) -> Result<(), ConfigError> {
        let field = Field { place, key, value };
        match key {
            "name" => self.name = Some(field.text(is_scorer_name, NAME_RULE)?),
            "endpoints" => self.endpoints = endpoints(&field)?,
            "scrape" => self.scrape = Some(scrape(&field)?),
            "interval" => {
                let rule = "a duration from \"200ms\" to \"60s\"";
                self.interval_ms = Some(field.duration_ms(INTERVAL_MS, rule)?);
            }
            "timeout" => {
                let rule = "a duration from \"50ms\" to \"60s\"";
                self.timeout_ms = Some(field.duration_ms(TIMEOUT_MS, rule)?);
            }
            "path" => self.path = Some(field.text(is_request_target, TARGET_RULE)?),
            "metric" => self.metric = Some(metric(&field)?),
            "failuresToRemove" => {
                let failures = field.whole(1..=MAX_FAILURES)?;
                self.failures = Some(u32::try_from(failures).unwrap_or(u32::MAX));
            }
            "versionPath" => {
                self.version_path = Some(match value {
                    Json::Null => None,
                    _ => Some(field.text(is_request_target, OR_NULL_RULE)?),
                });
            }
            "discover" => self.discover = field.boolean()?,
            "paths" => self.paths = Some(field.paths(MAX_PATHS)?),
            "evidence" => self.evidence = Some(evidence::parse(&field)?),
            _ => return Err(ConfigError::unknown(place.member(key), &KEYS)),
        }
        Ok(())
    }

    pub(super) fn compile(self, place: &Place) -> Result<ScorerConfig, ConfigError> {
        if self.endpoints.is_empty() && !self.discover {
            return Err(ConfigError::missing(
                place.member("endpoints"),
                "at least one \"ip:port\", or \"discover\": true",
            ));
        }
        let interval_ms = self.interval_ms.unwrap_or(DEFAULT_INTERVAL_MS);
        let (shortest, longest) = DEFAULT_TIMEOUT_MS.into_inner();
        let default_timeout = interval_ms.clamp(shortest, longest);
        let (metric_text, metric) = match self.metric {
            Some(metric) => metric,
            None => default_metric(place)?,
        };
        let mut compiled = Vec::new();
        for (i, (address, own_cluster)) in self.endpoints.into_iter().enumerate() {
            let address: Rc<str> = address.to_string().into();
            let own = own_cluster.map(|cluster| Target {
                cluster: cluster.into(),
                destination_header: None,
            });
            let target = own.or_else(|| self.scrape.clone()).ok_or_else(|| {
                ConfigError::conflict(
                    place.element("endpoints", i).itself(),
                    &Json::Text(address.to_string()),
                    "needs \"scrape\", or a cluster of its own as \
                     {\"address\":\"ip:port\",\"cluster\":\"name\"}",
                )
            })?;
            compiled.push(Configured { address, target });
        }
        let mut paths = self
            .paths
            .unwrap_or_else(|| DEFAULT_PATHS.map(str::to_owned).to_vec());
        sort_by(&mut paths, Ord::cmp);
        let discovery = match (self.discover, self.scrape) {
            (false, _) => None,
            (true, Some(target)) => Some(Discovery {
                paths: PathSet::new(paths.clone()),
                target,
            }),
            (true, None) => {
                return Err(ConfigError::missing(
                    place.member("scrape"),
                    "needed for \"discover\": true",
                ));
            }
        };
        let evidence = self.evidence.map(|evidence| {
            let paths = PathSet::new(paths.clone());
            Rc::new(EvidenceConfig { paths, ..evidence })
        });
        let mut config = ScorerConfig {
            name: String::new(),
            fingerprint: 0,
            endpoints: compiled,
            discovery,
            interval_ms,
            timeout_ms: self.timeout_ms.unwrap_or(default_timeout),
            path: self.path.unwrap_or_else(|| "/metrics".to_owned()),
            version_path: self
                .version_path
                .unwrap_or_else(|| Some("/version".to_owned())),
            metric,
            failures_to_remove: self.failures.unwrap_or(DEFAULT_FAILURES),
            evidence,
        };
        config.fingerprint = fingerprint(&config, &metric_text, &paths);
        config.name = self
            .name
            .unwrap_or_else(|| format!("{:016x}", config.fingerprint));
        Ok(config)
    }
}

/// The same for every spelling of the same configuration (key order, `1s` or `1000ms`, defaults
/// written out or not). `paths`: those that discovery and evidence look at.
fn fingerprint(config: &ScorerConfig, metric: &str, paths: &[String]) -> u64 {
    let mut lines: Vec<String> = config
        .endpoints
        .iter()
        .map(|endpoint| format!("{} {}", endpoint.address, line(&endpoint.target)))
        .collect();
    if let Some(discovery) = &config.discovery {
        lines.push(format!("discover {}", line(&discovery.target)));
        lines.extend_from_slice(paths);
    }
    lines.push(config.interval_ms.to_string());
    lines.push(config.timeout_ms.to_string());
    lines.push(config.path.clone());
    lines.push(config.version_path.clone().unwrap_or_default());
    lines.push(config.failures_to_remove.to_string());
    lines.push(metric.to_owned());
    if let Some(evidence) = &config.evidence {
        lines.push("evidence".to_owned());
        lines.extend_from_slice(paths);
        evidence.spell(&mut lines);
    }
    fnv1a64(lines.join("\n").as_bytes())
}

fn line(target: &Target) -> String {
    let header = target.destination_header.as_deref().unwrap_or_default();
    format!("{} {header}", target.cluster)
}

fn metric(field: &Field<'_>) -> Result<(String, MetricSpec), ConfigError> {
    let Json::Text(text) = field.value else {
        return Err(field.wrong("a metric name"));
    };
    match MetricSpec::parse(text) {
        Ok(spec) => Ok((text.clone(), spec)),
        Err(error) => Err(field.wrong(&error.to_string())),
    }
}

fn default_metric(place: &Place) -> Result<(String, MetricSpec), ConfigError> {
    metric(&Field {
        place,
        key: "metric",
        value: &Json::Text(DEFAULT_METRIC.to_owned()),
    })
}

fn is_scorer_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-/:".contains(&b))
}
