//! The compiled module: once per process and meter, and kept between processes beside the build output.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, OnceLock};
use wasmtime::{Config, Engine, Module};

/// What is measured of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meter {
    /// Its instructions, in wasmtime's fuel. One that never ends is stopped.
    Instructions,
    /// Its time: code that counts its instructions is slower.
    Time,
}

impl Meter {
    pub(crate) fn engine(self) -> &'static Engine {
        static COUNTING: LazyLock<Engine> = LazyLock::new(|| engine(true));
        static TIMED: LazyLock<Engine> = LazyLock::new(|| engine(false));
        match self {
            Self::Instructions => &COUNTING,
            Self::Time => &TIMED,
        }
    }
}

fn engine(counts: bool) -> Engine {
    let mut config = Config::new();
    config.consume_fuel(counts);
    config.wasm_backtrace_max_frames(std::num::NonZeroUsize::new(64));
    Engine::new(&config).expect("an engine for this machine")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The product: env `SELECTIVE_KV_WASM`, else the workspace's `dist/selective_kv.wasm`.
pub(crate) fn product(meter: Meter) -> Module {
    static COUNTING: OnceLock<Module> = OnceLock::new();
    static TIMED: OnceLock<Module> = OnceLock::new();
    let product = match meter {
        Meter::Instructions => &COUNTING,
        Meter::Time => &TIMED,
    };
    product
        .get_or_init(|| from_file(meter, "SELECTIVE_KV_WASM", "dist/selective_kv.wasm"))
        .clone()
}

/// The module at the path in `variable`, else at `default` in the workspace.
///
/// # Panics
/// If there is no such file: the message says what to run.
pub(crate) fn from_file(meter: Meter, variable: &str, default: &str) -> Module {
    let path = std::env::var_os(variable).map_or_else(|| workspace().join(default), PathBuf::from);
    let wasm = std::fs::read(&path).unwrap_or_else(|e| {
        panic!(
            "no module at {}: {e}. Run scripts/build, or set {variable}",
            path.display()
        )
    });
    compile(meter, &wasm)
}

/// Compiles binary wasm or WAT text; the same bytes only once.
///
/// # Panics
/// If they are no module.
pub(crate) fn compile(meter: Meter, wasm: &[u8]) -> Module {
    static COMPILED: LazyLock<Mutex<HashMap<u64, Module>>> = LazyLock::new(Mutex::default);
    let engine = meter.engine();
    let mut hasher = DefaultHasher::new();
    wasm.hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let key = hasher.finish();
    let mut compiled = COMPILED.lock().expect("no test panics while compiling");
    compiled
        .entry(key)
        .or_insert_with(|| {
            if wasm.starts_with(b"\0asm") {
                kept(engine, wasm, key)
            } else {
                Module::new(engine, wasm).expect("valid WAT")
            }
        })
        .clone()
}

fn kept(engine: &Engine, wasm: &[u8], key: u64) -> Module {
    let folder = workspace().join("target/skv-harness");
    let path = folder.join(format!("{key:016x}.cwasm"));
    if path.is_file() {
        // SAFETY: only this function writes there, whole files, under a name that holds the hash
        // of the module and of the engine's settings.
        if let Ok(module) = unsafe { Module::deserialize_file(engine, &path) } {
            return module;
        }
    }
    let module = Module::new(engine, wasm).expect("a valid module");
    let part = folder.join(format!("{key:016x}.{}.part", std::process::id()));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        let bytes = module.serialize().map_err(std::io::Error::other)?;
        std::fs::write(&part, bytes)?;
        std::fs::rename(&part, &path)
    };
    if let Err(e) = write() {
        eprintln!("the compiled module is not kept: {e}");
    }
    module
}
