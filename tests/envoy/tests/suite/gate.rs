//! The queue gate with the real scorer in front of it.

use std::thread;
use std::time::Duration;

use envoy_tests::http1::Client;
use envoy_tests::{Bootstrap, Envoy, Request, until};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::support::{CHAT, ENOUGH, EVIDENCE, threshold, with};

/// Polls as often as allowed, and a gate that forgets quickly.
fn both(engines: &[&Engine], gate: &Value) -> Bootstrap {
    let endpoints: Vec<_> = engines.iter().map(|e| e.endpoint()).collect();
    let sinks: Vec<_> = engines.iter().map(|e| &e.sink).collect();
    let policy = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "200ms"}),
    );
    Bootstrap::shipped("downstream.yaml")
        .policy(&with(policy, gate.clone()))
        .scorer(&json!({
            "endpoints": endpoints,
            "scrape": {"cluster": "kv-scrape"},
            "interval": "200ms",
            "failuresToRemove": 2,
        }))
        .engines(&sinks)
}

fn request() -> Request {
    Request::post(CHAT, r#"{"kv_transfer_params":{"max_load_tokens":5}}"#).header(EVIDENCE, ENOUGH)
}

const CLOSED: &str = r#"{"kv_transfer_params":{"max_load_tokens":0}}"#;
const OPEN: &str = r#"{"kv_transfer_params":{}}"#;

/// What the engine gets of one request, on a connection of its own.
fn sent(envoy: &Envoy, engine: &Engine) -> String {
    let id = next_id();
    assert_eq!(
        request()
            .header("x-request-id", &id)
            .to(envoy.address())
            .status,
        200
    );
    engine.sink.by_id(&id).text()
}

fn next_id() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("id-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn await_sent(envoy: &Envoy, engine: &Engine, expected: &str) {
    until(expected, || (sent(envoy, engine) == expected).then_some(()));
}

/// Requests over each of the workers.
fn requests_per_worker(envoy: &Envoy) -> Vec<u64> {
    envoy
        .stats("worker_")
        .into_iter()
        .filter(|(n, _)| n.ends_with("downstream_cx_total") && n.contains("listener.127"))
        .map(|(_, v)| v)
        .collect()
}

#[test]
fn two_workers_share_one_gate() {
    let engine = Engine::waiting(0);
    let envoy = Envoy::with_workers(&both(&[&engine], &json!({})), 2);
    let on_all_workers = |expected: &str| {
        let before = requests_per_worker(&envoy);
        until("requests on both workers", || {
            assert_eq!(sent(&envoy, &engine), expected);
            let now = requests_per_worker(&envoy);
            (now.len() == 2 && now.iter().zip(&before).all(|(n, b)| n >= &(b + 5))).then_some(())
        });
    };
    engine.await_polls(1);

    on_all_workers(OPEN);
    engine.set_waiting(20);
    await_sent(&envoy, &engine, CLOSED);
    on_all_workers(CLOSED);
    engine.set_waiting(0);
    await_sent(&envoy, &engine, OPEN);
    on_all_workers(OPEN);

    // One state: it closed once and opened once, whoever noticed.
    assert_eq!(
        envoy.custom("selective_kv_gate_transitions_total", "to=closed"),
        1
    );
    assert_eq!(
        envoy.custom("selective_kv_gate_transitions_total", "to=open"),
        1
    );
    let vetoed = envoy.custom(
        "selective_kv_decisions_total",
        "direction=load,action=disable,reason=queue_pressure",
    );
    assert!(vetoed >= 10, "{vetoed}");
    let endpoint = engine.endpoint();
    let gauge = |name: &str| envoy.prometheus(&format!("{name}{{endpoint=\"{endpoint}\"}}"));
    until("the gauges of the endpoint", || {
        let (closed, ewma) = (
            gauge("selective_kv_gate_closed"),
            gauge("selective_kv_waiting_ewma_milli"),
        );
        (closed.len() == 1 && closed[0].ends_with(" 0") && ewma.len() == 1).then_some(())
    });
}

#[test]
fn pressure_without_requests_is_not_forgotten() {
    let (loaded, idle) = (Engine::waiting(30), Engine::waiting(0));
    let envoy = Envoy::start(&both(&[&loaded, &idle], &json!({"ewmaHalfLife": "10m"})));
    loaded.await_polls(2);
    // No request has seen it; the next samples alone would open the gate.
    loaded.set_waiting(0);
    loaded.await_polls(3);

    // Round robin or not: each engine is met soon.
    let (mut from_loaded, mut from_idle) = (Vec::new(), Vec::new());
    until("requests at both engines", || {
        let id = next_id();
        request().header("x-request-id", &id).to(envoy.address());
        for (engine, texts) in [(&loaded, &mut from_loaded), (&idle, &mut from_idle)] {
            let seen = engine.sink.seen();
            texts.extend(
                seen.iter()
                    .find(|s| s.header("x-request-id").as_deref() == Some(&id))
                    .map(|s| s.text()),
            );
        }
        (from_loaded.len() > 2 && from_idle.len() > 2).then_some(())
    });
    assert!(
        from_loaded.iter().all(|text| text == CLOSED),
        "{from_loaded:?}"
    );
    assert!(from_idle.iter().all(|text| text == OPEN), "{from_idle:?}");
}

#[test]
fn stale_samples_veto_nothing() {
    let engine = Engine::waiting(20);
    // Many failures are allowed, so that the endpoint stays a member.
    let bootstrap = both(&[&engine], &json!({"maxSampleAge": "1s"}));
    let bootstrap = bootstrap.scorer(&json!({
        "endpoints": [engine.endpoint()],
        "scrape": {"cluster": "kv-scrape"},
        "interval": "200ms",
        "failuresToRemove": 1000,
    }));
    let envoy = Envoy::start(&bootstrap);
    await_sent(&envoy, &engine, CLOSED);

    engine.set_page(None);
    thread::sleep(Duration::from_millis(1_300));

    assert_eq!(sent(&envoy, &engine), OPEN);
    assert!(envoy.custom("selective_kv_queue_problems_total", "kind=stale_queue") >= 1);
    assert!(envoy.custom("selective_kv_scorer_polls_total", "result=status") >= 3);
}

#[test]
fn an_engine_that_fails_its_polls_is_no_member_and_comes_back_afresh() {
    // A slow gate: only a fresh start can open it.
    let engine = Engine::waiting(20);
    let envoy = Envoy::start(&both(
        &[&engine],
        &json!({"ewmaHalfLife": "10m", "maxSampleAge": "1m"}),
    ));
    await_sent(&envoy, &engine, CLOSED);
    envoy.until_custom("selective_kv_scorer_endpoints", "state=listed", |n| n == 1);

    engine.set_page(None);
    envoy.until_custom("selective_kv_scorer_endpoints", "state=unlisted", |n| {
        n == 1
    });
    await_sent(&envoy, &engine, OPEN);

    engine.set_waiting(0);
    envoy.until_custom("selective_kv_scorer_endpoints", "state=listed", |n| n == 1);
    engine.await_polls(2);
    assert_eq!(sent(&envoy, &engine), OPEN, "the old pressure is forgotten");
    engine.set_waiting(20);
    engine.await_polls(2);
    assert_eq!(sent(&envoy, &engine), OPEN, "and the average starts from 0");
}

#[test]
fn one_connection_sees_the_gate_close_between_its_requests() {
    let engine = Engine::waiting(0);
    let envoy = Envoy::start(&both(&[&engine], &json!({})));
    let mut client = Client::connect(envoy.address());
    let mut next = |expected: &str| {
        until(expected, || {
            let id = next_id();
            client
                .exchange(&request().header("x-request-id", &id))
                .expect("an answer");
            (engine.sink.by_id(&id).text() == expected).then_some(())
        });
    };
    next(OPEN);
    engine.set_waiting(9);
    next(CLOSED);
    engine.set_waiting(0);
    next(OPEN);
}
