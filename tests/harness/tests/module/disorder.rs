//! A host that keeps no order: callbacks of any context at any time, also for those that are
//! unknown, gone or not there yet, sizes that are lies, calls that fail, streams torn down and
//! requests served inside callbacks. Nothing traps, and nothing stays behind.

use crate::random::blocks::Random;
use crate::rig::{CAPPED, CHAT, ENDPOINT, GENERATE, post};
use skv_harness::{Answer, Fault, Harness, Plugin, Stream, Vm, status};

const POLICIES: [&str; 3] = [
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,"maxWaitingRequests":8,
        "evidenceHeader":"x-evidence","offloadPolicy":"pressure",
        "admission":{"type":"promotion_concurrency","maxInflightPromotions":2}}"#,
    r#"{"loadPolicy":"threshold","minExternalReusableTokens":64,"maxHeldBytes":100}"#,
    r#"{"loadPolicy":"disable","offloadPolicy":"disable"}"#,
];
const SCORER: &str = r#"{"name":"pool","endpoints":["10.0.0.7:8000"],"discover":true,
    "scrape":{"cluster":"kv-scrape"},
    "evidence":{"events":{"cluster":"kv-events-bridge"},"tokenize":{"cluster":"engines"}}}"#;
const HELD: &str = r#"{"kv_transfer_params":{"max_load_tokens":512},"prompt":"a long one"}"#;
const TEXT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;

const EXPORTS: [(&str, usize); 13] = [
    ("proxy_on_request_headers", 2),
    ("proxy_on_request_body", 2),
    ("proxy_on_request_body", 2),
    ("proxy_on_request_trailers", 1),
    ("proxy_on_response_headers", 2),
    ("proxy_on_response_body", 2),
    ("proxy_on_delete", 0),
    ("proxy_on_tick", 0),
    ("proxy_on_http_call_response", 4),
    ("proxy_on_context_create", 1),
    ("proxy_on_configure", 1),
    ("proxy_on_vm_start", 1),
    ("proxy_on_request_body", 2),
];

const RUNS: u64 = 10;
const STEPS: usize = 300;

/// What the host does next.
fn step(
    random: &mut Random,
    env: &Harness,
    vm: &Vm,
    plugins: &[Plugin],
    streams: &mut Vec<Stream>,
    most: &mut u32,
) {
    let any_stream = |random: &mut Random, streams: &[Stream]| random.below(streams.len().max(1));
    match random.below(20) {
        0..4 => {
            let plugin = &plugins[random.below(plugins.len())];
            let evidence = random.of(&[
                r#"{"block_size":64,"tiers":{"cpu":20}}"#,
                r#"{"block_size":64"#,
            ]);
            let request = post(random.of(&[CHAT, CHAT, GENERATE, "/v1/completions"]))
                .header("x-evidence", evidence)
                .header("content-length", "59");
            let chain = match random.below(3) {
                0 => plugin.upstream(),
                _ => plugin.downstream(),
            };
            streams.push(chain.request(request));
            *most += 2;
        }
        4..9 if !streams.is_empty() => {
            let at = any_stream(random, streams);
            let body = random.of(&[CAPPED, HELD, TEXT]);
            let from = random.below(body.len());
            let to = from + random.below(body.len() - from + 1);
            let piece = random.of(&[&body[from..to], body, &body[..to], ""]);
            match random.below(8) {
                0 => drop(streams[at].last_chunk(piece)),
                1 => drop(streams[at].last_trailers([("x-sum", "1")])),
                2 => {
                    let kind = random.of(&["text/event-stream", "application/json"]);
                    let code = random.of(&[100, 200, 503]);
                    streams[at].respond(code, &[("content-type", kind)]);
                }
                3 => drop(streams[at].answer_chunk("data: {}\n\n", random.below(2) == 0)),
                4 => drop(streams.swap_remove(at).close()),
                5 => drop(streams.swap_remove(at).reset()),
                _ => drop(streams[at].chunk(piece)),
            }
        }
        9 => env.run_ms(random.of(&[0, 100, 1_000, 11_000])),
        10 => {
            let k = 1 + random.below(12) as u64;
            let status = random.of(&[status::NOT_FOUND, status::INTERNAL_FAILURE, 99, 7]);
            env.clear_faults();
            env.inject(match random.below(4) {
                0 => Fault::call(k).destroy(),
                1 => Fault::call(k).nest(),
                2 => Fault::on("proxy_set_buffer_bytes").from(k).status(status),
                _ => Fault::call(k).status(status),
            });
        }
        11 => env.clear_faults(),
        12 => env.set_ms(random.of(&[1_767_225_540_000, 1_767_225_600_000, 1_767_225_660_000])),
        _ => {
            let (export, arity) = random.of(&EXPORTS);
            let context = 1 + random.below(*most as usize + 3) as u32;
            let args: Vec<u32> = (0..arity)
                .map(|_| {
                    let small = random.below(80) as u32;
                    random.of(&[0, 0, 1, 1, 2, small, small, 1 << 16])
                })
                .collect();
            vm.callback(export, context, &args);
        }
    }
}

fn run(seed: u64, steps: usize) {
    let env = Harness::new();
    env.respond(|call| {
        Some(match call.headers.text(":path").as_deref() {
            Some("/metrics") => Answer::new(200, "vllm:num_requests_waiting 3\n"),
            Some("/tokenize") => Answer::new(200, r#"{"count":3,"tokens":[5,6,7]}"#),
            _ => return None,
        })
    });
    let vm = env.vm("");
    let mut plugins: Vec<Plugin> = POLICIES
        .iter()
        .map(|policy| vm.plugin("selective-kv", policy))
        .collect();
    plugins.push(vm.plugin("kv-scorer", SCORER));
    let mut most = 4;
    let mut random = Random::new(seed);
    let mut streams = Vec::new();
    for _ in 0..steps {
        step(&mut random, &env, &vm, &plugins, &mut streams, &mut most);
        assert_eq!(env.traps(), Vec::<String>::new(), "seed {seed}");
    }
    // All streams go, in some order, those that the host knows and those it does not.
    env.clear_faults();
    for stream in streams {
        stream.reset();
    }
    for context in 1..most + 40 {
        vm.callback("proxy_on_delete", context, &[]);
    }
    assert_eq!(env.traps(), Vec::<String>::new(), "seed {seed}");
    assert_eq!(env.metric("selective_kv_held_bytes"), 0, "seed {seed}");
    // Roots as well are gone; the VM serves new ones.
    env.set_ms(1_767_225_700_000);
    let policy = vm.plugin("selective-kv", r#"{"loadPolicy":"disable"}"#);
    let out = policy.send(post(CHAT), CAPPED);
    assert_eq!(out.text(), CAPPED.replace(":512", ":0"), "seed {seed}");
    env.run_ms(30_000);
    let in_flight = env.labelled("selective_kv_loads_in_flight", &[("endpoint", ENDPOINT)]);
    assert_eq!(in_flight, 0, "seed {seed}");
}

#[test]
fn callbacks_in_any_order_trap_nothing_and_leave_nothing_behind() {
    for seed in 0..RUNS {
        run(seed, STEPS);
    }
}
