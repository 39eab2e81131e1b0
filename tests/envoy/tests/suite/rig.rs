//! The rig itself: a client, Envoy with the filters taken out, a sink.

use std::time::Duration;

use envoy_tests::message::Framing;
use envoy_tests::{Bootstrap, Choice, Envoy, Picker, Reply, Request, Sink};

fn bare() -> Bootstrap {
    Bootstrap::shipped("downstream.yaml")
        .without_filter("kv-scorer")
        .without_filter("selective-kv")
}

#[test]
fn bytes_fields_and_trailers_pass_both_protocols() {
    let engine = Sink::ok();
    let envoy = Envoy::start(&bare().engines(&[&engine]).trailers());
    let body: Vec<u8> = (0..=255).cycle().take(70_000).collect();

    let request = Request::post_chunked("/v1/completions?q=1", &body, 1000)
        .header("x-odd", b"caf\xe9")
        .trailer("x-end", "yes");
    for version in ["1.1", "2"] {
        let response = if version == "2" {
            request.h2(envoy.address())
        } else {
            request.to(envoy.address())
        };
        let seen = engine.take_one();

        assert_eq!(
            (response.status, response.body.as_slice()),
            (200, b"{}".as_slice()),
            "HTTP/{version}"
        );
        assert!(
            seen.body == body && seen.complete,
            "HTTP/{version}: {} bytes",
            seen.body.len()
        );
        assert_eq!(
            (seen.method.as_str(), seen.target.as_str()),
            ("POST", "/v1/completions?q=1")
        );
        assert_eq!(seen.framing, Framing::Chunked);
        let odd = seen
            .headers
            .iter()
            .find(|(n, _)| n == "x-odd")
            .map(|(_, v)| v.clone());
        assert_eq!(odd.as_deref(), Some(b"caf\xe9".as_slice()));
        assert_eq!(
            seen.trailers,
            [("x-end".to_owned(), b"yes".to_vec())],
            "HTTP/{version}"
        );
    }

    let line = envoy.access_line("/v1/completions");
    assert_eq!(
        line,
        format!(
            "POST /v1/completions?q=1 200 {} kv=\"-\"",
            engine.endpoint()
        )
    );
    assert_eq!(envoy.stat("cluster.engines.upstream_rq_200"), 2);
}

#[test]
fn a_reset_in_mid_body_reaches_the_sink_as_an_incomplete_request() {
    let engine = Sink::ok();
    let envoy = Envoy::start(&bare().engines(&[&engine]));

    let request = Request::post_chunked("/v1/completions", &[b'x'; 5000], 1000)
        .pause(50)
        .reset();
    for version in ["1.1", "2"] {
        let response = if version == "2" {
            request.try_h2(envoy.address())
        } else {
            request.try_to(envoy.address())
        };

        assert_eq!(response, None, "HTTP/{version}");
        let seen = engine.take_one();
        assert!(
            !seen.complete && seen.body.len() <= 5000,
            "HTTP/{version}: {seen:?}"
        );
    }
}

#[test]
fn a_sink_answers_as_told() {
    let engine = Sink::at(
        ([127, 0, 0, 1], 0).into(),
        |seen| match seen.target.as_str() {
            "/429" => Reply::Status(429, b"busy".to_vec()),
            "/late" => Reply::After(Duration::from_millis(30), Box::new(Reply::ok())),
            _ => Reply::Reset,
        },
        |seen, so_far| {
            (seen.target == "/early" && so_far > 1000).then(|| Reply::Status(413, Vec::new()))
        },
    );
    let envoy = Envoy::start(&bare().engines(&[&engine]));

    for (target, status) in [
        ("/429", 429),
        ("/late", 200),
        ("/reset", 503),
        ("/early", 413),
    ] {
        let request = Request::post(target, vec![b'x'; 100_000]);
        assert_eq!(request.to(envoy.address()).status, status, "{target}");
    }
}

#[test]
fn a_picker_chooses_the_engine_and_gives_the_body_back() {
    let engine = Sink::ok();
    let endpoint = engine.endpoint();
    let picker =
        Picker::with(move |_| Choice::endpoint(&endpoint).header("x-told", "by the picker"));
    let envoy = Envoy::start(
        &Bootstrap::shipped("endpoint-picker.yaml")
            .without_filter("kv-scorer")
            .without_filter("selective-kv")
            .picker(&picker)
            .trailers(),
    );

    let body: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let chunked = Request::post_chunked("/v1/completions", &body, 9_999);
    for request in [
        Request::post("/v1/completions", body.clone()),
        chunked.clone(),
        chunked.trailer("x-end", "1"),
    ] {
        // A client's own word counts for nothing.
        let request = request.header("x-gateway-destination-endpoint", "127.0.0.1:9");
        let response = request.to(envoy.address());
        let seen = engine.take_one();

        assert_eq!((response.status, response.text().as_str()), (200, "{}"));
        assert!(seen.body == body, "{} bytes", seen.body.len());
        assert_eq!(seen.header("x-told").as_deref(), Some("by the picker"));
        assert_eq!(seen.trailers.len(), request.trailers.len());
    }
}
