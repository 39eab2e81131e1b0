//! One chat's life on one engine, as the engine's own events tell it.

use crate::cases::{Case, Life};
use crate::show;
use crate::stage::Stage;
use crate::{client, table};
use stand_in_engine::Engine;
use std::time::Duration;

/// How many things were wrong.
pub async fn show(stage: &Stage) -> Result<usize, String> {
    let [a, b] = stage.engines.as_slice() else {
        return Err("two engines are needed".into());
    };
    let mut wrong = 0;
    table::head();
    a.set_learn(true);
    wrong += step(stage, a, &Life::first("chat, for the first time")).await?;
    a.set_learn(false);
    // It has been computed, and offloaded meanwhile; other prompts then need the GPU's room.
    let case = Life::again("pushed out of the GPU");
    a.evict(case.path, case.sent().as_bytes(), 0, usize::MAX, "gpu")?;
    wrong += step(stage, a, &case).await?;
    wrong += step(stage, b, &Life::first("at the other engine")).await?;
    anew(a).await?;
    wrong += step(stage, a, &Life::first("first engine, on a new node")).await?;
    Ok(wrong)
}

async fn step(stage: &Stage, engine: &Engine, case: &Case) -> Result<usize, String> {
    stage.heard().await?;
    let shown = show::reach(stage, &engine.options.name, case).await?;
    let row = show::row(case, &shown);
    row.print();
    Ok(row.wrong.len())
}

/// Until the bridge has told that nothing is missing of an engine that it found again.
const SETTLED: Duration = Duration::from_secs(2);

/// Another process, with an empty disk.
async fn anew(engine: &Engine) -> Result<(), String> {
    engine.clear_cache(Some("fs"));
    engine.restarted().await;
    greet(engine, 0).await?;
    tokio::time::sleep(SETTLED).await;
    Ok(())
}

/// An engine says nothing of itself until it has served something. Each number is news.
pub async fn greet(engine: &Engine, number: u32) -> Result<(), String> {
    engine.set_learn(true);
    let text = format!("Good morning for the {number}th time! It is going to be a fine day.");
    let body = format!("{{\"prompt\":\"{text}\",\"max_tokens\":1}}");
    let answer = client::post(engine.address(), "/v1/completions", &[], &body).await?;
    engine.set_learn(false);
    match answer.status {
        200 => Ok(()),
        status => Err(format!("engine {}: status {status}", engine.options.name)),
    }
}
