//! What is compared: one listener each in one Envoy, alike but for its filter.

use envoy_tests::bootstrap::string_value;
use envoy_tests::{Bootstrap, files};
use serde_json::{Value, json};

use crate::sink::Sink;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// No filter.
    None,
    Noop,
    Copy,
    /// The same without `content-length`: the least that goes with an edit of what streams.
    CopyUnsized,
    /// Disables loading: a real edit of every body.
    Ours,
    /// Asks evidence and gate, and takes the client's cap away.
    OursThreshold,
    /// A path that is not looked at.
    OursPath,
    /// A policy that has nothing to decide.
    OursPreserve,
    /// No filter, and the buffer limit of those that follow.
    NoneBuffering,
    RoundTrip,
    Lua,
}

/// Of `x-request-id`: as many requests have evidence.
pub const EVIDENCE_IDS: usize = 512;

/// Where the shipped files put it: enough for what streams.
const STREAMING_LIMIT: usize = 1 << 20;
/// What buffers has to have room for the largest body.
const BUFFERING_LIMIT: usize = 32 << 20;

/// The control listener, and the store that the writer of evidence shares with
/// [`Variant::OursThreshold`].
pub const WRITER: &str = "writer";

impl Variant {
    pub const ALL: [Self; 11] = [
        Self::None,
        Self::Noop,
        Self::Copy,
        Self::CopyUnsized,
        Self::Ours,
        Self::OursThreshold,
        Self::OursPath,
        Self::OursPreserve,
        Self::NoneBuffering,
        Self::RoundTrip,
        Self::Lua,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no filter",
            Self::Noop => "noop",
            Self::Copy => "copy",
            Self::CopyUnsized => "copy, no length",
            Self::Ours => "ours",
            Self::OursThreshold => "ours, evidence and gate",
            Self::OursPath => "ours, other path",
            Self::OursPreserve => "ours, preserve",
            Self::NoneBuffering => "no filter, large buffer",
            Self::RoundTrip => "Value round trip",
            Self::Lua => "Lua",
        }
    }

    /// What its cost is the difference to.
    pub fn base(self) -> Self {
        match self {
            Self::NoneBuffering | Self::RoundTrip | Self::Lua => Self::NoneBuffering,
            _ => Self::None,
        }
    }

    /// What its cost is the ratio to.
    pub fn compared_with(self) -> Self {
        match self {
            Self::OursPath | Self::OursPreserve => Self::Noop,
            _ => Self::Copy,
        }
    }

    pub fn listener(self) -> String {
        format!("{self:?}")
    }

    fn filter(self) -> Option<Value> {
        let disable = json!({"loadPolicy": "disable"});
        match self {
            Self::None | Self::NoneBuffering => None,
            Self::Noop => Some(self.baseline("noop")),
            Self::Copy => Some(self.baseline("copy")),
            Self::CopyUnsized => Some(self.baseline("copy_unsized")),
            Self::RoundTrip => Some(self.baseline("round_trip")),
            Self::Ours | Self::OursPath => Some(self.ours(&disable, &self.listener())),
            Self::OursPreserve => {
                Some(self.ours(&json!({"loadPolicy": "preserve"}), &self.listener()))
            }
            Self::OursThreshold => Some(self.ours(
                &json!({
                    "loadPolicy": "threshold",
                    "minExternalReusableTokens": 1024,
                    "maxWaitingRequests": 8,
                    "maxEvidenceAge": "60m",
                    "maxSampleAge": "10m",
                }),
                WRITER,
            )),
            Self::Lua => Some(json!({"name": "lua", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": {"inline_string": include_str!("edit.lua")},
            }})),
        }
    }

    fn baseline(self, what: &str) -> Value {
        let module = files::baselines();
        wasm(
            json!({"name": what, "vm_config": vm(&self.listener(), &module), "configuration": string_value(what)}),
        )
    }

    fn ours(self, policy: &Value, vm_id: &str) -> Value {
        wasm(json!({
            "name": self.listener(), "root_id": "selective-kv",
            "vm_config": vm(vm_id, &files::module()),
            "configuration": string_value(&policy.to_string()),
        }))
    }

    fn buffer_limit(self) -> usize {
        if self.base() == Self::NoneBuffering {
            BUFFERING_LIMIT
        } else {
            STREAMING_LIMIT
        }
    }
}

/// Every variant, and the writer of evidence.
pub fn bootstrap(sink: &Sink) -> Bootstrap {
    let mut listeners: Vec<_> = Variant::ALL
        .into_iter()
        .map(|variant| {
            let filter = variant.filter();
            listener(&variant.listener(), variant.buffer_limit(), filter)
        })
        .collect();
    let writer = wasm(json!({
        "name": "foreign-scorer", "allow_on_headers_stop_iteration": true,
        "vm_config": vm(WRITER, &files::foreign_scorer()),
        "configuration": string_value(r#"{"maxEvidenceAgeMs": 3600000}"#),
    }));
    listeners.push(listener(WRITER, STREAMING_LIMIT, Some(writer)));
    with_listeners(listeners, None, sink)
}

/// One variant alone, with a buffer limit for both sides.
pub fn alone(variant: Variant, policy: &Value, limit: usize, sink: &Sink) -> Bootstrap {
    let filter = match variant {
        Variant::Ours => Some(variant.ours(policy, "alone")),
        other => other.filter(),
    };
    let listeners = vec![listener(&variant.listener(), limit, filter)];
    with_listeners(listeners, Some(limit), sink)
}

fn with_listeners(listeners: Vec<Value>, limit: Option<usize>, sink: &Sink) -> Bootstrap {
    Bootstrap::shipped("downstream.yaml")
        .edit_at("/static_resources", |resources| {
            *resources = json!({"listeners": listeners, "clusters": []});
        })
        .add_cluster("engines", &[sink.address()])
        .cluster("engines", |cluster| {
            if let Some(limit) = limit {
                cluster["per_connection_buffer_limit_bytes"] = json!(limit);
            }
        })
}

fn listener(name: &str, limit: usize, filter: Option<Value>) -> Value {
    let router = json!({"name": "router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
    }});
    let filters: Vec<_> = filter.into_iter().chain([router]).collect();
    json!({
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "per_connection_buffer_limit_bytes": limit,
        "filter_chains": [{"filters": [{
            "name": "manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": name,
                "route_config": {"virtual_hosts": [{
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }]},
                "http_filters": filters,
            },
        }]}],
    })
}

fn wasm(plugin: Value) -> Value {
    json!({"name": "wasm", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": plugin,
    }})
}

fn vm(vm_id: &str, module: &std::path::Path) -> Value {
    json!({
        "vm_id": vm_id,
        "runtime": "envoy.wasm.runtime.v8",
        "code": {"local": {"filename": module}},
    })
}
