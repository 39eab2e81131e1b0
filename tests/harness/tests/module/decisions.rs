//! The decision table in the module: records and headers in, filter state, counters and bytes out.

use crate::records::{self, map, prompts, runs, tiers};
use crate::rig::{CAPPED, DISABLE_BOTH, ENDPOINT, OTHER, Rig, THRESHOLD, chat, counts, labels};
use ciborium::Value;
use skv_harness::{Outcome, Placement, Request};

/// What became of [`CAPPED`] and what the access log says.
fn assert_load(rig: &Rig, out: &Outcome, state: &str) {
    let expected = match state.split(';').next() {
        Some("load=disable") => CAPPED.replace("\"max_load_tokens\":512", "\"max_load_tokens\":0"),
        Some("load=enable") => CAPPED.replace("\"max_load_tokens\":512,", ""),
        _ => CAPPED.to_owned(),
    };
    assert_eq!(out.state("selective_kv.decision"), Some(state));
    assert_eq!(out.text(), expected, "{state}");
    assert!(out.complete());
    assert_eq!(rig.held(), 0);
}

const END: &str = "endpoint=10.0.0.7:8000";

#[test]
fn evidence_and_threshold() {
    let much = || prompts([runs(&[(4, &["gpu", "cpu"]), (24, &["cpu"])])]);
    let little = || runs(&[(4, &["gpu"]), (15, &["cpu"])]);
    let table: [(&str, Value, &str); 11] = [
        (
            "enough",
            much(),
            "load=enable;reason=admitted;offload=preserve;tokens=1536;",
        ),
        (
            "just enough, in counts",
            prompts([tiers(&[("gpu", 4), ("cpu", 20)])]),
            "load=enable;reason=admitted;offload=preserve;tokens=1024;",
        ),
        (
            "too little",
            prompts([little()]),
            "load=disable;reason=below_threshold;offload=preserve;tokens=960;",
        ),
        (
            "summed over prompts",
            prompts([little(), little()]),
            "load=enable;reason=admitted;offload=preserve;tokens=1920;",
        ),
        (
            "too little but partial",
            records::partial([little()]),
            "load=preserve;reason=partial_evidence;offload=preserve;tokens=960;",
        ),
        (
            "enough though partial",
            records::partial([little(), little()]),
            "load=enable;reason=admitted;offload=preserve;tokens=1920;",
        ),
        (
            "no prompts",
            prompts([]),
            "load=preserve;reason=no_evidence;offload=preserve;",
        ),
        (
            "nothing cached",
            prompts([runs(&[])]),
            "load=disable;reason=below_threshold;offload=preserve;tokens=0;",
        ),
        (
            "a negative count",
            prompts([map([("tiers", map([("cpu", Value::from(-1))]))])]),
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
        (
            "of another shape",
            prompts([map([("runs", "many".into())])]),
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
        (
            "a foreign record's entry",
            Value::from(7),
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
    ];
    for (what, entry, state) in table {
        let rig = Rig::new(THRESHOLD);
        rig.evidence(entry);
        let out = rig.policy.send(chat(), CAPPED);
        println!("{what}");
        assert_load(&rig, &out, &format!("{state}{END}"));
    }
}

#[test]
fn age_of_evidence() {
    let table = [
        (
            30_000,
            "load=enable;reason=admitted;offload=preserve;tokens=1536;",
        ),
        (
            30_001,
            "load=preserve;reason=stale_evidence;offload=preserve;tokens=1536;",
        ),
        (
            -30_000,
            "load=enable;reason=admitted;offload=preserve;tokens=1536;",
        ),
        (
            -30_001,
            "load=preserve;reason=stale_evidence;offload=preserve;tokens=1536;",
        ),
    ];
    for (age_ms, state) in table {
        let rig = Rig::new(THRESHOLD);
        let t_ms = rig.env.now_ms().wrapping_add_signed(-age_ms);
        rig.evidence_at(t_ms, prompts([runs(&[(24, &["cpu"])])]));
        let out = rig.policy.send(chat(), CAPPED);
        assert_load(&rig, &out, &format!("{state}{END}"));
    }
}

#[test]
fn no_evidence() {
    let rig = Rig::new(THRESHOLD);
    let state = format!("load=preserve;reason=no_evidence;offload=preserve;{END}");
    // No record, an empty one, one of another request, one of another endpoint, no request id.
    assert_load(&rig, &rig.policy.send(chat(), CAPPED), &state);
    rig.env.set_shared("", &records::evidence_key("r-1"), b"");
    assert_load(&rig, &rig.policy.send(chat(), CAPPED), &state);
    rig.much_evidence();
    assert_load(&rig, &rig.policy.send(chat().id("r-2"), CAPPED), &state);
    assert_load(
        &rig,
        &rig.policy.send(chat().without("x-request-id"), CAPPED),
        &state,
    );
    let out = rig
        .policy
        .send(Request::post("/v1/completions").upstream(OTHER), CAPPED);
    assert_load(&rig, &out, &state.replace(ENDPOINT, OTHER));
    assert_eq!(
        rig.decisions(),
        counts([
            ("load preserve no_evidence", 5),
            ("offload preserve policy", 5)
        ])
    );
    // Another request's record in the bucket is no problem of evidence; this endpoint missing in
    // the request's own is one.
    assert_eq!(
        labels(&rig.env, "selective_kv_evidence_problems_total."),
        counts([("no_endpoint", 1)])
    );
}

#[test]
fn foreign_and_malformed_records_count_as_none() {
    let much = || prompts([runs(&[(24, &["cpu"])])]);
    let table: [(&str, Vec<u8>, &str); 4] = [
        ("no CBOR", vec![0xff, 0x00, 0x13], "malformed_cbor"),
        (
            "another version",
            {
                let record = records::evidence("r-1", 0, ENDPOINT, 64, much());
                let Value::Map(mut entries) = record else {
                    unreachable!()
                };
                entries[0].1 = 2.into();
                records::encode(&Value::Map(entries))
            },
            "malformed_version",
        ),
        (
            "a list",
            records::encode(&records::list([])),
            "malformed_shape",
        ),
        (
            "over 256 KiB",
            vec![0xa0; 256 * 1024 + 1],
            "malformed_too_large",
        ),
    ];
    for (what, bytes, kind) in table {
        let rig = Rig::new(THRESHOLD);
        rig.env.set_shared("", &records::evidence_key("r-1"), bytes);
        println!("{what}");
        let out = rig.policy.send(chat(), CAPPED);
        let state = format!("load=preserve;reason=no_evidence;offload=preserve;{END}");
        assert_load(&rig, &out, &state);
        assert_eq!(
            labels(&rig.env, "selective_kv_evidence_problems_total."),
            counts([(kind, 1)])
        );
    }
}

#[test]
fn no_endpoint() {
    let rig = Rig::new(THRESHOLD);
    rig.much_evidence();
    let out = rig.policy.send(Request::post("/v1/completions"), CAPPED);
    assert_load(
        &rig,
        &out,
        "load=preserve;reason=no_endpoint;offload=preserve",
    );
}

#[test]
fn the_endpoint_comes_from_the_first_source_that_knows_it() {
    const HEADER: &str = "x-gateway-destination-endpoint";
    let admitted = format!("load=enable;reason=admitted;offload=preserve;tokens=1536;{END}");
    let rig = Rig::new(THRESHOLD);
    rig.much_evidence();
    let cases = [
        Request::post("/v1/completions").header(HEADER, format!("{ENDPOINT},{OTHER}")),
        Request::post("/v1/completions").dynamic_metadata("envoy.lb", HEADER, ENDPOINT),
        Request::post("/v1/completions")
            .upstream(ENDPOINT)
            .header(HEADER, OTHER),
        Request::post("/v1/completions")
            .header(HEADER, ENDPOINT)
            .dynamic_metadata("envoy.lb", HEADER, OTHER),
    ];
    for request in cases {
        assert_load(&rig, &rig.policy.send(request, CAPPED), &admitted);
    }
    let only = Rig::new(
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"endpointSources":["header"]}"#,
    );
    only.much_evidence();
    let out = only.policy.send(chat(), CAPPED);
    assert_load(
        &only,
        &out,
        "load=preserve;reason=no_endpoint;offload=preserve",
    );
}

#[test]
fn the_router_may_pick_its_host_while_the_body_is_held() {
    let rig = Rig::new(THRESHOLD);
    rig.much_evidence();
    // Not the host that the picker asked for.
    let request = Request::post("/v1/completions").header("x-gateway-destination-endpoint", OTHER);
    let mut stream = rig.policy.request(request);
    // All but `n":1}`.
    let (params, rest) = CAPPED.split_at(CAPPED.len() - 5);
    stream.chunk(params);
    stream.picked(ENDPOINT);
    let admitted = format!("load=enable;reason=admitted;offload=preserve;tokens=1536;{END}");
    assert_load(&rig, &stream.end_with(rest), &admitted);
}

#[test]
fn an_ipv6_endpoint_is_written_in_brackets() {
    let rig = Rig::new(THRESHOLD);
    let endpoint = "[::1]:8000";
    let record = records::evidence(
        "r-1",
        rig.env.now_ms(),
        endpoint,
        64,
        prompts([runs(&[(24, &["cpu"])])]),
    );
    records::write(&rig.env, "", &records::evidence_key("r-1"), &record);
    let out = rig
        .policy
        .send(Request::post("/v1/completions").upstream(endpoint), CAPPED);
    assert_eq!(
        out.state("selective_kv.decision"),
        Some("load=enable;reason=admitted;offload=preserve;tokens=1536;endpoint=[::1]:8000")
    );
}

#[test]
fn the_clients_tier_filter_counts() {
    // 20 blocks in storage only, 12 of them also in cpu.
    let entry = || prompts([runs(&[(12, &["cpu", "storage"]), (8, &["storage"])])]);
    let table = [
        (
            r#"[{"medium":"STORAGE"}]"#,
            "enable;reason=admitted;offload=preserve;tokens=1280",
            0,
        ),
        // No secondary tier: cpu alone.
        (
            "[]",
            "disable;reason=below_threshold;offload=preserve;tokens=768",
            0,
        ),
        (
            r#"[{"locality":"global"}]"#,
            "enable;reason=admitted;offload=preserve;tokens=1280",
            1,
        ),
    ];
    for (filter, state, invalid) in table {
        let rig = Rig::new(THRESHOLD);
        rig.evidence(entry());
        let body = format!(r#"{{"kv_transfer_params":{{"kv_load_tiers":{filter}}}}}"#);
        let out = rig.policy.send(chat(), &body);
        let state = format!("load={state};{END}");
        assert_eq!(
            out.state("selective_kv.decision"),
            Some(state.as_str()),
            "{filter}"
        );
        let counted = rig.env.metric("selective_kv_invalid_kv_load_tiers_total");
        assert_eq!(counted, invalid, "{filter}");
    }
}

const HEADERED: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,
    "evidenceHeader":"X-KV-Tier-Evidence"}"#;

#[test]
fn the_evidence_header_wins_over_shared_data_and_never_reaches_the_engine() {
    let table = [
        (
            r#"{"block_size":64,"tiers":{"gpu":4,"cpu":19}}"#,
            "load=disable;reason=below_threshold;offload=preserve;tokens=960;",
        ),
        (
            r#"{"block_size":64,"prompts":[{"runs":[[16,["cpu"]]]},{"tiers":{"cpu":1}}]}"#,
            "load=enable;reason=admitted;offload=preserve;tokens=1088;",
        ),
        (
            "{",
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
        (
            "",
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
        (
            r#"{"block_size":0,"tiers":{"cpu":19}}"#,
            "load=preserve;reason=invalid_evidence;offload=preserve;",
        ),
    ];
    for (header, state) in table {
        let rig = Rig::new(HEADERED);
        rig.much_evidence();
        let out = rig
            .policy
            .send(chat().header("x-kv-tier-evidence", header), CAPPED);
        println!("{header}");
        assert_load(&rig, &out, &format!("{state}{END}"));
        assert_eq!(out.headers().get("x-kv-tier-evidence"), None);
    }
}

#[test]
fn the_evidence_header_speaks_of_the_first_choice_alone() {
    const DESTINATION: &str = "x-gateway-destination-endpoint";
    let header = r#"{"block_size":64,"tiers":{"cpu":40}}"#;
    let send = |destination: &str| {
        let rig = Rig::new(HEADERED);
        rig.much_evidence();
        let request = chat()
            .header("x-kv-tier-evidence", header)
            .header(DESTINATION, destination);
        let out = rig.policy.send(request, CAPPED);
        assert_eq!(out.headers().get("x-kv-tier-evidence"), None);
        out.state("selective_kv.decision").map(str::to_owned)
    };
    let state =
        |tokens| format!("load=enable;reason=admitted;offload=preserve;tokens={tokens};{END}");
    assert_eq!(send(ENDPOINT), Some(state(2560)));
    assert_eq!(send(&format!("{OTHER},{ENDPOINT}")), Some(state(1536)));
}

#[test]
fn the_evidence_header_of_the_base_is_taken_off_on_every_route() {
    let configuration = r#"{"loadPolicy":"disable","evidenceHeader":"x-kv-tier-evidence",
        "routes":[{"match":{"routeName":"other"},"evidenceHeader":"x-other"},
                  {"match":{"routeName":"off"},"evidenceHeader":null}]}"#;
    for (route, left) in [("base", Some("2")), ("other", None), ("off", Some("2"))] {
        let request = chat()
            .property(&["xds", "route_name"], route)
            .header("x-kv-tier-evidence", "1")
            .header("x-other", "2");
        let out = Rig::new(configuration).policy.send(request, CAPPED);
        assert_eq!(out.headers().get("x-kv-tier-evidence"), None, "{route}");
        assert_eq!(out.headers().text("x-other").as_deref(), left, "{route}");
    }
}

#[test]
fn the_evidence_header_is_taken_off_requests_that_are_not_looked_at_too() {
    let rig = Rig::new(HEADERED);
    let request = || Request::post("/v1/embeddings").header("x-kv-tier-evidence", "{}");
    let out = rig.policy.send(request(), "{}");
    assert_eq!(out.headers().get("x-kv-tier-evidence"), None);
    let out = rig.policy.header_only(request().header(":method", "GET"));
    assert_eq!(out.headers().get("x-kv-tier-evidence"), None);
}

#[test]
fn on_a_retry_the_upstream_filter_decides_anew_and_the_header_is_gone() {
    let rig = Rig::new(HEADERED);
    let now = rig.env.now_ms();
    let both = map([
        (ENDPOINT, prompts([runs(&[(24, &["cpu"])])])),
        (OTHER, prompts([runs(&[(2, &["cpu"])])])),
    ]);
    let request = map([
        ("id", "r-1".into()),
        ("t", now.into()),
        ("block_size", 64.into()),
        ("endpoints", both),
    ]);
    let record = map([("v", 1.into()), ("requests", records::list([request]))]);
    records::write(&rig.env, "", &records::evidence_key("r-1"), &record);

    let header = r#"{"block_size":64,"tiers":{"cpu":40}}"#;
    let request = chat().header("x-kv-tier-evidence", header);
    let mut stream = rig.policy.upstream().request(request);
    stream.chunk(&CAPPED[..30]).last_chunk(&CAPPED[30..]);
    stream.retry(OTHER);
    let out = stream.close();
    let first = &out.earlier_attempts[0];
    assert_eq!(
        String::from_utf8_lossy(&first.body),
        CAPPED.replace("\"max_load_tokens\":512,", "")
    );
    assert_load(
        &rig,
        &out,
        &format!(
            "load=disable;reason=below_threshold;offload=preserve;tokens=128;endpoint={OTHER}"
        ),
    );
    assert_eq!(
        rig.decisions(),
        counts([
            ("load disable below_threshold", 1),
            ("load enable admitted", 1),
            ("offload preserve policy", 2),
        ])
    );
}

#[test]
fn a_client_cap_may_be_respected() {
    let rig = Rig::new(
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"clientCaps":"respect"}"#,
    );
    rig.much_evidence();
    let out = rig.policy.send(chat(), CAPPED);
    assert_eq!(out.text(), CAPPED);
    let state = format!("load=enable;reason=admitted;offload=preserve;tokens=1536;{END}");
    assert_eq!(out.state("selective_kv.decision"), Some(state.as_str()));
    assert_eq!(rig.edits(), counts([]));
}

#[test]
fn dry_run_decides_counts_and_keeps_the_bytes_and_their_length() {
    let rig = Rig::new(r#"{"loadPolicy":"disable","offloadPolicy":"disable","dryRun":true}"#);
    let out = rig.policy.send(chat(), CAPPED);
    assert_eq!(out.text(), CAPPED);
    assert_eq!(
        out.headers().text("content-length").as_deref(),
        Some(CAPPED.len().to_string().as_str())
    );
    assert_eq!(
        out.state("selective_kv.decision"),
        Some("load=disable;reason=policy;offload=disable;endpoint=10.0.0.7:8000")
    );
    assert_eq!(
        rig.decisions(),
        counts([("load disable policy", 1), ("offload disable policy", 1)])
    );
    assert_eq!(rig.edits(), counts([]));
}

#[test]
fn both_directions_are_counted_and_edited() {
    let rig = Rig::new(DISABLE_BOTH);
    let out = rig.policy.send(chat(), r#"{"a":1}"#);
    assert_eq!(
        out.text(),
        r#"{"a":1,"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#
    );
    assert_eq!(out.headers().get("content-length"), None);
    assert_eq!(
        rig.decisions(),
        counts([("load disable policy", 1), ("offload disable policy", 1)])
    );
    assert_eq!(rig.edits(), counts([("load", 1), ("offload", 1)]));
    // Already the integer 0: not touched, and not counted as an edit.
    let zero = r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#;
    assert_eq!(rig.policy.send(chat(), zero).text(), zero);
    assert_eq!(rig.edits(), counts([("load", 1), ("offload", 1)]));
}

#[test]
fn a_disaggregated_request_is_left_alone() {
    for header in [
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-kv-cache-source-host-port",
    ] {
        let rig = Rig::new(DISABLE_BOTH);
        let out = rig.policy.send(chat().header(header, "10.0.0.9:1"), CAPPED);
        assert_eq!(out.text(), CAPPED, "{header}");
        let length = out.headers().text("content-length");
        assert_eq!(
            length.as_deref(),
            Some(CAPPED.len().to_string().as_str()),
            "{header}"
        );
        assert_eq!(
            rig.decisions(),
            counts([
                ("load preserve disaggregated", 1),
                ("offload preserve disaggregated", 1)
            ])
        );
        let body_read =
            rig.env.calls().iter().any(|c| {
                c.import == "proxy_get_buffer_bytes" && c.callback == "proxy_on_request_body"
            });
        assert!(!body_read, "{header}");
    }
    for (params, edited) in [
        (r#"{"do_remote_decode":true,"max_load_tokens":5}"#, false),
        (
            r#"{"max_load_tokens":5,"remote_kv_source":{"host":"h"}}"#,
            false,
        ),
        (
            r#"{"max_load_tokens":5,"do_remote_prefill":false,"disagg_spec":null}"#,
            true,
        ),
    ] {
        let rig = Rig::new(r#"{"loadPolicy":"disable"}"#);
        let body = format!(r#"{{"kv_transfer_params":{params},"x":1}}"#);
        let out = rig.policy.send(chat(), &body);
        let expected = match edited {
            true => body.replace(":5", ":0"),
            false => body.clone(),
        };
        assert_eq!(out.text(), expected);
        let reason = if edited {
            "load disable policy"
        } else {
            "load preserve disaggregated"
        };
        assert_eq!(rig.decisions().get(reason), Some(&1), "{params}");
    }
}

#[test]
fn a_body_that_is_no_json_object_passes_unchanged() {
    for body in ["", "[1]", "hello", "{\"a\":1", "{]", "{\"a\" 1}"] {
        let rig = Rig::new(DISABLE_BOTH);
        let out = rig.policy.request(chat()).chunks([body]).end();
        assert_eq!(out.text(), body);
        assert!(out.complete());
        assert_eq!(
            rig.decisions(),
            counts([
                ("load preserve not_json", 1),
                ("offload preserve not_json", 1)
            ]),
            "{body}"
        );
    }
}

#[test]
fn routes_choose_the_policy_by_name_and_by_metadata() {
    let rig = Rig::new(
        r#"{"routes":[
            {"match":{"routeName":"batch"},"loadPolicy":"disable"},
            {"match":{"routeNamePrefix":"chat-"},"offloadPolicy":"disable"},
            {"match":{"virtualHost":"llm"},"loadPolicy":"disable","offloadPolicy":"disable"}]}"#,
    );
    let body = "{}";
    let caps = |load: bool, offload: bool| {
        let caps = [
            (load, "\"max_load_tokens\":0"),
            (offload, "\"max_offload_tokens\":0"),
        ];
        let caps: Vec<_> = caps
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, cap)| *cap)
            .collect();
        format!("{{\"kv_transfer_params\":{{{}}}}}", caps.join(","))
    };
    let metadata = |json: &str| chat().route_metadata("selective-kv", "config", json);
    let table = [
        (chat().route("batch"), caps(true, false)),
        (chat().route("chat-eu"), caps(false, true)),
        (chat().route("x").virtual_host("llm"), caps(true, true)),
        (chat().route("x"), body.to_owned()),
        (metadata(r#"{"loadPolicy":"disable"}"#), caps(true, false)),
        (
            metadata(r#"{"loadPolicy":"preserve","offloadPolicy":"disable"}"#).route("batch"),
            caps(false, true),
        ),
    ];
    for (request, expected) in table {
        assert_eq!(rig.policy.send(request, body).text(), expected);
    }
    assert_eq!(rig.skipped(), counts([("inactive", 1)]));
}

#[test]
fn an_invalid_route_configuration_preserves_that_route_and_logs_once() {
    let rig = Rig::new(r#"{"loadPolicy":"disable"}"#);
    let wrong = || {
        chat()
            .route("w")
            .route_metadata("selective-kv", "config", r#"{"loadPolicy":"never"}"#)
    };
    for _ in 0..2 {
        let out = rig.policy.send(wrong(), CAPPED);
        assert_eq!(out.text(), CAPPED);
    }
    assert_eq!(rig.env.metric("selective_kv_invalid_route_config_total"), 2);
    assert_eq!(
        rig.decisions(),
        counts([
            ("load preserve invalid_route_config", 2),
            ("offload preserve invalid_route_config", 2)
        ])
    );
    let lines: Vec<_> = rig.env.log_from(skv_harness::LogLevel::Warn);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["loadPolicy", "never", "preserve", "disable", "threshold"] {
        assert!(lines[0].text.contains(part), "{}", lines[0].text);
    }
    // Another route is as it was.
    let out = rig.policy.send(chat(), CAPPED);
    assert_eq!(out.text(), CAPPED.replace(":512", ":0"));
}

#[test]
fn a_bad_configuration_refuses_to_load_with_one_clear_line() {
    let env = skv_harness::Harness::new();
    let table = [
        (
            "selective-kv",
            r#"{"loadPolicy":"threshold"}"#,
            "minExternalReusableTokens",
        ),
        ("selective-kv", r#"{"loadpolicy":"disable"}"#, "loadPolicy"),
        ("selective-kv", "[", "JSON"),
        ("kv-scorer", "{}", "endpoints"),
        ("other", "{}", "root_id"),
    ];
    for (root_id, configuration, names) in table {
        let vm = env.vm("");
        assert!(
            vm.try_plugin(root_id, configuration).is_err(),
            "{configuration}"
        );
        let log = vm.log();
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(log[0].text.contains(names), "{}", log[0].text);
    }
}

#[test]
fn as_an_upstream_filter_behind_a_downstream_one_each_decides_for_itself() {
    // Two plugins of one VM: base configurations differ, so they are two root contexts.
    let rig = Rig::new(r#"{"loadPolicy":"disable"}"#);
    let inner = rig
        .vm
        .plugin("selective-kv", r#"{"offloadPolicy":"disable"}"#);
    let out = skv_harness::Chain::default()
        .then(&rig.policy, Placement::Downstream)
        .then(&inner, Placement::Upstream)
        .send(chat(), CAPPED);
    assert_eq!(
        out.text(),
        CAPPED.replace(":512", ":0").replace(":64", ":0")
    );
}
