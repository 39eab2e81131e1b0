//! What the values of the keys may be.

use super::super::endpoints::{CLUSTER_RULE, is_cluster};
use crate::config::{ConfigError, Field, Json, object};
use crate::prefix::ExtraKeyFormat;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// Longest name of a model or path of an adapter, in bytes; names may be paths too.
const MAX_MODEL_BYTES: usize = 512;
/// Aliases, and adapters.
const MAX_MODELS: usize = 1_024;
/// Tiers that an index tells apart.
const MAX_SHARED_TIERS: usize = crate::scorer::index::MAX_TIERS;
const MAX_TIER_BYTES: usize = 40;
const MAX_SEED_BYTES: usize = 1_024;
const MAX_BLOCKS: u64 = 65_536;

const MODEL_RULE: &str = "a name of 1 to 512 bytes without control characters";
const ADAPTER_PATH_RULE: &str = "a path of 1 to 512 bytes without control characters";
const SEED_RULE: &str = "a text of at most 1024 bytes";
const PYTHON_SEED_RULE: &str =
    "the engines' PYTHONHASHSEED as a text: \"0\" to \"4294967295\", or \"random\"";
const TIER_RULE: &str =
    "a tier, once, of 1 to 40 lower-case letters, digits, _ or -, and not \"gpu\"";
const AUTHORITY_RULE: &str = "a host, with or without a port";

/// A number of tokens or blocks.
pub(super) fn count(field: &Field<'_>) -> Result<Option<NonZeroU32>, ConfigError> {
    let count = field.whole(1..=MAX_BLOCKS)?;
    Ok(u32::try_from(count).ok().and_then(NonZeroU32::new))
}

/// Bytes or a number of things that this VM keeps in memory.
pub(super) fn size(field: &Field<'_>, range: RangeInclusive<u64>) -> Result<usize, ConfigError> {
    let size = field.whole(range)?;
    Ok(usize::try_from(size).unwrap_or(usize::MAX))
}

pub(super) fn cluster(field: &Field<'_>) -> Result<String, ConfigError> {
    field.text(is_cluster, CLUSTER_RULE)
}

pub(super) fn authority(field: &Field<'_>) -> Result<String, ConfigError> {
    field.text(is_authority, AUTHORITY_RULE)
}

fn is_authority(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b))
}

pub(super) fn model(field: &Field<'_>) -> Result<String, ConfigError> {
    field.text(is_model, MODEL_RULE)
}

fn is_model(name: &str) -> bool {
    (1..=MAX_MODEL_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

pub(super) fn hash_seed(field: &Field<'_>) -> Result<String, ConfigError> {
    field.text(|seed| seed.len() <= MAX_SEED_BYTES, SEED_RULE)
}

pub(super) fn python_hash_seed(field: &Field<'_>) -> Result<String, ConfigError> {
    field.text(is_python_seed, PYTHON_SEED_RULE)
}

pub(super) fn extra_keys(field: &Field<'_>) -> Result<ExtraKeyFormat, ConfigError> {
    field.one_of(&[
        ("untagged", ExtraKeyFormat::Untagged),
        ("tagged", ExtraKeyFormat::Tagged),
    ])
}

pub(super) fn extra_keys_name(format: ExtraKeyFormat) -> &'static str {
    match format {
        ExtraKeyFormat::Tagged => "tagged",
        ExtraKeyFormat::Untagged | ExtraKeyFormat::LlmD => "untagged",
    }
}

/// What Python takes. vLLM hashes the text, so `"0"` and `"00"` differ.
fn is_python_seed(text: &str) -> bool {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text == "random" || digits && text.parse::<u32>().is_ok()
}

/// Alias and target, in the order they came.
pub(super) fn aliases(field: &Field<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let place = field.place.inside(field.key);
    let members = object(&place, place.itself(), field.value.clone())?;
    if members.len() > MAX_MODELS {
        return Err(field.wrong("an object of 0 to 1024 aliases"));
    }
    let mut aliases = Vec::with_capacity(members.len());
    for (key, value) in members {
        let field = Field {
            place: &place,
            key: &key,
            value: &value,
        };
        if !is_model(&key) {
            let name = Json::Text(key.clone());
            return Err(ConfigError::value(place.itself(), &name, MODEL_RULE));
        }
        let target = model(&field)?;
        aliases.push((key, target));
    }
    Ok(aliases)
}

/// Name and path, in the order they came.
pub(super) fn adapters(field: &Field<'_>) -> Result<Vec<(String, Option<String>)>, ConfigError> {
    let items = field.list(0..=MAX_MODELS, "adapters")?;
    let mut adapters: Vec<(String, Option<String>)> = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let place = field.place.element(field.key, i);
        let (mut name, mut path) = (None, None);
        for (key, value) in object(&place, place.itself(), item.clone())? {
            let field = Field {
                place: &place,
                key: &key,
                value: &value,
            };
            match key.as_str() {
                "name" => name = Some(model(&field)?),
                "path" => path = Some(field.text(is_model, ADAPTER_PATH_RULE)?),
                _ => return Err(ConfigError::unknown(place.member(&key), &["name", "path"])),
            }
        }
        let name = name.ok_or_else(|| {
            ConfigError::missing(place.member("name"), "the adapter as requests name it")
        })?;
        if adapters.iter().any(|(other, _)| *other == name) {
            let rule = "each adapter may be given once";
            return Err(ConfigError::conflict(
                place.member("name"),
                &Json::Text(name),
                rule,
            ));
        }
        adapters.push((name, path));
    }
    Ok(adapters)
}

pub(super) fn shared_tiers(field: &Field<'_>) -> Result<Vec<String>, ConfigError> {
    let mut tiers: Vec<String> = Vec::new();
    let items = field.list(0..=MAX_SHARED_TIERS, "tiers")?;
    for (i, item) in items.iter().enumerate() {
        match item {
            Json::Text(tier) if is_tier(tier) && !tiers.contains(tier) => tiers.push(tier.clone()),
            _ => {
                let field = field.place.element(field.key, i).itself();
                return Err(ConfigError::value(field, item, TIER_RULE));
            }
        }
    }
    Ok(tiers)
}

fn is_tier(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    (1..=MAX_TIER_BYTES).contains(&name.len()) && name.bytes().all(plain) && name != "gpu"
}
