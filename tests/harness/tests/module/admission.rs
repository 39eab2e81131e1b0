//! Admission policies: loads in flight over several workers and every way they end, offloads by what
//! storing costs, engines that ignore what was decided, a route's default for `kv_load_tiers`.

use crate::records::{self, list, map};
use crate::rig::{CAPPED, CHAT, ENDPOINT, OTHER, Rig, chat, counts, labels};
use ciborium::Value;
use skv_harness::{Fault, Harness, LogLevel, Plugin, Request, Stream, status};

const EVIDENCE: &str = r#"{"block_size":64,"tiers":{"cpu":20}}"#;
const SSE: &[(&str, &str)] = &[("content-type", "text/event-stream; charset=utf-8")];
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

fn capped(max: u32) -> String {
    format!(
        r#"{{"loadPolicy":"threshold","minExternalReusableTokens":1024,"evidenceHeader":"x-evidence",
            "offloadPolicy":"pressure",
            "admission":{{"type":"promotion_concurrency","maxInflightPromotions":{max}}}}}"#
    )
}

fn workers(env: &Harness, count: usize, policy: &str) -> Vec<Plugin> {
    let worker = |_| env.vm("").plugin("selective-kv", policy);
    (0..count).map(worker).collect()
}

fn request() -> Request {
    chat().header("x-evidence", EVIDENCE)
}

/// A request that the engine has, and no answer yet.
fn open(policy: &Plugin) -> Stream {
    let mut stream = policy.request(request());
    stream.last_chunk(CAPPED);
    stream
}

fn decisions(env: &Harness) -> Vec<(String, u64)> {
    let all = labels(env, "selective_kv_decisions_total.");
    let loads = all.into_iter().filter(|(k, _)| k.starts_with("load"));
    loads.collect()
}

fn in_flight(env: &Harness, endpoint: &str) -> (u64, u64) {
    let gauge = |name| env.labelled(name, &[("endpoint", endpoint)]);
    (
        gauge("selective_kv_loads_in_flight"),
        gauge("selective_kv_load_tokens_in_flight"),
    )
}

fn ended(env: &Harness) -> Vec<(String, u64)> {
    let all = labels(env, "selective_kv_loads_ended_total.");
    all.into_iter().collect()
}

fn enabled(env: &Harness) -> u64 {
    env.labelled(
        "selective_kv_decisions_total",
        &[
            ("direction", "load"),
            ("action", "enable"),
            ("reason", "admitted"),
        ],
    )
}

#[test]
fn four_workers_share_one_cap_and_nobody_is_refused_service() {
    let env = Harness::new();
    let workers = workers(&env, 4, &capped(3));
    let mut streams: Vec<Stream> = (0..12).map(|n| open(&workers[n % 4])).collect();
    assert_eq!(
        decisions(&env),
        [
            ("load disable promotion_concurrency".to_owned(), 9),
            ("load enable admitted".to_owned(), 3)
        ]
    );
    env.run_ms(1_000);
    assert_eq!(in_flight(&env, ENDPOINT), (3, 3 * 1280));
    let refused = streams.pop().expect("the twelfth").close();
    assert!(refused.complete());
    assert_eq!(
        refused.text(),
        CAPPED.replace(":512", ":0").replace(":64", ":0"),
        "offloads too: it would write out again what it may not load"
    );
    assert_eq!(
        refused.state("selective_kv.decision"),
        Some(
            format!(
                "load=disable;reason=promotion_concurrency;offload=disable;tokens=1280;endpoint={ENDPOINT}"
            )
            .as_str()
        )
    );
    // The engine answers the first three; as many places are free, for whichever worker.
    for stream in streams.drain(..3) {
        assert!(stream.close().complete());
    }
    let more: Vec<Stream> = (0..4).map(|_| open(&workers[3])).collect();
    assert_eq!(enabled(&env), 6);
    drop(streams);
    for stream in more {
        stream.close();
    }
    env.run_ms(1_000);
    assert_eq!(in_flight(&env, ENDPOINT), (0, 0));
    assert_eq!(
        labels(&env, "selective_kv_admission_refusals_total."),
        counts([("load promotion_concurrency -", 10)])
    );
    assert_eq!(
        labels(&env, "selective_kv_load_problems_total."),
        counts([])
    );
}

/// What ends a load, and what does not.
#[test]
fn every_way_a_load_ends_gives_it_back() {
    type End = fn(&Harness, Stream);
    let table: &[(&str, &str, End)] = &[
        ("an answer's headers", "headers", |_, mut s| {
            s.respond(200, JSON);
            drop(s);
        }),
        ("an answer without a body", "headers", |_, s| {
            drop(s.close())
        }),
        ("an error", "error", |_, mut s| {
            s.respond(503, JSON);
        }),
        ("an error as an event stream", "error", |_, mut s| {
            s.respond(400, SSE);
        }),
        ("a redirect", "error", |_, mut s| {
            s.respond(307, &[]);
        }),
        ("a reset before the answer", "stream_end", |_, s| {
            drop(s.reset());
        }),
        ("the first event", "first_event", |_, mut s| {
            s.respond(200, SSE)
                .answer_chunk(": keep-alive\n\n", false)
                .answer_chunk("event: x\nda", false)
                .answer_chunk("", false)
                .answer_chunk("ta: {}\n\n", false);
        }),
        (
            "a reset before the first event",
            "stream_end",
            |_, mut s| {
                s.respond(200, SSE).answer_chunk(": keep-alive\n\n", false);
                drop(s.reset());
            },
        ),
        (
            "an event stream without an event",
            "stream_end",
            |_, mut s| {
                s.respond(200, SSE).answer_chunk(": bye\n\n", true);
                drop(s.reset());
            },
        ),
        ("the longest time", "max_time", |env, s| {
            env.run_ms(6_000);
            std::mem::forget(s);
        }),
        (
            "the longest time, of a coded event stream",
            "max_time",
            |env, mut s| {
                s.respond(200, &[SSE[0], ("content-encoding", "gzip")])
                    .answer_chunk("data: {}", false);
                env.run_ms(6_000);
                std::mem::forget(s);
            },
        ),
        (
            "the longest time, of an answer that cannot be read",
            "max_time",
            |env, mut s| {
                s.respond(200, SSE);
                env.inject(Fault::always("proxy_get_buffer_bytes").status(status::BAD_ARGUMENT));
                s.answer_chunk("data: {}", false);
                env.clear_faults();
                env.run_ms(6_000);
                std::mem::forget(s);
            },
        ),
    ];
    for (what, event, end) in table {
        let env = Harness::new();
        let worker = workers(&env, 1, &capped(1)).remove(0);
        let stream = open(&worker);
        env.run_ms(1_000);
        assert_eq!(in_flight(&env, ENDPOINT), (1, 1280), "{what}");
        end(&env, stream);
        assert_eq!(ended(&env), [((*event).to_owned(), 1)], "{what}");
        // The place is free for another, and the count is right again.
        let next = open(&worker);
        assert_eq!(enabled(&env), 2, "{what}");
        next.close();
        env.run_ms(1_000);
        assert_eq!(in_flight(&env, ENDPOINT), (0, 0), "{what}");
    }
}

#[test]
fn what_does_not_end_a_load() {
    type Step = fn(&Harness, &mut Stream);
    let table: &[(&str, Step)] = &[
        ("time, while the request is being sent", |env, _| {
            env.run_ms(60_000)
        }),
        ("event stream headers", |_, s| {
            s.last_chunk("").respond(200, SSE);
        }),
        ("time, in an event stream", |env, s| {
            s.last_chunk("").respond(200, SSE);
            env.run_ms(600_000);
        }),
        ("comments and names", |_, s| {
            s.last_chunk("")
                .respond(200, SSE)
                .answer_chunk(": data:\n\nevent: data\nid: 1\n\n data: 1\n", false);
        }),
        ("four seconds", |env, s| {
            s.last_chunk("");
            env.run_ms(4_000);
        }),
    ];
    for (what, step) in table {
        let env = Harness::new();
        let worker = workers(&env, 1, &capped(1)).remove(0);
        let mut stream = worker.request(request());
        stream.chunk(CAPPED);
        step(&env, &mut stream);
        assert_eq!(ended(&env), [], "{what}");
        assert_eq!(enabled(&env), 1, "{what}");
        open(&worker).close();
        assert_eq!(enabled(&env), 1, "{what}");
        drop(stream.reset());
        open(&worker).close();
        assert_eq!(enabled(&env), 2, "{what}");
    }
}

#[test]
fn an_answer_is_read_up_to_its_first_event_and_no_further() {
    let env = Harness::new();
    let worker = workers(&env, 1, &capped(1)).remove(0);
    let copies = |stream: &mut Stream, chunk: &str| {
        let before = env.calls().len();
        stream.answer_chunk(chunk, false);
        let calls = env.calls();
        let calls = calls[before..].iter().map(|call| call.import);
        calls.collect::<Vec<_>>()
    };
    let mut stream = open(&worker);
    stream.respond(200, SSE);
    assert_eq!(copies(&mut stream, ": hello\n"), ["proxy_get_buffer_bytes"]);
    assert!(copies(&mut stream, "data: 1\n\n").contains(&"proxy_set_shared_data"));
    for _ in 0..3 {
        assert!(copies(&mut stream, "data: 2\n\n").is_empty());
    }
    stream.close();
    // Nor are others' answers read at all.
    let refused = worker.request(chat());
    let mut refused = refused;
    refused.last_chunk(CAPPED).respond(200, SSE);
    assert!(copies(&mut refused, "data: 1\n\n").is_empty());
    let all = env.calls();
    let written = all.iter().filter(|call| {
        call.callback.starts_with("proxy_on_response") && call.import == "proxy_set_buffer_bytes"
    });
    assert_eq!(written.count(), 0);
}

#[test]
fn each_attempt_upstream_has_a_load_of_its_own() {
    let env = Harness::new();
    let worker = workers(&env, 1, &capped(1)).remove(0);
    let evidence = |endpoint: &str| {
        let prompts = records::prompts([records::tiers(&[("cpu", 20)])]);
        records::evidence("r-1", env.now_ms(), endpoint, 64, prompts)
    };
    records::write(&env, "", &records::evidence_key("r-1"), &evidence(ENDPOINT));
    let mut stream = worker
        .upstream()
        .request(Request::post(CHAT).upstream(ENDPOINT));
    stream.last_chunk(CAPPED);
    env.run_ms(1_000);
    assert_eq!(
        (in_flight(&env, ENDPOINT).0, in_flight(&env, OTHER).0),
        (1, 0)
    );
    records::write(&env, "", &records::evidence_key("r-1"), &evidence(OTHER));
    stream.retry(OTHER);
    env.run_ms(1_000);
    assert_eq!(
        (in_flight(&env, ENDPOINT).0, in_flight(&env, OTHER).0),
        (0, 1)
    );
    stream.respond(200, JSON);
    env.run_ms(1_000);
    assert_eq!(
        (in_flight(&env, ENDPOINT).0, in_flight(&env, OTHER).0),
        (0, 0)
    );
    stream.close();
    assert_eq!(
        ended(&env),
        [("headers".to_owned(), 1), ("stream_end".to_owned(), 1)]
    );
}

#[test]
fn what_a_lost_worker_had_in_flight_is_given_back_in_ten_seconds() {
    let env = Harness::new();
    let workers = workers(&env, 4, &capped(2));
    let lost = [open(&workers[0]), open(&workers[0])];
    workers[0].vm().stop();
    env.run_ms(9_000);
    open(&workers[1]).close();
    assert_eq!(enabled(&env), 2);
    env.run_ms(4_000);
    open(&workers[1]).close();
    assert_eq!(enabled(&env), 3);
    assert_eq!(in_flight(&env, ENDPOINT), (0, 0));
    // Whoever was first took it out, and nobody a second time.
    assert_eq!(
        labels(&env, "selective_kv_load_problems_total."),
        counts([("lost_worker", 1)])
    );
    std::mem::forget(lost);
}

#[test]
fn what_cannot_be_counted_is_refused_and_served() {
    let env = Harness::new();
    let worker = workers(&env, 1, &capped(8)).remove(0);
    env.inject(Fault::always("proxy_set_shared_data").status(status::INTERNAL_FAILURE));
    let out = worker.send(request(), CAPPED);
    assert!(out.complete());
    env.clear_faults();
    assert_eq!(
        decisions(&env),
        [("load disable promotion_concurrency".to_owned(), 1)]
    );
    assert_eq!(
        labels(&env, "selective_kv_load_problems_total."),
        counts([("store", 1)])
    );
    // Another writer wins every try.
    env.inject(Fault::always("proxy_set_shared_data").status(status::CAS_MISMATCH));
    assert!(worker.send(request(), CAPPED).complete());
    env.clear_faults();
    assert_eq!(decisions(&env)[0].1, 2);
    // And where the end cannot be written, the timer writes it.
    let stream = open(&worker);
    env.inject(Fault::always("proxy_set_shared_data").status(status::CAS_MISMATCH));
    stream.close();
    env.clear_faults();
    env.run_ms(1_000);
    assert_eq!(in_flight(&env, ENDPOINT), (0, 0));
    let next = workers(&env, 1, &capped(1)).remove(0);
    open(&next).close();
    assert_eq!(enabled(&env), 2);
}

/// Any host call of a whole life fails, destroys the stream, or lets another request in between.
#[test]
fn no_fault_anywhere_leaves_a_load_behind() {
    let quick = |max| {
        let longest = r#""maxPromotionTime":"1s","maxInflightPromotions""#;
        capped(max).replace(r#""maxInflightPromotions""#, longest)
    };
    let life = |env: &Harness, worker: &Plugin| {
        let mut stream = open(worker);
        stream
            .respond(200, SSE)
            .answer_chunk(": x\n", false)
            .answer_chunk("data: 1\n", false);
        stream.close();
        let mut stream = open(worker);
        stream.respond(200, SSE).answer_chunk(": x\n", false);
        drop(stream.reset());
        env.run_ms(1_000);
    };
    let calls = {
        let env = Harness::new();
        let worker = workers(&env, 1, &quick(2)).remove(0);
        let before = env.call_count();
        life(&env, &worker);
        env.call_count() - before
    };
    for kind in 0..4 {
        for k in 1..=calls {
            let env = Harness::new();
            let worker = workers(&env, 1, &quick(2)).remove(0);
            let at = Fault::call(k);
            env.inject(match kind {
                0 => at.status(status::INTERNAL_FAILURE),
                1 => at.status(status::CAS_MISMATCH),
                2 => at.destroy(),
                _ => at.nest(),
            });
            life(&env, &worker);
            env.clear_faults();
            // Long enough for what could only be given up by time.
            env.run_ms(2_000);
            assert_eq!(in_flight(&env, ENDPOINT).0, 0, "kind {kind}, call {k}");
            let other = workers(&env, 1, &quick(1)).remove(0);
            let before = enabled(&env);
            open(&other).close();
            assert_eq!(enabled(&env), before + 1, "kind {kind}, call {k}");
        }
    }
}

/// A queue record with more in its entry.
fn queue(t_ms: u64, more: Vec<(&str, Value)>) -> Value {
    let samples = list([list([t_ms.into(), 0.into()])]);
    let mut entry = vec![("samples".into(), samples)];
    entry.extend(more.into_iter().map(|(k, v)| (Value::from(k), v)));
    map([
        ("v", 1.into()),
        ("endpoints", map([(ENDPOINT, Value::Map(entry))])),
    ])
}

fn write_queue(rig: &Rig, more: Vec<(&str, Value)>) {
    let record = queue(rig.env.now_ms(), more);
    records::write(&rig.env, "", &records::queue_key(ENDPOINT), &record);
}

fn version(rig: &Rig, version: &str) {
    write_queue(
        rig,
        vec![("engine", "vllm".into()), ("version", version.into())],
    );
}

#[test]
fn what_an_old_engine_would_ignore_is_not_pretended() {
    const BOTH: &str = r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#;
    // (version, what becomes of the caps, decisions, kinds counted)
    for (of, load, offload, decided, kinds) in [
        (
            "0.31.0",
            "0",
            "0",
            ["load disable policy", "offload disable policy"],
            &[][..],
        ),
        (
            "0.30.0",
            "512",
            "0",
            ["load preserve engine_unsupported", "offload disable policy"],
            &["max_load_tokens"],
        ),
        (
            "0.22.1",
            "512",
            "64",
            [
                "load preserve engine_unsupported",
                "offload preserve engine_unsupported",
            ],
            &["max_load_tokens", "max_offload_tokens"],
        ),
        (
            "nightly",
            "0",
            "0",
            ["load disable policy", "offload disable policy"],
            &[],
        ),
    ] {
        let rig = Rig::new(BOTH);
        version(&rig, of);
        for _ in 0..3 {
            let out = rig.policy.send(chat(), CAPPED);
            let expected = CAPPED
                .replace(":512", &format!(":{load}"))
                .replace(":64", &format!(":{offload}"));
            assert_eq!(out.text(), expected, "{of}");
        }
        assert_eq!(rig.decisions(), counts(decided.map(|k| (k, 3))), "{of}");
        let counted = labels(&rig.env, "selective_kv_engine_unsupported_total.");
        let expected: Vec<_> = kinds.iter().map(|k| ((*k).to_owned(), 3)).collect();
        assert_eq!(counted.into_iter().collect::<Vec<_>>(), expected, "{of}");
        let lines = rig.env.log_from(LogLevel::Warn);
        assert_eq!(lines.len(), usize::from(!kinds.is_empty()), "{lines:?}");
        if let Some(line) = lines.first() {
            assert!(line.text.contains(ENDPOINT) && line.text.contains("max_load_tokens"));
        }
    }
}

#[test]
fn a_default_for_the_tiers_is_added_and_restricts_the_evidence() {
    const POLICY: &str = r#"{"loadPolicy":"threshold","minExternalReusableTokens":1024,
        "evidenceHeader":"x-evidence","defaultLoadTiers":[{"medium":"storage","locality":"local"}]}"#;
    const LIST: &str = r#"[{"medium":"storage","locality":"local"}]"#;
    let remote = r#"{"block_size":64,"tiers":{"object_store":20}}"#;
    let local = r#"{"block_size":64,"tiers":{"fs":20}}"#;
    let bare = r#"{"n":1}"#.to_owned();
    let with = |params: &str| format!(r#"{{"n":1,"kv_transfer_params":{{{params}}}}}"#);
    let own = with(r#""kv_load_tiers":[{"locality":"remote"}]"#);
    let tiers = format!(r#""kv_load_tiers":{LIST}"#);
    // (version, evidence, body, what the engine gets, decision)
    for (of, evidence, body, expected, decision) in [
        (
            "0.32.0",
            Some(local),
            &bare,
            with(&tiers),
            "load enable admitted",
        ),
        (
            "0.32.0",
            None,
            &bare,
            with(&tiers),
            "load preserve no_evidence",
        ),
        // In a tier that the default leaves out: nothing to load.
        (
            "0.32.0",
            Some(remote),
            &bare,
            with(r#""max_load_tokens":0"#),
            "load disable below_threshold",
        ),
        (
            "0.32.0",
            Some(remote),
            &own,
            own.clone(),
            "load enable admitted",
        ),
        (
            "0.27.0",
            Some(local),
            &bare,
            with(&tiers),
            "load enable admitted",
        ),
        // Cannot be disabled there, but restricted.
        (
            "0.30.0",
            Some(remote),
            &bare,
            with(&tiers),
            "load preserve engine_unsupported",
        ),
        // Would be ignored: every tier counts, and the decision is none.
        (
            "0.26.0",
            Some(remote),
            &bare,
            bare.clone(),
            "load preserve engine_unsupported",
        ),
        (
            "0.26.0",
            Some(remote),
            &own,
            own.clone(),
            "load enable admitted",
        ),
    ] {
        let rig = Rig::new(POLICY);
        version(&rig, of);
        let request = match evidence {
            Some(evidence) => chat().header("x-evidence", evidence),
            None => chat(),
        };
        let out = rig.policy.send(request, body);
        assert_eq!(out.text(), expected, "{of} {evidence:?} {body}");
        assert!(
            rig.decisions().contains_key(decision),
            "{of} {body}: {:?}",
            rig.decisions()
        );
        let added = u64::from(out.text().contains(LIST));
        assert_eq!(rig.edits().get("load_tiers").copied().unwrap_or(0), added);
    }
    // Nothing of a request that is left alone.
    let rig = Rig::new(POLICY);
    let peer = with(r#""do_remote_prefill":true"#);
    assert_eq!(rig.policy.send(chat(), &peer).text(), peer);
}

/// A MiB a second at these costs, seconds per MiB, the last of them now.
fn stores(rig: &Rig, costs: &[f64]) -> Value {
    const MIB: u64 = 1 << 20;
    let start = rig.env.now_ms() - costs.len() as u64 * 1_000;
    let mut seconds = 0.0;
    let mut samples = vec![list([start.into(), 0.into(), 0.into()])];
    for (n, cost) in (1..).zip(costs) {
        seconds += cost;
        samples.push(list([
            (start + n * 1_000).into(),
            (n * MIB).into(),
            seconds.into(),
        ]));
    }
    map([("fs", list(samples))])
}

#[test]
fn offloads_stop_while_a_tier_is_slow_to_store() {
    const POLICY: &str =
        r#"{"offloadPolicy":"backpressure","admission":{"type":"cascade_backpressure"}}"#;
    const BODY: &str = r#"{"n":1}"#;
    const STOPPED: &str = r#"{"n":1,"kv_transfer_params":{"max_offload_tokens":0}}"#;
    let rig = Rig::new(POLICY);
    let sent = || rig.policy.send(chat(), BODY);
    assert_eq!(sent().text(), BODY, "unknown is admitted");
    let fast = stores(&rig, &[0.009; 3]);
    write_queue(&rig, vec![("stores", fast)]);
    assert_eq!(sent().text(), BODY);
    rig.env.advance_ms(1_000);
    let slow = stores(&rig, &[0.009, 0.009, 0.009, 0.0125]);
    write_queue(&rig, vec![("stores", slow)]);
    let out = sent();
    // The average was 0.009, and one completion makes it 0.01005.
    assert_eq!(out.text(), STOPPED);
    assert_eq!(
        out.state("selective_kv.decision"),
        Some(
            format!("load=preserve;reason=policy;offload=disable;offload_reason=cascade_backpressure;tier=fs;endpoint={ENDPOINT}")
                .as_str()
        )
    );
    assert_eq!(
        labels(&rig.env, "selective_kv_admission_refusals_total."),
        counts([("offload cascade_backpressure fs", 1)])
    );
    rig.env.run_ms(1_000);
    let gauge = |name| {
        rig.env
            .labelled(name, &[("endpoint", ENDPOINT), ("tier", "fs")])
    };
    assert_eq!(gauge("selective_kv_backpressure_active"), 1);
    let cost = gauge("selective_kv_store_cost_micros_per_mib");
    assert!(
        (7_000..7_200).contains(&cost),
        "{cost}, a half-life's half later"
    );
    // Without another sample: below 0.002 after some seconds.
    rig.env.run_ms(4_000);
    assert_eq!(sent().text(), BODY);
    assert_eq!(gauge("selective_kv_backpressure_active"), 0);
}

#[test]
fn an_endpoint_that_left_or_started_anew_has_nothing_in_flight() {
    let members = |rig: &Rig, of: &[&str]| {
        let record = records::members("w", rig.env.now_ms(), of);
        records::write(&rig.env, "", records::MEMBERS_KEY, &record);
    };
    let rig = Rig::new(&capped(1));
    members(&rig, &[ENDPOINT]);
    version(&rig, "0.32.0");
    let first = open(&rig.policy);
    rig.env.run_ms(1_000);
    assert_eq!(in_flight(&rig.env, ENDPOINT).0, 1);
    version(&rig, "0.33.0");
    rig.env.run_ms(1_000);
    assert_eq!(
        in_flight(&rig.env, ENDPOINT).0,
        0,
        "another version is another process"
    );
    for (started, in_flight_then) in [(5, 1), (5, 1), (9, 0)] {
        let again = open(&rig.policy);
        write_queue(&rig, vec![("started", started.into())]);
        rig.env.run_ms(1_000);
        let now = in_flight(&rig.env, ENDPOINT).0;
        assert_eq!(now, in_flight_then, "started {started}");
        again.close();
    }
    rig.env.run_ms(1_000);
    let second = open(&rig.policy);
    assert_eq!(enabled(&rig.env), 5);
    members(&rig, &[OTHER]);
    rig.env.run_ms(2_000);
    assert_eq!(in_flight(&rig.env, ENDPOINT).0, 0, "it left");
    // It left once: what still goes there counts.
    let third = open(&rig.policy);
    rig.env.run_ms(2_000);
    assert_eq!(in_flight(&rig.env, ENDPOINT).0, 1);
    for stream in [first, second, third] {
        stream.close();
    }
    rig.env.run_ms(1_000);
    assert_eq!(in_flight(&rig.env, ENDPOINT).0, 0);
}
