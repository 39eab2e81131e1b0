//! Admission policies in real Envoy: loads in flight against a slow engine, every way they end,
//! and engines that are too old.

mod backpressure;
mod params;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use envoy_tests::{Bootstrap, Envoy, Reply, Request, Sink, until};
use serde_json::{Value, json};
use stand_in_engine::{Engine, Fault, FaultKind, Options};

use crate::support::{CHAT, COMPLETIONS, ENOUGH, EVIDENCE, threshold, with};

const CAP: usize = 8;
/// Requests of each client, one after the other.
const ROUNDS: u64 = 4;
/// 1,024 tokens, all of them in the CPU tier, by the header.
const HELD: &str = r#"{"block_size":32,"tiers":{"cpu":32}}"#;

fn capped(max: usize) -> Value {
    let admission = json!({"type": "promotion_concurrency", "maxInflightPromotions": max});
    with(threshold(), json!({"admission": admission}))
}

fn body(stream: bool) -> String {
    let prompt: Vec<u32> = (0..1024).collect();
    json!({"model": "tiny", "prompt": prompt, "max_tokens": 2, "stream": stream}).to_string()
}

/// Requests that are loading, by the gauge; it is there once a timer has seen one.
fn in_flight(envoy: &Envoy, endpoint: &str) -> u64 {
    let labels = format!("endpoint={endpoint}");
    envoy.custom("selective_kv_loads_in_flight", &labels)
}

fn await_in_flight(envoy: &Envoy, endpoint: &str, count: u64) {
    let what = format!("{count} loads in flight at {endpoint}");
    until(&what, || {
        (in_flight(envoy, endpoint) == count).then_some(())
    });
}

fn load_decisions(envoy: &Envoy, action: &str, reason: &str) -> u64 {
    let labels = format!("direction=load,action={action},reason={reason}");
    envoy.custom("selective_kv_decisions_total", &labels)
}

#[test]
fn two_hundred_requests_never_show_a_slow_engine_more_loads_than_allowed() {
    let engine = Engine::start(Options {
        latency: Duration::from_millis(150),
        token_interval: Duration::from_millis(20),
        learn: false,
        ..Options::default()
    })
    .expect("an engine");
    engine
        .place(COMPLETIONS, body(false).as_bytes(), 0, 32, "cpu")
        .expect("a tier");
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .without_filter("kv-scorer")
        .policy(&capped(CAP))
        .cluster("engines", |c| {
            let limits = json!({"max_connections": 1000, "max_pending_requests": 1000, "max_requests": 1000});
            c["circuit_breakers"] = json!({"thresholds": [limits]});
            // The engine takes them one after the other, on a busy machine slowly.
            c["connect_timeout"] = json!("30s");
        })
        .hosts("engines", &[engine.address()]);
    let envoy = Envoy::with_workers(&bootstrap, 2);
    let address = envoy.address();
    let clients: Vec<_> = (0..200)
        .map(|n| {
            thread::spawn(move || {
                let request = Request::post(COMPLETIONS, body(n % 2 == 0)).header(EVIDENCE, HELD);
                (0..ROUNDS).map(|_| request.to(address)).collect::<Vec<_>>()
            })
        })
        .collect();
    for client in clients {
        for response in client.join().expect("a client") {
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    let most = engine.most_loading();
    assert!((2..=CAP).contains(&most), "{most} at a time");
    let (enabled, refused) = (
        load_decisions(&envoy, "enable", "admitted"),
        load_decisions(&envoy, "disable", "promotion_concurrency"),
    );
    assert_eq!(enabled + refused, 200 * ROUNDS);
    assert!(enabled > CAP as u64 && refused > 0, "{enabled} enabled");
    let endpoint = engine.address().to_string();
    await_in_flight(&envoy, &endpoint, 0);
    let refusals = "direction=load,policy=promotion_concurrency,tier=-";
    assert_eq!(
        envoy.custom("selective_kv_admission_refusals_total", refusals),
        refused
    );
    assert!(envoy.custom("selective_kv_loads_ended_total", "event=first_event") > 0);
    assert!(envoy.custom("selective_kv_loads_ended_total", "event=headers") > 0);
    let line = envoy.access_line("reason=promotion_concurrency");
    assert!(
        line.contains("load=disable;reason=promotion_concurrency;offload=preserve;tokens=1024;"),
        "{line}"
    );
}

/// A request of which only the head of the answer is awaited, then the connection is dropped.
fn abandoned(envoy: &Envoy, await_head: bool) {
    let mut client = TcpStream::connect(envoy.address()).expect("Envoy");
    let body = body(true);
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{EVIDENCE}: {HELD}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    client
        .write_all(&[head.as_bytes(), body.as_bytes()].concat())
        .expect("a request");
    if await_head {
        let mut line = String::new();
        BufReader::new(&client)
            .read_line(&mut line)
            .expect("a status line");
        assert!(line.contains("200"), "{line}");
    } else {
        thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn every_end_of_a_stream_gives_its_load_back() {
    for file in ["downstream.yaml", "upstream.yaml"] {
        let engine = Engine::start(Options {
            latency: Duration::from_secs(30),
            learn: false,
            ..Options::default()
        })
        .expect("an engine");
        let endpoint = engine.address().to_string();
        let bootstrap = Bootstrap::shipped(file)
            .without_filter("kv-scorer")
            .policy(&capped(1))
            .hosts("engines", &[engine.address()]);
        let envoy = Envoy::with_workers(&bootstrap, 2);
        // The client goes away: after the headers of the answer, and (not streamed, slow) before.
        for (n, await_head) in [(1, true), (2, true), (3, false)] {
            abandoned(&envoy, await_head);
            until(&format!("{file}: client {n} is gone"), || {
                (envoy.custom("selective_kv_loads_ended_total", "event=stream_end") == n)
                    .then_some(())
            });
        }
        // The engine goes away, before any answer.
        engine.set_latency(Duration::ZERO);
        engine.add_fault(fault(FaultKind::Reset, 9));
        let response = Request::post(COMPLETIONS, body(false))
            .header(EVIDENCE, HELD)
            .to(envoy.address());
        assert!(response.status >= 500, "{file}: {}", response.status);
        engine.clear_faults();
        // An error, and an answer.
        engine.add_fault(fault(FaultKind::Status(400), 1));
        for status in [400, 200] {
            let response = Request::post(COMPLETIONS, body(false))
                .header(EVIDENCE, HELD)
                .to(envoy.address());
            assert_eq!(response.status, status, "{file}");
        }
        await_in_flight(&envoy, &endpoint, 0);
        // With a cap of one, nobody was in the way of the next.
        assert_eq!(
            load_decisions(&envoy, "disable", "promotion_concurrency"),
            0,
            "{file}"
        );
    }
}

#[test]
fn an_engine_that_vanishes_inside_its_answer_gives_its_load_back() {
    const EVENTS: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let answers = [
        // Before the first event, inside its name, inside it.
        (EVENTS.to_owned(), "stream_end"),
        (format!("{EVENTS}4\r\ndata\r\n"), "stream_end"),
        (format!("{EVENTS}7\r\ndata: {{\r\n"), "first_event"),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
                .to_owned(),
            "headers",
        ),
    ];
    for file in ["downstream.yaml", "upstream.yaml"] {
        let next = Arc::new(AtomicUsize::new(0));
        let (asked, raw) = (Arc::clone(&next), answers.clone());
        let engine = Sink::with(move |_| {
            let (answer, _) = &raw[asked.fetch_add(1, Ordering::SeqCst) % raw.len()];
            Reply::Cut(answer.clone().into_bytes())
        });
        let bootstrap = Bootstrap::shipped(file)
            .without_filter("kv-scorer")
            .policy(&capped(1))
            .engines(&[&engine]);
        let envoy = Envoy::with_workers(&bootstrap, 2);
        for (n, (_, event)) in answers.iter().enumerate() {
            let ended = |event: &str| {
                envoy.custom("selective_kv_loads_ended_total", &format!("event={event}"))
            };
            let before = ended(event);
            let request = Request::post(COMPLETIONS, body(true)).header(EVIDENCE, HELD);
            let _ = request.try_to(envoy.address());
            until(&format!("{file}: the end of load {n}"), || {
                (ended(event) == before + 1).then_some(())
            });
        }
        assert_eq!(next.load(Ordering::SeqCst), answers.len(), "{file}");
        await_in_flight(&envoy, &engine.endpoint(), 0);
        assert_eq!(load_decisions(&envoy, "enable", "admitted"), 4, "{file}");
        assert_eq!(
            load_decisions(&envoy, "disable", "promotion_concurrency"),
            0,
            "{file}"
        );
    }
}

fn fault(kind: FaultKind, count: usize) -> Fault {
    Fault {
        kind,
        count,
        path: None,
        after_body: true,
    }
}

#[test]
fn a_retry_elsewhere_gives_the_first_engines_load_back() {
    let (refusing, willing) = (Sink::with(|_| Reply::Status(503, Vec::new())), Sink::ok());
    let config = with(
        capped(1),
        json!({"minExternalReusableTokens": 1, "endpointSources": ["upstream"]}),
    );
    let envoy = Envoy::start(
        &Bootstrap::shipped("upstream.yaml")
            .without_filter("kv-scorer")
            .policy(&config)
            .engines(&[&refusing, &willing])
            .in_turn(),
    );
    for n in 0..20 {
        let request = Request::post(CHAT, "{}").header("x-request-id", format!("r-{n}"));
        let response = request.header(EVIDENCE, ENOUGH).to(envoy.address());
        assert_eq!(response.status, 200);
    }
    assert!(!refusing.seen().is_empty());
    assert_eq!(
        load_decisions(&envoy, "disable", "promotion_concurrency"),
        0
    );
    assert!(envoy.custom("selective_kv_loads_ended_total", "event=error") > 0);
    for sink in [&refusing, &willing] {
        await_in_flight(&envoy, &sink.endpoint(), 0);
    }
}

#[test]
fn an_old_engine_is_not_pretended_to_listen() {
    for (version, load, offload) in [
        ("0.32.0", "disable", "disable"),
        ("0.30.0", "preserve", "disable"),
        ("0.22.1", "preserve", "preserve"),
    ] {
        let engine = Engine::start(Options {
            version: version.into(),
            learn: false,
            ..Options::default()
        })
        .expect("an engine");
        let prompt = body(false);
        engine
            .place(COMPLETIONS, prompt.as_bytes(), 0, 32, "cpu")
            .expect("a tier");
        let envoy = Envoy::start(
            &Bootstrap::shipped("downstream.yaml")
                .policy(&json!({"loadPolicy": "disable", "offloadPolicy": "disable"}))
                .scorer(&json!({
                    "endpoints": [engine.address().to_string()],
                    "scrape": {"cluster": "kv-scrape"},
                    "interval": "200ms",
                }))
                .hosts("engines", &[engine.address()]),
        );
        // The version comes with the second sample.
        until("two polls with a version", || {
            let samples = envoy.custom("selective_kv_scorer_samples_total", "");
            (engine.polls().contains_key("/version") && samples >= 4).then_some(())
        });
        engine.clear_records();
        let response = Request::post(COMPLETIONS, prompt.as_str()).to(envoy.address());
        assert_eq!(response.status, 200);
        let records = engine
            .wait_answered(1, envoy_tests::wait::PATIENCE)
            .expect("an answered request");
        // What the decision says is what the engine does.
        let loaded = records[0].work.as_ref().expect("work").prompts[0].loaded_tokens;
        assert_eq!(loaded > 0, load == "preserve", "{version}: {loaded}");
        let line = envoy.access_line("load=");
        assert!(line.contains(&format!("load={load};")), "{version}: {line}");
        assert!(
            line.contains(&format!("offload={offload}")),
            "{version}: {line}"
        );
        let unsupported = |kind: &str| {
            let labels = format!("kind={kind}");
            envoy.custom("selective_kv_engine_unsupported_total", &labels)
        };
        assert_eq!(
            unsupported("max_load_tokens"),
            u64::from(load == "preserve")
        );
        assert_eq!(
            unsupported("max_offload_tokens"),
            u64::from(offload == "preserve")
        );
    }
}
