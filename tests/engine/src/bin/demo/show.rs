//! Sends one request through Envoy and compares what came of it with what must.

use crate::cases::Case;
use crate::client;
use crate::stage::{DECISION, Stage};
use crate::table::Row;
use serde_json::Value;
use stand_in_engine::cache::GPU;
use stand_in_engine::{Engine, Record};
use std::collections::BTreeMap;

/// Requests until the load balancer has taken the engine that is asked for.
const TRIES: usize = 64;

/// One request as it went.
pub struct Shown {
    /// By the names of the decision's summary: `load`, `reason`, `tokens`, `ewma`, `endpoint`.
    pub decision: BTreeMap<String, String>,
    pub engine: String,
    /// What the engine held of the prompt when the request was sent.
    held: String,
    record: Record,
    answer: client::Answer,
}

impl Shown {
    pub fn ewma(&self) -> Option<f64> {
        self.part("ewma").parse().ok()
    }

    pub fn part(&self, name: &str) -> &str {
        self.decision.get(name).map_or("", String::as_str)
    }

    pub fn loads(&self) -> usize {
        self.record
            .work
            .as_ref()
            .map_or(0, |work| work.loaded_tokens())
    }
}

/// Brings the case's KV where it is to be, on both engines, as it would get there: computed in the GPU,
/// offloaded, and pushed out of the GPU. Returns when the scorer has heard of it.
pub async fn place(stage: &Stage, case: &Case) -> Result<(), String> {
    let sent = case.sent();
    let longest = case.held.iter().map(|(_, blocks)| *blocks).max();
    let in_gpu = case.held.iter().find(|(tier, _)| *tier == GPU);
    for engine in &stage.engines {
        engine.place(case.path, sent.as_bytes(), 0, longest.unwrap_or(0), GPU)?;
        for (tier, blocks) in case.held {
            engine.place(case.path, sent.as_bytes(), 0, *blocks, tier)?;
        }
        let kept = in_gpu.map_or(0, |(_, blocks)| *blocks);
        engine.evict(case.path, sent.as_bytes(), kept, usize::MAX, GPU)?;
    }
    stage.heard().await
}

/// Sends until the load balancer has chosen this engine.
pub async fn reach(stage: &Stage, engine: &str, case: &Case) -> Result<Shown, String> {
    for _ in 0..TRIES {
        let shown = send(stage, case).await?;
        if shown.engine == engine {
            return Ok(shown);
        }
    }
    Err(format!(
        "Envoy sent none of {TRIES} requests to engine {engine}"
    ))
}

pub async fn send(stage: &Stage, case: &Case) -> Result<Shown, String> {
    let sent = case.sent();
    let held: Vec<_> = stage
        .engines
        .iter()
        .map(|engine| engine.evidence(case.path, sent.as_bytes()))
        .collect::<Result<_, _>>()?;
    let before: Vec<u64> = stage.engines.iter().map(last).collect();
    let answer = client::post(stage.envoy, case.path, case.headers, &sent).await?;
    let decision: BTreeMap<_, _> = answer
        .header(DECISION)
        .split(';')
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    // The engine says itself which one it was: the decision may not name it.
    let arrived =
        stage
            .engines
            .iter()
            .zip(before)
            .zip(held)
            .find_map(|((engine, before), held)| {
                let records = engine.records();
                let record = records
                    .into_iter()
                    .find(|record| record.sequence > before && case.is_of(&record.body))?;
                Some((engine.options.name.clone(), record, told(&held)))
            });
    let (engine, record, held) = match arrived {
        Some(arrived) => arrived,
        None => {
            return Err(format!(
                "{}: no engine received it (status {}): {}",
                case.name, answer.status, answer.body
            ));
        }
    };
    Ok(Shown {
        decision,
        engine,
        held,
        record,
        answer,
    })
}

fn last(engine: &Engine) -> u64 {
    engine.records().last().map_or(0, |record| record.sequence)
}

/// Runs as a person says them: `4 gpu+cpu, 40 cpu`; `|` stands between prompts.
fn told(evidence: &Value) -> String {
    let prompts = evidence["prompts"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let prompts: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let runs = prompt["runs"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let runs: Vec<_> = runs
                .iter()
                .filter_map(|run| {
                    let tiers: Vec<_> = run[1]
                        .as_array()?
                        .iter()
                        .filter_map(Value::as_str)
                        .collect();
                    (!tiers.is_empty()).then(|| format!("{} {}", run[0], tiers.join("+")))
                })
                .collect();
            if runs.is_empty() {
                "nothing".into()
            } else {
                runs.join(", ")
            }
        })
        .collect();
    prompts.join(" | ")
}

/// The row of a request, with all that is not as the case says.
pub fn row(case: &Case, shown: &Shown) -> Row {
    let mut wrong = Vec::new();
    let mut expect = |what: &str, is: String, must: String| {
        if is != must {
            wrong.push(format!("{what}: {is}, must be {must}"));
        }
    };
    let body = String::from_utf8_lossy(&shown.record.body).into_owned();
    let sent = case.sent();
    expect("status", shown.answer.status.to_string(), "200".into());
    expect("load", shown.part("load").into(), case.decision.into());
    expect("reason", shown.part("reason").into(), case.reason.into());
    let tokens = case
        .tokens
        .map(|tokens| tokens.to_string())
        .unwrap_or_default();
    expect("tokens", shown.part("tokens").into(), tokens);
    expect(
        "body",
        case.params_of(&body).into(),
        case.params_of(&case.received()).into(),
    );
    expect(
        "body, byte for byte",
        (body == case.received()).to_string(),
        "true".into(),
    );
    expect(
        "loaded tokens",
        shown.loads().to_string(),
        case.loads.to_string(),
    );
    if case.streams() {
        let ends = shown.answer.body.ends_with("data: [DONE]\n\n");
        expect("stream ends with [DONE]", ends.to_string(), "true".into());
    }
    Row {
        request: case.name.into(),
        held: shown.held.clone(),
        engine: shown.engine.clone(),
        ewma: shown.ewma().map_or("-".into(), |ewma| format!("{ewma:.2}")),
        decision: format!("{}: {}", shown.part("load"), shown.part("reason")),
        loads: shown.loads().to_string(),
        params: match (case.params_of(&sent), case.params_of(&body)) {
            (sent, received) if sent == received => format!("{received}, unchanged"),
            (sent, received) => format!("{sent} → {received}"),
        },
        wrong,
    }
}
