//! The program: arguments, errors, signals.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv-events-bridge"));
    command.args(arguments);
    command
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kv-events-bridge-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn errors_are_one_line_that_says_what_to_change() {
    let bad = file(
        "bad.yaml",
        "engines: [{endpoint: 'vllm:8000', bind: 'tcp://*:5557'}]",
    );
    let bad = bad.to_str().unwrap();
    for (arguments, says) in [
        (
            &["--config", bad][..],
            "bad.yaml: engines[0].endpoint: \"vllm:8000\": must be the ip:port",
        ),
        (
            &["--config", "/nowhere.yaml"],
            "error: /nowhere.yaml: No such file",
        ),
        (&["--config"], "--config: a file is needed"),
        (&[], "--config: missing"),
        (&["--verbose"], "--verbose: unknown argument"),
    ] {
        let output = program(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.starts_with("error: ") && text.contains(says),
            "{text}"
        );
    }
    std::fs::remove_file(bad).unwrap();
}

#[test]
fn the_example_configuration_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/kv-events-bridge.yaml");
    let output = program(&["--check", "--config", example]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        program(&["--version"])
            .output()
            .unwrap()
            .stdout
            .starts_with(b"kv-events-bridge ")
    );
}

/// Not left behind by a test that fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The log is JSON where asked for, and SIGTERM ends the program well.
#[test]
fn it_serves_until_it_is_told_to_stop() {
    let config = file(
        "good.yaml",
        "listen: 127.0.0.1:0\nlog: {format: json}\nengines: [{endpoint: '10.0.0.7:8000', connect: 'tcp://127.0.0.1:9'}]",
    );
    let child = program(&["--config", config.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut lines = BufReader::new(child.0.stderr.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let serving = lines.find(|line| line["message"] == "serving").unwrap();
    assert_eq!(serving["level"], "INFO");
    assert!(
        serving["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );

    // The shell's own `kill`: a bare machine has no program of that name.
    let killed = Command::new("sh")
        .args(["-c", &format!("kill -TERM {}", child.0.id())])
        .status()
        .unwrap();
    assert!(killed.success());
    // To the end, so that the program never waits for somebody to read its log.
    assert_eq!(lines.last().unwrap()["message"], "stopped");
    assert!(child.0.wait().unwrap().success());
    std::fs::remove_file(config).unwrap();
}
