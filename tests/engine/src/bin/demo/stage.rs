//! What the demo runs on: two stand-in engines, and Envoy with the shipped bootstrap.

use crate::client;
use serde_json::{Value, json};
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, Options};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Requests that an engine of the demo serves at once; more wait.
const SLOTS: usize = 4;
const LATENCY: Duration = Duration::from_millis(100);
const START_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// The header that carries evidence, and the response header that tells the decision.
pub const EVIDENCE: &str = "x-kv-tier-evidence";
pub const DECISION: &str = "x-kv-decision";

pub struct Stage {
    pub engines: Vec<Engine>,
    pub envoy: SocketAddr,
    pub admin: SocketAddr,
    pub bootstrap: PathBuf,
    process: Process,
}

/// Envoy, and the shell that ends it when this program is gone, however it went.
struct Process {
    shell: Child,
    /// Envoy runs as long as this is open.
    alive: Option<ChildStdin>,
}

impl Stage {
    pub async fn set(root: &Path, folder: &Path) -> Result<Self, String> {
        let names = ["a", "b"];
        let engines: Vec<_> = names.into_iter().map(engine).collect::<Result<_, _>>()?;
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let module = program("SELECTIVE_KV_WASM", root, "dist/selective_kv.wasm")?;
        let bootstrap = folder.join("bootstrap.json");
        let text = fs::read_to_string(root.join("envoy/downstream.yaml"))
            .map_err(|error| error.to_string())?;
        let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
        write(&bootstrap, &adapted(&text, &addresses, &module)?)?;

        let (log, admin) = (folder.join("envoy.log"), folder.join("admin"));
        // That of an earlier run would mislead.
        let _ = fs::remove_file(&admin);
        let mut process = Process::start(
            &program("ENVOY", root, ".tools/envoy/envoy")?,
            &bootstrap,
            &admin,
            &log,
        )?;
        let end = Instant::now() + START_LIMIT;
        let (admin, envoy) = loop {
            if let Some(ready) = ready(&admin).await {
                break ready;
            }
            if process.ended() || Instant::now() > end {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<_> = said.lines().rev().take(10).collect();
                let last: Vec<_> = last.into_iter().rev().collect();
                return Err(format!(
                    "Envoy did not start; the end of {}:\n{}",
                    log.display(),
                    last.join("\n")
                ));
            }
            tokio::time::sleep(LOOK).await;
        };
        let stage = Self {
            engines,
            envoy,
            admin,
            bootstrap,
            process,
        };
        stage.wait_for_polls().await?;
        Ok(stage)
    }

    /// The scorer has polled each engine, so that the gates have a first sample.
    async fn wait_for_polls(&self) -> Result<(), String> {
        let end = Instant::now() + START_LIMIT;
        let polled = |engine: &Engine| {
            engine
                .polls()
                .get("/metrics")
                .is_some_and(|count| *count >= 2)
        };
        while !self.engines.iter().all(polled) {
            if Instant::now() > end {
                return Err("kv-scorer does not poll the engines".into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    pub fn stop(mut self) {
        self.process.stop();
    }
}

fn engine(name: &str) -> Result<Engine, String> {
    let fs = TierKind::parse("fs")?;
    let options = Options {
        name: name.into(),
        tiers: vec![fs],
        slots: Some(SLOTS),
        latency: LATENCY,
        // What is shown of one request must not change the next one's.
        learn: false,
        ..Options::default()
    };
    Engine::start(options).map_err(|error| format!("engine {name}: {error}"))
}

fn program(variable: &str, root: &Path, default: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os(variable).map_or_else(|| root.join(default), PathBuf::from);
    path.canonicalize()
        .map_err(|error| format!("{variable} {}: {error}; run scripts/demo", path.display()))
}

fn write(path: &Path, value: &Value) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The shipped bootstrap with this run's addresses, thresholds that fit the demo's prompts, and a
/// response header that tells the decision.
fn adapted(shipped: &str, engines: &[SocketAddr], module: &Path) -> Result<Value, String> {
    let mut root: Value = serde_norway::from_str(shipped).map_err(|error| error.to_string())?;
    let endpoints: Vec<_> = engines.iter().map(SocketAddr::to_string).collect();
    let scorer = json!({"endpoints": endpoints, "scrape": {"cluster": "kv-scrape"}});
    let policy = json!({
        "loadPolicy": "threshold",
        "minExternalReusableTokens": 1024,
        "maxWaitingRequests": 8,
        "evidenceHeader": EVIDENCE,
        "routes": [{"match": {"routeName": "chat"}, "minExternalReusableTokens": 2048}],
    });
    let free = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let hosts: Vec<_> = engines
        .iter()
        .map(|engine| json!({"endpoint": {"address": free(engine.port())}}))
        .collect();
    let tell = json!([{
        "header": {"key": DECISION, "value": "%FILTER_STATE(wasm.selective_kv.decision:PLAIN)%"},
    }]);
    let mut done = [false; 6];
    visit(&mut root, &mut |node| {
        if let Some(admin) = node.get_mut("admin") {
            admin["address"] = free(0);
            done[0] = true;
        }
        if node.get("filter_chains").is_some() {
            node["address"] = free(0);
            done[1] = true;
        }
        let configuration = match node.get("root_id").and_then(Value::as_str) {
            Some("kv-scorer") => Some((2, &scorer)),
            Some("selective-kv") => Some((3, &policy)),
            _ => None,
        };
        if let Some((index, configuration)) = configuration {
            node["configuration"]["value"] = configuration.to_string().into();
            done[index] = true;
        }
        if node.get("name").is_some_and(|name| name == "engines")
            && node.get("load_assignment").is_some()
        {
            node["load_assignment"]["endpoints"] = json!([{"lb_endpoints": hosts}]);
            done[4] = true;
        }
        if node.get("virtual_hosts").is_some() {
            node["response_headers_to_add"] = tell.clone();
            done[5] = true;
        }
        if let Some(filename) = node.get_mut("filename") {
            *filename = module.to_string_lossy().into();
        }
    });
    if done.contains(&false) {
        return Err(format!(
            "envoy/downstream.yaml is not as the demo knows it: {done:?}"
        ));
    }
    Ok(root)
}

fn visit(node: &mut Value, change: &mut impl FnMut(&mut Value)) {
    if node.is_object() {
        change(node);
    }
    match node {
        Value::Object(members) => members.values_mut().for_each(|value| visit(value, change)),
        Value::Array(items) => items.iter_mut().for_each(|value| visit(value, change)),
        _ => {}
    }
}

/// The addresses of the admin interface and the listener, once Envoy has them.
async fn ready(admin: &Path) -> Option<(SocketAddr, SocketAddr)> {
    let admin: SocketAddr = fs::read_to_string(admin).ok()?.trim().parse().ok()?;
    if client::get(admin, "/ready").await.ok()?.status != 200 {
        return None;
    }
    let listeners: Value = serde_json::from_str(
        &client::get(admin, "/listeners?format=json")
            .await
            .ok()?
            .body,
    )
    .ok()?;
    let port = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
    Some((
        admin,
        SocketAddr::from(([127, 0, 0, 1], u16::try_from(port.as_u64()?).ok()?)),
    ))
}

impl Process {
    fn start(envoy: &Path, bootstrap: &Path, admin: &Path, log: &Path) -> Result<Self, String> {
        // The shell ends with Envoy, and Envoy when the shell's standard input does: at the latest
        // with this program.
        const WATCH: &str = r#"
            exec 3<&0
            "$@" </dev/null 3<&- &
            envoy=$!
            { read -r _ <&3; kill "$envoy"; } 2>/dev/null &
            watch=$!
            wait "$envoy"
            kill "$watch""#;
        let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let access =
            File::create(log.with_file_name("access.log")).map_err(|error| error.to_string())?;
        let mut shell = Command::new("sh")
            .args(["-c", WATCH, "sh"])
            .arg(envoy)
            .arg("-c")
            .arg(bootstrap)
            .args([
                "--concurrency",
                "2",
                "--disable-hot-restart",
                "-l",
                "info",
                "--admin-address-path",
            ])
            .arg(admin)
            // Ctrl-C is this program's to act on.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(access)
            .stderr(file)
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let alive = shell.stdin.take();
        Ok(Self { shell, alive })
    }

    fn ended(&mut self) -> bool {
        !matches!(self.shell.try_wait(), Ok(None))
    }

    fn stop(&mut self) {
        self.alive = None;
        let _ = self.shell.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
