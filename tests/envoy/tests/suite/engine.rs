//! A sink with the two pages that the scorer polls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use envoy_tests::{Reply, Seen, Sink, until};

pub const METRIC: &str = "vllm:num_requests_waiting";

/// What the engine answers now.
#[derive(Clone)]
struct Pages {
    /// None: 500.
    metrics: Option<String>,
    version: String,
}

pub struct Engine {
    pub sink: Sink,
    pages: Arc<Mutex<Pages>>,
}

impl Engine {
    pub fn waiting(waiting: u32) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), waiting)
    }

    pub fn at(address: SocketAddr, waiting: u32) -> Self {
        let pages = Pages {
            metrics: Some(page(waiting)),
            version: "0.32.0".into(),
        };
        let pages = Arc::new(Mutex::new(pages));
        let shared = Arc::clone(&pages);
        let answer = move |seen: &Seen| {
            let pages = shared.lock().expect("the pages").clone();
            match (seen.method.as_str(), seen.target.as_str()) {
                ("GET", "/metrics") => match pages.metrics {
                    Some(text) => Reply::Status(200, text.into_bytes()),
                    None => Reply::Status(500, Vec::new()),
                },
                ("GET", "/version") => Reply::Status(
                    200,
                    format!(r#"{{"version":"{}"}}"#, pages.version).into_bytes(),
                ),
                (_, "/v1/responses") => Reply::Status(404, Vec::new()),
                _ => Reply::ok(),
            }
        };
        Engine {
            sink: Sink::at(address, answer, |_, _| None),
            pages,
        }
    }

    pub fn set_waiting(&self, waiting: u32) {
        self.set_page(Some(page(waiting)));
    }

    /// None: polls fail with 500.
    pub fn set_page(&self, text: Option<String>) {
        self.pages.lock().expect("the pages").metrics = text;
    }

    pub fn endpoint(&self) -> String {
        self.sink.endpoint()
    }

    /// The GETs of a page so far.
    pub fn polls(&self, path: &str) -> Vec<Seen> {
        self.sink
            .seen()
            .into_iter()
            .filter(|s| s.method == "GET" && s.target == path)
            .collect()
    }

    /// Waits for `more` further polls of `/metrics`, and until the last of them is answered.
    pub fn await_polls(&self, more: usize) {
        let before = self.polls("/metrics").len();
        // One more: when it comes, the answer to the one before has been taken in.
        until("polls", || {
            (self.polls("/metrics").len() > before + more).then_some(())
        });
    }
}

pub fn page(waiting: u32) -> String {
    format!("# TYPE {METRIC} gauge\n{METRIC}{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n")
}
