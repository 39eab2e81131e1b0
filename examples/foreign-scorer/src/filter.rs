//! The proxy-wasm side: control requests end here, all others pass.

use std::time::UNIX_EPOCH;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use serde::Deserialize;

use crate::control::{Answer, Clock, PREFIX, answer, write_evidence};
use crate::evidence::Evidence;
use crate::store::{Failure, Store};
use crate::{Refusal, json};

const EVIDENCE: &str = "x-foreign-evidence";
const EVIDENCE_AT: &str = "x-foreign-evidence-at";
/// Of a control request's body, in bytes: hex of more than four values.
const BODY_LIMIT: usize = 4 << 20;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root { config: Config::default() }));
}}

#[derive(Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Config {
    /// The longest `maxEvidenceAge` of the policies that read.
    max_evidence_age_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_evidence_age_ms: 30_000,
        }
    }
}

struct Root {
    config: Config,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let text = self.get_plugin_configuration().unwrap_or_default();
        if text.is_empty() {
            return true;
        }
        match json::parse(&text) {
            Ok(config) => {
                self.config = config;
                true
            }
            Err(Refusal(why)) => {
                log::error!("configuration: {why}");
                false
            }
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream {
            config: self.config,
            task: Task::Pass,
        }))
    }
}

enum Task {
    Pass,
    Control {
        method: String,
        path: String,
        body: Vec<u8>,
    },
    /// Evidence to write later, with the request's id.
    Write(When, Box<Evidence>, String),
    Answered,
}

/// When the evidence of a request is written, if not with its headers.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// Before the first chunk of the body goes on.
    Body,
    /// When the body has ended.
    End,
}

struct Stream {
    config: Config,
    task: Task,
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let path = self.header(":path").unwrap_or_default();
        if path.starts_with(PREFIX) {
            self.task = Task::Control {
                method: self.header(":method").unwrap_or_default(),
                path,
                body: Vec::new(),
            };
        } else {
            match self.inline_evidence() {
                Ok(task) => self.task = task,
                Err(refusal) => return self.reply(&Answer::refused(&refusal)),
            }
        }
        self.go_on(end_of_stream)
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if let Task::Control { body, .. } = &mut self.task {
            // Taken out of Envoy's buffer, so that its limit does not matter.
            let chunk = hostcalls::get_buffer(BUFFER, 0, size).ok().flatten();
            if size > 0 && hostcalls::set_buffer(BUFFER, 0, size, b"").is_err() {
                return self.reply(&Answer::refused(&Refusal(
                    "the body is not readable".into(),
                )));
            }
            body.extend(chunk.unwrap_or_default());
            if body.len() > BODY_LIMIT {
                let text = format!("the body has more than {BODY_LIMIT} bytes");
                return self.reply(&Answer::refused(&Refusal(text)));
            }
        }
        let now = matches!(self.task, Task::Write(When::Body, ..));
        self.go_on(end_of_stream || now)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.go_on(true)
    }
}

const BUFFER: proxy_wasm::types::BufferType = proxy_wasm::types::BufferType::HttpRequestBody;

impl Stream {
    /// Does what is to be done, if it is time: when the request is complete, or as the task says.
    fn go_on(&mut self, now: bool) -> Action {
        if !now {
            return match self.task {
                Task::Control { .. } | Task::Answered => Action::Pause,
                Task::Pass | Task::Write(..) => Action::Continue,
            };
        }
        match std::mem::replace(&mut self.task, Task::Pass) {
            Task::Control { method, path, body } => {
                self.reply(&answer(&Host, &method, &path, &body, self.clock()))
            }
            Task::Write(_, evidence, id) => {
                self.write(&evidence, &id);
                Action::Continue
            }
            Task::Answered => {
                self.task = Task::Answered;
                Action::Pause
            }
            Task::Pass => Action::Continue,
        }
    }

    /// Takes the evidence out of the request's headers, and writes it now unless it is for later.
    fn inline_evidence(&self) -> Result<Task, Refusal> {
        let (text, at) = (self.take_header(EVIDENCE), self.take_header(EVIDENCE_AT));
        let Some(text) = text else {
            return Ok(Task::Pass);
        };
        let named = |Refusal(why)| Refusal(format!("{EVIDENCE}: {why}"));
        let evidence = Evidence::parse(text.as_bytes()).map_err(named)?;
        let Some(id) = self.header("x-request-id").filter(|id| !id.is_empty()) else {
            log::warn!("no x-request-id: its evidence is not written");
            return Ok(Task::Pass);
        };
        let when = match at.as_deref() {
            None => {
                self.write(&evidence, &id);
                return Ok(Task::Pass);
            }
            Some("body") => When::Body,
            Some("end") => When::End,
            Some(other) => {
                let why = format!("{EVIDENCE_AT}: {other} is neither \"body\" nor \"end\"");
                return Err(Refusal(why));
            }
        };
        Ok(Task::Write(when, Box::new(evidence), id))
    }

    fn write(&self, evidence: &Evidence, id: &str) {
        match write_evidence(&Host, evidence, id, self.clock()) {
            Ok(_) => {}
            Err(Failure::Refused(Refusal(why))) => log::warn!("evidence of {id}: {why}"),
            Err(Failure::Busy) => log::warn!("evidence of {id}: others wrote in between"),
        }
    }

    fn reply(&mut self, answer: &Answer) -> Action {
        self.task = Task::Answered;
        let mut headers = vec![("content-type", "text/plain")];
        headers.extend(
            answer
                .notes
                .iter()
                .map(|(name, text)| (*name, text.as_str())),
        );
        let body = answer.body.as_deref().map(str::as_bytes);
        self.send_http_response(answer.status, headers, body);
        Action::Pause
    }

    fn clock(&self) -> Clock {
        let since = self.get_current_time().duration_since(UNIX_EPOCH);
        let ms = since.map_or(0, |d| d.as_millis());
        Clock {
            now: u64::try_from(ms).unwrap_or(u64::MAX),
            max_evidence_age: self.config.max_evidence_age_ms,
        }
    }

    /// By bytes, as the SDK panics on a value that is no UTF-8.
    fn header(&self, name: &str) -> Option<String> {
        let bytes = self.get_http_request_header_bytes(name)?;
        String::from_utf8(bytes).ok()
    }

    fn take_header(&self, name: &str) -> Option<String> {
        let bytes = self.get_http_request_header_bytes(name)?;
        self.set_http_request_header(name, None);
        // What is no UTF-8 is no JSON either, and is refused as such.
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The shared data of this VM's `vm_id`.
struct Host;

impl Store for Host {
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<u32>) {
        hostcalls::get_shared_data(key).unwrap_or((None, None))
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> bool {
        hostcalls::set_shared_data(key, Some(value), Some(cas)).is_ok()
    }
}
