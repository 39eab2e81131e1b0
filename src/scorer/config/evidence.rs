//! `evidence`: what the scorer needs to say which blocks of a prompt each endpoint holds.
//!
//! | key | default | rule |
//! |---|---|---|
//! | `events` | – | needed: `{"cluster":"…","authority":"kv-events-bridge","path":"/events"}` |
//! | `algorithm` | `fnv64a_cbor` | or `sha256_cbor`, if the engines run with it |
//! | `hashSeed` | `""` | of `fnv64a_cbor` |
//! | `pythonHashSeed` | none | of `sha256_cbor`: the engines' `PYTHONHASHSEED` |
//! | `extraKeys` | by each engine's version | of `sha256_cbor`: `untagged` (to 0.30), `tagged` (from 0.31) |
//! | `model` | what the engines say | the base model's name |
//! | `aliases` | `{}` | `{"name in requests":"model or adapter"}` |
//! | `adapters` | `[]` | `[{"name":"…","path":"…"}]`; the path is for tagged extra keys |
//! | `modelsPath` | `/v1/models` | `null`: never asked |
//! | `blockSize` | what the engines say | tokens, 1 to 65536 |
//! | `blocksPerChunk` | not known: partial | GPU blocks an offload chunk, 1 to 65536 |
//! | `secondaryTiers` | `unvouched` | `none`, `vouched`, `unvouched` |
//! | `sharedTiers` | `[]` | lower case |
//! | `maxSilence` | `30s` | `1s` to `60m` |
//! | `maxPromptTokens` | 1000000 | 1 to 16777216 |
//! | `maxEndpoints` | 256 | 1 to 4096 |
//! | `maxBlocksPerEndpoint` | 262144 | 1 to 16777216 |
//! | `maxIndexBytes` | 268435456 | 1 MiB to 16 GiB |
//! | `maxCacheBytes` | 134217728 | 1 MiB to 512 MiB |
//! | `tokenize` | – | `{"cluster":"…","authority":"vllm","path":"/tokenize","timeout":"200ms","maxBodyBytes":24576,"maxCacheBytes":8388608}` |
//! | `prefetch` | – | [`PrefetchConfig`] |

mod callouts;
mod fields;
mod parse;
mod prefetch;

#[cfg(test)]
mod tests;

use crate::contract::keys::fnv1a64;
use crate::policy::route::PathSet;
use crate::prefix::{Algorithm, ExtraKeyFormat};
use crate::scorer::index::Limits;
use crate::scorer::runs::Secondary;
use crate::sorted::SortedMap;
use std::num::NonZeroU32;
use std::rc::Rc;

pub(super) use parse::parse;
pub use prefetch::PrefetchConfig;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceConfig {
    pub events: EventsConfig,
    pub keys: KeysConfig,
    /// The base model's name; None: as the engines say.
    pub model: Option<String>,
    /// From what requests call a model to its name or an adapter's. No target is an alias itself.
    pub aliases: SortedMap<String, String>,
    /// By name, with the path that the engines were given.
    pub adapters: SortedMap<String, Option<String>>,
    /// Where an engine tells which models it serves; None: it is not asked.
    pub models_path: Option<String>,
    /// Tokens; None: as the engines say.
    pub block_size: Option<NonZeroU32>,
    /// GPU blocks an offload chunk; None: not known.
    pub blocks_per_chunk: Option<NonZeroU32>,
    pub secondary: Secondary,
    /// Tiers that are one for all endpoints of a model.
    pub shared_tiers: Vec<String>,
    /// An endpoint not heard of for longer has no evidence.
    pub max_silence_ms: u64,
    pub max_prompt_tokens: usize,
    pub limits: Limits,
    /// Paths of the requests whose bodies are read.
    pub paths: PathSet,
    /// None: no evidence for text.
    pub tokenize: Option<TokenizeConfig>,
    /// None: nobody is told of files.
    pub prefetch: Option<PrefetchConfig>,
    /// Of what the keys in the index depend on, but the block size.
    pub fingerprint: u64,
}

/// The bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    pub target_cluster: Rc<str>,
    pub authority: String,
    /// Without a query.
    pub path: String,
}

/// How keys of blocks are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysConfig {
    /// Bridged by tokens: fits any engine.
    Fnv64aCbor { hash_seed: String },
    /// The engines' own.
    Sha256Cbor {
        python_hash_seed: Option<String>,
        /// None: by each engine's version.
        extra_keys: Option<ExtraKeyFormat>,
    },
}

impl KeysConfig {
    /// Engine keys are not the request's own.
    pub fn is_bridged(&self) -> bool {
        matches!(self, Self::Fnv64aCbor { .. })
    }

    /// As the engines call it (`--prefix-caching-hash-algo`); None: they may use any.
    pub fn engines_algorithm(&self) -> Option<&'static str> {
        match self {
            Self::Fnv64aCbor { .. } => None,
            Self::Sha256Cbor { .. } => Some("sha256_cbor"),
        }
    }

    /// `format` counts where the configuration names none.
    pub fn algorithm(&self, format: ExtraKeyFormat) -> Algorithm {
        match self {
            Self::Fnv64aCbor { hash_seed } => Algorithm::fnv64a_cbor(hash_seed),
            Self::Sha256Cbor {
                python_hash_seed,
                extra_keys,
            } => Algorithm::sha256_cbor(python_hash_seed.as_deref(), extra_keys.unwrap_or(format)),
        }
    }

    /// Of engines' own hashes with all that they were checked against: what was found wrong by
    /// another path of an adapter is to be read anew.
    fn fingerprint(&self, adapters: &[(String, Option<String>)]) -> u64 {
        let text = match self {
            Self::Fnv64aCbor { hash_seed } => format!("fnv64a_cbor {hash_seed}"),
            Self::Sha256Cbor {
                python_hash_seed,
                extra_keys,
            } => {
                let mut text = format!("sha256_cbor {python_hash_seed:?}");
                if let Some(format) = extra_keys {
                    text.push_str(&format!(" {format:?}"));
                }
                for (name, path) in adapters {
                    if let Some(path) = path {
                        text.push_str(&format!(" {name:?} {path:?}"));
                    }
                }
                text
            }
        };
        fnv1a64(text.as_bytes())
    }

    /// Every way in which an engine may hash a block: the format of extra keys follows its
    /// version.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let formats: &[ExtraKeyFormat] = match self {
            Self::Fnv64aCbor { .. }
            | Self::Sha256Cbor {
                extra_keys: Some(_),
                ..
            } => &[ExtraKeyFormat::Untagged],
            Self::Sha256Cbor {
                extra_keys: None, ..
            } => &[ExtraKeyFormat::Untagged, ExtraKeyFormat::Tagged],
        };
        let algorithm = |format: &ExtraKeyFormat| self.algorithm(*format);
        formats.iter().map(algorithm).collect()
    }
}

/// Where text is made tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeConfig {
    pub cluster: Rc<str>,
    pub authority: String,
    pub path: String,
    pub timeout_ms: u64,
    /// A longer body is never paused.
    pub max_body_bytes: usize,
    /// Of this VM's memory, for answers; 0: none is kept.
    pub max_cache_bytes: usize,
}

impl EvidenceConfig {
    /// Everything but the paths, each value on a line of its own: equal for equal configurations
    /// however written.
    pub(super) fn spell(&self, lines: &mut Vec<String>) {
        let events = &self.events;
        lines.push(format!(
            "events {} {} {}",
            events.target_cluster, events.authority, events.path
        ));
        lines.push(format!("keys {:?}", self.keys));
        lines.push(format!("model {:?} {:?}", self.model, self.models_path));
        lines.push(format!("names {:?} {:?}", self.aliases, self.adapters));
        lines.push(format!(
            "blocks {:?} {:?} {:?} {:?}",
            self.block_size, self.blocks_per_chunk, self.secondary, self.shared_tiers
        ));
        lines.push(format!(
            "limits {} {} {:?}",
            self.max_silence_ms, self.max_prompt_tokens, self.limits
        ));
        lines.push(format!("tokenize {:?}", self.tokenize));
        lines.push(format!("prefetch {:?}", self.prefetch));
    }
}
