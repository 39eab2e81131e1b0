//! Which requests are looked at, and what is done to their headers.

use crate::rig::{CAPPED, DISABLE, DISABLE_BOTH, Rig, THRESHOLD, chat, counts, labels, post};
use skv_harness::{Fault, Outcome, Request, status};

/// Forwarded as it came, its body not even read.
fn assert_untouched(rig: &Rig, out: &Outcome, body: &str) {
    assert_eq!(out.text(), body);
    assert!(out.complete());
    let length = out.headers().text("content-length");
    assert_eq!(length.as_deref(), Some(body.len().to_string().as_str()));
    let calls = rig.env.calls();
    let in_body = calls
        .iter()
        .filter(|c| c.callback == "proxy_on_request_body")
        .count();
    assert_eq!(in_body, 0, "{calls:#?}");
}

#[test]
fn a_request_that_is_not_looked_at_keeps_its_headers_and_its_body_is_not_read() {
    let table: [(&str, &str, Request); 10] = [
        (DISABLE, "method", chat().header(":method", "PUT")),
        (DISABLE, "method", chat().without(":method")),
        (DISABLE, "path", post("/v1/embeddings")),
        (DISABLE, "path", post("/v1/completions/")),
        (
            DISABLE,
            "content_type",
            chat().header("content-type", "text/plain"),
        ),
        (DISABLE, "content_type", chat().without("content-type")),
        (
            DISABLE,
            "content_type",
            chat().header("content-type", b"\xff\xfe"),
        ),
        (
            DISABLE,
            "content_encoding",
            chat().header("content-encoding", "gzip"),
        ),
        (
            DISABLE,
            "content_encoding",
            chat().header("content-encoding", b"\xff"),
        ),
        ("{}", "inactive", chat()),
    ];
    for (configuration, reason, request) in table {
        let rig = Rig::new(configuration);
        let out = rig.policy.send(request, CAPPED);
        assert_untouched(&rig, &out, CAPPED);
        assert_eq!(rig.skipped(), counts([(reason, 1)]));
        assert_eq!(rig.decisions(), counts([]));
        assert_eq!(out.state("selective_kv.decision"), None);
    }
}

#[test]
fn a_request_that_is_looked_at_loses_its_content_length() {
    for request in [
        chat(),
        post("/v1/completions?stream=1"),
        chat().header("content-type", "application/json; charset=utf-8"),
        chat().header("content-encoding", "identity"),
        chat().header("x-odd", b"\xff\x00\xfe"),
        chat().header("x-request-id", b"\xff\xfe"),
    ] {
        let rig = Rig::new(DISABLE);
        let out = rig.policy.send(request, CAPPED);
        assert_eq!(out.text(), CAPPED.replace(":512", ":0"));
        assert_eq!(out.headers().get("content-length"), None);
        assert_eq!(rig.skipped(), counts([]));
    }
}

#[test]
fn headers_that_are_not_utf_8_are_only_bytes() {
    let rig = Rig::new(
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"evidenceHeader":"x-evidence"}"#,
    );
    let request = chat()
        .header("x-evidence", b"\xff\xfe")
        .header("x-gateway-destination-endpoint", b"\xc3\x28")
        .header("x-request-id", b"\x80");
    let out = rig.policy.send(request, CAPPED);
    assert_eq!(out.text(), CAPPED);
    // The destination is there and is not the chosen endpoint: the header does not count.
    assert_eq!(rig.decisions().get("load preserve no_evidence"), Some(&1));
}

#[test]
fn a_request_without_a_body_passes_and_is_counted() {
    let rig = Rig::new(DISABLE_BOTH);
    let out = rig.policy.header_only(chat());
    assert!(out.complete());
    assert_eq!(
        rig.decisions(),
        counts([
            ("load preserve not_json", 1),
            ("offload preserve not_json", 1)
        ])
    );
    let out = rig.policy.header_only(chat().header(":method", "GET"));
    assert!(out.complete());
    assert_eq!(rig.skipped(), counts([("method", 1)]));
}

#[test]
fn where_the_length_cannot_be_removed_the_body_is_not_edited() {
    for status in [status::BAD_ARGUMENT, status::INTERNAL_FAILURE, 12, 99] {
        let rig = Rig::new(DISABLE_BOTH);
        rig.env
            .inject(Fault::always("proxy_remove_header_map_value").status(status));
        let out = rig.policy.send(chat(), CAPPED);
        assert_untouched(&rig, &out, CAPPED);
        let failures = labels(&rig.env, "selective_kv_host_failures_total.");
        assert_eq!(failures.values().sum::<u64>(), 1, "{failures:?}");
        assert_eq!(rig.decisions().values().sum::<u64>(), 2);
    }
}

#[test]
fn nothing_but_the_length_is_changed_in_the_headers() {
    let rig = Rig::new(THRESHOLD);
    let request = || {
        chat()
            .header("x-odd", b"\xff")
            .add_header("x-twice", "1")
            .add_header("x-twice", "2")
    };
    let plain = Rig::new("{}").policy.send(request(), CAPPED);
    let out = rig.policy.send(request(), CAPPED);
    let mut expected = plain.headers().clone();
    expected.remove("content-length");
    assert_eq!(*out.headers(), expected);
}
