//! What `evidence.prefetch` adds to a request of 32,768 tokens of which every block is cold: Envoy with and
//! without it, one request at a time, in turn. The agent takes messages and answers nothing, so that it
//! does not compete for the processor. `cargo bench -p envoy-tests --bench prefetch_cost --profile dev`,
//! after `scripts/build modules`.
#![allow(clippy::disallowed_methods)]

#[path = "../tests/suite/engine.rs"]
#[allow(dead_code)]
mod engine;

use engine::Engine;
use envoy_tests::{Bootstrap, Envoy, Request, until};
use serde_json::json;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const TOKENS: u32 = 32_768;
const BLOCK: u32 = 16;
const REQUESTS: u32 = 200;

fn ask(envoy: &Envoy, first: u32, tokens: u32) -> Duration {
    let prompt: Vec<u32> = (first..first + tokens).collect();
    let request = Request::post("/v1/completions", json!({"prompt": prompt}).to_string());
    let began = Instant::now();
    assert_eq!(request.to(envoy.address()).status, 200);
    began.elapsed()
}

fn main() {
    let engine = Engine::waiting(0);
    let agent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let start = |prefetch: bool| {
        let mut evidence = json!({
            "events": {"cluster": "kv-events"}, "blockSize": BLOCK, "blocksPerChunk": 1,
        });
        if prefetch {
            evidence["prefetch"] = json!({
                "cluster": "kv-prefetch-agent", "maxInFlight": 1024, "timeout": "10s",
            });
        }
        let scorer = json!({
            "endpoints": [engine.endpoint()], "scrape": {"cluster": "kv-scrape"},
            "interval": "200ms", "evidence": evidence,
        });
        Envoy::start(
            &Bootstrap::shipped("downstream.yaml")
                .scorer(&scorer)
                .hosts("engines", &[engine.sink.address()])
                .add_cluster("kv-events", &[])
                .add_cluster("kv-prefetch-agent", &[agent.local_addr().expect("a port")]),
        )
    };
    let envoys = [start(false), start(true)];
    let told = || envoys[1].custom("selective_kv_scorer_prefetch_total", "result=sent");
    let mut first = 0;
    until("the scorer to know its engine", || {
        first += BLOCK;
        ask(&envoys[1], first, BLOCK);
        (told() > 0).then_some(())
    });
    let before = told();
    let mut times = [Vec::new(), Vec::new()];
    // No two prompts share a block.
    for n in 1..=REQUESTS {
        for (times, envoy) in times.iter_mut().zip(&envoys) {
            times.push(ask(envoy, n * 2 * TOKENS, TOKENS));
        }
    }
    assert_eq!(told() - before, u64::from(REQUESTS));
    println!("{TOKENS} tokens in blocks of {BLOCK}, {REQUESTS} requests each, ms");
    for (name, mut times) in ["without", "with"].into_iter().zip(times) {
        times.sort_unstable();
        let ms = |at: usize| times[at].as_secs_f64() * 1e3;
        println!(
            "{name:8} best {:.2}   median {:.2}",
            ms(0),
            ms(times.len() / 2)
        );
    }
}
