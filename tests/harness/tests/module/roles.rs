//! Both roles over one store: the scorer polls, the policy decides, on several workers.

use crate::records::{MEMBERS_KEY, decode, member, queue_key};
use crate::rig::{CAPPED, CHAT, ENDPOINT, OTHER, counts, labels, post};
use ciborium::Value;
use skv_harness::{Answer, Chain, Fault, Harness, Placement, Plugin, Vm};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const POLICY: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
    "maxWaitingRequests":8,"evidenceHeader":"x-evidence"}"#;
const EVIDENCE: &str = r#"{"block_size":64,"tiers":{"cpu":20}}"#;

fn scorer(name: &str, endpoints: &[&str]) -> String {
    format!(
        r#"{{"name":"{name}","endpoints":{endpoints:?},"scrape":{{"cluster":"kv-scrape"}},
            "failuresToRemove":2}}"#
    )
}

/// Engines by address with their waiting requests; one that is not in the map is down.
#[derive(Clone, Default)]
struct Engines(Rc<RefCell<BTreeMap<String, f64>>>);

impl Engines {
    fn behind(env: &Harness) -> Self {
        let engines = Self::default();
        let served = engines.clone();
        env.respond(move |call| {
            let address = call.headers.text("x-envoy-original-dst-host")?;
            let waiting = *served.0.borrow().get(address.as_ref())?;
            Some(match call.headers.text(":path").as_deref() {
                Some("/metrics") => {
                    let page = format!(
                        "# HELP vllm:num_requests_waiting x\n\
                         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}\n"
                    );
                    Answer::new(200, page)
                }
                _ => Answer::new(200, r#"{"version":"0.32.0"}"#),
            })
        });
        engines
    }

    fn set(&self, address: &str, waiting: f64) {
        self.0.borrow_mut().insert(address.to_owned(), waiting);
    }

    fn kill(&self, address: &str) {
        self.0.borrow_mut().remove(address);
    }
}

/// A worker with both roles.
fn worker(env: &Harness, scorer: &str) -> (Vm, Plugin, Plugin) {
    let vm = env.vm("");
    let scorer = vm.plugin("kv-scorer", scorer);
    let policy = vm.plugin("selective-kv", POLICY);
    (vm, scorer, policy)
}

fn reason(policy: &Plugin, endpoint: &str) -> String {
    let request = post(CHAT).upstream(endpoint).header("x-evidence", EVIDENCE);
    let out = policy.send(request, CAPPED);
    let state = out.state("selective_kv.decision").unwrap_or_default();
    let reason = state
        .split(';')
        .find_map(|part| part.strip_prefix("reason="));
    reason.unwrap_or_default().to_owned()
}

/// The endpoints each writer lists.
fn members(env: &Harness) -> BTreeMap<String, Vec<String>> {
    let Some((bytes, _)) = env.shared("", MEMBERS_KEY) else {
        return BTreeMap::new();
    };
    let record = decode(&bytes);
    let writers = member(&record, "writers").and_then(Value::as_map);
    let text = |value: &Value| value.as_text().expect("text").to_owned();
    writers
        .expect("writers")
        .iter()
        .map(|(name, entry)| {
            let listed = member(entry, "endpoints").and_then(Value::as_array);
            let mut listed: Vec<String> = listed.expect("endpoints").iter().map(text).collect();
            listed.sort();
            (text(name), listed)
        })
        .collect()
}

#[test]
fn a_queue_that_builds_up_and_eases_closes_and_opens_the_gate_on_every_worker() {
    let env = Harness::new();
    let engines = Engines::behind(&env);
    engines.set(ENDPOINT, 0.0);
    let config = scorer("pool", &[ENDPOINT]);
    let (_, _, one) = worker(&env, &config);
    let (_, _, two) = worker(&env, &config);
    env.run_ms(2_000);
    assert_eq!(
        [reason(&one, ENDPOINT), reason(&two, ENDPOINT)],
        ["admitted", "admitted"]
    );
    engines.set(ENDPOINT, 40.0);
    // Half-life 2 s: after two polls the average is over 8.
    env.run_ms(2_100);
    assert_eq!(
        [reason(&one, ENDPOINT), reason(&two, ENDPOINT)],
        ["queue_pressure", "queue_pressure"]
    );
    engines.set(ENDPOINT, 0.0);
    env.run_ms(2_000);
    assert_eq!(reason(&two, ENDPOINT), "queue_pressure");
    env.run_ms(8_000);
    assert_eq!(
        [reason(&one, ENDPOINT), reason(&two, ENDPOINT)],
        ["admitted", "admitted"]
    );
    assert_eq!(
        labels(&env, "selective_kv_gate_transitions_total."),
        counts([("closed", 1), ("open", 1)])
    );
    assert_eq!(
        labels(&env, "selective_kv_queue_problems_total."),
        counts([])
    );
    assert_eq!(
        labels(&env, "selective_kv_scorer_problems_total."),
        counts([])
    );
}

#[test]
fn the_records_are_those_of_the_contract() {
    let env = Harness::new();
    let engines = Engines::behind(&env);
    engines.set(ENDPOINT, 3.0);
    worker(&env, &scorer("pool", &[ENDPOINT]));
    let start = env.now_ms();
    env.run_ms(40_000);
    let (bytes, _) = env
        .shared("", &queue_key(ENDPOINT))
        .expect("a queue record");
    let record = decode(&bytes);
    assert_eq!(member(&record, "v"), Some(&1.into()));
    let entry = member(&record, "endpoints").and_then(|e| member(e, ENDPOINT));
    let entry = entry.expect("the endpoint");
    assert_eq!(
        member(entry, "engine").and_then(Value::as_text),
        Some("vllm")
    );
    assert_eq!(
        member(entry, "version").and_then(Value::as_text),
        Some("0.32.0")
    );
    let samples = member(entry, "samples")
        .and_then(Value::as_array)
        .expect("samples");
    assert_eq!(samples.len(), 32);
    let mut before = start;
    for sample in samples {
        let [t, waiting] = sample.as_array().expect("a pair").as_slice() else {
            panic!("{sample:?}");
        };
        let t: u64 = t.as_integer().expect("ms").try_into().expect("unsigned");
        assert!(t >= before + 200 && t <= env.now_ms(), "{t}");
        before = t;
        // A whole number or a float of that value.
        assert!([3.into(), 3.0.into()].contains(waiting), "{waiting:?}");
    }
    assert!(env.now_ms() - before <= 1_000);
}

#[test]
fn two_scorers_with_disjoint_pools_work_side_by_side() {
    let env = Harness::new();
    let engines = Engines::behind(&env);
    engines.set(ENDPOINT, 20.0);
    engines.set(OTHER, 1.0);
    let vm = env.vm("");
    vm.plugin("kv-scorer", scorer("a", &[ENDPOINT]));
    vm.plugin("kv-scorer", scorer("b", &[OTHER]));
    let policy = vm.plugin("selective-kv", POLICY);
    env.run_ms(3_000);
    let one = |endpoint: &str| vec![endpoint.to_owned()];
    let expected = [
        ("a".to_owned(), one(ENDPOINT)),
        ("b".to_owned(), one(OTHER)),
    ];
    assert_eq!(members(&env), BTreeMap::from(expected));
    assert_eq!(reason(&policy, ENDPOINT), "queue_pressure");
    assert_eq!(reason(&policy, OTHER), "admitted");
    // Nobody lists a third: it is not vetoed.
    assert_eq!(reason(&policy, "10.0.0.9:8000"), "admitted");
}

#[test]
fn an_engine_that_fails_its_polls_leaves_the_members_and_comes_back() {
    let env = Harness::new();
    let engines = Engines::behind(&env);
    engines.set(ENDPOINT, 20.0);
    engines.set(OTHER, 20.0);
    let (_, _, policy) = worker(&env, &scorer("pool", &[ENDPOINT, OTHER]));
    env.run_ms(3_000);
    assert_eq!(reason(&policy, ENDPOINT), "queue_pressure");
    engines.kill(ENDPOINT);
    env.run_ms(5_000);
    assert_eq!(members(&env)["pool"], [OTHER]);
    assert_eq!(reason(&policy, ENDPOINT), "admitted");
    assert_eq!(reason(&policy, OTHER), "queue_pressure");
    engines.set(ENDPOINT, 0.0);
    env.run_ms(3_000);
    assert_eq!(members(&env)["pool"], [ENDPOINT, OTHER]);
}

#[test]
fn on_one_stream_the_scorer_in_front_changes_nothing_and_learns_the_upstream() {
    let env = Harness::new();
    let engines = Engines::behind(&env);
    engines.set(ENDPOINT, 1.0);
    let discover = r#"{"name":"d","discover":true,"scrape":{"cluster":"kv-scrape"}}"#;
    let (_, scorer, policy) = worker(&env, discover);
    env.run_ms(1_000);
    let request = post(CHAT)
        .header("x-evidence", EVIDENCE)
        .header("x-gateway-destination-endpoint", ENDPOINT)
        .dynamic_metadata("envoy.lb", "x-gateway-destination-endpoint", OTHER);
    let out = Chain::default()
        .then(&scorer, Placement::Downstream)
        .then(&policy, Placement::Downstream)
        .request(request)
        .chunks(CAPPED.as_bytes().chunks(7))
        .end();
    assert_eq!(out.text(), CAPPED.replace("\"max_load_tokens\":512,", ""));
    env.run_ms(3_000);
    assert_eq!(members(&env)["d"], [ENDPOINT]);
}

#[test]
fn a_request_inside_any_callback_of_either_role_traps_nothing() {
    let run = |fault: Option<Fault>| {
        let env = Harness::new();
        let engines = Engines::behind(&env);
        engines.set(ENDPOINT, 1.0);
        let (_, _, policy) = worker(&env, &scorer("pool", &[ENDPOINT]));
        let start = env.call_count();
        if let Some(fault) = fault {
            env.inject(fault);
        }
        env.run_ms(1_000);
        let request = || post(CHAT).header("x-evidence", EVIDENCE);
        policy.send(request(), CAPPED);
        let calls = env.call_count() - start;
        env.run_ms(1_000);
        let out = policy.send(request(), CAPPED);
        assert_eq!(out.text(), CAPPED.replace("\"max_load_tokens\":512,", ""));
        assert_eq!(env.metric("selective_kv_held_bytes"), 0);
        assert_eq!(members(&env)["pool"], [ENDPOINT]);
        calls
    };
    let calls = run(None);
    // The timer looks at all buckets: every seventh of its calls will do.
    for k in (1..=calls).filter(|k| *k <= 60 || calls - k <= 60 || k % 7 == 0) {
        run(Some(Fault::call(k).nest()));
    }
}
