//! What the engine says of itself at `/metrics`, held against what the agent reads by: a wrong size or
//! hash would make every file missing.

use super::directories::Directory;
use std::collections::HashMap;

const HASH_ALGORITHM: &str = "sha256_cbor";
/// Of vLLM 0.33 and later.
const OFFLOAD_INFO: &str = "vllm:kv_offload_config_info";
const CACHE_INFO: &str = "vllm:cache_config_info";

/// What can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    BlocksPerFile,
    HashBlockSize,
    HashAlgorithm,
}

impl Field {
    pub const ALL: [Self; 3] = [
        Field::BlocksPerFile,
        Field::HashBlockSize,
        Field::HashAlgorithm,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Field::BlocksPerFile => "gpuBlocksPerFile",
            Field::HashBlockSize => "tokens_per_hash",
            Field::HashAlgorithm => "prefix_caching_hash_algo",
        }
    }
}

/// None of the directories is what the engine writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    pub field: Field,
    pub engine: String,
    pub here: String,
}

/// A field that the engine does not publish is not compared.
pub fn compare(metrics: &str, directories: &[Directory]) -> Vec<Mismatch> {
    let offload = series(metrics, OFFLOAD_INFO);
    let cache = series(metrics, CACHE_INFO);
    let mut wrong = Vec::new();
    let mut check = |field, engine: Vec<String>, here: Vec<String>| {
        if !engine.is_empty() && !here.is_empty() && engine.iter().all(|it| !here.contains(it)) {
            wrong.push(Mismatch {
                field,
                engine: engine.join(", "),
                here: here.join(", "),
            });
        }
    };
    check(
        Field::BlocksPerFile,
        values(&offload, |name| {
            name == "blocks_per_chunk" || name.ends_with("_blocks_per_chunk")
        }),
        directories
            .iter()
            .map(|directory| directory.layout.sizes.blocks_per_file.to_string())
            .collect(),
    );
    check(
        Field::HashBlockSize,
        values(&cache, |name| name == "hash_block_size"),
        directories
            .iter()
            .filter_map(|directory| directory.connector.as_ref()?.hash_block_size)
            .map(|size| size.to_string())
            .collect(),
    );
    check(
        Field::HashAlgorithm,
        values(&cache, |name| name == "prefix_caching_hash_algo"),
        vec![HASH_ALGORITHM.to_owned()],
    );
    wrong
}

fn values(series: &[HashMap<String, String>], named: impl Fn(&str) -> bool) -> Vec<String> {
    series
        .iter()
        .flatten()
        .filter(|(name, value)| named(name) && !matches!(value.as_str(), "" | "None"))
        .map(|(_, value)| value.clone())
        .collect()
}

/// The labels of every series of this name.
fn series(metrics: &str, name: &str) -> Vec<HashMap<String, String>> {
    metrics
        .lines()
        .filter_map(|line| labels(line.strip_prefix(name)?.strip_prefix('{')?))
        .collect()
}

fn labels(mut rest: &str) -> Option<HashMap<String, String>> {
    let mut labels = HashMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if rest.starts_with('}') {
            return Some(labels);
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                other => value.push(other),
            }
        }
        labels.insert(name.to_owned(), value);
        rest = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::connector::Connector;
    use crate::prefetch::layout::{Layout, Sizes};
    use std::path::Path;
    use std::sync::Arc;

    fn directory(blocks_per_file: u32, hash_block_size: Option<u64>) -> Directory {
        let sizes = Sizes {
            ranks: 1,
            groups: 1,
            blocks_per_file,
        };
        let (digest, counts) = ("abcdef123456", Arc::default());
        Directory {
            layout: Arc::new(Layout::new(Path::new("/"), "m", digest, sizes, counts)),
            connector: Some(Connector {
                model: "m".into(),
                digest: digest.into(),
                sizes,
                hash_block_size,
            }),
        }
    }

    fn metrics(blocks: &str, hash_block: &str, algorithm: &str) -> String {
        format!(
            "# TYPE vllm:kv_offload_config_info gauge\n\
             vllm:kv_offload_config_info{{cpu_blocks_per_chunk=\"{blocks}\",cpu_capacity_tokens_at_max_len=\"None\",cpu_num_chunks=\"4\",engine=\"0\",model_name=\"a\\\"}}\\\\\"}} 1.0\n\
             vllm:cache_config_info{{block_size=\"16\",engine=\"0\",hash_block_size=\"{hash_block}\",prefix_caching_hash_algo=\"{algorithm}\"}} 1.0\n"
        )
    }

    #[test]
    fn what_agrees_and_what_does_not() {
        let wrong = |text: &str, directories: &[Directory]| -> Vec<String> {
            compare(text, directories)
                .into_iter()
                .map(|it| format!("{} {} {}", it.field.as_str(), it.engine, it.here))
                .collect()
        };
        let ours = [directory(8, Some(16))];
        assert_eq!(wrong(&metrics("8", "16", "sha256_cbor"), &ours), [""; 0]);
        assert_eq!(
            wrong(&metrics("4", "32", "sha256"), &ours),
            [
                "gpuBlocksPerFile 4 8",
                "tokens_per_hash 32 16",
                "prefix_caching_hash_algo sha256 sha256_cbor"
            ]
        );
        // One of the directories is the engine's.
        let two = [directory(8, Some(16)), directory(4, Some(32))];
        assert_eq!(wrong(&metrics("4", "32", "sha256_cbor"), &two), [""; 0]);
        // Not said, by the engine or here.
        assert_eq!(wrong(&metrics("None", "", "sha256_cbor"), &ours), [""; 0]);
        assert_eq!(
            wrong(&metrics("8", "32", "sha256_cbor"), &[directory(8, None)]),
            [""; 0]
        );
        assert_eq!(wrong("", &ours), [""; 0]);
    }

    #[test]
    fn text_that_is_no_series_is_passed_over() {
        let ours = [directory(8, None)];
        for text in [
            "vllm:kv_offload_config_info 1\n",
            "vllm:kv_offload_config_info{cpu_blocks_per_chunk=\"4",
            "vllm:kv_offload_config_info{cpu_blocks_per_chunk=4} 1\n",
            "vllm:kv_offload_config_info{",
            "vllm:kv_offload_config_info_more{cpu_blocks_per_chunk=\"4\"} 1\n",
        ] {
            assert_eq!(compare(text, &ours), [], "{text}");
        }
    }
}
