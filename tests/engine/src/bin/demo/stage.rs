//! What the demo runs on: two stand-in engines, kv-events-bridge, kv-prefetch-agent, and Envoy with the shipped bootstrap.

use crate::process::Process;
use crate::{client, files, life};
use serde_json::{Value, json};
use stand_in_engine::tiers::TierKind;
use stand_in_engine::{Engine, EventOptions, Options};
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Requests that an engine of the demo serves at once; more wait.
const SLOTS: usize = 4;
const LATENCY: Duration = Duration::from_millis(100);
const START_LIMIT: Duration = Duration::from_secs(30);
const HEARD_LIMIT: Duration = Duration::from_secs(20);
/// Looks between reminders.
const NUDGE: u32 = 40;
const LOOK: Duration = Duration::from_millis(50);
/// The response header that tells the decision.
pub const DECISION: &str = "x-kv-decision";

pub struct Stage {
    pub engines: Vec<Engine>,
    pub envoy: SocketAddr,
    pub admin: SocketAddr,
    pub bootstrap: PathBuf,
    pub bridge: SocketAddr,
    pub agent: SocketAddr,
    /// Directory of the engines' connector.
    pub connector: PathBuf,
    processes: Vec<Process>,
}

impl Stage {
    pub async fn set(root: &Path, folder: &Path) -> Result<Self, String> {
        let names = ["a", "b"];
        let engines: Vec<_> = names.into_iter().map(engine).collect::<Result<_, _>>()?;
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let (bridge_process, bridge) = bridge(root, folder, &engines).await?;
        let kv_cache = folder.join("kv-cache");
        let connector = files::prepare(&kv_cache, &engines[0].options)?;
        let (agent_process, agent) = agent(root, folder, &kv_cache, &engines[0]).await?;
        let module = program("SELECTIVE_KV_WASM", root, "dist/selective_kv.wasm")?;
        let bootstrap = folder.join("bootstrap.json");
        let text = fs::read_to_string(root.join("envoy/downstream.yaml"))
            .map_err(|error| error.to_string())?;
        let addresses: Vec<_> = engines.iter().map(Engine::address).collect();
        write(
            &bootstrap,
            &adapted(&text, &addresses, bridge, agent, &module)?,
        )?;

        let (log, admin) = (folder.join("envoy.log"), folder.join("admin"));
        // That of an earlier run would mislead.
        let _ = fs::remove_file(&admin);
        let arguments = [
            "--concurrency",
            "2",
            "--disable-hot-restart",
            "-l",
            "info",
            "-c",
        ];
        let mut arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        arguments.extend([bootstrap.as_os_str(), OsStr::new("--admin-address-path")]);
        arguments.push(admin.as_os_str());
        let envoy = program("ENVOY", root, ".tools/envoy/envoy")?;
        let mut process = Process::start(&envoy, &arguments, &log)?;
        let end = Instant::now() + START_LIMIT;
        let (admin, envoy) = loop {
            if let Some(ready) = ready(&admin).await {
                break ready;
            }
            if process.ended() || Instant::now() > end {
                return Err(did_not_start("Envoy", &log));
            }
            tokio::time::sleep(LOOK).await;
        };
        let stage = Self {
            engines,
            envoy,
            admin,
            bootstrap,
            bridge,
            agent,
            connector,
            processes: vec![process, bridge_process, agent_process],
        };
        stage.wait_for_polls().await?;
        for engine in &stage.engines {
            life::greet(engine, 0).await?;
        }
        stage.heard().await?;
        Ok(stage)
    }

    /// Everything that the engines have published has reached the scorer.
    pub async fn heard(&self) -> Result<(), String> {
        let end = Instant::now() + HEARD_LIMIT;
        for look in 1.. {
            // What an engine published while the bridge was joining it comes with its next batch.
            if look % NUDGE == 0 {
                for engine in &self.engines {
                    life::greet(engine, look).await?;
                }
            }
            let sent: Vec<_> = self.engines.iter().map(|it| it.published()).collect();
            let batches: u64 = sent.iter().map(|sent| sent.batches).sum();
            let events: u64 = sent.iter().map(|sent| sent.events).sum();
            let page = client::get(self.bridge, "/metrics").await?.body;
            let heard = sum(&page, "kv_events_bridge_batches_total{");
            let page = client::get(self.admin, "/stats/prometheus").await?.body;
            let read = sum(&page, "selective_kv_scorer_events_total{");
            if heard >= batches && read >= events {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!(
                    "the engines have published {events} events in {batches} batches; kv-events-bridge has {heard} batches and kv-scorer {read} events"
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
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

    pub fn stop(self) {
        for mut process in self.processes {
            process.stop();
        }
    }
}

/// The sum of the series that begin so, of a page of metrics.
fn sum(page: &str, start: &str) -> u64 {
    let lines = page.lines().filter(|line| line.starts_with(start));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

/// Starts it to follow the engines.
async fn bridge(
    root: &Path,
    folder: &Path,
    engines: &[Engine],
) -> Result<(Process, SocketAddr), String> {
    let followed: Vec<_> = engines
        .iter()
        .map(|engine| {
            let ports = engine.event_ports();
            let at = |port: Option<u16>| port.map(|port| format!("tcp://127.0.0.1:{port}"));
            json!({
                "endpoint": engine.address().to_string(),
                "connect": at(ports.map(|ports| ports.publisher)),
                "replay": at(ports.and_then(|ports| ports.replay)),
            })
        })
        .collect();
    let bridge = program("KV_EVENTS_BRIDGE", root, "target/debug/kv-events-bridge")?;
    serving(&bridge, folder, json!({"engines": followed})).await
}

/// Starts it for the files below `root_dir`.
async fn agent(
    root: &Path,
    folder: &Path,
    root_dir: &Path,
    engine: &Engine,
) -> Result<(Process, SocketAddr), String> {
    let agent = program("KV_PREFETCH_AGENT", root, "target/debug/kv-prefetch-agent")?;
    let config = json!({
        "rootDir": root_dir, "modelName": engine.options.model, "blockSize": files::READ_BYTES,
    });
    serving(&agent, folder, config).await
}

/// Starts one of the native programs; its log tells where it listens.
async fn serving(
    program: &Path,
    folder: &Path,
    mut settings: Value,
) -> Result<(Process, SocketAddr), String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let config = folder.join(format!("{name}.json"));
    let log = folder.join(format!("{name}.log"));
    settings["listen"] = json!("127.0.0.1:0");
    settings["log"] = json!({"format": "json"});
    write(&config, &settings)?;
    let arguments = [OsStr::new("--config"), config.as_os_str()];
    let mut process = Process::start(program, &arguments, &log)?;
    let end = Instant::now() + START_LIMIT;
    loop {
        let said = fs::read_to_string(&log).unwrap_or_default();
        let mut lines = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let serving = lines.find(|line| line["message"] == "serving");
        let address = serving.and_then(|line| line["address"].as_str()?.parse().ok());
        if let Some(address) = address {
            return Ok((process, address));
        }
        if process.ended() || Instant::now() > end {
            return Err(did_not_start(&name, &log));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn did_not_start(program: &str, log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let last: Vec<_> = said.lines().rev().take(10).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    format!(
        "{program} did not start; the end of {}:\n{}",
        log.display(),
        last.join("\n")
    )
}

fn engine(name: &str) -> Result<Engine, String> {
    let fs = TierKind::parse("fs+events")?;
    let options = Options {
        name: name.into(),
        tiers: vec![fs],
        events: Some(EventOptions::default()),
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
fn adapted(
    shipped: &str,
    engines: &[SocketAddr],
    bridge: SocketAddr,
    agent: SocketAddr,
    module: &Path,
) -> Result<Value, String> {
    let mut root: Value = serde_norway::from_str(shipped).map_err(|error| error.to_string())?;
    let endpoints: Vec<_> = engines.iter().map(SocketAddr::to_string).collect();
    let scorer = json!({
        "endpoints": endpoints,
        "scrape": {"cluster": "kv-scrape"},
        "evidence": {
            "events": {"cluster": "kv-events-bridge"},
            // The disk is each engine's own and announces everything.
            "secondaryTiers": "vouched",
            "blocksPerChunk": 1,
            "tokenize": {"cluster": "tokenize", "timeout": "2s"},
            "prefetch": {"cluster": "kv-prefetch-agent", "pythonHashSeed": "0"},
        },
    });
    let policy = json!({
        "loadPolicy": "threshold",
        "minExternalReusableTokens": 1024,
        "maxWaitingRequests": 8,
        "routes": [{"match": {"routeName": "chat"}, "minExternalReusableTokens": 2048}],
    });
    let free = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let hosts = |addresses: &[SocketAddr]| -> Value {
        let hosts = addresses.iter();
        let hosts = hosts.map(|it| json!({"endpoint": {"address": free(it.port())}}));
        json!([{"lb_endpoints": hosts.collect::<Vec<_>>()}])
    };
    let tell = json!([{
        "header": {"key": DECISION, "value": "%FILTER_STATE(wasm.selective_kv.decision:PLAIN)%"},
    }]);
    let clusters = root["static_resources"]["clusters"].as_array_mut();
    let clusters = clusters.ok_or("envoy/downstream.yaml has no clusters")?;
    for (name, addresses) in [
        ("kv-events-bridge", &[bridge][..]),
        ("kv-prefetch-agent", &[agent]),
        ("tokenize", engines),
    ] {
        clusters.retain(|cluster| cluster["name"] != name);
        clusters.push(json!({
            "name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": name, "endpoints": hosts(addresses)},
        }));
    }
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
            node["load_assignment"]["endpoints"] = hosts(engines);
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
