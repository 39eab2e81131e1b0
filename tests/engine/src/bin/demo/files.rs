//! Cold KV-cache files that are brought back while their request is on its way.

use crate::client;
use crate::stage::Stage;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stand_in_engine::hashing::{Algorithm, BlockHasher, Prompt};
use stand_in_engine::{Options, Release};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";
const FILE_BYTES: u64 = 200_000;
/// What is read of a cold file: 3 times 4 KiB, as the agent of the demo is told.
pub const READ_BYTES: u64 = 4096;
const HEAD: u64 = 3 * READ_BYTES;
const LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
const BLOCKS: usize = 8;

/// Where one block of the prompt is.
enum Block {
    /// An engine holds it here, and its file is cold: nobody needs that.
    At(&'static str),
    Warm,
    Cold,
    /// No file was written yet.
    Missing,
}

const PROMPT: [Block; BLOCKS] = [
    Block::At("gpu"),
    Block::At("gpu"),
    Block::At("cpu"),
    Block::Cold,
    Block::Warm,
    Block::Cold,
    Block::Missing,
    Block::Cold,
];

/// What the connector of a stand-in engine writes once, whose hash is in its directory's name.
fn connector_config(options: &Options) -> Value {
    json!({
        "model_name": options.model, "tokens_per_hash": options.geometry.block_size,
        "blocks_per_file": 1, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1,
        "dtype": "bfloat16", "inference_engine": "vllm",
        "kv_cache_groups": [{"layer_names": ["model.layers.0.self_attn.attn"],
            "tokens_per_block": options.geometry.block_size}],
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The connector's directory; the agent looks for it below `root`.
pub fn prepare(root: &Path, options: &Options) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", root.display());
    let _ = fs::remove_dir_all(root);
    // Sorted and without spaces, as it is hashed.
    let text = connector_config(options).to_string();
    let digest = hex(&Sha256::digest(&text));
    let base = root.join(format!("{}_{}", options.model, &digest[..12]));
    fs::create_dir_all(&base).map_err(failed)?;
    fs::write(base.join("config.json"), text).map_err(failed)?;
    Ok(base)
}

/// How many things were wrong.
pub async fn show(stage: &Stage) -> Result<usize, String> {
    let options = &stage.engines[0].options;
    let size = options.geometry.block_size;
    let tokens: Vec<u32> = (20_000..).take(BLOCKS * size).collect();
    let body = json!({"prompt": tokens, "max_tokens": 1}).to_string();
    // Whichever engine Envoy chooses.
    for engine in &stage.engines {
        for (at, block) in PROMPT.iter().enumerate() {
            let Block::At(tier) = block else { continue };
            // As every block comes to be: computed, offloaded, pushed out.
            engine.place(COMPLETIONS, body.as_bytes(), at, at + 1, "gpu")?;
            if *tier != "gpu" {
                engine.place(COMPLETIONS, body.as_bytes(), at, at + 1, tier)?;
                engine.evict(COMPLETIONS, body.as_bytes(), at, at + 1, "gpu")?;
            }
        }
    }
    stage.heard().await?;
    let hasher = BlockHasher::new(
        Algorithm::default(),
        options.hash_seed.as_deref(),
        Release::of(&options.version),
    );
    let prompt = Prompt {
        tokens,
        ..Prompt::default()
    };
    for (hash, block) in hasher.blocks(&prompt, size).iter().zip(&PROMPT) {
        write(&stage.connector, &hex(hash), block)?;
    }

    let before = Done::read(stage).await?;
    let answer = client::post(stage.envoy, COMPLETIONS, &[], &body).await?;
    let told = PROMPT.iter().filter(|block| !matches!(block, Block::At(_)));
    let told = told.count() as u64;
    let end = Instant::now() + LIMIT;
    let done = loop {
        let done = Done::read(stage).await?.since(&before);
        if done.files() >= told || Instant::now() > end {
            break done;
        }
        tokio::time::sleep(LOOK).await;
    };
    let count = |which: fn(&Block) -> bool| PROMPT.iter().filter(|it| which(it)).count() as u64;
    let cold = count(|block| matches!(block, Block::Cold));
    let expected = Done {
        read: cold,
        resident: count(|block| matches!(block, Block::Warm)),
        missing: count(|block| matches!(block, Block::Missing)),
        bytes: cold * HEAD,
    };
    let right = done == expected && answer.status == 200;
    println!(
        "  {} of {BLOCKS} blocks told; heads read {} ({} bytes), already here {}, not written {}  {}",
        done.files(),
        done.read,
        done.bytes,
        done.resident,
        done.missing,
        if right { '✓' } else { '✗' }
    );
    if !right {
        println!(
            "      ✗ expected {expected:?}, status 200; found {done:?}, status {}",
            answer.status
        );
    }
    Ok(usize::from(!right))
}

/// As a connector does; a file that went to the store behind has its length and no blocks.
fn write(connector: &Path, digest: &str, block: &Block) -> Result<(), String> {
    if matches!(block, Block::Missing) {
        return Ok(());
    }
    let rank = PathBuf::from(format!("{}_r0", connector.display()));
    let folder = rank
        .join(&digest[..3])
        .join(format!("{}_g0", &digest[3..5]));
    let path = folder.join(format!("{digest}.bin"));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| File::create(&path))
        .and_then(|mut file| match block {
            Block::Warm => {
                file.write_all(&vec![7; FILE_BYTES as usize])?;
                file.sync_all()
            }
            _ => file.set_len(FILE_BYTES),
        });
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// What the agent has done so far.
#[derive(PartialEq, Eq, Debug)]
struct Done {
    read: u64,
    resident: u64,
    missing: u64,
    bytes: u64,
}

impl Done {
    async fn read(stage: &Stage) -> Result<Self, String> {
        let page = client::get(stage.agent, "/metrics").await?.body;
        let value = |name: &str, label: &str| -> u64 {
            let mut lines = page.lines();
            let line = lines.find(|line| line.starts_with(name) && line.contains(label));
            let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
            value.unwrap_or(0)
        };
        let files = |result: &str| {
            let label = format!("result=\"{result}\"");
            value("kv_prefetch_agent_files_total{", &label)
        };
        Ok(Self {
            read: files("read"),
            resident: files("resident"),
            missing: files("missing"),
            bytes: value("kv_prefetch_agent_read_bytes_total ", ""),
        })
    }

    fn files(&self) -> u64 {
        self.read + self.resident + self.missing
    }

    fn since(self, before: &Self) -> Self {
        Self {
            read: self.read - before.read,
            resident: self.resident - before.resident,
            missing: self.missing - before.missing,
            bytes: self.bytes - before.bytes,
        }
    }
}
