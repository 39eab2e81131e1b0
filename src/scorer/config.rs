//! The scorer's configuration: strict JSON, compiled to what the poller needs.
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
//! | `paths` | DESIGN 4's list | the paths whose answers `discover` looks at |

use super::metric_spec::MetricSpec;
use crate::config::{ConfigError, Field, Json, Place, is_header_name, is_path, members, object};
use crate::contract::keys::fnv1a64;
use crate::policy::route::{DEFAULT_PATHS, PathSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Most endpoints of one scorer, configured and discovered together.
pub const MAX_ENDPOINTS: usize = 256;

const KEYS: [&str; 11] = [
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
const MAX_CLUSTER_NAME: usize = 512;

/// What Envoy's ORIGINAL_DST cluster reads unless told otherwise
/// (`original_dst_lb_config.http_header_name`).
const DEFAULT_DESTINATION_HEADER: &str = "x-envoy-original-dst-host";

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

/// The keys as they came; rules across keys follow in `compile`.
#[derive(Default)]
struct Keys {
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
}

impl Keys {
    fn set(&mut self, place: &Place, key: &str, value: &Json) -> Result<(), ConfigError> {
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
                    _ => Some(field.text(is_request_target, VERSION_PATH_RULE)?),
                });
            }
            "discover" => self.discover = field.boolean()?,
            "paths" => self.paths = Some(field.paths(MAX_PATHS)?),
            _ => return Err(ConfigError::unknown(place.member(key), &KEYS)),
        }
        Ok(())
    }

    fn compile(self, place: &Place) -> Result<ScorerConfig, ConfigError> {
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
        paths.sort_unstable();
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
        };
        config.fingerprint = fingerprint(&config, &metric_text, &paths);
        config.name = self
            .name
            .unwrap_or_else(|| format!("{:016x}", config.fingerprint));
        Ok(config)
    }
}

/// The same for every spelling of the same configuration (key order, `1s` or `1000ms`, defaults
/// written out or not). `paths`: those that discovery looks at.
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
    fnv1a64(lines.join("\n").as_bytes())
}

fn line(target: &Target) -> String {
    let header = target.destination_header.as_deref().unwrap_or_default();
    format!("{} {header}", target.cluster)
}

const ADDRESS_RULE: &str =
    "\"ip:port\" (IPv6 as \"[::1]:8000\"), or {\"address\":\"ip:port\",\"cluster\":\"name\"}";
const NAME_RULE: &str = "1 to 64 of the characters a-z A-Z 0-9 . _ - / :";
const CLUSTER_RULE: &str = "the name of an Envoy cluster";
const TARGET_RULE: &str = "a path that starts with / and has no # or space";
const VERSION_PATH_RULE: &str = "a path that starts with / and has no # or space, or null";

fn endpoints(field: &Field<'_>) -> Result<Vec<(SocketAddr, Option<String>)>, ConfigError> {
    let mut found: Vec<(SocketAddr, Option<String>)> = Vec::new();
    for (i, item) in field
        .list(0..=MAX_ENDPOINTS, "endpoints")?
        .iter()
        .enumerate()
    {
        let place = field.place.element(field.key, i);
        let (address, cluster) = match item {
            Json::Text(text) => {
                let wrong = || ConfigError::value(place.itself(), item, ADDRESS_RULE);
                (address(text).ok_or_else(wrong)?, None)
            }
            Json::Object(_) => with_cluster(&place, item)?,
            _ => return Err(ConfigError::value(place.itself(), item, ADDRESS_RULE)),
        };
        if found.iter().any(|(other, _)| *other == address) {
            let rule = "each endpoint may be given once";
            return Err(ConfigError::conflict(place.itself(), item, rule));
        }
        found.push((address, cluster));
    }
    Ok(found)
}

fn with_cluster(place: &Place, item: &Json) -> Result<(SocketAddr, Option<String>), ConfigError> {
    let (mut found, mut cluster) = (None, None);
    for (key, value) in object(place, place.itself(), item.clone())? {
        let field = Field {
            place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "address" => {
                let text = field.text(|text| address(text).is_some(), "\"ip:port\"")?;
                found = address(&text);
            }
            "cluster" => cluster = Some(field.text(is_cluster, CLUSTER_RULE)?),
            _ => {
                let allowed = ["address", "cluster"];
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        }
    }
    let found =
        found.ok_or_else(|| ConfigError::missing(place.member("address"), "\"ip:port\""))?;
    Ok((found, cluster))
}

fn scrape(field: &Field<'_>) -> Result<Target, ConfigError> {
    let place = field.place.inside(field.key);
    let (mut cluster, mut header) = (None, DEFAULT_DESTINATION_HEADER.to_owned());
    for (key, value) in object(&place, place.itself(), field.value.clone())? {
        let field = Field {
            place: &place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "cluster" => cluster = Some(field.text(is_cluster, CLUSTER_RULE)?),
            "destinationHeader" => {
                header = field
                    .text(
                        is_destination_header,
                        "a header name, not host or content-length",
                    )?
                    .to_ascii_lowercase();
            }
            _ => {
                let allowed = ["cluster", "destinationHeader"];
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        }
    }
    let cluster = cluster.ok_or_else(|| {
        ConfigError::missing(
            place.member("cluster"),
            "the name of an ORIGINAL_DST cluster",
        )
    })?;
    Ok(Target {
        cluster: cluster.into(),
        destination_header: Some(header.into()),
    })
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

/// `ip:port`, the port not 0.
pub(super) fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|a: &SocketAddr| a.port() != 0)
}

fn is_scorer_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-/:".contains(&b))
}

fn is_cluster(name: &str) -> bool {
    (1..=MAX_CLUSTER_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// A path and perhaps a query.
fn is_request_target(target: &str) -> bool {
    target.split('?').next().is_some_and(is_path)
        && target.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

fn is_destination_header(name: &str) -> bool {
    let taken = ["host", "content-length", "transfer-encoding", "connection"];
    is_header_name(name) && !taken.iter().any(|t| t.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn parse(text: &str) -> ScorerConfig {
        match ScorerConfig::parse(text.as_bytes()) {
            Ok(config) => config,
            Err(error) => panic!("{text}: {error}"),
        }
    }

    fn target(cluster: &str, header: Option<&str>) -> Target {
        Target {
            cluster: cluster.into(),
            destination_header: header.map(Into::into),
        }
    }

    #[test]
    fn defaults() {
        let config = parse(r#"{"endpoints":["10.0.0.7:8000"],"scrape":{"cluster":"scrape"}}"#);
        assert_eq!(config.name, "38689f157d040f78");
        assert_eq!(config.fingerprint, 0x3868_9f15_7d04_0f78);
        let scrape = target("scrape", Some("x-envoy-original-dst-host"));
        assert_eq!(
            config.endpoints,
            [Configured {
                address: "10.0.0.7:8000".into(),
                target: scrape
            }]
        );
        assert_eq!(config.discovery, None);
        assert_eq!(config.interval_ms, 1_000);
        assert_eq!(config.timeout_ms, 1_000);
        assert_eq!(config.path, "/metrics");
        assert_eq!(config.version_path.as_deref(), Some("/version"));
        assert_eq!(config.metric.name(), b"vllm:num_requests_waiting");
        assert_eq!(config.failures_to_remove, 3);
    }

    #[test]
    fn every_key() {
        let config = parse(
            r#"{"name":"pool-a","endpoints":["10.0.0.7:8000","[::0001]:8000",
                {"address":"10.0.0.8:8000","cluster":"engine-b"}],
                "scrape":{"cluster":"engines-scrape","destinationHeader":"X-Scrape-To"},
                "interval":"500ms","timeout":"250ms","path":"/m?x=1","metric":"q{type=waiting}",
                "failuresToRemove":5.0,"versionPath":"/v","discover":true,"paths":["/a"]}"#,
        );
        assert_eq!(config.name, "pool-a");
        let scrape = target("engines-scrape", Some("x-scrape-to"));
        let endpoint = |address: &str, target: &Target| Configured {
            address: address.into(),
            target: target.clone(),
        };
        assert_eq!(
            config.endpoints,
            [
                endpoint("10.0.0.7:8000", &scrape),
                endpoint("[::1]:8000", &scrape),
                endpoint("10.0.0.8:8000", &target("engine-b", None)),
            ]
        );
        let paths = PathSet::new(vec!["/a".to_owned()]);
        let target = scrape;
        assert_eq!(config.discovery, Some(Discovery { paths, target }));
        assert_eq!((config.interval_ms, config.timeout_ms), (500, 250));
        assert_eq!(config.path, "/m?x=1");
        assert_eq!(config.version_path.as_deref(), Some("/v"));
        assert_eq!(config.metric.name(), b"q");
        assert_eq!(config.failures_to_remove, 5);
    }

    #[test]
    fn the_default_timeout_leaves_an_engine_a_second() {
        let with = |interval: &str| {
            let text = format!(
                r#"{{"discover":true,"scrape":{{"cluster":"s"}},"interval":"{interval}"}}"#
            );
            parse(&text).timeout_ms
        };
        assert_eq!(with("200ms"), 1_000);
        assert_eq!(with("1s"), 1_000);
        assert_eq!(with("3s"), 3_000);
        assert_eq!(with("60s"), 5_000);
    }

    #[test]
    fn the_default_name_follows_the_meaning_not_the_spelling() {
        let name = |text: &str| parse(text).name;
        let one = name(r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"interval":"1s"}"#);
        let same = [
            r#"{"interval":"1000ms","scrape":{"cluster":"s"},"endpoints":["[::1]:80"]}"#,
            r#"{"endpoints":["[0::1]:80"],"scrape":{"cluster":"s","destinationHeader":"X-Envoy-Original-Dst-Host"},"failuresToRemove":3}"#,
        ];
        for text in same {
            assert_eq!(name(text), one, "{text}");
        }
        let others = [
            r#"{"endpoints":["[::1]:81"],"scrape":{"cluster":"s"}}"#,
            r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"t"}}"#,
            r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"interval":"2s"}"#,
            r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"metric":"m"}"#,
            r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"discover":true}"#,
            r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"versionPath":null}"#,
        ];
        for text in others {
            assert_ne!(name(text), one, "{text}");
        }
    }

    #[test]
    fn errors_name_field_value_and_what_is_allowed() {
        let keys = "name, endpoints, scrape, interval, timeout, path, metric, failuresToRemove, \
                    versionPath, discover, paths";
        let address = "must be \"ip:port\" (IPv6 as \"[::1]:8000\"), or \
                       {\"address\":\"ip:port\",\"cluster\":\"name\"}";
        let name = "must be 1 to 64 of the characters a-z A-Z 0-9 . _ - / :";
        let rows: &[(&str, String)] = &[
            (
                "",
                "endpoints is missing: at least one \"ip:port\", or \"discover\": true".into(),
            ),
            (
                "{",
                "configuration is not valid JSON: EOF while parsing an object at line 1 column 1"
                    .into(),
            ),
            ("[]", "configuration is []: must be a JSON object".into()),
            (
                r#"{"Name":"a"}"#,
                format!("Name is not a known key: allowed are {keys}"),
            ),
            (
                r#"{"name":"a","name":"b"}"#,
                "name is given twice: a key may appear once in an object".into(),
            ),
            (r#"{"name":""}"#, format!("name is \"\": {name}")),
            (r#"{"name":"a b"}"#, format!("name is \"a b\": {name}")),
            (r#"{"name":7}"#, format!("name is 7: {name}")),
            (
                r#"{"endpoints":"10.0.0.7:8000"}"#,
                "endpoints is \"10.0.0.7:8000\": must be a list of 0 to 256 endpoints".into(),
            ),
            (
                r#"{"endpoints":["engine:8000"]}"#,
                format!("endpoints[0] is \"engine:8000\": {address}"),
            ),
            (
                r#"{"endpoints":["::1:8000"]}"#,
                format!("endpoints[0] is \"::1:8000\": {address}"),
            ),
            (
                r#"{"endpoints":["10.0.0.7"]}"#,
                format!("endpoints[0] is \"10.0.0.7\": {address}"),
            ),
            (
                r#"{"endpoints":["10.0.0.7:0"]}"#,
                format!("endpoints[0] is \"10.0.0.7:0\": {address}"),
            ),
            (
                r#"{"endpoints":[1]}"#,
                format!("endpoints[0] is 1: {address}"),
            ),
            (
                r#"{"scrape":{"cluster":"s"},"endpoints":["[::1]:1","[::01]:1"]}"#,
                "endpoints[1] is \"[::01]:1\": each endpoint may be given once".into(),
            ),
            (
                r#"{"endpoints":["10.0.0.7:8000"]}"#,
                "endpoints[0] is \"10.0.0.7:8000\": needs \"scrape\", or a cluster of its own as \
                 {\"address\":\"ip:port\",\"cluster\":\"name\"}"
                    .into(),
            ),
            (
                r#"{"endpoints":[{"cluster":"c"}]}"#,
                "endpoints[0].address is missing: \"ip:port\"".into(),
            ),
            (
                r#"{"endpoints":[{"address":"x","cluster":"c"}]}"#,
                "endpoints[0].address is \"x\": must be \"ip:port\"".into(),
            ),
            (
                r#"{"endpoints":[{"address":"[::1]:1","port":2}]}"#,
                "endpoints[0].port is not a known key: allowed are address, cluster".into(),
            ),
            (
                r#"{"scrape":"s"}"#,
                "scrape is \"s\": must be a JSON object".into(),
            ),
            (
                r#"{"scrape":{}}"#,
                "scrape.cluster is missing: the name of an ORIGINAL_DST cluster".into(),
            ),
            (
                r#"{"scrape":{"cluster":""}}"#,
                "scrape.cluster is \"\": must be the name of an Envoy cluster".into(),
            ),
            (
                r#"{"scrape":{"cluster":"s","header":"h"}}"#,
                "scrape.header is not a known key: allowed are cluster, destinationHeader".into(),
            ),
            (
                r#"{"scrape":{"cluster":"s","destinationHeader":"Host"}}"#,
                "scrape.destinationHeader is \"Host\": must be a header name, not host or \
                 content-length"
                    .into(),
            ),
            (
                r#"{"interval":"100ms"}"#,
                "interval is \"100ms\": must be a duration from \"200ms\" to \"60s\"".into(),
            ),
            (
                r#"{"interval":1}"#,
                "interval is 1: must be a duration from \"200ms\" to \"60s\"".into(),
            ),
            (
                r#"{"timeout":"0s"}"#,
                "timeout is \"0s\": must be a duration from \"50ms\" to \"60s\"".into(),
            ),
            (
                r#"{"path":"metrics"}"#,
                "path is \"metrics\": must be a path that starts with / and has no # or space"
                    .into(),
            ),
            (
                r#"{"versionPath":"/a b"}"#,
                "versionPath is \"/a b\": must be a path that starts with / and has no # or \
                 space, or null"
                    .into(),
            ),
            (
                r#"{"metric":"a-b"}"#,
                "metric is \"a-b\": must be a metric name ([a-zA-Z_:][a-zA-Z0-9_:]*), optionally \
                 followed by {label=value,...}"
                    .into(),
            ),
            (
                r#"{"metric":"a{b}"}"#,
                "metric is \"a{b}\": must be labels written {label=value,...} after the metric \
                 name"
                    .into(),
            ),
            (
                r#"{"metric":null}"#,
                "metric is null: must be a metric name".into(),
            ),
            (
                r#"{"failuresToRemove":0}"#,
                "failuresToRemove is 0: must be a whole number from 1 to 1000".into(),
            ),
            (
                r#"{"failuresToRemove":1.5}"#,
                "failuresToRemove is 1.5: must be a whole number from 1 to 1000".into(),
            ),
            (
                r#"{"discover":"yes"}"#,
                "discover is \"yes\": must be true or false".into(),
            ),
            (
                r#"{"discover":true}"#,
                "scrape is missing: needed for \"discover\": true".into(),
            ),
            (
                r#"{"paths":[]}"#,
                "paths is []: must be a list of 1 to 256 paths".into(),
            ),
            (
                r#"{"paths":["/a","/a"]}"#,
                "paths[1] is \"/a\": must be a path, once, that starts with / and has no ?, # or \
                 space"
                    .into(),
            ),
        ];
        for (text, message) in rows {
            let error = ScorerConfig::parse(text.as_bytes()).err();
            let error = error.map(|e| e.to_string()).unwrap_or_default();
            assert_eq!(error, *message, "{text}");
            assert!(!error.contains('\n'), "{text}");
        }
    }
}
