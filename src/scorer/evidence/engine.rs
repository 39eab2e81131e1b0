//! Whether, and how, an engine's block keys can be made from a request.

use super::EngineFacts;
use super::models::Served;
use super::results::EndpointResult;
use crate::prefix::ExtraKeyFormat;
use crate::scorer::config::KeysConfig;
use std::num::NonZeroU32;

/// What beside tokens and salt the keys of one endpoint depend on. Endpoints with equal ones share
/// the keys of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way<'a> {
    pub adapter: Option<&'a str>,
    /// Plays no part in a request without salt and adapter, nor in `fnv64a_cbor`; then the same
    /// for all.
    pub format: ExtraKeyFormat,
}

/// How the endpoint's keys of a request are made, or why they cannot be.
pub fn way<'a>(
    keys: &KeysConfig,
    facts: &EngineFacts,
    block_size: NonZeroU32,
    served: Served<'a>,
    salted: bool,
) -> Result<Way<'a>, EndpointResult> {
    if let Some(mismatch) = facts.mismatch(keys, Some(block_size)) {
        return Err(EndpointResult::Mismatch(mismatch.as_str()));
    }
    let adapter = match served {
        Served::Base => None,
        Served::Adapter(name) => Some(name),
    };
    let plain = Way {
        adapter,
        format: ExtraKeyFormat::Untagged,
    };
    let KeysConfig::Sha256Cbor { extra_keys, .. } = keys else {
        return Ok(plain);
    };
    if adapter.is_none() && !salted {
        return Ok(plain);
    }
    let format = extra_keys
        .or(facts.extra_key_format())
        .ok_or(EndpointResult::ExtraKeys)?;
    Ok(Way { adapter, format })
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;
    use crate::scorer::config::EvidenceConfig;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const SIZE: NonZeroU32 = NonZeroU32::new(16).unwrap();

    fn engine(version: Option<&str>) -> EngineFacts {
        EngineFacts {
            version: version.map(str::to_owned),
            ..EngineFacts::default()
        }
    }

    fn sha(seed: Option<&str>, extra_keys: Option<ExtraKeyFormat>) -> EvidenceConfig {
        let mut config = config();
        config.keys = KeysConfig::Sha256Cbor {
            python_hash_seed: seed.map(str::to_owned),
            extra_keys,
        };
        config
    }

    #[test]
    fn the_format_follows_the_version() {
        use EndpointResult::{ExtraKeys, Mismatch};
        use ExtraKeyFormat::{Tagged, Untagged};
        let seed = Mismatch("hash_seed");
        let base = (Served::Base, false);
        let salted = (Served::Base, true);
        let adapter = (Served::Adapter("a"), false);
        let table = [
            // Version, seed, extraKeys → without salt and adapter, with either.
            (Some("0.28.0"), None, None, Err(seed), Err(seed)),
            (Some("0.28.0"), Some("0"), None, Ok(Untagged), Ok(Untagged)),
            (Some("0.29.0"), None, None, Ok(Untagged), Ok(Untagged)),
            (Some("0.30.2"), None, None, Ok(Untagged), Ok(Untagged)),
            (Some("0.31.0rc1"), None, None, Ok(Untagged), Ok(Tagged)),
            (Some("1.0.0"), None, None, Ok(Untagged), Ok(Tagged)),
            (
                Some("0.31.0"),
                None,
                Some(Untagged),
                Ok(Untagged),
                Ok(Untagged),
            ),
            (Some("0.30.0"), None, Some(Tagged), Ok(Untagged), Ok(Tagged)),
            (None, None, None, Ok(Untagged), Err(ExtraKeys)),
            (Some("0.1.dev3"), None, None, Ok(Untagged), Err(ExtraKeys)),
            (None, None, Some(Tagged), Ok(Untagged), Ok(Tagged)),
        ];
        for (version, seed, extra_keys, plain, other) in table {
            let (config, facts) = (sha(seed, extra_keys), engine(version));
            let format = |(served, salted)| {
                way(&config.keys, &facts, SIZE, served, salted).map(|way| way.format)
            };
            assert_eq!(format(base), plain, "{version:?}");
            assert_eq!(format(salted), other, "{version:?}");
            assert_eq!(format(adapter), other, "{version:?}");
        }
    }

    #[test]
    fn an_engine_that_does_it_otherwise_has_no_keys() {
        let block_size = EndpointResult::Mismatch("block_size");
        let algorithm = EndpointResult::Mismatch("hash_algorithm");
        let says = |block_size, algorithm: Option<&str>| EngineFacts {
            block_size,
            hash_algorithm: algorithm.map(str::to_owned),
            ..engine(Some("0.32.0"))
        };
        for (facts, bridged, own) in [
            (says(None, None), Ok(()), Ok(())),
            (says(Some(16), Some("sha256_cbor")), Ok(()), Ok(())),
            (
                says(Some(32), Some("sha256_cbor")),
                Err(block_size),
                Err(block_size),
            ),
            (says(Some(16), Some("sha256")), Ok(()), Err(algorithm)),
            (says(Some(16), Some("SHA256_CBOR")), Ok(()), Err(algorithm)),
        ] {
            for (config, expected) in [(config(), bridged), (sha(None, None), own)] {
                let found = way(&config.keys, &facts, SIZE, Served::Base, true);
                assert_eq!(found.map(|_| ()), expected, "{facts:?}");
            }
        }
    }

    #[test]
    fn keys_by_tokens_depend_on_the_adapter_alone() {
        for version in [None, Some("0.28.0"), Some("0.32.0")] {
            for (served, adapter) in [(Served::Base, None), (Served::Adapter("a"), Some("a"))] {
                let format = ExtraKeyFormat::Untagged;
                let found = way(&config().keys, &engine(version), SIZE, served, true);
                assert_eq!(found, Ok(Way { adapter, format }), "{version:?}");
            }
        }
    }
}
