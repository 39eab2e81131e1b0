//! What the model claims about Envoy, one fact a test. tests/envoy pins the same scenarios in the
//! real one.

#[path = "support/puppet.rs"]
mod puppet;

use puppet::{puppet, told, wat};
use skv_harness::{
    Answer, Chain, Fault, Harness, HeaderMap, Meter, Placement, Request, StartError,
};

const RESULT: &str = "(i32.const 0) (i32.const 4)";

/// Logs size and end of every body callback; the result is the test's.
fn body_teller(result: &str) -> String {
    format!(
        r#"(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
             (call $num (local.get $size)) (call $num (local.get $end)) {result})"#
    )
}

fn post() -> Request {
    Request::post("/v1/completions").upstream("10.0.0.7:8000")
}

#[test]
fn a_continued_body_comes_chunk_by_chunk_and_its_end_often_alone() {
    let env = Harness::new();
    let vm = puppet(&env, "", &[], &body_teller("(i32.const 0)"));
    let out = vm
        .plugin("p", "")
        .request(post())
        .chunks(["abc", "defg"])
        .end();
    assert_eq!(told(&vm), ["3", "0", "4", "0", "0", "1"]);
    assert_eq!(out.text(), "abcdefg");
    assert_eq!(
        out.attempt.as_ref().map(|a| a.chunks.clone()),
        Some(vec![3, 4])
    );
    assert!(out.complete());
}

#[test]
fn a_paused_body_is_cumulative_and_released_whole() {
    let env = Harness::new();
    let vm = puppet(&env, "", &[], &body_teller("(i32.eqz (local.get $end))"));
    let out = vm
        .plugin("p", "")
        .request(post())
        .chunks(["abc", "defg"])
        .end();
    assert_eq!(told(&vm), ["3", "0", "7", "0", "7", "1"]);
    assert_eq!(
        out.attempt.as_ref().map(|a| a.chunks.clone()),
        Some(vec![7])
    );
    assert!(out.complete());
}

#[test]
fn a_paused_body_over_the_buffer_limit_is_answered_413() {
    let env = Harness::new();
    let vm = puppet(&env, "", &[], &body_teller("(i32.eqz (local.get $end))"));
    let plugin = vm.plugin("p", "");
    let out = plugin
        .request(post().buffer_limit(5))
        .chunks(["abc", "defg"])
        .end();
    assert_eq!(out.local_status(), Some(413));
    // Also where the filter would have let it go on with the chunk that is too much.
    let out = plugin
        .request(post().buffer_limit(5))
        .chunks(["abc"])
        .end_with("defg");
    assert_eq!(out.local_status(), Some(413));
    // What was never buffered may be of any size.
    let out = plugin.request(post().buffer_limit(5)).end_with("abcdefg");
    assert_eq!(out.text(), "abcdefg");
}

#[test]
fn set_buffer_replaces_prepends_and_appends_and_nothing_else() {
    // (start, size) on the chunk "abcd" with the data "XY".
    let table = [
        (0, 4, "0", "XY"),
        (0, 99, "0", "XY"),
        (0, 1, "0", "XYbcd"),
        (0, 0, "0", "XYabcd"),
        (4, 0, "0", "abcdXY"),
        (9, 9, "0", "abcdXY"),
        (1, 1, "2", "abcd"),
        (3, 9, "2", "abcd"),
    ];
    for (start, size, status, body) in table {
        let env = Harness::new();
        let vm = puppet(
            &env,
            "",
            &[("data", "XY")],
            &format!(
                r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
                     (call $num (call $set_buffer (i32.const 0) (i32.const {start}) (i32.const {size}) @data ))
                     (i32.const 0))"#
            ),
        );
        let out = vm.plugin("p", "").request(post()).end_with("abcd");
        assert_eq!(
            (told(&vm), out.text()),
            (vec![status.to_owned()], body.to_owned()),
            "{start}, {size}"
        );
    }
}

#[test]
fn get_buffer_gives_what_there_is_and_writes_no_result_for_nothing() {
    // (start, size) on the chunk "0123456789": bytes given.
    for (start, size, given) in [
        (0, 100, 10),
        (4, 3, 3),
        (0, 0, 77),
        (10, 5, 77),
        (11, 5, 77),
    ] {
        let env = Harness::new();
        let vm = puppet(
            &env,
            "",
            &[],
            &format!(
                r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
                     (i32.store (i32.const 4) (i32.const 77))
                     (call $num (call $get_buffer (i32.const 0) (i32.const {start}) (i32.const {size}) {RESULT}))
                     (call $num (i32.load (i32.const 4)))
                     (i32.const 0))"#
            ),
        );
        vm.plugin("p", "").request(post()).end_with("0123456789");
        assert_eq!(
            told(&vm),
            ["0".to_owned(), given.to_string()],
            "{start}, {size}"
        );
    }
}

#[test]
fn chunks_taken_out_can_be_given_back_in_the_last_callback_of_size_0() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[("all", "abcdefg")],
        r#"(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
             (if (local.get $end)
               (then (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 0) @all )))
               (else (drop (call $set_buffer (i32.const 0) (i32.const 0) (local.get $size) (i32.const 0) (i32.const 0)))))
             (i32.const 0))"#,
    );
    let mut stream = vm.plugin("p", "").request(post());
    stream.chunk("abc").chunk("defg").last_chunk("");
    let out = stream.close();
    assert_eq!(out.text(), "abcdefg");
    assert!(out.complete());
}

/// On trailers: replaces whatever is buffered and tells the status.
const TRAILERS: &str = r#"
    (func (export "proxy_on_request_trailers") (param i32 i32) (result i32)
      (call $num (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) @data ))
      (i32.const 0))"#;

#[test]
fn with_trailers_the_end_comes_there_and_a_continued_body_cannot_be_written_any_more() {
    let env = Harness::new();
    let body = body_teller("(i32.const 0)") + TRAILERS;
    let vm = puppet(&env, "", &[("data", "XY")], &body);
    let out = vm
        .plugin("p", "")
        .request(post())
        .chunks(["abc"])
        .trailers([("t", "1")]);
    assert_eq!(told(&vm), ["3", "0", "2"]);
    assert_eq!(out.text(), "abc");
    assert!(out.complete());
}

#[test]
fn with_trailers_a_paused_body_can_still_be_written() {
    let env = Harness::new();
    let body = body_teller("(i32.const 1)") + TRAILERS;
    let vm = puppet(&env, "", &[("data", "XY")], &body);
    let out = vm
        .plugin("p", "")
        .request(post())
        .chunks(["abc"])
        .trailers([("t", "1")]);
    assert_eq!(told(&vm), ["3", "0", "0"]);
    assert_eq!(out.text(), "XY");
    let trailers = out.attempt.and_then(|a| a.trailers);
    assert_eq!(
        trailers,
        Some([("t", "1")].into_iter().collect::<HeaderMap>())
    );
}

#[test]
fn a_request_without_a_body_has_no_body_callback() {
    let env = Harness::new();
    let vm = puppet(&env, "", &[], &body_teller("(i32.const 0)"));
    let out = vm.plugin("p", "").header_only(post());
    assert_eq!(told(&vm), Vec::<String>::new());
    assert!(out.complete());
}

#[test]
fn a_pause_in_the_headers_callback_holds_the_body_callbacks_back() {
    let env = Harness::new();
    let body = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#
        .to_owned()
        + &body_teller("(i32.const 0)");
    let vm = puppet(&env, "", &[], &body);
    let out = vm.plugin("p", "").request(post()).chunks(["abc"]).end();
    assert_eq!(told(&vm), Vec::<String>::new());
    assert!(out.paused);
    assert_eq!(out.attempt, None);
}

#[test]
fn request_headers_and_request_properties_are_not_readable_after_continue() {
    let env = Harness::new();
    let read = format!(
        r#"(call $num (call $get_header (i32.const 0) @name {RESULT}))
           (call $num (call $get_property @path {RESULT}))
           (call $num (call $get_pairs (i32.const 0) {RESULT}))
           (call $num (i32.ne (i32.load (i32.const 4)) (i32.const 0)))"#
    );
    let vm = puppet(
        &env,
        "",
        &[("name", ":path"), ("path", "request\0path")],
        &format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {read} (i32.const 0))
               (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) {read} (i32.const 0))"#
        ),
    );
    vm.plugin("p", "").request(post()).end();
    // In the body phase: BadArgument, NotFound, and all pairs are none.
    assert_eq!(told(&vm), ["0", "0", "0", "1", "2", "1", "0", "0"]);
}

/// Tells the property at `@path` in the headers and in the body callback.
fn property_teller() -> String {
    let read = format!(
        r#"(call $num (local.tee $status (call $get_property @path {RESULT})))
           (if (i32.eqz (local.get $status)) (then (call $given)))"#
    );
    format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (local $status i32)
             {read} (i32.const 0))
           (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (local $status i32)
             {read} (i32.const 0))"#
    )
}

#[test]
fn the_upstream_address_is_known_in_the_body_phase_and_to_an_upstream_filter_at_once() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[("path", "upstream\0address")],
        &property_teller(),
    );
    vm.plugin("p", "").request(post()).end();
    assert_eq!(told(&vm), ["1", "0", "10.0.0.7:8000"]);

    let vm = puppet(
        &env,
        "",
        &[("path", "upstream\0address")],
        &property_teller(),
    );
    vm.plugin("p", "").upstream().request(post()).end();
    assert_eq!(told(&vm), ["0", "10.0.0.7:8000", "0", "10.0.0.7:8000"]);
}

#[test]
fn the_metadata_of_a_host_without_any_is_a_serialization_failure() {
    let env = Harness::new();
    let path = [("path", "xds\0upstream_host_metadata")];
    let vm = puppet(&env, "", &path, &property_teller());
    vm.plugin("p", "").request(post()).end();
    assert_eq!(told(&vm), ["1", "3"]);
}

#[test]
fn routes_and_metadata_are_readable_in_every_phase_and_bare_names_do_not_exist() {
    let request = || {
        post()
            .route("chat")
            .route_metadata("selective-kv", "config", "{}")
            .dynamic_metadata("envoy.lb", "x", "y")
    };
    let table = [
        ("xds\0route_name", vec!["0", "chat", "0", "chat"]),
        (
            "xds\0route_metadata\0filter_metadata\0selective-kv\0config",
            vec!["0", "{}", "0", "{}"],
        ),
        (
            "metadata\0filter_metadata\0envoy.lb\0x",
            vec!["0", "y", "0", "y"],
        ),
        ("plugin_root_id", vec!["0", "p", "0", "p"]),
        ("plugin_vm_id", vec!["0", "the-vm", "0", "the-vm"]),
        ("route_name", vec!["1", "1"]),
        ("cluster_name", vec!["1", "1"]),
    ];
    for (path, expected) in table {
        let env = Harness::new();
        let vm = puppet(&env, "the-vm", &[("path", path)], &property_teller());
        vm.plugin("p", "").request(request()).end();
        assert_eq!(told(&vm), expected, "{path:?}");
    }
}

#[test]
fn shared_data_is_compare_and_swap_without_create_if_absent() {
    let env = Harness::new();
    let set = |key: &str, cas: u32| {
        format!("(call $num (call $set_shared @{key} @value (i32.const {cas})))")
    };
    let get = |key: &str| {
        format!(
            r#"(call $num (call $get_shared @{key} {RESULT} (i32.const 8)))
               (call $num (i32.load (i32.const 4))) (call $num (i32.load (i32.const 8)))"#
        )
    };
    let steps = [
        get("a"),    // NotFound, nothing written
        set("a", 7), // a non-zero cas on a missing key succeeds
        get("a"),    // cas 1
        set("a", 2), // CasMismatch
        set("a", 1), // the right one
        set("b", 0), // cas goes on over all keys
        get("b"),
        set("a", 0), // unconditional
        get("a"),
        "(call $num (call $set_shared @a (i32.const 0) (i32.const 0) (i32.const 0)))".to_owned(),
        "(i32.store (i32.const 0) (i32.const 77))".to_owned(),
        get("a"), // an empty value: Ok with a null pointer, and its cas
        "(call $num (i32.load (i32.const 0)))".to_owned(),
    ];
    let vm = puppet(
        &env,
        "",
        &[("a", "a"), ("b", "b"), ("value", "xyz")],
        &format!(
            r#"(func (export "proxy_on_tick") (param i32) {})"#,
            steps.join("\n")
        ),
    );
    vm.plugin("p", "").tick();
    let expected = [
        "1", "0", "0", "0", "0", "3", "1", "8", "0", "0", "0", "3", "3", "0", "0", "3", "4", "0",
        "0", "0", "5", "0",
    ];
    assert_eq!(told(&vm), expected);
    assert_eq!(env.shared("", "a"), Some((Vec::new(), 5)));
}

#[test]
fn shared_data_is_one_for_all_vms_of_a_vm_id_and_survives_them() {
    let env = Harness::new();
    let texts = [("key", "k"), ("value", "v")];
    let writer = r#"(func (export "proxy_on_tick") (param i32)
        (call $num (call $set_shared @key @value (i32.const 0))))"#;
    let reader = format!(
        r#"(func (export "proxy_on_tick") (param i32)
             (call $num (call $get_shared @key {RESULT} (i32.const 8))))"#
    );
    puppet(&env, "one", &texts, writer).plugin("p", "").tick();
    let same = puppet(&env, "one", &texts, &reader);
    let other = puppet(&env, "two", &texts, &reader);
    same.plugin("q", "").tick();
    other.plugin("q", "").tick();
    assert_eq!(
        (told(&same), told(&other)),
        (vec!["0".into()], vec!["1".into()])
    );
}

#[test]
fn metrics_are_one_by_name_over_all_vms_and_counters_only_grow() {
    let env = Harness::new();
    let body = r#"(func (export "proxy_on_tick") (param i32)
        (drop (call $define_metric (i32.const 0) @counter (i32.const 0)))
        (call $num (call $increment (i32.load (i32.const 0)) (i64.const 2)))
        (call $num (call $increment (i32.load (i32.const 0)) (i64.const 0)))
        (drop (call $define_metric (i32.const 1) @gauge (i32.const 0)))
        (call $num (call $record (i32.load (i32.const 0)) (i64.const 5)))
        (call $num (call $increment (i32.load (i32.const 0)) (i64.const -1)))
        (call $num (call $increment (i32.const 400) (i64.const 1)))
        (call $num (call $define_metric (i32.const 3) @gauge (i32.const 0))))"#;
    for _ in 0..2 {
        let vm = puppet(&env, "", &[("counter", "c"), ("gauge", "g")], body);
        vm.plugin("p", "").tick();
        assert_eq!(told(&vm), ["0", "2", "0", "0", "1", "2"]);
    }
    assert_eq!((env.metric("c"), env.metric("g")), (4, 4));
}

#[test]
fn set_property_is_filter_state_and_not_for_a_root_context() {
    let env = Harness::new();
    let set = "(call $num (call $set_property @path @value ))";
    let vm = puppet(
        &env,
        "",
        &[("path", "selective_kv.decision"), ("value", "load=disable")],
        &format!(
            r#"(func (export "proxy_on_tick") (param i32) {set})
               (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) {set} (i32.const 0))"#
        ),
    );
    let plugin = vm.plugin("p", "");
    plugin.tick();
    let out = plugin.request(post()).end();
    assert_eq!(told(&vm), ["1", "0"]);
    assert_eq!(out.state("selective_kv.decision"), Some("load=disable"));
}

#[test]
fn a_local_response_ends_the_request_after_the_callback_and_passes_the_response_callbacks() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[("details", "why"), ("body", "no")],
        r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
             (call $num (call $respond (i32.const 503) @details @body (i32.const 0) (i32.const 0) (i32.const -1)))
             (i32.const 0))
           (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
             (call $num (i32.const 200)) (i32.const 0))
           (func (export "proxy_on_done") (param i32) (result i32) (call $num (i32.const 201)) (i32.const 1))
           (func (export "proxy_on_log") (param i32) (call $num (i32.const 202)))
           (func (export "proxy_on_delete") (param i32) (call $num (i32.const 203)))"#,
    );
    let out = vm.plugin("p", "").request(post()).chunks(["abc"]).end();
    assert_eq!(told(&vm), ["0", "200", "202", "201", "203"]);
    let response = out.local_response.as_ref().expect("a local response");
    assert_eq!((response.status, response.details.as_str()), (503, "why"));
    assert_eq!(response.body, b"no");
    assert!(!out.complete());
    assert_eq!(out.body(), b"");
}

#[test]
fn a_reset_tears_the_stream_down() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[],
        r#"(func (export "proxy_on_done") (param i32) (result i32) (call $num (i32.const 201)) (i32.const 1))
           (func (export "proxy_on_delete") (param i32) (call $num (i32.const 203)))"#,
    );
    let out = vm.plugin("p", "").request(post()).chunks(["abc"]).reset();
    assert_eq!(told(&vm), ["201", "203"]);
    assert!(!out.complete());
    assert_eq!(out.body(), b"abc");
}

/// `:method`, `:path`, `:authority` in the ABI's form.
fn pairs(pairs: &[(&str, &str)]) -> String {
    let mut out = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        out.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    String::from_utf8(out).expect("small sizes are text")
}

const CALL: &str = r#"(call $num (call $http_call @cluster @headers (i32.const 0) (i32.const 0)
    (i32.const 0) (i32.const 0) (i32.const 500) (i32.const 12)))"#;

#[test]
fn http_calls_are_made_by_the_root_and_answered_or_failed_later() {
    let env = Harness::new();
    env.add_cluster("engines");
    let headers = pairs(&[
        (":method", "GET"),
        (":path", "/metrics"),
        (":authority", "e"),
    ]);
    let short = pairs(&[(":method", "GET"), (":path", "/metrics")]);
    let unknown = CALL.replace("@cluster", "@nowhere");
    let incomplete = CALL.replace("@headers", "@short");
    let vm = puppet(
        &env,
        "",
        &[
            ("cluster", "engines"),
            ("nowhere", "other"),
            ("headers", &headers),
            ("short", &short),
        ],
        &format!(
            r#"(func (export "proxy_on_tick") (param i32) {CALL} {unknown} {incomplete} {CALL})
               (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
                 (call $num (local.get 1)) (call $num (local.get 2)) (call $num (local.get 3))
                 (call $num (call $get_buffer (i32.const 4) (i32.const 0) (i32.const 99) {RESULT}))
                 (call $given))
               (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {CALL} (i32.const 0))"#
        ),
    );
    let plugin = vm.plugin("p", "");
    plugin.tick();
    assert_eq!(told(&vm), ["0", "2", "2", "0"]);
    let calls = plugin.http_calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        (calls[0].cluster.as_str(), calls[0].timeout_ms),
        ("engines", 500)
    );
    assert_eq!(calls[0].headers.text(":path").as_deref(), Some("/metrics"));
    plugin.answer(calls[0].token, Answer::new(200, "hello"));
    plugin.fail_call(calls[1].token);
    // An answer: token, headers, body; a failure has none of them, and no buffer.
    assert_eq!(
        told(&vm)[4..],
        ["1", "1", "5", "0", "hello", "2", "0", "0", "1", "hello"]
    );
    assert_eq!(plugin.http_calls(), []);

    // InternalFailure from an upstream filter.
    plugin.upstream().header_only(post());
    assert_eq!(told(&vm).last().map(String::as_str), Some("10"));
}

#[test]
fn a_stream_paused_for_a_callout_goes_on_with_its_answer() {
    let env = Harness::new();
    let headers = pairs(&[(":method", "GET"), (":path", "/"), (":authority", "e")]);
    let vm = puppet(
        &env,
        "",
        &[("cluster", "c"), ("headers", &headers)],
        &format!(
            r#"(func (export "proxy_on_request_headers") (param $id i32) (param i32 i32) (result i32)
                 (global.set $streams (local.get $id)) {CALL} (i32.const 0))
               (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 1))
               (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
                 (drop (call $effective (global.get $streams)))
                 (call $num (call $continue (i32.const 0))))"#
        ),
    );
    let plugin = vm.plugin("p", "");
    let mut stream = plugin.request(post());
    stream.chunk("abc").last_chunk("de");
    plugin.answer(1, Answer::new(200, ""));
    let out = stream.close();
    assert_eq!(told(&vm), ["0", "0"]);
    assert_eq!(out.text(), "abcde");
    assert!(out.complete());
}

#[test]
fn the_request_body_must_not_be_touched_while_a_call_is_answered() {
    let env = Harness::new();
    env.allow_traps();
    let headers = pairs(&[(":method", "GET"), (":path", "/"), (":authority", "e")]);
    let vm = puppet(
        &env,
        "",
        &[("cluster", "c"), ("headers", &headers)],
        &format!(
            r#"(func (export "proxy_on_request_headers") (param $id i32) (param i32 i32) (result i32)
                 (global.set $streams (local.get $id)) {CALL} (i32.const 0))
               (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 1))
               (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
                 (drop (call $effective (global.get $streams)))
                 (drop (call $get_buffer (i32.const 0) (i32.const 0) (i32.const 9) {RESULT})))"#
        ),
    );
    let plugin = vm.plugin("p", "");
    let mut stream = plugin.request(post());
    stream.chunk("abc");
    plugin.answer(1, Answer::new(200, ""));
    assert!(vm.trap().is_some_and(|trap| trap.contains("Envoy crashes")));
}

#[test]
fn the_next_filter_sees_what_the_one_before_made_of_it() {
    let env = Harness::new();
    let first = puppet(
        &env,
        "",
        &[("name", "x-a"), ("data", "XY")],
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $remove_header (i32.const 0) @name )) (i32.const 0))
           (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
             (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 99) @data )) (i32.const 0))"#,
    );
    let second = puppet(
        &env,
        "",
        &[("name", "x-a")],
        &(format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (call $num (call $get_header (i32.const 0) @name {RESULT})) (i32.const 0))"#
        ) + &body_teller("(i32.const 0)")),
    );
    let out = Chain::default()
        .then(&first.plugin("a", ""), Placement::Downstream)
        .then(&second.plugin("b", ""), Placement::Downstream)
        .request(post().header("x-a", "1"))
        .end_with("abcd");
    assert_eq!(told(&second), ["1", "2", "1"]);
    assert_eq!(out.text(), "XY");
    assert_eq!(out.headers().get("x-a"), None);
}

#[test]
fn a_retry_is_a_new_stream_over_the_same_headers_and_the_original_body() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[
            ("path", "upstream\0address"),
            ("name", "x-a"),
            ("data", "!"),
        ],
        &format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (drop (call $get_property @path {RESULT})) (call $given)
                 (call $num (call $get_header (i32.const 0) @name {RESULT}))
                 (drop (call $remove_header (i32.const 0) @name ))
                 (i32.const 0))
               (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
                 (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 0) @data )) (i32.const 0))
               (func (export "proxy_on_delete") (param i32) (call $num (i32.const 203)))"#
        ),
    );
    let mut stream = vm
        .plugin("p", "")
        .upstream()
        .request(post().header("x-a", "1"));
    stream.chunk("abc").last_chunk("");
    stream.retry("10.0.0.8:8000");
    let out = stream.close();
    assert_eq!(
        told(&vm),
        ["10.0.0.7:8000", "0", "203", "10.0.0.8:8000", "1", "203"]
    );
    assert_eq!(out.earlier_attempts.len(), 1);
    assert_eq!(out.earlier_attempts[0].body, b"!abc!");
    assert_eq!(out.text(), "!abc");
    let upstream = out.attempt.as_ref().and_then(|a| a.upstream.as_deref());
    assert_eq!(upstream, Some("10.0.0.8:8000"));
}

#[test]
fn the_configuration_is_readable_while_configuring_and_false_refuses_it() {
    let env = Harness::new();
    let read = format!(
        r#"(i32.store (i32.const 4) (i32.const 0))
           (call $num (call $get_buffer (i32.const 7) (i32.const 0) (i32.const 99) {RESULT}))
           (call $given)"#
    );
    let vm = puppet(
        &env,
        "",
        &[],
        &format!(
            r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) {read}
                 (i32.ne (local.get 1) (i32.const 3)))
               (func (export "proxy_on_tick") (param i32) {read})"#
        ),
    );
    let plugin = vm.plugin("p", "abcd");
    plugin.tick();
    assert_eq!(told(&vm), ["0", "abcd", "1", ""]);
    let refused = vm.try_plugin("p", "bad").map(|_| ());
    assert_eq!(refused, Err(StartError::Refused("proxy_on_configure")));
    // The same root_id and configuration are the same plugin: not configured again.
    vm.plugin("p", "abcd");
    assert_eq!(told(&vm).len(), 6);
}

#[test]
fn ticks_come_by_the_clock_of_the_test_until_the_worker_stops() {
    let env = Harness::new();
    env.set_ms(100_000);
    let vm = puppet(
        &env,
        "",
        &[],
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32)
             (drop (call $tick (i32.const 1000))) (i32.const 1))
           (func (export "proxy_on_tick") (param i32)
             (drop (call $now (i32.const 16)))
             (call $num (i32.wrap_i64 (i64.div_u (i64.load (i32.const 16)) (i64.const 1000000)))))"#,
    );
    vm.plugin("p", "");
    env.run_ms(2_500);
    assert_eq!(told(&vm), ["101000", "102000"]);
    assert_eq!(env.now_ms(), 102_500);
    vm.stop();
    env.run_ms(5_000);
    assert_eq!(told(&vm).len(), 2);
}

#[test]
fn a_fault_hits_one_call_with_any_status_and_has_no_other_effect() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[("key", "k"), ("value", "v")],
        r#"(func (export "proxy_on_tick") (param i32)
             (call $num (call $set_shared @key @value (i32.const 0)))
             (call $num (call $set_shared @key @value (i32.const 0))))"#,
    );
    let plugin = vm.plugin("p", "");
    env.inject(Fault::on("proxy_set_shared_data").nth(2).status(99));
    plugin.tick();
    assert_eq!(told(&vm), ["0", "99"]);
    assert_eq!(env.shared("", "k"), Some((b"v".to_vec(), 1)));
    assert_eq!(env.faults_fired(), 1);
    // Calls of a tick in order: set, log, set, log.
    env.clear_faults();
    env.inject(Fault::call(3).status(12));
    plugin.tick();
    assert_eq!(told(&vm)[2..], ["0", "12"]);
    env.clear_faults();
    env.inject(Fault::always("proxy_set_shared_data").status(10));
    plugin.tick();
    assert_eq!(told(&vm)[4..], ["10", "10"]);
    let imports: Vec<_> = env.calls().iter().map(|c| (c.import, c.status)).collect();
    let set = "proxy_set_shared_data";
    assert_eq!(
        imports[..4],
        [(set, 0), ("proxy_log", 0), (set, 99), ("proxy_log", 0)]
    );
}

#[test]
fn a_fault_can_destroy_the_stream_inside_its_callback() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[("key", "k"), ("value", "v")],
        r#"(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
             (call $num (call $set_shared @key @value (i32.const 0))) (i32.const 0))
           (func (export "proxy_on_done") (param i32) (result i32) (call $num (i32.const 201)) (i32.const 1))
           (func (export "proxy_on_delete") (param i32) (call $num (i32.const 203)))"#,
    );
    env.inject(Fault::on("proxy_set_shared_data").destroy());
    vm.plugin("p", "").request(post()).end();
    assert_eq!(told(&vm), ["201", "203", "0"]);
}

#[test]
fn a_fault_can_serve_another_request_inside_a_callback() {
    let env = Harness::new();
    let body = r#"(func (export "proxy_on_tick") (param i32)
             (call $num (call $set_shared @key @value (i32.const 0))))"#
        .to_owned()
        + &body_teller("(i32.const 0)");
    let vm = puppet(&env, "", &[("key", "k"), ("value", "v")], &body);
    env.inject(Fault::on("proxy_set_shared_data").nest());
    vm.plugin("p", "").tick();
    assert_eq!(told(&vm), ["44", "1", "0"]);
}

#[test]
fn a_trap_ends_its_vm_alone_and_every_later_request_there_is_answered_503() {
    let env = Harness::new();
    env.allow_traps();
    let body = r#"(func $inner unreachable)
        (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (call $inner) (i32.const 0))"#;
    let vm = puppet(&env, "", &[], body);
    let plugin = vm.plugin("p", "");
    let out = plugin.request(post()).chunks(["abc"]).end();
    assert_eq!(out.local_status(), Some(503));
    let trap = vm.trap().expect("the trap");
    assert!(
        trap.contains("inner") && trap.contains("unreachable"),
        "{trap}"
    );
    assert_eq!(plugin.header_only(post()).local_status(), Some(503));
    assert_eq!(env.traps().len(), 1);

    let other = puppet(&env, "", &[], &body_teller("(i32.const 0)"));
    assert!(other.plugin("p", "").request(post()).end().complete());
}

#[test]
#[should_panic(expected = "the module trapped")]
fn a_trap_fails_the_test_that_does_not_expect_it() {
    let env = Harness::new();
    let body = r#"(func (export "proxy_on_tick") (param i32) unreachable)"#;
    puppet(&env, "", &[], body).plugin("p", "").tick();
}

#[test]
fn a_module_that_gives_no_memory_is_an_invalid_memory_access() {
    let env = Harness::new();
    let text = wat(
        &[("path", "plugin_root_id")],
        &format!(
            r#"(func (export "proxy_on_tick") (param i32) (call $num (call $get_property @path {RESULT})))"#
        ),
    )
    .replace("(global.get $heap)\n  (global.set", "(i32.const 0)\n  (global.set");
    let vm = env.vm_of("", text);
    vm.plugin("p", "").tick();
    assert_eq!(told(&vm), ["6"]);
}

#[test]
fn memory_and_instructions_are_counted() {
    let env = Harness::new();
    let vm = puppet(
        &env,
        "",
        &[],
        r#"(func (export "proxy_on_tick") (param i32) (drop (memory.grow (i32.const 3))))"#,
    );
    let plugin = vm.plugin("p", "");
    assert_eq!(vm.memory_bytes(), 2 * 65_536);
    let before = vm.fuel_consumed();
    plugin.tick();
    assert_eq!(vm.memory_bytes(), 5 * 65_536);
    assert!((1..100).contains(&(vm.fuel_consumed() - before)));
}

#[test]
fn what_a_module_takes_is_told_by_either_meter() {
    for meter in [Meter::Instructions, Meter::Time] {
        let env = Harness::measuring(meter);
        env.set_shared("", "key", "value");
        let body = format!(
            r#"(func (export "proxy_on_tick") (param i32)
                 (drop (call $now (i32.const 0)))
                 (drop (call $get_shared @key {RESULT} (i32.const 8)))
                 (call $given))"#
        );
        let vm = puppet(&env, "", &[("key", "key")], &body);
        let plugin = vm.plugin("p", "");
        let (fuel, before) = (vm.fuel_consumed(), vm.spent());
        plugin.tick();
        assert_eq!(told(&vm), ["value"]);
        let spent = vm.spent() - before;
        let counts = (spent.callbacks, spent.host_calls, spent.copies, spent.bytes);
        assert_eq!(counts, (1, 3, 1, 5));
        assert!(!spent.time.is_zero());
        assert_eq!(vm.fuel_consumed() > fuel, meter == Meter::Instructions);
    }
}

#[test]
fn a_callback_that_never_ends_is_a_trap() {
    let env = Harness::new();
    env.allow_traps();
    let vm = puppet(
        &env,
        "",
        &[],
        r#"(func (export "proxy_on_tick") (param i32) (loop $on (br $on)))"#,
    );
    vm.plugin("p", "").tick();
    assert!(vm.trap().is_some_and(|trap| trap.contains("fuel")));
}
