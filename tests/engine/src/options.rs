//! How an engine is set up.

use crate::cache::Geometry;
use crate::hashing::{Algorithm, BlockHasher};
use crate::models::{Adapter, Models};
use crate::tiers::TierKind;
use crate::version::Release;
use std::net::SocketAddr;
use std::time::Duration;

/// [`Options::default`] is vLLM 0.32.0 with a CPU tier and nothing in it.
#[derive(Clone, Debug)]
pub struct Options {
    pub name: String,
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The control API, kept apart from what an engine has.
    pub control: SocketAddr,
    pub version: String,
    pub model: String,
    /// Further names of the base model.
    pub aliases: Vec<String>,
    /// Names and paths.
    pub adapters: Vec<(String, String)>,
    pub hash_algorithm: Algorithm,
    /// PYTHONHASHSEED.
    pub hash_seed: Option<String>,
    /// Without it nothing is published.
    pub events: Option<EventOptions>,
    pub geometry: Geometry,
    pub tiers: Vec<TierKind>,
    /// Requests served at once; more wait, and count as waiting.
    pub slots: Option<usize>,
    /// From taking a request up to its first token.
    pub latency: Duration,
    /// Between tokens.
    pub token_interval: Duration,
    /// Whether serving a prompt changes the cache, as it does in an engine.
    pub learn: bool,
    /// `--enable-scale-out`, without which 0.30+ refuses `/inference/v1/generate`.
    pub scale_out: bool,
}

/// `--kv-events-config`.
#[derive(Clone, Debug, Default)]
pub struct EventOptions {
    /// Of 127.0.0.1; 0 takes a free one.
    pub port: u16,
    pub replay_port: u16,
    pub topic: String,
    /// No replay socket.
    pub without_replay: bool,
}

impl Default for Options {
    fn default() -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            name: "engine".into(),
            listen: free,
            control: free,
            version: "0.32.0".into(),
            model: "tiny".into(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            hash_algorithm: Algorithm::default(),
            hash_seed: Some("0".into()),
            events: None,
            geometry: Geometry {
                block_size: 32,
                blocks_per_chunk: 1,
                bytes_per_token: 1024,
                gpu_blocks: None,
                cpu_chunks: None,
            },
            tiers: Vec::new(),
            slots: None,
            latency: Duration::ZERO,
            token_interval: Duration::ZERO,
            learn: true,
            scale_out: true,
        }
    }
}

impl Options {
    pub(crate) fn models(&self) -> Models {
        let adapters = self.adapters.iter().zip(1..);
        Models {
            base: self.model.clone(),
            aliases: self.aliases.clone(),
            adapters: adapters
                .map(|((name, path), id)| Adapter {
                    id,
                    name: name.clone(),
                    path: path.clone(),
                })
                .collect(),
        }
    }

    /// Of a process of this version that starts now.
    pub(crate) fn hasher(&self, version: &str) -> BlockHasher {
        let seed = self.hash_seed.as_deref();
        BlockHasher::new(self.hash_algorithm, seed, Release::of(version))
    }
}
