//! Small filters that ask Envoy something and report its answers: they pin what the host model of
//! tests/harness and the module take for granted.
//!
//! A probe is a list of host calls per callback. Each call's status lands in the gauge
//! `wasmcustom.<label>`, the length it returned in `wasmcustom.<label>.len`.

use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// An argument of a host call.
#[derive(Clone, Debug)]
pub enum Arg {
    Num(u32),
    /// A 64-bit number.
    Long(i64),
    /// A pointer and a length.
    Bytes(Vec<u8>),
    /// The id of the metric that was defined last.
    Metric,
    /// Where the host writes pointer and length of what it returns.
    Returned,
    /// Where the host writes one more number (cas, token).
    Number,
}

pub fn text(value: &str) -> Arg {
    Arg::Bytes(value.into())
}

/// Header pairs as the ABI writes them.
pub fn pairs(pairs: &[(&str, &str)]) -> Arg {
    let word = |n: usize| u32::try_from(n).expect("a short list").to_le_bytes();
    let mut bytes = word(pairs.len()).to_vec();
    for (name, value) in pairs {
        bytes.extend([word(name.len()), word(value.len())].concat());
    }
    for (name, value) in pairs {
        bytes.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    Arg::Bytes(bytes)
}

/// A property path.
pub fn path(parts: &[&str]) -> Arg {
    Arg::Bytes(parts.join("\0").into())
}

#[derive(Clone, Debug)]
enum Act {
    Call {
        label: String,
        import: &'static str,
        args: Vec<Arg>,
    },
    Count {
        label: String,
        only_at_end: bool,
    },
    Parameter {
        label: String,
        index: usize,
    },
    Pause {
        until_end: bool,
    },
    /// While fewer bytes are shown.
    PauseBelow(u32),
    TrapIfHeader(&'static str),
}

/// The callbacks and how many parameters they have.
const CALLBACKS: [(&str, usize); 6] = [
    ("request_headers", 3),
    ("request_body", 3),
    ("request_trailers", 2),
    ("response_headers", 3),
    ("tick", 1),
    ("http_call_response", 5),
];

#[derive(Clone, Debug, Default)]
pub struct Probe {
    acts: Vec<(&'static str, Act)>,
}

impl Probe {
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `proxy_<import>` in `proxy_on_<callback>`.
    pub fn call(
        self,
        callback: &'static str,
        label: &str,
        import: &'static str,
        args: &[Arg],
    ) -> Self {
        self.act(
            callback,
            Act::Call {
                label: label.into(),
                import,
                args: args.to_vec(),
            },
        )
    }

    /// Counts the callback's calls.
    pub fn count(self, callback: &'static str, label: &str) -> Self {
        self.act(
            callback,
            Act::Count {
                label: label.into(),
                only_at_end: false,
            },
        )
    }

    /// Counts the calls with end_of_stream.
    pub fn count_ends(self, callback: &'static str, label: &str) -> Self {
        self.act(
            callback,
            Act::Count {
                label: label.into(),
                only_at_end: true,
            },
        )
    }

    /// Reports a parameter of the callback.
    pub fn parameter(self, callback: &'static str, label: &str, index: usize) -> Self {
        let label = label.into();
        self.act(callback, Act::Parameter { label, index })
    }

    /// Answers Pause; what stands after it in the callback does not run.
    pub fn pause(self, callback: &'static str) -> Self {
        self.act(callback, Act::Pause { until_end: false })
    }

    /// Answers Pause until the callback with end_of_stream.
    pub fn pause_until_end(self, callback: &'static str) -> Self {
        self.act(callback, Act::Pause { until_end: true })
    }

    /// Answers Pause to a body callback that shows fewer bytes, unless it is the last.
    pub fn pause_below(self, bytes: u32) -> Self {
        self.act("request_body", Act::PauseBelow(bytes))
    }

    /// Traps on a request that has this header.
    pub fn trap_if_header(self, name: &'static str) -> Self {
        self.act("request_headers", Act::TrapIfHeader(name))
    }

    fn act(mut self, callback: &'static str, act: Act) -> Self {
        self.acts.push((callback, act));
        self
    }

    /// The module as a file that Envoy can load. Its name tells its content, so runs share files.
    pub fn build(&self) -> PathBuf {
        let module = wat::parse_str(self.wat()).expect("a module in text form");
        let mut hasher = DefaultHasher::new();
        module.hash(&mut hasher);
        let name = format!("envoy-tests-probe-{:016x}.wasm", hasher.finish());
        let file = std::env::temp_dir().join(name);
        if !file.exists() {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let new = file.with_extension(format!("{}-{count}", std::process::id()));
            fs::write(&new, module).expect("the probe is written");
            fs::rename(new, &file).expect("the probe is moved into place");
        }
        file
    }

    fn wat(&self) -> String {
        let mut source = Source::default();
        let mut functions = String::new();
        for (callback, parameters) in CALLBACKS {
            let acts = self
                .acts
                .iter()
                .filter(|(c, _)| *c == callback)
                .map(|(_, a)| a);
            let body: String = acts.map(|a| source.act(a, parameters)).collect();
            let result = match callback {
                "tick" | "http_call_response" => ("", ""),
                _ => ("(result i32)", "(i32.const 0)"),
            };
            let _ = writeln!(
                functions,
                r#"(func (export "proxy_on_{callback}") (param{}) {} {body} {})"#,
                " i32".repeat(parameters),
                result.0,
                result.1,
            );
        }
        source.import("define_metric", "i32 i32 i32 i32");
        source.import("record_metric", "i32 i64");
        source.import("increment_metric", "i32 i64");
        source.import("get_header_map_value", "i32 i32 i32 i32 i32");
        source.import("set_tick_period_milliseconds", "i32");
        format!(
            "(module {} {FIXED} {} {functions})",
            source.imports, source.data
        )
    }
}

/// Addresses that the host writes to: a metric's id, a returned pointer and length, a number.
const FIXED: &str = r#"
(memory (export "memory") 64)
(global $heap (mut i32) (i32.const 1048576))
(func (export "malloc") (param i32) (result i32)
  (if (i32.gt_u (global.get $heap) (i32.const 2097152)) (then (global.set $heap (i32.const 1048576))))
  (global.get $heap)
  (global.set $heap (i32.add (global.get $heap) (local.get 0))))
(func $report (param $name i32) (param $size i32) (param $value i32)
  (drop (call $define_metric (i32.const 1) (local.get $name) (local.get $size) (i32.const 0)))
  (drop (call $record_metric (i32.load (i32.const 0)) (i64.extend_i32_u (local.get $value)))))
(func $count (param $name i32) (param $size i32)
  (drop (call $define_metric (i32.const 0) (local.get $name) (local.get $size) (i32.const 0)))
  (drop (call $increment_metric (i32.load (i32.const 0)) (i64.const 1))))
(func (export "proxy_abi_version_0_2_1"))
(func (export "proxy_on_context_create") (param i32 i32))
(func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (call $set_tick_period_milliseconds (i32.const 20)))
  (i32.const 1))
"#;

#[derive(Default)]
struct Source {
    imports: String,
    known: Vec<String>,
    data: String,
    next: usize,
}

impl Source {
    fn act(&mut self, act: &Act, parameters: usize) -> String {
        match act {
            Act::Call {
                label,
                import,
                args,
            } => {
                let (mut values, mut types) = (String::new(), Vec::new());
                for arg in args {
                    let (code, kind) = match arg {
                        Arg::Num(n) => (format!("(i32.const {})", n.cast_signed()), "i32"),
                        Arg::Long(n) => (format!("(i64.const {n})"), "i64"),
                        Arg::Bytes(bytes) => (self.bytes(bytes), "i32 i32"),
                        Arg::Returned => ("(i32.const 8) (i32.const 12)".into(), "i32 i32"),
                        Arg::Number => ("(i32.const 16)".into(), "i32"),
                        Arg::Metric => ("(i32.load (i32.const 16))".into(), "i32"),
                    };
                    values.push_str(&code);
                    types.push(kind);
                }
                self.import(import, &types.join(" "));
                let status = self.bytes(label.as_bytes());
                let mut code = format!(
                    "(i32.store (i32.const 12) (i32.const 0)) (call $report {status} (call ${import} {values}))"
                );
                if args.iter().any(|a| matches!(a, Arg::Returned)) {
                    let length = self.bytes(format!("{label}.len").as_bytes());
                    let _ = write!(code, "(call $report {length} (i32.load (i32.const 12)))");
                }
                code
            }
            Act::Count { label, only_at_end } => {
                let call = format!("(call $count {})", self.bytes(label.as_bytes()));
                if *only_at_end {
                    format!("(if (local.get {}) (then {call}))", parameters - 1)
                } else {
                    call
                }
            }
            Act::Parameter { label, index } => {
                let label = self.bytes(label.as_bytes());
                format!("(call $report {label} (local.get {index}))")
            }
            Act::Pause { until_end: false } => "(return (i32.const 1))".into(),
            Act::Pause { until_end: true } => {
                let end = parameters - 1;
                format!("(if (i32.eqz (local.get {end})) (then (return (i32.const 1))))")
            }
            Act::PauseBelow(bytes) => format!(
                "(if (i32.and (i32.lt_u (local.get 1) (i32.const {bytes})) (i32.eqz (local.get 2))) (then (return (i32.const 1))))"
            ),
            Act::TrapIfHeader(name) => {
                let name = self.bytes(name.as_bytes());
                format!(
                    "(if (i32.eqz (call $get_header_map_value (i32.const 0) {name} (i32.const 8) (i32.const 12))) (then unreachable))"
                )
            }
        }
    }

    /// Pointer and length of a constant.
    fn bytes(&mut self, bytes: &[u8]) -> String {
        let at = 64 + self.next;
        self.next += bytes.len();
        let escaped: String = bytes.iter().map(|b| format!("\\{b:02x}")).collect();
        let _ = writeln!(self.data, r#"(data (i32.const {at}) "{escaped}")"#);
        format!("(i32.const {at}) (i32.const {})", bytes.len())
    }

    fn import(&mut self, name: &str, parameters: &str) {
        if !self.known.iter().any(|k| k == name) {
            self.known.push(name.into());
            let _ = writeln!(
                self.imports,
                r#"(import "env" "proxy_{name}" (func ${name} (param {parameters}) (result i32)))"#
            );
        }
    }
}
