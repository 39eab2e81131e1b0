//! With `evidence`: what the scorer of the built module asks the engines, what it records of them
//! for every VM, and what it reports.

use selective_kv::contract::store::{MemoryStore, Store};
use selective_kv::scorer::facts::{EngineFacts, Fleet, key};
use selective_kv::sorted::SortedMap;
use skv_harness::{Answer, Fault, Harness, HttpCall, LogLevel};
use std::cell::RefCell;
use std::rc::Rc;

const EVIDENCE: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000","10.0.0.2:8000"],
    "scrape":{"cluster":"kv-scrape"},
    "evidence":{"events":{"cluster":"kv-events"},"algorithm":"sha256_cbor"}}"#;
const WITHOUT: &str = r#"{"name":"pool","endpoints":["10.0.0.1:8000","10.0.0.2:8000"],
    "scrape":{"cluster":"kv-scrape"}}"#;
const MODELS: &str = r#"{"object":"list","data":[{"id":"tiny","parent":null},
    {"id":"gpt-x","parent":null},{"id":"sql","root":"/lora/sql","parent":"tiny"}]}"#;
/// A whole page of vLLM 0.32.0: model tiny, blocks of 32, sha256_cbor, 160 GPU blocks.
const FULL_PAGE: &[u8] = include_bytes!("../../../testdata/metrics_full_0.32.0.txt");

/// Engines, by what their pages say; their calls as VM, `:authority`, `:path`.
fn engines(env: &Harness, page: impl Fn(&str) -> Vec<u8> + 'static) -> Calls {
    let calls = Calls::default();
    let log = Rc::clone(&calls);
    env.respond(move |call| {
        let (address, path) = (header(call, ":authority"), header(call, ":path"));
        log.borrow_mut()
            .push((call.vm, address.clone(), path.clone()));
        Some(match path.as_str() {
            "/metrics" => Answer::new(200, page(&address)),
            "/version" => Answer::new(200, r#"{"version":"0.32.0"}"#),
            "/v1/models" => Answer::new(200, MODELS),
            _ => Answer::new(404, ""),
        })
    });
    calls
}

type Calls = Rc<RefCell<Vec<(usize, String, String)>>>;

fn header(call: &HttpCall, name: &str) -> String {
    let value = call.headers.get(name).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

fn full_page(_: &str) -> Vec<u8> {
    FULL_PAGE.to_vec()
}

/// What every VM of this store reads, and the record's version.
fn fleet(env: &Harness) -> Option<(u32, Fleet)> {
    let (value, cas) = env.shared("", &key("pool"))?;
    let store = MemoryStore::new();
    store.set(&key("pool"), &value, 0).unwrap();
    let (_, fleet) = Fleet::read(&store, "pool").unwrap()?;
    Some((cas, fleet))
}

fn said() -> EngineFacts {
    EngineFacts {
        model: Some("tiny".to_owned()),
        aliases: vec!["tiny".to_owned(), "gpt-x".to_owned()],
        adapters: vec!["sql".to_owned()],
        block_size: Some(32),
        hash_algorithm: Some("sha256_cbor".to_owned()),
        gpu_blocks: Some(160),
        ranks: None,
        version: Some("0.32.0".to_owned()),
    }
}

fn problem(env: &Harness, kind: &str) -> u64 {
    env.labelled("selective_kv_scorer_problems_total", &[("kind", kind)])
}

#[test]
fn models_are_a_get_like_the_metrics() {
    let env = Harness::new();
    let scorer = env.vm("").plugin("kv-scorer", EVIDENCE);
    scorer.tick();
    let metrics = scorer.http_calls();
    scorer.answer(metrics[0].token, Answer::new(200, FULL_PAGE));
    let calls = scorer.http_calls();
    let models = calls.iter().find(|c| header(c, ":path") == "/v1/models");
    let models = models.expect("asked when the first metrics are in");
    let headers = [
        (":method", "GET"),
        (":authority", "10.0.0.1:8000"),
        ("x-envoy-original-dst-host", "10.0.0.1:8000"),
    ];
    for (name, value) in headers {
        assert_eq!(header(models, name), value);
    }
    assert_eq!(
        (models.cluster.as_str(), models.timeout_ms),
        ("kv-scrape", 1_000)
    );
}

#[test]
fn the_record_says_what_the_members_say() {
    let env = Harness::new();
    let calls = engines(&env, full_page);
    let vms: Vec<_> = (0..3).map(|_| env.vm("")).collect();
    for vm in &vms {
        vm.plugin("kv-scorer", EVIDENCE);
    }
    env.run_ms(3_000);
    let (cas, read) = fleet(&env).expect("a record");
    let both = ["10.0.0.1:8000", "10.0.0.2:8000"];
    let endpoints = both.map(|a| (a.to_owned(), Rc::new(said())));
    assert_eq!(read.endpoints, SortedMap::from(endpoints));
    assert_eq!(read.block_size.map(|size| size.get()), Some(32));
    // It is written when it changes,
    env.run_ms(30_000);
    assert_eq!(fleet(&env).map(|(cas, _)| cas), Some(cas));
    let asked = |path: &str| calls.borrow().iter().filter(|(.., p)| p == path).count();
    assert_eq!([asked("/v1/models"), asked("/version")], [2, 2]);
    // by whoever polls: the next holder goes on with what is there.
    let holder = calls.borrow()[0].0;
    vms[holder].stop();
    env.run_ms(10_000);
    assert_eq!(fleet(&env).map(|(_, fleet)| fleet), Some(read));
    assert_eq!([asked("/v1/models"), asked("/version")], [4, 4]);
    assert_eq!(env.sum("selective_kv_scorer_problems_total"), 0);
    // An engine that goes is not in it.
    let before = calls.borrow().len();
    env.respond(|call| match header(call, ":authority").as_str() {
        "10.0.0.1:8000" => None,
        _ => Some(Answer::new(200, FULL_PAGE)),
    });
    env.run_ms(5_000);
    assert_eq!(calls.borrow().len(), before);
    let (_, left) = fleet(&env).unwrap();
    assert_eq!(left.endpoints.keys().collect::<Vec<_>>(), ["10.0.0.2:8000"]);
}

#[test]
fn without_evidence_nothing_is_asked_or_recorded() {
    let env = Harness::new();
    let calls = engines(&env, full_page);
    env.vm("").plugin("kv-scorer", WITHOUT);
    env.run_ms(5_000);
    assert!(!calls.borrow().is_empty());
    assert!(calls.borrow().iter().all(|(.., path)| path != "/v1/models"));
    let keys = env.shared_keys("");
    assert!(!keys.contains(&key("pool")), "{keys:?}");
}

#[test]
fn a_mismatch_is_one_line_and_one_count_for_each_endpoint() {
    let env = Harness::new();
    let other = |address: &str| {
        let page = String::from_utf8(FULL_PAGE.to_vec()).unwrap();
        match address {
            "10.0.0.2:8000" => page.replace("=\"sha256_cbor\"", "=\"xxhash\""),
            _ => page,
        }
        .into_bytes()
    };
    engines(&env, other);
    env.vm("").plugin("kv-scorer", EVIDENCE);
    env.run_ms(70_000);
    assert_eq!(problem(&env, "config_mismatch"), 1);
    let warnings: Vec<String> = env
        .log_from(LogLevel::Warn)
        .into_iter()
        .map(|line| line.text)
        .collect();
    assert_eq!(
        warnings,
        [
            "kv-scorer pool: 10.0.0.2:8000 has no evidence: it hashes blocks by xxhash: start it \
             with --prefix-caching-hash-algo sha256_cbor, or leave \"algorithm\" out"
        ]
    );
}

#[test]
fn a_full_life_survives_every_host_call_failing_once() {
    let run = |fault: Option<Fault>| {
        let env = Harness::new();
        engines(&env, full_page);
        let vm = env.vm("");
        vm.plugin("kv-scorer", EVIDENCE);
        let start = env.call_count();
        if let Some(fault) = fault {
            env.inject(fault);
        }
        env.run_ms(4_000);
        let calls = env.call_count() - start;
        // Whatever failed, the record is whole in the end.
        env.run_ms(4_000);
        let (_, read) = fleet(&env).expect("a record");
        assert_eq!(read.endpoints.len(), 2, "{:?}", env.metrics());
        assert!(read.endpoints.values().all(|facts| **facts == said()));
        calls
    };
    let calls = run(None);
    assert!(calls > 50, "{calls}");
    for k in 1..=calls {
        for status in [2, 10, 42] {
            run(Some(Fault::call(k).status(status)));
        }
    }
}

#[test]
fn reading_real_pages_for_evidence_costs_little_more() {
    // Instructions of each page but the first one, with which metrics are defined.
    let costs = |config: &str| {
        let env = Harness::new();
        let vm = env.vm("");
        let scorer = vm.plugin("kv-scorer", config);
        let page = || {
            let calls = scorer.http_calls().into_iter();
            calls.into_iter().find(|c| header(c, ":path") == "/metrics")
        };
        let mut costs = Vec::new();
        while costs.len() < 44 {
            let Some(call) = page() else {
                env.advance_ms(500);
                scorer.tick();
                continue;
            };
            let before = vm.fuel_consumed();
            scorer.answer(call.token, Answer::new(200, FULL_PAGE));
            costs.push(vm.fuel_consumed() - before);
        }
        costs.split_off(4)
    };
    let mean = |costs: &[u64]| costs.iter().sum::<u64>() / costs.len() as u64;
    let (with, without) = (mean(&costs(EVIDENCE)), mean(&costs(WITHOUT)));
    assert!(
        with - without < FULL_PAGE.len() as u64,
        "{with} with, {without} without"
    );
}
