use super::*;
use crate::policy::route::PathSet;
use crate::scorer::config::{EventsConfig, KeysConfig};
use crate::scorer::index::Limits;
use crate::scorer::runs::Secondary;
use std::collections::BTreeMap;

mod engine;
mod event_keys;
mod vectors;

const A: &str = "10.0.0.7:8000";
const SIZE: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// `fnv64a_cbor`, and everything vouched for.
pub(super) fn config() -> EvidenceConfig {
    EvidenceConfig {
        events: EventsConfig {
            target_cluster: "bridge".into(),
            authority: "bridge".to_owned(),
            path: "/events".to_owned(),
        },
        keys: KeysConfig::Fnv64aCbor {
            hash_seed: String::new(),
        },
        model: None,
        aliases: BTreeMap::new(),
        adapters: BTreeMap::new(),
        models_path: None,
        block_size: None,
        blocks_per_chunk: NonZeroU32::new(1),
        secondary: Secondary::Vouched,
        shared_tiers: Vec::new(),
        max_silence_ms: 30_000,
        max_prompt_tokens: 1_000_000,
        limits: Limits::default(),
        paths: PathSet::default(),
        tokenize: None,
        fingerprint: 7,
    }
}

fn facts(model: &str, adapters: &[&str]) -> EngineFacts {
    EngineFacts {
        model: Some(model.to_owned()),
        adapters: adapters.iter().map(|&name| name.to_owned()).collect(),
        version: Some("0.32.0".to_owned()),
        ..EngineFacts::default()
    }
}

/// `blocks` blocks whose tokens begin at `first`.
fn tokens(first: u32, blocks: u32) -> Vec<u32> {
    (first..first + blocks * SIZE.get()).collect()
}
