//! kv-events-bridge as a program of its own, that can be killed and started again.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::files;
use crate::message::Request;
use crate::process::{new_folder, spawn};
use crate::wait::until;

pub struct Bridge {
    folder: PathBuf,
    /// The list `engines` of its configuration, YAML.
    engines: String,
    address: SocketAddr,
    child: Option<Child>,
}

impl Bridge {
    /// Follows these engines (the list of its configuration, YAML); waits until it serves.
    pub fn start(engines: &str) -> Self {
        let mut bridge = Self {
            folder: new_folder(),
            engines: engines.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            child: None,
        };
        bridge.run();
        bridge
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts it, at the same address if it was started before.
    pub fn run(&mut self) {
        let config = self.folder.join("bridge.yaml");
        let text = format!(
            "listen: {}\nheartbeat: 200ms\nlog: {{format: json}}\nengines:\n{}\n",
            self.address, self.engines
        );
        fs::write(&config, text).expect("the configuration is written");
        let log = self.folder.join("bridge.log");
        let mut command = Command::new(files::bridge());
        command
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a log file"));
        self.child = Some(spawn(command));
        self.address = until("the bridge to serve", || {
            let text = fs::read_to_string(&log).ok()?;
            let mut lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let serving = lines.find(|line| line["message"] == "serving")?;
            serving["address"].as_str()?.parse().ok()
        });
    }

    /// As a crash would: no goodbye.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// A figure of its page of metrics; absent is 0.
    pub fn metric(&self, series: &str) -> f64 {
        let page = Request::get("/metrics")
            .header("connection", "close")
            .try_to(self.address);
        let page = page.map(|page| page.text()).unwrap_or_default();
        let mut lines = page.lines();
        let value =
            lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0.0)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the bridge's files are kept in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
