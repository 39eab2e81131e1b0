//! The companion scorer: who polls what, and who is a member.

use std::time::Duration;

use envoy_tests::{Bootstrap, Envoy, Request, Sink, until};
use serde_json::{Value, json};

use crate::engine::{Engine, METRIC};
use crate::support::{CHAT, ENOUGH, EVIDENCE, threshold, with};

fn scorer(engines: &[&Engine]) -> Value {
    let endpoints: Vec<_> = engines.iter().map(|e| e.endpoint()).collect();
    json!({"endpoints": endpoints, "scrape": {"cluster": "kv-scrape"}, "interval": "200ms", "failuresToRemove": 2})
}

fn gate() -> Value {
    with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "200ms"}),
    )
}

fn bootstrap(scorer: &Value, engines: &[&Engine]) -> Bootstrap {
    let sinks: Vec<_> = engines.iter().map(|e| &e.sink).collect();
    Bootstrap::shipped("downstream.yaml")
        .scorer(scorer)
        .policy(&gate())
        .engines(&sinks)
}

#[test]
fn one_vm_polls_every_engine_through_one_cluster() {
    let engines = [Engine::waiting(1), Engine::waiting(2)];
    let [first, second] = &engines;
    // Two workers and the main thread: three VMs.
    let envoy = Envoy::with_workers(&bootstrap(&scorer(&[first, second]), &[first, second]), 2);
    for engine in &engines {
        engine.await_polls(1);
    }
    let before = engines.each_ref().map(|e| e.polls("/metrics").len());
    std::thread::sleep(Duration::from_millis(2_000));
    for (engine, before) in engines.iter().zip(before) {
        let polls = engine.polls("/metrics");
        let polled = polls.len() - before;
        assert!(
            (5..=12).contains(&polled),
            "{polled} polls in two seconds, one VM's worth is ten"
        );
        let last = polls.last().expect("a poll");
        assert_eq!(last.header("host"), Some(engine.endpoint()));
        assert_eq!(engine.polls("/version").len(), 1, "once at each return");
    }
    assert_eq!(
        envoy.custom("selective_kv_scorer_endpoints", "state=listed"),
        2
    );
    let (ok, samples) = (
        envoy.custom("selective_kv_scorer_polls_total", "result=ok"),
        envoy.custom("selective_kv_scorer_samples_total", ""),
    );
    assert!(
        ok >= 10 && samples >= 10 && samples <= ok,
        "{ok} polls, {samples} samples"
    );
    assert_eq!(
        envoy.custom("selective_kv_scorer_lease_total", "event=taken"),
        1
    );
    assert_eq!(
        envoy.custom("selective_kv_scorer_lease_total", "event=lost"),
        0
    );
}

#[test]
fn the_version_is_asked_again_after_a_return() {
    let engine = Engine::waiting(0);
    let envoy = Envoy::start(&bootstrap(&scorer(&[&engine]), &[&engine]));
    until("the first version", || {
        (engine.polls("/version").len() == 1).then_some(())
    });

    engine.set_page(None);
    envoy.until_custom("selective_kv_scorer_endpoints", "state=unlisted", |n| {
        n == 1
    });
    engine.set_waiting(0);

    until("the second version", || {
        (engine.polls("/version").len() == 2).then_some(())
    });
    engine.await_polls(3);
    assert_eq!(engine.polls("/version").len(), 2);
}

#[test]
fn two_scorers_with_disjoint_pools_share_one_store() {
    let (first, second) = (Engine::waiting(20), Engine::waiting(20));
    let mut bootstrap = bootstrap(&scorer(&[&first]), &[&first, &second]);
    let second_config = scorer(&[&second]).to_string();
    bootstrap = bootstrap.manager(|m| {
        let filters = m["http_filters"].as_array_mut().expect("filters");
        let mut copy = filters[0].clone();
        copy["name"] = json!("kv-scorer-2");
        copy["typed_config"]["config"]["configuration"]["value"] = json!(second_config);
        filters.insert(1, copy);
    });
    let envoy = Envoy::start(&bootstrap);

    // Each engine is under pressure, and neither scorer makes the other's engine unlisted.
    for engine in [&first, &second] {
        engine.await_polls(3);
    }
    for number in 0..40 {
        let request = Request::post(CHAT, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#)
            .header(EVIDENCE, ENOUGH);
        request
            .header("x-request-id", format!("two-{number}"))
            .to(envoy.address());
    }
    for engine in [&first, &second] {
        let posts: Vec<_> = engine
            .sink
            .seen()
            .into_iter()
            .filter(|s| s.method == "POST")
            .collect();
        assert!(posts.len() > 3, "{}", posts.len());
        for post in posts {
            assert_eq!(
                post.text(),
                r#"{"kv_transfer_params":{"max_load_tokens":0}}"#
            );
        }
    }
    assert_eq!(
        envoy.custom("selective_kv_scorer_endpoints", "state=listed"),
        2
    );
    assert_eq!(
        envoy.custom("selective_kv_scorer_lease_total", "event=taken"),
        2
    );
}

#[test]
fn only_engines_that_answered_are_discovered() {
    let (engine, never_routed) = (Engine::waiting(20), Engine::waiting(0));
    let config = json!({"discover": true, "scrape": {"cluster": "kv-scrape"}, "interval": "200ms"});
    let envoy = Envoy::start(&bootstrap(&config, &[&engine]));
    let post = |target: &str| {
        Request::post(target, "{}")
            // What a client says is no reason to poll anything.
            .header("x-gateway-destination-endpoint", never_routed.endpoint())
            .header("x-envoy-original-dst-host", never_routed.endpoint())
            .to(envoy.address())
    };

    // No path of a model, no success: nothing is learnt.
    assert_eq!(post("/v1/embeddings").status, 200);
    assert_eq!(post("/v1/responses").status, 404);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(engine.polls("/metrics").len(), 0);

    assert_eq!(post(CHAT).status, 200);
    engine.await_polls(2);

    // And what was learnt counts: the gate is closed.
    let request = Request::post(CHAT, "{}")
        .header(EVIDENCE, ENOUGH)
        .header("x-request-id", "discovered");
    until("a closed gate", || {
        request.to(envoy.address());
        let seen = engine.sink.take();
        seen.iter()
            .any(|s| s.text().contains(r#""max_load_tokens":0"#))
            .then_some(())
    });
    assert_eq!(
        never_routed.sink.seen().len(),
        0,
        "never polled, never called"
    );
}

#[test]
fn the_real_page_of_88_kb_is_read() {
    let engine = Engine::waiting(0);
    let page = std::fs::read_to_string(
        envoy_tests::files::workspace().join("testdata/metrics_full_0.32.0.txt"),
    );
    engine.set_page(Some(page.expect("the recorded page")));
    let envoy = Envoy::start(&bootstrap(&scorer(&[&engine]), &[&engine]));
    engine.await_polls(2);

    // 16 are waiting on that page.
    Request::post(CHAT, "{}")
        .header(EVIDENCE, ENOUGH)
        .header("x-request-id", "real-page")
        .to(envoy.address());
    assert_eq!(
        engine.sink.by_id("real-page").text(),
        r#"{"kv_transfer_params":{"max_load_tokens":0}}"#
    );
    let line = envoy.access_line(CHAT);
    assert!(
        line.contains("reason=queue_pressure") && line.contains(";ewma=16;"),
        "{line}"
    );
}

#[test]
fn pages_that_say_nothing_useful_are_no_samples() {
    let engine = Engine::waiting(20);
    engine.set_page(Some(format!(
        "{METRIC}{{engine=\"0\"}} NaN\n{METRIC}{{engine=\"1\"}} -3\nother 5\n"
    )));
    let envoy = Envoy::start(&bootstrap(&scorer(&[&engine]), &[&engine]));
    engine.await_polls(3);

    assert_eq!(envoy.custom("selective_kv_scorer_samples_total", ""), 0);
    // Series of several engines behind one port add up.
    engine.set_page(Some(format!(
        "{METRIC}{{engine=\"0\"}} 5\n{METRIC}{{engine=\"1\"}} 4\n"
    )));
    engine.await_polls(1);
    Request::post(CHAT, "{}")
        .header(EVIDENCE, ENOUGH)
        .to(envoy.address());
    let line = envoy.access_line(CHAT);
    assert!(
        line.contains("reason=queue_pressure") && line.contains(";ewma=9;"),
        "{line}"
    );
}

#[test]
fn a_poll_may_pass_the_policy_on_its_way() {
    // The model cluster has the policy as an upstream filter, and the scorer polls through that very
    // cluster: the filter's callbacks run inside the scorer's timer.
    let engine = Engine::waiting(20);
    let config = json!({
        "endpoints": [{"address": engine.endpoint(), "cluster": "engines"}],
        "interval": "200ms",
    });
    let envoy = Envoy::start(
        &Bootstrap::shipped("upstream.yaml")
            .scorer(&config)
            .policy(&gate())
            .engines(&[&engine.sink]),
    );
    engine.await_polls(3);

    let request = Request::post(CHAT, "{}")
        .header(EVIDENCE, ENOUGH)
        .header("x-request-id", "through");
    assert_eq!(request.to(envoy.address()).status, 200);
    assert_eq!(
        engine.sink.by_id("through").text(),
        r#"{"kv_transfer_params":{"max_load_tokens":0}}"#
    );
    assert!(
        envoy.custom("selective_kv_skipped_total", "reason=method") >= 3,
        "the polls"
    );
}

#[test]
fn an_ipv6_engine_is_polled_and_gated() {
    let engine = Engine::at("[::1]:0".parse().expect("an address"), 20);
    let envoy = Envoy::start(&bootstrap(&scorer(&[&engine]), &[&engine]));
    engine.await_polls(2);

    Request::post(CHAT, "{}")
        .header(EVIDENCE, ENOUGH)
        .to(envoy.address());
    let line = envoy.access_line(CHAT);
    assert!(line.contains("reason=queue_pressure"), "{line}");
    assert!(
        line.contains(&format!("endpoint={}", engine.endpoint()))
            && engine.endpoint().starts_with("[::1]:"),
        "{line}"
    );
}

#[test]
fn an_engine_that_is_down_or_silent_costs_nothing() {
    let engine = Engine::waiting(0);
    let silent = Sink::with(|_| {
        envoy_tests::Reply::After(Duration::from_secs(3), Box::new(envoy_tests::Reply::ok()))
    });
    let mut config = scorer(&[&engine]);
    config["endpoints"] = json!([engine.endpoint(), "127.0.0.1:9", silent.endpoint()]);
    config["timeout"] = json!("300ms");
    let envoy = Envoy::start(&bootstrap(&config, &[&engine]));

    envoy.until_custom("selective_kv_scorer_polls_total", "result=timeout", |n| {
        n > 2
    });
    envoy.until_custom("selective_kv_scorer_polls_total", "result=status", |n| {
        n > 2
    });
    assert_eq!(
        envoy.custom("selective_kv_scorer_endpoints", "state=unlisted"),
        2
    );
    assert_eq!(
        envoy.custom("selective_kv_scorer_endpoints", "state=listed"),
        1
    );
    engine.await_polls(3);
}
