//! One Envoy process: its ports, statistics, log and access log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use crate::bootstrap::Bootstrap;
use crate::files;
use crate::message::{Request, Response};
use crate::process::{new_folder, spawn};
use crate::wait::{PATIENCE, eventually, until};

/// What Envoy logs when the module trapped or misbehaved; no test may see it unexpected.
const TROUBLE: [&str; 6] = [
    "[critical]",
    "Function: ",
    "Proxy-Wasm plugin in-VM backtrace",
    "panicked at",
    "Segmentation fault",
    "assert failure",
];

pub struct Envoy {
    child: Mutex<Child>,
    folder: PathBuf,
    admin: SocketAddr,
    listeners: BTreeMap<String, SocketAddr>,
    trouble_expected: bool,
}

impl Envoy {
    /// With one worker.
    pub fn start(bootstrap: &Bootstrap) -> Self {
        Self::with_workers(bootstrap, 1)
    }

    /// Waits until Envoy is ready; panics with its log if it ends instead.
    pub fn with_workers(bootstrap: &Bootstrap, workers: u32) -> Self {
        let folder = new_folder();
        let admin_file = folder.join("admin");
        let mut command = command(&folder, bootstrap);
        command
            .args(["--concurrency", &workers.to_string()])
            .args(["-l", "warning", "--component-log-level", "wasm:debug"])
            // Tests read the access log at once.
            .args(["--file-flush-interval-msec", "10"])
            .arg("--admin-address-path")
            .arg(&admin_file)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("access.log")).expect("a log file"))
            .stderr(File::create(folder.join("envoy.log")).expect("a log file"));
        let child = Mutex::new(spawn(command));
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut envoy = Envoy {
            child,
            folder,
            admin: unknown,
            listeners: BTreeMap::new(),
            trouble_expected: false,
        };
        let address = eventually(PATIENCE, || {
            assert!(envoy.running(), "Envoy ended:\n{:.2000}", envoy.log());
            fs::read_to_string(&admin_file).ok()?.trim().parse().ok()
        });
        envoy.admin = address.unwrap_or_else(|| panic!("no admin address:\n{}", envoy.log()));
        until("Envoy to be ready", || {
            assert!(envoy.running(), "Envoy ended:\n{:.2000}", envoy.log());
            (envoy.ask("/ready")?.status == 200).then_some(())
        });
        envoy.listeners = envoy.read_listeners();
        envoy
    }

    /// This Envoy's module is made to trap: its log is not checked at the end.
    pub fn expecting_trouble(mut self) -> Self {
        self.trouble_expected = true;
        self
    }

    pub fn pid(&self) -> u32 {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }

    /// Of the listener `llm`, where the clients come.
    pub fn address(&self) -> SocketAddr {
        self.listener("llm")
    }

    pub fn listener(&self, name: &str) -> SocketAddr {
        *self
            .listeners
            .get(name)
            .unwrap_or_else(|| panic!("listener {name}: {:?}", self.listeners))
    }

    pub fn admin(&self, path: &str) -> String {
        self.ask(path).expect("the admin interface answers").text()
    }

    pub fn admin_post(&self, path: &str) -> String {
        Request::new("POST", path).body("").to(self.admin).text()
    }

    /// Counters and gauges by name; absent is 0.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats(name).get(name).copied().unwrap_or(0)
    }

    /// All counters and gauges whose name contains `part`.
    pub fn stats(&self, part: &str) -> BTreeMap<String, u64> {
        let all = self.admin("/stats");
        let pairs = all.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        pairs.filter(|(name, _)| name.contains(part)).collect()
    }

    /// One of the module's counters or gauges by its labels in order: `("x_total", "a=1,b=2")`.
    pub fn custom(&self, name: &str, labels: &str) -> u64 {
        self.stat(&stat_name(name, labels))
    }

    /// Waits until a counter or gauge of the module has a value.
    pub fn until_custom(&self, name: &str, labels: &str, ok: impl Fn(u64) -> bool) -> u64 {
        until(
            &format!("{name}{{{labels}}} in\n{:#?}", self.stats("wasmcustom")),
            || Some(self.custom(name, labels)).filter(|v| ok(*v)),
        )
    }

    /// The lines of the Prometheus text that begin with `start`, in order of the text.
    pub fn prometheus(&self, start: &str) -> Vec<String> {
        let text = self.admin("/stats/prometheus");
        text.lines()
            .filter(|l| l.starts_with(start))
            .map(str::to_owned)
            .collect()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("envoy.log")).unwrap_or_default()
    }

    pub fn access_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("access.log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The first access-log line that contains `part`; waits for it.
    pub fn access_line(&self, part: &str) -> String {
        until(&format!("{part} in the access log"), || {
            self.access_log()
                .into_iter()
                .find(|line| line.contains(part))
        })
    }

    /// Fails if the module trapped or Envoy logged something critical.
    pub fn assert_untroubled(&self) {
        let log = self.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|l| TROUBLE.iter().any(|t| l.contains(t)))
            .collect();
        assert!(
            lines.is_empty(),
            "trouble in Envoy's log:\n{}",
            lines.join("\n")
        );
        assert!(self.running(), "Envoy ended:\n{log}");
    }

    fn running(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(child.try_wait(), Ok(None))
    }

    fn ask(&self, path: &str) -> Option<Response> {
        Request::get(path)
            .header("connection", "close")
            .try_to(self.admin)
    }

    fn read_listeners(&self) -> BTreeMap<String, SocketAddr> {
        let text = self.admin("/listeners?format=json");
        let all: Value = serde_json::from_str(&text).expect("JSON from the admin interface");
        let statuses = all["listener_statuses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let pairs = statuses.iter().filter_map(|status| {
            let socket = &status["local_address"]["socket_address"];
            let port = u16::try_from(socket["port_value"].as_u64()?).ok()?;
            Some((
                status["name"].as_str()?.to_owned(),
                SocketAddr::from(([127, 0, 0, 1], port)),
            ))
        });
        pairs.collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if !thread::panicking() && !self.trouble_expected {
            self.assert_untroubled();
        }
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            eprintln!("Envoy's files are kept in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The raw statistic's name: labels in the form that Istio's `extraStatTags` reads.
pub fn stat_name(name: &str, labels: &str) -> String {
    if labels.is_empty() {
        return format!("wasmcustom.{name}");
    }
    let labels = labels
        .split(',')
        .map(|pair| pair.replacen('=', "=.=", 1) + ";.;");
    format!("wasmcustom.{name}.{}", labels.collect::<String>())
}

/// What `envoy --mode validate` says.
pub struct Validation {
    pub ok: bool,
    pub output: String,
}

pub fn validate(bootstrap: &Bootstrap) -> Validation {
    let folder = new_folder();
    let mut command = command(&folder, bootstrap);
    let output = command
        .args(["--mode", "validate"])
        .output()
        .expect("Envoy runs");
    let text = [output.stdout, output.stderr].concat();
    let _ = fs::remove_dir_all(&folder);
    Validation {
        ok: output.status.success(),
        output: String::from_utf8_lossy(&text).into_owned(),
    }
}

fn command(folder: &std::path::Path, bootstrap: &Bootstrap) -> Command {
    let config = folder.join("bootstrap.json");
    fs::write(&config, bootstrap.json()).expect("the bootstrap is written");
    let mut command = Command::new(files::envoy());
    command.arg("-c").arg(config).args([
        "--disable-hot-restart",
        // Discovered filters ask for both.
        "--service-node",
        "test",
        "--service-cluster",
        "test",
    ]);
    command
}
