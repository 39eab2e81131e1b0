//! The engine against the tables that real vLLM servers filled (testdata/engine), over HTTP.

// The root's clippy.toml speaks of the module; this is a native program.
#![allow(clippy::disallowed_methods)]

mod http;

use http::{get, post, post_as, send};
use serde_json::Value;
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, Fault, FaultKind, Options, Record};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

fn control(engine: &Engine, path: &str, body: &str) -> Value {
    let answer = post(engine.control_address(), path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn engine(tiers: &[&str]) -> Engine {
    let tiers = tiers
        .iter()
        .map(|tier| TierKind::parse(tier).unwrap())
        .collect();
    Engine::start(Options {
        tiers,
        ..Options::default()
    })
    .unwrap()
}

fn rows(table: &str) -> Vec<Vec<Value>> {
    let path = format!(
        "{}/../../testdata/engine/{table}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let table: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    rows.iter()
        .map(|row| row.as_array().unwrap().clone())
        .collect()
}

/// A prompt of 1,024 tokens (one a byte) with one member more, given as JSON text.
fn prompt_1024(params: Option<&str>) -> String {
    let text: String = (0..64)
        .map(|line| format!("line {line:04} of it."))
        .collect();
    assert_eq!(text.len(), 1024);
    let params = params
        .map(|params| format!(",\"kv_transfer_params\":{params}"))
        .unwrap_or_default();
    format!("{{\"prompt\":\"{}\"{params},\"max_tokens\":2}}", text)
}

/// The record of the one request that the engine was sent.
fn only(engine: &Engine) -> Record {
    let records = engine.wait_answered(1, LIMIT).unwrap();
    assert_eq!(records.len(), 1);
    engine.clear_records();
    records[0].clone()
}

#[test]
fn max_load_tokens() {
    let engine = engine(&[]);
    engine.set_learn(false);
    engine
        .place(
            "/v1/completions",
            prompt_1024(None).as_bytes(),
            0,
            32,
            "cpu",
        )
        .unwrap();
    for row in rows("max_load_tokens") {
        let answer = post(
            engine.address(),
            "/v1/completions",
            &prompt_1024(row[0].as_str()),
        );
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let work = only(&engine).work.unwrap();
        assert_eq!(
            work.loaded_tokens() as u64,
            row[1].as_u64().unwrap(),
            "{row:?}"
        );
        assert_eq!(
            answer["usage"]["prompt_tokens_details"]["cached_tokens"], row[1],
            "{row:?}"
        );
        assert_eq!(!work.params.warnings.is_empty(), row[2], "{row:?}");
        assert_eq!(work.stored_tokens(), 0);
    }
}

#[test]
fn max_offload_tokens() {
    let engine = engine(&[]);
    for row in rows("max_offload_tokens") {
        engine.clear_cache(None);
        let params = format!("{{\"max_offload_tokens\":{}}}", row[0].as_str().unwrap());
        post(
            engine.address(),
            "/v1/completions",
            &prompt_1024(Some(&params)),
        );
        let stored = only(&engine).work.unwrap().stored_tokens() as u64;
        assert_eq!(stored * 1024, row[1].as_u64().unwrap(), "{row:?}");
    }
}

#[test]
fn kv_load_tiers() {
    let engine = engine(&["fs:LOCAL"]);
    engine.set_learn(false);
    for (tier, primary) in [("fs", false), ("cpu", true)] {
        engine.clear_cache(None);
        engine
            .place("/v1/completions", prompt_1024(None).as_bytes(), 0, 32, tier)
            .unwrap();
        for row in rows("kv_load_tiers") {
            let params = format!("{{\"kv_load_tiers\":{}}}", row[0].as_str().unwrap());
            post(
                engine.address(),
                "/v1/completions",
                &prompt_1024(Some(&params)),
            );
            let loaded = only(&engine).work.unwrap().loaded_tokens();
            // The primary tier is never filtered.
            let expected = primary || row[1].as_bool().unwrap();
            assert_eq!(loaded, if expected { 1024 } else { 0 }, "{tier} {row:?}");
        }
    }
}

#[test]
fn versions() {
    let engine = engine(&["fs"]);
    engine.set_learn(false);
    engine
        .place("/v1/completions", prompt_1024(None).as_bytes(), 0, 32, "fs")
        .unwrap();
    for row in rows("versions") {
        engine.set_version(row[0].as_str().unwrap());
        let loaded = |params: &str| {
            post(
                engine.address(),
                "/v1/completions",
                &prompt_1024(Some(params)),
            );
            let work = only(&engine).work.unwrap();
            (work.loaded_tokens(), work.stored_tokens())
        };
        assert_eq!(loaded("{\"max_load_tokens\":0}").0 == 0, row[1], "{row:?}");
        assert_eq!(loaded("{\"kv_load_tiers\":[]}").0 == 0, row[3], "{row:?}");
        // What is loaded is not stored again: ask with an empty cache.
        let fresh = "{\"prompt\":\"a fresh prompt, longer than one block is\",\"kv_transfer_params\":{\"max_offload_tokens\":0}}";
        post(engine.address(), "/v1/completions", fresh);
        assert_eq!(
            only(&engine).work.unwrap().stored_tokens() == 0,
            row[2],
            "{row:?}"
        );
        assert_eq!(
            get(engine.address(), "/version").body,
            format!("{{\"version\":{}}}", row[0])
        );
    }
}

#[test]
fn generate_places() {
    let engine = engine(&[]);
    for row in rows("generate_places") {
        let member = |params: &Value, comma: &str| match params.as_str() {
            Some(params) => format!("{comma}\"kv_transfer_params\":{params}"),
            None => String::new(),
        };
        let (top, nested) = (member(&row[0], ","), member(&row[1], ""));
        let body = format!(
            "{{\"token_ids\":[1,2],\"sampling_params\":{{\"extra_args\":{{{nested}}}}}{top}}}"
        );
        post(engine.address(), "/inference/v1/generate", &body);
        let capped = only(&engine).work.unwrap().params.max_offload_tokens == Some(0);
        assert_eq!(capped, row[2], "{row:?}");
    }
}

#[test]
fn endpoints() {
    let engine = engine(&[]);
    for row in rows("endpoints") {
        let (path, body) = (row[0].as_str().unwrap(), row[1].as_str().unwrap());
        let body = format!(
            "{},\"kv_transfer_params\":{{\"max_offload_tokens\":0}}}}",
            body.strip_suffix('}').unwrap()
        );
        let answer = post(engine.address(), path, &body);
        assert_eq!(answer.status, 200, "{row:?}: {}", answer.body);
        assert!(
            serde_json::from_str::<Value>(&answer.body).unwrap()["usage"].is_object(),
            "{row:?}"
        );
        let record = only(&engine);
        assert_eq!(record.body, body.as_bytes());
        assert_eq!(
            record.work.unwrap().params.max_offload_tokens == Some(0),
            row[2],
            "{row:?}"
        );
    }
}

#[test]
fn prompts() {
    let engine = engine(&[]);
    for row in rows("prompts") {
        let body = format!("{{\"prompt\":{}}}", row[0].as_str().unwrap());
        let answer = post(engine.address(), "/v1/completions", &body);
        assert_eq!(answer.status, row[1], "{row:?}");
        let prompts = only(&engine).work.map_or(0, |work| work.prompts.len());
        assert_eq!(prompts, row[2], "{row:?}");
    }
    let many = |count: usize| format!("{{\"prompt\":[{}]}}", vec!["\"x\""; count].join(","));
    assert_eq!(
        post(engine.address(), "/v1/completions", &many(1024)).status,
        200
    );
    assert_eq!(
        post(engine.address(), "/v1/completions", &many(1025)).status,
        400
    );
}

#[test]
fn refusals() {
    let engine = engine(&[]);
    for row in rows("refusals") {
        let media_type = row[1].as_str().unwrap_or("application/json");
        let body = row[2].as_str().unwrap().as_bytes();
        let answer = post_as(engine.address(), row[0].as_str().unwrap(), media_type, body);
        assert_eq!(answer.status, row[3], "{row:?}: {}", answer.body);
        assert!(
            answer.body.contains(row[4].as_str().unwrap()),
            "{row:?}: {}",
            answer.body
        );
        engine.clear_records();
    }
    for unreadable in [
        b"{\"prompt\":\"\xff\"}".as_slice(),
        b"\x1f\x8b\x08\x00\x00\x00",
    ] {
        let answer = post_as(
            engine.address(),
            "/v1/completions",
            "application/json",
            unreadable,
        );
        assert_eq!(answer.status, 400);
        assert!(
            answer.body.contains("There was an error parsing the body"),
            "{}",
            answer.body
        );
    }
    assert_eq!(get(engine.address(), "/v1/completions").status, 405);
    let closed = Engine::start(Options {
        scale_out: false,
        ..Options::default()
    })
    .unwrap();
    let generate = "{\"token_ids\":[1]}";
    assert_eq!(
        post(closed.address(), "/inference/v1/generate", generate).status,
        403
    );
    closed.set_version("0.29.0");
    assert_eq!(
        post(closed.address(), "/inference/v1/generate", generate).status,
        200
    );
}

#[test]
fn several_prompts_report_the_cached_tokens_of_the_last() {
    let engine = engine(&[]);
    let one = "a".repeat(64);
    let body = format!("{{\"prompt\":[\"{one}\",\"{one}\"]}}");
    engine
        .place("/v1/completions", body.as_bytes(), 0, 2, "cpu")
        .unwrap();
    assert_eq!(
        engine.evidence("/v1/completions", body.as_bytes()).unwrap(),
        serde_json::json!({"block_size": 32, "prompts": [
            {"runs": [[2, ["cpu"]]]},
            {"runs": [[1, ["gpu", "cpu"]], [1, ["cpu"]]]},
        ]})
    );
    let answer = post(engine.address(), "/v1/completions", &body);
    let usage = serde_json::from_str::<Value>(&answer.body).unwrap()["usage"].clone();
    assert_eq!(usage["prompt_tokens"], 128);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 64);
    let work = only(&engine).work.unwrap();
    assert_eq!(
        work.prompts
            .iter()
            .map(|served| served.loaded_tokens)
            .collect::<Vec<_>>(),
        [64, 32]
    );
}

#[test]
fn prompt_logprobs_read_no_cache() {
    let engine = engine(&[]);
    engine
        .place(
            "/v1/completions",
            prompt_1024(None).as_bytes(),
            0,
            32,
            "cpu",
        )
        .unwrap();
    for extra in ["\"prompt_logprobs\":0", "\"echo\":true,\"logprobs\":1"] {
        let body = prompt_1024(None).replacen('{', &format!("{{{extra},"), 1);
        let evidence = engine.evidence("/v1/completions", body.as_bytes()).unwrap();
        assert_eq!(
            evidence["prompts"],
            serde_json::json!([{"runs": [[32, []]]}])
        );
        post(engine.address(), "/v1/completions", &body);
        assert_eq!(only(&engine).work.unwrap().loaded_tokens(), 0);
    }
}

#[test]
fn streams_send_their_headers_first() {
    let engine = engine(&[]);
    engine.set_latency(Duration::from_millis(400));
    for (path, body) in [
        (
            "/v1/completions",
            "{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":3}",
        ),
        (
            "/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"max_tokens\":3,\"stream_options\":{\"include_usage\":true}}",
        ),
        (
            "/v1/responses",
            "{\"input\":\"x\",\"stream\":true,\"max_output_tokens\":3}",
        ),
        (
            "/v1/messages",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"max_tokens\":3}",
        ),
        (
            "/inference/v1/generate",
            "{\"token_ids\":[1],\"stream\":true,\"sampling_params\":{\"max_tokens\":3}}",
        ),
    ] {
        let mut stream = TcpStream::connect(engine.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let start = Instant::now();
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .unwrap();
        let mut first = [0; 4096];
        let read = stream.read(&mut first).unwrap();
        let early = start.elapsed();
        let head = String::from_utf8_lossy(&first[..read]).to_lowercase();
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(
            early < Duration::from_millis(300),
            "{path}: headers after {early:?}"
        );
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(400));
        let tokens = rest.matches("ok\"").count() + rest.matches("[98]").count();
        assert!(tokens >= 3, "{path}: {rest}");
        assert!(rest.contains("data: [DONE]\n\n"), "{path}: {rest}");
        assert_eq!(
            rest.contains("cached_tokens") || rest.contains("cache_read"),
            path != "/v1/completions",
            "{path}"
        );
        only(&engine);
    }
}

#[test]
fn queues_when_its_slots_are_taken() {
    let engine = Engine::start(Options {
        slots: Some(1),
        latency: Duration::from_millis(300),
        ..Options::default()
    })
    .unwrap();
    let address = engine.address();
    let clients: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || {
                post(address, "/v1/completions", "{\"prompt\":\"x\"}").status
            })
        })
        .collect();
    let start = Instant::now();
    while engine.queued() < 2 && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(2));
    }
    engine.set_waiting("0", "5.0");
    engine.set_waiting("1", "NaN");
    let page = get(address, "/metrics");
    assert!(
        page.head
            .contains("content-type: text/plain; version=1.0.0; charset=utf-8"),
        "{}",
        page.head
    );
    for line in [
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 7.0",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} NaN",
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 1.0",
    ] {
        assert!(page.body.lines().any(|found| found == line), "{line}");
    }
    assert!(
        clients
            .into_iter()
            .all(|client| client.join().unwrap() == 200)
    );
    assert_eq!(engine.queued(), 0);
    assert_eq!(engine.polls()["/metrics"], 1);
    assert_eq!(engine.records().len(), 3);
}

#[test]
fn fails_on_request() {
    let engine = engine(&[]);
    let try_once = || {
        send(
            engine.address(),
            "POST /v1/completions HTTP/1.1\r\ncontent-type: application/json",
            b"{\"prompt\":\"x\"}",
        )
        .map(|answer| answer.status)
    };
    let fault = |kind| Fault {
        count: 1,
        kind,
        path: None,
        after_body: false,
    };
    engine.add_fault(fault(FaultKind::Status(503)));
    engine.add_fault(Fault {
        after_body: true,
        ..fault(FaultKind::Reset)
    });
    engine.add_fault(Fault {
        path: Some("/metrics".into()),
        ..fault(FaultKind::Status(500))
    });
    assert_eq!(
        [try_once(), try_once(), try_once()],
        [Some(503), None, Some(200)]
    );
    assert_eq!(
        [
            get(engine.address(), "/metrics").status,
            get(engine.address(), "/metrics").status
        ],
        [500, 200]
    );
    let received: Vec<_> = engine
        .records()
        .iter()
        .map(|record| record.received)
        .collect();
    assert_eq!(received, [0, 14, 14]);
}

#[test]
fn the_control_api() {
    let engine = engine(&["fs"]);
    control(
        &engine,
        "/control/settings",
        "{\"version\":\"0.30.0\",\"waiting\":{\"0\":3,\"1\":\"-Inf\"},\"learn\":false}",
    );
    assert!(
        engine
            .metrics()
            .contains("vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} -Inf\n")
    );
    control(
        &engine,
        "/control/settings",
        "{\"metrics\":\"vllm:num_requests_wai\"}",
    );
    assert_eq!(
        get(engine.address(), "/metrics").body,
        "vllm:num_requests_wai"
    );
    control(
        &engine,
        "/control/settings",
        "{\"metrics\":null,\"waiting\":4,\"stores\":{\"1:fs\":[1048576,0.5]}}",
    );
    assert!(
        engine.metrics().contains(
            "vllm:kv_offload_tiering_write_time_total{engine=\"0\",model_name=\"tiny\",tier=\"1:fs\"} 0.5\n"
        )
    );
    assert!(
        !engine
            .metrics()
            .contains("\nvllm:kv_offload_store_bytes_total{")
    );
    control(&engine, "/control/settings", "{\"stores\":null}");
    assert!(
        engine
            .metrics()
            .contains("\nvllm:kv_offload_store_bytes_total{")
    );
    assert!(
        get(engine.address(), "/metrics")
            .body
            .contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 4.0\n")
    );

    let request = prompt_1024(None);
    let place = format!(
        "{{\"clear\":true,\"place\":[{{\"path\":\"/v1/completions\",\"body\":{request},\"tiers\":[\"gpu\",\"fs\"],\"blocks\":4}},{{\"path\":\"/v1/completions\",\"body\":{request},\"tiers\":[\"fs\"],\"from\":4,\"blocks\":16}}]}}"
    );
    control(&engine, "/control/cache", &place);
    let evidence = control(
        &engine,
        "/control/evidence",
        &format!("{{\"path\":\"/v1/completions\",\"body\":{request}}}"),
    );
    assert_eq!(
        evidence,
        serde_json::json!({"block_size": 32, "prompts": [{"runs": [[4, ["gpu", "fs"]], [16, ["fs"]], [12, []]]}]})
    );

    control(&engine, "/control/faults", "{\"status\":429,\"count\":2}");
    assert_eq!(
        post(engine.address(), "/v1/completions", &request).status,
        429
    );
    assert_eq!(
        send(
            engine.control_address(),
            "DELETE /control/faults HTTP/1.1",
            b""
        )
        .unwrap()
        .status,
        200
    );
    assert_eq!(
        post(engine.address(), "/v1/completions?a=b", &request).status,
        200
    );
    let records: Value =
        serde_json::from_str(&get(engine.control_address(), "/control/requests?since=1").body)
            .unwrap();
    assert_eq!(records.as_array().unwrap().len(), 1);
    let record = &records[0];
    assert_eq!(record["target"], "/v1/completions?a=b");
    assert_eq!(record["body"], request);
    assert_eq!(record["body_state"], "complete");
    assert_eq!(record["work"]["loaded_tokens"], 512);
    assert_eq!(
        record["work"]["prompts"][0]["loaded_by_tier"],
        serde_json::json!({"fs": 512})
    );
    assert_eq!(
        record["headers"][0],
        serde_json::json!(["content-type", "application/json"])
    );
    assert_eq!(
        get(engine.control_address(), "/control/requests/2/body").body,
        request
    );
    assert_eq!(
        send(
            engine.control_address(),
            "DELETE /control/requests HTTP/1.1",
            b""
        )
        .unwrap()
        .status,
        200
    );
    assert_eq!(
        get(engine.control_address(), "/control/requests").body,
        "[]"
    );

    for (path, body) in [
        ("/control/settings", "{\"waitng\":1}"),
        ("/control/settings", "{\"waiting\":[1]}"),
        ("/control/settings", "{\"stores\":{\"cpu\":[1]}}"),
        ("/control/faults", "{\"status\":503,\"reset\":true}"),
        ("/control/faults", "{\"status\":7}"),
        (
            "/control/cache",
            "{\"place\":[{\"path\":\"/v1/completions\",\"body\":{\"prompt\":\"x\"},\"tiers\":[\"nvme\"]}]}",
        ),
        ("/control/nothing", "{}"),
    ] {
        assert_eq!(
            post(engine.control_address(), path, body).status,
            400,
            "{path} {body}"
        );
    }
}

#[test]
fn records_trailers_and_cut_bodies() {
    let engine = engine(&[]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let mut stream = TcpStream::connect(engine.address()).unwrap();
    let chunks = "7\r\n{\"promp\r\n7\r\nt\":\"x\"}\r\n0\r\nchecksum: 17\r\n\r\n";
    stream
        .write_all(
            format!("{head}trailer: checksum\r\nconnection: close\r\n\r\n{chunks}").as_bytes(),
        )
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let record = only(&engine);
    assert_eq!(
        record.trailers,
        Some(vec![("checksum".to_owned(), b"17".to_vec())])
    );
    assert_eq!(record.header("trailer"), Some(b"checksum".as_slice()));

    let mut stream = TcpStream::connect(engine.address()).unwrap();
    stream
        .write_all(format!("{head}\r\n7\r\n{{\"promp\r\n").as_bytes())
        .unwrap();
    engine
        .wait_for(LIMIT, |records| {
            records.iter().any(|record| record.received == 7)
        })
        .unwrap();
    drop(stream);
    let cut = |record: &Record| {
        matches!(
            record.body_state,
            stand_in_engine::record::BodyState::Cut(_)
        )
    };
    let records = engine
        .wait_for(LIMIT, |records| records.iter().any(cut))
        .unwrap();
    assert_eq!(records[0].body, b"{\"promp".as_slice());
}

#[test]
fn speaks_http2_and_frees_its_port() {
    let mut engine = engine(&[]);
    let address = engine.address();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3], 4, "a SETTINGS frame");
    engine.stop();
    let again = Engine::start(Options {
        listen: address,
        ..Options::default()
    })
    .unwrap();
    assert_eq!(get(again.address(), "/health").status, 200);
}
