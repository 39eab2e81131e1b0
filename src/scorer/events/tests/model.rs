//! Random histories of engines, a bridge and the VMs that read it, against the plainest truth: what
//! each engine holds, as a map. An endpoint that is said to be whole must be exactly what its engine
//! held at some moment since the last page that was read to its end.

use super::bridge::Rec;
use super::*;
use crate::scorer::index::tests::Said;
use crate::scorer::index::tests::model::Random;
use std::collections::BTreeMap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const BLOCKS: u64 = 12;
const TIERS: [&str; 2] = ["CPU", "STORAGE"];

/// Copies in the GPU, and the tiers by bit.
type Truth = BTreeMap<u64, (u16, u16)>;

/// One rank of an engine.
#[derive(Default)]
struct Engine {
    seq: u64,
    ts: f64,
    now: Truth,
    /// What it held from each moment on.
    history: Vec<(u64, Truth)>,
    /// All that this process published.
    published: Vec<Vec<u8>>,
    /// The bridge knows this process.
    met: bool,
}

impl Engine {
    fn event(&mut self, random: &mut Random) -> Said {
        let from = random.below(BLOCKS);
        let hashes: Vec<u64> = (from..BLOCKS.min(from + 1 + random.below(4))).collect();
        let tier = random.below(2) as usize;
        let bit = 1 << tier;
        let mut each = |change: &dyn Fn(&mut (u16, u16))| {
            for hash in &hashes {
                change(self.now.entry(*hash).or_default());
            }
        };
        match random.below(10) {
            0..=3 => {
                each(&|block| block.0 += 1);
                stored(&hashes, "GPU")
            }
            4..=5 => {
                each(&|block| block.1 |= bit);
                stored(&hashes, TIERS[tier])
            }
            6..=7 => {
                each(&|block| block.0 = block.0.saturating_sub(1));
                Said::Removed(hashes, "GPU")
            }
            8 => {
                each(&|block| block.1 &= !bit);
                Said::Removed(hashes, TIERS[tier])
            }
            _ => {
                self.now.values_mut().for_each(|block| block.0 = 0);
                Said::Cleared
            }
        }
    }

    fn publish(&mut self, random: &mut Random, clock: u64) -> Vec<u8> {
        let events: Vec<Said> = (0..1 + random.below(3))
            .map(|_| self.event(random))
            .collect();
        self.ts += 1.0;
        self.seq += 1;
        let bytes = payload(self.ts, &events);
        self.published.push(bytes.clone());
        self.history.push((clock, self.now.clone()));
        bytes
    }

    fn restart(&mut self, clock: u64) {
        let mut history = std::mem::take(&mut self.history);
        history.push((clock, Truth::new()));
        *self = Self {
            ts: self.ts + 10.0,
            history,
            ..Self::default()
        };
    }

    /// What it held at some moment from `since` on.
    fn could_be(&self, since: u64) -> impl Iterator<Item = &Truth> {
        let first = self.history.iter().rposition(|(at, _)| *at <= since);
        self.history[first.unwrap_or(0)..].iter().map(|(_, t)| t)
    }
}

struct World {
    random: Random,
    clock: u64,
    engines: Vec<Engine>,
    bridge: Bridge,
    epoch: u64,
    store: Counting,
    vms: Vec<Vm>,
    lead: usize,
    params: Params,
    config: Rc<EvidenceConfig>,
    fleet: Fleet,
    /// When the page was made that was last read to the end of the log and applied.
    read_until: Option<u64>,
    whole: u64,
    why: String,
}

const RANKS: [(&str, u32); 4] = [(A, 0), (B, 0), (B, 1), ("10.0.0.9:8000", 0)];

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut params = params(false);
        params.limits.max_cache_bytes = if random.one_in(3) { 20_000 } else { 1 << 20 };
        let config = config("");
        let mut world = Self {
            clock: 1,
            engines: RANKS.iter().map(|_| Engine::default()).collect(),
            bridge: Bridge::new(0),
            epoch: 0,
            store: Counting::default(),
            vms: (0..2).map(|_| Vm::new(params.clone(), &config)).collect(),
            lead: 0,
            params,
            config,
            fleet: fleet(&[(A, "m")]),
            read_until: None,
            whole: 0,
            why: String::new(),
            random,
        };
        for engine in &mut world.engines {
            engine.history.push((0, Truth::new()));
        }
        world.vms[0].client.start();
        world.new_bridge(false);
        world
    }

    /// A bridge that knows what the engines still have.
    fn new_bridge(&mut self, whole: bool) {
        self.epoch += 1;
        self.bridge = Bridge::new(self.epoch);
        self.bridge.page = 1 + self.random.below(6) as usize;
        let small = !whole && self.random.one_in(2);
        self.bridge.keep = if small {
            4 + self.random.below(12) as usize
        } else {
            100_000
        };
        for (engine, (endpoint, rank)) in self.engines.iter_mut().zip(RANKS) {
            let source = self.bridge.source(endpoint, rank);
            let known = engine.published.len() as u64;
            let lost = match self.random.below(3) {
                0 if !whole => self.random.below(known + 1),
                _ => 0,
            };
            engine.met = known > lost || whole;
            if engine.met {
                self.bridge.say(source, Rec::Start(lost == 0));
            }
            for seq in lost..known {
                let bytes = engine.published[seq as usize].clone();
                self.bridge.say(source, Rec::Batch(seq, bytes));
            }
            let late = !engine.met && known > 0;
            self.bridge.sources[source].state = if late { "replaying" } else { "live" };
        }
    }

    fn publish(&mut self) {
        let at = self.random.below(RANKS.len() as u64) as usize;
        self.clock += 1;
        let engine = &mut self.engines[at];
        let seq = engine.seq;
        let bytes = engine.publish(&mut self.random, self.clock);
        let lost = self.random.one_in(25);
        self.bridge.sources[at].state = "live";
        match (engine.met, lost) {
            (true, true) => self.bridge.say(at, Rec::Gap(seq + 1)),
            (true, false) => self.bridge.say(at, Rec::Batch(seq, bytes)),
            (false, true) => self.bridge.sources[at].state = "connecting",
            (false, false) => {
                engine.met = true;
                self.bridge.say(at, Rec::Start(seq == 0));
                self.bridge.say(at, Rec::Batch(seq, bytes));
            }
        }
    }

    fn restart_engine(&mut self) {
        let at = self.random.below(RANKS.len() as u64) as usize;
        self.clock += 1;
        self.engines[at].restart(self.clock);
        self.bridge.sources[at].state = "connecting";
        if self.random.one_in(2) {
            // Seen at once, before it publishes.
            self.engines[at].met = true;
            self.bridge.sources[at].state = "live";
            self.bridge.say(at, Rec::Start(true));
        }
    }

    /// One call of the lease holder, perhaps with something going wrong.
    fn pull(&mut self, trouble: bool) {
        let lead = self.lead;
        let Some(after) = self.vms[lead].ask(&self.store) else {
            self.vms[lead].client.tick();
            return;
        };
        let page = self.bridge.page(after.as_deref());
        let made = self.clock;
        if trouble && self.random.one_in(12) {
            // Something happens meanwhile.
            self.publish();
        }
        if trouble && self.random.one_in(15) {
            self.vms[lead].answer(&self.store, &self.fleet, Answer::None);
            return;
        }
        if trouble && self.random.one_in(4) {
            self.store.fail_in.set(Some(self.random.below(60)));
        }
        if trouble && self.random.one_in(20) {
            // The lease changes while the answer is on its way, and this VM does not know.
            self.lead = 1 - lead;
            let params = self.params.clone();
            self.vms[1 - lead] = Vm::leader(params, &self.config);
            let (other, store) = (1 - lead, &self.store);
            let taken = self.vms[other].index.take_over(store, NOW).is_ok();
            if taken && self.random.one_in(2) {
                self.pull(false);
            }
        }
        let body = &page.bytes;
        let ok = Answer::Http { status: 200, body };
        let events = self.vms[lead].answer(&self.store, &self.fleet, ok);
        self.store.fail_in.set(None);
        let applied = events
            .iter()
            .any(|e| matches!(e, Event::Pull(PullResult::Ok | PullResult::Reset)));
        if lead != self.lead {
            assert!(
                !applied || !self.vms[self.lead].index.is_writing(),
                "{}",
                self.why
            );
            self.vms[lead].client.stop(None);
            self.vms[lead].index.step_down();
            if applied {
                self.vms[self.lead].client.start();
            }
        }
        let again = events.contains(&Event::Problem(Problem::BegunAgain));
        if applied && !page.more && !again {
            self.read_until = self.read_until.max(Some(made));
        }
    }

    fn change_writer(&mut self) {
        let old = self.lead;
        self.lead = 1 - old;
        if self.random.one_in(2) {
            let vm = &mut self.vms[old];
            vm.client.stop(Some(&mut vm.index));
        }
        self.vms[self.lead].client.start();
    }

    fn reload(&mut self) {
        let at = self.random.below(2) as usize;
        let params = self.params.clone();
        self.vms[at] = match at == self.lead {
            true => Vm::leader(params, &self.config),
            false => Vm::new(params, &self.config),
        };
    }

    /// Whatever is said to be whole is.
    fn check(&mut self) {
        let keys: Vec<u64> = (0..BLOCKS).collect();
        let since = self.read_until.unwrap_or(0);
        for vm in &mut self.vms {
            for (at, (endpoint, rank)) in RANKS.into_iter().enumerate() {
                let several = endpoint == B;
                if rank > 0 {
                    continue;
                }
                let Ok((reasons, now)) = look(&mut vm.index, &self.store, endpoint, &keys) else {
                    continue;
                };
                assert_eq!(reasons.contains(Reasons::RANKS), several, "{}", self.why);
                if reasons.without(Reasons::RANKS) != NONE {
                    continue;
                }
                self.whole += 1;
                let bit = |tier| vm.index.tiers().iter().position(|t| t == tier);
                let bits = ["cpu", "storage"].map(|tier| bit(tier).map_or(0, |at| 1u16 << at));
                let external = |tiers: u16| {
                    let bits = bits.iter().enumerate();
                    bits.filter(|(i, _)| tiers & (1 << i) != 0)
                        .fold(0, |all, (_, bit)| all | bit)
                };
                let of = |truth: &Truth, key| truth.get(key).copied().unwrap_or_default();
                let same = |one: &Truth, other: Option<&Truth>| {
                    keys.iter().zip(&now).all(|(key, now)| {
                        let mut expected = of(one, key);
                        if let Some(other) = other {
                            let other = of(other, key);
                            expected = (expected.0.min(other.0), expected.1 & other.1);
                        }
                        *now == held(expected.0, external(expected.1))
                    })
                };
                let found = match several {
                    false => self.engines[at].could_be(since).any(|one| same(one, None)),
                    true => self.engines[at].could_be(since).any(|one| {
                        let mut others = self.engines[at + 1].could_be(since);
                        others.any(|other| same(one, Some(other)))
                    }),
                };
                let last = self.engines[at].history.last();
                assert!(
                    found,
                    "{}: {endpoint} has {now:?}, truth {last:?}",
                    self.why
                );
            }
        }
    }

    /// With all trouble over everything becomes whole again.
    fn heal(&mut self) {
        self.new_bridge(true);
        for _ in 0..RANKS.len() * 4 {
            self.publish_without_loss();
        }
        let made = self.clock;
        self.read_until = None;
        let mut pulls = 0;
        while self.read_until != Some(made) {
            self.pull(false);
            pulls += 1;
            assert!(pulls < 5_000, "{}: it never ends", self.why);
        }
        let before = self.whole;
        self.check();
        assert_eq!(self.whole, before + 6, "{}: not whole in the end", self.why);
    }

    fn publish_without_loss(&mut self) {
        let at = self.random.below(RANKS.len() as u64) as usize;
        self.clock += 1;
        let engine = &mut self.engines[at];
        let seq = engine.seq;
        let bytes = engine.publish(&mut self.random, self.clock);
        self.bridge.say(at, Rec::Batch(seq, bytes));
    }
}

fn history(seed: u64) -> u64 {
    let mut world = World::new(seed);
    for step in 0..150 {
        world.why = format!("seed {seed} step {step}");
        match world.random.below(60) {
            0..=17 => world.publish(),
            18..=19 => world.restart_engine(),
            20 => world.new_bridge(false),
            21 => world.change_writer(),
            22 => world.reload(),
            23 => {
                let cursor = "selective-kv/1/index/0/cursor";
                let bad: &[u8] = if world.random.one_in(2) { b"" } else { b"\xff" };
                world.store.set(cursor, bad, 0).unwrap();
            }
            24 => {
                let (at, other) = (world.random.below(4) as usize, world.bridge.page);
                world.bridge.page = 7 - other.min(6);
                world.bridge.evict(at, 1 + world.random.below(6) as usize);
            }
            _ => world.pull(true),
        }
        world.check();
    }
    world.why = format!("seed {seed} in the end");
    world.heal();
    world.whole
}

const SEEDS: u64 = if cfg!(target_arch = "wasm32") { 4 } else { 100 };

#[test]
fn what_is_said_to_be_whole_is_exact() {
    let whole: u64 = (0..SEEDS).map(history).sum();
    // It has something to say.
    assert!(whole > 150 * SEEDS, "{whole}");
}
