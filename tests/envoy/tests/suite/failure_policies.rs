//! What a trap does under each failure policy: the README says it, this shows it.

use std::thread::sleep;
use std::time::Duration;

use envoy_tests::probe::Probe;
use envoy_tests::{Bootstrap, Envoy, Request, Sink, until};
use serde_json::json;

/// A filter that counts requests, and traps on one that says so.
fn trapping(engine: &Sink, policy: &str) -> Envoy {
    let probe = Probe::new()
        .count("request_headers", "filtered")
        .trap_if_header("x-trap");
    let bootstrap = Bootstrap::shipped("downstream.yaml")
        .without_filter("kv-scorer")
        .module(probe.build())
        .engines(&[engine])
        .edit(|node| {
            if node.get("failure_policy").is_some() {
                node["failure_policy"] = json!(policy);
            }
        });
    Envoy::start(&bootstrap).expecting_trouble()
}

/// Requests that passed the filter.
fn filtered(envoy: &Envoy) -> u64 {
    envoy.custom("filtered", "")
}

#[test]
fn fail_reload_answers_503_within_the_back_off_and_then_has_a_new_vm() {
    let engine = Sink::ok();
    let envoy = trapping(&engine, "FAIL_RELOAD");
    let get = |request: Request| request.to(envoy.address()).status;

    assert_eq!(get(Request::get("/")), 200);
    assert_eq!(get(Request::get("/").header("x-trap", "1")), 503);
    assert_eq!(get(Request::get("/")), 503);
    let before = filtered(&envoy);
    until("a new VM after the back-off", || {
        (get(Request::get("/")) == 200).then_some(())
    });
    assert_eq!(filtered(&envoy), before + 1);
}

#[test]
fn fail_open_answers_503_once_and_then_is_silently_off() {
    let engine = Sink::ok();
    let envoy = trapping(&engine, "FAIL_OPEN");
    let get = |request: Request| request.to(envoy.address()).status;

    assert_eq!(get(Request::get("/")), 200);
    assert_eq!(get(Request::get("/").header("x-trap", "1")), 503);
    let before = filtered(&envoy);
    assert_eq!(get(Request::get("/")), 200);
    assert_eq!(filtered(&envoy), before, "the filter is not asked any more");
}

#[test]
fn fail_closed_answers_503_for_good() {
    let engine = Sink::ok();
    let envoy = trapping(&engine, "FAIL_CLOSED");
    let get = |request: Request| request.to(envoy.address()).status;

    assert_eq!(get(Request::get("/")), 200);
    assert_eq!(get(Request::get("/").header("x-trap", "1")), 503);
    sleep(Duration::from_millis(1_300));
    assert_eq!(get(Request::get("/")), 503);
}
