"""What the checks run on: real vLLM engines, the bridge, Envoy. Everything that is started here is
stopped here."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
import urllib.parse
from dataclasses import dataclass, field

import evidence
from bootstrap import bootstrap
from wire import ask, free_port, metrics

START_LIMIT_S = 60
# Half a minute on a free machine.
ENGINE_START_LIMIT_S = 400
# Small caches, so that a few prompts push others out. One of the GPU's blocks is never used.
GPU_BLOCKS = 97
CPU_BLOCKS = 160
BLOCK_TOKENS = 32
MAX_MODEL_LEN = 2048
# Batches of events that engine `b` can replay: too few to reach back to its start.
SHORT_REPLAY = 8


class CannotRun(Exception):
    """Something is missing or did not start: nothing is said about the module."""


class TimedOut(CannotRun):
    """What was waited for did not come."""


@dataclass(frozen=True)
class Used:
    """What an engine has used, by its own counters."""

    gpu_tokens: int
    external_tokens: int
    load_bytes: int

    def __sub__(self, other):
        return Used(
            self.gpu_tokens - other.gpu_tokens,
            self.external_tokens - other.external_tokens,
            self.load_bytes - other.load_bytes,
        )


@dataclass(frozen=True)
class Engine:
    name: str
    port: int = field(default_factory=free_port)
    events: int = field(default_factory=free_port)
    replay: int = field(default_factory=free_port)

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def used(self):
        counted = metrics(self.port)
        return Used(
            int(counted["vllm:prefix_cache_hits_total"]),
            int(counted["vllm:external_prefix_cache_hits_total"]),
            # Not there before the first load.
            int(counted.get("vllm:kv_offload_load_bytes_total", 0)),
        )


class Stage:
    """`programs` names files: serve.sh, model, bridge, envoy, module, reader."""

    def __init__(self, programs, folder, names):
        self.programs, self.folder = programs, folder
        self.engines = {name: Engine(name) for name in names}
        self.bridge_port = free_port()
        self.processes = {}
        self.envoy = self.admin = None

    # Engines.

    def start_engines(self):
        starting = [(engine, self.start_engine(engine)) for engine in self.engines.values()]
        for engine, process in starting:
            if process.wait():
                raise CannotRun(f"engine {engine.name} did not start:\n{self.log(engine.name)}")

    def start_engine(self, engine):
        cpu_bytes = CPU_BLOCKS * BLOCK_TOKENS * self.kv_bytes_per_token()
        variables = {
            "KV_EVENTS_PORT": engine.events,
            "KV_REPLAY_PORT": engine.replay,
            "GPU_BLOCKS": GPU_BLOCKS,
            "KV_OFFLOAD_BYTES": cpu_bytes,
            "MAX_MODEL_LEN": MAX_MODEL_LEN,
            "START_TIMEOUT": ENGINE_START_LIMIT_S,
            "VLLM_CPU_KVCACHE_SPACE": 1,
        }
        more = self.arguments_of_b(engine, cpu_bytes) if engine.name == "b" else []
        with (self.folder / f"{engine.name}.log").open("w") as log:
            return subprocess.Popen(
                [self.programs["serve.sh"], "start", str(engine.port), *more],
                env=os.environ | {name: str(value) for name, value in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def arguments_of_b(self, engine, cpu_bytes):
        """Instead of those of serve.sh: files behind the CPU tier, and a short memory of events."""
        published = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{engine.events}",
            "replay_endpoint": f"tcp://*:{engine.replay}",
            "buffer_steps": SHORT_REPLAY,
        }
        files = {"type": "fs", "root_dir": str(self.folder / "fs"), "enable_kv_events": True}
        offloaded = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CpuLinkTieringSpec",
                "spec_module_path": "offload_spec",
                "cpu_bytes_to_use": cpu_bytes,
                "secondary_tiers": [files],
            },
        }
        configs = {"--kv-events-config": published, "--kv-transfer-config": offloaded}
        return [word for name, config in configs.items() for word in (name, json.dumps(config))]

    def kv_bytes_per_token(self):
        model = json.loads((self.programs["model"] / "config.json").read_text())
        # A key and a value, two bytes a number (bfloat16).
        numbers = model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"]
        return 2 * 2 * numbers

    # The bridge.

    def start_bridge(self):
        config = {
            "listen": f"127.0.0.1:{self.bridge_port}",
            "engines": [follow(engine) for engine in self.engines.values()],
        }
        file = self.folder / "bridge.json"
        file.write_text(json.dumps(config))
        self.start("bridge", [self.programs["bridge"], "--config", file])
        self.wait("the bridge to follow the engines", self.bridge_follows)

    def bridge_follows(self):
        with contextlib.suppress(OSError):
            connected = metrics(self.bridge_port).get("kv_events_bridge_connected", 0)
            return connected == len(self.engines)

    # Envoy.

    def start_envoy(self, keys):
        """`keys`: of the scorer's `evidence`."""
        ports = {name: engine.port for name, engine in self.engines.items()}
        module, reader = str(self.programs["module"]), str(self.programs["reader"])
        file, admin = self.folder / "envoy.json", self.folder / "envoy-admin"
        file.write_text(bootstrap(ports, self.bridge_port, keys, module, reader))
        admin.unlink(missing_ok=True)
        command = [self.programs["envoy"], "-c", file, "--concurrency", "2"]
        command += ["-l", "warning", "--disable-hot-restart", "--admin-address-path", admin]
        self.start("envoy", command)
        self.wait("Envoy to be ready", lambda: self.envoy_ready(admin))

    def envoy_ready(self, admin):
        with contextlib.suppress(OSError, ValueError):
            self.admin = int(admin.read_text().rsplit(":", 1)[1])
            if ask(self.admin, "GET", "/ready").status == 200:
                listening = ask(self.admin, "GET", "/listeners?format=json").json()
                address = listening["listener_statuses"][0]["local_address"]
                self.envoy = address["socket_address"]["port_value"]
                return True

    def stop_envoy(self):
        """Leaves its counters beside the logs."""
        (self.folder / "envoy-stats").write_bytes(ask(self.admin, "GET", "/stats").body)
        self.stop("envoy")

    def stats(self, part):
        """Envoy's counters and gauges whose name contains `part`, if they are not 0."""
        lines = ask(self.admin, "GET", "/stats").body.decode().splitlines()
        pairs = (line.rsplit(": ", 1) for line in lines if part in line)
        return {name: int(value) for name, value in pairs if value.isdigit() and value != "0"}

    def evidence(self, request_id, engine):
        """What the scorer wrote of this engine for this request, or None."""
        name = urllib.parse.quote(evidence.key(request_id), safe="")
        record = ask(self.envoy, "GET", f"/foreign-scorer/raw?key={name}")
        if record.status != 200:
            return None
        return evidence.find(bytes.fromhex(record.body.decode()), request_id, engine.endpoint)

    # Processes.

    def start(self, name, command):
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def wait(self, what, done):
        end = time.monotonic() + START_LIMIT_S
        while not done():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise CannotRun(f"{name} ended:\n{self.log(name)}")
            if time.monotonic() > end:
                raise TimedOut(f"waited {START_LIMIT_S} s for {what}")
            time.sleep(0.1)

    def log(self, name):
        """The end of it."""
        return (self.folder / f"{name}.log").read_text()[-2000:]

    def stop(self, name):
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self):
        for name in list(self.processes):
            self.stop(name)
        for engine in self.engines.values():
            command = [self.programs["serve.sh"], "stop", str(engine.port)]
            subprocess.run(command, stdout=subprocess.DEVNULL)


def follow(engine):
    """Both ways of telling the bridge where an engine publishes."""
    if engine.name == "a":
        return {"endpoint": engine.endpoint, "discover": f"http://{engine.endpoint}"}
    sockets = {"connect": engine.events, "replay": engine.replay}
    at = {name: f"tcp://127.0.0.1:{port}" for name, port in sockets.items()}
    return {"endpoint": engine.endpoint, **at}


def end_with_parent():
    """In a child: it ends when this program does, however that ends (Linux)."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
