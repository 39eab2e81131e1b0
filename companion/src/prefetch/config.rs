//! The agent's configuration file.

use super::head::Head;
use super::layout::{MAX_FAN_OUT, is_config_digest, safe_model};
use super::pool;
use crate::common::address::Address;
use crate::common::settings::{
    self, Error, Log, LogFile, api, duration, listen, range, size, wrong,
};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub const DEFAULT_LISTEN: &str = "127.0.0.1:8098";
const DEFAULT_BLOCK_SIZE: u64 = 4 << 20;
const DEFAULT_BLOCK_COUNT: u64 = 3;
const DEFAULT_FILES: u64 = 16;
const DEFAULT_QUEUE: u64 = 256;
const DEFAULT_DIGESTS: u64 = 16_384;
const DEFAULT_BODY: u64 = 2 << 20;
const DEFAULT_CONNECTIONS: u64 = 1024;
/// A file name's most on common file systems; the digest and the rank come behind the model.
const MAX_MODEL: usize = 200;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    listen: Option<String>,
    token_file: Option<PathBuf>,
    root_dir: PathBuf,
    model_name: String,
    digest: Option<String>,
    kv_cache_group_count: Option<u64>,
    gpu_blocks_per_file: Option<u64>,
    tp_size: Option<u64>,
    pp_size: Option<u64>,
    pcp_size: Option<u64>,
    dcp_size: Option<u64>,
    check_interval: Option<String>,
    engine: Option<String>,
    block_size: Option<u64>,
    block_count: Option<u64>,
    max_concurrent_files: Option<u64>,
    work_queue_size: Option<u64>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    log: LogFile,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Limits {
    max_digests: Option<u64>,
    max_body_bytes: Option<u64>,
    max_connections: Option<u64>,
}

/// Sizes that are set; the others are the connector's own `config.json`'s, or 1.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetSizes {
    pub tp: Option<u32>,
    pub pp: Option<u32>,
    pub pcp: Option<u32>,
    pub dcp: Option<u32>,
    pub groups: Option<u32>,
    pub blocks_per_file: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub token_file: Option<PathBuf>,
    pub root: PathBuf,
    pub model: String,
    /// None: as found below `root`.
    pub digest: Option<String>,
    pub sizes: SetSizes,
    pub check_interval: Duration,
    pub engine: Option<Address>,
    pub pool: pool::Limits,
    pub max_digests: usize,
    pub max_body: usize,
    pub max_connections: usize,
    pub log: Log,
}

impl Config {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let file: File = settings::read(text)?;
        if !file.root_dir.is_absolute() {
            return wrong(
                "rootDir",
                file.root_dir.display(),
                "must be an absolute path, as the connector's shared_storage_path or root_dir here",
            );
        }
        let model = file.model_name;
        if model.is_empty() || safe_model(&model).len() > MAX_MODEL || model.contains('\0') {
            return wrong(
                "modelName",
                format!("{model:?}"),
                format!("must be the engine's --model, 1 to {MAX_MODEL} bytes"),
            );
        }
        if let Some(digest) = &file.digest
            && !is_config_digest(digest)
        {
            return wrong(
                "digest",
                format!("{digest:?}"),
                "must be 12 lower-case hexadecimal digits, as in the directory's name; leave it out to find it",
            );
        }
        let set = |field: &str, value: Option<u64>| -> Result<Option<u32>, Error> {
            let Some(value) = value else {
                return Ok(None);
            };
            let value = range(field, Some(value), 1, 1..=MAX_FAN_OUT)?;
            Ok(u32::try_from(value).ok())
        };
        let sizes = SetSizes {
            tp: set("tpSize", file.tp_size)?,
            pp: set("ppSize", file.pp_size)?,
            pcp: set("pcpSize", file.pcp_size)?,
            dcp: set("dcpSize", file.dcp_size)?,
            groups: set("kvCacheGroupCount", file.kv_cache_group_count)?,
            blocks_per_file: set("gpuBlocksPerFile", file.gpu_blocks_per_file)?,
        };
        let files = sizes.fan_out();
        if files > MAX_FAN_OUT {
            return wrong(
                "kvCacheGroupCount",
                format!("{files} files a block"),
                format!("ranks times groups must be at most {MAX_FAN_OUT}"),
            );
        }
        let engine = match file.engine.as_deref() {
            None => None,
            Some(text) => match api(text) {
                Some(api) => Some(api),
                None => {
                    return wrong(
                        "engine",
                        text,
                        "must be http://host:port, the engine's API server",
                    );
                }
            },
        };
        let block_size = range(
            "blockSize",
            file.block_size,
            DEFAULT_BLOCK_SIZE,
            512..=64 << 20,
        )?;
        let block_count = range(
            "blockCount",
            file.block_count,
            DEFAULT_BLOCK_COUNT,
            1..=1 << 20,
        )?;
        Ok(Self {
            listen: listen(file.listen.as_deref(), DEFAULT_LISTEN)?,
            token_file: file.token_file,
            root: file.root_dir,
            model,
            digest: file.digest,
            sizes,
            check_interval: duration(
                "checkInterval",
                file.check_interval,
                10_000,
                100..=3_600_000,
            )?,
            engine,
            pool: pool::Limits {
                workers: size(range(
                    "maxConcurrentFiles",
                    file.max_concurrent_files,
                    DEFAULT_FILES,
                    1..=1024,
                )?),
                queue: size(range(
                    "workQueueSize",
                    file.work_queue_size,
                    DEFAULT_QUEUE,
                    1..=1_000_000,
                )?),
                head: Head {
                    block_size: size(block_size),
                    block_count: u32::try_from(block_count).unwrap_or(u32::MAX),
                },
            },
            max_digests: size(range(
                "limits.maxDigests",
                file.limits.max_digests,
                DEFAULT_DIGESTS,
                1..=1_000_000,
            )?),
            max_body: size(range(
                "limits.maxBodyBytes",
                file.limits.max_body_bytes,
                DEFAULT_BODY,
                1024..=256 << 20,
            )?),
            max_connections: size(range(
                "limits.maxConnections",
                file.limits.max_connections,
                DEFAULT_CONNECTIONS,
                1..=100_000,
            )?),
            log: Log::parse(&file.log)?,
        })
    }
}

impl SetSizes {
    /// The ranks, if a part of them is set.
    pub fn ranks(&self) -> Option<u64> {
        let parts = [self.tp, self.pp, self.pcp, self.dcp];
        parts.iter().any(Option::is_some).then(|| {
            parts
                .into_iter()
                .flatten()
                .fold(1, |all: u64, part| all.saturating_mul(u64::from(part)))
        })
    }

    fn fan_out(&self) -> u64 {
        let groups = u64::from(self.groups.unwrap_or(1));
        self.ranks().unwrap_or(1).saturating_mul(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "rootDir: /mnt/kv\nmodelName: Qwen/Qwen3-8B\n";

    #[test]
    fn a_whole_configuration() {
        let config = Config::parse(
            "listen: 0.0.0.0:9000\n\
             tokenFile: /run/secrets/token\n\
             rootDir: /mnt/kv\n\
             modelName: Qwen/Qwen3-8B\n\
             digest: 07d7b166f256\n\
             {kvCacheGroupCount: 2, gpuBlocksPerFile: 16, tpSize: 4, ppSize: 3, pcpSize: 2, dcpSize: 1}\n"
                .replace(['{', '}'], "")
                .replace(", ", "\n")
                .as_str(),
        )
        .unwrap();
        assert_eq!(config.listen.to_string(), "0.0.0.0:9000");
        assert_eq!(config.digest.as_deref(), Some("07d7b166f256"));
        assert_eq!(config.sizes.ranks(), Some(24));
        assert_eq!(
            (config.sizes.groups, config.sizes.blocks_per_file),
            (Some(2), Some(16))
        );
    }

    #[test]
    fn defaults() {
        let config =
            Config::parse(r#"{"rootDir": "/mnt/kv", "modelName": "Qwen/Qwen3-8B"}"#).unwrap();
        assert_eq!(config.listen.to_string(), DEFAULT_LISTEN);
        assert_eq!(config.sizes, SetSizes::default());
        assert_eq!(config.sizes.ranks(), None);
        let pool = config.pool;
        assert_eq!((pool.workers, pool.queue), (16, 256));
        assert_eq!(
            (pool.head.block_size, pool.head.block_count),
            (4_194_304, 3)
        );
        assert_eq!(config.check_interval, Duration::from_secs(10));
        assert_eq!((config.max_digests, config.max_body), (16_384, 2_097_152));
    }

    #[test]
    fn an_error_names_the_field_the_value_and_what_is_allowed() {
        let with = |line: &str| format!("{LEAST}{line}");
        for (text, says) in [
            (String::new(), "missing field `rootDir`"),
            (
                LEAST.replace("/mnt", "mnt"),
                "rootDir: mnt/kv: must be an absolute path",
            ),
            (
                LEAST.replace("Qwen/Qwen3-8B", "''"),
                "modelName: \"\": must be the engine's --model, 1 to 200 bytes",
            ),
            (
                with("digest: 07D7B166F256"),
                "digest: \"07D7B166F256\": must be 12 lower-case hexadecimal digits",
            ),
            (
                with("digest: ../../../etc"),
                "digest: \"../../../etc\": must",
            ),
            (with("tpSize: 0"), "tpSize: 0: must be 1 to 4096"),
            (
                with("tpSize: 64\nkvCacheGroupCount: 65"),
                "kvCacheGroupCount: 4160 files a block: ranks times groups must be at most 4096",
            ),
            (
                with("blockSize: 100"),
                "blockSize: 100: must be 512 to 67108864",
            ),
            (
                with("maxConcurrentFiles: 0"),
                "maxConcurrentFiles: 0: must be 1 to 1024",
            ),
            (
                with("workQueueSize: 0"),
                "workQueueSize: 0: must be 1 to 1000000",
            ),
            (
                with("engine: https://h:1"),
                "engine: https://h:1: must be http://host:port",
            ),
            (
                with("checkInterval: 5"),
                "checkInterval: 5: must be a duration such as 200ms",
            ),
            (
                with("path: /etc/passwd"),
                "unknown field `path`, expected one of `listen`",
            ),
            (
                with("limits: {maxDigests: 0}"),
                "limits.maxDigests: 0: must be 1 to 1000000",
            ),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(
                error.contains(says),
                "{text}\n  says: {error}\n  not:  {says}"
            );
        }
    }
}
