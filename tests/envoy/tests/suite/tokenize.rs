//! Requests that wait for `/tokenize` in Envoy: they go on as they came, whatever the answer, and none is
//! answered 413.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use envoy_tests::{Bootstrap, Envoy, Reply, Request, Sink, until};
use serde_json::{Value, json};

use crate::support::{CHAT, COMPLETIONS};

const HELLO: &str = r#"{"messages":[{"role":"user","content":"hello"}],"stream":false}"#;
const ASKED: &str = r#"{"messages":[{"role":"user","content":"hello"}]}"#;
const TOKENS: &[u8] = br#"{"count":3,"max_model_len":4096,"tokens":[5,6,7]}"#;

/// The shipped set-up, both roles, with this `tokenize`.
fn shipped(tokenize: &Value, engine: &Sink, tools: &[SocketAddr]) -> Bootstrap {
    Bootstrap::shipped("downstream.yaml")
        .scorer(&json!({
            "endpoints": ["127.0.0.1:9"],
            "scrape": {"cluster": "kv-scrape"},
            "evidence": {"events": {"cluster": "kv-events-bridge"}, "tokenize": tokenize},
        }))
        .engines(&[engine])
        .hosts("tokenize", tools)
}

/// As shipped, 768 KiB of a limit of 1 MiB, with patience for a busy machine.
fn as_shipped() -> Value {
    json!({"cluster": "tokenize", "maxBodyBytes": 786_432, "timeout": "10s"})
}

fn tool() -> Sink {
    Sink::with(|_| Reply::Status(200, TOKENS.to_vec()))
}

fn tokenized(envoy: &Envoy, result: &str) -> u64 {
    envoy.custom(
        "selective_kv_scorer_tokenize_total",
        &format!("result={result}"),
    )
}

fn status(request: &Request, h2: bool, envoy: &Envoy) -> u16 {
    match h2 {
        true => request.h2(envoy.address()).status,
        false => request.to(envoy.address()).status,
    }
}

/// A completion of so many bytes.
fn completion(bytes: usize) -> Vec<u8> {
    let frame = r#"{"prompt":""}"#.len();
    format!(r#"{{"prompt":"{}"}}"#, "x".repeat(bytes - frame)).into_bytes()
}

#[test]
fn a_chat_waits_for_its_tokens_and_goes_on_as_it_came() {
    for h2 in [false, true] {
        let slow = Duration::from_millis(100);
        let answer = Reply::After(slow, Box::new(Reply::Status(200, TOKENS.to_vec())));
        let tool = Sink::with(move |_| answer.clone());
        let engine = Sink::ok();
        let envoy = Envoy::start(&shipped(&as_shipped(), &engine, &[tool.address()]));

        let began = Instant::now();
        assert_eq!(status(&Request::post(CHAT, HELLO), h2, &envoy), 200);
        assert!(began.elapsed() >= slow, "HTTP/2 {h2}");
        assert_eq!(engine.take_one().text(), HELLO, "HTTP/2 {h2}");
        let called = tool.take_one();
        assert_eq!(
            (
                called.method.as_str(),
                called.target.as_str(),
                called.text().as_str()
            ),
            ("POST", "/tokenize", ASKED)
        );
        assert_eq!(
            called.header("content-type").as_deref(),
            Some("application/json")
        );
        // Again: its tokens are known.
        assert_eq!(status(&Request::post(CHAT, HELLO), h2, &envoy), 200);
        assert_eq!(engine.take_one().text(), HELLO, "HTTP/2 {h2}");
        assert_eq!(tool.seen().len(), 0, "HTTP/2 {h2}");
        assert_eq!(
            (tokenized(&envoy, "ok"), tokenized(&envoy, "cached")),
            (1, 1)
        );
        let line = envoy.prometheus("selective_kv_scorer_tokenize_total");
        assert_eq!(line.len(), 2, "{line:?}");
        assert!(
            line.contains(&r#"selective_kv_scorer_tokenize_total{result="ok"} 1"#.to_owned()),
            "{line:?}"
        );
    }
}

#[test]
fn whatever_becomes_of_the_call_the_request_goes_on() {
    let late = Reply::After(Duration::from_secs(3), Box::new(Reply::ok()));
    let rows: Vec<(&str, Option<Reply>)> = vec![
        ("status", Some(Reply::Status(400, b"{}".to_vec()))),
        ("status", Some(Reply::Reset)),
        ("timeout", Some(late)),
        (
            "malformed",
            Some(Reply::Status(200, b"{\"tokens\":[1".to_vec())),
        ),
        ("malformed", Some(Reply::Status(200, Vec::new()))),
        ("malformed", Some(Reply::Status(200, vec![b' '; 2_000_000]))),
        // A cluster without hosts.
        ("not_sent", None),
    ];
    for (result, reply) in rows {
        let engine = Sink::ok();
        let tool = reply
            .clone()
            .map(|reply| Sink::with(move |_| reply.clone()));
        let addresses: Vec<_> = tool.iter().map(Sink::address).collect();
        let timeout = if result == "timeout" { "200ms" } else { "10s" };
        let tokenize = json!({"cluster": "tokenize", "timeout": timeout});
        let envoy = Envoy::start(&shipped(&tokenize, &engine, &addresses));
        for h2 in [false, true] {
            let status = status(&Request::post(CHAT, HELLO), h2, &envoy);
            assert_eq!(status, 200, "{result}");
            assert_eq!(engine.take_one().text(), HELLO, "{result}, HTTP/2 {h2}");
        }
        let counted = envoy.stats("selective_kv_scorer_tokenize_total");
        assert_eq!(tokenized(&envoy, result), 2, "{result}: {counted:?}");
    }
}

#[test]
fn a_closed_port_and_an_unknown_cluster_are_no_reason_to_wait() {
    let gone = tool().address();
    for (cluster, result) in [("tokenize", "status"), ("nowhere", "not_sent")] {
        let engine = Sink::ok();
        let tokenize = json!({"cluster": cluster});
        let envoy = Envoy::start(&shipped(&tokenize, &engine, &[gone]));
        assert_eq!(Request::post(CHAT, HELLO).to(envoy.address()).status, 200);
        assert_eq!(engine.take_one().text(), HELLO);
        assert_eq!(
            tokenized(&envoy, result),
            1,
            "{:?}",
            envoy.stats("tokenize_total")
        );
    }
}

/// The same body with its length, and in two pieces without: a few bytes, then all the rest at once.
fn both_ways(body: &[u8], first: usize, length: bool) -> Request {
    let (head, rest) = body.split_at(first.min(body.len()));
    let mut request = Request::post(COMPLETIONS, Vec::new());
    request.steps.clear();
    let request = match length {
        true => request.header("content-length", body.len().to_string()),
        false => request.chunked(),
    };
    request.send(head).pause(20).send(rest)
}

#[test]
fn no_body_is_answered_413_whatever_its_size() {
    // Limit of the buffers, `maxBodyBytes`, sizes.
    let rows: [(u32, u32, &[usize]); 2] = [
        (
            1_048_576,
            786_432,
            &[700_000, 786_432, 786_433, 1_000_000, 1_048_577, 10_000_000],
        ),
        (
            32_768,
            24_576,
            &[20_000, 24_576, 24_577, 33_000, 50_000, 10_000_000],
        ),
    ];
    for (limit, max, sizes) in rows {
        let engine = Sink::ok();
        let tool = tool();
        let tokenize = json!({"cluster": "tokenize", "maxBodyBytes": max, "maxCacheBytes": 0, "timeout": "10s"});
        let bootstrap = shipped(&tokenize, &engine, &[tool.address()]).edit_at(
            "/static_resources/listeners/0",
            |l| {
                l["per_connection_buffer_limit_bytes"] = json!(limit);
            },
        );
        let envoy = Envoy::start(&bootstrap);
        let (mut waited, mut large, mut unknown) = (0, 0, 0);
        for &bytes in sizes {
            let body = completion(bytes);
            for (first, length) in [(1, true), (10_000, true), (1, false), (10_000, false)] {
                for h2 in [false, true] {
                    let what = format!("{bytes} of {limit}: {first}, {length}, HTTP/2 {h2}");
                    let request = both_ways(&body, first, length);
                    assert_eq!(status(&request, h2, &envoy), 200, "{what}");
                    assert!(engine.take_one().body == body, "{what}");
                    match length {
                        true if bytes <= max as usize => waited += 1,
                        true => large += 1,
                        false => unknown += 1,
                    }
                }
            }
        }
        let counted = ["ok", "too_large", "no_length"].map(|result| tokenized(&envoy, result));
        assert_eq!(counted, [waited, large, unknown], "{limit}");
    }
}

#[test]
fn trailers_and_bytes_behind_the_brace_wait_too() {
    let slow = Duration::from_millis(50);
    let answer = Reply::After(slow, Box::new(Reply::Status(200, TOKENS.to_vec())));
    let tool = Sink::with(move |_| answer.clone());
    let engine = Sink::ok();
    let bootstrap = shipped(&as_shipped(), &engine, &[tool.address()]).trailers();
    let envoy = Envoy::start(&bootstrap);
    for (i, behind) in ["", "\n", "  \n \n"].into_iter().enumerate() {
        // Each its own text.
        let body = HELLO.replace("hello", &format!("hello {i}")) + behind;
        // In HTTP/1.1 a body with a length has no trailers.
        let request = Request::post_chunked(CHAT, body.as_bytes(), 20)
            .header("content-length", body.len().to_string())
            .trailer("x-end", "yes");
        assert_eq!(request.h2(envoy.address()).status, 200, "{i}");
        let seen = engine.take_one();
        assert_eq!(seen.text(), body, "{i}");
        assert_eq!(seen.trailers, [("x-end".to_owned(), b"yes".to_vec())]);
        assert_eq!(
            status(&Request::post(CHAT, body.clone()), false, &envoy),
            200
        );
        assert_eq!(engine.take_one().text(), body, "{i}");
    }
    let results = ["ok", "cached"].map(|result| tokenized(&envoy, result));
    let counted = envoy.stats("selective_kv_scorer_tokenize");
    assert_eq!(results, [3, 3], "{counted:#?}");
}

#[test]
fn a_client_that_goes_while_it_waits_leaves_nothing_behind() {
    let slow = Reply::After(
        Duration::from_millis(100),
        Box::new(Reply::Status(200, TOKENS.to_vec())),
    );
    let tool = Sink::with(move |_| slow.clone());
    let engine = Sink::ok();
    let envoy = Envoy::start(&shipped(&as_shipped(), &engine, &[tool.address()]));
    for i in 0..10 {
        let body = HELLO.replace("hello", &format!("hello {i}"));
        let request = Request::post(CHAT, body).pause(30).reset();
        assert_eq!(request.try_to(envoy.address()), None);
    }
    until("ten streams to be gone", || {
        (tokenized(&envoy, "gone") == 10).then_some(())
    });
    until("their calls to end", || {
        (tool.seen().len() == 10).then_some(())
    });
    std::thread::sleep(Duration::from_millis(200));
    engine.take();
    assert_eq!(Request::post(CHAT, HELLO).to(envoy.address()).status, 200);
    assert_eq!(engine.take_one().text(), HELLO);
    assert_eq!(
        envoy.custom("selective_kv_scorer_problems_total", "kind=late_answer"),
        0
    );
}
