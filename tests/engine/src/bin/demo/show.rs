//! Sends one request through Envoy and compares what came of it with what must.

use crate::cases::Case;
use crate::client;
use crate::stage::{DECISION, EVIDENCE, Stage};
use crate::table::Row;
use serde_json::Value;
use stand_in_engine::{Engine, Record};
use std::collections::BTreeMap;

/// One request as it went.
pub struct Shown {
    /// By the names of the decision's summary: `load`, `reason`, `tokens`, `ewma`, `endpoint`.
    pub decision: BTreeMap<String, String>,
    pub engine: String,
    evidence: String,
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

/// Puts the case's KV where it is to be, on both engines.
pub fn place(stage: &Stage, case: &Case) -> Result<(), String> {
    for engine in &stage.engines {
        for (tier, blocks) in case.held {
            engine.place(case.path, case.sent().as_bytes(), 0, *blocks, tier)?;
        }
    }
    Ok(())
}

pub async fn send(stage: &Stage, case: &Case) -> Result<Shown, String> {
    let sent = case.sent();
    // What an ext_proc in front of the policy would know of the chosen engine; both hold the same.
    let evidence = match stage.engines.first().filter(|_| case.with_evidence) {
        Some(engine) => Some(engine.evidence(case.path, sent.as_bytes())?),
        None => None,
    };
    let header = evidence.as_ref().map(Value::to_string);
    let mut headers = case.headers.to_vec();
    headers.extend(header.as_ref().map(|header| (EVIDENCE, header.as_str())));
    let before: Vec<u64> = stage.engines.iter().map(last).collect();
    let answer = client::post(stage.envoy, case.path, &headers, &sent).await?;
    let decision: BTreeMap<_, _> = answer
        .header(DECISION)
        .split(';')
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    // The engine says itself which one it was: the decision may not name it.
    let arrived = stage
        .engines
        .iter()
        .zip(before)
        .find_map(|(engine, before)| {
            let records = engine.records();
            let record = records.into_iter().find(|record| {
                record.sequence > before
                    && (record.body == case.sent() || record.body == case.received())
            })?;
            Some((engine.options.name.clone(), record))
        });
    let (engine, record) = match arrived {
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
        evidence: evidence.as_ref().map_or("none".into(), told),
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
    expect(
        "evidence header at the engine",
        shown.record.header(EVIDENCE).is_some().to_string(),
        "false".into(),
    );
    if case.streams() {
        let ends = shown.answer.body.ends_with("data: [DONE]\n\n");
        expect("stream ends with [DONE]", ends.to_string(), "true".into());
    }
    Row {
        request: case.name.into(),
        evidence: shown.evidence.clone(),
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
