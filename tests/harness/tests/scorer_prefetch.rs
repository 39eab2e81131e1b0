//! The scorer role of the built module and kv-prefetch-agent: what the agent is told, and that no
//! request ever waits for it or fails with it.

use skv_harness::{Answer, Fault, Harness, HttpCall, Outcome, Plugin, Request};
use std::cell::RefCell;
use std::rc::Rc;

const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";
const OLD: &str = "10.0.0.3:8000";
/// vLLM's own digests of the ids 0 to 63 in blocks of 16, with the seed "0".
const DIGESTS: [&str; 4] = [
    "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
    "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
    "ee4c34c217da17ac84268f864db16efed5fcefe10fcc4a9625a719adc68e654f",
    "b1f3544e8610283e85cddbae23bfcad68fa546e89c0fd85aed820e94dca2d75f",
];

/// The block without more, as [`config`] writes it.
const PREFETCH: &str = r#""prefetch":{"cluster":"kv-prefetch-agent","pythonHashSeed":"0"}"#;

fn config(more: &str) -> String {
    format!(
        r#"{{"name":"pool","endpoints":["{A}","{B}","{OLD}"],"scrape":{{"cluster":"kv-scrape"}},
            "evidence":{{"events":{{"cluster":"kv-events-bridge"}},"blockSize":16,
            "prefetch":{{"cluster":"kv-prefetch-agent","pythonHashSeed":"0"{more}}}}}}}"#
    )
}

/// Messages for the agent, with the host's answers to be given.
type Told = Rc<RefCell<Vec<HttpCall>>>;

/// Engines that answer everything well, and an agent that answers what `agent` says.
fn answering(env: &Harness, agent: impl Fn() -> Option<Answer> + 'static) -> Told {
    let told = Told::default();
    let log = Rc::clone(&told);
    env.respond(move |call| {
        let header = |name: &str| {
            let value = call.headers.get(name).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        match header(":path").as_str() {
            "/metrics" => Some(Answer::new(
                200,
                "vllm:num_requests_waiting{engine=\"0\"} 0.0\n",
            )),
            "/version" if header(":authority") == OLD => {
                Some(Answer::new(200, r#"{"version":"0.28.0"}"#))
            }
            "/version" => Some(Answer::new(200, r#"{"version":"0.32.0"}"#)),
            "/prefetch" => {
                // An open call is asked for again and again.
                let mut log = log.borrow_mut();
                if log.iter().all(|known| known.token != call.token) {
                    log.push(call.clone());
                }
                agent()
            }
            _ => Some(Answer::new(404, "")),
        }
    });
    told
}

/// A scorer whose engines are known.
fn scorer(env: &Harness, more: &str) -> Plugin {
    let scorer = env.vm("").plugin("kv-scorer", config(more));
    env.run_ms(3_000);
    scorer
}

fn completion() -> Request {
    Request::post("/v1/completions")
        .header("x-request-id", "r-1")
        .upstream(A)
}

fn ids(first: u32, count: u32) -> String {
    let ids: Vec<String> = (first..first + count).map(|id| id.to_string()).collect();
    format!(r#"{{"prompt":[{}]}}"#, ids.join(","))
}

/// A request that goes on as it came, whatever is told of it.
fn send(env: &Harness, scorer: &Plugin, request: Request, body: &str) {
    let out: Outcome = scorer.send(request, body);
    assert_eq!(out.text(), body);
    assert!(out.complete() && !out.paused && out.local_response.is_none());
    env.serve_calls();
}

fn prefetch(env: &Harness, result: &str) -> u64 {
    env.labelled("selective_kv_scorer_prefetch_total", &[("result", result)])
}

fn answers(env: &Harness, result: &str) -> u64 {
    env.labelled(
        "selective_kv_scorer_prefetch_answers_total",
        &[("result", result)],
    )
}

fn message(blocks: &[(usize, &str)]) -> String {
    let blocks: Vec<String> = blocks
        .iter()
        .map(|(index, digest)| format!("[{index},\"{digest}\"]"))
        .collect();
    format!("{{\"v\":1,\"blocks\":[{}]}}", blocks.join(","))
}

fn text(call: &HttpCall) -> &str {
    std::str::from_utf8(&call.body).unwrap()
}

#[test]
fn a_request_is_told_of_by_the_engines_own_digests() {
    let env = Harness::new();
    let told = answering(&env, || Some(Answer::new(202, "{}")));
    let scorer = scorer(&env, r#","token":"s3cret""#);
    send(&env, &scorer, completion(), &ids(0, 70));
    let told = told.borrow();
    assert_eq!(told.len(), 1);
    for (name, value) in [
        (":method", "POST"),
        (":path", "/prefetch"),
        (":authority", "kv-prefetch-agent"),
        ("content-type", "application/json"),
        ("authorization", "Bearer s3cret"),
    ] {
        assert_eq!(told[0].headers.get(name), Some(value.as_bytes()), "{name}");
    }
    assert_eq!(
        (told[0].cluster.as_str(), told[0].timeout_ms),
        ("kv-prefetch-agent", 1_000)
    );
    let blocks: Vec<(usize, &str)> = DIGESTS.into_iter().enumerate().collect();
    assert_eq!(text(&told[0]), message(&blocks));
    assert_eq!(prefetch(&env, "sent"), 1);
    assert_eq!(answers(&env, "ok"), 1);
    assert_eq!(env.metric("selective_kv_scorer_prefetch_digests_total"), 4);
}

#[test]
fn only_blocks_that_end_a_file_are_told_and_only_once_in_a_while() {
    let env = Harness::new();
    let told = answering(&env, || Some(Answer::new(202, "{}")));
    let scorer = scorer(&env, r#","blocksPerFile":2"#);
    send(&env, &scorer, completion(), &ids(0, 48));
    send(&env, &scorer, completion(), &ids(0, 48));
    send(&env, &scorer, completion(), &ids(0, 64));
    let bodies: Vec<String> = told
        .borrow()
        .iter()
        .map(|call| text(call).to_owned())
        .collect();
    assert_eq!(
        bodies,
        [message(&[(1, DIGESTS[1])]), message(&[(3, DIGESTS[3])])]
    );
    assert_eq!((prefetch(&env, "sent"), prefetch(&env, "repeated")), (2, 1));
    // Too short for a file.
    send(&env, &scorer, completion(), &ids(0, 31));
    assert_eq!(prefetch(&env, "warm"), 1);
    env.run_ms(11_000);
    send(&env, &scorer, completion(), &ids(0, 48));
    assert_eq!(told.borrow().len(), 3);
}

/// The endpoint that Envoy chose decides; without one, any that serves the model.
#[test]
fn the_chosen_endpoint_counts() {
    let env = Harness::new();
    let told = answering(&env, || Some(Answer::new(202, "{}")));
    let scorer = scorer(&env, "");
    let salted = ids(0, 16).replace('{', r#"{"cache_salt":"s","#);
    // Two versions hash a salt differently.
    for upstream in [A, OLD, B] {
        let request = completion().upstream(upstream);
        send(&env, &scorer, request, &salted);
    }
    let bodies: Vec<String> = told
        .borrow()
        .iter()
        .map(|call| text(call).to_owned())
        .collect();
    assert_eq!(bodies.len(), 2);
    assert_ne!(bodies[0], bodies[1]);
    assert_eq!(prefetch(&env, "repeated"), 1);
    // Nobody has chosen.
    let request = Request::post("/v1/completions").header("x-request-id", "r");
    send(&env, &scorer, request, &ids(0, 16));
    assert_eq!(prefetch(&env, "sent"), 3);
    // An endpoint that is not followed.
    send(
        &env,
        &scorer,
        completion().upstream("10.9.9.9:1"),
        &ids(0, 32),
    );
    assert_eq!(prefetch(&env, "no_endpoint"), 1);
    // No tokens; no cache read.
    send(&env, &scorer, completion(), r#"{"prompt":"text"}"#);
    send(
        &env,
        &scorer,
        completion(),
        &ids(0, 32).replace('{', r#"{"prompt_logprobs":1,"#),
    );
    assert_eq!(prefetch(&env, "not_looked"), 2);
    assert_eq!(told.borrow().len(), 3);
}

/// given: an agent that takes a second for each answer
/// then: no more than so many messages are out; the others are dropped, and requests go on at once
#[test]
fn a_slow_agent_is_told_less() {
    let env = Harness::new();
    let told = answering(&env, || None);
    let scorer = scorer(&env, r#","maxInFlight":2"#);
    for n in 0..5 {
        send(&env, &scorer, completion(), &ids(1_000 * n, 16));
    }
    assert_eq!(told.borrow().len(), 2);
    assert_eq!((prefetch(&env, "sent"), prefetch(&env, "busy")), (2, 3));
    let token = told.borrow()[0].token;
    scorer.answer(token, Answer::new(202, "{}"));
    send(&env, &scorer, completion(), &ids(9_000, 16));
    assert_eq!((prefetch(&env, "sent"), answers(&env, "ok")), (3, 1));
    // Answers that do not come in time free their places.
    env.run_ms(10_000);
    assert_eq!(answers(&env, "no_answer"), 2);
    send(&env, &scorer, completion(), &ids(10_000, 16));
    assert_eq!(prefetch(&env, "sent"), 4);
}

#[test]
fn whatever_the_agent_answers_requests_go_on() {
    for (status, result) in [
        (202, "ok"),
        (200, "ok"),
        (400, "status"),
        (401, "unauthorized"),
        (413, "status"),
        (500, "status"),
        (503, "unavailable"),
        (504, "unavailable"),
    ] {
        let env = Harness::new();
        let _told = answering(&env, move || Some(Answer::new(status, "x".repeat(10_000))));
        let scorer = scorer(&env, "");
        send(&env, &scorer, completion(), &ids(0, 16));
        // A 200 that is longer than any answer of the agent is none of its answers.
        let result = if status == 200 { "status" } else { result };
        assert_eq!(answers(&env, result), 1, "{status}");
    }
    let env = Harness::new();
    let told = answering(&env, || None);
    let scorer = scorer(&env, "");
    send(&env, &scorer, completion(), &ids(0, 16));
    let token = told.borrow()[0].token;
    scorer.fail_call(token);
    assert_eq!(answers(&env, "no_answer"), 1);
    // The next answer with that token is nobody's.
    assert_eq!(env.traps(), [""; 0]);
}

/// The host refuses the call (no such cluster), or anything else.
#[test]
fn a_call_that_is_refused_is_counted() {
    let env = Harness::new();
    let told = answering(&env, || None);
    let scorer = scorer(&env, "");
    env.inject(Fault::on("proxy_http_call").status(10));
    send(&env, &scorer, completion(), &ids(0, 16));
    env.clear_faults();
    assert_eq!((prefetch(&env, "not_sent"), told.borrow().len()), (1, 0));
    // It was not told: it is told the next time.
    send(&env, &scorer, completion(), &ids(0, 16));
    assert_eq!((prefetch(&env, "sent"), told.borrow().len()), (1, 1));
}

#[test]
fn without_the_block_nobody_is_told() {
    let env = Harness::new();
    let told = answering(&env, || None);
    let config = config("").replace(PREFETCH, "\"sharedTiers\":[]");
    assert!(!config.contains("prefetch"));
    let scorer = env.vm("").plugin("kv-scorer", &config);
    env.run_ms(3_000);
    send(&env, &scorer, completion(), &ids(0, 64));
    assert_eq!(told.borrow().len(), 0);
    assert_eq!(env.sum("selective_kv_scorer_prefetch"), 0);
}

/// What the message costs: instructions (wasmtime fuel) of one request, with and without it.
#[test]
fn a_prompt_of_32k_tokens_costs_little() {
    let cost = |more: Option<&str>| {
        let env = Harness::new();
        let _told = answering(&env, || Some(Answer::new(202, "{}")));
        let config = match more {
            Some(more) => config(more),
            None => config("").replace(PREFETCH, "\"sharedTiers\":[]"),
        };
        let vm = env.vm("");
        let scorer = vm.plugin("kv-scorer", &config);
        env.run_ms(3_000);
        // Warm.
        send(&env, &scorer, completion(), &ids(0, 32_768));
        let before = vm.fuel_consumed();
        let out = scorer.send(completion(), ids(50_000, 32_768));
        assert!(out.complete());
        vm.fuel_consumed() - before
    };
    let (with, without) = (cost(Some("")), cost(None));
    let more = with.saturating_sub(without);
    println!("32k tokens: {without} without, {more} more for the message");
    assert!(more < 60_000_000, "{more}");
}
