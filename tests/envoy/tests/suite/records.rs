//! Records of shared data from a writer that is not ours: well-formed, broken and hostile ones.
//!
//! The writer is a probe: it writes fixed bytes with every request, before the policy runs.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use ciborium::cbor;
use ciborium::value::Value as Cbor;
use envoy_tests::probe::{Arg, Probe, text};
use envoy_tests::{Bootstrap, Envoy, Reply, Request, Sink};
use serde_json::{Value as Json, json};

use crate::support::{
    CHAT, ENOUGH, EVIDENCE, Placement, TOO_FEW, decision_and_endpoint, logged, threshold, with,
};

/// Evidence may be minutes old: a loaded machine starts Envoy slowly.
fn patient() -> Json {
    with(threshold(), json!({"maxEvidenceAge": "5m"}))
}

/// FNV-1a-64 modulo the number of buckets: docs/shared-data.md, section 3.
fn bucket(name: &str, buckets: u64) -> u64 {
    let hash = name
        .bytes()
        .fold(14_695_981_039_346_656_037_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        });
    hash % buckets
}

fn evidence_key(request_id: &str) -> String {
    format!("selective-kv/1/evidence/{}", bucket(request_id, 4096))
}

fn queue_key(endpoint: &str) -> String {
    format!("selective-kv/1/queue/{}", bucket(endpoint, 256))
}

fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    u64::try_from(now.as_millis()).expect("a clock before the year 584,000,000")
}

fn bytes(record: &Cbor) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(record, &mut bytes).expect("CBOR");
    bytes
}

/// Writes these records with every request.
#[derive(Default)]
struct Writer(Probe);

impl Writer {
    fn record(self, key: &str, value: &[u8]) -> Self {
        let args = [text(key), Arg::Bytes(value.to_vec()), Arg::Num(0)];
        Writer(
            self.0
                .call("request_headers", "written", "set_shared_data", &args),
        )
    }

    fn before(self, bootstrap: Bootstrap) -> Bootstrap {
        bootstrap.foreign_filter("writer", &self.0.build())
    }
}

/// A record with one request's evidence.
fn record(request_id: &str, t: u64, endpoints: &Cbor) -> Cbor {
    cbor!({"v" => 1, "requests" => [{"id" => request_id, "t" => t, "block_size" => 64, "endpoints" => endpoints}]}).expect("CBOR")
}

/// The endpoint's prompts, as they come.
fn prompts(endpoint: &str, prompts: &Cbor) -> Cbor {
    Cbor::Map(vec![(
        endpoint.into(),
        cbor!({"prompts" => prompts}).expect("CBOR"),
    )])
}

fn runs(runs: &[(u64, &[&str])]) -> Cbor {
    let runs: Vec<_> = runs
        .iter()
        .map(|(n, tiers)| cbor!([n, tiers]).expect("CBOR"))
        .collect();
    cbor!([{"runs" => runs}]).expect("CBOR")
}

#[test]
fn evidence_counts_as_its_rules_say() {
    let engine = Sink::ok();
    let own = engine.endpoint();
    let now = now_ms();
    let enough: &[(u64, &[&str])] = &[(4, &["gpu"]), (10, &["cpu"]), (6, &["STORAGE", "cpu"])];
    let few: &[(u64, &[&str])] = &[(4, &["gpu"]), (1, &["cpu"]), (1, &[]), (40, &["cpu"])];
    let one = |id: &str, t: u64, runs_: &[(u64, &[&str])]| {
        bytes(&record(id, t, &prompts(&own, &runs(runs_))))
    };
    let of = |id: &str, prompts_: Cbor| bytes(&record(id, now, &prompts(&own, &prompts_)));
    let map = |pairs: &[(&str, u64)]| {
        Cbor::Map(
            pairs
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
        )
    };
    let tiers = |pairs: &[(&str, u64)]| cbor!([{"tiers" => map(pairs)}]).unwrap();
    let mut partial = record("partial", now, &prompts(&own, &runs(few)));
    partial_of(&mut partial);
    let v2 = cbor!({"v" => 2, "requests" => []}).unwrap();
    // Request id, what is under its key, decision.
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("runs", one("runs", now, enough), "load=enable;reason=admitted;offload=preserve;tokens=1024"),
        ("a hole", one("a hole", now, few), "load=disable;reason=below_threshold;offload=preserve;tokens=64"),
        ("tiers", of("tiers", tiers(&[("gpu", 4), ("CPU", 20), ("speculative", 99)])), "load=enable;reason=admitted;offload=preserve;tokens=1024"),
        ("two prompts", of("two prompts", cbor!([{"tiers" => map(&[("gpu", 10), ("cpu", 20)])}, {"tiers" => map(&[("storage", 20)])}]).unwrap()),
            "load=enable;reason=admitted;offload=preserve;tokens=1920"),
        ("partial", bytes(&partial), "load=preserve;reason=partial_evidence;offload=preserve;tokens=64"),
        ("old", one("old", now - 301_000, enough), "load=preserve;reason=stale_evidence;offload=preserve;tokens=1024"),
        ("future", one("future", now + 600_000, enough), "load=preserve;reason=stale_evidence;offload=preserve;tokens=1024"),
        ("negative", of("negative", cbor!([{"runs" => [[-1, ["cpu"]]]}]).unwrap()), "load=preserve;reason=invalid_evidence;offload=preserve"),
        ("a float", of("a float", cbor!([{"tiers" => {"cpu" => 4.0}}]).unwrap()), "load=preserve;reason=invalid_evidence;offload=preserve"),
        ("no prompts", of("no prompts", cbor!([]).unwrap()), "load=preserve;reason=no_evidence;offload=preserve"),
        ("another request", one("someone else", now, enough), "load=preserve;reason=no_evidence;offload=preserve"),
        ("another endpoint", bytes(&record("another endpoint", now, &prompts("10.0.0.9:8000", &runs(enough)))), "load=preserve;reason=no_evidence;offload=preserve"),
        ("another version", bytes(&v2), "load=preserve;reason=no_evidence;offload=preserve"),
        ("no CBOR", b"\xff\xff\xff".to_vec(), "load=preserve;reason=no_evidence;offload=preserve"),
        ("cut", one("cut", now, enough)[..60].to_vec(), "load=preserve;reason=no_evidence;offload=preserve"),
        ("too large", vec![0; 262_145], "load=preserve;reason=no_evidence;offload=preserve"),
        ("deep", [vec![0x81; 200_000], vec![0]].concat(), "load=preserve;reason=no_evidence;offload=preserve"),
        ("empty", Vec::new(), "load=preserve;reason=no_evidence;offload=preserve"),
    ];
    let mut writer = Writer::default();
    for (id, value, _) in &cases {
        writer = writer.record(&evidence_key(id), value);
    }
    let bootstrap = writer.before(
        Placement::Downstream
            .bootstrap(&patient())
            .engines(&[&engine]),
    );
    let envoy = Envoy::start(&bootstrap);

    for (number, (id, _, decision)) in cases.iter().enumerate() {
        let target = format!("{CHAT}?{number}");
        assert_eq!(
            Request::post(&target, "{}")
                .header("x-request-id", id)
                .to(envoy.address())
                .status,
            200
        );
        assert_eq!(
            decision_and_endpoint(&envoy, &target),
            ((*decision).to_owned(), own.clone()),
            "{id}"
        );
    }
    // Evidence by header, if it is there, wins.
    let target = format!("{CHAT}?header");
    Request::post(&target, "{}")
        .header("x-request-id", "runs")
        .header(EVIDENCE, TOO_FEW)
        .to(envoy.address());
    assert!(logged(&envoy, &target).starts_with("load=disable;reason=below_threshold"));

    for (kind, count) in [
        ("malformed_cbor", 3),
        ("malformed_version", 1),
        ("malformed_too_large", 1),
        ("invalid_count", 2),
    ] {
        let counted = envoy.custom(
            "selective_kv_evidence_problems_total",
            &format!("kind={kind}"),
        );
        assert_eq!(
            counted,
            count,
            "{kind}: {:#?}",
            envoy.stats("evidence_problems")
        );
    }
}

/// Marks the record's only endpoint as partial.
fn partial_of(record: &mut Cbor) {
    fn visit(node: &mut Cbor) {
        match node {
            Cbor::Map(members) => {
                if members.iter().any(|(k, _)| k.as_text() == Some("prompts")) {
                    members.push(("partial".into(), true.into()));
                }
                members.iter_mut().for_each(|(_, v)| visit(v));
            }
            Cbor::Array(items) => items.iter_mut().for_each(visit),
            _ => {}
        }
    }
    visit(record);
}

#[test]
fn each_attempt_is_decided_by_the_evidence_for_its_own_engine() {
    let (refusing, willing) = (Sink::with(|_| Reply::Status(503, Vec::new())), Sink::ok());
    let endpoints = Cbor::Map(vec![
        (
            refusing.endpoint().into(),
            cbor!({"prompts" => [{"tiers" => {"cpu" => 1}}]}).unwrap(),
        ),
        (
            willing.endpoint().into(),
            cbor!({"prompts" => [{"tiers" => {"cpu" => 16}}]}).unwrap(),
        ),
    ]);
    // Several requests, until one meets the refusing engine first.
    let ids: Vec<_> = (0..20).map(|n| format!("differs-{n}")).collect();
    let mut writer = Writer::default();
    for id in &ids {
        writer = writer.record(&evidence_key(id), &bytes(&record(id, now_ms(), &endpoints)));
    }
    let bootstrap = Placement::Upstream
        .bootstrap(&patient())
        .engines(&[&refusing, &willing])
        .in_turn();
    let envoy = Envoy::start(&writer.before(bootstrap));

    let filler = "x".repeat(100_000);
    let body =
        |params: &str| format!(r#"{{"kv_transfer_params":{{{params}}},"prompt":"{filler}"}}"#);
    let mut retried = 0;
    for id in &ids {
        let request =
            Request::post(CHAT, body(r#""max_load_tokens":7,"a":1"#)).header("x-request-id", id);
        assert_eq!(request.to(envoy.address()).status, 200);
        // Enough for the willing engine: the cap is gone, and nothing of the first attempt's edit is left.
        assert!(
            willing.by_id(id).body == body(r#""a":1"#).as_bytes(),
            "{id}: {:.80}",
            willing.by_id(id).text()
        );
        if let Some(first) = refusing
            .seen()
            .iter()
            .find(|s| s.header("x-request-id").as_deref() == Some(id))
        {
            assert!(
                first.body == body(r#""max_load_tokens":0,"a":1"#).as_bytes(),
                "{id}: {:.80}",
                first.text()
            );
            retried += 1;
        }
    }
    assert!(retried > 0, "no request met the refusing engine first");
    let decided = |labels: &str| envoy.custom("selective_kv_decisions_total", labels);
    assert_eq!(
        decided("direction=load,action=disable,reason=below_threshold"),
        retried
    );
    assert_eq!(
        decided("direction=load,action=enable,reason=admitted"),
        ids.len() as u64
    );
}

#[test]
fn foreign_queue_samples_close_the_gate_and_bad_ones_do_not() {
    let gate = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "10m", "maxSampleAge": "5m"}),
    );
    let now = now_ms();
    let at = |age: u64, waiting: f64| cbor!([now - age, waiting]).unwrap();
    let nan = |age: u64| cbor!([now - age, f64::NAN]).unwrap();
    let words = |age: u64| cbor!([now - age, "many"]).unwrap();
    let forty: Vec<_> = (0..40)
        .rev()
        .map(|n| at(n * 200, if n < 32 { 9.0 } else { 0.0 }))
        .collect();
    // Samples, is the gate closed, problem counted.
    let cases: [(&str, Vec<Cbor>, bool, Option<&str>); 7] = [
        ("pressure", vec![at(2000, 9.0), at(1000, 9.0)], true, None),
        (
            "no pressure",
            vec![at(2000, 1.0), at(1000, 2.5)],
            false,
            None,
        ),
        (
            "not numbers",
            vec![nan(3000), words(2000), at(1500, -4.0), at(1000, 9.0)],
            true,
            Some("invalid_sample"),
        ),
        (
            "unordered",
            vec![at(1000, 9.0), at(2000, 9.0)],
            false,
            Some("unordered_history"),
        ),
        (
            "from the future",
            vec![cbor!([now + 600_000, 9.0]).unwrap()],
            false,
            Some("future_sample"),
        ),
        ("only the newest 32", forty, true, None),
        ("old", vec![at(301_000, 9.0)], false, Some("stale_queue")),
    ];
    let engines: Vec<_> = cases.iter().map(|_| Sink::ok()).collect();
    // By key: endpoints that share a bucket share a record.
    let mut records: BTreeMap<String, Vec<(Cbor, Cbor)>> = BTreeMap::new();
    for (engine, (_, samples, _, _)) in engines.iter().zip(&cases) {
        let own = engine.endpoint();
        let entry = cbor!({"samples" => samples, "unknown" => [1, 2]}).unwrap();
        records
            .entry(queue_key(&own))
            .or_default()
            .push((own.as_str().into(), entry));
    }
    let mut writer = Writer::default();
    for (key, endpoints) in records {
        let record = cbor!({"v" => 1, "endpoints" => Cbor::Map(endpoints), "unknown" => "x"});
        writer = writer.record(&key, &bytes(&record.unwrap()));
    }
    // The test says where a request goes.
    let bootstrap = Placement::Downstream
        .bootstrap(&gate)
        .cluster("engines", |c| {
            *c = json!({
                "name": "engines",
                "type": "ORIGINAL_DST",
                "lb_policy": "CLUSTER_PROVIDED",
                "original_dst_lb_config": {"use_http_header": true, "http_header_name": "x-to"},
            });
        });
    let envoy = Envoy::start(&writer.before(bootstrap));
    for (engine, (what, _, closed, problem)) in engines.iter().zip(&cases) {
        let target = format!("{CHAT}?{}", engine.endpoint());
        let request = Request::post(&target, "{}").header(EVIDENCE, ENOUGH);

        request
            .header("x-to", engine.endpoint())
            .to(envoy.address());

        let reason = if *closed {
            "load=disable;reason=queue_pressure"
        } else {
            "load=enable;reason=admitted"
        };
        let logged = logged(&envoy, &target);
        assert!(logged.starts_with(reason), "{what}: {logged}");
        if let Some(kind) = problem {
            let kind = format!("kind={kind}");
            let counted = envoy.custom("selective_kv_queue_problems_total", &kind);
            assert!(counted >= 1, "{what}: {:#?}", envoy.stats("queue_problems"));
        }
    }
}

#[test]
fn an_endpoint_that_no_fresh_writer_lists_is_not_vetoed() {
    let gate = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "maxSampleAge": "5m"}),
    );
    let engine = Sink::ok();
    let own = engine.endpoint();
    let now = now_ms();
    let endpoints = Cbor::Map(vec![(
        own.as_str().into(),
        cbor!({"samples" => [[now, 9]]}).unwrap(),
    )]);
    let queue = bytes(&cbor!({"v" => 1, "endpoints" => endpoints}).unwrap());
    let members = |t: u64, listed: &str| {
        bytes(
            &cbor!({"v" => 1, "writers" => {"someone" => {"t" => t, "endpoints" => [listed]}}})
                .unwrap(),
        )
    };
    for (what, members, reason) in [
        ("listed", members(now, &own), "queue_pressure"),
        ("others only", members(now, "10.0.0.9:8000"), "admitted"),
        (
            "an old list",
            members(now_ms() - 61_000, "10.0.0.9:8000"),
            "queue_pressure",
        ),
        ("a broken list", b"\xff".to_vec(), "queue_pressure"),
    ] {
        let writer = Writer::default()
            .record(&queue_key(&own), &queue)
            .record("selective-kv/1/members", &members);
        let envoy = Envoy::start(
            &writer.before(Placement::Downstream.bootstrap(&gate).engines(&[&engine])),
        );
        Request::post(CHAT, "{}")
            .header(EVIDENCE, ENOUGH)
            .to(envoy.address());
        let logged = logged(&envoy, CHAT);
        assert!(
            logged.contains(&format!("reason={reason};")),
            "{what}: {logged}"
        );
    }
}
