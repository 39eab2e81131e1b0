//! `stand-in-engine`: one engine from the command line. Prints its addresses as one line of JSON,
//! then runs until it is interrupted, terminated, or its standard input is closed (`--with-parent`).

use stand_in_engine::hashing::Algorithm;
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
  --alias NAME              another name of the model; repeatable
  --adapter NAME=PATH       a LoRA adapter; repeatable
  --block-size TOKENS       default 32
  --blocks-per-chunk N      GPU blocks of an offload chunk (default 1)
  --gpu-blocks N            GPU blocks that fit (default: no limit)
  --cpu-chunks N            chunks that fit into the CPU tier (default: no limit)
  --tier TYPE[:LOCALITY][+events]
                            a secondary tier: fs, obj, p2p, kvcr, example; LOCAL, REMOTE; repeatable
  --hash-algorithm NAME     sha256_cbor (default) or sha256
  --hash-seed TEXT          PYTHONHASHSEED (default 0); empty: not set
  --events [PORT]:[REPLAY]  publishes KV events on 127.0.0.1; a port left out is a free one
  --topic TOPIC             of its events (default: empty)
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
            "--alias" => options.aliases.push(value()?),
            "--adapter" => {
                let value = value()?;
                let (name, path) = value
                    .split_once('=')
                    .ok_or_else(|| format!("{flag} {value}: NAME=PATH"))?;
                options.adapters.push((name.into(), path.into()));
            }
            "--gpu-blocks" => options.geometry.gpu_blocks = Some(positive(&flag, &value()?)?),
            "--cpu-chunks" => options.geometry.cpu_chunks = Some(positive(&flag, &value()?)?),
            "--hash-algorithm" => options.hash_algorithm = Algorithm::parse(&value()?)?,
            "--hash-seed" => options.hash_seed = Some(value()?).filter(|seed| !seed.is_empty()),
            "--events" => {
                let value = value()?;
                let (port, replay) = value
                    .split_once(':')
                    .ok_or_else(|| format!("{flag} {value}: [PORT]:[REPLAY]"))?;
                let port_of = |text: &str| match text {
                    "" => Ok(0),
                    text => parsed(&flag, text),
                };
                let events = options.events.get_or_insert_default();
                (events.port, events.replay_port) = (port_of(port)?, port_of(replay)?);
            }
            "--topic" => options.events.get_or_insert_default().topic = value()?,
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
    let ports = engine.event_ports();
    let events = ports.map(|ports| format!("tcp://127.0.0.1:{}", ports.publisher));
    let replay = ports.and_then(|ports| ports.replay);
    let replay = replay.map(|port| format!("tcp://127.0.0.1:{port}"));
    println!(
        "{}",
        serde_json::json!({
            "name": name, "listen": listen, "control": control, "events": events, "replay": replay,
        })
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
