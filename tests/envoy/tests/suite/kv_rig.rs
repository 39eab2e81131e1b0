//! Stand-in engines that publish their KV events, the real bridge, and Envoy with both roles.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_tests::{Bootstrap, Bridge, Envoy, Request, until};
use serde_json::{Value, json};
use stand_in_engine::cache::Geometry;
use stand_in_engine::record::Work;
use stand_in_engine::{Engine, EventOptions, Fault, FaultKind, Options};

use crate::support::with;

const DECISION: &str = "x-decision";
/// Names the engine that a request is to reach.
const ENGINE: &str = "x-engine";
/// A query that engines refuse, after Envoy has decided: asks for evidence and changes nothing.
const PROBE: &str = "?probe";
pub const BLOCK: usize = 16;
/// Tokens that must be loadable for a load.
pub const THRESHOLD: usize = 64;

/// The bridge dials a lost engine again after 50 ms.
const JOINING: Duration = Duration::from_millis(200);

pub struct Rig {
    pub envoy: Envoy,
    pub bridge: Bridge,
    pub engines: Vec<Engine>,
}

/// What became of one request.
#[derive(Debug)]
pub struct Outcome {
    pub status: u16,
    /// By the names of the decision's summary.
    pub decision: BTreeMap<String, String>,
    pub answer: String,
    /// None if the engine refused the request.
    pub work: Option<Work>,
}

impl Outcome {
    pub fn part(&self, name: &str) -> &str {
        self.decision.get(name).map_or("", String::as_str)
    }

    /// Tokens that the evidence says could be loaded.
    pub fn tokens(&self) -> Option<usize> {
        self.part("tokens").parse().ok()
    }

    pub fn loaded(&self) -> usize {
        self.work.as_ref().map_or(0, Work::loaded_tokens)
    }

    /// `enable: admitted, 96 tokens, 96 loaded`.
    pub fn told(&self) -> String {
        let tokens = self
            .tokens()
            .map_or("no".into(), |tokens| tokens.to_string());
        format!(
            "{}: {}, {tokens} tokens, {} loaded",
            self.part("load"),
            self.part("reason"),
            self.loaded()
        )
    }
}

/// An engine with blocks of [`BLOCK`] tokens and no limits.
pub fn options() -> Options {
    Options {
        events: Some(EventOptions::default()),
        geometry: Geometry {
            block_size: BLOCK,
            ..Options::default().geometry
        },
        ..Options::default()
    }
}

pub fn engine(options: Options) -> Engine {
    let engine = Engine::start(options).expect("an engine");
    engine.add_fault(Fault {
        count: usize::MAX,
        kind: FaultKind::Status(418),
        path: Some(format!("/v1/completions{PROBE}")),
        after_body: true,
    });
    engine.add_fault(Fault {
        count: usize::MAX,
        kind: FaultKind::Status(418),
        path: Some(format!("/v1/chat/completions{PROBE}")),
        after_body: true,
    });
    engine
}

/// The bridge's list of engines.
pub fn followed(engines: &[Engine]) -> String {
    let entries = engines.iter().map(|engine| {
        let ports = engine.event_ports().expect("an engine that publishes");
        let replay = ports
            .replay
            .map(|port| format!(", replay: 'tcp://127.0.0.1:{port}'"));
        format!(
            "- {{endpoint: '{}', connect: 'tcp://127.0.0.1:{}'{}}}\n",
            engine.address(),
            ports.publisher,
            replay.unwrap_or_default()
        )
    });
    entries.collect()
}

/// The scorer's configuration: everything can be vouched for, and `evidence` adds to it.
pub fn scorer(engines: &[Engine], evidence: Value) -> Value {
    let evidence = with(
        json!({
            "events": {"cluster": "kv-events-bridge"},
            "blocksPerChunk": 1,
            "secondaryTiers": "none",
        }),
        evidence,
    );
    json!({
        "name": "pool",
        "endpoints": addresses(engines).iter().map(SocketAddr::to_string).collect::<Vec<_>>(),
        "scrape": {"cluster": "kv-scrape"},
        "interval": "200ms",
        "evidence": evidence,
    })
}

fn addresses(engines: &[Engine]) -> Vec<SocketAddr> {
    engines.iter().map(|engine| engine.address()).collect()
}

impl Rig {
    /// One worker.
    pub fn start(engines: Vec<Engine>, evidence: Value) -> Self {
        Self::with_workers(engines, evidence, 1)
    }

    pub fn with_workers(engines: Vec<Engine>, evidence: Value, workers: u32) -> Self {
        let bridge = Bridge::start(&followed(&engines));
        let bootstrap = Self::bootstrap(&engines, &bridge, evidence);
        Self {
            envoy: Envoy::with_workers(&bootstrap, workers),
            bridge,
            engines,
        }
    }

    pub fn bootstrap(engines: &[Engine], bridge: &Bridge, evidence: Value) -> Bootstrap {
        let scorer = scorer(engines, evidence);
        let addresses = addresses(engines);
        let policy = json!({
            "loadPolicy": "threshold",
            "minExternalReusableTokens": THRESHOLD,
            "maxEvidenceAge": "1m",
        });
        let mut bootstrap = Bootstrap::shipped("downstream.yaml")
            .policy(&policy)
            .scorer(&scorer)
            .hosts("engines", &addresses)
            .add_cluster("kv-events-bridge", &[bridge.address()])
            .add_cluster("tokenize", &addresses[..1]);
        let mut routes = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let name = format!("engine-{number}");
            bootstrap = bootstrap.add_cluster(&name, &[*address]);
            routes.push(json!({
                "name": name,
                "match": {"prefix": "/", "headers": [{"name": ENGINE, "string_match": {"exact": number.to_string()}}]},
                "route": {"cluster": name, "timeout": "0s"},
            }));
        }
        routes.push(json!({
            "name": "default", "match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"},
        }));
        bootstrap.routes(&Value::Array(routes)).manager(|manager| {
            manager["route_config"]["response_headers_to_add"] = json!([{"header": {
                "key": DECISION, "value": "%FILTER_STATE(wasm.selective_kv.decision:PLAIN)%",
            }}]);
        })
    }

    /// An engine is known once it has published something.
    pub fn greet(&self) {
        (0..self.engines.len()).for_each(|engine| self.news(engine, 0));
    }

    /// Another process of this engine, which the bridge has found again.
    pub fn restart(&self, engine: usize) {
        let before = self.heard(engine);
        self.engines[engine].restart();
        let mut number = 0;
        // What is published while the bridge joins it is heard of with the next batch.
        until("the bridge to find the engine again", || {
            number += 1;
            self.news(engine, number);
            std::thread::sleep(JOINING);
            (self.heard(engine) > before).then_some(())
        });
    }

    /// Serves a prompt of its own.
    fn news(&self, engine: usize, number: u32) {
        let body = json!({"prompt": vec![100_000 + number; BLOCK], "max_tokens": 1});
        let answer = Request::post("/v1/completions", body.to_string());
        let answer = answer.to(self.engines[engine].address());
        assert_eq!(answer.status, 200);
    }

    /// Batches of this engine that the bridge has taken.
    fn heard(&self, engine: usize) -> f64 {
        let heard = |via: &str| {
            self.bridge.metric(&format!(
                "kv_events_bridge_batches_total{{endpoint=\"{}\",rank=\"0\",via=\"{via}\"}}",
                self.engines[engine].address()
            ))
        };
        heard("live") + heard("replay")
    }

    /// Sends a request to one engine.
    pub fn ask(&self, engine: usize, path: &str, body: &str) -> Outcome {
        self.send(engine, path, Request::post(path, body))
    }

    /// The same in pieces, and without its length.
    pub fn ask_in_chunks(&self, engine: usize, path: &str, body: &str) -> Outcome {
        self.send(
            engine,
            path,
            Request::post_chunked(path, body.as_bytes(), 300).slowly(1),
        )
    }

    fn send(&self, engine: usize, path: &str, request: Request) -> Outcome {
        let before = self.last(engine);
        let response = request
            .header(ENGINE, engine.to_string())
            .to(self.envoy.address());
        let summary = response.header(DECISION).unwrap_or_default();
        let parts = summary.split(';').filter_map(|part| part.split_once('='));
        let records = self.engines[engine].records();
        // The scorer may have asked the same engine for tokens.
        let mut records = records.into_iter();
        let record = records.find(|it| it.sequence > before && it.target == path);
        Outcome {
            status: response.status,
            decision: parts.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            answer: response.text(),
            work: record.and_then(|record| record.work),
        }
    }

    fn last(&self, engine: usize) -> u64 {
        let records = self.engines[engine].records();
        records.last().map_or(0, |record| record.sequence)
    }

    /// The decision as it would be now: the engine refuses the request.
    pub fn probe(&self, engine: usize, path: &str, body: &str) -> Outcome {
        let outcome = self.ask(engine, &format!("{path}{PROBE}"), body);
        assert_eq!(outcome.status, 418, "{outcome:?}");
        outcome
    }

    /// Waits until a request would be decided so.
    pub fn until_decided(
        &self,
        engine: usize,
        path: &str,
        body: &str,
        reason: &str,
        tokens: usize,
    ) {
        let mut last = String::new();
        until(
            &format!("{reason} with {tokens} tokens at engine {engine}"),
            || {
                let outcome = self.probe(engine, path, body);
                let now = outcome.told();
                if now != last {
                    eprintln!("engine {engine}: {now}");
                    last = now;
                }
                let reached = outcome.part("reason") == reason && outcome.tokens() == Some(tokens);
                reached.then_some(())
            },
        );
    }

    /// What the engine would load now, if it were let.
    pub fn loadable(&self, engine: usize, path: &str, body: &str) -> usize {
        let evidence = self.engines[engine].evidence(path, body.as_bytes());
        let evidence = evidence.expect("evidence");
        let prompts = evidence["prompts"].as_array().expect("prompts");
        prompts.iter().map(external_blocks).sum::<usize>() * BLOCK
    }

    /// Waits until everything that the engines have published has reached the bridge.
    pub fn until_heard(&self) {
        for (number, engine) in self.engines.iter().enumerate() {
            until("the bridge to hear everything", || {
                let published = engine.published().batches as f64;
                (self.heard(number) >= published).then_some(())
            });
        }
    }
}

/// Of one prompt's runs (DESIGN 5): behind the GPU prefix, without a gap, held anywhere outside.
fn external_blocks(prompt: &Value) -> usize {
    let runs = prompt["runs"].as_array().expect("runs");
    let blocks: Vec<Vec<&str>> = runs
        .iter()
        .flat_map(|run| {
            let tiers = run[1].as_array().expect("tiers");
            let tiers: Vec<_> = tiers.iter().filter_map(Value::as_str).collect();
            vec![tiers; run[0].as_u64().expect("a count") as usize]
        })
        .collect();
    let gpu = blocks.iter().take_while(|tiers| tiers.contains(&"gpu"));
    let behind = &blocks[gpu.count()..];
    let external = |tiers: &&Vec<&str>| tiers.iter().any(|tier| *tier != "gpu");
    behind.iter().take_while(external).count()
}
