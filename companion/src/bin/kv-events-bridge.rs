use selective_kv_companion::bridge::Bridge;
use selective_kv_companion::common::cli;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    cli::main::<Bridge>().await
}
