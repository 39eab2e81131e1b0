//! KV events in the form of the engine's version: arrays up to 0.23, maps from 0.24 on.

use crate::hashing::{BlockHash, event_hash};
use crate::msgpack::Item;
use crate::version::Release;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    Gpu,
    Cpu,
    /// `fs` and `obj`: one name for both, but in 0.26.
    Storage {
        object_store: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Stored {
        hashes: Vec<BlockHash>,
        medium: Medium,
        /// Offload events have only the hashes.
        content: Option<Content>,
    },
    Removed {
        hashes: Vec<BlockHash>,
        medium: Medium,
    },
    AllCleared,
}

/// What GPU blocks hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    pub parent: Option<BlockHash>,
    pub tokens: Vec<u32>,
    pub block_size: usize,
    /// Its number and name.
    pub adapter: Option<(u64, String)>,
    /// Per block; untagged in every version.
    pub extra_keys: Option<Vec<Option<Vec<String>>>>,
    /// Group 0, full attention.
    pub group: bool,
}

/// One batch: `[time, [event, …], data-parallel rank]`. `time` is Unix time in seconds.
pub fn batch(time: f64, events: &[Event], release: Release) -> Vec<u8> {
    let events = events.iter().map(|event| item(event, release)).collect();
    let batch = Item::List(vec![Item::Float(time), Item::List(events), Item::Uint(0)]);
    let mut out = Vec::new();
    batch.write(&mut out);
    out
}

fn item(event: &Event, release: Release) -> Item {
    let tag = match event {
        Event::Stored { .. } => "BlockStored",
        Event::Removed { .. } => "BlockRemoved",
        Event::AllCleared => "AllBlocksCleared",
    };
    let fields = fields(event, release);
    if release >= Release::EVENTS_AS_MAPS {
        let fields = fields.into_iter().filter_map(|(key, item, default)| {
            // Fields that have a default are left out when they have it.
            (!default || !matches!(item, Item::Nil)).then_some((key, item))
        });
        let members = [("type", Item::text(tag))]
            .into_iter()
            .chain(fields)
            .collect();
        let wide = matches!(event, Event::Stored { .. }) && release >= Release::SIXTEEN_FIELDS;
        if wide {
            Item::WideMap(members)
        } else {
            Item::Map(members)
        }
    } else {
        let items = fields.into_iter().map(|(_, item, _)| item);
        Item::List([Item::text(tag)].into_iter().chain(items).collect())
    }
}

/// Name, value, and whether the field may be left out of a map.
fn fields(event: &Event, release: Release) -> Vec<(&'static str, Item, bool)> {
    let list = |hashes: &[BlockHash]| {
        Item::List(hashes.iter().map(|it| Item::Uint(event_hash(it))).collect())
    };
    match event {
        Event::AllCleared => Vec::new(),
        Event::Removed { hashes, medium } => vec![
            ("block_hashes", list(hashes), false),
            ("medium", Item::text(name(*medium, release)), false),
            ("group_idx", Item::Uint(0), true),
        ],
        Event::Stored {
            hashes,
            medium,
            content,
        } => {
            let placeholder = Content::default();
            let is = content.as_ref().unwrap_or(&placeholder);
            let tokens = is.tokens.iter().map(|token| Item::Uint(u64::from(*token)));
            let adapter = is.adapter.as_ref();
            let group = content.is_none() || is.group;
            vec![
                ("block_hashes", list(hashes), false),
                (
                    "parent_block_hash",
                    Item::or_nil(is.parent.as_ref(), |hash| Item::Uint(event_hash(hash))),
                    false,
                ),
                ("token_ids", Item::List(tokens.collect()), false),
                ("block_size", Item::Uint(is.block_size as u64), false),
                (
                    "lora_id",
                    Item::or_nil(adapter, |(id, _)| Item::Uint(*id)),
                    false,
                ),
                ("medium", Item::text(name(*medium, release)), false),
                (
                    "lora_name",
                    Item::or_nil(adapter, |(_, name)| Item::text(name)),
                    false,
                ),
                (
                    "extra_keys",
                    Item::or_nil(is.extra_keys.as_deref(), extra_keys),
                    true,
                ),
                (
                    "group_idx",
                    if group { Item::Uint(0) } else { Item::Nil },
                    true,
                ),
                (
                    "kv_cache_spec_kind",
                    if is.group {
                        Item::text("full_attention")
                    } else {
                        Item::Nil
                    },
                    true,
                ),
                ("kv_cache_spec_sliding_window", Item::Nil, true),
            ]
        }
    }
}

fn extra_keys(blocks: &[Option<Vec<String>>]) -> Item {
    let keys = |keys: &Vec<String>| Item::List(keys.iter().map(|key| Item::text(key)).collect());
    Item::List(
        blocks
            .iter()
            .map(|block| Item::or_nil(block.as_ref(), keys))
            .collect(),
    )
}

fn name(medium: Medium, release: Release) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU",
        Medium::Storage { object_store } if release.minor_is(Release::FS_AND_OBJ) => {
            if object_store { "OBJ" } else { "FS" }
        }
        Medium::Storage { .. } => "STORAGE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn hash(event: u64) -> BlockHash {
        let mut hash = [0; 32];
        hash[24..].copy_from_slice(&event.to_be_bytes());
        hash
    }

    #[test]
    fn batches_are_as_vllm_encodes_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/kv_events.json");
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let hashes = vec![hash(14310389223862341110), hash(7)];
        let mut checked = 0;
        for row in file["constructed"].as_array().unwrap() {
            let event = match row["case"].as_str().unwrap() {
                "gpu_stored_minimal" => Event::Stored {
                    hashes: hashes.clone(),
                    medium: Medium::Gpu,
                    content: Some(Content {
                        tokens: (0..32).collect(),
                        block_size: 16,
                        ..Content::default()
                    }),
                },
                "cpu_placeholder" => Event::Stored {
                    hashes: hashes[..1].to_vec(),
                    medium: Medium::Cpu,
                    content: None,
                },
                "removed_storage" if row["decoded"][1][0].get("locality").is_none() => {
                    Event::Removed {
                        hashes: hashes.clone(),
                        medium: Medium::Storage {
                            object_store: false,
                        },
                    }
                }
                // Whole hashes, or fields that this engine never sets.
                _ => continue,
            };
            let release = Release::of(row["vllm"].as_str().unwrap());
            let bytes = batch(1795952200.25, &[event], release);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, row["batch_hex_dp0"], "{} {}", row["vllm"], row["case"]);
            checked += 1;
        }
        assert!(checked >= 12, "{checked} rows");
    }

    #[test]
    fn storage_has_the_name_of_its_version() {
        for (version, object_store, expected) in [
            ("0.25.0", false, "STORAGE"),
            ("0.26.1", false, "FS"),
            ("0.26.0", true, "OBJ"),
            ("0.27.0", true, "STORAGE"),
        ] {
            let medium = Medium::Storage { object_store };
            assert_eq!(name(medium, Release::of(version)), expected, "{version}");
        }
    }
}
