//! The demo behind scripts/demo: two stand-in engines, kv-events-bridge, kv-prefetch-agent, and Envoy with both roles of the
//! module, real requests, and a table of what became of each. Ends with failure if anything is not as DESIGN says.

// The root's clippy.toml speaks of the module; this is a native program.
#![allow(clippy::disallowed_methods)]

mod cases;
mod client;
mod files;
mod life;
mod pressure;
mod process;
mod show;
mod stage;
mod table;

use stage::{DECISION, Stage};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

const HELP: &str = "\
scripts/demo [--keep]

Starts two stand-in engines, kv-events-bridge, kv-prefetch-agent and Envoy on free ports, sends requests, prints what
became of each, and stops everything. With --keep it all goes on running until Ctrl-C.
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut keep = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--keep" => keep = true,
            "--help" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => {
                eprintln!("unknown argument {argument}\n\n{HELP}");
                return ExitCode::FAILURE;
            }
        }
    }
    let mut interrupts = match Interrupts::listen() {
        Ok(interrupts) => interrupts,
        Err(error) => {
            eprintln!("error: signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    run(keep, &mut interrupts).await
}

/// Ctrl-C, a polite end, or the terminal closed.
struct Interrupts([Signal; 3]);

impl Interrupts {
    fn listen() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// `None` if one came first; what `work` owned is gone then.
    async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }
}

const GAUGE_LIMIT: Duration = Duration::from_secs(4);
/// As a shell reports a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

async fn run(keep: bool, interrupts: &mut Interrupts) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!(
        "==> Starting two stand-in engines, kv-events-bridge, kv-prefetch-agent, and Envoy with kv-scorer and selective-kv (a few seconds)"
    );
    let stage = match interrupts.or(Stage::set(&root, &folder(&root))).await {
        Some(Ok(stage)) => stage,
        Some(Err(error)) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
        None => {
            println!("\nEverything is stopped.");
            return ExitCode::from(INTERRUPTED);
        }
    };
    let outcome = interrupts.or(play(&stage)).await;
    if keep && outcome.is_some() {
        told_to_keep(&stage);
        interrupts.next().await;
    }
    stage.stop();
    println!("\nEverything is stopped.");
    match outcome {
        Some(Ok(0)) => {
            println!("All of it was as it must be.");
            ExitCode::SUCCESS
        }
        Some(Ok(wrong)) => {
            eprintln!("error: {wrong} things were not as they must be (marked ✗)");
            ExitCode::FAILURE
        }
        Some(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        None => ExitCode::from(INTERRUPTED),
    }
}

/// Where the demo keeps its files: beside what cargo built.
fn folder(root: &Path) -> PathBuf {
    let program = std::env::current_exe().ok();
    let target = program
        .as_deref()
        .and_then(Path::parent)
        .and_then(Path::parent);
    target
        .map_or_else(|| root.join("target"), Path::to_path_buf)
        .join("demo")
}

/// How many things were wrong.
async fn play(stage: &Stage) -> Result<usize, String> {
    println!(
        "
==> One chat, as the engines' KV events tell of it

  Each engine publishes what it stores and drops; kv-events-bridge keeps that, kv-scorer fetches it from
  there, has the chat's tokens counted by an engine's /tokenize, and so knows which blocks of this very
  prompt each engine holds. A block has 32 tokens. The rule: load only if at least 1024 tokens (route
  chat: 2048) can be loaded from outside the GPU. The engine says what it received and what it loads.
"
    );
    let mut wrong = life::show(stage).await?;
    println!(
        "
==> Requests of many kinds

  A gate also counts: it closes when the EWMA of an engine's waiting requests reaches 8, and opens at 4.
"
    );
    table::head();
    for case in cases::all() {
        show::place(stage, &case).await?;
        let row = show::row(&case, &show::send(stage, &case).await?);
        row.print();
        wrong += row.wrong.len();
    }
    println!("\n==> Pressure builds and eases (about fifteen seconds)");
    wrong += pressure::show(stage).await?;
    println!(
        "
==> Cold KV-cache files, brought back while their request is on its way

  A prompt of 8 blocks: both engines hold 3 in the GPU or the CPU, the other files lie in a shared file
  system; some are cold (their bytes are in a store behind it), one is here, one was never written.
  kv-scorer tells kv-prefetch-agent what the engine lacks, and that reads the heads of the cold ones.
"
    );
    wrong += files::show(stage).await?;
    wrong += counters(stage).await?;
    Ok(wrong)
}

/// Prints them; returns how many gauges still say that a gate is closed.
async fn counters(stage: &Stage) -> Result<usize, String> {
    const SHOWN: [&str; 7] = [
        "selective_kv_decisions_total",
        "selective_kv_edits_total",
        "selective_kv_gate_",
        "selective_kv_scorer_samples_total",
        "selective_kv_scorer_evidence_total",
        "selective_kv_scorer_tokenize_total",
        "selective_kv_scorer_prefetch",
    ];
    println!("\n==> What an operator sees (/stats/prometheus)\n");
    // Gauges follow the policy's timer, once a second.
    let end = Instant::now() + GAUGE_LIMIT;
    loop {
        let page = client::get(stage.admin, "/stats/prometheus").await?.body;
        let closed =
            |line: &&str| line.starts_with("selective_kv_gate_closed") && !line.ends_with(" 0");
        let closed: Vec<_> = page.lines().filter(closed).collect();
        if !closed.is_empty() && Instant::now() < end {
            tokio::time::sleep(GAUGE_LIMIT / 20).await;
            continue;
        }
        for line in page
            .lines()
            .filter(|line| SHOWN.iter().any(|name| line.starts_with(name)))
        {
            println!("  {line}");
        }
        for line in &closed {
            println!("      ✗ {line}, must be 0: the gate is open");
        }
        return Ok(closed.len());
    }
}

fn told_to_keep(stage: &Stage) {
    let [a, b] = stage.engines.as_slice() else {
        return;
    };
    println!("
==> Still running

  Envoy              http://{}
  Envoy's admin      http://{}   (/stats/prometheus, /config_dump)
  its bootstrap      {}
  kv-events-bridge   http://{}   (/metrics)
  kv-prefetch-agent  http://{}   (/metrics)
  engine {}           http://{}   control API: http://{}/control
  engine {}           http://{}   control API: http://{}/control

  Try:
    curl -si http://{envoy}/v1/completions -H 'content-type: application/json' \\
      -d '{{\"model\":\"tiny\",\"prompt\":\"hello\",\"max_tokens\":4}}'          # the decision is in {DECISION}
    curl -s http://{control}/control/requests                        # what engine {name} received
    curl -s http://{control}/control/settings -d '{{\"waiting\":20}}'   # pressure on engine {name}; 0 ends it

  Stop everything: Ctrl-C here, or kill {pid}",
        stage.envoy,
        stage.admin,
        stage.bootstrap.display(),
        stage.bridge,
        stage.agent,
        a.options.name, a.address(), a.control_address(),
        b.options.name, b.address(), b.control_address(),
        envoy = stage.envoy,
        control = a.control_address(),
        name = a.options.name,
        pid = std::process::id(),
    );
}
