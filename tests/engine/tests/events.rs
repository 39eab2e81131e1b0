//! KV events over real sockets, and what else an engine says of its cache.

// The root's clippy.toml speaks of the module; this is a native program.
#![allow(clippy::disallowed_methods)]

mod http;

use bytes::Bytes;
use http::{get, post};
use serde_json::{Value, json};
use stand_in_engine::events::{Content, Event, Medium, batch};
use stand_in_engine::hashing::{Algorithm, BlockHash, BlockHasher, Prompt};
use stand_in_engine::models::Adapter;
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, EventOptions, Options, Release};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const LIMIT: Duration = Duration::from_secs(20);
const COMPLETIONS: &str = "/v1/completions";
/// The head of a batch: an array of three, and the time.
const HEAD: usize = 10;

fn engine(options: Options) -> Engine {
    Engine::start(Options {
        events: Some(EventOptions {
            topic: "kv@pod@tiny".into(),
            ..EventOptions::default()
        }),
        ..options
    })
    .unwrap()
}

fn body(prompt: &Prompt, more: Value) -> String {
    let mut body = json!({"prompt": prompt.tokens, "max_tokens": 1});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn serve(engine: &Engine, body: &str) -> Value {
    let answer = post(engine.address(), COMPLETIONS, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn prompt(tokens: u32) -> Prompt {
    Prompt {
        tokens: (100..100 + tokens).collect(),
        ..Prompt::default()
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// What the engine replays from a number on, and how many frames each reply has.
fn replay(engine: &Engine, from: u64) -> (Vec<(u64, Vec<u8>)>, usize) {
    let port = engine.event_ports().unwrap().replay.unwrap();
    runtime().block_on(async {
        let mut socket = DealerSocket::new();
        let address = format!("tcp://127.0.0.1:{port}");
        socket.connect(&address).await.unwrap();
        let request = vec![Bytes::new(), from.to_be_bytes().to_vec().into()];
        let request = ZmqMessage::try_from(request).unwrap();
        socket.send(request).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let reply = timeout(LIMIT, socket.recv()).await.unwrap().unwrap();
            let parts = reply.into_vec();
            let [seq, payload] = &parts[parts.len() - 2..] else {
                panic!("{parts:?}")
            };
            let seq = u64::from_be_bytes(seq.as_ref().try_into().unwrap());
            if seq == u64::MAX {
                return (batches, parts.len());
            }
            batches.push((seq, payload.to_vec()));
        }
    })
}

/// Everything published since the engine began is these batches, in order.
fn assert_published(engine: &Engine, version: Release, expected: &[Vec<Event>]) {
    let (batches, _) = replay(engine, 0);
    let expected: Vec<_> = expected
        .iter()
        .map(|events| batch(0.0, events, version)[HEAD..].to_vec())
        .collect();
    let found: Vec<_> = batches.iter().map(|(_, it)| it[HEAD..].to_vec()).collect();
    assert_eq!(found, expected);
    let numbers: Vec<_> = batches.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, (0..batches.len() as u64).collect::<Vec<_>>());
}

fn stored(prompt: &Prompt, hashes: &[BlockHash], from: usize, extra: &[Option<&[&str]>]) -> Event {
    let extra_keys = extra
        .iter()
        .map(|keys| keys.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()));
    Event::Stored {
        hashes: hashes[from..from + extra.len()].to_vec(),
        medium: Medium::Gpu,
        content: Some(Content {
            parent: from.checked_sub(1).map(|parent| hashes[parent]),
            tokens: prompt.tokens[from * 32..(from + extra.len()) * 32].to_vec(),
            block_size: 32,
            adapter: prompt.adapter.as_ref().map(|it| (it.id, it.name.clone())),
            extra_keys: Some(extra_keys.collect()),
            group: true,
        }),
    }
}

fn placeholder(hash: BlockHash, medium: Medium) -> Event {
    Event::Stored {
        hashes: vec![hash],
        medium,
        content: None,
    }
}

fn removed(hash: BlockHash, medium: Medium) -> Event {
    Event::Removed {
        hashes: vec![hash],
        medium,
    }
}

#[test]
fn what_is_served_is_announced_in_the_form_of_the_version() {
    const STORAGE: Medium = Medium::Storage {
        object_store: false,
    };
    for (version, frames) in [("0.23.0", 3), ("0.25.1", 3), ("0.26.0", 4), ("0.33.0", 4)] {
        let engine = engine(Options {
            version: version.into(),
            hash_seed: Some("42".into()),
            tiers: vec![TierKind::parse("fs+events").unwrap()],
            adapters: vec![("sql".into(), "/adapters/sql".into())],
            ..Options::default()
        });
        let version = Release::of(version);
        let hasher = BlockHasher::new(Algorithm::Sha256Cbor, Some("42"), version);
        let salted = Prompt {
            salt: Some("a".into()),
            adapter: Some(Adapter {
                id: 1,
                name: "sql".into(),
                path: "/adapters/sql".into(),
            }),
            ..prompt(70)
        };
        let more = json!({"cache_salt": "a", "model": "sql"});
        let hashes = hasher.blocks(&salted, 32);
        let plain = hasher.blocks(&prompt(40), 32);

        serve(&engine, &body(&salted, more.clone()));
        engine
            .evict(
                COMPLETIONS,
                body(&salted, more.clone()).as_bytes(),
                0,
                2,
                "gpu",
            )
            .unwrap();
        serve(&engine, &body(&salted, more));
        engine.reset_prefix_cache(false);
        serve(&engine, &body(&prompt(40), json!({})));

        let extra: [Option<&[&str]>; 2] = [Some(&["sql", "a"]), Some(&["sql"])];
        let all = stored(&salted, &hashes, 0, &extra);
        assert_published(
            &engine,
            version,
            &[
                vec![all.clone()],
                hashes
                    .iter()
                    .map(|it| placeholder(*it, Medium::Cpu))
                    .collect(),
                hashes.iter().map(|it| placeholder(*it, STORAGE)).collect(),
                hashes
                    .iter()
                    .rev()
                    .map(|it| removed(*it, Medium::Gpu))
                    .collect(),
                // Loaded, and so in the GPU again.
                vec![all],
                vec![Event::AllCleared, stored(&prompt(40), &plain, 0, &[None])],
                vec![placeholder(plain[0], Medium::Cpu)],
                vec![placeholder(plain[0], STORAGE)],
            ],
        );
        assert_eq!(replay(&engine, 6).0.len(), 2);
        assert_eq!(replay(&engine, 99), (Vec::new(), frames));
    }
}

#[test]
fn subscribers_get_three_frames() {
    let engine = engine(Options::default());
    let port = engine.event_ports().unwrap().publisher;
    let parts = runtime().block_on(async {
        let mut socket = SubSocket::new();
        let address = format!("tcp://127.0.0.1:{port}");
        socket.connect(&address).await.unwrap();
        socket.subscribe("kv@pod").await.unwrap();
        // What is published before the subscription has arrived is for nobody.
        loop {
            engine.clear_cache(Some("gpu"));
            let received = timeout(Duration::from_millis(50), socket.recv()).await;
            if let Ok(message) = received {
                return message.unwrap().into_vec();
            }
        }
    });
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[0].as_ref(), b"kv@pod@tiny");
    assert_eq!(parts[1].len(), 8);
    let expected = batch(0.0, &[Event::AllCleared], Release::of("0.32.0"));
    assert_eq!(parts[2][HEAD..], expected[HEAD..]);
}

#[test]
fn a_restart_begins_at_number_0_with_nothing_but_the_disk() {
    let engine = engine(Options {
        tiers: vec![TierKind::parse("fs").unwrap()],
        ..Options::default()
    });
    let request = body(&prompt(65), json!({}));
    serve(&engine, &request);
    let before = replay(&engine, 0).0.len();
    assert_eq!(before, 2);

    let answer = post(engine.control_address(), "/control/restart", "{}");
    assert_eq!((answer.status, answer.body.as_str()), (200, "{}"));
    assert_eq!(replay(&engine, 0).0, []);
    engine.clear_records();
    serve(&engine, &request);

    let work = engine.records()[0].work.clone().unwrap();
    assert_eq!(work.prompts[0].loaded_by_tier["fs"], 64);
    assert_eq!(replay(&engine, 0).0.first().map(|(seq, _)| *seq), Some(0));
}

#[test]
fn lost_batches_leave_a_hole() {
    let engine = engine(Options::default());
    post(engine.control_address(), "/control/events", "{\"lose\":1}");
    for _ in 0..3 {
        engine.clear_cache(Some("gpu"));
    }
    let numbers: Vec<_> = replay(&engine, 0).0.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, [1, 2]);
}

/// Pushed out of the GPU, a prompt is loaded from the CPU, and every report says so.
#[test]
fn what_is_pushed_out_is_loaded_and_reported() {
    let engine = engine(Options::default());
    let request = body(&prompt(129), json!({}));
    let figure = |name: &str| {
        let page = get(engine.address(), "/metrics").body;
        let series = format!("{name}{{engine=\"0\",model_name=\"tiny\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("the series").parse::<f64>().unwrap()
    };
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let push = |tier: &str, from: usize| {
        let place = json!({"path": COMPLETIONS, "body": serde_json::from_str::<Value>(&request).unwrap(), "tiers": [tier], "from": from});
        let evict = json!({"evict": [place]}).to_string();
        let answer = post(engine.control_address(), "/control/cache", &evict);
        assert_eq!(answer.status, 200, "{}", answer.body);
    };

    assert_eq!(cached(serve(&engine, &request)), 0);
    assert_eq!(figure("vllm:kv_offload_store_bytes_total"), 131072.0);
    push("gpu", 1);
    assert_eq!(cached(serve(&engine, &request)), 128);
    assert_eq!(figure("vllm:external_prefix_cache_hits_total"), 96.0);
    assert_eq!(figure("vllm:kv_offload_load_bytes_total"), 98304.0);
    push("gpu", 0);
    push("cpu", 0);
    assert_eq!(cached(serve(&engine, &request)), 0);
    assert_eq!(figure("vllm:external_prefix_cache_hits_total"), 96.0);

    let answer = post(
        engine.address(),
        "/reset_prefix_cache?reset_external=true",
        "",
    );
    assert_eq!(answer.status, 200);
    assert_eq!(cached(serve(&engine, &request)), 0);
}

#[test]
fn it_says_what_it_serves_and_where_it_publishes() {
    let engine = engine(Options {
        aliases: vec!["tiny-1".into()],
        adapters: vec![("sql".into(), "/adapters/sql".into())],
        ..Options::default()
    });
    let read =
        |path: &str| -> Value { serde_json::from_str(&get(engine.address(), path).body).unwrap() };
    let models = read("/v1/models")["data"].as_array().unwrap().clone();
    let told: Vec<_> = models
        .iter()
        .map(|model| (&model["id"], &model["root"], &model["parent"]))
        .map(|(id, root, parent)| json!([id, root, parent]))
        .collect();
    assert_eq!(
        told,
        [
            json!(["tiny", "/models/tiny", null]),
            json!(["tiny-1", "/models/tiny", null]),
            json!(["sql", "/adapters/sql", "tiny"]),
        ]
    );
    for (model, status) in [("tiny", 200), ("tiny-1", 200), ("sql", 200), ("other", 404)] {
        for path in [COMPLETIONS, "/tokenize"] {
            let request = json!({"model": model, "prompt": "x", "max_tokens": 1});
            let answer = post(engine.address(), path, &request.to_string());
            assert_eq!(answer.status, status, "{path} {model}: {}", answer.body);
        }
    }
    let ports = engine.event_ports().unwrap();
    assert_eq!(
        read("/kv_event_sources"),
        json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@pod@tiny",
            "endpoint": format!("tcp://*:{}", ports.publisher),
            "replay_endpoint": format!("tcp://*:{}", ports.replay.unwrap()),
        }})
    );
    engine.set_version("0.30.0");
    assert_eq!(get(engine.address(), "/kv_event_sources").status, 404);
}

/// A chat's tokens depend on what its template takes, and `/tokenize` takes the same.
#[test]
fn tokenize_gives_the_tokens_of_the_request() {
    let engine = engine(Options::default());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let mut seen = Vec::new();
    for more in [
        json!({}),
        json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
        json!({"add_generation_prompt": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let mut request = json!({"model": "tiny", "messages": messages, "max_tokens": 1});
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let ask = |path: &str| -> Value {
            let answer = post(engine.address(), path, &request.to_string());
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            serde_json::from_str(&answer.body).unwrap()
        };
        let tokens = ask("/tokenize");
        let answer = ask("/v1/chat/completions");
        assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"]);
        assert_eq!(tokens["tokens"].as_array().unwrap().len(), tokens["count"]);
        assert!(!seen.contains(&tokens["tokens"]), "{more}");
        seen.push(tokens["tokens"].clone());
    }
}
