//! `stand-in-engine`: one engine from the command line. Prints its addresses as one line of JSON,
//! then runs until it is interrupted, terminated, or its standard input is closed (`--with-parent`).

use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, Options};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const HELP: &str = "\
A stand-in for a vLLM engine.

  --listen ADDRESS          the engine (default 127.0.0.1:0, a free port)
  --control ADDRESS         its control API (default 127.0.0.1:0)
  --name NAME               default: engine
  --version VERSION         of vLLM (default 0.32.0)
  --model NAME              default: tiny
  --block-size TOKENS       default 32
  --blocks-per-chunk N      GPU blocks of an offload chunk (default 1)
  --tier TYPE[:LOCALITY]    a secondary tier: fs, obj, p2p, kvcr, example; LOCAL, REMOTE; repeatable
  --slots N                 requests served at once; more wait (default: no limit)
  --latency-ms MS           to the first token
  --token-interval-ms MS    between tokens
  --no-learn                serving changes nothing in the cache
  --with-parent             stop when standard input is closed
";

struct Arguments {
    options: Options,
    with_parent: bool,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut options = Options::default();
    let mut with_parent = false;
    while let Some(flag) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--listen" => options.listen = parsed(&flag, &value()?)?,
            "--control" => options.control = parsed(&flag, &value()?)?,
            "--name" => options.name = value()?,
            "--version" => options.version = value()?,
            "--model" => options.model = value()?,
            "--block-size" => options.geometry.block_size = positive(&flag, &value()?)?,
            "--blocks-per-chunk" => options.geometry.blocks_per_chunk = positive(&flag, &value()?)?,
            "--tier" => options.tiers.push(TierKind::parse(&value()?)?),
            "--slots" => options.slots = Some(positive(&flag, &value()?)?),
            "--latency-ms" => options.latency = Duration::from_millis(parsed(&flag, &value()?)?),
            "--token-interval-ms" => {
                options.token_interval = Duration::from_millis(parsed(&flag, &value()?)?)
            }
            "--no-learn" => options.learn = false,
            "--with-parent" => with_parent = true,
            _ => return Err(format!("unknown argument {flag}\n\n{HELP}")),
        }
    }
    Ok(Arguments {
        options,
        with_parent,
    })
}

fn parsed<T: std::str::FromStr>(flag: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{flag} {value}: not understood"))
}

fn positive(flag: &str, value: &str) -> Result<usize, String> {
    parsed(flag, value)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("{flag} {value}: a number from 1"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stand-in-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let Arguments {
        options,
        with_parent,
    } = arguments(std::env::args().skip(1))?;
    let name = options.name.clone();
    // Before anybody can know the addresses and send a signal.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let (listen, control) = (options.listen, options.control);
    let mut engine =
        Engine::start(options).map_err(|error| format!("{listen} or {control}: {error}"))?;
    let (listen, control) = (
        engine.address().to_string(),
        engine.control_address().to_string(),
    );
    println!(
        "{}",
        serde_json::json!({"name": name, "listen": listen, "control": control})
    );
    let _ = std::io::stdout().flush();
    let (closed, parent) = tokio::sync::oneshot::channel();
    if with_parent {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = closed.send(());
        });
    } else {
        std::mem::forget(closed);
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = parent => {}
    }
    engine.stop();
    Ok(())
}
