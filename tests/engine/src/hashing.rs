//! Prefix-cache block hashes as vLLM chains them (kv_cache_utils, 0.22 to 0.33), computed by this
//! program's own code: `hash = H((parent, token ids, extra keys))`, full blocks only.

use crate::models::Adapter;
use crate::version::Release;
use sha2::{Digest, Sha256};
use std::hash::{BuildHasher, Hasher, RandomState};

pub type BlockHash = [u8; 32];

/// What decides a prompt's block hashes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub salt: Option<String>,
    pub adapter: Option<Adapter>,
}

/// `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 over CBOR.
    #[default]
    Sha256Cbor,
    /// vLLM's default hashes Python's pickle; here it stands for any that only the engine can compute.
    Sha256,
}

impl Algorithm {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sha256_cbor" => Ok(Self::Sha256Cbor),
            "sha256" => Ok(Self::Sha256),
            _ => Err(format!("hash algorithm \"{text}\": sha256_cbor or sha256")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256Cbor => "sha256_cbor",
            Self::Sha256 => "sha256",
        }
    }
}

/// The hash function of one engine process.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    algorithm: Algorithm,
    /// Parent of first blocks.
    none_hash: BlockHash,
    /// Extra keys say what they are (0.31+).
    tagged: bool,
}

impl BlockHasher {
    /// `seed` is PYTHONHASHSEED. Without it the first parent is random up to 0.28.
    pub fn new(algorithm: Algorithm, seed: Option<&str>, release: Release) -> Self {
        let seed = seed.or((release >= Release::FIXED_NONE_HASH).then_some("vllm-none-hash"));
        let none_hash = match seed {
            Some(seed) => {
                let mut cbor = Vec::new();
                text(&mut cbor, seed);
                digest(algorithm, &cbor)
            }
            None => random(),
        };
        Self {
            algorithm,
            none_hash,
            tagged: release >= Release::TAGGED_EXTRA_KEYS,
        }
    }

    /// Of a prompt's full blocks.
    pub fn blocks(&self, prompt: &Prompt, block_size: usize) -> Vec<BlockHash> {
        let mut parent = self.none_hash;
        let blocks = prompt.tokens.chunks_exact(block_size).enumerate();
        blocks
            .map(|(index, tokens)| {
                parent = self.block(&parent, tokens, prompt, index);
                parent
            })
            .collect()
    }

    fn block(
        &self,
        parent: &BlockHash,
        tokens: &[u32],
        prompt: &Prompt,
        index: usize,
    ) -> BlockHash {
        let mut cbor = Vec::with_capacity(tokens.len() * 3 + 64);
        head(&mut cbor, 4, 3);
        head(&mut cbor, 2, parent.len() as u64);
        cbor.extend_from_slice(parent);
        head(&mut cbor, 4, tokens.len() as u64);
        for token in tokens {
            head(&mut cbor, 0, u64::from(*token));
        }
        let adapter = prompt.adapter.as_ref();
        let salt = prompt.salt.as_deref().filter(|_| index == 0);
        let count = u64::from(adapter.is_some()) + u64::from(salt.is_some());
        if count == 0 {
            cbor.push(0xf6);
        } else {
            head(&mut cbor, 4, count);
        }
        match adapter {
            Some(adapter) if self.tagged => {
                texts(&mut cbor, &["lora", &adapter.name, &adapter.path])
            }
            Some(adapter) => text(&mut cbor, &adapter.name),
            None => {}
        }
        match salt {
            Some(salt) if self.tagged => texts(&mut cbor, &["cache_salt", salt]),
            Some(salt) => text(&mut cbor, salt),
            None => {}
        }
        digest(self.algorithm, &cbor)
    }
}

/// What events call a block (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES, the default): its last 8 bytes.
pub fn event_hash(hash: &BlockHash) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn digest(algorithm: Algorithm, cbor: &[u8]) -> BlockHash {
    let mut sha = Sha256::new();
    if algorithm == Algorithm::Sha256 {
        sha.update(b"not what pickle writes");
    }
    sha.update(cbor);
    sha.finalize().into()
}

fn random() -> BlockHash {
    let mut bytes = [0; 32];
    for eight in bytes.chunks_exact_mut(8) {
        let number = RandomState::new().build_hasher().finish();
        eight.copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// The head of a CBOR item in its shortest form.
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    let bytes = value.to_be_bytes();
    let (info, width) = match value {
        0..=23 => (value as u8, 0),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    out.push(major << 5 | info);
    out.extend_from_slice(&bytes[8 - width..]);
}

fn text(out: &mut Vec<u8>, text: &str) {
    head(out, 3, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn texts(out: &mut Vec<u8>, items: &[&str]) {
    head(out, 4, items.len() as u64);
    items.iter().for_each(|item| text(out, item));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn file() -> Value {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata/prefix/sha256_cbor.json"
        );
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn chains_are_the_engines_own() {
        let file = file();
        let mut checked = 0;
        for vector in file["sha256_cbor"].as_array().unwrap() {
            let given = &vector["extras_input"];
            // This engine has no images.
            if !given["mm_features"].as_array().unwrap().is_empty() {
                continue;
            }
            let word = |value: &Value| value.as_str().map(str::to_owned);
            let tokens = &file["tokens"][vector["tokens_name"].as_str().unwrap()];
            let prompt = Prompt {
                tokens: serde_json::from_value(tokens.clone()).unwrap(),
                salt: word(&given["cache_salt"]),
                adapter: word(&given["lora_name"]).map(|name| Adapter {
                    id: 1,
                    name,
                    path: word(&given["lora_path"]).unwrap_or_default(),
                }),
            };
            let release = Release::of(vector["vllm_source_version"].as_str().unwrap());
            let seed = vector["pythonhashseed"].as_str();
            let hasher = BlockHasher::new(Algorithm::Sha256Cbor, seed, release);
            let size = vector["block_size"].as_u64().unwrap() as usize;

            let found = hasher.blocks(&prompt, size);

            let wanted = vector["blocks"].as_array().unwrap();
            assert_eq!(found.len(), wanted.len(), "vector {}", vector["id"]);
            for (hash, wanted) in found.iter().zip(wanted) {
                let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(hex, wanted["hash_hex"], "vector {}", vector["id"]);
                assert_eq!(event_hash(hash).to_string(), wanted["event_u64"]);
            }
            checked += 1;
        }
        assert!(checked > 20, "{checked} vectors");
    }

    #[test]
    fn without_a_seed_old_engines_differ_from_each_other() {
        let prompt = Prompt {
            tokens: (0..16).collect(),
            ..Prompt::default()
        };
        let first = |version: &str, algorithm| {
            BlockHasher::new(algorithm, None, Release::of(version)).blocks(&prompt, 16)[0]
        };
        use Algorithm::{Sha256, Sha256Cbor};
        assert_ne!(first("0.28.0", Sha256Cbor), first("0.28.0", Sha256Cbor));
        assert_eq!(first("0.29.0", Sha256Cbor), first("0.29.0", Sha256Cbor));
        assert_ne!(first("0.29.0", Sha256Cbor), first("0.29.0", Sha256));
    }
}
