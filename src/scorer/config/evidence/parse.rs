//! The block's keys as they come, then the rules across them.

use super::super::endpoints::{OR_NULL_RULE, is_request_target};
use super::callouts::{events, tokenize};
use super::prefetch::Prefetch;
use super::{EventsConfig, EvidenceConfig, KeysConfig, TokenizeConfig, fields};
use crate::config::{ConfigError, Field, Json, Place, object};
use crate::policy::route::PathSet;
use crate::prefix::ExtraKeyFormat;
use crate::prompt;
use crate::scorer::index::Limits;
use crate::scorer::runs::Secondary;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

const KEYS: [&str; 21] = [
    "events",
    "algorithm",
    "hashSeed",
    "pythonHashSeed",
    "extraKeys",
    "model",
    "aliases",
    "adapters",
    "modelsPath",
    "blockSize",
    "blocksPerChunk",
    "secondaryTiers",
    "sharedTiers",
    "maxSilence",
    "maxPromptTokens",
    "maxEndpoints",
    "maxBlocksPerEndpoint",
    "maxIndexBytes",
    "maxCacheBytes",
    "tokenize",
    "prefetch",
];
const MIB: u64 = 1024 * 1024;

/// The bridge gives a sign of life every few seconds.
const SILENCE_MS: RangeInclusive<u64> = 1_000..=3_600_000;
const DEFAULT_SILENCE_MS: u64 = 30_000;
/// 64 MiB a request at the most.
const PROMPT_TOKENS: RangeInclusive<u64> = 1..=16_777_216;
const ENDPOINTS: RangeInclusive<u64> = 1..=4_096;
const BLOCKS: RangeInclusive<u64> = 1..=16_777_216;
const INDEX_BYTES: RangeInclusive<u64> = MIB..=16 * 1024 * MIB;
/// A VM has 1 GiB.
const CACHE_BYTES: RangeInclusive<u64> = MIB..=512 * MIB;

#[derive(Clone, Copy, Default)]
enum Algorithm {
    #[default]
    Fnv64aCbor,
    Sha256Cbor,
}

#[derive(Default)]
struct Keys {
    events: Option<EventsConfig>,
    algorithm: Algorithm,
    hash_seed: Option<String>,
    python_hash_seed: Option<String>,
    extra_keys: Option<ExtraKeyFormat>,
    model: Option<String>,
    aliases: Vec<(String, String)>,
    adapters: Vec<(String, Option<String>)>,
    models_path: Option<Option<String>>,
    block_size: Option<NonZeroU32>,
    blocks_per_chunk: Option<NonZeroU32>,
    secondary: Option<Secondary>,
    shared_tiers: Vec<String>,
    max_silence_ms: Option<u64>,
    max_prompt_tokens: Option<usize>,
    limits: Limits,
    tokenize: Option<TokenizeConfig>,
    prefetch: Option<Prefetch>,
}

/// The value of `evidence`. Its `paths` are the default ones: they are another key's.
pub(in super::super) fn parse(field: &Field<'_>) -> Result<EvidenceConfig, ConfigError> {
    let place = field.place.inside(field.key);
    let mut keys = Keys::default();
    for (key, value) in object(&place, place.itself(), field.value.clone())? {
        keys.set(&Field {
            place: &place,
            key: &key,
            value: &value,
        })?;
    }
    keys.compile(&place)
}

impl Keys {
    fn set(&mut self, field: &Field<'_>) -> Result<(), ConfigError> {
        match field.key {
            "events" => self.events = Some(events(field)?),
            "algorithm" => {
                self.algorithm = field.one_of(&[
                    ("fnv64a_cbor", Algorithm::Fnv64aCbor),
                    ("sha256_cbor", Algorithm::Sha256Cbor),
                ])?;
            }
            "hashSeed" => self.hash_seed = Some(fields::hash_seed(field)?),
            "pythonHashSeed" => self.python_hash_seed = Some(fields::python_hash_seed(field)?),
            "extraKeys" => {
                self.extra_keys = Some(fields::extra_keys(field)?);
            }
            "model" => self.model = Some(fields::model(field)?),
            "aliases" => self.aliases = fields::aliases(field)?,
            "adapters" => self.adapters = fields::adapters(field)?,
            "modelsPath" => {
                self.models_path = Some(match field.value {
                    Json::Null => None,
                    _ => Some(field.text(is_request_target, OR_NULL_RULE)?),
                });
            }
            "blockSize" => self.block_size = fields::count(field)?,
            "blocksPerChunk" => self.blocks_per_chunk = fields::count(field)?,
            "secondaryTiers" => {
                self.secondary = Some(field.one_of(&[
                    ("none", Secondary::None),
                    ("vouched", Secondary::Vouched),
                    ("unvouched", Secondary::Unvouched),
                ])?);
            }
            "sharedTiers" => self.shared_tiers = fields::shared_tiers(field)?,
            "maxSilence" => {
                let rule = "a duration from \"1s\" to \"60m\"";
                self.max_silence_ms = Some(field.duration_ms(SILENCE_MS, rule)?);
            }
            "maxPromptTokens" => {
                self.max_prompt_tokens = Some(fields::size(field, PROMPT_TOKENS)?);
            }
            "maxEndpoints" => {
                let max = field.whole(ENDPOINTS)?;
                self.limits.max_endpoints = u16::try_from(max).unwrap_or(u16::MAX);
            }
            "maxBlocksPerEndpoint" => {
                let max = field.whole(BLOCKS)?;
                self.limits.max_blocks_per_endpoint = u32::try_from(max).unwrap_or(u32::MAX);
            }
            "maxIndexBytes" => self.limits.max_index_bytes = field.whole(INDEX_BYTES)?,
            "maxCacheBytes" => self.limits.max_cache_bytes = fields::size(field, CACHE_BYTES)?,
            "tokenize" => self.tokenize = Some(tokenize(field)?),
            "prefetch" => self.prefetch = Some(Prefetch::parse(field)?),
            key => return Err(ConfigError::unknown(field.place.member(key), &KEYS)),
        }
        Ok(())
    }

    fn compile(self, place: &Place) -> Result<EvidenceConfig, ConfigError> {
        self.check_names(place)?;
        self.check_tiers(place)?;
        let keys = self.keys(place)?;
        let events = self.events.ok_or_else(|| {
            ConfigError::missing(
                place.member("events"),
                "{\"cluster\":\"name\"} of kv-events-bridge",
            )
        })?;
        let prefetch = self.prefetch;
        let prefetch = prefetch.map(|block| block.compile(&keys, self.blocks_per_chunk));
        Ok(EvidenceConfig {
            events,
            fingerprint: keys.fingerprint(&self.adapters),
            keys,
            model: self.model,
            aliases: self.aliases.into_iter().collect(),
            adapters: self.adapters.into_iter().collect(),
            models_path: self
                .models_path
                .unwrap_or_else(|| Some("/v1/models".to_owned())),
            block_size: self.block_size,
            blocks_per_chunk: self.blocks_per_chunk,
            secondary: self.secondary.unwrap_or(Secondary::Unvouched),
            shared_tiers: self.shared_tiers,
            max_silence_ms: self.max_silence_ms.unwrap_or(DEFAULT_SILENCE_MS),
            max_prompt_tokens: self
                .max_prompt_tokens
                .unwrap_or(prompt::Limits::MAX_PROMPT_TOKENS),
            limits: self.limits,
            paths: PathSet::default(),
            tokenize: self.tokenize,
            prefetch,
        })
    }

    /// Every name means one thing.
    fn check_names(&self, place: &Place) -> Result<(), ConfigError> {
        let is_adapter = |name: &str| self.adapters.iter().any(|(adapter, _)| adapter == name);
        for (i, (name, _)) in self.adapters.iter().enumerate() {
            if self.model.as_ref() == Some(name) {
                let field = place.element("adapters", i).member("name");
                let rule = "an adapter may not have the base model's name (\"model\")";
                return Err(ConfigError::conflict(
                    field,
                    &Json::Text(name.clone()),
                    rule,
                ));
            }
        }
        let aliases = place.inside("aliases");
        for (alias, target) in &self.aliases {
            let rule = if self.model.as_ref() == Some(alias) {
                "an alias may not be the base model's name (\"model\")"
            } else if is_adapter(alias) {
                "an alias may not be an adapter's name"
            } else if self.aliases.iter().any(|(other, _)| other == target) {
                "an alias may not stand for an alias"
            } else {
                continue;
            };
            let target = Json::Text(target.clone());
            return Err(ConfigError::conflict(aliases.member(alias), &target, rule));
        }
        Ok(())
    }

    fn check_tiers(&self, place: &Place) -> Result<(), ConfigError> {
        let secondary = self.shared_tiers.iter().position(|tier| tier != "cpu");
        match (self.secondary, secondary) {
            (Some(Secondary::None), Some(i)) => Err(ConfigError::conflict(
                place.element("sharedTiers", i).itself(),
                &Json::Text(self.shared_tiers.get(i).cloned().unwrap_or_default()),
                "not with \"secondaryTiers\": \"none\"",
            )),
            _ => Ok(()),
        }
    }

    fn keys(&self, place: &Place) -> Result<KeysConfig, ConfigError> {
        let refused = |key: &str, value: Option<&str>, rule: &str| match value {
            Some(value) => {
                let value = Json::Text(value.to_owned());
                Err(ConfigError::conflict(place.member(key), &value, rule))
            }
            None => Ok(()),
        };
        match self.algorithm {
            Algorithm::Fnv64aCbor => {
                let rule = "only with \"algorithm\": \"sha256_cbor\"";
                refused("pythonHashSeed", self.python_hash_seed.as_deref(), rule)?;
                refused(
                    "extraKeys",
                    self.extra_keys.map(fields::extra_keys_name),
                    rule,
                )?;
                match &self.prefetch {
                    Some(prefetch) => self.check_paths(place, prefetch.extra_keys)?,
                    None => self.no_paths(place, rule)?,
                }
                let hash_seed = self.hash_seed.clone().unwrap_or_default();
                Ok(KeysConfig::Fnv64aCbor { hash_seed })
            }
            Algorithm::Sha256Cbor => {
                let rule = "only with \"algorithm\": \"fnv64a_cbor\"";
                refused("hashSeed", self.hash_seed.as_deref(), rule)?;
                if let Some((key, value)) = self.prefetch.as_ref().and_then(Prefetch::hashing) {
                    let rule =
                        "only with \"algorithm\": \"fnv64a_cbor\": that of the scorer counts";
                    let key = place.inside("prefetch").member(key);
                    return Err(ConfigError::conflict(key, &Json::Text(value), rule));
                }
                self.check_paths(place, self.extra_keys)?;
                Ok(KeysConfig::Sha256Cbor {
                    python_hash_seed: self.python_hash_seed.clone(),
                    extra_keys: self.extra_keys,
                })
            }
        }
    }

    /// An adapter has a path where it is hashed.
    fn check_paths(
        &self,
        place: &Place,
        extra_keys: Option<ExtraKeyFormat>,
    ) -> Result<(), ConfigError> {
        match extra_keys {
            Some(ExtraKeyFormat::Tagged) => {
                match self.adapters.iter().position(|(_, path)| path.is_none()) {
                    Some(i) => Err(ConfigError::missing(
                        place.element("adapters", i).member("path"),
                        "needed with \"extraKeys\": \"tagged\"",
                    )),
                    None => Ok(()),
                }
            }
            Some(_) => self.no_paths(place, "not with \"extraKeys\": \"untagged\""),
            None => Ok(()),
        }
    }

    fn no_paths(&self, place: &Place, rule: &str) -> Result<(), ConfigError> {
        for (i, (_, path)) in self.adapters.iter().enumerate() {
            if let Some(path) = path {
                let field = place.element("adapters", i).member("path");
                return Err(ConfigError::conflict(
                    field,
                    &Json::Text(path.clone()),
                    rule,
                ));
            }
        }
        Ok(())
    }
}
