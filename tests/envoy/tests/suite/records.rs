//! Records of shared data that examples/foreign-scorer wrote, which knows nothing of ours but the
//! document: well-formed, broken and hostile ones.

use std::time::{SystemTime, UNIX_EPOCH};

use ciborium::cbor;
use ciborium::value::Value as Cbor;
use envoy_tests::{Bootstrap, Envoy, Reply, Request, Response, Sink};
use serde_json::{Value, json};

use crate::support::{
    CHAT, ENOUGH, EVIDENCE, PLACEMENTS, Placement, TOO_FEW, WIRES, Wire, decision_and_endpoint,
    logged, threshold, with,
};

/// The writer's control paths.
struct Foreign<'a>(&'a Envoy);

impl Foreign<'_> {
    fn queue(&self, record: &Value) {
        self.written("queue", record);
    }

    fn evidence(&self, record: &Value) {
        self.written("evidence", record);
    }

    fn members(&self, record: &Value) {
        self.written("members", record);
    }

    fn written(&self, path: &str, record: &Value) {
        let request = Request::post(&format!("/foreign-scorer/{path}"), record.to_string());
        expect(204, &request.to(self.0.address()));
    }

    /// Any bytes under any key.
    fn raw(&self, key: &str, value: &[u8]) {
        let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
        let request = Request::post(&format!("/foreign-scorer/raw?key={key}"), hex);
        expect(204, &request.to(self.0.address()));
    }

    fn zeros(&self, key: &str, count: usize) {
        let request = Request::post(&format!("/foreign-scorer/raw?key={key}&zeros={count}"), "");
        expect(204, &request.to(self.0.address()));
    }
}

fn expect(status: u16, response: &Response) {
    assert_eq!(response.status, status, "{}", response.text());
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

fn bytes(record: Result<Cbor, ciborium::value::Error>) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(&record.expect("CBOR"), &mut bytes).expect("CBOR");
    bytes
}

/// The writer first, and room for its control requests.
fn bootstrap(placement: Placement, policy: &Value) -> Bootstrap {
    placement
        .bootstrap(policy)
        .foreign_scorer()
        .edit_at("/static_resources/listeners/0", |l| {
            l["per_connection_buffer_limit_bytes"] = json!(1_000_000)
        })
}

/// The test says where a request goes: to the endpoint in `x-to`.
fn told_where(bootstrap: Bootstrap) -> Bootstrap {
    bootstrap.cluster("engines", |c| {
        *c = json!({
            "name": "engines",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": true, "http_header_name": "x-to"},
        });
    })
}

#[test]
fn evidence_counts_as_its_rules_say() {
    let tiers = |tiers: Value| json!([{ "tiers": tiers }]);
    let runs = |runs: Value| json!([{ "runs": runs }]);
    let enough = || {
        runs(json!([
            [4, ["gpu"]],
            [10, ["cpu"]],
            [6, ["STORAGE", "cpu"]]
        ]))
    };
    // Request id, prompts, what else the record says, decision.
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, Value, &str)> = vec![
        ("runs", enough(), json!({}), "load=enable;reason=admitted;offload=preserve;tokens=1024"),
        ("a hole", runs(json!([[4, ["gpu"]], [1, ["cpu"]], [1, []], [40, ["cpu"]]])), json!({}),
            "load=disable;reason=below_threshold;offload=preserve;tokens=64"),
        ("tiers", tiers(json!({"gpu": 4, "CPU": 20, "speculative": 99})), json!({}), "load=enable;reason=admitted;offload=preserve;tokens=1024"),
        ("two prompts", json!([{"tiers": {"gpu": 10, "cpu": 20}}, {"tiers": {"storage": 20}}]), json!({}),
            "load=enable;reason=admitted;offload=preserve;tokens=1920"),
        ("partial", tiers(json!({"cpu": 1})), json!({"partial": true}), "load=preserve;reason=partial_evidence;offload=preserve;tokens=64"),
        ("old", enough(), json!({"ago": 31_000}), "load=preserve;reason=stale_evidence;offload=preserve;tokens=1024"),
        ("of the future", enough(), json!({"ago": -60_000}), "load=preserve;reason=stale_evidence;offload=preserve;tokens=1024"),
        ("for another endpoint", enough(), json!({"endpoint": "10.0.0.9:8000"}), "load=preserve;reason=no_evidence;offload=preserve"),
        ("for another request", enough(), json!({"id": "someone else"}), "load=preserve;reason=no_evidence;offload=preserve"),
    ];
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = Envoy::start(&bootstrap(placement, &threshold()).engines(&[&engine]));
        for (number, (id, prompts, more, decision)) in cases.iter().enumerate() {
            let endpoint = more["endpoint"]
                .as_str()
                .map_or_else(|| engine.endpoint(), str::to_owned);
            let partial = more["partial"].as_bool().unwrap_or(false);
            let mut record = json!({
                "id": more["id"].as_str().unwrap_or(id),
                "block_size": 64,
                "ago": more["ago"].as_i64().unwrap_or(0),
                "endpoints": {},
            });
            record["endpoints"][&endpoint] = json!({"prompts": prompts, "partial": partial});
            Foreign(&envoy).evidence(&record);

            let target = format!("{CHAT}?{number}");
            expect(
                200,
                &Request::post(&target, "{}")
                    .header("x-request-id", id)
                    .to(envoy.address()),
            );

            let expected = ((*decision).to_owned(), engine.endpoint());
            assert_eq!(
                decision_and_endpoint(&envoy, &target),
                expected,
                "{placement:?}: {id}"
            );
        }
        // Evidence by header, where there is one, wins.
        let target = format!("{CHAT}?header");
        let request = Request::post(&target, "{}")
            .header("x-request-id", "runs")
            .header(EVIDENCE, TOO_FEW);
        request.to(envoy.address());
        assert!(logged(&envoy, &target).starts_with("load=disable;reason=below_threshold"));
    }
}

#[test]
fn broken_records_count_as_none_or_as_invalid_and_are_counted() {
    let engine = Sink::ok();
    let envoy = Envoy::start(&bootstrap(Placement::Downstream, &threshold()).engines(&[&engine]));
    let foreign = Foreign(&envoy);
    let own = engine.endpoint();
    // One request's evidence with whatever prompts.
    let record = |id: &str, block_size: i64, prompts: Cbor| {
        let endpoints = Cbor::Map(vec![(
            own.as_str().into(),
            cbor!({"prompts" => prompts}).unwrap(),
        )]);
        bytes(
            cbor!({"v" => 1, "requests" => [{"id" => id, "t" => now_ms(), "block_size" => block_size, "endpoints" => endpoints}]}),
        )
    };
    let fine = || cbor!([{"tiers" => {"cpu" => 20}}]).unwrap();
    let invalid = "load=preserve;reason=invalid_evidence;offload=preserve";
    let none = "load=preserve;reason=no_evidence;offload=preserve";
    #[rustfmt::skip]
    let cases: Vec<(&str, Vec<u8>, &str, Option<&str>)> = vec![
        ("fine", record("fine", 64, fine()), "load=enable;reason=admitted;offload=preserve;tokens=1280", None),
        ("negative", record("negative", 64, cbor!([{"runs" => [[-1, ["cpu"]]]}]).unwrap()), invalid, Some("invalid_count")),
        ("a float", record("a float", 64, cbor!([{"tiers" => {"cpu" => 4.0}}]).unwrap()), invalid, Some("invalid_count")),
        ("block size 0", record("block size 0", 0, fine()), invalid, Some("invalid_block_size")),
        ("no prompts", record("no prompts", 64, cbor!([]).unwrap()), none, Some("no_prompts")),
        ("another version", bytes(cbor!({"v" => 2, "requests" => []})), none, Some("malformed_version")),
        ("no map", bytes(cbor!([1, 2])), none, Some("malformed_shape")),
        ("no CBOR", b"\xff\xff\xff".to_vec(), none, Some("malformed_cbor")),
        ("cut", record("cut", 64, fine())[..60].to_vec(), none, Some("malformed_cbor")),
        ("deep", [vec![0x81; 200_000], vec![0]].concat(), none, Some("malformed_cbor")),
        ("empty", Vec::new(), none, None),
    ];
    for (number, (id, value, decision, kind)) in cases.iter().enumerate() {
        foreign.raw(&evidence_key(id), value);
        broken(&envoy, &format!("{CHAT}?{number}"), id, decision, *kind);
    }
    foreign.zeros(&evidence_key("too large"), 262_145);
    broken(
        &envoy,
        &format!("{CHAT}?large"),
        "too large",
        none,
        Some("malformed_too_large"),
    );
}

/// A request is decided as said, and the problem counted once.
fn broken(envoy: &Envoy, target: &str, id: &str, decision: &str, kind: Option<&str>) {
    let problems = || envoy.stats("selective_kv_evidence_problems_total");
    let before = problems();
    expect(
        200,
        &Request::post(target, "{}")
            .header("x-request-id", id)
            .to(envoy.address()),
    );
    assert_eq!(decision_and_endpoint(envoy, target).0, decision, "{id}");
    let mut counted = problems();
    for (name, value) in before {
        counted.entry(name).and_modify(|v| *v -= value);
    }
    counted.retain(|_, v| *v > 0);
    let expected = kind.map(|kind| {
        let labels = format!("kind={kind}");
        (
            envoy_tests::envoy::stat_name("selective_kv_evidence_problems_total", &labels),
            1,
        )
    });
    assert_eq!(counted, expected.into_iter().collect(), "{id}");
}

#[test]
fn each_attempt_is_decided_by_the_evidence_for_its_own_engine() {
    let (refusing, willing) = (Sink::with(|_| Reply::Status(503, Vec::new())), Sink::ok());
    let bootstrap = bootstrap(Placement::Upstream, &threshold()).engines(&[&refusing, &willing]);
    let envoy = Envoy::start(&bootstrap.in_turn());
    let mut evidence = json!({"block_size": 64, "endpoints": {}});
    evidence["endpoints"][refusing.endpoint()] = json!({"prompts": [{"tiers": {"cpu": 1}}]});
    evidence["endpoints"][willing.endpoint()] = json!({"prompts": [{"tiers": {"cpu": 16}}]});

    let filler = "x".repeat(100_000);
    let body =
        |params: &str| format!(r#"{{"kv_transfer_params":{{{params}}},"prompt":"{filler}"}}"#);
    let mut retried = 0;
    for number in 0..6 {
        let id = format!("differs-{number}");
        // The writer's other way: with the request that the evidence is for.
        let request = Request::post(CHAT, body(r#""max_load_tokens":7,"a":1"#))
            .header("x-request-id", &id)
            .header("x-foreign-evidence", evidence.to_string());

        expect(200, &request.to(envoy.address()));

        // Enough for the willing engine: the cap is gone, and nothing of the first attempt's edit is left.
        assert!(
            willing.by_id(&id).body == body(r#""a":1"#).as_bytes(),
            "{:.80}",
            willing.by_id(&id).text()
        );
        let first = refusing
            .seen()
            .into_iter()
            .find(|s| s.header("x-request-id").as_deref() == Some(&id));
        if let Some(first) = first {
            assert!(
                first.body == body(r#""max_load_tokens":0,"a":1"#).as_bytes(),
                "{:.80}",
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
    assert_eq!(decided("direction=load,action=enable,reason=admitted"), 6);
}

/// docs/shared-data.md, "Write in time": before the chunk with the closing brace passes, which over
/// HTTP/1.1 is before the end of the stream.
#[test]
fn evidence_counts_if_it_is_written_before_the_closing_brace_passes() {
    let admitted = "load=enable;reason=admitted;offload=preserve;tokens=1280";
    let late = "load=preserve;reason=no_evidence;offload=preserve";
    let body = br#"{"kv_transfer_params":{"max_load_tokens":7},"prompt":"x"}"#;
    let (any, http1): (&[Wire], _) = (&WIRES, &[Wire::Length, Wire::Chunked]);
    let (both, downstream): (&[Placement], _) = (&PLACEMENTS, &[Placement::Downstream]);
    // When it is written, on which wires, in which placements, decision.
    let cases = [
        (None, any, both, admitted),
        (Some("body"), any, both, admitted),
        (Some("end"), http1, downstream, late),
    ];
    for placement in PLACEMENTS {
        let engine = Sink::ok();
        let envoy = Envoy::start(&bootstrap(placement, &threshold()).engines(&[&engine]));
        let mut evidence = json!({"block_size": 64, "endpoints": {}});
        evidence["endpoints"][engine.endpoint()] = json!({"prompts": [{"tiers": {"cpu": 20}}]});
        for (at, wires, placements, decision) in cases {
            for wire in wires.iter().filter(|_| placements.contains(&placement)) {
                let what = format!("{wire:?}-{}", at.unwrap_or("headers"));
                let target = format!("{CHAT}?{what}");
                let mut request = wire
                    .post(&target, body)
                    .header("x-request-id", &what)
                    .header("x-foreign-evidence", evidence.to_string());
                if let Some(at) = at {
                    request = request.header("x-foreign-evidence-at", at);
                }

                assert_eq!(
                    wire.exchange(&request, &envoy),
                    200,
                    "{placement:?}: {what}"
                );

                let decided = decision_and_endpoint(&envoy, &target).0;
                assert_eq!(decided, decision, "{placement:?}: {what}");
            }
        }
    }
}

#[test]
fn two_workers_share_one_gate_of_foreign_samples() {
    let gate = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "1s"}),
    );
    let engine = Sink::ok();
    let envoy = Envoy::with_workers(
        &bootstrap(Placement::Downstream, &gate).engines(&[&engine]),
        2,
    );
    let foreign = Foreign(&envoy);
    let mut number = 0;
    // Each on a connection of its own: over both workers soon.
    let mut all = |reason: &str| {
        for _ in 0..12 {
            number += 1;
            let target = format!("{CHAT}?{number}");
            Request::post(&target, "{}")
                .header(EVIDENCE, ENOUGH)
                .to(envoy.address());
            let logged = logged(&envoy, &target);
            assert!(logged.contains(&format!("reason={reason};")), "{logged}");
        }
    };

    all("admitted");
    // The vector of the design: 8 closes a gate of 8.
    let sample = |ago: u64, waiting: f64| json!({"endpoint": engine.endpoint(), "samples": [{"ago": ago, "waiting": waiting}]});
    foreign.queue(&sample(3_000, 8.0));
    all("queue_pressure");
    // One half-life later 4 is left, which is where it opens.
    foreign.queue(&sample(2_000, 0.0));
    all("admitted");
    assert_eq!(
        envoy.custom("selective_kv_gate_transitions_total", "to=closed"),
        1
    );
    assert_eq!(
        envoy.custom("selective_kv_gate_transitions_total", "to=open"),
        1
    );
}

#[test]
fn foreign_queue_samples_close_the_gate_and_bad_ones_do_not() {
    let gate = json!({"maxWaitingRequests": 8, "ewmaHalfLife": "10m", "maxSampleAge": "5m"});
    let envoy = Envoy::start(&told_where(bootstrap(
        Placement::Downstream,
        &with(threshold(), gate),
    )));
    let now = now_ms();
    let at = |age: u64, waiting: f64| cbor!([now - age, waiting]).unwrap();
    let forty: Vec<_> = (0..40)
        .rev()
        .map(|n| at(n * 200, if n < 32 { 9.0 } else { 0.0 }))
        .collect();
    let text = cbor!([now - 2000, "many"]).unwrap();
    let future = cbor!([now + 600_000, 9.0]).unwrap();
    // Samples, is the gate closed, problem counted.
    #[rustfmt::skip]
    let cases: [(&str, Vec<Cbor>, bool, Option<&str>); 7] = [
        ("pressure", vec![at(2000, 9.0), at(1000, 9.0)], true, None),
        ("no pressure", vec![at(2000, 1.0), at(1000, 2.5)], false, None),
        ("no numbers", vec![at(3000, f64::NAN), text, at(1500, -4.0), at(1000, 9.0)], true, Some("invalid_sample")),
        ("unordered", vec![at(1000, 9.0), at(2000, 9.0)], false, Some("unordered_history")),
        ("from the future", vec![future], false, Some("future_sample")),
        ("the newest 32 count", forty, true, None),
        ("old", vec![at(301_000, 9.0)], false, Some("stale_queue")),
    ];
    for (what, samples, closed, problem) in cases {
        let engine = Sink::ok();
        let own = engine.endpoint();
        let entry = cbor!({"samples" => samples, "unknown" => [1, 2]}).unwrap();
        let endpoints = Cbor::Map(vec![(own.as_str().into(), entry)]);
        let record = bytes(cbor!({"v" => 1, "endpoints" => endpoints, "unknown" => "x"}));
        Foreign(&envoy).raw(&queue_key(&own), &record);

        let target = format!("{CHAT}?{own}");
        Request::post(&target, "{}")
            .header(EVIDENCE, ENOUGH)
            .header("x-to", &own)
            .to(envoy.address());

        let reason = if closed {
            "load=disable;reason=queue_pressure"
        } else {
            "load=enable;reason=admitted"
        };
        let logged = logged(&envoy, &target);
        assert!(logged.starts_with(reason), "{what}: {logged}");
        if let Some(kind) = problem {
            let counted =
                envoy.custom("selective_kv_queue_problems_total", &format!("kind={kind}"));
            assert!(counted >= 1, "{what}: {:#?}", envoy.stats("queue_problems"));
        }
    }
}

#[test]
fn an_endpoint_that_no_fresh_writer_lists_is_not_vetoed() {
    let gate = json!({"maxWaitingRequests": 8, "ewmaHalfLife": "10m", "maxSampleAge": "5m"});
    let envoy = Envoy::start(&told_where(bootstrap(
        Placement::Downstream,
        &with(threshold(), gate),
    )));
    let foreign = Foreign(&envoy);
    let listed = |endpoint: &str, ago: u64| json!({"writer": "foreign", "endpoints": [endpoint], "ago": ago});
    // An engine of its own each: what is forgotten does not come back.
    for (what, list, other, reason) in [
        ("without lists", None, None, "queue_pressure"),
        ("listed", Some(0), None, "queue_pressure"),
        ("others only", None, Some(0), "admitted"),
        (
            "an old list of others",
            None,
            Some(61_000),
            "queue_pressure",
        ),
        ("a broken list", None, None, "queue_pressure"),
    ] {
        let engine = Sink::ok();
        let own = engine.endpoint();
        foreign.queue(&json!({"endpoint": own, "samples": [{"ago": 0, "waiting": 9}]}));
        if let Some(ago) = list {
            foreign.members(&listed(&own, ago));
        }
        if let Some(ago) = other {
            foreign.members(&listed("10.0.0.9:8000", ago));
        }
        if what.contains("broken") {
            foreign.raw("selective-kv/1/members", b"\xff");
        }
        let target = format!("{CHAT}?{own}");
        Request::post(&target, "{}")
            .header(EVIDENCE, ENOUGH)
            .header("x-to", &own)
            .to(envoy.address());
        let logged = logged(&envoy, &target);
        assert!(
            logged.contains(&format!("reason={reason};")),
            "{what}: {logged}"
        );
    }
}

#[test]
fn a_foreign_writer_and_our_scorer_keep_each_others_records() {
    use crate::engine::Engine;
    // The foreign writer's engine, and the scorer's.
    let (theirs, ours) = (Sink::ok(), Engine::waiting(20));
    let policy = with(
        threshold(),
        json!({"maxWaitingRequests": 8, "ewmaHalfLife": "10m", "maxSampleAge": "5m"}),
    );
    let scorer = json!({"endpoints": [ours.endpoint()], "scrape": {"cluster": "kv-scrape"}, "interval": "200ms"});
    let shipped = Bootstrap::shipped("downstream.yaml")
        .policy(&policy)
        .scorer(&scorer)
        .foreign_scorer();
    let envoy = Envoy::start(&told_where(shipped));
    let foreign = Foreign(&envoy);
    ours.await_polls(2);
    foreign.queue(&json!({"endpoint": theirs.endpoint(), "samples": [{"ago": 0, "waiting": 9}]}));
    foreign.members(&json!({"writer": "foreign", "endpoints": [theirs.endpoint()], "ago": 0}));
    // Both write over the same members record.
    ours.await_polls(8);

    for own in [theirs.endpoint(), ours.endpoint()] {
        let target = format!("{CHAT}?{own}");
        Request::post(&target, "{}")
            .header(EVIDENCE, ENOUGH)
            .header("x-to", &own)
            .to(envoy.address());
        let logged = logged(&envoy, &target);
        assert!(logged.contains("reason=queue_pressure;"), "{own}: {logged}");
    }
}
