//! A new configuration, a new module, while requests are under way.

use std::thread;
use std::time::Duration;

use envoy_tests::{Bootstrap, Envoy, Request, Sink, until};
use serde_json::json;

use crate::engine::Engine;
use crate::support::{CHAT, ENOUGH, EVIDENCE, Placement, threshold, with};

const CLOSED: &str = r#"{"kv_transfer_params":{"max_load_tokens":0}}"#;

#[test]
fn a_new_policy_counts_for_new_requests_and_leaves_those_under_way_alone() {
    let engine = Sink::ok();
    let bootstrap = Placement::Downstream
        .bootstrap(&json!({"loadPolicy": "disable"}))
        .engines(&[&engine]);
    let (bootstrap, policy) = bootstrap.discovered("selective-kv");
    let envoy = Envoy::start(&bootstrap).expecting_trouble();
    let text = |id: &str| {
        assert_eq!(
            Request::post(CHAT, "{}")
                .header("x-request-id", id)
                .to(envoy.address())
                .status,
            200
        );
        engine.by_id(id).text()
    };
    assert_eq!(text("before"), CLOSED);

    thread::scope(|scope| {
        let slow = Request::post_chunked(CHAT, br#"{"kv_transfer_params":{"#, 100)
            .pause(1500)
            .send(b"}}");
        let slow = slow.header("x-request-id", "under-way");
        let address = envoy.address();
        let under_way = scope.spawn(move || slow.to(address).status);
        thread::sleep(Duration::from_millis(200));

        policy.configure(&json!({"offloadPolicy": "disable"}));
        let mut number = 0;
        until("the new policy", || {
            number += 1;
            (text(&format!("new-{number}")) == r#"{"kv_transfer_params":{"max_offload_tokens":0}}"#)
                .then_some(())
        });
        assert_eq!(under_way.join().expect("a client"), 200);
    });
    assert_eq!(
        engine.by_id("under-way").text(),
        r#"{"kv_transfer_params":{"max_load_tokens":0}}"#
    );

    // One that is wrong is refused; the last good one stays.
    policy.configure(&json!({"loadPolicy": "never"}));
    until("the refusal", || {
        envoy
            .log()
            .contains(r#"loadPolicy is "never""#)
            .then_some(())
    });
    assert_eq!(
        text("after"),
        r#"{"kv_transfer_params":{"max_offload_tokens":0}}"#
    );
    assert_eq!(envoy.custom("selective_kv_held_bytes", ""), 0);
}

#[test]
fn a_gate_outlives_the_policy_and_the_module() {
    let engine = Engine::waiting(20);
    // Slow: nothing but its stored state keeps it closed.
    let gate = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "10m"}),
    );
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .policy(&gate)
        .scorer(&json!({"endpoints": [engine.endpoint()], "scrape": {"cluster": "kv-scrape"}, "interval": "200ms"}))
        .engines(&[&engine.sink]);
    let (bootstrap, policy) = bootstrap.discovered("selective-kv");
    let envoy = Envoy::start(&bootstrap);
    let text = |id: &str| {
        let request = Request::post(CHAT, "{}")
            .header(EVIDENCE, ENOUGH)
            .header("x-request-id", id);
        assert_eq!(request.to(envoy.address()).status, 200);
        engine.sink.by_id(id).text()
    };
    let mut number = 0;
    until("a closed gate", || {
        number += 1;
        (text(&format!("first-{number}")) == CLOSED).then_some(())
    });
    engine.set_waiting(0);
    engine.await_polls(2);

    // Another configuration with the same gate.
    policy.configure(&with(gate.clone(), json!({"offloadPolicy": "disable"})));
    let both = r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#;
    until("the new policy", || {
        number += 1;
        let text = text(&format!("second-{number}"));
        assert!(text == CLOSED || text == both, "{text}");
        (text == both).then_some(())
    });

    // Another module, so another VM: the same one with a custom section more.
    let changed =
        std::env::temp_dir().join(format!("envoy-tests-changed-{}.wasm", std::process::id()));
    let module = std::fs::read(envoy_tests::files::module()).expect("the module");
    std::fs::write(
        &changed,
        [module.as_slice(), &[0, 5, 4, b't', b'e', b's', b't']].concat(),
    )
    .expect("the changed module");
    let vms = envoy.stat("wasm.envoy.wasm.runtime.v8.created");
    policy.module(changed.clone());
    until("a new VM", || {
        (envoy.stat("wasm.envoy.wasm.runtime.v8.created") > vms).then_some(())
    });
    for round in 0..10 {
        let text = text(&format!("third-{round}"));
        assert!(text == CLOSED || text == both, "{text}");
        thread::sleep(Duration::from_millis(20));
    }
    let _ = std::fs::remove_file(changed);
}

#[test]
fn polls_go_on_when_the_holder_of_the_lease_goes() {
    let engine = Engine::waiting(0);
    let config = |name: &str, timeout: &str| {
        json!({
            "name": name,
            "endpoints": [engine.endpoint()],
            "scrape": {"cluster": "kv-scrape"},
            "interval": "300ms",
            "timeout": timeout,
        })
    };
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .scorer(&config("pool", "1s"))
        .engines(&[&engine.sink]);
    let (bootstrap, scorer) = bootstrap.discovered("kv-scorer");
    let envoy = Envoy::with_workers(&bootstrap, 2);
    engine.await_polls(3);

    // Another configuration under the same name, twice: all its VMs are new ones.
    for timeout in ["900ms", "800ms"] {
        scorer.configure(&config("pool", timeout));
        engine.await_polls(6);
    }

    let times: Vec<_> = engine.polls("/metrics").iter().map(|p| p.at).collect();
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let longest = gaps.iter().max().expect("polls");
    assert!(*longest <= Duration::from_millis(3 * 300 + 300), "{gaps:?}");
    // Never two pollers for long: about one poll an interval.
    let (first, last) = (times[0], times[times.len() - 1]);
    let intervals = (last - first).as_millis() / 300;
    assert!(
        times.len() as u128 <= intervals + 6,
        "{} polls in {intervals} intervals",
        times.len()
    );
    assert!(envoy.custom("selective_kv_scorer_lease_total", "event=taken") >= 3);
}

#[test]
fn a_new_policy_may_have_as_many_gates_of_its_own() {
    let gates = |first: u32, more: serde_json::Value| {
        let routes: Vec<_> = (first..first + 16)
            .map(|max| json!({"match": {"routeName": max.to_string()}, "maxWaitingRequests": max}))
            .collect();
        with(with(threshold(), json!({ "routes": routes })), more)
    };
    let engine = Sink::ok();
    let bootstrap = Placement::Downstream
        .bootstrap(&gates(1, json!({})))
        .engines(&[&engine]);
    let (bootstrap, policy) = bootstrap.discovered("selective-kv");
    let envoy = Envoy::start(&bootstrap);
    let mut number = 0;
    let mut text = || {
        number += 1;
        let id = format!("r-{number}");
        let request = Request::post(CHAT, "{}").header("x-request-id", &id);
        assert_eq!(request.to(envoy.address()).status, 200);
        engine.by_id(&id).text()
    };
    assert_eq!(text(), "{}");
    // The old one is still there while the new one is made.
    policy.configure(&gates(100, json!({"offloadPolicy": "disable"})));
    until("the new policy", || {
        (text() == r#"{"kv_transfer_params":{"max_offload_tokens":0}}"#).then_some(())
    });
}
