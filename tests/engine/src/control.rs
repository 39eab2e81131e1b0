//! The control API: JSON over HTTP on a port of its own.
//!
//! | request | does |
//! |---|---|
//! | `GET /control` | says how the engine is set and what is queued |
//! | `POST /control/settings` | any of `version`, `waiting` (a number, a text, or `{"<engine>": …}`), `latency_ms`, `token_interval_ms`, `learn`, `metrics` (a page; `null` for the engine's own), `stores` (`{"cpu": [bytes, seconds], "1:fs": …}` stored so far; `null` for the engine's own) |
//! | `POST /control/faults` | `count` (default 1) and one of `status`, `reset: true`, `delay_ms`; optional `path` (how the target begins), `after_body` |
//! | `DELETE /control/faults` | no more faults |
//! | `POST /control/cache` | `clear` (`true` or a tier), then `place` and `evict`: lists of `{path, body, tiers, from, blocks}` |
//! | `POST /control/flush` | `/reset_prefix_cache`; `external: true`: the primary tier too |
//! | `POST /control/events` | `lose`: so many of the next batches are lost for good |
//! | `POST /control/restart` | another process: caches, figures and event numbers begin anew |
//! | `POST /control/evidence` | `path` and `body` of a request: tier evidence for it |
//! | `GET /control/requests` | what reached the engine; `?since=N`: after sequence number N |
//! | `GET /control/requests/N/body` | one body, byte for byte |
//! | `DELETE /control/requests` | forgets them |

use crate::json::Value;
use crate::metrics::{self, Stored};
use crate::server::{AnswerBody, Dropped, json, response};
use crate::state::{Fault, FaultKind, State};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const SETTINGS: [&str; 7] = [
    "version",
    "waiting",
    "latency_ms",
    "token_interval_ms",
    "learn",
    "metrics",
    "stores",
];
const FAULTS: [&str; 6] = ["count", "status", "reset", "delay_ms", "path", "after_body"];
const CACHE: [&str; 3] = ["clear", "place", "evict"];
const PLACE: [&str; 5] = ["path", "body", "tiers", "from", "blocks"];

pub async fn handle(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Dropped> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Err(Dropped);
    };
    let body = body.to_bytes();
    let path = head.uri.path().trim_end_matches('/').to_owned();
    if let Some(number) = path
        .strip_prefix("/control/requests/")
        .and_then(|rest| rest.strip_suffix("/body"))
    {
        let wanted = number.parse::<u64>().ok();
        let found = state
            .records()
            .into_iter()
            .find(|record| Some(record.sequence) == wanted);
        return Ok(match found {
            Some(record) => response(200, record.body),
            None => json(404, &json!({"error": format!("no request {number}")})),
        });
    }
    let outcome = match (&head.method, path.as_str()) {
        (&Method::GET, "/control") => Ok(state.summary()),
        (&Method::GET, "/control/requests") => requests(&state, head.uri.query()),
        (&Method::DELETE, "/control/requests") => {
            state.clear_records();
            Ok(json!({}))
        }
        (&Method::DELETE, "/control/faults") => {
            state.clear_faults();
            Ok(json!({}))
        }
        (&Method::POST, "/control/restart") => {
            let _ = state.restart().await;
            Ok(json!({}))
        }
        (&Method::POST, _) => match Value::parse(&body) {
            Ok(body) => post(&state, &path, &body),
            Err(error) => Err(error.to_string()),
        },
        _ => {
            return Ok(json(
                404,
                &json!({"error": format!("no {} {path}", head.method)}),
            ));
        }
    };
    Ok(match outcome {
        Ok(value) => json(200, &value),
        Err(error) => json(400, &json!({ "error": error })),
    })
}

fn post(state: &State, path: &str, body: &Value) -> Result<serde_json::Value, String> {
    match path {
        "/control/settings" => settings(state, body).map(|()| state.summary()),
        "/control/faults" => fault(body).map(|fault| {
            state.add_fault(fault);
            json!({})
        }),
        "/control/cache" => cache(state, body).map(|()| json!({})),
        "/control/flush" => {
            only(body, &["external"])?;
            state.reset_prefix_cache(body.get("external").is_some_and(Value::is_true));
            Ok(json!({}))
        }
        "/control/events" => {
            only(body, &["lose"])?;
            state.lose_events(whole(body, "lose")?);
            Ok(json!({}))
        }
        "/control/evidence" => {
            only(body, &["path", "body"])?;
            state.evidence(
                text(body, "path")?,
                body.get("body").unwrap_or(&Value::Null),
            )
        }
        _ => Err(format!("no POST {path}")),
    }
}

fn requests(state: &State, query: Option<&str>) -> Result<serde_json::Value, String> {
    let since = match query {
        None => 0,
        Some(query) => query
            .strip_prefix("since=")
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("?{query}: since=<sequence number>"))?,
    };
    let records = state.records();
    Ok(records
        .iter()
        .filter(|record| record.sequence > since)
        .map(|record| record.to_json())
        .collect())
}

fn settings(state: &State, body: &Value) -> Result<(), String> {
    only(body, &SETTINGS)?;
    if body.get("version").is_some() {
        state.set_version(text(body, "version")?);
    }
    if let Some(waiting) = body.get("waiting") {
        match waiting.as_object() {
            Some(engines) => {
                let gauges = engines
                    .iter()
                    .map(|(engine, value)| Ok((engine.clone(), gauge(value)?)));
                state.set_all_waiting(gauges.collect::<Result<_, String>>()?);
            }
            None => state.set_waiting("0", &gauge(waiting)?),
        }
    }
    if body.get("latency_ms").is_some() {
        state.set_latency(milliseconds(body, "latency_ms")?);
    }
    if body.get("token_interval_ms").is_some() {
        state.set_token_interval(milliseconds(body, "token_interval_ms")?);
    }
    match body.get("learn") {
        None => {}
        Some(Value::Bool(learn)) => state.set_learn(*learn),
        Some(other) => return Err(format!("learn {}: true or false", other.repr())),
    }
    match body.get("metrics") {
        None => {}
        Some(Value::Null) => state.set_metrics(None),
        Some(page) => {
            let page = page.as_str().ok_or("metrics: a text or null")?;
            state.set_metrics(Some(page.to_owned()));
        }
    }
    match body.get("stores") {
        None => {}
        Some(Value::Null) => state.set_stores(None),
        Some(tiers) => {
            let tiers = tiers.as_object().ok_or("stores: an object or null")?;
            let tiers = tiers
                .iter()
                .map(|(tier, value)| Ok((tier.clone(), stored(value)?)));
            state.set_stores(Some(tiers.collect::<Result<_, String>>()?));
        }
    }
    Ok(())
}

fn stored(value: &Value) -> Result<Stored, String> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    let figures = match value.as_array() {
        Some([bytes, seconds]) => number(bytes).zip(number(seconds)),
        _ => None,
    };
    let (bytes, seconds) =
        figures.ok_or_else(|| format!("stores {}: [bytes, seconds]", value.repr()))?;
    Ok(Stored { bytes, seconds })
}

/// A number as an engine writes it, a text as it is.
fn gauge(value: &Value) -> Result<String, String> {
    match value {
        Value::Int(number) => Ok(metrics::sample(*number as f64)),
        Value::Float(number) => Ok(metrics::sample(*number)),
        Value::Str(text) => Ok(text.clone()),
        other => Err(format!("waiting {}: a number or a text", other.repr())),
    }
}

fn fault(body: &Value) -> Result<Fault, String> {
    only(body, &FAULTS)?;
    let kinds = [
        match body.get("status") {
            None => None,
            Some(_) => {
                let status = whole(body, "status")?;
                let status = u16::try_from(status)
                    .ok()
                    .filter(|status| (100..1000).contains(status));
                Some(FaultKind::Status(status.ok_or("status: 100 to 999")?))
            }
        },
        body.get("reset")
            .is_some_and(Value::is_true)
            .then_some(FaultKind::Reset),
        match body.get("delay_ms") {
            None => None,
            Some(_) => Some(FaultKind::Delay(milliseconds(body, "delay_ms")?)),
        },
    ];
    let mut kinds = kinds.into_iter().flatten();
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        return Err("a fault is one of status, reset, delay_ms".into());
    };
    Ok(Fault {
        count: if body.get("count").is_some() {
            whole(body, "count")?
        } else {
            1
        },
        kind,
        path: body
            .get("path")
            .map(|_| text(body, "path").map(str::to_owned))
            .transpose()?,
        after_body: body.get("after_body").is_some_and(Value::is_true),
    })
}

fn cache(state: &State, body: &Value) -> Result<(), String> {
    only(body, &CACHE)?;
    match body.get("clear") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => state.clear_cache(None),
        Some(_) => state.clear_cache(Some(text(body, "clear")?)),
    }
    for (key, act) in [("place", State::place as Act), ("evict", State::evict)] {
        let blocks = body.get(key).and_then(Value::as_array);
        for blocks in blocks.unwrap_or_default() {
            move_blocks(state, key, act, blocks)?;
        }
    }
    Ok(())
}

type Act = fn(&State, &str, &Value, usize, usize, &str) -> Result<(), String>;

fn move_blocks(state: &State, key: &str, act: Act, blocks: &Value) -> Result<(), String> {
    only(blocks, &PLACE)?;
    let from = if blocks.get("from").is_some() {
        whole(blocks, "from")?
    } else {
        0
    };
    let to = match blocks.get("blocks") {
        None => usize::MAX,
        Some(_) => from.saturating_add(whole(blocks, "blocks")?),
    };
    let missing = |what: &str| format!("{key}: {what}");
    let request = blocks
        .get("body")
        .ok_or_else(|| missing("body is missing"))?;
    let tiers = blocks.get("tiers").and_then(Value::as_array);
    for tier in tiers.ok_or_else(|| missing("tiers is a list"))? {
        let tier = tier.as_str().ok_or_else(|| missing("tiers are texts"))?;
        act(state, text(blocks, "path")?, request, from, to, tier)?;
    }
    Ok(())
}

fn only(body: &Value, keys: &[&str]) -> Result<(), String> {
    let members = body.as_object().ok_or("an object is wanted")?;
    match members
        .iter()
        .find(|(key, _)| !keys.contains(&key.as_str()))
    {
        Some((key, _)) => Err(format!("unknown key \"{key}\": {}", keys.join(", "))),
        None => Ok(()),
    }
}

fn text<'v>(body: &'v Value, key: &str) -> Result<&'v str, String> {
    body.get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{key}: a text is wanted"))
}

fn whole(body: &Value, key: &str) -> Result<usize, String> {
    let number = body
        .get(key)
        .and_then(Value::as_int)
        .and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("{key}: a whole number is wanted"))
}

fn milliseconds(body: &Value, key: &str) -> Result<Duration, String> {
    whole(body, key).map(|ms| Duration::from_millis(ms as u64))
}
