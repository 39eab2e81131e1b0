use super::*;
use crate::body::HeldBudget;
use crate::contract::evidence::{Lookup, Prompt as Written, find};
use crate::contract::keys::evidence_key;
use crate::contract::store::MemoryStore;
use crate::policy::route::PathSet;
use crate::prompt::{self, Request};
use crate::scorer::config::{EventsConfig, KeysConfig};
use crate::scorer::index::{Delivery, Ingested, Item, Limits};
use crate::scorer::runs::Secondary;
use crate::sorted::SortedMap;

mod engine;
mod event_keys;
mod members;
#[cfg(not(target_arch = "wasm32"))]
mod model;
mod prefetch;
mod requests;
mod vectors;

use engine::{Engine, Said};

const NOW: u64 = 1_795_952_365_000;
const A: &str = "10.0.0.7:8000";
const B: &str = "10.0.0.8:8000";
const SIZE: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// `fnv64a_cbor`, and everything vouched for.
pub(super) fn config() -> EvidenceConfig {
    EvidenceConfig {
        events: EventsConfig {
            target_cluster: "bridge".into(),
            authority: "bridge".to_owned(),
            path: "/events".to_owned(),
        },
        keys: KeysConfig::Fnv64aCbor {
            hash_seed: String::new(),
        },
        model: None,
        aliases: SortedMap::new(),
        adapters: SortedMap::new(),
        models_path: None,
        block_size: None,
        blocks_per_chunk: NonZeroU32::new(1),
        secondary: Secondary::Vouched,
        shared_tiers: Vec::new(),
        max_silence_ms: 30_000,
        max_prompt_tokens: 1_000_000,
        limits: Limits::default(),
        paths: PathSet::default(),
        tokenize: None,
        prefetch: None,
        fingerprint: 7,
    }
}

fn facts(model: &str, adapters: &[&str]) -> EngineFacts {
    EngineFacts {
        model: Some(model.to_owned()),
        adapters: adapters.iter().map(|&name| name.to_owned()).collect(),
        version: Some("0.32.0".to_owned()),
        ..EngineFacts::default()
    }
}

/// One store, a lease holder's VM that is told events, and a worker's that publishes.
struct World {
    store: MemoryStore,
    config: Rc<EvidenceConfig>,
    holder: Evidence,
    worker: Evidence,
    now: u64,
}

impl World {
    fn new(evidence: EvidenceConfig, members: &[(&str, EngineFacts)]) -> Self {
        let mut config = ScorerConfig::parse(
            br#"{"name":"pool","endpoints":["1.2.3.4:5"],
            "scrape":{"cluster":"engines"}}"#,
        )
        .unwrap();
        let evidence = Rc::new(evidence);
        config.evidence = Some(Rc::clone(&evidence));
        let config = Rc::new(config);
        let vm = |seed| Evidence::new(Rc::clone(&config), seed).unwrap();
        let mut world = Self {
            store: MemoryStore::new(),
            config: evidence,
            holder: vm(1),
            worker: vm(2),
            now: NOW,
        };
        world.members(members);
        let (index, _) = world.holder.index().unwrap();
        index.take_over(&world.store, NOW).unwrap();
        world
    }

    /// The lease holder writes them, all VMs take them over.
    fn members(&mut self, members: &[(&str, EngineFacts)]) {
        let endpoints = members.iter();
        let fleet = Fleet {
            block_size: Some(SIZE),
            endpoints: endpoints
                .map(|(e, f)| ((*e).to_owned(), Rc::new(f.clone())))
                .collect(),
        };
        fleet.write(&self.store, "pool", self.now).unwrap();
        self.tick();
    }

    fn tick(&mut self) {
        self.holder.tick(&self.store, self.now).unwrap();
        self.worker.tick(&self.store, self.now).unwrap();
    }

    /// Another VM takes the lease.
    #[cfg(not(target_arch = "wasm32"))]
    fn new_holder(&mut self) {
        self.holder = Evidence::new(Rc::clone(&self.worker.config), 3).unwrap();
        self.holder.tick(&self.store, self.now).unwrap();
        let (index, _) = self.holder.index().unwrap();
        index.take_over(&self.store, self.now).unwrap();
    }

    /// Events of an engine whose stream is seen from its start on.
    fn told(&mut self, engine: &mut Engine, said: &[Said]) -> Ingested {
        self.told_run(engine, 1, said)
    }

    fn told_run(&mut self, engine: &mut Engine, run: u64, said: &[Said]) -> Ingested {
        let payload = engine.payload(said);
        let items = [Item::Payload {
            seq: engine.next_seq(),
            bytes: &payload,
        }];
        self.deliver_run(&engine.endpoint, run, &items)
    }

    fn deliver(&mut self, endpoint: &str, items: &[Item<'_>]) -> Ingested {
        self.deliver_run(endpoint, 1, items)
    }

    fn deliver_run(&mut self, endpoint: &str, run: u64, items: &[Item<'_>]) -> Ingested {
        let delivery = Delivery {
            publisher: endpoint,
            group: "base",
            run,
            heard_ms: Some(self.now),
            behind: false,
            items,
        };
        let keys = request_keys(&self.config, SIZE);
        let (index, _) = self.holder.index().unwrap();
        index.ingest(&self.store, &delivery, &keys).unwrap()
    }

    /// A request to `/v1/completions`.
    fn request(&mut self, id: &str, body: &str) -> Published {
        let request = Self::read(body);
        self.worker.publish(&self.store, id, &request, self.now)
    }

    fn read(body: &str) -> Request {
        let limits = prompt::Limits {
            max_prompt_tokens: 1_000_000,
            budget: Rc::new(HeldBudget::new(1 << 30)),
        };
        let mut scanner = prompt::Scanner::new(prompt::Endpoint::Completions, limits);
        assert_eq!(
            scanner.feed(body.as_bytes()),
            prompt::Progress::Complete,
            "{body}"
        );
        scanner.finish().unwrap()
    }

    /// What the policy finds for a request, `?` for nothing; with ` partial` behind it if it is that.
    fn found(&self, id: &str, endpoint: &str) -> String {
        let record = self.store.get(&evidence_key(id)).unwrap();
        let record = record.map(|v| v.value).unwrap_or_default();
        let Lookup::Found(evidence) = find(&record, id, endpoint) else {
            return "?".to_owned();
        };
        assert_eq!(evidence.block_size, SIZE.get());
        assert_eq!(evidence.t_ms, Some(self.now));
        let prompts: Vec<String> = evidence.prompts.iter().map(show).collect();
        let partial = if evidence.partial { " partial" } else { "" };
        format!("{}{partial}", prompts.join(" | "))
    }

    /// The same, of a request with this body.
    fn asks(&mut self, body: &str) -> String {
        self.request("id", body);
        self.found("id", A)
    }
}

fn show(prompt: &Written) -> String {
    let Written::Runs(runs) = prompt else {
        panic!("counts are another writer's form")
    };
    let run = |(blocks, tiers): (u64, &[String])| format!("{blocks}[{}]", tiers.join(" "));
    runs.iter().map(run).collect::<Vec<_>>().join(" ")
}

/// `blocks` blocks whose tokens begin at `first`.
fn tokens(first: u32, blocks: u32) -> Vec<u32> {
    (first..first + blocks * SIZE.get()).collect()
}
