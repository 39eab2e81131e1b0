//! Random engines and requests against a naive model: what each block's engine holds, as a set, and
//! DESIGN 5's rules applied to it block by block.

use super::engine::{Engine, Said, Stored, offloaded, stored};
use super::{A, B, World, config, facts};
use crate::scorer::index::Item;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Salt and adapter.
type Context = (Option<&'static str>, Option<&'static str>);
/// A block: its context, and the contents of all blocks up to it.
type Id = (Context, Vec<u8>);

const CONTEXTS: [Context; 5] = [
    (None, None),
    (Some("a"), None),
    (Some("b"), None),
    (Some("a"), Some("lora")),
    (None, Some("lora")),
];

#[derive(Clone, Debug)]
enum Op {
    /// A prompt is computed: what is not in the GPU as a prefix is stored there.
    Compute(Id),
    EvictGpu(usize),
    /// To the CPU tier; with tokens in the event, or with hashes alone.
    Offload(Id, bool),
    EvictCpu(usize),
    Store(Id),
    Clear,
    Restart,
    /// Another VM takes the lease.
    NewHolder,
    Tick,
}

/// What one engine holds.
#[derive(Debug)]
struct Model {
    engine: Engine,
    run: u64,
    gpu: BTreeMap<Id, u32>,
    cpu: BTreeSet<Id>,
    storage: BTreeSet<Id>,
}

fn tokens(path: &[u8]) -> Vec<u32> {
    path.iter().flat_map(|b| [u32::from(*b), 7, 7, 7]).collect()
}

/// What the engine calls the block. It does not matter what that is.
fn hash(id: &Id) -> u64 {
    crate::contract::keys::fnv1a64(format!("{id:?}").as_bytes())
}

fn prefixes(id: &Id) -> Vec<Id> {
    (1..=id.1.len())
        .map(|n| (id.0, id.1[..n].to_vec()))
        .collect()
}

/// The blocks from number `first` on, which one event tells.
fn event(blocks: &[Id], first: usize) -> Stored {
    let told = &blocks[first..];
    let hashes: Vec<u64> = told.iter().map(hash).collect();
    let mut path = blocks.last().unwrap().1.clone();
    let path = path.split_off(first);
    let mut event = stored(&hashes, &tokens(&path));
    event.parent = first.checked_sub(1).map(|before| hash(&blocks[before]));
    let (salt, adapter) = blocks[0].0;
    if let Some(salt) = salt.filter(|_| first == 0) {
        event = event.salted(salt);
    }
    match adapter {
        Some(adapter) => event.of(adapter),
        None => event,
    }
}

impl Model {
    fn new(endpoint: &str) -> Self {
        Self {
            engine: Engine::new(endpoint),
            run: 1,
            gpu: BTreeMap::new(),
            cpu: BTreeSet::new(),
            storage: BTreeSet::new(),
        }
    }

    fn copies(&self, id: &Id) -> u32 {
        self.gpu.get(id).copied().unwrap_or(0)
    }

    fn apply(&mut self, op: &Op) -> Vec<Said> {
        match op {
            Op::Compute(id) => {
                let blocks = prefixes(id);
                let hits = blocks.iter().take_while(|b| self.copies(b) > 0).count();
                if hits == blocks.len() {
                    return Vec::new();
                }
                for block in &blocks[hits..] {
                    *self.gpu.entry(block.clone()).or_default() += 1;
                }
                vec![Said::Stored(event(&blocks, hits))]
            }
            Op::EvictGpu(n) => {
                let held: Vec<Id> = self
                    .gpu
                    .iter()
                    .filter(|e| *e.1 > 0)
                    .map(|e| e.0.clone())
                    .collect();
                let Some(id) = held.get(n % held.len().max(1)) else {
                    return Vec::new();
                };
                *self.gpu.get_mut(id).unwrap() -= 1;
                vec![Said::Removed(vec![hash(id)], "GPU")]
            }
            Op::Offload(id, described) => {
                let mut said = Vec::new();
                for (at, block) in prefixes(id).into_iter().enumerate() {
                    if self.copies(&block) == 0 || !self.cpu.insert(block.clone()) {
                        continue;
                    }
                    said.push(match described {
                        false => offloaded(&[hash(&block)], "CPU"),
                        // Extra keys are left out.
                        true => Said::Stored(Stored {
                            medium: "CPU",
                            extra_keys: None,
                            ..event(&prefixes(&block), at)
                        }),
                    });
                }
                said
            }
            Op::EvictCpu(n) => {
                let Some(id) = self.cpu.iter().nth(n % self.cpu.len().max(1)).cloned() else {
                    return Vec::new();
                };
                self.cpu.remove(&id);
                vec![Said::Removed(vec![hash(&id)], "CPU")]
            }
            Op::Store(id) => {
                let blocks = prefixes(id).into_iter().filter(|b| self.cpu.contains(b));
                let new: Vec<Id> = blocks.filter(|b| !self.storage.contains(b)).collect();
                let hashes: Vec<u64> = new.iter().map(hash).collect();
                self.storage.extend(new);
                match hashes.is_empty() {
                    true => Vec::new(),
                    false => vec![offloaded(&hashes, "STORAGE")],
                }
            }
            Op::Clear => {
                self.gpu.clear();
                vec![Said::Cleared]
            }
            Op::Restart => {
                let (endpoint, run) = (self.engine.endpoint.clone(), self.run + 1);
                *self = Self::new(&endpoint);
                self.run = run;
                Vec::new()
            }
            Op::NewHolder | Op::Tick => Vec::new(),
        }
    }

    /// By the rules, block by block.
    fn expected(&self, prompts: &[(Id, bool)], cpu_seen: bool) -> String {
        let mut earlier = BTreeSet::new();
        let mut shown = Vec::new();
        for (id, whole) in prompts {
            let blocks = prefixes(id);
            let mut runs: Vec<(u32, String)> = Vec::new();
            for (at, block) in blocks.iter().enumerate() {
                let last = *whole && at + 1 == blocks.len();
                let again = earlier.contains(block);
                let mut tiers = Vec::new();
                if !last && (self.copies(block) > 0 || again) {
                    tiers.push("gpu");
                }
                if self.cpu.contains(block) {
                    tiers.push("cpu");
                }
                if self.storage.contains(block) {
                    tiers.push("storage");
                }
                if last && again && tiers.is_empty() && cpu_seen {
                    tiers.push("cpu");
                }
                let tiers = tiers.join(" ");
                match runs.last_mut() {
                    Some((n, before)) if *before == tiers => *n += 1,
                    _ => runs.push((1, tiers)),
                }
            }
            earlier.extend(blocks);
            let runs: Vec<String> = runs.iter().map(|(n, t)| format!("{n}[{t}]")).collect();
            shown.push(runs.join(" "));
        }
        shown.join(" | ")
    }
}

fn id() -> impl Strategy<Value = Id> {
    let path = prop::collection::vec(0u8..2, 1..5);
    (0..CONTEXTS.len(), path).prop_map(|(context, path)| (CONTEXTS[context], path))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => id().prop_map(Op::Compute),
        4 => any::<usize>().prop_map(Op::EvictGpu),
        4 => (id(), any::<bool>()).prop_map(|(id, described)| Op::Offload(id, described)),
        2 => any::<usize>().prop_map(Op::EvictCpu),
        2 => id().prop_map(Op::Store),
        1 => Just(Op::Clear),
        1 => Just(Op::Restart),
        1 => Just(Op::NewHolder),
        2 => Just(Op::Tick),
    ]
}

/// Prompts of one context, each with tokens behind its last full block or not.
fn request() -> impl Strategy<Value = (Vec<(Id, bool)>, usize)> {
    let prompts = prop::collection::vec((id(), any::<bool>()), 1..4);
    (prompts, 0..CONTEXTS.len()).prop_map(|(mut prompts, context)| {
        for ((of, _), _) in &mut prompts {
            *of = CONTEXTS[context];
        }
        (prompts, context)
    })
}

fn body(prompts: &[(Id, bool)], (salt, adapter): Context) -> String {
    let lists: Vec<String> = prompts
        .iter()
        .map(|((_, path), whole)| {
            let mut ids = tokens(path);
            ids.extend((!whole).then_some(1));
            format!("{ids:?}")
        })
        .collect();
    let salt = salt.map_or(String::new(), |salt| format!(",\"cache_salt\":\"{salt}\""));
    let model = adapter.unwrap_or("base");
    format!(
        "{{\"prompt\":[{}]{salt},\"model\":\"{model}\"}}",
        lists.join(",")
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn evidence_is_what_the_engines_hold(
        steps in prop::collection::vec((any::<bool>(), op(), request()), 1..40),
    ) {
        let members = [(A, facts("base", &["lora"])), (B, facts("base", &["lora"]))];
        let mut world = World::new(config(), &members);
        let mut engines = [Model::new(A), Model::new(B)];
        for engine in &engines {
            world.deliver(&engine.engine.endpoint, &[Item::FromStart]);
        }
        let mut cpu_seen = false;
        for (second, op, (prompts, context)) in steps {
            let model = &mut engines[usize::from(second)];
            let said = model.apply(&op);
            cpu_seen |= said.iter().any(|said| matches!(said, Said::Stored(s) if s.medium == "CPU"));
            match op {
                Op::NewHolder => world.new_holder(),
                Op::Tick => world.tick(),
                Op::Restart => {
                    let (endpoint, run) = (model.engine.endpoint.clone(), model.run);
                    world.deliver_run(&endpoint, run, &[Item::FromStart]);
                }
                _ if said.is_empty() => {}
                _ => {
                    let run = model.run;
                    let done = world.told_run(&mut model.engine, run, &said);
                    prop_assert_eq!((done.unresolved, done.unreadable), (0, 0));
                }
            }
            world.request("id", &body(&prompts, CONTEXTS[context]));
            for model in &engines {
                let found = world.found("id", &model.engine.endpoint);
                prop_assert_eq!(found, model.expected(&prompts, cpu_seen));
            }
        }
    }
}
