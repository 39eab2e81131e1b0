//! The scorer's own parts, run here and not in Envoy, against stand-in engines and the real bridge: for
//! thousands of random requests, what they write for an engine is what that engine holds, block for block.

#![allow(clippy::disallowed_methods)]

use std::rc::Rc;
use std::time::Duration;

use envoy_tests::{Bridge, Request, until};
use selective_kv::body::HeldBudget;
use selective_kv::contract::evidence::{Lookup, Prompt, find};
use selective_kv::contract::keys::evidence_key;
use selective_kv::contract::runs::Runs;
use selective_kv::contract::store::{MemoryStore, Store};
use selective_kv::prompt::{Endpoint, Limits, Progress, Scanner};
use selective_kv::scorer::config::ScorerConfig;
use selective_kv::scorer::events::{Client, Event, PullResult};
use selective_kv::scorer::evidence::{Evidence, request_keys};
use selective_kv::scorer::facts::{EngineFacts, Fleet};
use selective_kv::scorer::poller::Answer;
use serde_json::{Value, json};
use stand_in_engine::cache::Geometry;
use stand_in_engine::hashing::Algorithm;
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, EventOptions, Options};

const COMPLETIONS: &str = "/v1/completions";
const NOW_MS: u64 = 1_800_000_000_000;
const BLOCK: usize = 16;
/// Until the bridge has found a restarted engine again.
const TRIES: usize = 500;
const LOOK: Duration = Duration::from_millis(20);

/// One way to run engines, and the scorer's configuration that fits.
#[derive(Clone, Copy, Debug)]
struct Setup {
    version: &'static str,
    algorithm: Algorithm,
    /// Of the scorer: the engines' own keys, or bridged ones.
    own_keys: bool,
    blocks_per_chunk: usize,
    disk: bool,
}

struct World {
    engines: Vec<Engine>,
    bridge: Bridge,
    store: MemoryStore,
    /// Of the VM that reads the bridge.
    evidence: Evidence,
    /// Of another one, which only looks up.
    other: Evidence,
    client: Client,
    config: Rc<ScorerConfig>,
    calls: u32,
    requests: u32,
}

impl World {
    fn new(setup: Setup) -> Self {
        let engine = || {
            let disk = setup.disk.then(|| TierKind::parse("fs+events").unwrap());
            Engine::start(Options {
                version: setup.version.into(),
                hash_algorithm: setup.algorithm,
                events: Some(EventOptions::default()),
                adapters: vec![("sql".into(), "/adapters/sql".into())],
                tiers: disk.into_iter().collect(),
                geometry: Geometry {
                    block_size: BLOCK,
                    blocks_per_chunk: setup.blocks_per_chunk,
                    bytes_per_token: 1,
                    gpu_blocks: Some(60),
                    cpu_chunks: Some(240 / setup.blocks_per_chunk),
                },
                ..Options::default()
            })
            .unwrap()
        };
        let engines = vec![engine(), engine()];
        let followed: Vec<_> = engines
            .iter()
            .map(|engine| {
                let ports = engine.event_ports().unwrap();
                format!(
                    "- {{endpoint: '{}', connect: 'tcp://127.0.0.1:{}', replay: 'tcp://127.0.0.1:{}'}}\n",
                    engine.address(),
                    ports.publisher,
                    ports.replay.unwrap()
                )
            })
            .collect();
        let bridge = Bridge::start(&followed.concat());
        let mut evidence = json!({
            "events": {"cluster": "kv-events"},
            "blocksPerChunk": setup.blocks_per_chunk,
            "secondaryTiers": if setup.disk { "vouched" } else { "none" },
        });
        if setup.own_keys {
            evidence["algorithm"] = json!("sha256_cbor");
            evidence["pythonHashSeed"] = json!("0");
            evidence["adapters"] = json!([{"name": "sql", "path": "/adapters/sql"}]);
        }
        let text = json!({
            "name": "pool",
            "endpoints": engines.iter().map(|engine| engine.address().to_string()).collect::<Vec<_>>(),
            "scrape": {"cluster": "kv-scrape"},
            "evidence": evidence,
        });
        let config = Rc::new(ScorerConfig::parse(text.to_string().as_bytes()).unwrap());
        let store = MemoryStore::new();
        let facts = Rc::new(EngineFacts {
            model: Some("tiny".into()),
            aliases: vec!["tiny".into()],
            adapters: vec!["sql".into()],
            block_size: Some(BLOCK as u32),
            hash_algorithm: Some(setup.algorithm.name().into()),
            version: Some(setup.version.into()),
            ..EngineFacts::default()
        });
        let members = engines.iter();
        let members = members.map(|engine| (engine.address().to_string(), Rc::clone(&facts)));
        let fleet = Fleet {
            block_size: Some((BLOCK as u32).try_into().unwrap()),
            endpoints: members.collect(),
        };
        fleet.write(&store, &config.name, NOW_MS).unwrap();
        let mut client = Client::new(config.evidence.clone().unwrap(), 1_000);
        client.start();
        let mut world = Self {
            evidence: Evidence::new(Rc::clone(&config), 1).unwrap(),
            other: Evidence::new(Rc::clone(&config), 2).unwrap(),
            client,
            engines,
            bridge,
            store,
            config,
            calls: 0,
            requests: 0,
        };
        world.evidence.tick(&world.store, NOW_MS).unwrap();
        world.other.tick(&world.store, NOW_MS).unwrap();
        world
    }

    /// Waits until the bridge has everything, and reads it all.
    fn catch_up(&mut self) {
        for number in 0..self.engines.len() {
            let mut tries = 0;
            until("the bridge to hear everything", || {
                tries += 1;
                // What an engine published while the bridge was joining it again comes with its next batch.
                if tries % 50 == 0 {
                    self.engines[number].clear_cache(Some("gpu"));
                }
                self.is_heard(number).then_some(())
            });
        }
        while self.pull() > 0 {}
    }

    fn is_heard(&self, number: usize) -> bool {
        let engine = &self.engines[number];
        let heard = |via: &str| {
            self.bridge.metric(&format!(
                "kv_events_bridge_batches_total{{endpoint=\"{}\",rank=\"0\",via=\"{via}\"}}",
                engine.address()
            ))
        };
        heard("live") + heard("replay") >= engine.published().batches as f64
    }

    /// One page; how many payloads were in it.
    fn pull(&mut self) -> u32 {
        let keys = request_keys(
            self.config.evidence.as_ref().unwrap(),
            self.evidence.block_size().unwrap(),
        );
        let (index, fleet) = self.evidence.index().unwrap();
        let pull = loop {
            self.client.tick();
            if let Some(pull) = self.client.due(index, &self.store, NOW_MS) {
                break pull;
            }
        };
        self.calls += 1;
        self.client.sent(self.calls);
        // Never waits for what is not there.
        let (path, _) = pull.path.split_once("timeout_ms=").unwrap();
        let page = Request::get(&format!("{path}timeout_ms=0")).to(self.bridge.address());
        let answer = Answer::Http {
            status: page.status,
            body: &page.body,
        };
        let fleet = &fleet.clone();
        self.client
            .answered(self.calls, answer, index, &self.store, fleet, &keys, NOW_MS);
        let mut payloads = 0;
        for event in self.client.take_events() {
            match event {
                Event::Pull(PullResult::Ok) => {}
                Event::Ingested(done) => {
                    payloads += done.payloads;
                    assert_eq!((done.unreadable, done.mismatches), (0, 0), "{done:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        payloads
    }

    /// What the scorer writes of one engine for a request. It vouches for it, since nothing was missed.
    fn written(&mut self, engine: usize, body: &str) -> Option<Vec<Runs>> {
        for _ in 0..TRIES {
            let (reasons, written) = self.publish(engine, body);
            if reasons.iter().all(|reason| *reason != "behind") {
                assert!(reasons.is_empty(), "{reasons:?}");
                return written;
            }
            // The bridge has just found the engine again, and says so with a later page.
            std::thread::sleep(LOOK);
            self.pull();
        }
        panic!("the bridge never catches up with engine {engine}");
    }

    /// Why one of the engines' evidence is partial, and what is written of this one.
    fn publish(&mut self, engine: usize, body: &str) -> (Vec<&'static str>, Option<Vec<Runs>>) {
        self.requests += 1;
        let id = format!("request-{}", self.requests);
        let limits = Limits {
            max_prompt_tokens: 100_000,
            budget: Rc::new(HeldBudget::new(1 << 24)),
        };
        let mut scanner = Scanner::new(Endpoint::Completions, limits);
        assert_eq!(scanner.feed(body.as_bytes()), Progress::Complete);
        let request = scanner.finish().unwrap();
        let published = self.evidence.publish(&self.store, &id, &request, NOW_MS);
        let reasons = published
            .partial
            .iter()
            .map(|(reason, _)| *reason)
            .collect();
        let record = self.store.get(&evidence_key(&id)).unwrap();
        let endpoint = self.engines[engine].address().to_string();
        let found = record.map(|record| find(&record.value, &id, &endpoint));
        let Some(Lookup::Found(found)) = found else {
            return (reasons, None);
        };
        let prompts = found.prompts.into_iter().map(|prompt| match prompt {
            Prompt::Runs(runs) => runs,
            Prompt::Tiers(_) => panic!("counts"),
        });
        (reasons, Some(prompts.collect()))
    }

    /// The engine's own word for it.
    fn held(&self, engine: usize, body: &str) -> Vec<Runs> {
        let evidence = self.engines[engine].evidence(COMPLETIONS, body.as_bytes());
        let prompts = evidence.unwrap()["prompts"].as_array().unwrap().clone();
        let runs = |prompt: &Value| {
            let runs = prompt["runs"].as_array().unwrap().iter();
            runs.map(|run| serde_json::from_value::<(u64, Vec<String>)>(run.clone()).unwrap())
                .collect()
        };
        prompts.iter().map(runs).collect()
    }
}

/// Blocks of the GPU prefix, and the tiers of each block that could be loaded behind it.
fn essence(runs: &Runs) -> (usize, Vec<String>) {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    for (run, tiers) in runs.iter() {
        // The engine calls its tier by its type, its events by the medium.
        let tiers = tiers.iter().map(|tier| tier.replace("fs", "storage"));
        let mut tiers: Vec<_> = tiers.collect();
        tiers.sort();
        blocks.extend(vec![tiers; run as usize]);
    }
    let gpu = |tiers: &&Vec<String>| tiers.iter().any(|tier| tier == "gpu");
    let prefix = blocks.iter().take_while(gpu).count();
    let behind = blocks[prefix..].iter().map(|tiers| {
        let tiers = tiers.iter().filter(|tier| *tier != "gpu").cloned();
        tiers.collect::<Vec<_>>().join("+")
    });
    (
        prefix,
        behind.take_while(|tiers| !tiers.is_empty()).collect(),
    )
}

/// A small linear generator: the same requests each time.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    }
}

fn request(random: &mut dyn FnMut(usize) -> usize) -> String {
    let prompt = |random: &mut dyn FnMut(usize) -> usize| -> Vec<usize> {
        let family = random(4) * 10_000;
        let length = match random(3) {
            0 => BLOCK * (1 + random(20)),
            _ => 1 + random(320),
        };
        let (fork, branch) = (random(length), random(3) * 1_000);
        let token = |n| family + n + if n >= fork { branch } else { 0 };
        (0..length).map(token).collect()
    };
    let mut body = match random(8) {
        0 => json!({"prompt": [prompt(random), prompt(random), prompt(random)]}),
        _ => json!({"prompt": prompt(random)}),
    };
    match random(10) {
        0 => body["cache_salt"] = json!("a"),
        1 => body["model"] = json!("sql"),
        2 => {
            body["model"] = json!("sql");
            body["cache_salt"] = json!("b");
        }
        3 => body["model"] = json!("tiny"),
        4 => body["prompt_logprobs"] = json!(1),
        5 => body["kv_transfer_params"] = json!({"max_load_tokens": 0}),
        6 => body["kv_transfer_params"] = json!({"max_offload_tokens": 64}),
        _ => {}
    }
    body["max_tokens"] = json!(1);
    body.to_string()
}

fn run(setup: Setup, seed: u64, requests: usize) {
    let mut world = World::new(setup);
    let mut random = random(seed);
    let (mut known, mut external) = (0, 0);
    for number in 0..requests {
        let body = request(&mut random);
        let engine = random(2);
        let what = format!("{setup:?}, request {number} at engine {engine}: {body}");
        match random(60) {
            // Both are known with the next request only, so that is asked no question.
            0 => {
                // What a process had still to say when it ended is lost.
                world.catch_up();
                // The configuration vouches that no disk outlives it.
                world.engines[engine].clear_cache(Some("fs"));
                world.engines[engine].restart();
                // It is known when it publishes.
                let first = json!({"prompt": (0..40).collect::<Vec<_>>(), "max_tokens": 1});
                let answer = Request::post(COMPLETIONS, first.to_string());
                let answer = answer.to(world.engines[engine].address());
                assert_eq!(answer.status, 200, "{what}");
            }
            1 => world.engines[engine].reset_prefix_cache(false),
            2 => {
                let tier = ["gpu", "cpu"][random(2)];
                world.engines[engine]
                    .evict(COMPLETIONS, body.as_bytes(), random(4), usize::MAX, tier)
                    .unwrap();
            }
            _ => {
                world.catch_up();
                if let Some(prompts) = world.written(engine, &body) {
                    let held = world.held(engine, &body);
                    assert_eq!(prompts.len(), held.len(), "{what}");
                    for (written, held) in prompts.iter().zip(&held) {
                        assert_eq!(
                            essence(written),
                            essence(held),
                            "{what}\n{written:?}\n{held:?}"
                        );
                        external += usize::from(!essence(held).1.is_empty());
                    }
                    known += 1;
                }
            }
        }
        let answer = Request::post(COMPLETIONS, body.as_str()).to(world.engines[engine].address());
        assert_eq!(answer.status, 200, "{what}");
    }
    assert!(
        known > requests * 9 / 10 && external > requests / 6,
        "{setup:?}: {known} known, {external} with something to load"
    );
}

#[test]
fn every_block_is_where_the_scorer_says() {
    use Algorithm::{Sha256, Sha256Cbor};
    let plain = Setup {
        version: "0.32.0",
        algorithm: Sha256Cbor,
        own_keys: false,
        blocks_per_chunk: 1,
        disk: false,
    };
    for (seed, setup) in [
        plain,
        Setup {
            own_keys: true,
            ..plain
        },
        Setup {
            version: "0.23.0",
            algorithm: Sha256,
            ..plain
        },
        Setup {
            version: "0.30.1",
            own_keys: true,
            blocks_per_chunk: 2,
            ..plain
        },
        Setup {
            version: "0.33.0",
            disk: true,
            ..plain
        },
        Setup {
            version: "0.33.0",
            own_keys: true,
            disk: true,
            blocks_per_chunk: 3,
            ..plain
        },
    ]
    .into_iter()
    .enumerate()
    {
        run(setup, seed as u64 + 1, 120);
    }
}
