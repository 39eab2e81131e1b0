//! What an index is made for, and its bounds.

use crate::contract::keys::fnv1a64;

/// What one block may cost in shared data: two snapshots and the logs.
pub(super) const BLOCK_BYTES: u64 = 24;
/// The same with engine keys.
pub(super) const BRIDGED_BLOCK_BYTES: u64 = 40;
/// What an endpoint costs beside its blocks: head, stamps, the least logs.
pub(super) const ENDPOINT_BYTES: u64 = 128 * 1024;

/// Bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Slots, those of shared tiers included.
    pub max_endpoints: u16,
    /// Oldest go first.
    pub max_blocks_per_endpoint: u32,
    /// Of shared data, in all; endpoints share it evenly.
    pub max_index_bytes: u64,
    /// Of this VM's memory.
    pub max_cache_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_endpoints: 256,
            max_blocks_per_endpoint: 262_144,
            max_index_bytes: 256 * 1024 * 1024,
            max_cache_bytes: 128 * 1024 * 1024,
        }
    }
}

/// What an index is made for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// The scorer's name: it owns the index.
    pub scorer: String,
    /// Engine keys are not the request's own: they are bridged by tokens and parents (`fnv64a_cbor`).
    pub bridged: bool,
    /// Tokens a block.
    pub block_size: u32,
    /// Of all that request keys depend on (algorithm, seed, block size …). Blocks of another one do
    /// not count, and a writer with another one starts afresh.
    pub fingerprint: u64,
    /// Tiers, without `@…`, that are one for all endpoints of a group.
    pub shared_tiers: Vec<String>,
    /// An endpoint not heard of for longer has no evidence.
    pub max_silence_ms: u64,
    /// A random number, so that nobody can choose keys that collide in a table.
    pub seed: u64,
    pub limits: Limits,
}

impl Params {
    /// Of all that a stored block's meaning depends on.
    pub(super) fn whole_fingerprint(&self) -> u64 {
        let text = format!(
            "{:016x} {} {} {:?}",
            self.fingerprint, self.bridged, self.block_size, self.shared_tiers
        );
        fnv1a64(text.as_bytes())
    }

    /// Blocks that one of `slots` endpoints may have.
    pub(super) fn block_limit(&self, slots: usize) -> u32 {
        let share = self
            .limits
            .max_index_bytes
            .checked_div(slots.max(1) as u64)
            .unwrap_or(0)
            .saturating_sub(ENDPOINT_BYTES);
        let blocks = if self.bridged {
            share / BRIDGED_BLOCK_BYTES
        } else {
            share / BLOCK_BYTES
        };
        u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .clamp(1, self.limits.max_blocks_per_endpoint.max(1))
    }
}
