//! The scorer role of the built module and request bodies: what is read, and the streams that wait
//! for the answer of `/tokenize`.

use skv_harness::{Answer, Fault, Harness, HttpCall, Outcome, Plugin, Request, Stream};

const CONFIG: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000"],"scrape":{"cluster":"kv-scrape"},
    "evidence":{"events":{"cluster":"kv-events-bridge"},"tokenize":{"cluster":"engines"}}}"#;
const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
const ASKED: &str = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
const TOKENS: &str = r#"{"count":3,"max_model_len":4096,"tokens":[5,6,7]}"#;
/// Default of `tokenize.maxBodyBytes`.
const MAX_WHOLE: usize = 24_576;

/// Of a body as long as [`CHAT`].
fn chat() -> Request {
    chat_of(CHAT.len())
}

fn chat_of(bytes: usize) -> Request {
    Request::post("/v1/chat/completions")
        .header("x-request-id", "r-1")
        .header("content-length", bytes.to_string())
        .upstream("10.0.0.1:8000")
}

fn scorer(env: &Harness) -> Plugin {
    env.vm("").plugin("kv-scorer", CONFIG)
}

/// The calls that the scorer's streams made.
fn calls(scorer: &Plugin) -> Vec<HttpCall> {
    let mut calls = scorer.http_calls();
    calls.retain(|call| call.headers.get(":path") == Some(b"/tokenize".as_slice()));
    calls
}

fn one_call(scorer: &Plugin) -> HttpCall {
    let mut calls = calls(scorer);
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

fn tokenized(env: &Harness, result: &str) -> u64 {
    env.labelled("selective_kv_scorer_tokenize_total", &[("result", result)])
}

/// The results of evidence so far and how often each.
fn evidence(env: &Harness) -> Vec<(String, u64)> {
    let start = "selective_kv_scorer_evidence_total.result=.=";
    let results = env.metrics().into_iter().filter_map(|(name, metric)| {
        let result = name.strip_prefix(start)?.strip_suffix(";.;")?;
        Some((result.to_owned(), metric.value))
    });
    results.filter(|(_, n)| *n > 0).collect()
}

fn late(env: &Harness) -> u64 {
    let kind = ("kind", "late_answer");
    env.labelled("selective_kv_scorer_problems_total", &[kind])
}

/// A stream that waits for its tokens.
fn waiting(env: &Harness, scorer: &Plugin) -> Stream {
    let mut stream = scorer.request(chat());
    stream.chunk(CHAT);
    assert_eq!(stream.passed(), "", "{:?}", env.metrics());
    stream
}

fn whole(out: &Outcome, body: &str) {
    assert_eq!(out.text(), body);
    assert!(out.complete() && !out.paused && out.local_response.is_none());
}

#[test]
fn a_chat_waits_for_its_tokens_and_goes_on_as_it_came() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = waiting(&env, &scorer);
    let call = one_call(&scorer);
    for (name, value) in [
        (":method", "POST"),
        (":path", "/tokenize"),
        (":authority", "vllm"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(call.headers.get(name), Some(value.as_bytes()), "{name}");
    }
    assert_eq!(
        (call.cluster.as_str(), call.timeout_ms, call.body.as_slice()),
        ("engines", 200, ASKED.as_bytes())
    );
    scorer.answer(call.token, Answer::new(200, TOKENS));
    stream.resume();
    assert_eq!(stream.passed(), CHAT);
    whole(&stream.end(), CHAT);
    assert_eq!((tokenized(&env, "ok"), late(&env)), (1, 0));
    // The same text again: no call, no waiting.
    let out = scorer.send(chat(), CHAT);
    whole(&out, CHAT);
    assert_eq!((calls(&scorer).len(), tokenized(&env, "cached")), (0, 1));
}

/// `/tokenize` knows only the names that the engine serves.
#[test]
fn an_aliased_model_is_asked_about_by_its_own_name() {
    let env = Harness::new();
    let aliased = r#""evidence":{"aliases":{"gpt-x":"tiny"},"#;
    let config = CONFIG.replace(r#""evidence":{"#, aliased);
    let scorer = env.vm("").plugin("kv-scorer", &config);
    let chat = r#"{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}"#;
    let mut stream = scorer.request(chat_of(chat.len()));
    stream.chunk(chat);
    let call = one_call(&scorer);
    let asked = ASKED.replacen('{', r#"{"model":"tiny","#, 1);
    assert_eq!(String::from_utf8_lossy(&call.body), asked);
    scorer.answer(call.token, Answer::new(200, TOKENS));
    stream.resume();
    whole(&stream.end(), chat);
}

#[test]
fn a_body_in_pieces_is_read_once_and_waits_whole() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = scorer.request(chat_of(CHAT.len() + 1));
    for byte in CHAT.as_bytes() {
        stream.chunk([*byte]);
        assert_eq!(stream.passed(), "");
    }
    let call = one_call(&scorer);
    assert_eq!(call.body, ASKED.as_bytes());
    // White space and the end come while it waits.
    stream.chunk("\n").last_chunk("");
    assert_eq!(stream.passed(), "");
    scorer.answer(call.token, Answer::new(200, TOKENS));
    stream.resume();
    whole(&stream.close(), &format!("{CHAT}\n"));
}

#[test]
fn the_end_of_the_stream_may_come_before_or_after_the_answer() {
    for (end_first, alone) in [(true, true), (true, false), (false, true)] {
        let env = Harness::new();
        let scorer = scorer(&env);
        let mut stream = scorer.request(chat());
        match alone {
            true => stream.chunk(CHAT),
            false => stream.last_chunk(CHAT),
        };
        if end_first && alone {
            stream.last_chunk("");
        }
        scorer.answer(one_call(&scorer).token, Answer::new(200, TOKENS));
        stream.resume();
        if !end_first {
            stream.last_chunk("");
        }
        whole(&stream.close(), CHAT);
        assert_eq!(tokenized(&env, "ok"), 1);
    }
}

#[test]
fn trailers_wait_too() {
    for answer_first in [false, true] {
        let env = Harness::new();
        let scorer = scorer(&env);
        let mut stream = waiting(&env, &scorer);
        let token = one_call(&scorer).token;
        if answer_first {
            scorer.answer(token, Answer::new(200, TOKENS));
            whole(&stream.trailers([("x-end", "1")]), CHAT);
            continue;
        }
        stream.last_trailers([("x-end", "1")]);
        assert_eq!(stream.passed(), "");
        scorer.answer(token, Answer::new(200, TOKENS));
        stream.resume();
        whole(&stream.close(), CHAT);
    }
}

#[test]
fn whatever_the_answer_the_request_goes_on() {
    let rows: Vec<(&str, Option<Answer>)> = vec![
        ("status", Some(Answer::new(503, "no healthy upstream"))),
        ("status", Some(Answer::new(400, r#"{"tokens":[1]}"#))),
        (
            "timeout",
            Some(Answer::new(504, "upstream request timeout")),
        ),
        ("no_answer", None),
        ("malformed", Some(Answer::new(200, ""))),
        ("malformed", Some(Answer::new(200, r#"{"tokens":[]}"#))),
        ("malformed", Some(Answer::new(200, r#"{"tokens":[1.5]}"#))),
        ("malformed", Some(Answer::new(200, r#"{"tokens":[1"#))),
        ("malformed", Some(Answer::new(200, vec![b' '; 2 << 20]))),
        (
            "unreadable",
            Some(Answer {
                headers: [("x-odd", "1")].into_iter().collect(),
                ..Answer::default()
            }),
        ),
    ];
    for (result, answer) in rows {
        let env = Harness::new();
        let scorer = scorer(&env);
        let mut stream = waiting(&env, &scorer);
        let token = one_call(&scorer).token;
        match answer {
            Some(answer) => scorer.answer(token, answer),
            None => scorer.fail_call(token),
        }
        stream.resume();
        whole(&stream.end(), CHAT);
        assert_eq!(tokenized(&env, result), 1, "{result}");
        assert_eq!(evidence(&env), [("messages".to_owned(), 1)], "{result}");
    }
}

#[test]
fn a_call_that_is_not_taken_makes_nobody_wait() {
    let env = Harness::new();
    env.add_cluster("kv-scrape");
    let scorer = scorer(&env);
    whole(&scorer.send(chat(), CHAT), CHAT);
    assert_eq!(tokenized(&env, "not_sent"), 1);
}

#[test]
fn a_stream_that_ends_while_it_waits_leaves_nothing_behind() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let stream = waiting(&env, &scorer);
    let token = one_call(&scorer).token;
    stream.reset();
    assert_eq!(tokenized(&env, "gone"), 1);
    scorer.answer(token, Answer::new(200, TOKENS));
    assert_eq!((late(&env), evidence(&env)), (0, vec![]));
    // Nor was it kept.
    let mut stream = waiting(&env, &scorer);
    scorer.answer(one_call(&scorer).token, Answer::new(200, TOKENS));
    stream.resume();
    whole(&stream.end(), CHAT);
}

#[test]
fn an_answer_that_never_comes_holds_nobody_for_ever() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = waiting(&env, &scorer);
    let token = one_call(&scorer).token;
    for _ in 0..5 {
        scorer.tick();
        assert_eq!(stream.resume().passed(), "");
    }
    scorer.tick();
    assert_eq!(stream.resume().passed(), CHAT);
    whole(&stream.end(), CHAT);
    scorer.answer(token, Answer::new(200, TOKENS));
    assert_eq!((tokenized(&env, "lost"), late(&env)), (1, 1));
}

#[test]
fn a_scorer_that_is_taken_out_lets_its_streams_go() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = waiting(&env, &scorer);
    assert!(scorer.shut_down());
    assert_eq!(stream.resume().passed(), CHAT);
    whole(&stream.end(), CHAT);
}

#[test]
fn no_body_above_the_limit_waits_and_none_is_answered_413() {
    let text = |bytes: usize| {
        let frame = r#"{"prompt":""}"#.len();
        format!(r#"{{"prompt":"{}"}}"#, "x".repeat(bytes - frame))
    };
    let completion = || {
        Request::post("/v1/completions")
            .header("x-request-id", "r-2")
            .buffer_limit(32_768)
    };
    for (bytes, declared, result) in [
        (MAX_WHOLE, true, "ok"),
        (MAX_WHOLE + 1, true, "too_large"),
        (10_000_000, true, "too_large"),
        (MAX_WHOLE, false, "no_length"),
        (40_000, false, "no_length"),
        (10_000_000, false, "no_length"),
    ] {
        // A few bytes, then a burst; and evenly.
        for pieces in [vec![10, 32_768], vec![1_000], vec![16_384]] {
            let env = Harness::new();
            let scorer = scorer(&env);
            let body = text(bytes);
            let request = match declared {
                true => completion().header("content-length", bytes.to_string()),
                false => completion(),
            };
            let mut stream = scorer.request(request);
            let mut rest = body.as_bytes();
            for piece in pieces.iter().chain(pieces.last().into_iter().cycle()) {
                let (now, later) = rest.split_at((*piece).min(rest.len()));
                stream.chunk(now);
                rest = later;
                if rest.is_empty() {
                    break;
                }
                if result != "ok" && later.len() > body.len() - 2_000 {
                    assert!(!stream.passed().is_empty(), "it never waits");
                }
            }
            if result == "ok" {
                scorer.answer(one_call(&scorer).token, Answer::new(200, TOKENS));
                stream.resume();
            }
            whole(&stream.end(), &body);
            let counted = tokenized(&env, result);
            assert_eq!(counted, 1, "{bytes} bytes, {declared}, {pieces:?}");
        }
    }
}

#[test]
fn a_body_without_length_waits_if_its_end_is_there() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = scorer.request(chat().without("content-length"));
    stream.last_chunk(CHAT);
    assert_eq!(stream.passed(), "");
    scorer.answer(one_call(&scorer).token, Answer::new(200, TOKENS));
    stream.resume();
    whole(&stream.close(), CHAT);
}

#[test]
fn bytes_behind_the_closing_brace_end_the_waiting_at_the_limit() {
    let env = Harness::new();
    let scorer = scorer(&env);
    let mut stream = scorer.request(chat().buffer_limit(32_768));
    stream.chunk(CHAT);
    let token = one_call(&scorer).token;
    let mut sent = CHAT.to_owned();
    while sent.len() + 8_000 <= MAX_WHOLE {
        sent.push_str(&" ".repeat(8_000));
        stream.chunk(" ".repeat(8_000));
        assert_eq!(stream.passed(), "");
    }
    sent.push_str(&" ".repeat(8_000));
    stream.chunk(" ".repeat(8_000));
    assert_eq!(stream.passed(), sent);
    scorer.answer(token, Answer::new(200, TOKENS));
    whole(&stream.end(), &sent);
    assert_eq!((tokenized(&env, "too_large"), late(&env)), (1, 0));
}

#[test]
fn what_is_read_and_what_becomes_of_it() {
    let post = |path: &str| Request::post(path).header("x-request-id", "r");
    let none: &[&str] = &[];
    let rows: Vec<(&str, Request, &str, &[&str])> = vec![
        (
            "ids",
            post("/v1/completions"),
            r#"{"prompt":[1,2]}"#,
            &["no_block_size"],
        ),
        (
            "ids of generate",
            post("/inference/v1/generate"),
            r#"{"token_ids":[1]}"#,
            &["no_block_size"],
        ),
        (
            "texts",
            post("/v1/completions"),
            r#"{"prompt":["a","b"]}"#,
            &["texts"],
        ),
        (
            "a batch",
            post("/v1/chat/completions/batch"),
            r#"{"messages":[[]]}"#,
            &["batch"],
        ),
        (
            "input",
            post("/v1/responses"),
            r#"{"input":"a"}"#,
            &["input"],
        ),
        (
            "an image",
            post("/v1/chat/completions"),
            r#"{"messages":[{"content":[{"type":"image_url"}]}]}"#,
            &["multimodal"],
        ),
        (
            "documents",
            post("/v1/chat/completions"),
            r#"{"messages":[],"documents":[]}"#,
            &["messages"],
        ),
        ("no JSON", post("/v1/completions"), "hello", &["not_json"]),
        (
            "cut",
            post("/v1/completions"),
            r#"{"prompt":[1"#,
            &["cut_body"],
        ),
        (
            "no id",
            Request::post("/v1/completions").without("x-request-id"),
            r#"{"prompt":[1]}"#,
            &["no_request_id"],
        ),
        (
            "another path",
            post("/v1/embeddings"),
            r#"{"prompt":[1]}"#,
            none,
        ),
        (
            "another method",
            post("/v1/completions").header(":method", "PUT"),
            r#"{"prompt":[1]}"#,
            none,
        ),
        (
            "another type",
            post("/v1/completions").header("content-type", "text/plain"),
            r#"{"prompt":[1]}"#,
            none,
        ),
        (
            "coded",
            post("/v1/completions").header("content-encoding", "gzip"),
            r#"{"prompt":[1]}"#,
            none,
        ),
    ];
    for (what, request, body, expected) in rows {
        let env = Harness::new();
        let scorer = scorer(&env);
        whole(&scorer.send(request, body), body);
        let expected: Vec<_> = expected.iter().map(|r| ((*r).to_owned(), 1)).collect();
        assert_eq!(evidence(&env), expected, "{what}");
        assert_eq!(calls(&scorer).len(), 0, "{what}");
    }
}

#[test]
fn a_request_without_a_body_and_a_scorer_without_evidence_read_none() {
    let env = Harness::new();
    let scorer = scorer(&env);
    assert!(scorer.header_only(chat()).complete());
    assert_eq!(evidence(&env), [("cut_body".to_owned(), 1)]);
    let env = Harness::new();
    let config =
        r#"{"endpoints":["10.0.0.1:8000"],"scrape":{"cluster":"kv-scrape"},"discover":true}"#;
    let scorer = env.vm("").plugin("kv-scorer", config);
    let before = env.call_count();
    whole(&scorer.send(chat(), CHAT), CHAT);
    assert!(
        !env.calls()
            .iter()
            .skip(before as usize)
            .any(|call| call.import == "proxy_get_buffer_bytes")
    );
    assert_eq!(evidence(&env), []);
}

#[test]
fn a_waiting_request_survives_every_host_call_failing_once() {
    let run = |fault: Option<Fault>| {
        let env = Harness::new();
        let scorer = scorer(&env);
        let start = env.call_count();
        if let Some(fault) = fault {
            env.inject(fault);
        }
        let mut stream = scorer.request(chat());
        stream.chunk(&CHAT[..20]).chunk(&CHAT[20..]);
        for call in calls(&scorer) {
            scorer.answer(call.token, Answer::new(200, TOKENS));
        }
        let calls = env.call_count() - start;
        stream.resume();
        // Where the host did not let it go on, the next tick does.
        scorer.tick();
        stream.resume();
        whole(&stream.end(), CHAT);
        calls
    };
    let calls = run(None);
    assert!(calls > 15, "{calls}");
    for k in 1..=calls {
        for status in [2, 10, 42] {
            run(Some(Fault::call(k).status(status)));
        }
    }
}
