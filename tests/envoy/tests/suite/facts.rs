//! What Envoy does, asked by small probes: the host model of tests/harness and the module rely on
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_tests::probe::{Arg, Probe, pairs, path, text};
use envoy_tests::{Bootstrap, Envoy, Reply, Request, Sink, until};

const OK: u64 = 0;
const NOT_FOUND: u64 = 1;
const BAD_ARGUMENT: u64 = 2;
const SERIALIZATION_FAILURE: u64 = 3;
const CAS_MISMATCH: u64 = 8;
const INTERNAL_FAILURE: u64 = 10;

const REQUEST_HEADERS: Arg = Arg::Num(0);
const REQUEST_BODY: Arg = Arg::Num(0);

/// In the HTTP filter chain, the only filter.
fn downstream(probe: &Probe) -> Bootstrap {
    Bootstrap::shipped("downstream.yaml")
        .without_filter("kv-scorer")
        .module(probe.build())
}

/// In the cluster's chain, the only filter.
fn upstream(probe: &Probe) -> Bootstrap {
    Bootstrap::shipped("upstream.yaml")
        .without_filter("kv-scorer")
        .module(probe.build())
}

/// The answers by label.
fn answers(envoy: &Envoy) -> BTreeMap<String, u64> {
    let all = envoy.stats("wasmcustom.");
    all.into_iter()
        .map(|(name, value)| (name.replacen("wasmcustom.", "", 1), value))
        .collect()
}

fn assert_answers(envoy: &Envoy, expected: &[(&str, u64)]) {
    let got = answers(envoy);
    let all: BTreeMap<_, _> = expected
        .iter()
        .map(|(l, v)| ((*l).to_owned(), *v))
        .collect();
    let asked: BTreeMap<_, _> = got
        .into_iter()
        .filter(|(l, _)| all.contains_key(l))
        .collect();
    assert_eq!(asked, all);
}

#[test]
fn shared_data_knows_no_create_if_absent_and_any_wrong_cas_mismatches() {
    let get = [text("key"), Arg::Returned, Arg::Number];
    let set = |value: &str, cas: u32| [text("key"), text(value), Arg::Num(cas)];
    let on = "request_headers";
    let probe = Probe::new()
        .call(on, "1_get_absent", "get_shared_data", &get)
        .call(
            on,
            "2_set_absent_any_cas",
            "set_shared_data",
            &set("value", 7_777),
        )
        .call(on, "3_get", "get_shared_data", &get)
        .call(
            on,
            "4_set_wrong_cas",
            "set_shared_data",
            &set("other", 7_777),
        )
        .call(
            on,
            "5_set_largest_cas",
            "set_shared_data",
            &set("other", u32::MAX),
        )
        .call(on, "6_get_unchanged", "get_shared_data", &get)
        .call(on, "7_set_cas_0", "set_shared_data", &set("x", 0))
        .call(on, "8_get_changed", "get_shared_data", &get)
        .call(on, "9_set_empty", "set_shared_data", &set("", 0))
        .call(on, "9_get_empty", "get_shared_data", &get);
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]));

    Request::get("/").to(envoy.address());

    assert_answers(
        &envoy,
        &[
            ("1_get_absent", NOT_FOUND),
            ("2_set_absent_any_cas", OK),
            ("3_get", OK),
            ("3_get.len", 5),
            ("4_set_wrong_cas", CAS_MISMATCH),
            ("5_set_largest_cas", CAS_MISMATCH),
            ("6_get_unchanged.len", 5),
            ("7_set_cas_0", OK),
            ("8_get_changed.len", 1),
            ("9_set_empty", OK),
            ("9_get_empty", OK),
            ("9_get_empty.len", 0),
        ],
    );
}

#[test]
fn what_a_filter_of_the_http_chain_can_read_when() {
    let mut probe = Probe::new();
    for (on, phase) in [("request_headers", "h"), ("request_body", "b")] {
        let header = |name: &str| [REQUEST_HEADERS, text(name), Arg::Returned];
        let property = |parts: &[&str]| [path(parts), Arg::Returned];
        let label = |name: &str| format!("{phase}_{name}");
        probe = probe
            .call(
                on,
                &label("header"),
                "get_header_map_value",
                &header("x-odd"),
            )
            .call(
                on,
                &label("header_absent"),
                "get_header_map_value",
                &header("x-none"),
            )
            .call(
                on,
                &label("headers"),
                "get_header_map_pairs",
                &[REQUEST_HEADERS, Arg::Returned],
            )
            .call(
                on,
                &label("remove"),
                "remove_header_map_value",
                &[REQUEST_HEADERS, text("x-none")],
            )
            .call(
                on,
                &label("address"),
                "get_property",
                &property(&["upstream", "address"]),
            )
            .call(
                on,
                &label("host_metadata"),
                "get_property",
                &property(&["xds", "upstream_host_metadata"]),
            )
            .call(
                on,
                &label("path"),
                "get_property",
                &property(&["request", "path"]),
            )
            .call(
                on,
                &label("route"),
                "get_property",
                &property(&["xds", "route_name"]),
            )
            .call(
                on,
                &label("vhost"),
                "get_property",
                &property(&["xds", "virtual_host_name"]),
            )
            .call(
                on,
                &label("cluster"),
                "get_property",
                &property(&["xds", "cluster_name"]),
            )
            .call(
                on,
                &label("bare_route"),
                "get_property",
                &property(&["route_name"]),
            )
            .call(
                on,
                &label("metadata"),
                "get_property",
                &property(&[
                    "xds",
                    "route_metadata",
                    "filter_metadata",
                    "selective-kv",
                    "config",
                ]),
            )
            .call(
                on,
                &label("other_metadata"),
                "get_property",
                &property(&[
                    "xds",
                    "route_metadata",
                    "filter_metadata",
                    "other",
                    "config",
                ]),
            )
            .call(
                on,
                &label("lb"),
                "get_property",
                &property(&[
                    "metadata",
                    "filter_metadata",
                    "envoy.lb",
                    "x-gateway-destination-endpoint",
                ]),
            )
            .call(
                on,
                &label("root_id"),
                "get_property",
                &property(&["plugin_root_id"]),
            )
            .call(
                on,
                &label("set"),
                "set_property",
                &[text(&label("state")), text("v")],
            );
    }
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]));

    let request = Request::post("/v1/completions", "{}")
        .header("x-odd", b"\xff\xfe\xfd")
        .header("x-batch", "1");
    request.to(envoy.address());

    let address = engine.endpoint().len() as u64;
    assert_answers(
        &envoy,
        &[
            ("h_header", OK),
            ("h_header.len", 3),
            ("h_header_absent", NOT_FOUND),
            ("h_remove", OK),
            ("h_address", NOT_FOUND),
            ("h_host_metadata", NOT_FOUND),
            ("h_path", OK),
            ("h_route", OK),
            ("h_route.len", "batch".len() as u64),
            ("h_vhost.len", "llm".len() as u64),
            ("h_cluster.len", "engines".len() as u64),
            ("h_bare_route", NOT_FOUND),
            ("h_metadata", OK),
            (
                "h_metadata.len",
                r#"{"loadPolicy": "disable"}"#.len() as u64,
            ),
            ("h_other_metadata", NOT_FOUND),
            ("h_lb", NOT_FOUND),
            ("h_root_id.len", "selective-kv".len() as u64),
            ("h_set", OK),
            ("b_header", BAD_ARGUMENT),
            ("b_header_absent", BAD_ARGUMENT),
            ("b_headers", OK),
            ("b_headers.len", 0),
            ("b_remove", BAD_ARGUMENT),
            ("b_address", OK),
            ("b_address.len", address),
            ("b_host_metadata", SERIALIZATION_FAILURE),
            ("b_path", NOT_FOUND),
            ("b_route.len", "batch".len() as u64),
            (
                "b_metadata.len",
                r#"{"loadPolicy": "disable"}"#.len() as u64,
            ),
            ("b_root_id.len", "selective-kv".len() as u64),
            ("b_set", OK),
        ],
    );
}

#[test]
fn an_upstream_filter_knows_its_host_in_the_headers_phase() {
    let property = |parts: &[&str]| [path(parts), Arg::Returned];
    let on = "request_headers";
    let probe = Probe::new()
        .call(
            on,
            "address",
            "get_property",
            &property(&["upstream", "address"]),
        )
        .call(
            on,
            "host_metadata",
            "get_property",
            &property(&["xds", "upstream_host_metadata"]),
        )
        .call(
            on,
            "route",
            "get_property",
            &property(&["xds", "route_name"]),
        )
        .call(
            on,
            "http_call",
            "http_call",
            &[
                text("kv-scrape"),
                pairs(&[(":method", "GET"), (":path", "/"), (":authority", "a")]),
                text(""),
                pairs(&[]),
                Arg::Num(1000),
                Arg::Number,
            ],
        );
    let engine = Sink::ok();
    let envoy = Envoy::start(&upstream(&probe).engines(&[&engine]));

    Request::post("/v1/chat/completions", "{}").to(envoy.address());

    let address = engine.endpoint().len() as u64;
    assert_answers(
        &envoy,
        &[
            ("address", OK),
            ("address.len", address),
            ("host_metadata", SERIALIZATION_FAILURE),
            ("route.len", "chat".len() as u64),
            ("http_call", INTERNAL_FAILURE),
        ],
    );
}

#[test]
fn a_body_buffer_takes_whole_replace_prepend_and_append_only() {
    let set = |start: u32, size: u32, data: &str| {
        [REQUEST_BODY, Arg::Num(start), Arg::Num(size), text(data)]
    };
    let get =
        |start: u32, size: u32| [REQUEST_BODY, Arg::Num(start), Arg::Num(size), Arg::Returned];
    let on = "request_body";
    let probe = Probe::new()
        .call(on, "get", "get_buffer_bytes", &get(0, 100))
        .call(on, "get_part", "get_buffer_bytes", &get(4, 3))
        .call(on, "get_none", "get_buffer_bytes", &get(0, 0))
        .call(on, "get_at_end", "get_buffer_bytes", &get(10, 5))
        .call(on, "get_past_end", "get_buffer_bytes", &get(11, 5))
        .call(on, "middle", "set_buffer_bytes", &set(5, 1, "M"))
        .call(on, "prepend", "set_buffer_bytes", &set(0, 0, "P"))
        .call(on, "append", "set_buffer_bytes", &set(1000, 0, "A"))
        .call(on, "replaced_first", "set_buffer_bytes", &set(0, 2, "R"))
        .call(
            "request_trailers",
            "in_trailers",
            "set_buffer_bytes",
            &set(0, 0, "T"),
        )
        .call(
            "request_headers",
            "remove_length",
            "remove_header_map_value",
            &[REQUEST_HEADERS, text("content-length")],
        );
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]).trailers());

    let request = Request::post_chunked("/v1/completions", b"0123456789", 10).trailer("x-end", "1");
    request.to(envoy.address());

    assert_answers(
        &envoy,
        &[
            ("get", OK),
            ("get.len", 10),
            ("get_part.len", 3),
            ("get_none", OK),
            ("get_none.len", 0),
            ("get_at_end", OK),
            ("get_at_end.len", 0),
            ("get_past_end", OK),
            ("get_past_end.len", 0),
            ("middle", BAD_ARGUMENT),
            ("prepend", OK),
            ("append", OK),
            ("replaced_first", OK),
            ("in_trailers", BAD_ARGUMENT),
        ],
    );
    assert_eq!(engine.take_one().text(), "R123456789A");
}

#[test]
fn a_body_ends_in_its_last_callback_but_never_before_trailers() {
    let probe = Probe::new()
        .count("request_body", "bodies")
        .count_ends("request_body", "ends")
        .count("request_trailers", "trailers")
        .count_ends("request_headers", "header_only");
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]).trailers());
    let seen = |label: &str| answers(&envoy).get(label).copied().unwrap_or(0);

    Request::get("/").to(envoy.address());
    assert_eq!(
        (seen("bodies"), seen("ends"), seen("header_only")),
        (0, 0, 1)
    );

    Request::post("/", "abc").to(envoy.address());
    assert_eq!(
        (seen("ends"), seen("trailers"), seen("header_only")),
        (1, 0, 1)
    );

    let before = seen("bodies");
    Request::post_chunked("/", b"abc", 1)
        .slowly(20)
        .trailer("x-end", "1")
        .to(envoy.address());
    assert_eq!((seen("ends"), seen("trailers")), (1, 1));
    assert!(
        seen("bodies") >= before + 3,
        "one callback a chunk at least"
    );

    // HTTP/2: one callback a frame, however fast they come.
    let before = seen("bodies");
    Request::post_chunked("/", &[b'x'; 50], 1).h2(envoy.address());
    assert!(seen("bodies") >= before + 50, "{}", seen("bodies") - before);
}

#[test]
fn ticks_come_on_every_worker_and_on_the_main_thread() {
    let probe = Probe::new().count("tick", "ticks").call(
        "tick",
        "unknown_cluster",
        "http_call",
        &[
            text("nowhere"),
            pairs(&[(":method", "GET"), (":path", "/"), (":authority", "a")]),
            text(""),
            pairs(&[]),
            Arg::Num(1000),
            Arg::Number,
        ],
    );
    let engine = Sink::ok();
    let one = Envoy::start(&downstream(&probe).engines(&[&engine]));
    let two = Envoy::with_workers(&downstream(&probe).engines(&[&engine]), 2);
    let ticks = |envoy: &Envoy| answers(envoy).get("ticks").copied().unwrap_or(0);

    // Main thread and one worker against main thread and two, every 20 ms each.
    let (from_one, from_two) = (ticks(&one), ticks(&two));
    until("the ticks of half a second", || {
        (ticks(&one) > from_one + 50).then_some(())
    });
    let (one_ticked, two_ticked) = (ticks(&one) - from_one, ticks(&two) - from_two);
    let ratio = two_ticked as f64 / one_ticked as f64;
    assert!((1.2..1.8).contains(&ratio), "{two_ticked} to {one_ticked}");
    assert_answers(&one, &[("unknown_cluster", BAD_ARGUMENT)]);
}

#[test]
fn metrics_live_once_per_name_and_counters_only_grow() {
    let define = |kind: u32, name: &str| [Arg::Num(kind), text(name), Arg::Number];
    let increment = |by: i64| [Arg::Metric, Arg::Long(by)];
    let on = "request_headers";
    let probe = Probe::new()
        .call(on, "define", "define_metric", &define(0, "one_total"))
        .call(on, "grow", "increment_metric", &increment(2))
        .call(on, "stand_still", "increment_metric", &increment(0))
        .call(on, "shrink", "increment_metric", &increment(-1))
        .call(on, "define_again", "define_metric", &define(0, "one_total"))
        .call(on, "grow_again", "increment_metric", &increment(3))
        .call(on, "define_gauge", "define_metric", &define(1, "level"))
        .call(on, "set", "record_metric", &[Arg::Metric, Arg::Long(5)])
        .call(on, "lower", "increment_metric", &increment(-1))
        .call(on, "unknown_kind", "define_metric", &define(3, "two_total"))
        .call(
            on,
            "unknown_id",
            "increment_metric",
            &[Arg::Num(40_000), Arg::Long(1)],
        );
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]));

    Request::get("/").to(envoy.address());

    assert_answers(
        &envoy,
        &[
            ("define", OK),
            ("grow", OK),
            ("stand_still", BAD_ARGUMENT),
            ("shrink", BAD_ARGUMENT),
            ("define_again", OK),
            ("grow_again", OK),
            ("one_total", 5),
            ("define_gauge", OK),
            ("set", OK),
            ("lower", OK),
            ("level", 4),
            ("unknown_kind", BAD_ARGUMENT),
            ("unknown_id", NOT_FOUND),
        ],
    );
}

#[test]
fn a_paused_body_is_buffered_whole_and_over_the_limit_answered_413() {
    let append = [REQUEST_BODY, Arg::Num(1000), Arg::Num(0), text("!")];
    let probe = Probe::new()
        .parameter("request_body", "size", 1)
        .pause_until_end("request_body")
        .call(
            "request_trailers",
            "in_trailers",
            "set_buffer_bytes",
            &append,
        );
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]).trailers());

    Request::post_chunked("/", b"abcdefghi", 3)
        .slowly(20)
        .to(envoy.address());
    assert_answers(&envoy, &[("size", 9)]);
    assert_eq!(engine.take_one().text(), "abcdefghi");

    // With trailers the end never comes in a body callback; what was buffered can still be written.
    let request = Request::post_chunked("/", b"abcdef", 3)
        .slowly(20)
        .trailer("x-end", "1");
    request.to(envoy.address());
    assert_answers(&envoy, &[("in_trailers", OK)]);
    assert_eq!(engine.take_one().text(), "abcdef!");

    // The shipped limit is 1 MiB.
    let response = Request::post_chunked("/", &vec![b'x'; 1_200_000], 50_000)
        .slowly(1)
        .to(envoy.address());
    assert_eq!(response.status, 413);
    assert!(engine.seen().iter().all(|seen| seen.body.is_empty()));
}

#[test]
fn a_chunk_that_is_too_much_for_the_buffer_is_answered_413_whatever_the_filter_says() {
    // Waits for 24,576 bytes; the connection's limit is 32 KiB.
    let probe = Probe::new().pause_below(24_576);
    let engine = Sink::ok();
    let bootstrap =
        downstream(&probe)
            .engines(&[&engine])
            .edit_at("/static_resources/listeners/0", |l| {
                l["per_connection_buffer_limit_bytes"] = serde_json::json!(32_768);
            });
    let envoy = Envoy::start(&bootstrap);
    let body = [b'x'; 50_000];
    let burst = |first: usize| {
        let head = Request::post_chunked("/", &[], 1).send(&body[..first]);
        let request = head.pause(50).send(&body[first..]);
        request.to(envoy.address()).status
    };
    // Nothing is buffered when the burst comes, or it is.
    assert_eq!([burst(24_576), burst(10_000)], [200, 413]);
}

#[test]
fn a_pause_in_the_headers_callback_keeps_the_body_away() {
    let probe = Probe::new()
        .count("request_body", "bodies")
        .pause("request_headers");
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]));

    let request = Request::post_chunked("/", b"abc", 1).pause(200).reset();
    assert_eq!(request.try_to(envoy.address()), None);
    assert_eq!(answers(&envoy).get("bodies"), None);
    assert!(engine.seen().is_empty());
}

#[test]
fn a_local_response_in_a_body_callback_is_the_answer_and_passes_the_response_callbacks() {
    let none = pairs(&[]);
    let args = [
        Arg::Num(503),
        text("why"),
        text("no"),
        none,
        Arg::Num(u32::MAX),
    ];
    for placement in ["downstream", "upstream"] {
        let probe = Probe::new()
            .call("request_body", "sent", "send_local_response", &args)
            .count("response_headers", "responses");
        let engine = Sink::ok();
        let bootstrap = match placement {
            "downstream" => downstream(&probe),
            _ => upstream(&probe),
        };
        let envoy = Envoy::start(&bootstrap.engines(&[&engine]));

        let request = Request::post_chunked("/", b"abcdef", 1).slowly(5);
        let response = request.to(envoy.address());

        assert_eq!(
            (response.status, response.text().as_str()),
            (503, "no"),
            "{placement}"
        );
        let got = answers(&envoy);
        assert_eq!(got.get("sent"), Some(&OK), "{placement}");
        assert!(
            engine.seen().iter().all(|seen| !seen.complete),
            "{placement}: {:?}",
            engine.seen()
        );
        if placement == "downstream" {
            assert_eq!(got.get("responses"), Some(&1));
        }
    }
}

#[test]
fn a_closed_stream_is_answered_by_nobody() {
    let probe = Probe::new().call("request_body", "closed", "close_stream", &[Arg::Num(0)]);
    let engine = Sink::ok();
    let envoy = Envoy::start(&downstream(&probe).engines(&[&engine]));

    let request = Request::post_chunked("/", b"abcdef", 1).slowly(5);
    assert_eq!(request.try_to(envoy.address()), None);
    assert_answers(&envoy, &[("closed", OK)]);
    assert!(engine.seen().iter().all(|seen| !seen.complete));
}

#[test]
fn a_root_context_calls_out_and_has_no_filter_state() {
    let call = |cluster: &str, target: &str, timeout_ms: u32| {
        let head = [(":method", "GET"), (":path", target), (":authority", "a")];
        [
            text(cluster),
            pairs(&head),
            text(""),
            pairs(&[]),
            Arg::Num(timeout_ms),
            Arg::Number,
        ]
    };
    // What arrives last stays: one kind of answer for each Envoy.
    let ok = Sink::with(|_| Reply::Status(200, b"hello".to_vec()));
    let resetting = Sink::with(|_| Reply::Reset);
    let silent = Sink::with(|_| Reply::After(Duration::from_secs(5), Box::new(Reply::ok())));
    let answer = [Arg::Num(4), Arg::Num(0), Arg::Num(100), Arg::Returned];
    let status = [Arg::Num(6), text(":status"), Arg::Returned];
    // Envoy answers in the engine's place: its own 503 or 504 come as answers, with a body.
    for (engine, body) in [(&ok, Some(5)), (&resetting, None), (&silent, None)] {
        let probe = Probe::new()
            .call("tick", "called", "http_call", &call("engines", "/", 200))
            .call("tick", "state", "set_property", &[text("x"), text("v")])
            .count("http_call_response", "answers")
            .parameter("http_call_response", "headers", 2)
            .parameter("http_call_response", "body", 3)
            .call(
                "http_call_response",
                "status",
                "get_header_map_value",
                &status,
            )
            .call("http_call_response", "read", "get_buffer_bytes", &answer);
        let envoy = Envoy::start(&downstream(&probe).engines(&[engine]));
        until("an answer", || {
            answers(&envoy).contains_key("read.len").then_some(())
        });
        let got = answers(&envoy);
        assert_eq!(
            (got["called"], got["state"], got["read"]),
            (OK, NOT_FOUND, OK),
            "{got:?}"
        );
        assert!(got["headers"] > 0 && got["status.len"] == 3, "{got:?}");
        assert_eq!(got["body"], got["read.len"], "{got:?}");
        assert!(body.is_none_or(|body| body == got["body"]), "{got:?}");
    }
}

#[test]
fn a_waiting_stream_is_answered_at_its_root_and_goes_on_in_its_own_name() {
    let call = [
        text("kv-scrape"),
        pairs(&[
            (":method", "POST"),
            (":path", "/tokenize"),
            (":authority", "tool"),
        ]),
        text(r#"{"prompt":"a"}"#),
        pairs(&[]),
        Arg::Num(2_000),
        Arg::Number,
    ];
    let answer = [Arg::Num(4), Arg::Num(0), Arg::Num(99), Arg::Returned];
    // The first stream of a VM that has one root context.
    const STREAM: u32 = 2;
    let on = "http_call_response";
    let probe = Probe::new()
        .parameter("request_body", "stream", 0)
        // One call, by the last body callback: the answer to another could outlive the stream.
        .pause_until_end("request_body")
        .call("request_body", "called", "http_call", &call)
        .pause("request_body")
        .parameter(on, "answered", 0)
        .call(on, "unnamed", "continue_stream", &[Arg::Num(0)])
        .call(on, "read", "get_buffer_bytes", &answer)
        .call(on, "named", "set_effective_context", &[Arg::Num(STREAM)])
        .call(on, "read_named", "get_buffer_bytes", &answer)
        .call(on, "continued", "continue_stream", &[Arg::Num(0)]);
    let tool = Sink::with(|_| Reply::Status(200, br#"{"tokens":[1]}"#.to_vec()));
    let engine = Sink::ok();
    let bootstrap = downstream(&probe)
        .engines(&[&engine])
        .add_cluster("kv-scrape", &[tool.address()]);
    let envoy = Envoy::start(&bootstrap);

    let response = Request::post("/v1/completions", "0123456789").to(envoy.address());

    assert_eq!(response.status, 200);
    assert_eq!(engine.take_one().text(), "0123456789");
    assert_answers(
        &envoy,
        &[
            ("stream", STREAM.into()),
            ("called", OK),
            ("answered", 1),
            ("unnamed", OK),
            ("read.len", 14),
            ("named", OK),
            ("read_named.len", 14),
            ("continued", OK),
        ],
    );
    let called = tool.take_one();
    let length = called.header("content-length");
    assert_eq!(
        (called.text().as_str(), length.as_deref()),
        (r#"{"prompt":"a"}"#, Some("14"))
    );
}
