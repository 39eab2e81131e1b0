//! From the blocks of a request's prompts and where an endpoint holds them to the runs of evidence,
//! by DESIGN 5's rules for writers: what the engine will use, not what it holds.

use super::index::{Found, Held, Reasons, is_primary};
use crate::contract::evidence::Prompt as Written;
use crate::contract::evidence_writer::EndpointEvidence;
use crate::contract::runs::Runs;
use crate::sorted::sort_by;
use fnv::FnvHashSet;
use std::num::NonZeroU32;

/// Blocks beyond what can count are listed only up to this many runs: they must not take the room
/// of other endpoints.
const MAX_DETAIL: usize = 32;
/// And up to this many blocks, so that a long prompt that nobody has costs little.
const MAX_DETAIL_BLOCKS: usize = 1_024;

/// One prompt of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prompt<'a> {
    /// Request keys of its full blocks.
    pub keys: &'a [u64],
    /// How many of them, from the first on, an earlier prompt of the request has too ([`Earlier`]).
    pub shared: usize,
    /// Its length is an exact multiple of the block size: the last token is in the last full block.
    pub ends_with_block: bool,
}

/// The blocks of a request's prompts so far.
#[derive(Clone, Debug, Default)]
pub struct Earlier(FnvHashSet<u64>);

impl Earlier {
    /// How many blocks of the next prompt an earlier one has too. A key stands for all blocks up to
    /// it, so they are the first ones.
    pub fn next(&mut self, keys: &[u64]) -> usize {
        let shared = keys.iter().take_while(|key| self.0.contains(*key)).count();
        self.0.extend(keys.iter().skip(shared));
        shared
    }
}

/// What is known of an engine beside its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engine {
    /// GPU blocks an offload chunk; `None`: not known, and the evidence is partial.
    pub blocks_per_chunk: Option<NonZeroU32>,
    pub secondary: Secondary,
}

/// Tiers behind the CPU tier (fs, obj): what lay there before is loaded, and was never announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secondary {
    /// The engine has none. If its events name one all the same, the evidence is partial.
    None,
    /// The configuration vouches that it starts empty and is nobody else's.
    Vouched,
    /// The evidence is partial.
    Unvouched,
}

/// What one endpoint will use for one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub evidence: EndpointEvidence,
    /// Why it is partial.
    pub reasons: Reasons,
}

/// The evidence of one endpoint by what the index has of it; `reasons` are the index's and others.
pub fn outcome_of(
    prompts: &[Prompt<'_>],
    reads_cache: bool,
    engine: Engine,
    found: &Found<'_>,
) -> Outcome {
    let (tiers, reasons) = (found.tiers, found.reasons);
    let held = |key| found.residency.held(key);
    outcome(prompts, reads_cache, engine, tiers, reasons, held)
}

/// The evidence of one endpoint.
///
/// `reads_cache` is false for requests that read none (prompt logprobs, `echo` with `logprobs`).
/// `tiers` names the bits of [`Held::external`]; `reasons` is what the index knows against the
/// endpoint.
pub fn outcome(
    prompts: &[Prompt<'_>],
    reads_cache: bool,
    engine: Engine,
    tiers: &[String],
    mut reasons: Reasons,
    held: impl Fn(u64) -> Held,
) -> Outcome {
    let primary = tiers
        .iter()
        .zip(0u32..)
        .filter(|(name, _)| is_primary(name));
    let primary = primary.fold(0u16, |bits, (_, at)| bits | bit(at));
    let mut seen = 0;
    let mut written = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let blocks = if reads_cache {
            runs(prompt, engine, primary, &held)
        } else {
            let mut none = Blocks::default();
            none.add(prompt.keys.len() as u64, Use::default());
            none
        };
        let all = blocks.list.iter().map(|(_, u)| u.external);
        seen |= all.fold(0, |all, external| all | external);
        written.push(Written::Runs(blocks.named(tiers)));
    }
    if engine.blocks_per_chunk.is_none() {
        reasons |= Reasons::CHUNK_UNKNOWN;
    }
    let secondary = seen & !primary != 0;
    match engine.secondary {
        Secondary::Unvouched => reasons |= Reasons::SECONDARY_TIER,
        Secondary::None if secondary => reasons |= Reasons::SECONDARY_TIER,
        Secondary::None | Secondary::Vouched => {}
    }
    Outcome {
        evidence: EndpointEvidence {
            prompts: written,
            partial: !reasons.is_empty(),
        },
        reasons,
    }
}

fn bit(at: u32) -> u16 {
    1u16.checked_shl(at).unwrap_or(0)
}

/// How one block will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Use {
    gpu: bool,
    external: u16,
}

/// Runs of blocks used alike.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Blocks {
    list: Vec<(u64, Use)>,
}

impl Blocks {
    fn add(&mut self, blocks: u64, used: Use) {
        match self.list.last_mut() {
            _ if blocks == 0 => {}
            Some((n, last)) if *last == used => *n = n.saturating_add(blocks),
            _ => self.list.push((blocks, used)),
        }
    }

    fn named(&self, tiers: &[String]) -> Runs {
        let mut order: Vec<(&String, u16)> = tiers
            .iter()
            .zip(0u32..)
            .map(|(t, at)| (t, bit(at)))
            .collect();
        sort_by(&mut order, Ord::cmp);
        let run = |(blocks, used): &(u64, Use)| {
            let gpu = used.gpu.then(|| "gpu".to_owned());
            let external = order.iter().filter(|(_, bit)| used.external & bit != 0);
            let external = external.map(|(tier, _)| (*tier).clone());
            (*blocks, gpu.into_iter().chain(external).collect())
        };
        self.list.iter().map(run).collect()
    }
}

fn runs(prompt: &Prompt<'_>, engine: Engine, primary: u16, held: &impl Fn(u64) -> Held) -> Blocks {
    let chunk = engine.blocks_per_chunk.map_or(1, |f| f.get() as usize);
    // A store under way is a hit: what an earlier prompt is computing, it is offloading, too. One
    // block alone is less than a chunk of several.
    let being_stored = match chunk {
        1 => primary & primary.wrapping_neg(),
        _ => 0,
    };
    let last = prompt.keys.len().checked_sub(1);
    let mut chunk_held = Vec::with_capacity(chunk.min(prompt.keys.len()));
    let mut used = prompt.keys.iter().enumerate().map(|(at, key)| {
        // Each block is asked for once, in the order in which it is quick.
        let here = if chunk == 1 {
            held(*key)
        } else {
            let within = at.checked_rem(chunk).unwrap_or(0);
            if within == 0 {
                let keys = prompt.keys.iter().skip(at).take(chunk);
                chunk_held.clear();
                chunk_held.extend(keys.map(|key| held(*key)));
            }
            // The chunk's own last block tells for all of it; blocks behind the last whole chunk
            // are in no external tier.
            let whole = chunk_held.last().filter(|_| chunk_held.len() == chunk);
            Held {
                external: whole.map_or(0, |last| last.external),
                ..chunk_held.get(within).copied().unwrap_or_default()
            }
        };
        let ends = prompt.ends_with_block && last == Some(at);
        let earlier = at < prompt.shared;
        let being_stored = match ends && earlier && here.external == 0 {
            true => being_stored,
            false => 0,
        };
        Use {
            gpu: !ends && (here.gpu > 0 || earlier),
            external: here.external | being_stored,
        }
    });

    let mut blocks = Blocks::default();
    let mut prefix = 0u64;
    let mut next = used.next();
    while let Some(u) = next.filter(|u| u.gpu) {
        blocks.add(1, u);
        prefix = prefix.saturating_add(1);
        next = used.next();
    }
    if blocks.list.len() > MAX_DETAIL {
        // Copies of what is in the GPU do not count.
        blocks.list.clear();
        let gpu = Use {
            gpu: true,
            external: 0,
        };
        blocks.add(prefix, gpu);
    }
    let mut chain = Vec::new();
    while let Some(u) = next.filter(|u| u.external != 0) {
        chain.push(u);
        next = used.next();
    }
    // The engine loads whole chunks or nothing.
    let loads = chain.len() >= chunk;
    for mut u in chain {
        if !loads {
            u.external = 0;
        }
        blocks.add(1, u);
    }
    let mut rest = next.into_iter().chain(used).take(MAX_DETAIL_BLOCKS);
    while blocks.list.len() <= MAX_DETAIL
        && let Some(u) = rest.next()
    {
        blocks.add(1, u);
    }
    blocks
}

#[cfg(test)]
mod tests;
