//! Whom the scorer calls: the bridge, and who tokenises.

use super::super::endpoints::{TARGET_RULE, is_request_target};
use super::{EventsConfig, TokenizeConfig, fields};
use crate::config::{ConfigError, Field, is_path, object};
use std::ops::RangeInclusive;

const EVENTS_KEYS: [&str; 3] = ["cluster", "authority", "path"];
const TOKENIZE_KEYS: [&str; 6] = [
    "cluster",
    "authority",
    "path",
    "timeout",
    "maxBodyBytes",
    "maxCacheBytes",
];

const TOKENIZE_TIMEOUT_MS: RangeInclusive<u64> = 10..=10_000;
const DEFAULT_TOKENIZE_TIMEOUT_MS: u64 = 200;
/// Envoy holds the body meanwhile: more than its buffer limit would be answered 413. The smallest
/// limit that is common is 32 KiB, and one chunk may come on top.
const DEFAULT_BODY_BYTES: usize = 24 * 1024;
const BODY_BYTES: RangeInclusive<u64> = 1..=16 * 1024 * 1024;
const ANSWER_BYTES: RangeInclusive<u64> = 0..=256 * 1024 * 1024;
const DEFAULT_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// `events`.
pub(super) fn events(field: &Field<'_>) -> Result<EventsConfig, ConfigError> {
    let place = field.place.inside(field.key);
    let mut cluster = None;
    let mut authority = "kv-events-bridge".to_owned();
    let mut path = "/events".to_owned();
    for (key, value) in object(&place, place.itself(), field.value.clone())? {
        let field = Field {
            place: &place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "cluster" => cluster = Some(fields::cluster(&field)?),
            "authority" => authority = fields::authority(&field)?,
            "path" => {
                path = field.text(
                    is_path,
                    "a path that starts with / and has no ?, # or space",
                )?
            }
            _ => return Err(ConfigError::unknown(place.member(&key), &EVENTS_KEYS)),
        }
    }
    let cluster = cluster.ok_or_else(|| {
        ConfigError::missing(
            place.member("cluster"),
            "the name of the cluster of kv-events-bridge",
        )
    })?;
    Ok(EventsConfig {
        target_cluster: cluster.into(),
        authority,
        path,
    })
}

/// `tokenize`.
pub(super) fn tokenize(field: &Field<'_>) -> Result<TokenizeConfig, ConfigError> {
    let place = field.place.inside(field.key);
    let mut cluster = None;
    let mut config = TokenizeConfig {
        cluster: "".into(),
        authority: "vllm".to_owned(),
        path: "/tokenize".to_owned(),
        timeout_ms: DEFAULT_TOKENIZE_TIMEOUT_MS,
        max_body_bytes: DEFAULT_BODY_BYTES,
        max_cache_bytes: DEFAULT_ANSWER_BYTES,
    };
    for (key, value) in object(&place, place.itself(), field.value.clone())? {
        let field = Field {
            place: &place,
            key: &key,
            value: &value,
        };
        match key.as_str() {
            "cluster" => cluster = Some(fields::cluster(&field)?),
            "authority" => config.authority = fields::authority(&field)?,
            "path" => config.path = field.text(is_request_target, TARGET_RULE)?,
            "timeout" => {
                let rule = "a duration from \"10ms\" to \"10s\"";
                config.timeout_ms = field.duration_ms(TOKENIZE_TIMEOUT_MS, rule)?;
            }
            "maxBodyBytes" => config.max_body_bytes = fields::size(&field, BODY_BYTES)?,
            "maxCacheBytes" => config.max_cache_bytes = fields::size(&field, ANSWER_BYTES)?,
            _ => return Err(ConfigError::unknown(place.member(&key), &TOKENIZE_KEYS)),
        }
    }
    let cluster = cluster.ok_or_else(|| {
        ConfigError::missing(
            place.member("cluster"),
            "the name of a cluster that answers vLLM's /tokenize",
        )
    })?;
    config.cluster = cluster.into();
    Ok(config)
}
