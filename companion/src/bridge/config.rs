//! The bridge's configuration file.

use super::discover::MAX_RANKS;
use super::link::MAX_TOPIC;
use super::log::{Bounds, Name, PAGE_OVERHEAD, RECORD_OVERHEAD, SOURCE_OVERHEAD};
use crate::common::address::Address;
use crate::common::settings::{
    self, Error, Log, LogFile, api, duration, listen, range, size, wrong,
};
use serde::Deserialize;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub const DEFAULT_LISTEN: &str = "127.0.0.1:8099";
const DEFAULT_PAGE: u64 = 1_000_000;
const DEFAULT_LOG_BYTES: u64 = 64 << 20;
const DEFAULT_LOG_BATCHES: u64 = 100_000;
const DEFAULT_READERS: u64 = 256;
const MAX_SOURCES: usize = 1024;
/// Longest endpoint name (bytes).
const MAX_NAME: usize = 128;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    listen: Option<String>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    limits: Limits,
    heartbeat: Option<String>,
    replay_timeout: Option<String>,
    #[serde(default)]
    log: LogFile,
    #[serde(default)]
    engines: Vec<EngineFile>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Limits {
    max_log_bytes: Option<u64>,
    max_log_batches: Option<u64>,
    max_page_bytes: Option<u64>,
    max_batch_bytes: Option<u64>,
    max_readers: Option<u64>,
    max_poll_wait: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EngineFile {
    endpoint: String,
    connect: Option<String>,
    bind: Option<String>,
    discover: Option<String>,
    replay: Option<String>,
    topic: Option<String>,
    data_parallel_ranks: Option<u64>,
    endpoint_per_rank: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    Connect {
        publisher: Address,
        replay: Option<Address>,
        ranks: u32,
    },
    Bind {
        listen: Address,
        replay: Option<Address>,
        ranks: u32,
    },
    Discover {
        api: Address,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Engine {
    /// As Envoy names it: `ip:port`, or a name without a colon for what is no endpoint.
    pub endpoint: String,
    pub from: From,
    pub topic: String,
    /// Rank n is the endpoint with port + n, not a part of one endpoint.
    pub endpoint_per_rank: bool,
}

impl Engine {
    pub fn name(&self, rank: u32) -> Option<Name> {
        let endpoint = match self.endpoint.parse::<SocketAddr>() {
            Ok(mut address) if self.endpoint_per_rank => {
                address.set_port(
                    u16::try_from(rank)
                        .ok()
                        .and_then(|rank| address.port().checked_add(rank))?,
                );
                address.to_string()
            }
            _ => self.endpoint.clone(),
        };
        Some(Name { endpoint, rank })
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub token_file: Option<PathBuf>,
    pub engines: Vec<Engine>,
    pub bounds: Bounds,
    pub max_page: usize,
    pub max_batch: usize,
    pub max_readers: usize,
    pub max_wait: Duration,
    pub heartbeat: Duration,
    pub replay_timeout: Duration,
    pub log: Log,
}

impl Config {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let file: File = settings::read(text)?;
        let listen = listen(file.listen.as_deref(), DEFAULT_LISTEN)?;
        let engines = engines(file.engines)?;
        let sources: u64 = engines.iter().map(|engine| u64::from(engine.ranks())).sum();
        let limits = file.limits;

        let max_page = range(
            "limits.maxPageBytes",
            limits.max_page_bytes,
            DEFAULT_PAGE,
            65_536..=16 << 20,
        )?;
        let overhead = (PAGE_OVERHEAD + RECORD_OVERHEAD) as u64 + sources * SOURCE_OVERHEAD as u64;
        if max_page < overhead + 1024 {
            return wrong(
                "limits.maxPageBytes",
                max_page,
                format!("{sources} ranks alone take {overhead} bytes of a page: raise it"),
            );
        }
        let max_batch = range(
            "limits.maxBatchBytes",
            limits.max_batch_bytes,
            max_page - overhead,
            1024..=max_page - overhead,
        )?;
        let max_log = range(
            "limits.maxLogBytes",
            limits.max_log_bytes,
            DEFAULT_LOG_BYTES,
            65_536..=1 << 40,
        )?;
        let max_records = range(
            "limits.maxLogBatches",
            limits.max_log_batches,
            DEFAULT_LOG_BATCHES,
            1..=100_000_000,
        )?;
        let max_readers = range(
            "limits.maxReaders",
            limits.max_readers,
            DEFAULT_READERS,
            1..=100_000,
        )?;

        Ok(Self {
            listen,
            token_file: file.token_file,
            engines,
            bounds: Bounds {
                max_bytes: size(max_log),
                max_records: size(max_records),
            },
            max_page: size(max_page),
            max_batch: size(max_batch),
            max_readers: size(max_readers),
            max_wait: duration(
                "limits.maxPollWait",
                limits.max_poll_wait,
                25_000,
                100..=600_000,
            )?,
            heartbeat: duration("heartbeat", file.heartbeat, 5_000, 20..=60_000)?,
            replay_timeout: duration("replayTimeout", file.replay_timeout, 5_000, 100..=60_000)?,
            log: Log::parse(&file.log)?,
        })
    }
}

impl Engine {
    /// As many as are configured; a discovered engine counts as one until it answered.
    fn ranks(&self) -> u32 {
        match &self.from {
            From::Connect { ranks, .. } | From::Bind { ranks, .. } => *ranks,
            From::Discover { .. } => 1,
        }
    }
}

fn engines(files: Vec<EngineFile>) -> Result<Vec<Engine>, Error> {
    if files.is_empty() {
        return wrong("engines", "[]", "at least one engine is needed");
    }
    let mut engines = Vec::new();
    let mut names = HashSet::new();
    let mut listeners = HashSet::new();
    for (index, file) in files.into_iter().enumerate() {
        let at = |field: &str| format!("engines[{index}].{field}");
        let engine = engine(file, at)?;
        for rank in 0..engine.ranks() {
            let Some(name) = engine.name(rank) else {
                return wrong(
                    at("dataParallelRanks"),
                    engine.ranks(),
                    "the port of the last rank's endpoint is beyond 65535",
                );
            };
            if !names.insert(name) {
                return wrong(
                    at("endpoint"),
                    &engine.endpoint,
                    "this endpoint and rank is already followed",
                );
            }
            if let From::Bind { listen, .. } = &engine.from {
                let Some(address) = listen.for_rank(rank) else {
                    return wrong(
                        at("bind"),
                        listen,
                        "the port of the last rank is beyond 65535",
                    );
                };
                if !listeners.insert((address, engine.topic.clone())) {
                    return wrong(
                        at("bind"),
                        listen,
                        "engines that share an address need topics that differ",
                    );
                }
            }
        }
        engines.push(engine);
    }
    if names.len() > MAX_SOURCES {
        return wrong(
            "engines",
            names.len(),
            format!("at most {MAX_SOURCES} engine ranks"),
        );
    }
    Ok(engines)
}

fn engine(file: EngineFile, at: impl Fn(&str) -> String) -> Result<Engine, Error> {
    let endpoint = match file.endpoint.parse::<SocketAddr>() {
        // The one spelling that Envoy uses.
        Ok(address) => address.to_string(),
        Err(_) => {
            let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if file.endpoint.is_empty()
                || file.endpoint.len() > MAX_NAME
                || !file.endpoint.chars().all(named)
            {
                return wrong(
                    at("endpoint"),
                    format!("{:?}", file.endpoint),
                    "must be the ip:port that Envoy sends requests to, such as 10.0.0.7:8000 or [::1]:8000; or, for what is no endpoint, a name of letters, digits, '.', '-', '_'",
                );
            }
            file.endpoint
        }
    };
    let topic = file.topic.unwrap_or_default();
    if topic.len() > MAX_TOPIC {
        return wrong(
            at("topic"),
            format!("{} bytes", topic.len()),
            format!("at most {MAX_TOPIC} bytes"),
        );
    }
    let ranks = range(
        &at("dataParallelRanks"),
        file.data_parallel_ranks,
        1,
        1..=u64::from(MAX_RANKS),
    )?;
    let ranks = u32::try_from(ranks).unwrap_or(1);
    let address = |field: &str, text: &str, wildcard: bool| match Address::parse(text)
        .filter(|address| (wildcard || !address.is_wildcard()) && address.port > 0)
    {
        Some(address) if address.for_rank(ranks - 1).is_some() => Ok(address),
        Some(_) => wrong(at(field), text, "the port of the last rank is beyond 65535"),
        None if wildcard => wrong(at(field), text, "must be tcp://host:port or tcp://*:port"),
        None => wrong(
            at(field),
            text,
            "must be tcp://host:port with the host to connect to (no wildcard)",
        ),
    };
    let replay = file
        .replay
        .as_deref()
        .map(|text| address("replay", text, false))
        .transpose()?;
    let from = match (file.connect, file.bind, file.discover) {
        (Some(text), None, None) => From::Connect {
            publisher: address("connect", &text, false)?,
            replay,
            ranks,
        },
        (None, Some(text), None) => From::Bind {
            listen: address("bind", &text, true)?,
            replay,
            ranks,
        },
        (None, None, Some(text)) => {
            let Some(api) = api(&text) else {
                return wrong(
                    at("discover"),
                    text,
                    "must be http://host:port, the engine's API server",
                );
            };
            for (field, given) in [
                ("replay", replay.is_some()),
                ("topic", !topic.is_empty()),
                ("dataParallelRanks", file.data_parallel_ranks.is_some()),
            ] {
                if given {
                    return wrong(
                        at(field),
                        "set",
                        "the engine says it itself when `discover` is used",
                    );
                }
            }
            From::Discover { api }
        }
        _ => {
            return wrong(
                at("connect"),
                &endpoint,
                "exactly one of connect, bind, discover is needed",
            );
        }
    };
    Ok(Engine {
        endpoint,
        from,
        topic,
        endpoint_per_rank: file.endpoint_per_rank.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_configuration() {
        let config = Config::parse(
            "listen: 0.0.0.0:9000\n\
             tokenFile: /run/secrets/token\n\
             heartbeat: 2s\n\
             limits: {maxLogBytes: 1000000, maxPageBytes: 200000, maxPollWait: 1m}\n\
             log: {level: debug, format: json}\n\
             engines:\n\
             - {endpoint: '10.0.0.7:8000', connect: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:6557', dataParallelRanks: 2}\n\
             - {endpoint: '[0:0::1]:8000', bind: 'tcp://*:5600', topic: 'kv@a@m'}\n\
             - {endpoint: SHARED_STORAGE, bind: 'tcp://*:5600', topic: 'kv@SHARED_STORAGE@m'}\n\
             - {endpoint: '10.0.0.8:8000', discover: 'http://10.0.0.8:8000/', endpointPerRank: true}\n",
        )
        .unwrap();
        let host = |port| Address {
            host: "10.0.0.7".into(),
            port,
        };
        assert_eq!(config.listen.to_string(), "0.0.0.0:9000");
        assert_eq!(
            config.engines[0].from,
            From::Connect {
                publisher: host(5557),
                replay: Some(host(6557)),
                ranks: 2
            }
        );
        assert_eq!(config.engines[1].endpoint, "[::1]:8000");
        assert_eq!(config.engines[2].endpoint, "SHARED_STORAGE");
        assert_eq!(config.engines[3].name(2).unwrap().endpoint, "10.0.0.8:8002");
        assert_eq!(config.heartbeat, Duration::from_secs(2));
        assert_eq!(config.max_wait, Duration::from_secs(60));
        assert_eq!(config.max_batch, 200_000 - 256 - 32 - 5 * 512);
        assert_eq!(
            config.log,
            Log {
                level: tracing::Level::DEBUG,
                format: settings::Format::Json
            }
        );
    }

    #[test]
    fn json_and_defaults() {
        let config = Config::parse(
            r#"{"engines": [{"endpoint": "10.0.0.7:8000", "connect": "tcp://h:5557"}]}"#,
        )
        .unwrap();
        assert_eq!(config.listen.to_string(), DEFAULT_LISTEN);
        assert_eq!(
            (config.max_page, config.max_batch),
            (1_000_000, 1_000_000 - 256 - 32 - 512)
        );
        assert_eq!(
            (config.bounds.max_bytes, config.bounds.max_records),
            (64 << 20, 100_000)
        );
    }

    #[test]
    fn an_error_names_the_field_the_value_and_what_is_allowed() {
        let engine = |more: &str| format!("engines: [{{endpoint: '10.0.0.7:8000', {more}}}]");
        let good = engine("connect: 'tcp://h:5557'");
        for (text, says) in [
            (String::new(), "engines: []: at least one engine is needed"),
            (
                format!("{good}\nlimts: {{}}"),
                "unknown field `limts`, expected one of `listen`, `tokenFile`, `limits`, `heartbeat`, `replayTimeout`, `log`, `engines`",
            ),
            (
                engine("conect: x"),
                "engines[0]: unknown field `conect`, expected one of `endpoint`, `connect`",
            ),
            (
                format!("{good}\nlimits: {{maxLogBytes: lots}}"),
                "limits.maxLogBytes: invalid type: string \"lots\", expected u64",
            ),
            (
                format!("{good}\nlimits: {{maxPageBytes: 10}}"),
                "limits.maxPageBytes: 10: must be 65536 to 16777216",
            ),
            (
                format!("{good}\nlimits: {{maxBatchBytes: 1000000}}"),
                "limits.maxBatchBytes: 1000000: must be 1024 to 999200",
            ),
            (
                format!("{good}\nlimits: {{maxPollWait: 5}}"),
                "limits.maxPollWait: 5: must be a duration such as 200ms",
            ),
            (
                format!("{good}\nlisten: localhost"),
                "listen: localhost: must be ip:port, for example 127.0.0.1:8099",
            ),
            (
                format!("{good}\nlog: {{level: loud}}"),
                "log.level: loud: must be error, warn, info, debug or trace",
            ),
            (
                format!("{good}\nlog: {{format: xml}}"),
                "log.format: xml: must be text or json",
            ),
            (
                engine("topic: x"),
                "engines[0].connect: 10.0.0.7:8000: exactly one of connect, bind, discover is needed",
            ),
            (
                engine("connect: 'tcp://*:5557'"),
                "engines[0].connect: tcp://*:5557: must be tcp://host:port with the host to connect to",
            ),
            (
                engine("connect: 'ipc:///x'"),
                "engines[0].connect: ipc:///x: must be tcp://host:port",
            ),
            (
                engine("bind: '5557'"),
                "engines[0].bind: 5557: must be tcp://host:port or tcp://*:port",
            ),
            (
                engine("connect: 'tcp://h:65535', dataParallelRanks: 2"),
                "the port of the last rank is beyond 65535",
            ),
            (
                engine("connect: 'tcp://h:5557', dataParallelRanks: 65"),
                "engines[0].dataParallelRanks: 65: must be 1 to 64",
            ),
            (
                engine("discover: 'https://h:1'"),
                "engines[0].discover: https://h:1: must be http://host:port",
            ),
            (
                engine("discover: 'http://h:1', topic: a"),
                "engines[0].topic: set: the engine says it itself",
            ),
            (
                good.replace("10.0.0.7:8000", "vllm-0:8000"),
                "engines[0].endpoint: \"vllm-0:8000\": must be the ip:port",
            ),
            (
                "engines: [{endpoint: a, bind: 'tcp://*:1'}, {endpoint: b, bind: 'tcp://*:1'}]"
                    .into(),
                "engines[1].bind: tcp://*:1: engines that share an address need topics that differ",
            ),
            (
                "engines: [{endpoint: a, bind: 'tcp://*:1'}, {endpoint: a, bind: 'tcp://*:2'}]"
                    .into(),
                "engines[1].endpoint: a: this endpoint and rank is already followed",
            ),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(
                error.contains(says),
                "{text}\n  says: {error}\n  not:  {says}"
            );
        }
    }
}
