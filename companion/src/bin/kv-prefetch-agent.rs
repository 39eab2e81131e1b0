use selective_kv_companion::common::cli;
use selective_kv_companion::prefetch::Prefetch;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    cli::main::<Prefetch>().await
}
