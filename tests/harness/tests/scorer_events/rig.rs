//! Two VMs with the scorer, an engine that answers its polls, and a bridge.

use crate::pages::{Chain, Event, Item, page, payload};
use selective_kv::contract::evidence::{Lookup, Prompt, find};
use selective_kv::contract::keys::evidence_key;
use skv_harness::{Answer, Fault, Harness, HttpCall, Plugin, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub const ENGINE: &str = "10.0.0.1:8000";

/// `keys` are members of `evidence`.
fn config(keys: &str) -> String {
    format!(
        r#"{{"name":"pool","endpoints":["{ENGINE}"],"scrape":{{"cluster":"kv-scrape"}},
        "evidence":{{"events":{{"cluster":"bridge"}},"blockSize":16,"blocksPerChunk":1,
        "secondaryTiers":"none"{keys}}}}}"#
    )
}

pub struct Rig {
    pub env: Harness,
    pub scorers: Vec<Plugin>,
    /// What follows each cursor, and the cursors that the bridge was asked with.
    pages: Rc<RefCell<BTreeMap<String, Vec<u8>>>>,
    pub asked: Rc<RefCell<Vec<String>>>,
}

impl Rig {
    pub fn new(keys: &str, vms: usize) -> Self {
        let env = Harness::new();
        let pages: Rc<RefCell<BTreeMap<String, Vec<u8>>>> = Rc::default();
        let asked: Rc<RefCell<Vec<String>>> = Rc::default();
        let (next, cursors) = (Rc::clone(&pages), Rc::clone(&asked));
        env.respond(move |call: &HttpCall| {
            let path = call.headers.get(":path").unwrap_or_default();
            let path = String::from_utf8_lossy(path).into_owned();
            if call.cluster != "bridge" {
                return Some(engine(&path));
            }
            let after = path.split("after=").nth(1);
            let after = after.and_then(|a| a.split('&').next()).unwrap_or_default();
            // Nothing new: it waits.
            let page = next.borrow().get(after).cloned()?;
            cursors.borrow_mut().push(after.to_owned());
            Some(Answer::new(200, page))
        });
        let scorers = (0..vms)
            .map(|_| env.vm("").plugin("kv-scorer", config(keys)))
            .collect();
        let rig = Self {
            env,
            scorers,
            pages,
            asked,
        };
        // The lease, the first polls, and the record of what the engine is.
        rig.env.run_ms(6_000);
        rig
    }

    /// The bridge says this to whoever has read up to `after`.
    fn say(&self, after: &str, bytes: Vec<u8>) {
        self.pages.borrow_mut().insert(after.to_owned(), bytes);
    }

    /// The VM that pulls, and its call to the bridge.
    pub fn puller(&self) -> (Plugin, u32) {
        let to_bridge = |scorer: &Plugin| {
            let calls = scorer.http_calls();
            let call = calls.into_iter().find(|call| call.cluster == "bridge")?;
            Some((scorer.clone(), call.token))
        };
        let all: Vec<_> = self.scorers.iter().filter_map(to_bridge).collect();
        assert_eq!(all.len(), 1, "one VM pulls, one call at a time");
        all[0].clone()
    }

    /// The runs that VM `at` publishes for a prompt, and whether they are partial; `None`: none.
    pub fn evidence(&self, at: usize, tokens: &[u32]) -> Option<(Vec<(u64, String)>, bool)> {
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let body = format!(r#"{{"prompt":[{}]}}"#, ids.join(","));
        let id = format!("r-{}", self.env.now_ms());
        let request = Request::post("/v1/completions").header("x-request-id", &id);
        let out = self.scorers[at].send(request, &body);
        assert_eq!(out.text(), body);
        let record = self.env.shared("", &evidence_key(&id))?.0;
        let Lookup::Found(found) = find(&record, &id, ENGINE) else {
            return None;
        };
        let [Prompt::Runs(runs)] = found.prompts.as_slice() else {
            panic!("{found:?}");
        };
        let runs = runs.iter().map(|(blocks, tiers)| (blocks, tiers.join(" ")));
        Some((runs.collect(), found.partial))
    }
}

fn engine(path: &str) -> Answer {
    match path {
        "/metrics" => Answer::new(
            200,
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n",
        ),
        "/version" => Answer::new(200, r#"{"version":"0.32.0"}"#),
        "/v1/models" => Answer::new(200, r#"{"data":[{"id":"m"}]}"#),
        _ => Answer::new(404, ""),
    }
}

fn runs(runs: &[(u64, &str)]) -> Vec<(u64, String)> {
    let owned = runs.iter().map(|(n, tiers)| (*n, (*tiers).to_owned()));
    owned.collect()
}

#[test]
fn what_the_bridge_says_is_evidence_on_every_vm() {
    let rig = Rig::new("", 2);
    let first = Chain::prompt(1, 4);
    let more: Vec<u32> = first.tokens.iter().copied().chain([1, 2, 3]).collect();
    assert_eq!(rig.evidence(0, &more), None);
    let told = payload(
        1.0,
        &[Event::Stored(&first), Event::Offloaded(&first.hashes)],
    );
    rig.say(
        "",
        page(
            ENGINE,
            "e-1",
            false,
            false,
            vec![Item::Start(true), Item::Batch(0, told)],
        ),
    );
    rig.env.run_ms(2_000);
    let whole = Some((runs(&[(4, "gpu cpu")]), false));
    for vm in [0, 1] {
        assert_eq!(rig.evidence(vm, &more), whole, "{vm}");
    }
    // Blocks leave the GPU; the offloaded copies stay.
    let gone = payload(2.0, &[Event::Removed(&first.hashes[2..])]);
    rig.say(
        "e-1",
        page(ENGINE, "e-2", false, false, vec![Item::Batch(1, gone)]),
    );
    rig.env.run_ms(2_000);
    let expected = runs(&[(2, "gpu cpu"), (2, "cpu")]);
    assert_eq!(rig.evidence(1, &more), Some((expected.clone(), false)));
    // A gap: from now on a lower bound.
    rig.say("e-2", page(ENGINE, "e-3", false, false, vec![Item::Gap(3)]));
    rig.env.run_ms(2_000);
    assert_eq!(rig.evidence(0, &more), Some((expected, true)));
    // Another bridge, another engine process: empty and whole.
    rig.say(
        "e-3",
        page(ENGINE, "f-1", true, false, vec![Item::Start(true)]),
    );
    rig.env.run_ms(2_000);
    assert_eq!(rig.evidence(1, &more), Some((runs(&[(4, "")]), false)));
    assert_eq!(*rig.asked.borrow(), ["", "e-1", "e-2", "e-3"]);
}

#[test]
fn a_page_that_cannot_be_stored_is_asked_for_again() {
    let rig = Rig::new("", 1);
    let chain = Chain::prompt(1, 3);
    let told = payload(1.0, &[Event::Stored(&chain)]);
    let one = page(
        ENGINE,
        "e-1",
        false,
        false,
        vec![Item::Start(true), Item::Batch(0, told)],
    );
    let (scorer, token) = rig.puller();
    rig.env
        .inject(Fault::always("proxy_set_shared_data").status(10));
    scorer.answer(token, Answer::new(200, one.clone()));
    rig.env.clear_faults();
    rig.say("", one);
    rig.env.run_ms(5_000);
    // Without a cursor: the first page was not read.
    assert_eq!(*rig.asked.borrow(), [""]);
    let tokens: Vec<u32> = chain.tokens.iter().copied().chain([1]).collect();
    let expected = Some((runs(&[(3, "gpu")]), false));
    assert_eq!(rig.evidence(0, &tokens), expected);
}

#[test]
fn another_vm_goes_on_where_the_first_one_stopped() {
    let rig = Rig::new("", 2);
    let chains = [Chain::prompt(1, 3), Chain::prompt(2, 2)];
    let told = |n: usize| payload(n as f64, &[Event::Stored(&chains[n])]);
    let items = vec![Item::Start(true), Item::Batch(0, told(0))];
    rig.say("", page(ENGINE, "e-1", false, false, items));
    rig.env.run_ms(2_000);
    let pulls = |s: &Plugin| s.http_calls().iter().any(|c| c.cluster == "bridge");
    let first = usize::from(pulls(&rig.scorers[1]));
    assert!(rig.scorers[first].shut_down());
    rig.say(
        "e-1",
        page(ENGINE, "e-2", false, false, vec![Item::Batch(1, told(1))]),
    );
    rig.env.run_ms(8_000);
    assert_eq!(rig.asked.borrow().last(), Some(&"e-1".to_owned()));
    for (chain, blocks) in chains.iter().zip([3, 2]) {
        let tokens: Vec<u32> = chain.tokens.iter().copied().chain([1]).collect();
        let expected = Some((runs(&[(blocks, "gpu")]), false));
        assert_eq!(rig.evidence(1 - first, &tokens), expected);
    }
}
