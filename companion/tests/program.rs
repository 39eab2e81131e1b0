//! The programs: arguments, errors, signals.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use support::http::{metric, send};
use support::tree::{DIGEST, MODEL, Tree, block, config, message};

#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    path: &'static str,
    example: &'static str,
}

const BRIDGE: Program = Program {
    name: "kv-events-bridge",
    path: env!("CARGO_BIN_EXE_kv-events-bridge"),
    example: concat!(env!("CARGO_MANIFEST_DIR"), "/kv-events-bridge.yaml"),
};
const AGENT: Program = Program {
    name: "kv-prefetch-agent",
    path: env!("CARGO_BIN_EXE_kv-prefetch-agent"),
    example: concat!(env!("CARGO_MANIFEST_DIR"), "/kv-prefetch-agent.yaml"),
};

impl Program {
    fn with(self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path);
        command.args(arguments);
        command
    }
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kv-companion-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn errors_are_one_line_that_says_what_to_change() {
    let bridge = file(
        "bridge-bad.yaml",
        "engines: [{endpoint: 'vllm:8000', bind: 'tcp://*:5557'}]",
    );
    let agent = file("agent-bad.yaml", "rootDir: kv\nmodelName: m");
    for (program, arguments, says) in [
        (
            BRIDGE,
            &["--config", bridge.to_str().unwrap()][..],
            "bridge-bad.yaml: engines[0].endpoint: \"vllm:8000\": must be the ip:port",
        ),
        (
            AGENT,
            &["--config", agent.to_str().unwrap()],
            "agent-bad.yaml: rootDir: kv: must be an absolute path",
        ),
        (
            BRIDGE,
            &["--config", "/nowhere.yaml"],
            "error: /nowhere.yaml: No such file",
        ),
        (AGENT, &["--config"], "--config: a file is needed"),
        (
            BRIDGE,
            &[],
            "--config: missing\nkv-events-bridge --config FILE",
        ),
        (
            AGENT,
            &[],
            "--config: missing\nkv-prefetch-agent --config FILE",
        ),
        (BRIDGE, &["--verbose"], "--verbose: unknown argument"),
    ] {
        let output = program.with(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.starts_with("error: ") && text.contains(says),
            "{text}"
        );
    }
    for path in [bridge, agent] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn the_example_configurations_are_right() {
    for program in [BRIDGE, AGENT] {
        let output = program
            .with(&["--check", "--config", program.example])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let version = program.with(&["--version"]).output().unwrap().stdout;
        assert!(version.starts_with(format!("{} ", program.name).as_bytes()));
    }
}

/// Not left behind by a test that fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that runs, with the lines of its log.
struct Running {
    child: Ended,
    before: Vec<serde_json::Value>,
    lines: Box<dyn Iterator<Item = serde_json::Value>>,
    address: SocketAddr,
}

impl Running {
    fn start(program: Program, config: &str) -> Self {
        let text = format!("listen: 127.0.0.1:0\nlog: {{format: json}}\n{config}");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let config = file(&format!("{}-{number}-good.yaml", program.name), &text);
        let child = program
            .with(&["--config", config.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Ended(child);
        let mut lines = BufReader::new(child.0.stderr.take().unwrap())
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
        let mut before: Vec<_> = Vec::new();
        let serving = loop {
            let line = lines.next().unwrap();
            if line["message"] == "serving" {
                break line;
            }
            before.push(line);
        };
        assert_eq!(serving["level"], "INFO");
        std::fs::remove_file(config).unwrap();
        Self {
            child,
            before,
            lines: Box::new(lines),
            address: serving["address"].as_str().unwrap().parse().unwrap(),
        }
    }

    /// Ends it with SIGTERM. Returns what it logged, but that it serves.
    fn terminate(mut self) -> Vec<serde_json::Value> {
        // The shell's own `kill`: a bare machine has no program of that name.
        let killed = Command::new("sh")
            .args(["-c", &format!("kill -TERM {}", self.child.0.id())])
            .status()
            .unwrap();
        assert!(killed.success());
        // To the end, so that the program never waits for somebody to read its log.
        let mut lines = self.before;
        lines.extend(self.lines);
        assert_eq!(lines.last().unwrap()["message"], "stopped");
        assert!(self.child.0.wait().unwrap().success());
        lines
    }
}

/// The log is JSON where asked for, and SIGTERM ends the program well.
#[test]
fn the_bridge_serves_until_it_is_told_to_stop() {
    let engines = "engines: [{endpoint: '10.0.0.7:8000', connect: 'tcp://127.0.0.1:9'}]";
    Running::start(BRIDGE, engines).terminate();
}

/// given: a digest of an engine before its last change
/// then: it is said at the start, and once more when nothing is found
#[tokio::test]
async fn an_agent_whose_digest_is_stale_says_so_once() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(16));
    let root = tree.root.display();
    let agent = Running::start(
        AGENT,
        &format!("rootDir: {root}\nmodelName: {MODEL}\ndigest: 0123456789ab\ncheckInterval: 100ms"),
    );
    for first in [0, 100, 200] {
        let blocks: Vec<String> = (first..first + 100).map(block).collect();
        let body = message((0..).zip(blocks.iter().map(String::as_str)));
        send(agent.address, "POST", "/prefetch", None, body).await;
        metric(
            agent.address,
            &format!(
                "kv_prefetch_agent_files_total{{digest=\"0123456789ab\",result=\"missing\"}} {}",
                first + 100
            ),
        )
        .await;
    }
    let warned: Vec<String> = agent
        .terminate()
        .into_iter()
        .filter(|line| line["level"] == "WARN")
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(warned.len(), 2, "{warned:?}");
    let stale =
        format!("digest: 0123456789ab: no such directory of this model in rootDir, but {DIGEST}:");
    assert!(warned[0].starts_with(&stale), "{warned:?}");
    assert!(
        warned[1].starts_with("no file was ever found"),
        "{warned:?}"
    );
}

/// given: the digest of an engine before its last change, whose directory is still there
/// then: it is said once that there is a newer one
#[tokio::test]
async fn an_agent_whose_digest_is_of_an_older_directory_says_so_once() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(16));
    tree.configure("0123456789ab", &config(8));
    let base = format!("{}_{DIGEST}", MODEL.replace('/', "_"));
    let old = File::open(tree.root.join(base).join("config.json")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let root = tree.root.display();
    for (digest, stale) in [(DIGEST, true), ("0123456789ab", false)] {
        let agent = Running::start(
            AGENT,
            &format!("rootDir: {root}\nmodelName: {MODEL}\ndigest: {digest}\ncheckInterval: 100ms"),
        );
        tokio::time::sleep(Duration::from_millis(350)).await;
        let said = agent.terminate();
        let newer = "0123456789ab is a newer directory of this model in rootDir";
        let said = said.iter().filter(|line| {
            let text = line["message"].as_str().unwrap();
            line["level"] == "WARN" && text.contains(newer)
        });
        assert_eq!(said.count(), usize::from(stale), "{digest}");
    }
}
