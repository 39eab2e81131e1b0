//! Pressure builds on one engine and eases: its gate closes, then opens; the other's stays open.

use crate::cases::{repeated, repeated_under_pressure};
use crate::show::{self, Shown};
use crate::stage::Stage;
use crate::{client, table};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The bootstrap's gate: closes at 8, opens at half of it.
const MAX_WAITING: f64 = 8.0;
const REOPEN: f64 = 4.0;
/// Clients that another gateway brings to the engine, in the demo's stead.
const CLIENTS: usize = 24;
const STEP: Duration = Duration::from_secs(1);
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// Rows with the gate closed before the load ends.
const CLOSED_ROWS: usize = 2;

/// What was wrong, in rows and in the course of it.
pub async fn show(stage: &Stage) -> Result<usize, String> {
    show::place(stage, &repeated()).await?;
    let [a, b] = stage.engines.as_slice() else {
        return Err("two engines are needed".into());
    };
    let (a, b) = (&a.options.name, &b.options.name);
    let mut wrong = 0;

    println!("\n  The same chat request to both engines, in quiet:\n");
    table::head();
    for engine in [a, b] {
        wrong += step(stage, engine, Phase::Open).await?.0;
    }

    println!(
        "\n  Now {CLIENTS} clients of another gateway keep engine {a} busy, past this Envoy; it serves 4 at once.\n"
    );
    table::head();
    let load = busy(stage.engines[0].address());
    let end = Instant::now() + CLOSE_LIMIT;
    let mut closed = 0;
    while closed < CLOSED_ROWS {
        tokio::time::sleep(STEP).await;
        let (faults, shown) = step(stage, a, Phase::Either).await?;
        wrong += faults;
        if shown.part("reason") == "queue_pressure" {
            closed += 1;
        } else if closed > 0 {
            wrong += complain("the gate opened under pressure");
        }
        if Instant::now() > end {
            wrong += complain("the gate did not close");
            break;
        }
    }
    // The other engine has no queue, and its gate is its own.
    wrong += step(stage, b, Phase::Open).await?.0;
    drop(load);

    println!("\n  The other clients are gone.\n");
    table::head();
    let end = Instant::now() + OPEN_LIMIT;
    loop {
        tokio::time::sleep(STEP).await;
        let (faults, shown) = step(stage, a, Phase::Either).await?;
        wrong += faults;
        if shown.part("reason") == "admitted" {
            break;
        }
        if Instant::now() > end {
            wrong += complain("the gate did not open");
            break;
        }
    }
    wrong += step(stage, b, Phase::Open).await?.0;
    Ok(wrong)
}

fn complain(what: &str) -> usize {
    println!("      ✗ {what}");
    1
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// The gate must be open.
    Open,
    /// The EWMA decides, as far as it can be told from it.
    Either,
}

/// One request that reaches this engine, checked and printed.
async fn step(stage: &Stage, engine: &str, phase: Phase) -> Result<(usize, Shown), String> {
    let waiting = stage
        .engines
        .iter()
        .find(|e| e.options.name == engine)
        .map_or(0, |e| e.queued());
    let shown = show::reach(stage, engine, &repeated_under_pressure()).await?;
    let case = match shown.part("reason") {
        "queue_pressure" => repeated_under_pressure(),
        _ => repeated(),
    };
    let mut row = show::row(&case, &shown);
    row.request = format!("chat, {waiting} waiting there");
    let admitted = shown.part("reason") == "admitted";
    match shown.ewma() {
        None => row.wrong.push("no EWMA: the gate has no samples".into()),
        Some(ewma) if ewma >= MAX_WAITING && admitted => {
            row.wrong.push("admitted at or above 8 waiting".into())
        }
        Some(ewma) if ewma <= REOPEN && !admitted => {
            row.wrong.push("vetoed at or below 4 waiting".into())
        }
        Some(_) if phase == Phase::Open && !admitted => row.wrong.push("vetoed in quiet".into()),
        Some(_) => {}
    }
    row.print();
    Ok((row.wrong.len(), shown))
}

/// Clients in a closed loop, until dropped.
fn busy(engine: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(async move {
            while client::post(
                engine,
                "/v1/completions",
                &[],
                "{\"prompt\":\"busy\",\"max_tokens\":1}",
            )
            .await
            .is_ok()
            {}
        });
    }
    clients
}
