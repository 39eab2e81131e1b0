//! Offloads against what storing costs the engine, by the counters that the scorer polls; and a
//! composite, which names the first that refuses.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use envoy_tests::wait::PATIENCE;
use envoy_tests::{Bootstrap, Envoy, Request, until};
use serde_json::{Value, json};
use stand_in_engine::{Engine, Options, Stored};

use super::{HELD, body};
use crate::support::{COMPLETIONS, EVIDENCE, logged, named_routes, threshold, with};

const MIB: f64 = 1_048_576.0;
const PROMPT: &str = r#"{"model":"tiny","prompt":"a","max_tokens":1}"#;
const STOPPED: &str =
    r#"{"model":"tiny","prompt":"a","max_tokens":1,"kv_transfer_params":{"max_offload_tokens":0}}"#;

/// An engine whose store counters are the test's.
struct Storing {
    engine: Engine,
    stores: BTreeMap<String, Stored>,
}

impl Storing {
    fn start() -> Self {
        let options = Options {
            learn: false,
            ..Options::default()
        };
        let storing = Self {
            engine: Engine::start(options).expect("an engine"),
            stores: BTreeMap::new(),
        };
        storing.engine.set_stores(Some(BTreeMap::new()));
        storing
    }

    /// A MiB more in each of these tiers, at seconds per MiB; and polls that have seen it.
    fn store(&mut self, costs: &[(&str, f64)]) {
        for (tier, cost) in costs {
            let stored = self.stores.entry((*tier).to_owned()).or_default();
            stored.bytes += MIB;
            stored.seconds += cost;
        }
        self.engine.set_stores(Some(self.stores.clone()));
        self.await_polls();
    }

    /// One may have begun before, and two have not.
    fn await_polls(&self) {
        let polls = || self.engine.polls().get("/metrics").copied().unwrap_or(0);
        let before = polls();
        until("two more polls", || (polls() >= before + 2).then_some(()));
    }

    fn envoy(&self, file: &str, policy: &Value, routes: &[&str]) -> Envoy {
        let scorer = json!({
            "endpoints": [self.engine.address().to_string()],
            "scrape": {"cluster": "kv-scrape"},
            "interval": "200ms",
        });
        let bootstrap = Bootstrap::shipped(file)
            .policy(policy)
            .scorer(&scorer)
            .hosts("engines", &[self.engine.address()])
            .routes(&named_routes(routes));
        Envoy::start(&bootstrap)
    }

    /// What reaches the engine of one request, and whether the engine would store.
    fn sent(&self, envoy: &Envoy, target: &str) -> String {
        self.engine.clear_records();
        let response = Request::post(target, PROMPT).to(envoy.address());
        assert_eq!(response.status, 200, "{}", response.text());
        let records = self.engine.wait_answered(1, PATIENCE);
        let records = records.expect("an answered request");
        let arrived = String::from_utf8(records[0].body.to_vec()).expect("text");
        let params = &records[0].work.as_ref().expect("work").params;
        let cap = (arrived == STOPPED).then_some(0);
        assert_eq!(params.max_offload_tokens, cap, "{arrived}");
        arrived
    }

    fn gauge(&self, envoy: &Envoy, name: &str, tier: &str) -> u64 {
        let labels = format!("endpoint={},tier={tier}", self.engine.address());
        envoy.custom(name, &labels)
    }
}

const ACTIVE: &str = "selective_kv_backpressure_active";
const COST: &str = "selective_kv_store_cost_micros_per_mib";

fn refusals(envoy: &Envoy, tier: &str) -> u64 {
    let labels = format!("direction=offload,policy=cascade_backpressure,tier={tier}");
    envoy.custom("selective_kv_admission_refusals_total", &labels)
}

#[test]
fn offloads_stop_while_a_tier_is_slow_and_go_on_with_the_first_fast_store() {
    // Each completion is the average.
    let policy = json!({
        "offloadPolicy": "backpressure",
        "admission": {"type": "cascade_backpressure", "alpha": 1, "warmupCompletions": 1},
    });
    for file in ["downstream.yaml", "upstream.yaml"] {
        let mut storing = Storing::start();
        let envoy = storing.envoy(file, &policy, &[]);
        let endpoint = storing.engine.address().to_string();
        let target = |name: &str| format!("{COMPLETIONS}?{name}");
        // No signal: an engine without store counters, then one that has stored nothing yet.
        storing.await_polls();
        assert_eq!(storing.sent(&envoy, &target("none")), PROMPT, "{file}");
        let nothing = Stored::default();
        for tier in ["cpu", "1:fs", "2:obj"] {
            storing.stores.insert(tier.to_owned(), nothing);
        }
        storing.store(&[]);
        assert_eq!(storing.sent(&envoy, &target("idle")), PROMPT, "{file}");
        // Too slow for a local tier, but not for an object store.
        let fast = [("cpu", 0.001), ("1:fs", 0.009), ("2:obj", 0.02)];
        storing.store(&fast);
        until("the cost of the object store", || {
            (storing.gauge(&envoy, COST, "obj") == 20_000).then_some(())
        });
        assert_eq!(storing.gauge(&envoy, COST, "fs"), 9_000, "{file}");
        assert_eq!(storing.sent(&envoy, &target("fast")), PROMPT, "{file}");

        storing.store(&[("cpu", 0.001), ("1:fs", 0.5), ("2:obj", 0.02)]);
        until("backpressure", || {
            (storing.gauge(&envoy, ACTIVE, "fs") == 1).then_some(())
        });
        for n in 1..=2 {
            let slow = target(&format!("slow-{n}"));
            assert_eq!(storing.sent(&envoy, &slow), STOPPED, "{file}");
            assert_eq!(
                logged(&envoy, &slow),
                format!(
                    "load=preserve;reason=policy;offload=disable;offload_reason=cascade_backpressure;tier=fs;endpoint={endpoint}"
                )
            );
        }
        for (tier, active, refused) in [("cpu", 0, 0), ("fs", 1, 2), ("obj", 0, 0)] {
            assert_eq!(storing.gauge(&envoy, ACTIVE, tier), active, "{file} {tier}");
            assert_eq!(refusals(&envoy, tier), refused, "{file} {tier}");
        }

        // Strictly below the low water opens; by idleness alone it would take 16 s.
        storing.store(&[("1:fs", 0.0015)]);
        until("no backpressure", || {
            (storing.gauge(&envoy, ACTIVE, "fs") == 0).then_some(())
        });
        assert_eq!(storing.sent(&envoy, &target("again")), PROMPT, "{file}");
        assert_eq!(
            logged(&envoy, &target("again")),
            format!("load=preserve;reason=policy;offload=preserve;endpoint={endpoint}")
        );
        assert_eq!(refusals(&envoy, "fs"), 2, "{file}");
        let offloads = |action: &str, reason: &str| {
            let labels = format!("direction=offload,action={action},reason={reason}");
            envoy.custom("selective_kv_decisions_total", &labels)
        };
        assert_eq!(
            (
                offloads("disable", "cascade_backpressure"),
                offloads("preserve", "policy")
            ),
            (2, 4),
            "{file}"
        );
    }
}

#[test]
fn a_tier_that_stores_nothing_under_pressure_is_tried_again() {
    // As configured without a word: three completions warm up.
    let policy = json!({
        "offloadPolicy": "backpressure",
        "admission": {"type": "cascade_backpressure"},
    });
    let mut storing = Storing::start();
    let envoy = storing.envoy("downstream.yaml", &policy, &[]);
    storing.stores.insert("cpu".to_owned(), Stored::default());
    storing.store(&[]);
    for warming_up in 1..=2 {
        storing.store(&[("cpu", 0.0125)]);
        assert_eq!(storing.sent(&envoy, COMPLETIONS), PROMPT, "{warming_up}");
        assert_eq!(storing.gauge(&envoy, COST, "cpu"), 0);
    }
    let last = Instant::now();
    storing.store(&[("cpu", 0.0125)]);
    until("offloads stop", || {
        (storing.sent(&envoy, COMPLETIONS) == STOPPED).then_some(())
    });
    until("offloads go on", || {
        (storing.sent(&envoy, COMPLETIONS) == PROMPT).then_some(())
    });
    // From 0.0125 to 0.002, halved every two seconds: 5.3 s.
    let took = last.elapsed();
    assert!(took >= Duration::from_secs(5), "{took:?}");
    assert!(refusals(&envoy, "cpu") >= 1);
    until("no backpressure", || {
        (storing.gauge(&envoy, ACTIVE, "cpu") == 0).then_some(())
    });
}

#[test]
fn a_composite_names_the_first_that_refuses() {
    let cascade = |high: f64| json!({"type": "cascade_backpressure", "highWater": high, "alpha": 1, "warmupCompletions": 1});
    // One refuses for the second tier alone, the other for the first already.
    let (lax, strict) = (cascade(0.01), cascade(0.000_001));
    let one_load = json!({"type": "promotion_concurrency", "maxInflightPromotions": 1});
    let composite = |policies: Value| json!({"type": "composite", "policies": policies});
    let route = |name: &str, policies: Value| {
        json!({
            "match": {"routeName": name},
            "offloadPolicy": "backpressure",
            "admission": composite(policies),
        })
    };
    let nested = composite(json!([strict, one_load]));
    let routes = json!([
        route("lax", json!([one_load, lax, strict])),
        route("strict", json!([{"type": "always_admit"}, nested, lax])),
    ]);
    let policy = with(threshold(), json!({"routes": routes}));
    let mut storing = Storing::start();
    let envoy = storing.envoy("downstream.yaml", &policy, &["lax", "strict"]);
    let endpoint = storing.engine.address().to_string();
    let nothing = Stored::default();
    for tier in ["cpu", "1:fs"] {
        storing.stores.insert(tier.to_owned(), nothing);
    }
    storing.store(&[]);
    let send = |route: &str, n: u32| {
        let target = format!("{COMPLETIONS}?{route}-{n}");
        let request = Request::post(&target, body(false))
            .header("x-route", route)
            .header(EVIDENCE, HELD);
        let address = envoy.address();
        (target, move || request.to(address).status)
    };
    let decision = |route: &str, n: u32| {
        let (target, send) = send(route, n);
        assert_eq!(send(), 200);
        logged(&envoy, &target)
    };
    let admitted =
        format!("load=enable;reason=admitted;offload=preserve;tokens=1024;endpoint={endpoint}");
    assert_eq!(decision("lax", 1), admitted);
    assert_eq!(decision("strict", 1), admitted);

    // So far above the waters that idleness brings neither back during this test.
    storing.store(&[("cpu", 0.009), ("1:fs", 5.0)]);
    until("backpressure for both tiers", || {
        let active = |tier| storing.gauge(&envoy, ACTIVE, tier);
        (active("cpu") == 1 && active("fs") == 1).then_some(())
    });
    // Its only load is in flight.
    storing.engine.set_latency(Duration::from_secs(4));
    storing.engine.clear_records();
    let (_, slow) = send("lax", 2);
    let slow = thread::spawn(slow);
    until("the slow request is served", || {
        let records = storing.engine.records();
        records.first()?.work.as_ref().map(|_| ())
    });
    storing.engine.set_latency(Duration::ZERO);
    for (route, tier) in [("lax", "fs"), ("strict", "cpu")] {
        assert_eq!(
            decision(route, 3),
            format!(
                "load=disable;reason=promotion_concurrency;offload=disable;offload_reason=cascade_backpressure;\
                 tier={tier};tokens=1024;endpoint={endpoint}"
            )
        );
    }
    assert_eq!(slow.join().expect("a client"), 200);
    let loads = "direction=load,policy=promotion_concurrency,tier=-";
    assert_eq!(
        envoy.custom("selective_kv_admission_refusals_total", loads),
        2
    );
    // The slow one was refused its offload, too.
    assert_eq!((refusals(&envoy, "fs"), refusals(&envoy, "cpu")), (2, 1));
}
