//! Random histories against the plainest model there is: a list of blocks.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// xorshift64*: the same histories natively and in wasm32.
pub(in crate::scorer) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

const TIERS: [&str; 2] = ["CPU", "STORAGE"];

#[derive(Clone, Debug, Default)]
struct Block {
    engine: u64,
    gpu: u16,
    tiers: [bool; 2],
}

/// One endpoint as it is, and as far as it was published.
#[derive(Clone, Debug, Default)]
struct Engine {
    run: u64,
    seq: u64,
    /// Oldest first.
    blocks: Vec<Block>,
    /// Engine keys whose tokens were told in this run.
    known: std::collections::BTreeSet<u64>,
    reasons: Reasons,
    evicted: bool,
}

impl Engine {
    fn block(&mut self, engine: u64, limit: usize, bridged: bool) -> &mut Block {
        if let Some(at) = self.blocks.iter().position(|b| b.engine == engine) {
            return &mut self.blocks[at];
        }
        // Bridged ones are compared without a limit.
        if !bridged && self.blocks.len() >= limit {
            self.blocks.remove(0);
            self.evicted = true;
        }
        let block = Block {
            engine,
            ..Block::default()
        };
        self.blocks.push(block);
        self.blocks.last_mut().unwrap()
    }

    fn tidy(&mut self) {
        self.blocks.retain(|b| b.gpu > 0 || b.tiers != [false; 2]);
    }

    /// Blocks of prompt `p` are numbered from 100·p on, so that a chain is a range.
    fn random_event(&mut self, random: &mut Random, limit: usize, bridged: bool) -> Said {
        let prompt = 100 * random.below(6);
        let from = random.below(8);
        let hashes: Vec<u64> = (prompt + from..prompt + from + 1 + random.below(12)).collect();
        match random.below(12) {
            0..=4 => {
                let parent = (from > 0).then(|| prompt + from - 1);
                let told_before = |known: &std::collections::BTreeSet<u64>, h| known.contains(h);
                let parent_known = parent.is_none_or(|p| self.known.contains(&p));
                for hash in &hashes {
                    if bridged && !parent_known && !told_before(&self.known, hash) {
                        self.reasons |= Reasons::UNRESOLVED;
                        continue;
                    }
                    self.known.insert(*hash);
                    self.block(*hash, limit, bridged).gpu += 1;
                }
                told(parent, &hashes, "GPU")
            }
            5..=7 => {
                let tier = random.below(2) as usize;
                for hash in &hashes {
                    if bridged && !self.known.contains(hash) {
                        self.reasons |= Reasons::UNRESOLVED;
                        continue;
                    }
                    self.block(*hash, limit, bridged).tiers[tier] = true;
                }
                stored(&hashes, TIERS[tier])
            }
            8..=9 => {
                for block in &mut self.blocks {
                    if hashes.contains(&block.engine) {
                        block.gpu = block.gpu.saturating_sub(1);
                    }
                }
                self.tidy();
                Said::Removed(hashes, "GPU")
            }
            10 => {
                let tier = random.below(2) as usize;
                for block in &mut self.blocks {
                    block.tiers[tier] &= !hashes.contains(&block.engine);
                }
                self.tidy();
                Said::Removed(hashes, TIERS[tier])
            }
            _ => {
                if !random.one_in(4) {
                    return Said::Removed(vec![], "GPU");
                }
                self.blocks.iter_mut().for_each(|b| b.gpu = 0);
                self.tidy();
                Said::Cleared
            }
        }
    }
}

fn all_blocks() -> Vec<u64> {
    (0..6).flat_map(|p| 100 * p..100 * p + 20).collect()
}

/// Request keys of all blocks, in their order.
fn request_keys(bridged: bool) -> Vec<u64> {
    match bridged {
        false => all_blocks(),
        true => all_blocks().chunks(20).flat_map(chain).collect(),
    }
}

fn compare(index: &mut Index, store: &Counting, name: &str, engine: &Engine, why: &str) {
    let bridged = index.params.bridged;
    let (reasons, now) = look(index, store, name, &request_keys(bridged)).unwrap();
    let bit = |tier: &str| {
        let at = index.tiers().iter().position(|t| t == tier);
        at.map_or(0, |at| 1u16 << at)
    };
    let bits = [bit("cpu"), bit("storage")];
    for (block, now) in all_blocks().into_iter().zip(now) {
        let model = engine.blocks.iter().find(|b| b.engine == block);
        let model = model.cloned().unwrap_or_default();
        let external = bits.iter().zip(model.tiers).filter(|(_, t)| *t);
        let external = external.fold(0, |all, (bit, _)| all | bit);
        assert_eq!(
            now,
            held(model.gpu, external),
            "{why}: {name} block {block}"
        );
    }
    let mut expected = engine.reasons;
    if engine.evicted {
        expected |= Reasons::EVICTED;
    }
    assert_eq!(reasons, expected, "{why}: {name}");
}

fn history(seed: u64, bridged: bool, limit: u32) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let store = Counting::default();
    let mut base = params(bridged);
    base.limits.max_blocks_per_endpoint = limit;
    // Small enough that replicas are pushed out now and then.
    base.limits.max_cache_bytes = if random.one_in(2) { 12_000 } else { 1 << 20 };
    let make = || {
        let mut index = Index::new(base.clone());
        index.min_log = 200;
        index
    };
    let mut indices: Vec<Index> = (0..3).map(|_| make()).collect();
    let mut lead = 0;
    indices[0].take_over(&store, NOW).unwrap();
    let names = [A, B];
    let mut engines = [Engine::default(), Engine::default()];
    for engine in &mut engines {
        engine.run = 1;
    }
    let mut last: [Vec<(u64, Vec<u8>)>; 2] = Default::default();
    for step in 0..120 {
        let why = format!("seed {seed} step {step}");
        let at = random.below(2) as usize;
        let engine = &mut engines[at];
        match random.below(20) {
            0 => {
                *engine = Engine {
                    run: engine.run + 1,
                    ..Engine::default()
                };
                last[at].clear();
            }
            1 if engine.seq > 0 => {
                engine.seq += 1;
                engine.reasons |= Reasons::GAP;
            }
            2 => {
                // Another VM writes. The old one does not know yet.
                let old = lead;
                lead = (lead + 1) % 3;
                indices[lead].take_over(&store, NOW).unwrap();
                for (name, engine) in names.iter().zip(&engines) {
                    let beat = (*name, engine.run);
                    if engine.seq > 0 {
                        deliver(&mut indices[lead], &store, beat, &[]).unwrap();
                        let bytes = payload(9e9, &[stored(&[1, 2, 3], "GPU")]);
                        let items = [Item::Payload {
                            seq: engine.seq,
                            bytes: &bytes,
                        }];
                        let late = deliver(&mut indices[old], &store, beat, &items);
                        assert_eq!(late, Err(IndexError::Superseded), "{why}");
                    }
                }
                indices[old].step_down();
            }
            3 => {
                // A reload: this VM is another one.
                let i = random.below(3) as usize;
                indices[i] = make();
                if i == lead {
                    indices[i].take_over(&store, NOW).unwrap();
                }
            }
            _ => {}
        }
        let engine = &mut engines[at];
        let events: Vec<Said> = (0..1 + random.below(3))
            .map(|_| engine.random_event(&mut random, limit as usize, bridged))
            .collect();
        let ts = 1000.0 * engine.run as f64 + engine.seq as f64;
        let bytes = payload(ts, &events);
        last[at].push((engine.seq, bytes));
        engine.seq += 1;
        let run = engine.run;
        // Now and then what came before comes again, in front.
        let repeat = if random.one_in(5) { 3 } else { 1 };
        let from = last[at].len().saturating_sub(repeat);
        let items: Vec<Item<'_>> = last[at][from..]
            .iter()
            .map(|(seq, bytes)| Item::Payload { seq: *seq, bytes })
            .collect();
        if random.one_in(6) {
            store.fail_in.set(Some(random.below(12)));
        }
        let mut done = deliver(&mut indices[lead], &store, (names[at], run), &items);
        if done.is_err() {
            assert_eq!(done, Err(IndexError::Host(10)), "{why}");
            done = deliver(&mut indices[lead], &store, (names[at], run), &items);
        }
        store.fail_in.set(None);
        assert!(done.is_ok(), "{why}: {done:?}");
        for (i, index) in indices.iter_mut().enumerate() {
            if i == lead || random.one_in(3) {
                compare(
                    index,
                    &store,
                    names[at],
                    &engines[at],
                    &format!("{why} VM {i}"),
                );
            }
        }
    }
    // Everybody agrees in the end.
    for (name, engine) in names.iter().zip(&engines) {
        for index in &mut indices {
            if engine.seq > 0 {
                compare(index, &store, name, engine, &format!("seed {seed} end"));
            }
        }
    }
}

const SEEDS: u64 = if cfg!(target_arch = "wasm32") { 8 } else { 50 };

#[test]
fn random_histories_of_direct_keys() {
    for seed in 0..SEEDS {
        history(seed, false, 1000);
    }
}

#[test]
fn random_histories_in_which_the_oldest_give_way() {
    for seed in 0..SEEDS {
        history(seed, false, 25);
    }
}

#[test]
fn random_histories_of_bridged_keys() {
    for seed in 0..SEEDS {
        history(seed, true, 1000);
    }
}
