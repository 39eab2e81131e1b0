//! The scorer role of the built module: who polls, what is sent, what discovery takes, and that no
//! host call may fail it for good.

use skv_harness::{Answer, Fault, Harness, HttpCall, LogLevel, Plugin, Request};
use std::cell::RefCell;
use std::rc::Rc;

const TWO: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000","10.0.0.2:8000"],
    "scrape":{"cluster":"kv-scrape"}}"#;
const DISCOVER: &str = r#"{"name":"pool","discover":true,"scrape":{"cluster":"kv-scrape"}}"#;
const PAGE: &str = "vllm:num_requests_waiting{engine=\"0\"} 3.0\n";

/// What the engines were asked: VM, `:authority`, `:path`.
type Asked = Rc<RefCell<Vec<(usize, String, String)>>>;

/// Engines that answer everything well.
fn engines(env: &Harness) -> Asked {
    engines_with(env, |call| match header(call, ":path").as_str() {
        "/metrics" => Some(Answer::new(200, PAGE)),
        "/version" => Some(Answer::new(200, r#"{"version":"0.32.0"}"#)),
        _ => Some(Answer::new(404, "")),
    })
}

fn engines_with(env: &Harness, answer: impl Fn(&HttpCall) -> Option<Answer> + 'static) -> Asked {
    let asked = Asked::default();
    let log = Rc::clone(&asked);
    env.respond(move |call| {
        let entry = (call.vm, header(call, ":authority"), header(call, ":path"));
        log.borrow_mut().push(entry);
        answer(call)
    });
    asked
}

fn header(call: &HttpCall, name: &str) -> String {
    let value = call.headers.get(name).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

fn polls(env: &Harness, result: &str) -> u64 {
    env.labelled("selective_kv_scorer_polls_total", &[("result", result)])
}

fn endpoints(env: &Harness, state: &str) -> u64 {
    env.labelled("selective_kv_scorer_endpoints", &[("state", state)])
}

fn problem(env: &Harness, kind: &str) -> u64 {
    env.labelled("selective_kv_scorer_problems_total", &[("kind", kind)])
}

#[test]
fn a_poll_is_a_get_to_the_scrape_cluster_with_the_destination() {
    let env = Harness::new();
    let scorer = env.vm("").plugin("kv-scorer", TWO);
    assert_eq!(scorer.tick_period_ms(), 500);
    scorer.tick();
    let calls = scorer.http_calls();
    assert_eq!(calls.len(), 2);
    let headers = [
        (":method", "GET"),
        (":path", "/metrics"),
        (":authority", "10.0.0.1:8000"),
        ("x-envoy-original-dst-host", "10.0.0.1:8000"),
    ];
    for (name, value) in headers {
        assert_eq!(header(&calls[0], name), value);
    }
    assert_eq!(
        (calls[0].cluster.as_str(), calls[0].timeout_ms),
        ("kv-scrape", 1_000)
    );
    // A cluster of its own needs no destination.
    let own = r#"{"endpoints":[{"address":"10.0.0.1:8000","cluster":"engine-a"}]}"#;
    let scorer = env.vm("").plugin("kv-scorer", own);
    scorer.tick();
    let calls = scorer.http_calls();
    assert_eq!(calls[0].cluster, "engine-a");
    assert_eq!(header(&calls[0], "x-envoy-original-dst-host"), "");
}

#[test]
fn of_three_vms_one_polls_and_another_takes_over_within_three_intervals() {
    let env = Harness::new();
    let asked = engines(&env);
    let vms: Vec<_> = (0..3).map(|_| env.vm("")).collect();
    for vm in &vms {
        vm.plugin("kv-scorer", TWO);
    }
    env.run_ms(10_000);
    let pollers = |asked: &Asked| {
        let mut vms: Vec<usize> = asked.borrow().iter().map(|(vm, ..)| *vm).collect();
        vms.sort_unstable();
        vms.dedup();
        vms
    };
    let first = pollers(&asked);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(
        polls(&env, "ok"),
        env.metric("selective_kv_scorer_samples_total")
    );
    assert_eq!(
        [endpoints(&env, "listed"), endpoints(&env, "unlisted")],
        [2, 0]
    );
    let versions = |asked: &Asked| {
        let asked = asked.borrow();
        asked.iter().filter(|(.., path)| path == "/version").count()
    };
    assert_eq!(versions(&asked), 2);
    // When the holder's worker goes without a word
    vms[first[0]].stop();
    asked.borrow_mut().clear();
    env.run_ms(3_000);
    // Then another polls.
    let second = pollers(&asked);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    let taken = ("event", "taken");
    assert_eq!(env.labelled("selective_kv_scorer_lease_total", &[taken]), 2);
}

#[test]
fn a_scorer_that_is_taken_out_hands_over_and_leaves_its_gauges() {
    let env = Harness::new();
    let asked = engines(&env);
    let (a, b) = (env.vm(""), env.vm(""));
    let (first, _second) = (a.plugin("kv-scorer", TWO), b.plugin("kv-scorer", TWO));
    env.run_ms(2_000);
    assert_eq!(endpoints(&env, "listed"), 2);
    assert!(first.shut_down());
    assert_eq!(endpoints(&env, "listed"), 0);
    asked.borrow_mut().clear();
    env.run_ms(500);
    assert!(asked.borrow().iter().any(|(vm, ..)| *vm == 1));
    assert_eq!(endpoints(&env, "listed"), 2);
}

#[test]
fn failures_are_counted_by_kind_and_logged_once() {
    let big = vec![b'x'; 4 * 1024 * 1024 + 1];
    let answers: &[(&str, Option<Answer>)] = &[
        ("status", Some(Answer::new(503, ""))),
        (
            "timeout",
            Some(Answer::new(504, "upstream request timeout")),
        ),
        ("too_large", Some(Answer::new(200, big))),
        (
            "no_metric",
            Some(Answer::new(200, "vllm:num_requests_waiting NaN\n")),
        ),
        ("no_metric", Some(Answer::new(200, ""))),
        // the host reports the timeout by a callback without headers
        ("no_answer", None),
    ];
    for (result, answer) in answers {
        let env = Harness::new();
        let vm = env.vm("");
        vm.plugin("kv-scorer", TWO);
        engines(&env);
        env.run_ms(1_999);
        assert_eq!(endpoints(&env, "listed"), 2);
        let answer = answer.clone();
        engines_with(&env, move |_| answer.clone());
        env.run_ms(8_000);
        assert!(polls(&env, result) >= 6, "{result}");
        assert_eq!(polls(&env, "ok"), 4);
        let warnings = env.log_from(LogLevel::Warn);
        if *result == "no_metric" {
            assert_eq!(endpoints(&env, "listed"), 2);
            assert_eq!(warnings, []);
        } else {
            assert_eq!(endpoints(&env, "unlisted"), 2, "{result}");
            assert_eq!(warnings.len(), 2, "{warnings:?}");
        }
    }
}

#[test]
fn an_unknown_cluster_is_a_failed_poll() {
    let env = Harness::new();
    env.add_cluster("engines");
    env.vm("").plugin("kv-scorer", TWO);
    env.run_ms(3_000);
    // at 500, 1500 and 2500 ms, two endpoints each
    assert_eq!(polls(&env, "not_sent"), 6);
}

/// A request that `upstream` answers with `status`; true if the scorer polls that address then.
fn discovers(request: Request, status: u16) -> Vec<String> {
    let env = Harness::new();
    let asked = engines(&env);
    let scorer = env.vm("").plugin("kv-scorer", DISCOVER);
    env.run_ms(1_000);
    let mut stream = scorer.request(request);
    stream.chunk("{}");
    stream.respond(status, &[("content-type", "application/json")]);
    stream.close();
    env.run_ms(2_000);
    let mut asked: Vec<String> = asked.borrow().iter().map(|(_, a, _)| a.clone()).collect();
    asked.sort_unstable();
    asked.dedup();
    asked
}

#[test]
fn discovery_takes_the_upstream_of_good_answers_and_nothing_a_client_says() {
    let chat = || Request::post("/v1/chat/completions");
    const ENGINE: &str = "10.0.0.9:8000";
    let rows: Vec<(&str, Request, u16, &[&str])> = vec![
        ("a good answer", chat().upstream(ENGINE), 200, &[ENGINE]),
        (
            "with a query",
            Request::post("/v1/completions?x=1").upstream(ENGINE),
            201,
            &[ENGINE],
        ),
        (
            "IPv6",
            chat().upstream("[fd00::9]:8000"),
            200,
            &["[fd00::9]:8000"],
        ),
        ("an error", chat().upstream(ENGINE), 404, &[]),
        ("a redirect", chat().upstream(ENGINE), 302, &[]),
        (
            "another path",
            Request::post("/v1/embeddings").upstream(ENGINE),
            200,
            &[],
        ),
        (
            "a Unix socket",
            chat().upstream("/run/engine.sock"),
            200,
            &[],
        ),
        ("Envoy's own answer", chat(), 200, &[]),
        (
            "a client's headers",
            chat()
                .header("x-gateway-destination-endpoint", "169.254.169.254:80")
                .header("x-envoy-original-dst-host", "169.254.169.254:80"),
            200,
            &[],
        ),
        (
            "metadata",
            chat().dynamic_metadata("envoy.lb", "x-gateway-destination-endpoint", ENGINE),
            200,
            &[],
        ),
    ];
    for (what, request, status, expected) in rows {
        assert_eq!(discovers(request, status), expected, "{what}");
    }
}

#[test]
fn the_body_is_not_looked_at_and_nothing_is_changed() {
    let env = Harness::new();
    for config in [TWO, DISCOVER] {
        let scorer = env.vm("").plugin("kv-scorer", config);
        let before = env.call_count();
        let body = r#"{"kv_transfer_params":{"max_load_tokens":7}}"#;
        let request = Request::post("/v1/completions").upstream("10.0.0.9:8000");
        let out = scorer.send(request, body);
        assert_eq!(out.text(), body);
        assert!(out.complete());
        // path, status, address, time; none of it without discovery
        let calls = env.call_count() - before;
        assert!(calls <= if config == TWO { 0 } else { 4 }, "{calls} calls");
    }
}

#[test]
fn a_younger_configuration_takes_over_and_answers_to_the_old_one_are_late() {
    let env = Harness::new();
    let old = env.vm("").plugin("kv-scorer", TWO);
    old.tick();
    let open = old.http_calls();
    assert_eq!(open.len(), 2);
    let new = TWO.replace("10.0.0.2", "10.0.0.3");
    let new = env.vm("").plugin("kv-scorer", new);
    new.tick();
    assert_eq!(new.http_calls().len(), 2);
    old.tick();
    old.answer(open[0].token, Answer::new(200, PAGE));
    old.fail_call(open[1].token);
    assert_eq!(problem(&env, "late_answer"), 2);
    assert_eq!(env.metric("selective_kv_scorer_samples_total"), 0);
    let lease = |event| env.labelled("selective_kv_scorer_lease_total", &[("event", event)]);
    assert_eq!([lease("taken"), lease("lost")], [2, 1]);
}

#[test]
fn a_full_life_survives_every_host_call_failing_once() {
    let config = r#"{"name":"pool","endpoints":["10.0.0.1:8000"],"discover":true,
        "scrape":{"cluster":"kv-scrape"}}"#;
    let run = |fault: Option<Fault>| {
        let env = Harness::new();
        engines(&env);
        let vm = env.vm("");
        let scorer: Plugin = vm.plugin("kv-scorer", config);
        let start = env.call_count();
        if let Some(fault) = fault {
            env.inject(fault);
        }
        env.run_ms(1_000);
        let request = Request::post("/v1/completions").upstream("10.0.0.9:8000");
        let out = scorer.send(request, "{}");
        assert_eq!(out.text(), "{}");
        env.run_ms(5_000);
        let calls = env.call_count() - start;
        // Whatever failed, the configured endpoint is polled and listed in the end.
        assert!(polls(&env, "ok") >= 4, "{:?}", env.metrics());
        assert!(endpoints(&env, "listed") >= 1);
        let seen: u64 = ["listed", "unlisted"]
            .map(|s| endpoints(&env, s))
            .iter()
            .sum();
        assert!(seen >= 1);
        assert_eq!(problem(&env, "late_answer"), 0);
        calls
    };
    let calls = run(None);
    assert!(calls > 100, "{calls}");
    for k in 1..=calls {
        for status in [2, 10, 42] {
            run(Some(Fault::call(k).status(status)));
        }
    }
}

/// A whole page of vLLM 0.32.0, offloading on: 87,169 bytes, 997 lines.
const FULL_PAGE: &[u8] = include_bytes!("../../../testdata/metrics_full_0.32.0.txt");

#[test]
fn a_real_page_costs_less_than_six_instructions_a_byte() {
    let env = Harness::new();
    let vm = env.vm("");
    let one = r#"{"endpoints":["10.0.0.1:8000"],"scrape":{"cluster":"s"},"versionPath":null}"#;
    let scorer = vm.plugin("kv-scorer", one);
    let cost = |page: &[u8]| {
        while scorer.http_calls().is_empty() {
            env.advance_ms(500);
            scorer.tick();
        }
        let before = vm.fuel_consumed();
        scorer.answer(scorer.http_calls()[0].token, Answer::new(200, page));
        vm.fuel_consumed() - before
    };
    // Metrics are defined with the first answer.
    cost(FULL_PAGE);
    let page = cost(FULL_PAGE);
    let line = cost(PAGE.as_bytes());
    assert_eq!(polls(&env, "ok"), 3);
    assert!(
        page - line < 6 * FULL_PAGE.len() as u64,
        "{page} for the page, {line} for its one line"
    );
}

#[test]
fn configuration_errors_are_one_line() {
    let env = Harness::new();
    let vm = env.vm("");
    let error = vm.try_plugin("kv-scorer", r#"{"interval":"10ms"}"#);
    assert!(error.is_err());
    let lines: Vec<String> = vm.log().into_iter().map(|line| line.text).collect();
    assert_eq!(
        lines,
        ["kv-scorer: interval is \"10ms\": must be a duration from \"200ms\" to \"60s\""]
    );
}
