//! `prefetch`: whom the scorer tells which blocks of a prompt lie in files.
//!
//! | key | default | rule |
//! |---|---|---|
//! | `cluster` | – | needed: the cluster of kv-prefetch-agent |
//! | `authority` | `kv-prefetch-agent` | a host |
//! | `path` | `/prefetch` | |
//! | `token` | none | the agent's bearer token |
//! | `timeout` | `1s` | `10ms` to `10s`; nothing waits for it |
//! | `pythonHashSeed` | none | with `fnv64a_cbor`: the engines' `PYTHONHASHSEED` |
//! | `extraKeys` | by each engine's version | with `fnv64a_cbor`: `untagged` (to 0.30), `tagged` (from 0.31) |
//! | `blocksPerFile` | `blocksPerChunk`, else 1 | 1 to 65536 |
//! | `maxDigests` | 4096 | of one request, 1 to 16384 |
//! | `maxInFlight` | 32 | messages of one VM, 1 to 1024 |
//! | `window` | `10s` | `100ms` to `10m` in which a block is not told again |

use super::super::endpoints::{TARGET_RULE, is_request_target};
use super::{KeysConfig, fields};
use crate::config::{ConfigError, Field, object};
use crate::prefix::ExtraKeyFormat;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::rc::Rc;

const KEYS: [&str; 11] = [
    "cluster",
    "authority",
    "path",
    "token",
    "timeout",
    "pythonHashSeed",
    "extraKeys",
    "blocksPerFile",
    "maxDigests",
    "maxInFlight",
    "window",
];

const TIMEOUT_MS: RangeInclusive<u64> = 10..=10_000;
const DEFAULT_TIMEOUT_MS: u64 = 1_000;
/// As many as kv-prefetch-agent takes.
const DIGESTS: RangeInclusive<u64> = 1..=16_384;
const DEFAULT_DIGESTS: usize = 4_096;
const IN_FLIGHT: RangeInclusive<u64> = 1..=1_024;
const DEFAULT_IN_FLIGHT: usize = 32;
const WINDOW_MS: RangeInclusive<u64> = 100..=600_000;
const DEFAULT_WINDOW_MS: u64 = 10_000;
const MAX_TOKEN_BYTES: usize = 4_096;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchConfig {
    pub cluster: Rc<str>,
    pub authority: String,
    pub path: String,
    pub token: Option<String>,
    pub timeout_ms: u64,
    /// The engines' own, which name the files; always [`KeysConfig::Sha256Cbor`].
    pub keys: KeysConfig,
    pub blocks_per_file: NonZeroU32,
    pub max_digests: usize,
    pub max_in_flight: usize,
    pub window_ms: u64,
}

/// The block's keys as they came.
#[derive(Default)]
pub(super) struct Prefetch {
    cluster: Option<String>,
    authority: Option<String>,
    path: Option<String>,
    token: Option<String>,
    timeout_ms: Option<u64>,
    python_hash_seed: Option<String>,
    pub extra_keys: Option<ExtraKeyFormat>,
    blocks_per_file: Option<NonZeroU32>,
    max_digests: Option<usize>,
    max_in_flight: Option<usize>,
    window_ms: Option<u64>,
}

impl Prefetch {
    pub fn parse(field: &Field<'_>) -> Result<Self, ConfigError> {
        let place = field.place.inside(field.key);
        let mut keys = Self::default();
        for (key, value) in object(&place, place.itself(), field.value.clone())? {
            keys.set(&Field {
                place: &place,
                key: &key,
                value: &value,
            })?;
        }
        if keys.cluster.is_none() {
            return Err(ConfigError::missing(
                place.member("cluster"),
                "the name of the cluster of kv-prefetch-agent",
            ));
        }
        Ok(keys)
    }

    fn set(&mut self, field: &Field<'_>) -> Result<(), ConfigError> {
        match field.key {
            "cluster" => self.cluster = Some(fields::cluster(field)?),
            "authority" => self.authority = Some(fields::authority(field)?),
            "path" => self.path = Some(field.text(is_request_target, TARGET_RULE)?),
            "token" => {
                let rule = "a token of 1 to 4096 visible ASCII characters";
                let token = field.text(is_token, rule);
                let secret = |_| ConfigError::secret(field.place.member("token"), rule);
                self.token = Some(token.map_err(secret)?);
            }
            "timeout" => {
                let rule = "a duration from \"10ms\" to \"10s\"";
                self.timeout_ms = Some(field.duration_ms(TIMEOUT_MS, rule)?);
            }
            "pythonHashSeed" => self.python_hash_seed = Some(fields::python_hash_seed(field)?),
            "extraKeys" => self.extra_keys = Some(fields::extra_keys(field)?),
            "blocksPerFile" => self.blocks_per_file = fields::count(field)?,
            "maxDigests" => self.max_digests = Some(fields::size(field, DIGESTS)?),
            "maxInFlight" => self.max_in_flight = Some(fields::size(field, IN_FLIGHT)?),
            "window" => {
                let rule = "a duration from \"100ms\" to \"10m\"";
                self.window_ms = Some(field.duration_ms(WINDOW_MS, rule)?);
            }
            key => return Err(ConfigError::unknown(field.place.member(key), &KEYS)),
        }
        Ok(())
    }

    /// Of the two that say how the engines hash, the one that is set, for a message.
    pub fn hashing(&self) -> Option<(&'static str, String)> {
        let format = self.extra_keys.map(fields::extra_keys_name);
        let seed = self.python_hash_seed.clone();
        seed.map(|seed| ("pythonHashSeed", seed))
            .or(format.map(|format| ("extraKeys", format.to_owned())))
    }

    /// `scoring`: the scorer's own keys, which are the engines' or not.
    pub fn compile(
        self,
        scoring: &KeysConfig,
        blocks_per_chunk: Option<NonZeroU32>,
    ) -> PrefetchConfig {
        let keys = match scoring {
            KeysConfig::Sha256Cbor { .. } => scoring.clone(),
            KeysConfig::Fnv64aCbor { .. } => KeysConfig::Sha256Cbor {
                python_hash_seed: self.python_hash_seed,
                extra_keys: self.extra_keys,
            },
        };
        PrefetchConfig {
            cluster: self.cluster.unwrap_or_default().into(),
            authority: self
                .authority
                .unwrap_or_else(|| "kv-prefetch-agent".to_owned()),
            path: self.path.unwrap_or_else(|| "/prefetch".to_owned()),
            token: self.token,
            timeout_ms: self.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
            keys,
            blocks_per_file: self
                .blocks_per_file
                .or(blocks_per_chunk)
                .unwrap_or(NonZeroU32::MIN),
            max_digests: self.max_digests.unwrap_or(DEFAULT_DIGESTS),
            max_in_flight: self.max_in_flight.unwrap_or(DEFAULT_IN_FLIGHT),
            window_ms: self.window_ms.unwrap_or(DEFAULT_WINDOW_MS),
        }
    }
}

fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}
