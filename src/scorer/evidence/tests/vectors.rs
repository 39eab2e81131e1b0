//! vLLM's own hashes: a request's keys are what the engine calls its blocks, and, by tokens, what its
//! events make of them.

use super::engine::{Engine, Extra, Said, Stored, text};
use super::{A, config, facts};
use crate::prompt::TokenPrompts;
use crate::scorer::config::{EvidenceConfig, KeysConfig};
use crate::scorer::evidence::engine::way;
use crate::scorer::evidence::prompt_keys::PromptKeys;
use crate::scorer::evidence::{EngineFacts, Served, request_keys};
use crate::scorer::kv_events::{self, Event};
use serde_json::Value;
use std::num::NonZeroU32;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A prompt without images, as vLLM hashed it.
pub struct Row {
    pub version: String,
    pub seed: Option<String>,
    pub size: NonZeroU32,
    pub tokens: Vec<u32>,
    pub salt: Option<String>,
    pub adapter: Option<(String, String)>,
    hashes: Vec<u64>,
    pub digests: Vec<String>,
}

pub fn rows() -> Vec<Row> {
    let file = include_str!("../../../../testdata/prefix/sha256_cbor.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let rows = file["sha256_cbor"].as_array().unwrap().iter();
    let tokens = |row: &Value| match &row["tokens"] {
        Value::Null => file["tokens"][row["tokens_name"].as_str().unwrap()].clone(),
        tokens => tokens.clone(),
    };
    rows.filter_map(|row| {
        let extras = &row["extras_input"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let hash = |block: &Value| block["event_u64"].as_str().unwrap().parse().unwrap();
        let digest = |block: &Value| text(&block["hash_hex"]).unwrap();
        let adapter = text(&extras["lora_name"]).zip(text(&extras["lora_path"]));
        extras["mm_features"].as_array()?.is_empty().then(|| Row {
            version: text(&row["vllm_source_version"]).unwrap(),
            seed: text(&row["pythonhashseed"]),
            size: NonZeroU32::new(row["block_size"].as_u64().unwrap() as u32).unwrap(),
            tokens: serde_json::from_value(tokens(row)).unwrap(),
            salt: text(&extras["cache_salt"]),
            adapter,
            digests: row["blocks"]
                .as_array()
                .unwrap()
                .iter()
                .map(digest)
                .collect(),
            hashes: row["blocks"].as_array().unwrap().iter().map(hash).collect(),
        })
    })
    .collect()
}

impl Row {
    pub fn engine(&self) -> EngineFacts {
        let adapters: Vec<&str> = self.adapter.iter().map(|(name, _)| name.as_str()).collect();
        EngineFacts {
            version: Some(self.version.clone()),
            ..facts("base", &adapters)
        }
    }

    pub fn config(&self, keys: KeysConfig) -> EvidenceConfig {
        let adapters = self.adapter.iter();
        EvidenceConfig {
            keys,
            adapters: adapters
                .map(|(n, p)| (n.clone(), Some(p.clone())))
                .collect(),
            ..config()
        }
    }

    /// Keys of a request with these tokens.
    fn keys(&self, config: &EvidenceConfig) -> Vec<u64> {
        let served = match &self.adapter {
            Some((name, _)) => Served::Adapter(name),
            None => Served::Base,
        };
        let way = way(
            &config.keys,
            &self.engine(),
            self.size,
            served,
            self.salt.is_some(),
        )
        .unwrap();
        let tokens = TokenPrompts::one(self.tokens.clone());
        let keys = PromptKeys::new(config, self.size, way, self.salt.as_deref(), &tokens).unwrap();
        keys.prompts()
            .first()
            .map_or(Vec::new(), |p| p.keys.to_vec())
    }

    /// Keys from the event of a GPU that stores it. Events carry extra keys untagged.
    fn event_keys(&self, config: &KeysConfig) -> Vec<u64> {
        let adapter = self.adapter.iter().map(|(name, _)| text(name));
        let every: Vec<Extra> = adapter.collect();
        let mut extra_keys = vec![every; self.hashes.len()];
        if let (Some(salt), Some(first)) = (&self.salt, extra_keys.first_mut()) {
            first.push(text(salt));
        }
        let size = self.size.get() as usize;
        let event = Said::Stored(Stored {
            hashes: self.hashes.clone(),
            parent: None,
            tokens: self.tokens[..self.hashes.len() * size].to_vec(),
            medium: "GPU",
            lora_name: self.adapter.as_ref().map(|(name, _)| name.clone()),
            extra_keys: Some(extra_keys),
        });
        let payload = Engine::new(A).with_size(self.size).payload(&[event]);
        let batch = kv_events::decode(&payload).unwrap();
        let Some(Event::Stored(event)) = batch.events().next() else {
            panic!()
        };
        let config = self.config(config.clone());
        let mut keys = Vec::new();
        assert!(request_keys(&config, self.size)(None, &event, &mut keys));
        keys
    }
}

#[test]
fn keys_are_what_the_engine_calls_the_blocks() {
    let mut tried = 0;
    for row in rows() {
        // Without a seed, 0.30's hashes are the fixed ones already.
        let config = row.config(KeysConfig::Sha256Cbor {
            python_hash_seed: row.seed.clone(),
            extra_keys: None,
        });
        assert_eq!(
            row.keys(&config),
            row.hashes,
            "{} {:?}",
            row.version,
            row.salt
        );
        tried += 1;
    }
    assert_eq!(tried, 90);
}

#[test]
fn keys_by_tokens_are_the_same_from_event_and_request() {
    for seed in ["", "7"] {
        let keys = KeysConfig::Fnv64aCbor {
            hash_seed: seed.to_owned(),
        };
        for row in rows().iter().filter(|row| !row.hashes.is_empty()) {
            let config = row.config(keys.clone());
            let request = row.keys(&config);
            assert_eq!(request.len(), row.hashes.len());
            assert_eq!(
                row.event_keys(&keys),
                request,
                "{} {:?}",
                row.version,
                row.salt
            );
        }
    }
}
