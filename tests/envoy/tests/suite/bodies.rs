//! Large, slow, cut and hostile bodies: Envoy buffers none, and every byte that leaves was meant to.

use std::thread;
use std::time::Duration;

use envoy_tests::http1::Client;
use envoy_tests::{Bootstrap, Envoy, Reply, Request, Response, Sink, until};
use serde_json::{Value, json};

use crate::support::{CHAT, COMPLETIONS, GENERATE, PLACEMENTS, Placement, Wire, logged};

const LIMIT_BYTES: u32 = 32 * 1024;

fn disable() -> Value {
    json!({"loadPolicy": "disable"})
}

/// 32 KiB for everything that Envoy may buffer, on both sides and in both protocols.
fn tight(bootstrap: Bootstrap) -> Bootstrap {
    let window =
        json!({"initial_stream_window_size": 65_535, "initial_connection_window_size": 65_535});
    bootstrap
        .edit_at("/static_resources/listeners/0", |l| {
            l["per_connection_buffer_limit_bytes"] = json!(LIMIT_BYTES)
        })
        .manager(|m| m["http2_protocol_options"] = window.clone())
        .cluster("engines", |c| {
            c["per_connection_buffer_limit_bytes"] = json!(LIMIT_BYTES)
        })
}

/// Digits and commas, never ending in a comma.
fn tokens(bytes: usize) -> String {
    let mut text = "1234,".repeat(bytes / 5 + 1);
    text.truncate(bytes);
    text.trim_end_matches(',').to_owned()
}

#[test]
fn ten_megabytes_pass_a_32_kib_buffer() {
    let tokens = tokens(10_000_000);
    // Given first; given last; absent; and held for ten megabytes, because the top level may still say otherwise.
    let bodies = [
        (
            COMPLETIONS,
            format!(r#"{{"kv_transfer_params":{{"max_load_tokens":77}},"prompt":[{tokens}]}}"#),
            format!(r#"{{"kv_transfer_params":{{"max_load_tokens":0}},"prompt":[{tokens}]}}"#),
        ),
        (
            COMPLETIONS,
            format!(r#"{{"prompt":[{tokens}],"kv_transfer_params":{{"a":1}}}}"#),
            format!(
                r#"{{"prompt":[{tokens}],"kv_transfer_params":{{"a":1,"max_load_tokens":0}}}}"#
            ),
        ),
        (
            COMPLETIONS,
            format!(r#"{{"prompt":[{tokens}]}}"#),
            format!(r#"{{"prompt":[{tokens}],"kv_transfer_params":{{"max_load_tokens":0}}}}"#),
        ),
        (
            GENERATE,
            format!(
                r#"{{"sampling_params":{{"extra_args":{{"kv_transfer_params":{{"max_load_tokens":7}}}}}},"token_ids":[{tokens}]}}"#
            ),
            format!(
                r#"{{"sampling_params":{{"extra_args":{{"kv_transfer_params":{{"max_load_tokens":0}}}}}},"token_ids":[{tokens}]}}"#
            ),
        ),
    ];
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = Envoy::start(&tight(placement.bootstrap(&disable())).engines(&[&engine]));
        for (path, body, arrives) in &bodies {
            let what = format!("{placement:?} {path} {:.40}", body);
            let responses: [Response; 3] = [
                Request::post(path, body.as_str()).to(envoy.address()),
                Request::post_chunked(path, body.as_bytes(), 50_000).to(envoy.address()),
                Request::post_chunked(path, body.as_bytes(), 16_000).h2(envoy.address()),
            ];
            assert!(
                responses.iter().all(|r| r.status == 200),
                "{what}: {responses:?}"
            );
            for seen in engine.take() {
                assert!(
                    seen.body == arrives.as_bytes(),
                    "{what}: {} bytes, {:.80}",
                    seen.body.len(),
                    seen.text()
                );
            }
        }
        assert_eq!(
            envoy.custom("selective_kv_held_bytes", ""),
            0,
            "{placement:?}"
        );
        assert!(
            envoy.custom("selective_kv_held_bytes_total", "") > 29_000_000,
            "{placement:?} {:#?}",
            envoy.stats("wasmcustom")
        );
    }
}

#[test]
fn slow_kilobyte_chunks_on_a_cold_connection_lose_nothing() {
    let tokens = tokens(70_000);
    let first = format!(r#"{{"kv_transfer_params":{{"max_load_tokens":1}},"prompt":[{tokens}]}}"#);
    let last = format!(r#"{{"prompt":[{tokens}],"kv_transfer_params":{{"max_load_tokens":1}}}}"#);
    for placement in PLACEMENTS {
        for (body, http2) in [(&first, false), (&last, true)] {
            // A new Envoy: its connection to the engine is made while the body comes.
            let engine = Sink::ok();
            let envoy = Envoy::start(&tight(placement.bootstrap(&disable())).engines(&[&engine]));
            let request = Request::post_chunked(COMPLETIONS, body.as_bytes(), 1000).slowly(2);

            let response = if http2 {
                request.h2(envoy.address())
            } else {
                request.to(envoy.address())
            };

            assert_eq!(response.status, 200);
            let arrives = body.replace(r#""max_load_tokens":1"#, r#""max_load_tokens":0"#);
            assert!(
                engine.take_one().body == arrives.as_bytes(),
                "{placement:?} http2: {http2}"
            );
        }
    }
}

#[test]
fn trailers_follow_the_edited_body() {
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = Envoy::start(
            &placement
                .bootstrap(&disable())
                .engines(&[&engine])
                .trailers(),
        );
        for wire in [Wire::Chunked, Wire::Frames] {
            let body = br#"{"model":"m","kv_transfer_params":{"x":1}}"#;
            let request = wire.post(CHAT, body).trailer("x-end", "yes");

            assert_eq!(wire.exchange(&request, &envoy), 200);

            let seen = engine.take_one();
            assert_eq!(
                seen.text(),
                r#"{"model":"m","kv_transfer_params":{"x":1,"max_load_tokens":0}}"#
            );
            assert_eq!(
                seen.trailers,
                [("x-end".to_owned(), b"yes".to_vec())],
                "{placement:?} {wire:?}"
            );
        }
    }
}

#[test]
fn a_body_cut_inside_its_json_passes_as_it_is_or_not_at_all() {
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = Envoy::start(
            &placement
                .bootstrap(&disable())
                .engines(&[&engine])
                .trailers(),
        );
        let bytes = |body: &str| Request::post_chunked(CHAT, body.as_bytes(), 5);
        let outside = r#"{"model":"m","messages":["#;
        let inside = r#"{"model":"m","kv_transfer_params":{"max_load_tokens":5"#;

        // Without trailers, held bytes are given back in the last body callback.
        for body in [outside, inside] {
            assert_eq!(bytes(body).to(envoy.address()).status, 200);
            assert_eq!(engine.take_one().text(), body, "{placement:?}");
        }
        // With trailers and nothing held, as well.
        assert_eq!(
            bytes(outside)
                .trailer("x-end", "1")
                .to(envoy.address())
                .status,
            200
        );
        assert_eq!(engine.take_one().text(), outside, "{placement:?}");

        let counted = envoy.custom(
            "selective_kv_decisions_total",
            "direction=load,action=preserve,reason=not_json",
        );
        assert_eq!(counted, 3, "{placement:?} {:#?}", envoy.stats("wasmcustom"));

        // With trailers and held bytes there is no place to write: never forwarded cut.
        let response = bytes(inside).trailer("x-end", "1").to(envoy.address());
        assert_eq!(response.status, 503, "{placement:?}: {}", response.text());
        assert_eq!(
            envoy.custom("selective_kv_unreturned_bytes_total", ""),
            1,
            "{placement:?}"
        );
        assert_eq!(
            envoy.custom("selective_kv_held_bytes", ""),
            0,
            "{placement:?}"
        );
        assert!(
            engine.seen().iter().all(|seen| !seen.complete),
            "{placement:?}: {:?}",
            engine.seen()
        );
    }
}

#[test]
fn a_client_that_resets_in_mid_body_leaves_nothing_behind() {
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = placement.start(&disable(), &engine);
        let half = br#"{"kv_transfer_params":{"max_load_tokens":5,"x":""#;
        let request = Request::post_chunked(CHAT, half, 10).pause(100).reset();

        assert_eq!(request.try_to(envoy.address()), None);
        assert_eq!(request.try_h2(envoy.address()), None);

        envoy.until_custom("selective_kv_held_bytes", "", |held| held == 0);
        assert!(
            envoy.custom("selective_kv_held_bytes_total", "") > 0,
            "bytes were held: {placement:?}"
        );
        let whole = Request::post(CHAT, "{}").to(envoy.address());
        assert_eq!(whole.status, 200, "{placement:?}");
        assert!(
            engine.seen().iter().filter(|s| s.complete).count() == 1,
            "{placement:?}"
        );
    }
}

#[test]
fn an_engine_that_ends_the_request_early_leaves_nothing_behind() {
    for placement in PLACEMENTS {
        let engine = Sink::at(
            ([127, 0, 0, 1], 0).into(),
            |_| Reply::ok(),
            |seen, so_far| match seen.header("x-end").as_deref() {
                Some("answer") => (so_far > 500).then(|| Reply::Status(413, Vec::new())),
                Some("reset") => (so_far > 500).then_some(Reply::Reset),
                _ => None,
            },
        );
        let policy = json!({"loadPolicy": "disable"});
        let bootstrap = placement.bootstrap(&policy).engines(&[&engine]);
        let envoy = Envoy::start(&bootstrap.manager(|m| {
            m["route_config"]["virtual_hosts"][0]["retry_policy"] = json!({});
        }));
        // The prompt goes out, the parameters behind it are held.
        let filler = "x".repeat(1000);
        let start =
            format!(r#"{{"prompt":"{filler}","kv_transfer_params":{{"max_load_tokens":5,"y":""#);
        let request = Request::post_chunked(CHAT, start.as_bytes(), 10_000).pause(100);

        let answer = request.clone().send(b"yy").header("x-end", "answer");
        assert_eq!(answer.to(envoy.address()).status, 413, "{placement:?}");
        let reset = request.clone().send(b"yy").header("x-end", "reset");
        assert_eq!(reset.to(envoy.address()).status, 503, "{placement:?}");

        assert!(
            envoy.custom("selective_kv_held_bytes_total", "") > 0,
            "{placement:?}"
        );
        envoy.until_custom("selective_kv_held_bytes", "", |held| held == 0);
        let whole = request.send(br#""}}"#).to(envoy.address());
        assert_eq!(whole.status, 200, "{placement:?}");
        let edited = start.replace("max_load_tokens\":5", "max_load_tokens\":0");
        assert_eq!(
            engine.seen().pop().map(|s| s.text()),
            Some(format!(r#"{edited}"}}}}"#))
        );
    }
}

#[test]
fn held_bytes_of_200_uploads_stay_under_the_limit_of_the_vm() {
    const LIMIT: u64 = 5_000_000;
    const UPLOADS: usize = 200;
    let policy = json!({"loadPolicy": "disable", "maxHeldBytesPerVm": LIMIT});
    let tokens = tokens(100_000);
    // Held until the end: the top level may still bring parameters of its own.
    let head = r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":7}}},"token_ids":["#;
    let edited = head.replace(":7}", ":0}");
    let rest = r#"],"model":"m"}"#;
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let bootstrap = placement.bootstrap(&policy).engines(&[&engine]).edit(|node| {
            if node.get("connect_timeout").is_some() {
                // 200 connections at once, on a machine that is busy with them.
                node["connect_timeout"] = json!("10s");
                node["circuit_breakers"] =
                    json!({"thresholds": [{"max_connections": 1000, "max_pending_requests": 1000, "max_requests": 1000}]});
            }
        });
        let envoy = Envoy::start(&bootstrap);

        let highest = thread::scope(|scope| {
            let uploads: Vec<_> = (0..UPLOADS)
                .map(|_| {
                    scope.spawn(|| {
                        Request::post_chunked(GENERATE, [head, &tokens].concat().as_bytes(), 32_768)
                            .pause(1500)
                            .send(rest.as_bytes())
                            .to(envoy.address())
                            .status
                    })
                })
                .collect();
            let mut highest = 0;
            while !uploads.iter().all(thread::ScopedJoinHandle::is_finished) {
                highest = highest.max(envoy.custom("selective_kv_held_bytes", ""));
                thread::sleep(Duration::from_millis(20));
            }
            assert!(
                uploads
                    .into_iter()
                    .all(|upload| upload.join().expect("a client") == 200)
            );
            highest
        });

        assert!(
            highest > LIMIT / 2 && highest <= LIMIT,
            "{placement:?}: {highest}"
        );
        assert_eq!(envoy.custom("selective_kv_held_bytes", ""), 0);
        let seen = engine.take();
        let arrived = |head: &str| {
            let whole = [head, &tokens, rest].concat();
            seen.iter().filter(|s| s.body == whole.as_bytes()).count()
        };
        let (as_sent, as_decided) = (arrived(head), arrived(&edited));
        assert_eq!(as_sent + as_decided, UPLOADS, "{placement:?}");
        assert!(
            as_decided > 20 && as_sent > 100,
            "{placement:?}: {as_decided} edited, {as_sent} not"
        );
        let counted = envoy.custom(
            "selective_kv_decisions_total",
            "direction=load,action=preserve,reason=held_limit",
        );
        assert_eq!(counted, as_sent as u64, "{placement:?}");
    }
}

#[test]
fn a_request_over_its_own_limit_goes_on_unchanged() {
    let engine = Sink::ok();
    let policy = json!({"loadPolicy": "disable", "maxHeldBytes": 1000});
    let envoy = Placement::Downstream.start(&policy, &engine);
    let long = |n: usize| {
        format!(
            r#"{{"a":1,"kv_transfer_params":{{"x":"{}"}}}}"#,
            "y".repeat(n)
        )
    };

    for (length, reason) in [(500, "policy"), (5000, "held_limit")] {
        let target = format!("{CHAT}?{length}");
        Request::post_chunked(&target, long(length).as_bytes(), 100)
            .slowly(1)
            .to(envoy.address());
        let arrived = engine.take_one().text();
        assert!(logged(&envoy, &target).contains(reason), "{length}");
        assert_eq!(
            arrived == long(length),
            reason == "held_limit",
            "{length} {arrived}"
        );
    }
}

#[test]
fn hostile_bodies_arrive_as_sent_or_as_decided() {
    let engine = Sink::ok();
    let envoy = Placement::Downstream.start(&disable(), &engine);
    let set = r#","kv_transfer_params":{"max_load_tokens":0}}"#;
    let deep = 1_000_000;
    let nested = format!(r#"{{"a":{}{}"#, "[".repeat(deep), "]".repeat(deep));
    let in_params = format!(
        r#"{{"kv_transfer_params":{{"x":{}{}"#,
        r#"{"a":"#.repeat(100_000),
        "1"
    );
    let in_params = format!("{in_params}{}", "}".repeat(100_000));
    let long_key = format!(r#"{{"{}":1"#, "k".repeat(10_000_000));
    let cases = [
        (
            "a million arrays",
            format!("{nested}}}"),
            format!("{nested}{set}"),
        ),
        (
            "a million arrays, left open",
            nested[..deep].to_owned(),
            nested[..deep].to_owned(),
        ),
        (
            "100,000 objects in the parameters",
            format!("{in_params}}}}}"),
            format!(r#"{in_params},"max_load_tokens":0}}}}"#),
        ),
        (
            "a key of 10 MB",
            format!("{long_key}}}"),
            format!("{long_key}{set}"),
        ),
        (
            "the wrong bracket",
            r#"{"a":[1}"#.into(),
            r#"{"a":[1}"#.into(),
        ),
        ("a lone quote", "\"".into(), "\"".into()),
        ("nothing but white space", " \n\t ".into(), " \n\t ".into()),
    ];
    for (what, body, arrives) in &cases {
        let response = Request::post_chunked(CHAT, body.as_bytes(), 60_000).to(envoy.address());
        assert_eq!(response.status, 200, "{what}");
        let seen = engine.take_one();
        assert!(
            seen.body == arrives.as_bytes(),
            "{what}: {} bytes",
            seen.body.len()
        );
    }

    // Random bytes, half of them beginning as an object would.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut client = Client::connect(envoy.address());
    for round in 0..200 {
        let length = (next() % 300) as usize;
        let mut body: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        if round % 2 == 0 {
            body.splice(0..0, *b"{\"");
        }
        let size = (next() % 50 + 1) as usize;
        let response = client.exchange(&Request::post_chunked(CHAT, &body, size));
        assert_eq!(response.map(|r| r.status), Some(200), "{body:?}");
        assert_eq!(engine.take_one().body, body);
    }
}

#[test]
fn a_string_of_100_mb_passes_in_chunks() {
    let engine = Sink::ok();
    let envoy = Placement::Downstream.start(&disable(), &engine);
    let megabyte = [b'x'; 1_000_000];
    let mut request = Request::post_chunked(CHAT, br#"{"messages":""#, 100);
    for _ in 0..100 {
        request = request.send(&megabyte);
    }

    let response = request.send(b"\"}").to(envoy.address());

    assert_eq!(response.status, 200);
    let seen = until("the body", || engine.seen().pop());
    assert_eq!(seen.body.len(), 100_000_000 + 15 + 44 - 1);
    assert!(
        seen.body
            .ends_with(br#"xx","kv_transfer_params":{"max_load_tokens":0}}"#)
    );
}
