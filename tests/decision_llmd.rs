//! What the tests of llm-d's Go plugin `selective-kv-policy` ask (plugin_test.go at 882f1115), asked
//! of this module: the same situation, our result, and where it differs on purpose, why. The
//! situations are facts from there, the words and the code are not.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod gate;

use std::rc::Rc;

use gate::{ENDPOINT, T0, Watched};
use selective_kv::body::{Decide, Editor, Edits, HeldBudget, ParamsFacts};
use selective_kv::contract::evidence::{Lookup, from_header};
use selective_kv::policy::config::{LoadPolicy, OffloadPolicy, Policy, PolicySet};
use selective_kv::policy::decision::{
    Age, EvidenceState, LoadDecision, LoadFacts, decide_load, decide_offload, edits,
};
use selective_kv::policy::evidence::external_tokens;
use selective_kv::policy::gate::{GateVerdict, Transition};
use selective_kv::policy::gatekeeper::Gatekeeper;
use selective_kv::policy::reason::{Action, Reason};
use selective_kv::policy::request::places;
use selective_kv::policy::tiers::TierFilter;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const CHAT: &str = "/v1/chat/completions";
const DISABLE: &str = r#"{"loadPolicy":"disable"}"#;
const THRESHOLD: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024}"#;
const GATED: &str =
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":8}"#;

fn policy(config: &str) -> Rc<Policy> {
    PolicySet::parse(config.as_bytes()).unwrap().base().clone()
}

/// A request as the filter has it: the decision from policy, evidence and gate, the edit of the
/// body.
struct Request<'a> {
    policy: Rc<Policy>,
    /// As the evidence header has it; empty is none.
    evidence: &'a str,
    gate: Option<GateVerdict>,
    load: Option<LoadDecision>,
}

impl Decide for Request<'_> {
    fn decide(&mut self, facts: &ParamsFacts<'_>, _: bool) -> Option<Edits> {
        assert!(!facts.disaggregated);
        let filter = match facts.load_tiers {
            Some(raw) => TierFilter::from_request(raw).0,
            None => TierFilter::ALL,
        };
        let evidence = match self.evidence {
            "" => EvidenceState::None,
            header => match from_header(header.as_bytes()) {
                Lookup::Absent(_) => EvidenceState::None,
                Lookup::Invalid(_) => EvidenceState::Invalid { age: Age::Now },
                Lookup::Found(evidence) => EvidenceState::Found {
                    tokens: external_tokens(&evidence, &filter),
                    partial: evidence.partial,
                    age: Age::Now,
                },
            },
        };
        let facts = LoadFacts {
            endpoint_known: true,
            evidence,
            gate: self.gate,
            refused_by: None,
        };
        let load = decide_load(&self.policy, &facts);
        self.load = Some(load);
        let offload = decide_offload(&self.policy, &load, None);
        Some(edits(&self.policy, load.action, offload.action, None))
    }
}

/// The load decision and the body that the engine gets.
fn run(
    config: &str,
    evidence: &str,
    gate: Option<GateVerdict>,
    path: &str,
    body: &str,
) -> (Option<LoadDecision>, String) {
    let mut request = Request {
        policy: policy(config),
        evidence,
        gate,
        load: None,
    };
    let budget = Rc::new(HeldBudget::new(1 << 20));
    let mut editor = Editor::new(places(path.as_bytes()), 1 << 20, budget);
    let output = editor.feed(body.as_bytes(), true, &mut request);
    let out = output.apply(body.into()).unwrap_or_else(|| body.into());
    (request.load, String::from_utf8(out).unwrap())
}

fn check(config: &str, evidence: &str, body: &str, expected: (Action, Reason, &str)) {
    let (load, out) = run(config, evidence, None, CHAT, body);
    let load = load.unwrap();
    let found = (load.action, load.reason, out.as_str());
    assert_eq!(found, expected, "{config} {evidence} {body}");
}

const PLAIN: &str = r#"{"model":"m"}"#;
const NO_LOAD: &str = r#"{"model":"m","kv_transfer_params":{"max_load_tokens":0}}"#;

/// Test 1. The factory reads a policy.
#[test]
fn factory() {
    let policy = policy(r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#);
    assert_eq!(policy.load, LoadPolicy::Disable);
    assert_eq!(policy.offload, OffloadPolicy::Disable);
}

/// Test 2. It reads threshold, minimum and gate. Differs: evidence comes from shared data or a header,
/// there is no producer to name.
#[test]
fn factory_configures_threshold() {
    let policy = policy(GATED);
    let LoadPolicy::Threshold { min_tokens, gate } = &policy.load else {
        panic!("{policy:?}");
    };
    assert_eq!(min_tokens.get(), 1024);
    assert_eq!(*gate, Some(gate::gate()));
    let named = br#"{"prefixMatchInfoProducerName":"precise-prefix-cache-producer"}"#;
    assert!(PolicySet::parse(named).is_err());
}

/// Tests 3, 4 and 5. Whether it registers for deleted endpoints, and drops their state. Differs: nobody
/// tells us of a deletion; the scorers' `members` say who is there.
#[test]
fn state_of_deleted_endpoints() {
    assert_eq!(policy(THRESHOLD).gate(), None);
    let policy = policy(GATED);
    let gate = policy.gate().unwrap();
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    store.sample(ENDPOINT, T0, 8.0);
    store.members("pool", &[ENDPOINT], T0);
    let report = keeper.check(&store, ENDPOINT, gate, T0);
    assert_eq!(report.verdict, GateVerdict::Closed);
    assert!(store.state(ENDPOINT, gate).is_some());
    store.members("pool", &[], T0);
    let report = keeper.sweep(&store, &[*gate], T0);
    assert_eq!(report.dropped, [ENDPOINT]);
    assert_eq!(store.state(ENDPOINT, gate), None);
}

/// Test 6. What it rejects.
#[test]
fn factory_rejects() {
    for (config, rejected) in [
        // Differs: no parameters are an empty object,
        ("", false),
        // and a policy that does nothing is the base that routes switch on.
        (
            r#"{"loadPolicy":"preserve","offloadPolicy":"preserve"}"#,
            false,
        ),
        (r#"{"loadPolicy":"sometimes"}"#, true),
        (r#"{"offloadPolicy":"sometimes"}"#, true),
        (r#"{"offloadPolicy":"threshold"}"#, true),
        (r#"{"loadPolicy":"threshold"}"#, true),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"maxWaitingRequests":-1}"#,
            true,
        ),
        (r#"{"loadPolicy":"disable","maxWaitingRequests":8}"#, true),
    ] {
        let result = PolicySet::parse(config.as_bytes());
        assert_eq!(result.is_err(), rejected, "{config}");
    }
}

/// Test 7. Waiting requests veto a load: closes at the threshold, stays closed above the reopen
/// threshold, reopens after the pressure decays.
#[test]
fn waiting_queue_pressure_vetoes() {
    let policy = policy(GATED);
    let gate = policy.gate().unwrap();
    let store = Watched::default();
    let mut keeper = Gatekeeper::new();
    let evidence = r#"{"block_size":64,"tiers":{"gpu":4,"cpu":20}}"#;
    for (t_ms, waiting, reason, expected) in [
        (T0, 8.0, Reason::QueuePressure, NO_LOAD),
        (T0 + 1_000, 0.0, Reason::QueuePressure, NO_LOAD),
        (T0 + 3_000, 0.0, Reason::Admitted, PLAIN),
    ] {
        store.sample(ENDPOINT, t_ms, waiting);
        let verdict = keeper.check(&store, ENDPOINT, gate, t_ms).verdict;
        let (load, out) = run(GATED, evidence, Some(verdict), CHAT, PLAIN);
        assert_eq!((load.unwrap().reason, out.as_str()), (reason, expected));
    }
    // Differs: every sample counts, also while evidence is below the threshold or no request comes.
    // There, a request between would have been needed for the second one to be seen.
    let store = Watched::default();
    store.sample(ENDPOINT, T0, 8.0);
    store.sample(ENDPOINT, T0 + 1_000, 0.0);
    let report = Gatekeeper::new().check(&store, ENDPOINT, gate, T0 + 1_000);
    assert_eq!(report.ewma, Some(5.656854249492381));
    assert_eq!(report.transitions, [Transition::Closed]);
}

/// Test 8. A waiting count that was never scraped is no sample.
#[test]
fn a_missing_sample_is_ignored() {
    let policy = policy(GATED);
    let store = Watched::default();
    let report = Gatekeeper::new().check(&store, ENDPOINT, policy.gate().unwrap(), T0);
    assert_eq!(report.verdict, GateVerdict::NoSamples);
    let evidence = r#"{"block_size":64,"tiers":{"gpu":4,"cpu":20}}"#;
    let (load, out) = run(GATED, evidence, Some(report.verdict), CHAT, PLAIN);
    assert_eq!(load.unwrap().reason, Reason::Admitted);
    assert_eq!(out, PLAIN);
}

/// Test 9. The threshold, blocks of 64 tokens.
#[test]
fn threshold() {
    use Action::{Disable, Enable, Preserve};
    let below = |tiers: &str| (format!(r#"{{"block_size":64,"tiers":{tiers}}}"#), NO_LOAD);
    let loads = |tiers: &str| (format!(r#"{{"block_size":64,"tiers":{tiers}}}"#), PLAIN);
    for ((evidence, body), action, reason, tokens) in [
        (
            below(r#"{"gpu":10,"cpu":20}"#),
            Disable,
            Reason::BelowThreshold,
            Some(640),
        ),
        (
            loads(r#"{"gpu":4,"cpu":20}"#),
            Enable,
            Reason::Admitted,
            Some(1024),
        ),
        (
            loads(r#"{"gpu":4,"cpu":12,"storage":24}"#),
            Enable,
            Reason::Admitted,
            Some(1280),
        ),
        // Counts that are not there are no evidence; that there are none is evidence of nothing.
        ((String::new(), PLAIN), Preserve, Reason::NoEvidence, None),
        (below("{}"), Disable, Reason::BelowThreshold, Some(0)),
        (
            below(r#"{"speculative":20}"#),
            Disable,
            Reason::BelowThreshold,
            Some(0),
        ),
        (
            below(r#"{"gpu":20,"cpu":10}"#),
            Disable,
            Reason::BelowThreshold,
            Some(0),
        ),
    ] {
        let (load, out) = run(THRESHOLD, &evidence, None, CHAT, PLAIN);
        let expected = LoadDecision {
            action,
            reason,
            tokens,
        };
        assert_eq!(
            (load.unwrap(), out.as_str()),
            (expected, body),
            "{evidence}"
        );
    }
}

const ADMITS: &str = r#"{"block_size":64,"tiers":{"cpu":20}}"#;

/// Test 10. A client's opt-out goes when loading wins.
#[test]
fn client_opt_out_is_removed() {
    check(
        THRESHOLD,
        ADMITS,
        r#"{"kv_transfer_params":{"max_load_tokens":0,"remote_engine_id":"e"}}"#,
        (
            Action::Enable,
            Reason::Admitted,
            r#"{"kv_transfer_params":{"remote_engine_id":"e"}}"#,
        ),
    );
    // Ours: unless the operator respects it.
    let respect =
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,"clientCaps":"respect"}"#;
    let body = r#"{"kv_transfer_params":{"max_load_tokens":0,"remote_engine_id":"e"}}"#;
    check(
        respect,
        ADMITS,
        body,
        (Action::Enable, Reason::Admitted, body),
    );
}

/// Tests 11, 12 and 13. What a parser made of the body (there, nested objects stay raw): nothing changes
/// if the client has the 0 already, or has no policy and loading wins; else only the cap goes.
#[test]
fn parser_output() {
    let has_zero = r#"{ "kv_transfer_params" : {"max_load_tokens": 0} }"#;
    check(
        DISABLE,
        "",
        has_zero,
        (Action::Disable, Reason::Policy, has_zero),
    );
    let no_policy = r#"{"kv_transfer_params":{"remote_engine_id":"e"}}"#;
    check(
        THRESHOLD,
        ADMITS,
        no_policy,
        (Action::Enable, Reason::Admitted, no_policy),
    );
    // Differs: there `kv_load_tiers` is not looked at. A list of names filters nothing in the engine
    // either (each entry is invalid), so the result is the same.
    check(
        THRESHOLD,
        ADMITS,
        r#"{"kv_transfer_params":{"max_load_tokens":0,"remote_engine_id":"e","kv_load_tiers":["CPU"]}}"#,
        (
            Action::Enable,
            Reason::Admitted,
            r#"{"kv_transfer_params":{"remote_engine_id":"e","kv_load_tiers":["CPU"]}}"#,
        ),
    );
}

/// Test 14. It declares the data that it needs. Differs: there is nothing to declare to; without data
/// the request goes on as it is.
#[test]
fn without_its_data_nothing_changes() {
    let body = r#"{"kv_transfer_params":{"max_load_tokens":64}}"#;
    check(
        THRESHOLD,
        "",
        body,
        (Action::Preserve, Reason::NoEvidence, body),
    );
}

/// Test 15. Load and offload are independent.
#[test]
fn policies_are_independent() {
    let offload = r#"{"offloadPolicy":"disable"}"#;
    let both = r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#;
    for (config, body, expected) in [
        (
            DISABLE,
            r#"{"kv_transfer_params":{"max_offload_tokens":64}}"#,
            r#"{"kv_transfer_params":{"max_offload_tokens":64,"max_load_tokens":0}}"#,
        ),
        (
            offload,
            r#"{"kv_transfer_params":{"kv_load_tiers":[{"medium":"CPU"}]}}"#,
            r#"{"kv_transfer_params":{"kv_load_tiers":[{"medium":"CPU"}],"max_offload_tokens":0}}"#,
        ),
        (
            both,
            PLAIN,
            r#"{"model":"m","kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#,
        ),
    ] {
        let (_, out) = run(config, "", None, CHAT, body);
        assert_eq!(out, expected);
    }
}

/// Test 16. A client's caps are overwritten, and a second run changes nothing.
#[test]
fn client_policy_is_overwritten_and_the_edit_is_idempotent() {
    let both = r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#;
    let body = r#"{"kv_transfer_params":{"max_load_tokens":1024,"max_offload_tokens":1024}}"#;
    let expected = r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#;
    assert_eq!(run(both, "", None, CHAT, body).1, expected);
    assert_eq!(run(both, "", None, CHAT, expected).1, expected);
}

/// Test 17. Params that are no object. Differs: there they are replaced; we repair nothing, the engine
/// answers 400 and the client learns of its mistake.
#[test]
fn malformed_params_are_left_alone() {
    let body = r#"{"kv_transfer_params":"invalid"}"#;
    assert_eq!(run(DISABLE, "", None, CHAT, body).1, body);
}

/// Test 18. Requests of other shapes: no body, one that is no JSON object, vLLM's native generate.
#[test]
fn other_request_shapes() {
    for body in ["", "raw", "[]", "\"text\""] {
        assert_eq!(run(DISABLE, "", None, CHAT, body).1, body);
    }
    // Differs: native generate has its params in one of two places, and they are edited there.
    let generate = "/inference/v1/generate";
    assert_eq!(
        run(DISABLE, "", None, generate, r#"{"token_ids":[1]}"#).1,
        r#"{"token_ids":[1],"kv_transfer_params":{"max_load_tokens":0}}"#
    );
    assert_eq!(
        run(
            DISABLE,
            "",
            None,
            generate,
            r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}}}"#
        )
        .1,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":0}}}}"#
    );
}

/// Test 19. A block size of 0 fails open.
#[test]
fn an_invalid_block_size_fails_open() {
    let evidence = r#"{"block_size":0,"tiers":{"cpu":20}}"#;
    let expected = (Action::Preserve, Reason::InvalidEvidence, PLAIN);
    check(THRESHOLD, evidence, PLAIN, expected);
    // Ours, not asked there: counts below 0 fail open too.
    let evidence = r#"{"block_size":64,"tiers":{"gpu":-5,"cpu":10}}"#;
    check(THRESHOLD, evidence, PLAIN, expected);
}
