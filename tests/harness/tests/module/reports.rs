//! What is reported where several things hold at once: which reason wins, and that nothing is
//! counted twice or stays behind.

use crate::records::{self, map, prompts, runs};
use crate::rig::{CAPPED, ENDPOINT, GATED, OTHER, Rig, THRESHOLD, chat, counts, labels};
use ciborium::Value;
use skv_harness::Request;

#[test]
fn a_dry_run_reports_what_a_real_run_would() {
    // An edit already sent keeps its own reason, though the rest is no JSON or does not fit.
    let first = r#"{"kv_transfer_params":{"max_load_tokens":5},"#;
    let long = format!(r#""kv_transfer_params":{{"a":"{}"}}}}"#, "x".repeat(200));
    for (configuration, rest) in [
        (r#"{"loadPolicy":"disable""#, "]"),
        (r#"{"loadPolicy":"disable""#, "\"cut"),
        (r#"{"loadPolicy":"disable","maxHeldBytes":64"#, &long),
        (
            r#"{"loadPolicy":"disable","offloadPolicy":"disable","maxHeldBytes":64"#,
            &long,
        ),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,"maxHeldBytes":64"#,
            &long,
        ),
    ] {
        let run = |dry: &str| {
            let rig = Rig::new(&format!("{configuration}{dry}}}"));
            let body = format!("{first}{rest}");
            let chunks = body.as_bytes().chunks(16);
            let out = rig.policy.request(chat()).chunks(chunks).end();
            let state = out.state("selective_kv.decision").map(str::to_owned);
            (rig.decisions(), state, rig.edits(), out.text() == body)
        };
        let (decisions, state, edits, _) = run("");
        let (dry_decisions, dry_state, dry_edits, same) = run(r#","dryRun":true"#);
        assert_eq!(dry_decisions, decisions, "{configuration} {rest}");
        assert_eq!(dry_state, state, "{configuration} {rest}");
        assert!(same);
        assert_eq!(dry_edits, counts([]));
        let edited = configuration.contains("disable");
        assert_eq!(edits.get("load"), edited.then_some(&1));
    }
}

#[test]
fn disaggregated_comes_before_what_is_wrong_with_the_rest_of_the_body() {
    let peer = r#"{"kv_transfer_params":{"do_remote_prefill":true},"#;
    let long = format!(r#""kv_transfer_params":{{"a":"{}"}}}}"#, "x".repeat(200));
    for rest in ["]", "\"cut", &long] {
        let rig = Rig::new(r#"{"loadPolicy":"disable","maxHeldBytes":64}"#);
        let body = format!("{peer}{rest}");
        let chunks = body.as_bytes().chunks(16);
        let out = rig.policy.request(chat()).chunks(chunks).end();
        assert_eq!(out.text(), body);
        assert_eq!(
            rig.decisions(),
            counts([
                ("load preserve disaggregated", 1),
                ("offload preserve disaggregated", 1)
            ]),
            "{rest}"
        );
    }
}

#[test]
fn the_endpoint_of_a_request_that_is_left_alone_comes_from_the_same_sources() {
    const DESTINATION: &str = "x-gateway-destination-endpoint";
    let rig = Rig::new(GATED);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 3.0)]);
    let request = Request::post("/v1/completions")
        .header("x-prefiller-host-port", "10.0.0.9:1")
        .header(DESTINATION, ENDPOINT)
        .dynamic_metadata("envoy.lb", DESTINATION, OTHER);
    let out = rig.policy.send(request, CAPPED);
    let state =
        format!("load=preserve;reason=disaggregated;offload=preserve;ewma=3;endpoint={ENDPOINT}");
    assert_eq!(out.state("selective_kv.decision"), Some(state.as_str()));
}

#[test]
fn another_requests_evidence_in_the_bucket_is_no_problem() {
    let rig = Rig::new(THRESHOLD);
    let record = records::evidence(
        "somebody else's",
        rig.env.now_ms(),
        ENDPOINT,
        64,
        prompts([runs(&[(24, &["cpu"])])]),
    );
    records::write(&rig.env, "", &records::evidence_key("r-1"), &record);
    rig.policy.send(chat(), CAPPED);
    assert_eq!(
        rig.decisions().get("load preserve no_evidence"),
        Some(&1),
        "{:?}",
        rig.decisions()
    );
    assert_eq!(
        labels(&rig.env, "selective_kv_evidence_problems_total."),
        counts([])
    );
}

#[test]
fn evidence_that_is_invalid_is_counted_once_a_request() {
    for age_ms in [0, 60_000] {
        let rig = Rig::new(THRESHOLD);
        let entry = prompts([map([("tiers", map([("cpu", Value::from(-1))]))])]);
        rig.evidence_at(rig.env.now_ms() - age_ms, entry);
        rig.policy.send(chat(), CAPPED);
        assert_eq!(
            labels(&rig.env, "selective_kv_evidence_problems_total."),
            counts([("invalid_count", 1)]),
            "{age_ms}"
        );
    }
}

#[test]
fn the_gauges_of_an_endpoint_that_left_say_open() {
    // Noticed by the timer, or by a request.
    for by_request in [false, true] {
        let rig = Rig::new(GATED);
        let gauge = |name: &str| rig.env.labelled(name, &[("endpoint", ENDPOINT)]);
        let t0 = rig.env.now_ms();
        rig.queue(&[(t0, 20.0)]);
        rig.env.run_ms(1_000);
        assert_eq!(gauge("selective_kv_gate_closed"), 1);
        let record = records::members("scorer", rig.env.now_ms(), &[OTHER]);
        records::write(&rig.env, "", records::MEMBERS_KEY, &record);
        if by_request {
            rig.much_evidence();
            rig.policy.send(chat(), CAPPED);
        } else {
            rig.env.run_ms(1_000);
        }
        assert_eq!(gauge("selective_kv_gate_closed"), 0, "{by_request}");
        assert_eq!(gauge("selective_kv_waiting_ewma_milli"), 0, "{by_request}");
    }
}

#[test]
fn only_endpoints_have_gauges() {
    let rig = Rig::new(GATED);
    let t0 = rig.env.now_ms();
    let long = "1".repeat(100_000);
    for name in ["x;.;reason=.=y", long.as_str(), "engine-0:8000", ""] {
        let record = records::queue(name, &[(t0, 20.0)]);
        records::write(&rig.env, "", &records::queue_key(name), &record);
    }
    rig.queue(&[(t0, 20.0)]);
    rig.env.run_ms(2_000);
    let gauges = labels(&rig.env, "selective_kv_gate_closed.");
    assert_eq!(gauges, counts([(ENDPOINT, 1)]));
}
