//! The scorer's share: evidence for a request's prompt, the engines' KV events, their metrics.

use selective_kv_bench::report::{Results, Row};
use skv_harness::{Answer, Harness, HttpCall, Meter, Request};

use crate::bridge::{BLOCK, Engines};
use crate::measure::{Cost, Effort, Make, Subject, Ways, costs};
use crate::pages::{self, Event, Item};

const METRICS: &[u8] = include_bytes!("../../../testdata/metrics_full_0.32.0.txt");

const OWN_KEYS: (&str, &str) = ("fnv64a_cbor", r#","algorithm":"fnv64a_cbor""#);
/// How block keys are hashed, as members of `evidence`.
const ALGORITHMS: [(&str, &str); 2] = [
    OWN_KEYS,
    (
        "sha256_cbor",
        r#","algorithm":"sha256_cbor","pythonHashSeed":"0""#,
    ),
];
const TOKENS: [usize; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];
const ENDPOINTS: [usize; 3] = [1, 8, 32];

fn address(n: usize) -> String {
    format!("10.0.1.{n}:8000")
}

/// A scorer of so many endpoints.
fn configuration(endpoints: usize, more: &str) -> String {
    let endpoints: Vec<String> = (0..endpoints).map(address).collect();
    format!(
        r#"{{"name":"pool","endpoints":{endpoints:?},"scrape":{{"cluster":"kv-scrape"}},
            "evidence":{{"events":{{"cluster":"bridge"}},"blockSize":{BLOCK},"blocksPerChunk":1,
            "secondaryTiers":"none"{more}}}}}"#
    )
}

pub fn measure(effort: Effort, quick: bool, ways: Ways, results: &mut Results) {
    evidence(effort, quick, ways, results);
    events(effort, ways, results);
    poll(effort, ways, results);
}

/// A prompt of token ids at engines that all hold the whole of it. By our own keys: the engines'
/// stand-in has no hashes of theirs (the native bench measures these).
fn evidence(effort: Effort, quick: bool, ways: Ways, results: &mut Results) {
    for endpoints in ENDPOINTS {
        // The stand-in tells all in one page, and a page has its limit.
        let fits =
            |tokens: &usize| endpoints * tokens <= 1 << 20 && (!quick || *tokens <= 32 << 10);
        let lengths = TOKENS.iter().filter(|tokens| fits(tokens));
        let lengths: Vec<usize> = lengths.copied().collect();
        let subjects: Vec<Make<'_>> = lengths
            .iter()
            .map(|tokens| Box::new(move |meter| prompt(endpoints, *tokens, meter)) as Make<'_>)
            .collect();
        for (tokens, cost) in lengths.iter().zip(costs(&subjects, effort, ways)) {
            let shape = format!("{tokens} tokens, {endpoints} endpoints");
            let rows = rows("module evidence", OWN_KEYS.0, &shape, &cost);
            results.rows.extend(rows);
        }
    }
}

fn prompt(endpoints: usize, tokens: usize, meter: Meter) -> Subject {
    let env = Harness::measuring(meter);
    let names: Vec<String> = (0..endpoints).map(address).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let engines = Engines::behind(&env, &names);
    let vm = env.vm("");
    let scorer = vm.plugin("kv-scorer", configuration(endpoints, OWN_KEYS.1));
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 128_000).collect();
    for name in &names {
        engines.offload(name, &ids, None);
    }
    env.run_ms(6_000);
    let body = format!(r#"{{"prompt":{ids:?}}}"#).replace(", ", ",");
    let send = move || {
        let request = Request::post("/v1/completions").upstream(&address(0));
        let out = scorer
            .request(request)
            .chunks(body.as_bytes().chunks(16 << 10))
            .end();
        assert!(out.complete());
    };
    send();
    let found = |env: &Harness| {
        env.labelled(
            "selective_kv_scorer_evidence_total",
            &[("result", "published")],
        )
    };
    assert!(found(&env) > 0, "{:?}", env.metrics());
    Subject {
        env,
        vm,
        act: Box::new(send),
    }
}

/// Pages of about 1 MB from the bridge: blocks that are computed, then offloaded.
fn events(effort: Effort, ways: Ways, results: &mut Results) {
    let subjects: Vec<Make<'_>> = ALGORITHMS
        .iter()
        .map(|(_, more)| Box::new(move |meter| page(more, meter)) as Make<'_>)
        .collect();
    for ((algorithm, _), cost) in ALGORITHMS.iter().zip(costs(&subjects, effort, ways)) {
        let variant = format!("a page of {} blocks", PAGE_PROMPTS * PROMPT_BLOCKS);
        let per_block = 1.0 / (PAGE_PROMPTS * PROMPT_BLOCKS) as f64;
        let [mut time, mut instructions] = rows("module events", algorithm, &variant, &cost);
        for row in [&mut time, &mut instructions] {
            row.value *= per_block;
            row.spread = row
                .spread
                .map(|(low, high)| (low * per_block, high * per_block));
            row.unit.push_str("/block");
        }
        let per_second = Row {
            unit: "blocks/s".into(),
            value: 1e6 / time.value,
            spread: None,
            ..time.clone()
        };
        results.rows.extend([time, instructions, per_second]);
    }
}

const PAGE_PROMPTS: usize = 80;
const PROMPT_BLOCKS: usize = 128;

fn page(more: &str, meter: Meter) -> Subject {
    let env = Harness::measuring(meter);
    // The bridge's pull stays open until it is answered below.
    env.respond(|call| (call.cluster != "bridge").then(|| engine(call)));
    let vm = env.vm("");
    let scorer = vm.plugin("kv-scorer", configuration(1, more));
    env.run_ms(6_000);
    let (mut round, world) = (0, env.clone());
    let act = move || {
        let mut items = Vec::new();
        if round == 0 {
            items.push(Item::Start(true));
        }
        for i in 0..PAGE_PROMPTS as u64 {
            let n = round * PAGE_PROMPTS as u64 + i;
            let chain = pages::Chain::prompt(n, PROMPT_BLOCKS);
            let told = [Event::Stored(&chain), Event::Offloaded(&chain.hashes)];
            items.push(Item::Batch(n, pages::payload(n as f64, &told)));
        }
        let cursor = format!("e-{round}");
        round += 1;
        let page = pages::page(&address(0), &cursor, false, false, items);
        let stored = || {
            let event = [("event", "stored")];
            world.labelled("selective_kv_scorer_blocks_total", &event)
        };
        let before = stored();
        let pull = |call: &HttpCall| call.cluster == "bridge";
        let token = scorer
            .http_calls()
            .into_iter()
            .find(pull)
            .expect("a pull")
            .token;
        scorer.answer(token, Answer::new(200, page));
        assert_eq!(stored() - before, (2 * PAGE_PROMPTS * PROMPT_BLOCKS) as u64);
    };
    Subject {
        env,
        vm,
        act: Box::new(act),
    }
}

/// The answer to a poll: a whole page of metrics.
fn poll(effort: Effort, ways: Ways, results: &mut Results) {
    let make: [Make<'_>; 1] = [Box::new(|meter| {
        let env = Harness::measuring(meter);
        env.respond(|call| Some(engine(call)));
        let vm = env.vm("");
        let scorer = vm.plugin("kv-scorer", configuration(1, ""));
        env.run_ms(6_000);
        env.respond(|call| match path(call).as_str() {
            "/metrics" => None,
            _ => Some(engine(call)),
        });
        let world = env.clone();
        let act = move || {
            let until_the_poll = std::iter::repeat_with(|| {
                world.advance_ms(scorer.tick_period_ms().into());
                scorer.tick();
                let calls = scorer.http_calls();
                calls
                    .iter()
                    .rfind(|call| path(call) == "/metrics")
                    .map(|call| call.token)
            });
            let token = until_the_poll.take(100).flatten().next().expect("a poll");
            let answer = Answer::new(200, METRICS);
            scorer.answer(token, answer);
        };
        Subject {
            env,
            vm,
            act: Box::new(act),
        }
    })];
    for cost in costs(&make, effort, ways) {
        results.rows.extend(rows(
            "module poll",
            "ours",
            "88 kB of metrics, with the ticks of its interval",
            &cost,
        ));
    }
}

fn path(call: &HttpCall) -> String {
    call.headers.text(":path").unwrap_or_default().into_owned()
}

fn engine(call: &HttpCall) -> Answer {
    match path(call).as_str() {
        "/metrics" => Answer::new(200, METRICS),
        "/version" => Answer::new(200, r#"{"version":"0.32.0"}"#),
        "/v1/models" => Answer::new(200, r#"{"data":[{"id":"m"}]}"#),
        _ => Answer::new(404, ""),
    }
}

fn rows(bench: &str, variant: &str, shape: &str, cost: &Cost) -> [Row; 2] {
    let time = Row {
        bench: bench.into(),
        variant: variant.into(),
        shape: Some(shape.into()),
        bytes: None,
        chunk: None,
        params: None,
        unit: "µs".into(),
        value: cost.time,
        spread: Some(cost.spread),
        ratio_to: None,
    };
    let instructions = Row {
        unit: "instructions".into(),
        value: cost.instructions,
        spread: None,
        ..time.clone()
    };
    [time, instructions]
}
