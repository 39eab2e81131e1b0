//! What the engines say of themselves, and the record by which the VM that polls them tells every
//! other one.
//!
//! An engine's metrics page names its model and how its prefix cache is set up, `/v1/models` its
//! other names and its adapters, `/version` its version. All of it is hostile until it is bounded:
//! names are short and without control characters, lists have an end.

mod engine;
mod mismatch;
mod models;
mod record;

pub use engine::{Asks, Due, Engine};
pub use mismatch::Mismatch;
pub use models::Models;
pub use page::{MAX_NAME_BYTES, PageFacts, started};
pub use record::{KEEP_MS, Wrote, key};

// As in `src/lib.rs`.
#[cfg(test)]
mod page;
#[cfg(not(test))]
use selective_kv_records::scorer::facts::page;

use page::is_name;

use super::version;
use crate::prefix::ExtraKeyFormat;
use crate::sorted::SortedMap;
use std::num::NonZeroU32;
use std::rc::Rc;

/// Names of models and adapters of one engine.
pub const MAX_NAMES: usize = 1_024;

/// What one engine says; None or empty where it does not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct EngineFacts {
    /// The base model, as the engine's series and its first served name have it.
    pub model: Option<String>,
    /// Every name under which it serves the base model.
    pub aliases: Vec<String>,
    pub adapters: Vec<String>,
    /// Tokens that one block hash covers.
    pub block_size: Option<u32>,
    /// `--prefix-caching-hash-algo`.
    pub hash_algorithm: Option<String>,
    pub gpu_blocks: Option<u32>,
    /// Data-parallel ranks behind its address, if it is more than one.
    pub ranks: Option<u32>,
    pub version: Option<String>,
}

impl EngineFacts {
    /// How vLLM of this version writes extra keys; None if the version is not known.
    pub fn extra_key_format(&self) -> Option<ExtraKeyFormat> {
        let release = version::release(self.version.as_deref()?)?;
        Some(match release >= (0, 31) {
            true => ExtraKeyFormat::Tagged,
            false => ExtraKeyFormat::Untagged,
        })
    }
}

/// The members of one scorer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fleet {
    /// In effect: configured, else the first that an engine said; None: nobody has said any.
    pub block_size: Option<NonZeroU32>,
    /// By address. Engines that say the same share it.
    pub endpoints: SortedMap<String, Rc<EngineFacts>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_format_of_extra_keys_follows_the_version() {
        let (tagged, untagged) = (ExtraKeyFormat::Tagged, ExtraKeyFormat::Untagged);
        for (version, format) in [
            (Some("0.30.2"), Some(untagged)),
            (Some("0.31.0rc1"), Some(tagged)),
            (Some("0.31.0"), Some(tagged)),
            (Some("1.0.0"), Some(tagged)),
            (Some("main"), None),
            (None, None),
        ] {
            let facts = EngineFacts {
                version: version.map(str::to_owned),
                ..EngineFacts::default()
            };
            assert_eq!(facts.extra_key_format(), format, "{version:?}");
        }
    }
}
