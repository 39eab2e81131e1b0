//! KV-cache files are brought back while a request is on its way: the scorer tells kv-prefetch-agent,
//! which reads; and no request notices an agent that is slow or away.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use envoy_tests::{Bootstrap, Bridge, Envoy, Request, until};
use selective_kv_companion::prefetch::Prefetch;
use selective_kv_companion::prefetch::config::Config;
use selective_kv_companion::prefetch::head::{Head, Outcome, Promote, ReadHead};
use serde_json::{Value, json};
use stand_in_engine::cache::Geometry;
use stand_in_engine::hashing::{Algorithm, BlockHasher, Prompt};
use stand_in_engine::{EventOptions, Options, Release};

use crate::engine::Engine;
use crate::support::{COMPLETIONS, with};

const BLOCK: usize = 16;
/// Of the connector's configuration.
const DIGEST: &str = "0123456789ab";
/// 3 reads of 4 KiB.
const HEAD: u64 = 12_288;

/// Reads as the agent does, and remembers what; or hangs in the file system.
#[derive(Default)]
struct Files {
    seen: Mutex<Vec<(PathBuf, Outcome)>>,
    hangs: bool,
}

impl Promote for Files {
    fn promote(&self, path: &Path, head: Head, buffer: &mut [u8]) -> io::Result<Outcome> {
        if self.hangs {
            // Longer than any of these tests, and no longer than their program.
            std::thread::sleep(Duration::from_secs(60));
        }
        let outcome = ReadHead.promote(path, head, buffer)?;
        self.seen.lock().unwrap().push((path.to_owned(), outcome));
        Ok(outcome)
    }
}

/// An agent in this process, and the directory of the connector.
struct Agent {
    runtime: tokio::runtime::Runtime,
    running: Option<Prefetch>,
    files: Arc<Files>,
    root: PathBuf,
    address: SocketAddr,
}

impl Agent {
    fn new(name: &str, hangs: bool) -> Self {
        let root = std::env::temp_dir().join(format!("kv-prefetch-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let files = Files {
            hangs,
            ..Files::default()
        };
        Self {
            runtime: tokio::runtime::Runtime::new().unwrap(),
            running: None,
            files: Arc::new(files),
            root,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    /// At the same address if it ran before.
    fn run(&mut self) {
        let text = format!(
            "listen: {}\nrootDir: {}\nmodelName: tiny\ndigest: {DIGEST}\nblockSize: 4096\nmaxConcurrentFiles: 1",
            self.address,
            self.root.display()
        );
        let config = Config::parse(&text).unwrap();
        let started = Prefetch::start_with(config, self.files.clone());
        let agent = self.runtime.block_on(started).unwrap();
        self.address = agent.address();
        self.running = Some(agent);
    }

    fn stop(&mut self) {
        if let Some(agent) = self.running.take() {
            self.runtime.block_on(agent.stop());
        }
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.root.join(format!(
            "tiny_{DIGEST}_r0/{}/{}_g0/{digest}.bin",
            &digest[..3],
            &digest[3..5]
        ))
    }

    /// As the connector does; a file that went to the store behind has its length and no blocks.
    fn write(&self, digest: &str, cold: bool) -> PathBuf {
        let path = self.path(digest);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create(&path).unwrap();
        if cold {
            file.set_len(100_000).unwrap();
        } else {
            file.write_all(&[7; 100_000]).unwrap();
            file.sync_all().unwrap();
        }
        path
    }

    fn seen(&self) -> Vec<(PathBuf, Outcome)> {
        self.files.seen.lock().unwrap().clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.files.hangs {
            self.stop();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The engines' digests, by the stand-in's own code.
fn digests(tokens: &[u32]) -> Vec<String> {
    let release = Release::of("0.32.0");
    let hasher = BlockHasher::new(Algorithm::Sha256Cbor, Some("0"), release);
    let prompt = Prompt {
        tokens: tokens.to_vec(),
        ..Prompt::default()
    };
    let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    hasher.blocks(&prompt, BLOCK).into_iter().map(hex).collect()
}

fn completion(prompt: &[u32]) -> String {
    json!({"prompt": prompt, "max_tokens": 1}).to_string()
}

fn bootstrap(engine: SocketAddr, agent: SocketAddr, prefetch: Value) -> Bootstrap {
    let prefetch = with(
        json!({"cluster": "kv-prefetch-agent", "pythonHashSeed": "0"}),
        prefetch,
    );
    Bootstrap::shipped("downstream.yaml")
        .scorer(&json!({
            "endpoints": [engine.to_string()],
            "scrape": {"cluster": "kv-scrape"},
            "interval": "200ms",
            "evidence": {
                "events": {"cluster": "kv-events"},
                "blockSize": BLOCK,
                "blocksPerChunk": 1,
                "secondaryTiers": "none",
                "prefetch": prefetch,
            },
        }))
        .hosts("engines", &[engine])
        .add_cluster("kv-prefetch-agent", &[agent])
}

fn told(envoy: &Envoy, result: &str) -> u64 {
    envoy.custom(
        "selective_kv_scorer_prefetch_total",
        &format!("result={result}"),
    )
}

fn answered(envoy: &Envoy, result: &str, count: u64) {
    envoy.until_custom(
        "selective_kv_scorer_prefetch_answers_total",
        &format!("result={result}"),
        |n| n == count,
    );
}

/// Sends a completion of these tokens; how long the answer took.
fn ask(envoy: &Envoy, prompt: &[u32]) -> Duration {
    let began = Instant::now();
    let request = Request::post(COMPLETIONS, completion(prompt));
    assert_eq!(request.to(envoy.address()).status, 200);
    began.elapsed()
}

/// Asks until every VM knows its engines. No two prompts share a block.
fn until_told(envoy: &Envoy) {
    let mut next = 1_000_000;
    until("the agent to be told", || {
        next += 16;
        ask(envoy, &(next..next + 16).collect::<Vec<u32>>());
        (told(envoy, "sent") + told(envoy, "busy") > 0).then_some(())
    });
}

/// given: an engine that holds the first 4 blocks of a prompt; a connector that wrote files of all its 10
/// blocks, of which some are cold
/// when: the request comes through Envoy
/// then: exactly the heads of the cold files that the engine needs are read, in its order
#[test]
fn the_heads_of_a_requests_cold_files_are_read() {
    let engine = stand_in_engine::Engine::start(Options {
        events: Some(EventOptions::default()),
        geometry: Geometry {
            block_size: BLOCK,
            ..Options::default().geometry
        },
        ..Options::default()
    })
    .expect("an engine");
    let ports = engine.event_ports().expect("an engine that publishes");
    let bridge = Bridge::start(&format!(
        "- {{endpoint: '{}', connect: 'tcp://127.0.0.1:{}', replay: 'tcp://127.0.0.1:{}'}}",
        engine.address(),
        ports.publisher,
        ports.replay.expect("a replay socket")
    ));
    let mut agent = Agent::new("chain", false);
    agent.run();
    let bootstrap = bootstrap(engine.address(), agent.address, json!({}))
        .add_cluster("kv-events", &[bridge.address()]);
    let envoy = Envoy::start(&bootstrap);

    let prompt: Vec<u32> = (5_000..5_000 + 10 * BLOCK as u32).collect();
    let digests = digests(&prompt);
    assert_eq!(digests.len(), 10);
    // The engine serves the beginning, and says so.
    let beginning = &prompt[..4 * BLOCK];
    until("the index to know the beginning", || {
        ask(&envoy, beginning);
        (told(&envoy, "warm") > 0).then_some(())
    });
    // Until the index knew, no file was there.
    for (path, outcome) in agent.seen() {
        assert_eq!(outcome, Outcome::Missing, "{}", path.display());
    }
    let before = agent.seen().len();

    let cold = |block: usize| agent.write(&digests[block], true);
    let needless: Vec<PathBuf> = (0..4).map(cold).collect();
    let warm = agent.write(&digests[4], false);
    let first = [5, 6, 7].map(cold);
    let missing = agent.path(&digests[8]);
    let last = cold(9);
    ask(&envoy, &prompt);
    until("the files to be read", || {
        (agent.seen().len() >= before + 6).then_some(())
    });

    let read = |path: &PathBuf| (path.clone(), Outcome::Read(HEAD));
    let [fifth, sixth, seventh] = &first;
    let seen = agent.seen();
    assert_eq!(
        seen[before..],
        [
            (warm, Outcome::Resident),
            read(fifth),
            read(sixth),
            read(seventh),
            (missing, Outcome::Missing),
            read(&last),
        ]
    );
    assert!(seen.iter().all(|(path, _)| !needless.contains(path)));
    let line = envoy.prometheus("selective_kv_scorer_prefetch_total");
    assert!(
        line.iter()
            .any(|line| line.starts_with(r#"selective_kv_scorer_prefetch_total{result="sent"} "#)),
        "{line:?}"
    );
}

/// Whether the agent is there makes no difference to a request.
#[test]
fn an_agent_may_be_away_and_come_back() {
    let engine = Engine::waiting(0);
    let mut agent = Agent::new("away", false);
    // An address at which nobody is.
    agent.address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = bootstrap(engine.sink.address(), agent.address, json!({}));
    let envoy = Envoy::start(&config.add_cluster("kv-events", &[]));
    until_told(&envoy);
    let prompt = |n: u32| -> Vec<u32> { (n * 100..n * 100 + 16).collect() };
    let sent = told(&envoy, "sent");
    answered(&envoy, "unavailable", sent);

    for round in 0..2 {
        agent.run();
        let file = agent.write(&digests(&prompt(round))[0], true);
        ask(&envoy, &prompt(round));
        answered(&envoy, "ok", u64::from(round) + 1);
        until("the file to be read", || {
            let seen = agent.seen();
            (seen.last() == Some(&(file.clone(), Outcome::Read(HEAD)))).then_some(())
        });
        agent.stop();
        let took = ask(&envoy, &prompt(10 + round));
        assert!(took < Duration::from_secs(2), "{took:?}");
        answered(&envoy, "unavailable", sent + u64::from(round) + 1);
    }
    assert_eq!(told(&envoy, "not_sent"), 0);
}

/// given: a file system that hangs; and an agent that takes messages and never answers
/// then: requests take no longer for it
#[test]
fn a_slow_agent_delays_no_request() {
    let engine = Engine::waiting(0);
    let mut agent = Agent::new("slow", true);
    agent.run();
    // Accepts, by the kernel's own queue, and answers nobody.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (address, is_silent) in [(agent.address, false), (silent.local_addr().unwrap(), true)] {
        // The one that answers may still be slow to: a busy machine.
        let in_flight = if is_silent { 2 } else { 64 };
        let prefetch = json!({"maxInFlight": in_flight, "timeout": "10s"});
        let config = bootstrap(engine.sink.address(), address, prefetch);
        let envoy = Envoy::start(&config.add_cluster("kv-events", &[]));
        until_told(&envoy);
        let mut slowest = Duration::ZERO;
        for n in 0..30 {
            let prompt: Vec<u32> = (n * 100..n * 100 + 64).collect();
            slowest = slowest.max(ask(&envoy, &prompt));
        }
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        let busy = told(&envoy, "busy");
        if is_silent {
            assert_eq!(told(&envoy, "sent"), 2);
            assert!(busy >= 28, "{busy}");
        } else {
            assert!(told(&envoy, "sent") >= 30);
        }
    }
}
