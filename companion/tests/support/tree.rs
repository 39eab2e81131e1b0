//! A connector's directory, as llm-d's fs-connector and vLLM's `fs` tier leave it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub const MODEL: &str = "meta-llama/Meta-Llama-3.1-8B";
/// Of [`config`] with one rank and 16 blocks a file: the example of llm-d's own rule.
pub const DIGEST: &str = "9fd26aa602ec";

/// What the connector writes for one rank. Its digest is [`DIGEST`] only with 16.
pub fn config(blocks_per_file: u32) -> String {
    format!(
        r#"{{
  "dcp_size": 1, "dtype": "bfloat16", "gpu_blocks_per_file": {blocks_per_file}, "hash_block_size": 16,
  "inference_engine": "vllm",
  "kv_cache_groups": [{{"block_size": 16, "layer_names": ["model.layers.0.self_attn.attn"]}}],
  "model_name": "{MODEL}", "pcp_size": 1, "pp_size": 1, "tp_size": 1
}}"#
    )
}

/// Gone with the test.
pub struct Tree {
    pub root: PathBuf,
}

impl Tree {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "kv-prefetch-agent-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    /// `config.json` in the directory of this digest.
    pub fn configure(&self, digest: &str, text: &str) {
        let base = self
            .root
            .join(format!("{}_{digest}", MODEL.replace('/', "_")));
        fs::create_dir_all(&base).unwrap();
        // At once, as far as a reader can see.
        fs::write(base.join("new"), text).unwrap();
        fs::rename(base.join("new"), base.join("config.json")).unwrap();
    }

    pub fn path(&self, digest: &str, rank: u32, group: u32, block: &str) -> PathBuf {
        self.root.join(format!(
            "{}_{digest}_r{rank}/{}/{}_g{group}/{block}.bin",
            MODEL.replace('/', "_"),
            &block[..3],
            &block[3..5]
        ))
    }

    /// A file with all its blocks.
    pub fn warm(&self, digest: &str, rank: u32, block: &str, len: usize) -> PathBuf {
        let path = self.path(digest, rank, 0, block);
        let mut file = create(&path);
        file.write_all(&vec![7; len]).unwrap();
        file.sync_all().unwrap();
        path
    }

    /// A file that has its length and none of its blocks: a stub, as a store of two tiers leaves it.
    pub fn cold(&self, digest: &str, rank: u32, block: &str, len: u64) -> PathBuf {
        let path = self.path(digest, rank, 0, block);
        create(&path).set_len(len).unwrap();
        path
    }
}

fn create(path: &Path) -> File {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap()
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A block's digest that is like no other's.
pub fn block(n: u64) -> String {
    // Spread over directories as real ones are.
    format!("{:016x}{n:048x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The message with these blocks, at these places of their prompt.
pub fn message<'a>(blocks: impl IntoIterator<Item = (u64, &'a str)>) -> String {
    let blocks: Vec<String> = blocks
        .into_iter()
        .map(|(index, digest)| format!("[{index},\"{digest}\"]"))
        .collect();
    format!("{{\"v\":1,\"blocks\":[{}]}}", blocks.join(","))
}
