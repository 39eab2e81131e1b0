//! Every host call failing once, at every point, with any status: the request arrives as sent or
//! as decided, or is answered 503 because bytes could not be given back; nothing traps, and
//! something is counted.

use crate::native;
use crate::records::{self, map, prompts, runs};
use crate::rig::{CHAT, ENDPOINT, GENERATE, OTHER, post};
use selective_kv::body::{Cap, Edits};
use skv_harness::{CallRecord, Fault, Harness, LogLevel, Outcome, Placement, Plugin, Vm, status};

/// What a host may say, and what no list has.
const STATUSES: [u32; 6] = [
    status::NOT_FOUND,
    status::BAD_ARGUMENT,
    status::CAS_MISMATCH,
    status::INTERNAL_FAILURE,
    status::UNIMPLEMENTED,
    99,
];

/// A situation in which a request is sent, from the start of the VM on.
struct Scenario {
    name: &'static str,
    configuration: &'static str,
    placement: Placement,
    path: &'static str,
    body: &'static str,
    /// Evidence, queue and members are in shared data.
    records: bool,
    route_config: Option<&'static str>,
    evidence_header: Option<&'static str>,
    /// A second attempt at [`OTHER`].
    retry: bool,
}

const BASE: Scenario = Scenario {
    name: "",
    configuration: "{}",
    placement: Placement::Downstream,
    path: CHAT,
    body: r#"{"model":"m","kv_transfer_params":{"max_load_tokens":512,"kv_load_tiers":[]},"n":1}"#,
    records: false,
    route_config: None,
    evidence_header: None,
    retry: false,
};

const PARAMS_FIRST: &str =
    r#"{"kv_transfer_params":{"max_load_tokens":512,"max_offload_tokens":1},"prompt":"abcdefgh"}"#;

const SCENARIOS: [Scenario; 8] = [
    Scenario {
        name: "disable both",
        configuration: r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#,
        ..BASE
    },
    Scenario {
        name: "threshold and gate from shared data",
        configuration: r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
            "maxWaitingRequests":8,"offloadPolicy":"disable"}"#,
        records: true,
        ..BASE
    },
    Scenario {
        name: "held to the end, no evidence",
        configuration: r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
            "offloadPolicy":"disable"}"#,
        body: PARAMS_FIRST,
        ..BASE
    },
    Scenario {
        name: "evidence header",
        configuration: r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
            "evidenceHeader":"x-evidence"}"#,
        evidence_header: Some(r#"{"block_size":64,"tiers":{"cpu":20}}"#),
        body: PARAMS_FIRST,
        ..BASE
    },
    Scenario {
        name: "upstream filter with a retry",
        configuration: r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
            "maxWaitingRequests":8}"#,
        placement: Placement::Upstream,
        records: true,
        retry: true,
        ..BASE
    },
    Scenario {
        name: "route by name and by metadata",
        configuration: r#"{"routes":[{"match":{"routeName":"r"},"loadPolicy":"disable"}]}"#,
        route_config: Some(r#"{"offloadPolicy":"disable"}"#),
        ..BASE
    },
    Scenario {
        name: "generate, nested first",
        configuration: r#"{"loadPolicy":"disable"}"#,
        path: GENERATE,
        body: r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"max_load_tokens":9}}},"token_ids":[1,2]}"#,
        ..BASE
    },
    Scenario {
        name: "dry run",
        configuration: r#"{"loadPolicy":"disable","dryRun":true}"#,
        ..BASE
    },
];

struct Run {
    env: Harness,
    vm: Vm,
    policy: Plugin,
    outcome: Outcome,
}

impl Scenario {
    /// Starts a VM, lets its timer fire, sends the request in four chunks and an empty end.
    fn run(&self, faults: &[Fault]) -> Run {
        let env = Harness::new();
        let now = env.now_ms();
        if self.records {
            let entry = prompts([runs(&[(4, &["gpu"]), (24, &["cpu"])])]);
            let evidence = records::evidence("r-1", now, ENDPOINT, 64, entry);
            let queue = records::queue(ENDPOINT, &[(now - 1_000, 9.0), (now, 9.0)]);
            let members = records::members("w", now, &[ENDPOINT, OTHER]);
            records::write(&env, "", &records::evidence_key("r-1"), &evidence);
            records::write(&env, "", &records::queue_key(ENDPOINT), &queue);
            records::write(&env, "", records::MEMBERS_KEY, &members);
        }
        for fault in faults {
            env.inject(fault.clone());
        }
        let vm = env.vm("");
        let policy = vm.plugin("selective-kv", self.configuration);
        env.run_ms(1_000);
        let outcome = self.send(&policy);
        Run {
            env,
            vm,
            policy,
            outcome,
        }
    }

    fn send(&self, policy: &Plugin) -> Outcome {
        let mut request = post(self.path)
            .route("r")
            .header("content-length", self.body.len().to_string());
        if let Some(json) = self.route_config {
            request = request.route_metadata("selective-kv", "config", json);
        }
        if let Some(evidence) = self.evidence_header {
            request = request.header("x-evidence", evidence);
        }
        let chain = match self.placement {
            Placement::Downstream => policy.downstream(),
            Placement::Upstream => policy.upstream(),
        };
        let mut stream = chain.request(request);
        let pieces = self.body.as_bytes().chunks(self.body.len().div_ceil(4));
        for piece in pieces {
            stream.chunk(piece);
        }
        stream.last_chunk("");
        if self.retry {
            stream.retry(OTHER);
        }
        stream.close()
    }

    /// The edits that the access log tells of.
    fn told(&self, outcome: &Outcome) -> Option<Edits> {
        let state = outcome.state("selective_kv.decision")?;
        let action = |key: &str| {
            let found = state.split(';').find_map(|part| part.strip_prefix(key));
            found.unwrap_or_else(|| panic!("{key} in {state}"))
        };
        let dry = self.configuration.contains("dryRun");
        let cap = |action: &str| match action {
            _ if dry => Cap::Keep,
            "preserve" => Cap::Keep,
            "disable" => Cap::SetZero,
            "enable" => Cap::Remove,
            other => panic!("action {other}"),
        };
        Some(Edits::caps(cap(action("load=")), cap(action("offload="))))
    }

    fn edited(&self, load: Cap, offload: Cap) -> Vec<u8> {
        native::edited(self.path, self.body.as_bytes(), Edits::caps(load, offload))
    }

    fn check(&self, run: &Run, what: &str) {
        let what = format!("{}, {what}", self.name);
        let Run { env, outcome, .. } = run;
        assert_eq!(env.traps(), Vec::<String>::new(), "{what}");
        assert!(!outcome.paused && !outcome.reset, "{what}: {outcome:?}");
        if let Some(response) = &outcome.local_response {
            assert_eq!(response.status, 503, "{what}");
            assert_eq!(response.details, "selective_kv_unreturned_bytes", "{what}");
        } else {
            assert!(outcome.complete(), "{what}: {outcome:?}");
            let body = outcome.body();
            let as_told = match self.told(outcome) {
                Some(edits) if !self.retry => body == self.edited(edits.load, edits.offload),
                // Not told, because telling failed or it was not looked at; on a retry perhaps
                // only by the attempt before.
                _ => [Cap::Keep, Cap::SetZero, Cap::Remove]
                    .into_iter()
                    .any(|load| {
                        [Cap::Keep, Cap::SetZero]
                            .into_iter()
                            .any(|offload| body == self.edited(load, offload))
                    }),
            };
            assert!(as_told, "{what}: {outcome:#?} {}", outcome.text());
            let length = outcome.headers().text("content-length");
            assert!(
                length.is_none_or(|length| length == body.len().to_string()),
                "{what}: a wrong length"
            );
        }
        let counted = env.sum("selective_kv_") > 0;
        let warned = !env.log_from(LogLevel::Warn).is_empty();
        assert!(counted || warned, "{what}: nobody learns of it");
    }
}

/// The host calls of a run, numbered. Of the timer's looks at empty buckets, which are all alike,
/// the first few.
fn points_of(run: &Run) -> Vec<(u64, CallRecord)> {
    let mut empty = 0;
    (1..)
        .zip(run.env.calls())
        .filter(|(_, call)| {
            let alike = call.callback == "proxy_on_tick" && call.status == status::NOT_FOUND;
            empty += u32::from(alike);
            !alike || empty <= 3
        })
        .collect()
}

#[test]
fn one_host_call_fails_at_every_point_with_every_status() {
    let mut points = 0;
    for scenario in &SCENARIOS {
        let good = scenario.run(&[]);
        scenario.check(&good, "no fault");
        let calls = points_of(&good);
        let after_good = scenario.send(&good.policy);
        for (k, call) in calls {
            for status in STATUSES {
                let run = scenario.run(&[Fault::call(k).status(status)]);
                let what = format!("call {k} ({} in {}): {status}", call.import, call.callback);
                assert_eq!(run.env.faults_fired(), 1, "{what}");
                scenario.check(&run, &what);
                // Once over, it leaves no trace: the next request is as without the fault, unless
                // the very configuration could not be read.
                let next = scenario.send(&run.policy);
                assert_eq!(run.vm.trap(), None, "{what}");
                if call.callback != "proxy_on_configure" {
                    assert_eq!(next.body(), after_good.body(), "{what}");
                }
                assert_eq!(run.env.metric("selective_kv_held_bytes"), 0, "{what}");
                points += 1;
            }
        }
    }
    assert!(points > 1_000, "{points}");
}

#[test]
fn every_call_of_one_import_fails_from_the_nth_on() {
    for scenario in &SCENARIOS {
        let good = scenario.run(&[]);
        let mut imports: Vec<&'static str> = good.env.calls().iter().map(|c| c.import).collect();
        imports.sort_unstable();
        imports.dedup();
        for import in imports {
            let occurrences = good
                .env
                .calls()
                .iter()
                .filter(|c| c.import == import)
                .count();
            for n in 1..=occurrences as u64 {
                for status in [status::NOT_FOUND, 99] {
                    let run = scenario.run(&[Fault::on(import).from(n).status(status)]);
                    let what = format!("{import} from {n} on: {status}");
                    // Without metrics and log there is no way to tell anybody.
                    let mute = import.contains("metric");
                    if mute {
                        assert_eq!(run.env.traps(), Vec::<String>::new(), "{what}");
                        assert!(run.outcome.complete(), "{what}");
                    } else {
                        scenario.check(&run, &what);
                    }
                }
            }
        }
    }
}

/// From the chunk on in which bytes are held, nothing can be written.
fn unwritable(also: &[Fault]) -> Run {
    let scenario = &SCENARIOS[2];
    let mut faults = vec![
        // The first takes the bytes out, the second cannot give them back.
        Fault::on("proxy_set_buffer_bytes")
            .from(2)
            .status(status::BAD_ARGUMENT),
    ];
    faults.extend_from_slice(also);
    scenario.run(&faults)
}

#[test]
fn bytes_that_cannot_be_given_back_are_answered_503_and_counted() {
    let run = unwritable(&[]);
    assert_eq!(run.outcome.local_status(), Some(503));
    assert_eq!(run.env.metric("selective_kv_unreturned_bytes_total"), 1);
    assert_eq!(run.env.metric("selective_kv_held_bytes"), 0);
    assert!(!run.outcome.complete());
    // The next request of the same VM is as any other.
    run.env.clear_faults();
    let next = SCENARIOS[2].send(&run.policy);
    assert!(next.complete());
}

#[test]
fn a_refused_release_is_tried_once_more_as_a_prepend() {
    for n in 2..=4 {
        let scenario = &SCENARIOS[2];
        let run = scenario.run(&[Fault::on("proxy_set_buffer_bytes")
            .nth(n)
            .status(status::BAD_ARGUMENT)]);
        assert_eq!(run.env.faults_fired(), 1);
        assert_eq!(run.outcome.text(), scenario.body, "{n}");
        assert_eq!(run.env.metric("selective_kv_unreturned_bytes_total"), 0);
    }
}

#[test]
fn where_not_even_an_answer_goes_out_the_stream_is_reset_and_never_forwarded_cut() {
    let refuse = Fault::always("proxy_send_local_response").status(status::INTERNAL_FAILURE);
    let run = unwritable(&[refuse]);
    assert!(run.outcome.reset);
    assert!(!run.outcome.complete());
    assert_eq!(run.env.metric("selective_kv_unreturned_bytes_total"), 1);
}

#[test]
fn a_chunk_that_cannot_be_read_lets_the_held_bytes_go() {
    let scenario = &SCENARIOS[2];
    for n in 2..=5 {
        // The first read is the configuration's.
        let run = scenario.run(&[Fault::on("proxy_get_buffer_bytes")
            .nth(n)
            .status(status::NOT_FOUND)]);
        assert_eq!(run.outcome.text(), scenario.body, "{n}");
        scenario.check(&run, "an unreadable chunk");
    }
}

#[test]
fn a_property_of_another_type_is_no_endpoint_and_no_route() {
    let env = Harness::new();
    let policy = env.vm("").plugin(
        "selective-kv",
        r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,
            "routes":[{"match":{"routeName":"r"},"dryRun":true}]}"#,
    );
    for value in [&b"\xff\xfe"[..], b"", b"10.0.0.7", b"unix:/tmp/x"] {
        let request = post(CHAT)
            .property(&["upstream", "address"], value)
            .property(&["xds", "route_name"], b"\xff");
        let out = policy.send(request, SCENARIOS[0].body);
        assert_eq!(out.text(), SCENARIOS[0].body);
        let state = out.state("selective_kv.decision").unwrap_or_default();
        assert!(state.starts_with("load=preserve;reason=no_"), "{state}");
    }
    let pairs = map([("a", 1.into())]);
    let request = post(CHAT).route_metadata("selective-kv", "config", records::encode(&pairs));
    assert_eq!(
        policy.send(request, SCENARIOS[0].body).text(),
        SCENARIOS[0].body
    );
    assert_eq!(env.metric("selective_kv_invalid_route_config_total"), 1);
}
