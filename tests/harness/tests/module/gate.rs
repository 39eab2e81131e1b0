//! The queue gate: one state for all workers, every sample counted once, only fresh ones close it.

use crate::records::{self, list, map, prompts, runs};
use crate::rig::{CAPPED, ENDPOINT, GATED, OTHER, Rig, chat, counts, labels};
use ciborium::Value;
use skv_harness::{Fault, Plugin, status};

const EVIDENCE: &str = r#"{"block_size":64,"tiers":{"cpu":20}}"#;
const POLICY: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,
    "maxWaitingRequests":8,"evidenceHeader":"x-evidence"}"#;

/// The access log's line for a request at [`ENDPOINT`] with enough evidence.
fn state(policy: &Plugin) -> String {
    let out = policy.send(chat().header("x-evidence", EVIDENCE), CAPPED);
    assert!(out.complete());
    let state = out.state("selective_kv.decision").expect("a decision");
    state.to_owned()
}

fn closed(ewma: &str) -> String {
    format!(
        "load=disable;reason=queue_pressure;offload=preserve;tokens=1280;ewma={ewma};endpoint={ENDPOINT}"
    )
}

fn open(ewma: &str) -> String {
    format!(
        "load=enable;reason=admitted;offload=preserve;tokens=1280;ewma={ewma};endpoint={ENDPOINT}"
    )
}

/// Without samples there is no average.
fn no_queue() -> String {
    format!("load=enable;reason=admitted;offload=preserve;tokens=1280;endpoint={ENDPOINT}")
}

fn problems(rig: &Rig) -> std::collections::BTreeMap<String, u64> {
    labels(&rig.env, "selective_kv_queue_problems_total.")
}

#[test]
fn two_workers_share_one_gate() {
    let rig = Rig::new(POLICY);
    let other = rig.env.vm("").plugin("selective-kv", POLICY);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 8.0)]);
    assert_eq!(state(&rig.policy), closed("8"));
    rig.env.advance_ms(1_000);
    rig.queue(&[(t0, 8.0), (t0 + 1_000, 0.0)]);
    assert_eq!(state(&other), closed("5.656854249492381"));
    // The first worker has seen nothing of it but the shared state.
    assert_eq!(state(&rig.policy), closed("5.656854249492381"));
    rig.env.advance_ms(2_000);
    rig.queue(&[(t0, 8.0), (t0 + 1_000, 0.0), (t0 + 3_000, 0.0)]);
    assert_eq!(state(&rig.policy), open("2.8284271247461903"));
    assert_eq!(state(&other), open("2.8284271247461903"));
    assert_eq!(
        labels(&rig.env, "selective_kv_gate_transitions_total."),
        counts([("closed", 1), ("open", 1)])
    );
    assert_eq!(problems(&rig), counts([]));
}

#[test]
fn every_sample_of_the_history_counts_whoever_comes_when() {
    let rig = Rig::new(POLICY);
    let t0 = rig.env.now_ms();
    rig.env.advance_ms(3_000);
    rig.queue(&[(t0, 8.0), (t0 + 1_000, 0.0), (t0 + 3_000, 0.0)]);
    assert_eq!(state(&rig.policy), open("2.8284271247461903"));
}

#[test]
fn the_timer_consumes_samples_without_any_request() {
    let rig = Rig::new(POLICY);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 20.0)]);
    rig.env.run_ms(1_000);
    let gauge = |name: &str| rig.env.labelled(name, &[("endpoint", ENDPOINT)]);
    assert_eq!(gauge("selective_kv_gate_closed"), 1);
    assert_eq!(gauge("selective_kv_waiting_ewma_milli"), 20_000);
    // The burst is over before the first request comes; the 20 is no longer in the record.
    rig.queue(&[(t0 + 1_000, 20.0), (t0 + 2_000, 0.0)]);
    rig.env.run_ms(1_000);
    assert_eq!(state(&rig.policy), closed("14.142135623730951"));
    assert_eq!(gauge("selective_kv_waiting_ewma_milli"), 14_142);
}

#[test]
fn a_stale_queue_does_not_veto() {
    let rig = Rig::new(POLICY);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 20.0)]);
    rig.env.advance_ms(10_000);
    assert_eq!(state(&rig.policy), closed("20"));
    rig.env.advance_ms(1);
    assert!(state(&rig.policy).starts_with("load=enable;reason=admitted;"));
    assert_eq!(problems(&rig).get("stale_queue"), Some(&1));
}

#[test]
fn a_clock_that_steps_back_starts_the_gate_afresh() {
    let rig = Rig::new(POLICY);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 20.0)]);
    assert_eq!(state(&rig.policy), closed("20"));
    rig.env.set_ms(t0 - 60_000);
    rig.queue(&[(t0 - 60_000, 3.0)]);
    assert_eq!(state(&rig.policy), open("3"));
}

#[test]
fn what_is_no_sample_is_counted_and_never_closes_the_gate() {
    let record = |samples: Value| {
        let entry = map([("samples", samples)]);
        map([("v", 1.into()), ("endpoints", map([(ENDPOINT, entry)]))])
    };
    let sample = |t: u64, w: Value| list([t.into(), w]);
    let now = Rig::new("{}").env.now_ms();
    let table = [
        (list([sample(now, f64::NAN.into())]), "invalid_sample"),
        (list([sample(now, (-1).into())]), "invalid_sample"),
        (list([sample(now, f64::INFINITY.into())]), "invalid_sample"),
        (list([sample(now, "20".into())]), "invalid_sample"),
        (list([sample(now + 10_001, 20.into())]), "future_sample"),
        (
            list([sample(now, 20.into()), sample(now - 500, 20.into())]),
            "unordered_history",
        ),
    ];
    for (samples, kind) in table {
        let rig = Rig::new(POLICY);
        records::write(
            &rig.env,
            "",
            &records::queue_key(ENDPOINT),
            &record(samples),
        );
        assert_eq!(state(&rig.policy), no_queue(), "{kind}");
        assert_eq!(problems(&rig), counts([(kind, 1)]));
    }
    for (bytes, kind) in [
        (vec![0x13, 0x37], "malformed_cbor"),
        (
            records::encode(&map([("v", 2.into())])),
            "malformed_version",
        ),
    ] {
        let rig = Rig::new(POLICY);
        rig.env.set_shared("", &records::queue_key(ENDPOINT), bytes);
        assert_eq!(state(&rig.policy), no_queue(), "{kind}");
        assert_eq!(problems(&rig), counts([(kind, 1)]));
    }
}

#[test]
fn an_unlisted_endpoint_is_not_vetoed_and_starts_afresh_when_it_returns() {
    let rig = Rig::new(POLICY);
    let t0 = rig.env.now_ms();
    let members = |t_ms, endpoints: &[&str]| {
        let record = records::members("w", t_ms, endpoints);
        records::write(&rig.env, "", records::MEMBERS_KEY, &record);
    };
    rig.queue(&[(t0, 20.0)]);
    members(t0, &[ENDPOINT, OTHER]);
    assert_eq!(state(&rig.policy), closed("20"));
    members(t0, &[OTHER]);
    assert_eq!(state(&rig.policy), no_queue());
    // A writer that is silent for over a minute lists nobody and rules nobody out.
    rig.env.advance_ms(60_001);
    rig.queue(&[(t0 + 60_001, 9.0)]);
    assert_eq!(state(&rig.policy), closed("9"));
    members(t0 + 60_001, &[ENDPOINT]);
    assert_eq!(state(&rig.policy), closed("9"));
}

#[test]
fn a_worker_that_cannot_write_the_shared_state_goes_by_its_own() {
    for status in [status::CAS_MISMATCH, status::INTERNAL_FAILURE, 99] {
        let rig = Rig::new(POLICY);
        rig.env
            .inject(Fault::always("proxy_set_shared_data").status(status));
        let t0 = rig.env.now_ms();
        rig.queue(&[(t0, 20.0)]);
        assert_eq!(state(&rig.policy), closed("20"), "{status}");
        rig.env.advance_ms(1_000);
        rig.queue(&[(t0, 20.0), (t0 + 1_000, 20.0)]);
        assert_eq!(state(&rig.policy), closed("20"), "{status}");
    }
}

#[test]
fn a_request_below_the_threshold_still_consumes_the_queue() {
    let rig = Rig::new(GATED);
    let t0 = rig.env.now_ms();
    rig.queue(&[(t0, 20.0)]);
    rig.evidence(prompts([runs(&[(1, &["cpu"])])]));
    let out = rig.policy.send(chat(), CAPPED);
    assert_eq!(
        out.state("selective_kv.decision"),
        Some(
            "load=disable;reason=below_threshold;offload=preserve;tokens=64;ewma=20;endpoint=10.0.0.7:8000"
        )
    );
    // By now the 20 has left the record: the state has it.
    rig.env.advance_ms(1_000);
    rig.queue(&[(t0 + 1_000, 0.0)]);
    rig.much_evidence();
    let out = rig.policy.send(chat(), CAPPED);
    assert_eq!(
        out.state("selective_kv.decision"),
        Some(
            "load=disable;reason=queue_pressure;offload=preserve;tokens=1536;ewma=14.142135623730951;endpoint=10.0.0.7:8000"
        )
    );
}

#[test]
fn a_request_whose_decision_is_not_about_evidence_still_consumes_the_queue() {
    let disaggregated = r#"{"kv_transfer_params":{"do_remote_decode":true}}"#;
    for body in ["no json", disaggregated, "{\"cut\":"] {
        let rig = Rig::new(GATED);
        let t0 = rig.env.now_ms();
        rig.queue(&[(t0, 20.0)]);
        rig.policy.send(chat(), body);
        rig.env.advance_ms(1_000);
        rig.queue(&[(t0 + 1_000, 0.0)]);
        rig.much_evidence();
        let out = rig.policy.send(chat(), CAPPED);
        let state = out.state("selective_kv.decision").unwrap_or_default();
        assert!(state.contains("ewma=14.142135623730951"), "{body}: {state}");
    }
}
