//! Fields that every configuration file has, and checks of single fields. What is wrong is said as
//! `field: value: what is allowed`.

use super::address::Address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

pub fn wrong<T>(
    field: impl fmt::Display,
    value: impl fmt::Display,
    allowed: impl fmt::Display,
) -> Result<T, Error> {
    Err(Error(format!("{field}: {value}: {allowed}")))
}

/// YAML or JSON; an error names its place.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_norway::from_str(text).map_err(|error| Error(error.to_string()))
}

/// Key `listen`.
pub fn listen(text: Option<&str>, default: &str) -> Result<SocketAddr, Error> {
    let text = text.unwrap_or(default);
    match text.parse() {
        Ok(address) => Ok(address),
        Err(_) => wrong(
            "listen",
            text,
            format!("must be ip:port, for example {default}"),
        ),
    }
}

/// `http://host:port` of an engine's API server.
pub fn api(text: &str) -> Option<Address> {
    text.strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'))
        .and_then(Address::parse_authority)
        .filter(|api| !api.is_wildcard() && api.port > 0)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogFile {
    level: Option<String>,
    format: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Text,
    Json,
}

/// Key `log`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    pub level: tracing::Level,
    pub format: Format,
}

impl Log {
    pub fn parse(file: &LogFile) -> Result<Self, Error> {
        let level = match file.level.as_deref().unwrap_or("info") {
            "error" => tracing::Level::ERROR,
            "warn" => tracing::Level::WARN,
            "info" => tracing::Level::INFO,
            "debug" => tracing::Level::DEBUG,
            "trace" => tracing::Level::TRACE,
            other => {
                return wrong(
                    "log.level",
                    other,
                    "must be error, warn, info, debug or trace",
                );
            }
        };
        let format = match file.format.as_deref().unwrap_or("text") {
            "text" => Format::Text,
            "json" => Format::Json,
            other => return wrong("log.format", other, "must be text or json"),
        };
        Ok(Self { level, format })
    }
}

pub fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub fn range(
    field: &str,
    value: Option<u64>,
    default: u64,
    allowed: RangeInclusive<u64>,
) -> Result<u64, Error> {
    let value = value.unwrap_or(default);
    if allowed.contains(&value) {
        return Ok(value);
    }
    wrong(
        field,
        value,
        format!("must be {} to {}", allowed.start(), allowed.end()),
    )
}

/// `200ms`, `2s`, `1m`, as everywhere in this project. Bounds and default in milliseconds.
pub fn duration(
    field: &str,
    text: Option<String>,
    default: u64,
    allowed: RangeInclusive<u64>,
) -> Result<Duration, Error> {
    let Some(text) = text else {
        return Ok(Duration::from_millis(default));
    };
    let unit = |suffix: &str, factor: u64| {
        text.strip_suffix(suffix)?
            .parse::<u64>()
            .ok()?
            .checked_mul(factor)
    };
    let value = unit("ms", 1)
        .or_else(|| unit("s", 1000))
        .or_else(|| unit("m", 60_000));
    match value.filter(|value| allowed.contains(value)) {
        Some(value) => Ok(Duration::from_millis(value)),
        None => wrong(
            field,
            &text,
            format!(
                "must be a duration such as 200ms, 2s or 1m, from {}ms to {}ms",
                allowed.start(),
                allowed.end()
            ),
        ),
    }
}
