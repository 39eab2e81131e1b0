//! The command line of a program that serves: `--config FILE`, `--check`, signals, the log.

use super::settings::{Error, Format, Log};
use std::io;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// A program that serves until it is told to stop.
pub trait Program: Sized {
    const NAME: &'static str;
    type Config;

    fn parse(text: &str) -> Result<Self::Config, Error>;
    fn log(config: &Self::Config) -> Log;
    /// What `--check` says of a right configuration.
    fn summary(config: &Self::Config) -> String;
    fn start(config: Self::Config) -> impl Future<Output = io::Result<Self>>;
    fn stop(self) -> impl Future<Output = ()>;
}

struct Arguments {
    config: String,
    check: bool,
}

fn usage(name: &str) -> String {
    format!(
        "{name} --config FILE   run with this configuration (YAML or JSON)
{blank} --check         only say whether the configuration is right
{blank} --version, --help",
        blank = " ".repeat(name.len())
    )
}

fn arguments(name: &str) -> Result<Option<Arguments>, String> {
    let mut config = None;
    let mut check = false;
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--config" => config = Some(given.next().ok_or("--config: a file is needed")?),
            "--check" => check = true,
            "--version" => {
                println!("{name} {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--help" | "-h" => {
                println!("{}", usage(name));
                return Ok(None);
            }
            other => return Err(format!("{other}: unknown argument\n{}", usage(name))),
        }
    }
    let config = config.ok_or_else(|| format!("--config: missing\n{}", usage(name)))?;
    Ok(Some(Arguments { config, check }))
}

fn start_log(log: Log) {
    let writer = tracing_subscriber::fmt()
        .with_max_level(log.level)
        .with_target(false)
        .with_writer(std::io::stderr);
    match log.format {
        Format::Text => writer.with_ansi(false).init(),
        Format::Json => writer.json().flatten_event(true).init(),
    }
}

async fn run<P: Program>(arguments: Arguments) -> Result<(), String> {
    let file = &arguments.config;
    let text = tokio::fs::read_to_string(file)
        .await
        .map_err(|error| format!("{file}: {error}"))?;
    let config = P::parse(&text).map_err(|error| format!("{file}: {error}"))?;
    if arguments.check {
        println!("{file}: {}", P::summary(&config));
        return Ok(());
    }
    start_log(P::log(&config));
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let program = P::start(config)
        .await
        .map_err(|error| format!("{file}: {error}"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    program.stop().await;
    Ok(())
}

/// The whole of `main`.
pub async fn main<P: Program>() -> ExitCode {
    let ended = match arguments(P::NAME) {
        Ok(Some(arguments)) => run::<P>(arguments).await,
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
