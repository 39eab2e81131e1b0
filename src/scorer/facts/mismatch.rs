//! An engine that cannot go with the configuration: what it holds cannot be told.

use super::EngineFacts;
use crate::scorer::config::KeysConfig;
use crate::scorer::version;
use std::fmt;
use std::num::NonZeroU32;

/// Engines from here on have fixed hashes where `PYTHONHASHSEED` is not set.
const FIXED_SEED: (u32, u32) = (0, 29);

/// Why an endpoint has no evidence. The text names what it says, what is expected, and the way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// All endpoints of a scorer have one block size.
    BlockSize { engine: u32, expected: NonZeroU32 },
    /// Its block hashes are made another way.
    HashAlgorithm {
        engine: String,
        expected: &'static str,
    },
    /// This version's hashes are random without a `PYTHONHASHSEED`, and none is configured.
    HashSeed { version: String },
}

impl Mismatch {
    /// Every label there is.
    pub const LABELS: [&'static str; 3] = ["block_size", "hash_algorithm", "hash_seed"];

    /// A counter's label.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::BlockSize { .. } => "block_size",
            Self::HashAlgorithm { .. } => "hash_algorithm",
            Self::HashSeed { .. } => "hash_seed",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { engine, expected } => write!(
                f,
                "its block size is {engine}, that of this scorer {expected}: one scorer is for \
                 one block size (\"blockSize\")"
            ),
            Self::HashAlgorithm { engine, expected } => write!(
                f,
                "it hashes blocks by {engine}: start it with --prefix-caching-hash-algo \
                 {expected}, or leave \"algorithm\" out"
            ),
            Self::HashSeed { version } => write!(
                f,
                "vLLM {version} has random block hashes without PYTHONHASHSEED: set it, and \
                 \"pythonHashSeed\" to the same"
            ),
        }
    }
}

impl EngineFacts {
    /// The first thing that does not go with the configuration. What the engine does not say goes.
    pub fn mismatch(&self, keys: &KeysConfig, block_size: Option<NonZeroU32>) -> Option<Mismatch> {
        if let (Some(engine), Some(expected)) = (self.block_size, block_size)
            && engine != expected.get()
        {
            return Some(Mismatch::BlockSize { engine, expected });
        }
        if let (Some(engine), Some(expected)) = (&self.hash_algorithm, keys.engines_algorithm())
            && engine != expected
        {
            let engine = engine.clone();
            return Some(Mismatch::HashAlgorithm { engine, expected });
        }
        if let KeysConfig::Sha256Cbor {
            python_hash_seed: None,
            ..
        } = keys
            && let Some(version) = &self.version
            && version::release(version).is_some_and(|release| release < FIXED_SEED)
        {
            let version = version.clone();
            return Some(Mismatch::HashSeed { version });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_does_not_go_together() {
        let fnv = KeysConfig::Fnv64aCbor {
            hash_seed: String::new(),
        };
        let sha = |seed: Option<&str>| KeysConfig::Sha256Cbor {
            python_hash_seed: seed.map(str::to_owned),
            extra_keys: None,
        };
        let engine = |block_size, algorithm: Option<&str>, version: Option<&str>| EngineFacts {
            block_size,
            hash_algorithm: algorithm.map(str::to_owned),
            version: version.map(str::to_owned),
            ..EngineFacts::default()
        };
        let block_size = "its block size is 32, that of this scorer 16: one scorer is for one \
                          block size (\"blockSize\")";
        let algorithm = "it hashes blocks by sha256: start it with --prefix-caching-hash-algo \
                         sha256_cbor, or leave \"algorithm\" out";
        let seed = "vLLM 0.28.1 has random block hashes without PYTHONHASHSEED: set it, and \
                    \"pythonHashSeed\" to the same";
        type Row<'a> = (KeysConfig, EngineFacts, Option<(&'a str, &'a str)>);
        let rows: &[Row<'_>] = &[
            (fnv.clone(), EngineFacts::default(), None),
            (sha(None), EngineFacts::default(), None),
            (fnv.clone(), engine(Some(16), None, None), None),
            (
                fnv.clone(),
                engine(Some(32), None, None),
                Some(("block_size", block_size)),
            ),
            // bridged by tokens: any hashes will do
            (fnv, engine(None, Some("sha256"), Some("0.28.1")), None),
            (
                sha(Some("0")),
                engine(None, Some("sha256_cbor"), Some("0.28.1")),
                None,
            ),
            (
                sha(Some("0")),
                engine(None, Some("sha256"), Some("0.28.1")),
                Some(("hash_algorithm", algorithm)),
            ),
            (
                sha(None),
                engine(None, Some("sha256_cbor"), Some("0.28.1")),
                Some(("hash_seed", seed)),
            ),
            (sha(None), engine(None, None, Some("0.29.0")), None),
            (sha(None), engine(None, None, Some("0.1.dev1+g0")), None),
            // the first one counts
            (
                sha(None),
                engine(Some(32), Some("sha256"), Some("0.28.1")),
                Some(("block_size", block_size)),
            ),
        ];
        for (keys, engine, expected) in rows {
            let found = engine.mismatch(keys, NonZeroU32::new(16));
            let found = found.map(|m| (m.as_str(), m.to_string()));
            let expected = expected.map(|(kind, text)| (kind, text.to_owned()));
            assert_eq!(found, expected, "{keys:?} {engine:?}");
        }
        // Without a block size in effect there is nothing to differ from.
        let first = engine(Some(32), None, None);
        assert_eq!(first.mismatch(&sha(None), None), None);
    }
}
