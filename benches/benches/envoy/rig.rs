//! The Envoy under measurement with everything around it.

use envoy_tests::Envoy;
use selective_kv_bench::shapes::{self, Params};
use serde_json::Value;

use crate::cases::Case;
use crate::client::Client;
use crate::evidence;
use crate::process::CpuClock;
use crate::sink::Sink;
use crate::variants::{Variant, bootstrap};

/// The one thread of Envoy that serves requests: not those that compile the modules.
const WORKER: &str = "wrk:worker_0";

pub struct Rig {
    pub envoy: Envoy,
    pub sink: Sink,
    pub clock: CpuClock,
}

impl Rig {
    pub fn start() -> Self {
        let sink = Sink::start();
        let envoy = Envoy::start(&bootstrap(&sink));
        // The tests read what it logs of wasm; a fleet does not.
        envoy.admin_post("/logging?wasm=warning");
        evidence::write(&envoy, &sink);
        evidence::sample_queue(&envoy, &sink);
        let clock = CpuClock::of(envoy.pid(), WORKER);
        Rig { envoy, sink, clock }
    }

    pub fn connect(&self, variant: Variant) -> Client {
        Client::connect(self.envoy.listener(&variant.listener()))
    }

    /// Panics unless the body arrives as it must.
    pub fn check(&self, variant: Variant, case: Case) {
        let Case {
            shape,
            bytes,
            params,
        } = case;
        let requests = case.requests(variant, 0);
        let mut client = self.connect(variant);
        let arrived = self.sink.kept(|| client.exchange(&requests[0]));
        let sent = shapes::body(shape, bytes, params);
        let edited = shapes::edited(shape, bytes, params);
        let right = match variant {
            Variant::Ours => arrived == edited,
            Variant::OursThreshold => arrived == without_cap(sent, params),
            Variant::RoundTrip | Variant::Lua => json(&arrived) == json(&edited),
            _ => arrived == sent,
        };
        assert!(
            right,
            "{} lets another body arrive: {case:?}",
            variant.name()
        );
    }
}

/// A client's cap is gone where loads are admitted.
fn without_cap(body: Vec<u8>, params: Params) -> Vec<u8> {
    let text = String::from_utf8(body).expect("text");
    assert_eq!(text.contains(shapes::CAP), params != Params::Absent);
    text.replacen(shapes::CAP, "", 1).into_bytes()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}
