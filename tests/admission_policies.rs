//! The admission policies as tables: configuration, who refuses what and when, composites.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::collections::BTreeSet;
use std::rc::Rc;

use selective_kv::contract::queue::QueueEntry;
use selective_kv::contract::store::{MemoryStore, Store, StoreError, Versioned};
use selective_kv::contract::stores::{Counters, StoreSample, Stores};
use selective_kv::policy::admission::cost::Water;
use selective_kv::policy::admission::loads::{Limits, Problem};
use selective_kv::policy::admission::rounds::Fleet;
use selective_kv::policy::admission::{
    Admission, AlwaysAdmit, CascadeBackpressure, Completion, Composite, Job, PolicyType,
    PromotionConcurrency, Refusal, Reset, State, Ticket, World,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const A: &str = "10.0.0.7:8000";
const B: &str = "10.0.0.8:8000";
const T: u64 = 1_790_000_000_000;
const MIB: f64 = 1_048_576.0;

fn admission(text: &str) -> Admission {
    Admission::from_json(text.as_bytes()).unwrap()
}

fn promotions(max_loads: u32, max_tokens: Option<u64>, max_promotion_ms: u64) -> Admission {
    Admission::PromotionConcurrency(PromotionConcurrency {
        limits: Limits {
            max_loads,
            max_tokens,
        },
        max_promotion_ms,
    })
}

fn cascades(high_water: Option<f64>, low_water: Option<f64>, alpha: f64, warmup: u32) -> Admission {
    Admission::CascadeBackpressure(CascadeBackpressure {
        high_water,
        low_water,
        alpha,
        warmup,
    })
}

#[test]
fn good_configurations() {
    for (text, expected) in [
        (
            r#"{"type":"always_admit"}"#,
            Admission::AlwaysAdmit(AlwaysAdmit),
        ),
        (
            r#"{"type":"promotion_concurrency"}"#,
            promotions(512, None, 5_000),
        ),
        (
            r#"{"maxInflightPromotions":8.0,"maxInflightTokens":65536,"maxPromotionTime":"200ms","type":"promotion_concurrency"}"#,
            promotions(8, Some(65_536), 200),
        ),
        (
            r#"{"type":"cascade_backpressure"}"#,
            cascades(None, None, 0.3, 3),
        ),
        (
            r#"{"type":"cascade_backpressure","highWater":1,"lowWater":0.5,"alpha":1,"warmupCompletions":1}"#,
            cascades(Some(1.0), Some(0.5), 1.0, 1),
        ),
        (
            r#"{"type":"cascade_backpressure","highWater":0.1}"#,
            cascades(Some(0.1), None, 0.3, 3),
        ),
        (
            r#"{"type":"cascade_backpressure","lowWater":0.1}"#,
            cascades(None, Some(0.1), 0.3, 3),
        ),
        (
            r#"{"type":"composite","policies":[{"type":"always_admit"},
                {"type":"composite","policies":[{"type":"promotion_concurrency"}]}]}"#,
            Admission::Composite(Composite(vec![
                Admission::default(),
                Admission::Composite(Composite(vec![promotions(512, None, 5_000)])),
            ])),
        ),
    ] {
        assert_eq!(admission(text), expected, "{text}");
    }
}

#[test]
fn bad_configurations() {
    const TYPES: &str =
        "\"always_admit\", \"promotion_concurrency\", \"cascade_backpressure\" or \"composite\"";
    let nested = (0..9).fold(r#"{"type":"always_admit"}"#.to_owned(), |inner, _| {
        format!(r#"{{"type":"composite","policies":[{inner}]}}"#)
    });
    let too_deep = format!("admission{}.policies is ", ".policies[0]".repeat(8));
    for (text, expected) in [
        (
            "7",
            format!("admission is 7: must be an object with a type: {TYPES}"),
        ),
        (
            "{}",
            format!("admission.type is missing: it must be {TYPES}"),
        ),
        (
            r#"{"type":"fifo"}"#,
            format!("admission.type is \"fifo\": must be {TYPES}"),
        ),
        (
            r#"{"type":"always_admit","alpha":1}"#,
            "admission.alpha is not a known key: allowed are type".into(),
        ),
        (
            r#"{"type":"promotion_concurrency","maxInflight":1}"#,
            "admission.maxInflight is not a known key: allowed are type, maxInflightPromotions, \
             maxInflightTokens, maxPromotionTime"
                .into(),
        ),
        (
            r#"{"type":"promotion_concurrency","maxInflightPromotions":0}"#,
            "admission.maxInflightPromotions is 0: must be a whole number from 1 to 4294967295"
                .into(),
        ),
        (
            r#"{"type":"promotion_concurrency","maxInflightTokens":-1}"#,
            "admission.maxInflightTokens is -1: must be a whole number from 1 to \
             18446744073709551615"
                .into(),
        ),
        (
            r#"{"type":"promotion_concurrency","maxPromotionTime":5}"#,
            "admission.maxPromotionTime is 5: must be a duration from \"1ms\" to \"1440m\": a \
             whole number with ms, s or m"
                .into(),
        ),
        (
            r#"{"type":"cascade_backpressure","highWater":0.1,"lowWater":0.2}"#,
            "admission.lowWater is 0.2: it must not be above highWater".into(),
        ),
        (
            r#"{"type":"cascade_backpressure","highWater":0,"lowWater":0}"#,
            "admission.highWater is 0: must be seconds per MiB, a number greater than 0 and at \
             most 1000"
                .into(),
        ),
        (
            r#"{"type":"cascade_backpressure","alpha":1.5}"#,
            "admission.alpha is 1.5: must be a number greater than 0 and at most 1".into(),
        ),
        (
            r#"{"type":"cascade_backpressure","warmupCompletions":0}"#,
            "admission.warmupCompletions is 0: must be a whole number from 1 to 1000".into(),
        ),
        (
            r#"{"type":"composite"}"#,
            "admission.policies is missing: composite needs it, a list of admission policies"
                .into(),
        ),
        (
            r#"{"type":"composite","policies":[]}"#,
            "admission.policies is []: must be a list of 1 to 16 admission policies".into(),
        ),
        (
            r#"{"type":"composite","policies":[{"type":"always_admit"},{"type":"composite","policies":[{"type":7}]}]}"#,
            format!("admission.policies[1].policies[0].type is 7: must be {TYPES}"),
        ),
    ] {
        let found = Admission::from_json(text.as_bytes()).unwrap_err();
        assert_eq!(found.to_string(), expected, "{text}");
    }
    let found = Admission::from_json(nested.as_bytes())
        .unwrap_err()
        .to_string();
    assert!(found.starts_with(&too_deep), "{found}");
    assert!(found.ends_with("must be nested at most 8 deep"), "{found}");
}

fn refusal(policy: PolicyType, tier: Option<&'static str>) -> Refusal {
    Refusal {
        policy,
        tier,
        problem: None,
    }
}

fn load(endpoint: &str) -> Job<'_> {
    Job::Load {
        endpoint,
        tokens: 100,
    }
}

fn offload(endpoint: &str) -> Job<'_> {
    Job::Offload { endpoint }
}

/// Counters that cost that much a MiB, second by second, 1 MiB each.
fn history(costs: &[f64]) -> Vec<StoreSample> {
    let mut counters = Counters {
        bytes: 0.0,
        seconds: 0.0,
        ema: None,
    };
    let mut history = vec![StoreSample { t_ms: T, counters }];
    for (second, cost) in (1..).zip(costs) {
        counters.bytes += MIB;
        counters.seconds += cost;
        history.push(StoreSample {
            t_ms: T + second * 1_000,
            counters,
        });
    }
    history
}

fn stores(tiers: &[(&str, &[f64])]) -> Stores {
    let tiers = tiers.iter();
    tiers
        .map(|(tier, costs)| ((*tier).to_owned(), history(costs)))
        .collect()
}

fn observe(admission: &Admission, state: &mut State, world: World<'_>, stores: &Stores) {
    let mut done = Completion::Stores {
        endpoint: A,
        stores,
    };
    admission.policy().on_completed(&mut done, state, world);
}

#[test]
fn each_policy_judges_its_own_jobs() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T + 3_000,
    };
    let slow = stores(&[("fs", &[0.5, 0.5, 0.5])]);
    let full = refusal(PolicyType::PromotionConcurrency, None);
    let pressed = refusal(PolicyType::CascadeBackpressure, Some("fs"));
    // (policy, second load at A, load at B, offload at A, offload at B)
    for (text, expected) in [
        (
            r#"{"type":"always_admit"}"#,
            [Ok(()), Ok(()), Ok(()), Ok(())],
        ),
        (
            r#"{"type":"promotion_concurrency","maxInflightPromotions":1}"#,
            [Err(full), Ok(()), Ok(()), Ok(())],
        ),
        (
            r#"{"type":"cascade_backpressure"}"#,
            [Ok(()), Ok(()), Err(pressed), Ok(())],
        ),
        (
            r#"{"type":"composite","policies":[
                {"type":"promotion_concurrency","maxInflightPromotions":1},
                {"type":"composite","policies":[{"type":"cascade_backpressure"}]}]}"#,
            [Err(full), Ok(()), Err(pressed), Ok(())],
        ),
    ] {
        let admission = admission(text);
        let mut state = State::default();
        let first = state.admit(&admission, &load(A), world).unwrap();
        observe(&admission, &mut state, world, &slow);
        let jobs = [load(A), load(B), offload(A), offload(B)];
        let found = jobs.map(|job| admission.policy().should_admit(&job, &state, world));
        assert_eq!(found, expected, "{text}");
        // Asking changes nothing.
        let again = jobs.map(|job| admission.policy().should_admit(&job, &state, world));
        assert_eq!(again, expected, "{text}");
        release(&admission, &mut state, world, first);
        let asked = admission.policy().should_admit(&load(A), &state, world);
        assert_eq!(asked, Ok(()), "{text}");
    }
}

fn release(admission: &Admission, state: &mut State, world: World<'_>, mut ticket: Ticket) {
    let mut done = Completion::Load(&mut ticket);
    admission.policy().on_completed(&mut done, state, world);
    assert_eq!(ticket.lease(), None);
}

/// given: one of the two, or none; then: the two for a tier of this machine and for an object store
#[test]
fn each_of_the_waters_has_its_own_default() {
    const LOCAL: (f64, f64) = (0.010, 0.002);
    const REMOTE: (f64, f64) = (0.050, 0.010);
    for (high_water, low_water, fs, obj) in [
        (None, None, LOCAL, REMOTE),
        (Some(0.03), None, (0.03, 0.002), (0.03, 0.010)),
        (None, Some(0.001), (0.010, 0.001), (0.050, 0.001)),
        (Some(0.03), Some(0.02), (0.03, 0.02), (0.03, 0.02)),
        // They never cross.
        (Some(0.005), None, (0.005, 0.002), (0.005, 0.005)),
        (None, Some(0.02), (0.02, 0.02), (0.050, 0.02)),
    ] {
        let policy = CascadeBackpressure {
            high_water,
            low_water,
            alpha: 0.3,
            warmup: 3,
        };
        for (tier, (high, low)) in [("fs", fs), ("obj", obj)] {
            let expected = Water { high, low };
            let found = policy.rule(tier).water;
            assert_eq!(found, expected, "{high_water:?} {low_water:?} {tier}");
        }
    }
}

#[test]
fn a_tier_has_the_water_of_its_place_or_the_configured_one() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T + 3_000,
    };
    let own = r#"{"type":"cascade_backpressure","highWater":0.03,"lowWater":0.001}"#;
    let usual = r#"{"type":"cascade_backpressure"}"#;
    for (text, tier, cost, label) in [
        (usual, "fs", 0.0101, Some("fs")),
        (usual, "fs", 0.0099, None),
        (usual, "cpu", 0.0101, Some("cpu")),
        (usual, "fs@remote", 0.0499, None),
        (usual, "fs@remote", 0.0501, Some("fs")),
        (usual, "obj", 0.0499, None),
        (usual, "OBJ", 0.0501, Some("obj")),
        (usual, "object_store", 0.0499, None),
        (usual, "my tier", 0.0101, Some("other")),
        (own, "fs", 0.0299, None),
        (own, "fs", 0.0301, Some("fs")),
        (own, "obj", 0.0301, Some("obj")),
    ] {
        let admission = admission(text);
        let mut state = State::default();
        observe(
            &admission,
            &mut state,
            world,
            &stores(&[(tier, &[cost; 3])]),
        );
        let found = admission.policy().should_admit(&offload(A), &state, world);
        let expected = match label {
            Some(label) => Err(refusal(PolicyType::CascadeBackpressure, Some(label))),
            None => Ok(()),
        };
        assert_eq!(found, expected, "{text} {tier} {cost}");
    }
}

#[test]
fn one_slow_tier_is_enough_and_a_tier_that_is_gone_is_none() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T + 3_000,
    };
    let admission = admission(r#"{"type":"cascade_backpressure"}"#);
    let mut state = State::default();
    let asked = |state: &State| admission.policy().should_admit(&offload(A), state, world);
    let fast: &[f64] = &[0.001; 3];
    let slow: &[f64] = &[0.5; 3];
    assert_eq!(asked(&state), Ok(()), "unknown");
    observe(
        &admission,
        &mut state,
        world,
        &stores(&[("cpu", fast), ("fs", slow), ("nvme", slow)]),
    );
    let pressed = refusal(PolicyType::CascadeBackpressure, Some("fs"));
    assert_eq!(asked(&state), Err(pressed));
    let readings = state.costs.readings(world.now_ms);
    let shown: Vec<_> = readings
        .iter()
        .map(|r| (r.tier, r.under_pressure))
        .collect();
    assert_eq!(shown, [("cpu", false), ("fs", true), ("nvme", true)]);
    assert!(readings.iter().all(|r| r.endpoint == A));
    assert!((readings[1].cost.unwrap() - 0.5).abs() < 1e-9);
    observe(&admission, &mut state, world, &stores(&[("cpu", fast)]));
    assert_eq!(asked(&state), Ok(()));
    observe(&admission, &mut state, world, &Stores::new());
    assert_eq!(state.costs.readings(world.now_ms), []);
    // Two completions: still warming up.
    observe(&admission, &mut state, world, &stores(&[("fs", &[0.5; 2])]));
    assert_eq!(asked(&state), Ok(()));
    assert_eq!(state.costs.readings(world.now_ms)[0].cost, None);
}

#[test]
fn a_reset_forgets_what_it_is_meant_to() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T + 3_000,
    };
    let admission = admission(
        r#"{"type":"composite","policies":[{"type":"cascade_backpressure"},
            {"type":"promotion_concurrency","maxInflightPromotions":1}]}"#,
    );
    let slow = stores(&[("fs", &[0.5; 3])]);
    // (why, offloads still refused, loads still refused)
    for (why, full) in [
        (Reset::EndpointLeft, false),
        (Reset::EndpointRestarted, false),
        (Reset::PolicyChanged, true),
    ] {
        let mut state = State::default();
        observe(&admission, &mut state, world, &slow);
        let ticket = state.admit(&admission, &load(A), world).unwrap();
        let asked = |state: &State, job: Job<'_>| {
            admission.policy().should_admit(&job, state, world).is_err()
        };
        // Of another endpoint: nothing.
        admission.policy().reset(B, why, &mut state, world);
        assert!(
            asked(&state, offload(A)) && asked(&state, load(A)),
            "{why:?}"
        );
        admission.policy().reset(A, why, &mut state, world);
        assert!(!asked(&state, offload(A)), "{why:?}");
        assert_eq!(asked(&state, load(A)), full, "{why:?}");
        release(&admission, &mut state, world, ticket);
        assert!(!asked(&state, load(A)), "{why:?}");
    }
}

#[test]
fn the_first_refusal_of_a_composite_is_its_answer_and_nothing_stays_counted() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T,
    };
    let promotion = |max: u32, tokens: u64| {
        format!(
            r#"{{"type":"promotion_concurrency","maxInflightPromotions":{max},"maxInflightTokens":{tokens}}}"#
        )
    };
    let both =
        |a: &str, b: &str| admission(&format!(r#"{{"type":"composite","policies":[{a},{b}]}}"#));
    let in_flight = |state: &State| {
        let found = state.loads.in_flight(&store, A).unwrap();
        (found.loads, found.tokens)
    };
    // The smaller limit rules wherever it stands; a load is counted once.
    for admission in [
        both(&promotion(3, 9_999), &promotion(9, 200)),
        both(&promotion(9, 200), &promotion(3, 9_999)),
    ] {
        let mut state = State::default();
        let mut tickets = Vec::new();
        for n in 1..=2 {
            tickets.push(state.admit(&admission, &load(A), world).unwrap());
            assert_eq!(in_flight(&state), (n, n * 100));
        }
        let refused = state.admit(&admission, &load(A), world).unwrap_err();
        assert_eq!(refused, refusal(PolicyType::PromotionConcurrency, None));
        assert_eq!(in_flight(&state), (2, 200));
        // Admitted by the first part's count, refused by the second's: taken back.
        let mut ticket = Ticket::default();
        let policy = admission.policy();
        let late = policy.on_admitted(&load(A), &mut ticket, &mut state, world);
        assert_eq!(late, Err(refused));
        assert_eq!((ticket, in_flight(&state)), (Ticket::default(), (2, 200)));
        for ticket in tickets {
            release(&admission, &mut state, world, ticket);
        }
        assert_eq!(in_flight(&state), (0, 0));
    }
}

#[test]
fn between_the_question_and_the_count_another_worker_may_take_the_last_place() {
    let store = MemoryStore::new();
    let world = World {
        store: &store,
        now_ms: T,
    };
    let admission = admission(r#"{"type":"promotion_concurrency","maxInflightPromotions":1}"#);
    let policy = admission.policy();
    let (mut slow, mut fast) = (State::default(), State::default());
    assert_eq!(policy.should_admit(&load(A), &slow, world), Ok(()));
    let taken = fast.admit(&admission, &load(A), world).unwrap();
    let mut ticket = Ticket::default();
    let late = policy.on_admitted(&load(A), &mut ticket, &mut slow, world);
    let full = refusal(PolicyType::PromotionConcurrency, None);
    assert_eq!((late, ticket.lease()), (Err(full), None));
    release(&admission, &mut fast, world, taken);
    assert_eq!(slow.loads.in_flight(&store, A).unwrap().loads, 0);
}

/// Fails every call.
struct Broken;

impl Store for Broken {
    fn get(&self, _: &str) -> Result<Option<Versioned>, StoreError> {
        Err(StoreError::Host(10))
    }

    fn set(&self, _: &str, _: &[u8], _: u32) -> Result<(), StoreError> {
        Err(StoreError::Host(10))
    }
}

#[test]
fn what_cannot_be_counted_is_refused_with_the_problem() {
    let world = World {
        store: &Broken,
        now_ms: T,
    };
    let admission = admission(r#"{"type":"promotion_concurrency"}"#);
    let mut state = State::default();
    let refused = state.admit(&admission, &load(A), world).unwrap_err();
    let expected = Refusal {
        problem: Some(Problem::Store),
        ..refusal(PolicyType::PromotionConcurrency, None)
    };
    assert_eq!(refused, expected);
}

#[test]
fn metrics_have_names_of_their_own() {
    let all = Admission::all_metrics();
    let names: BTreeSet<_> = all.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all.len());
    assert_eq!(all.len(), 7);
    assert!(names.iter().all(|name| name.starts_with("selective_kv_")));
    for metric in all {
        assert_eq!(
            metric.gauge,
            !metric.name.ends_with("_total"),
            "{}",
            metric.name
        );
    }
}

/// Two configurations of one VM, each with a timer of its own.
///
/// given: a load in flight, and an average under pressure, of one of them
/// when: the other's round is the first to see that the engine started anew, or left
/// then: they are forgotten all the same
#[test]
fn whoever_sees_that_an_engine_went_forgets_it_for_all() {
    let cascading = cascades(None, None, 0.3, 3);
    let both = Admission::Composite(Composite(vec![
        promotions(1, None, 5_000),
        cascading.clone(),
    ]));
    let other = [Rc::new(cascades(Some(7.0), None, 0.3, 3))];
    for (started_ms, unlisted, why) in [
        (5, false, None),
        (9, false, Some(Reset::EndpointRestarted)),
        (5, true, Some(Reset::EndpointLeft)),
    ] {
        let store = MemoryStore::new();
        let world = World {
            store: &store,
            now_ms: T + 3_000,
        };
        let mut state = State::default();
        let round = |state: &mut State, started_ms, unlisted| {
            let entry = QueueEntry {
                started_ms: Some(started_ms),
                ..QueueEntry::default()
            };
            let fleet = Fleet {
                entries: &[(A, &entry)],
                is_unlisted: &|_| unlisted,
            };
            state.round(&other, &fleet, world).resets
        };
        assert_eq!(round(&mut state, 5, false), []);
        let ticket = state.admit(&both, &load(A), world).unwrap();
        observe(&both, &mut state, world, &stores(&[("fs", &[0.02; 3])]));
        let held = why.is_none();
        let resets: Vec<_> = why.map(|why| (A.to_owned(), why)).into_iter().collect();
        assert_eq!(round(&mut state, started_ms, unlisted), resets);
        assert_eq!(state.loads.holds(ticket.lease().unwrap()), held, "{why:?}");
        assert_eq!(state.admit(&both, &load(A), world).is_ok(), !held);
        let offload = cascading.policy().should_admit(&offload(A), &state, world);
        assert_eq!(offload.is_ok(), !held, "{why:?}");
    }
}
