//! The bridge's command line.

use selective_kv_companion::bridge::Bridge;
use selective_kv_companion::bridge::config::{Config, Format};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
kv-events-bridge --config FILE   run with this configuration (YAML or JSON)
                 --check         only say whether the configuration is right
                 --version, --help";

struct Arguments {
    config: String,
    check: bool,
}

fn arguments() -> Result<Option<Arguments>, String> {
    let mut config = None;
    let mut check = false;
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--config" => config = Some(given.next().ok_or("--config: a file is needed")?),
            "--check" => check = true,
            "--version" => {
                println!("kv-events-bridge {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(format!("{other}: unknown argument\n{USAGE}")),
        }
    }
    let config = config.ok_or(format!("--config: missing\n{USAGE}"))?;
    Ok(Some(Arguments { config, check }))
}

fn start_log(config: &Config) {
    let log = tracing_subscriber::fmt()
        .with_max_level(config.level)
        .with_target(false)
        .with_writer(std::io::stderr);
    match config.format {
        Format::Text => log.with_ansi(false).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let file = &arguments.config;
    let text = tokio::fs::read_to_string(file)
        .await
        .map_err(|error| format!("{file}: {error}"))?;
    let config = Config::parse(&text).map_err(|error| format!("{file}: {error}"))?;
    if arguments.check {
        println!("{file}: {} engines", config.engines.len());
        return Ok(());
    }
    start_log(&config);
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let bridge = Bridge::start(config)
        .await
        .map_err(|error| format!("{file}: {error}"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    bridge.stop().await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match arguments() {
        Ok(Some(arguments)) => run(arguments).await,
        Ok(None) => Ok(()),
        Err(wrong) => Err(wrong),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("error: {wrong}");
            ExitCode::FAILURE
        }
    }
}
