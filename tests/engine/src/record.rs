//! What reached the engine, and what it made of it.

use crate::cache::Served;
use crate::json::Value;
use crate::params::Params;
use bytes::Bytes;
use serde_json::json;

/// Texts of bodies up to this many bytes are part of the report; the rest is fetched by itself.
const REPORTED_BODY_BYTES: usize = 16 * 1024;

pub type Headers = Vec<(String, Vec<u8>)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyState {
    #[default]
    Reading,
    Complete,
    /// The connection or stream ended before the body did.
    Cut(String),
}

/// One request, from its headers on. Polls (`/metrics`, `/version`, …) are only counted.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// From 1, in order of arrival.
    pub sequence: u64,
    pub unix_ms: u64,
    pub method: String,
    /// With the query.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// Lower-case names; in the order of arrival, copies of a name together.
    pub headers: Headers,
    /// Bytes that have arrived so far.
    pub received: usize,
    /// Whole once `body_state` says so.
    pub body: Bytes,
    pub body_state: BodyState,
    pub trailers: Option<Headers>,
    /// Set when the answer's head is sent.
    pub status: Option<u16>,
    /// Set when the last byte of the answer is sent.
    pub answered: bool,
    /// Set when the engine takes the request up; refused ones never have it.
    pub work: Option<Work>,
}

/// What the engine did for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    pub params: Params,
    /// One for each prompt.
    pub prompts: Vec<Served>,
}

impl Work {
    pub fn loaded_tokens(&self) -> usize {
        self.prompts.iter().map(|served| served.loaded_tokens).sum()
    }

    pub fn gpu_tokens(&self) -> usize {
        self.prompts.iter().map(|served| served.gpu_tokens).sum()
    }

    pub fn stored_tokens(&self) -> usize {
        self.prompts.iter().map(|served| served.stored_tokens).sum()
    }

    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|served| served.prompt_tokens).sum()
    }
}

impl Record {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_slice())
    }

    pub fn to_json(&self) -> serde_json::Value {
        let headers = |headers: &Headers| -> serde_json::Value {
            headers
                .iter()
                .map(|(name, value)| json!([name, String::from_utf8_lossy(value)]))
                .collect()
        };
        let text = (self.body.len() <= REPORTED_BODY_BYTES)
            .then(|| std::str::from_utf8(&self.body).ok())
            .flatten();
        let body_state = match &self.body_state {
            BodyState::Reading => "reading".to_owned(),
            BodyState::Complete => "complete".to_owned(),
            BodyState::Cut(why) => format!("cut: {why}"),
        };
        json!({
            "sequence": self.sequence,
            "unix_ms": self.unix_ms,
            "method": self.method,
            "target": self.target,
            "version": self.version,
            "headers": headers(&self.headers),
            "received": self.received,
            "body_state": body_state,
            "body": text,
            "trailers": self.trailers.as_ref().map(headers),
            "status": self.status,
            "answered": self.answered,
            "work": self.work.as_ref().map(Work::to_json),
        })
    }
}

impl Work {
    fn to_json(&self) -> serde_json::Value {
        let prompts: Vec<_> = self
            .prompts
            .iter()
            .map(|served| {
                json!({
                    "prompt_tokens": served.prompt_tokens,
                    "gpu_tokens": served.gpu_tokens,
                    "loaded_tokens": served.loaded_tokens,
                    "loaded_by_tier": served.loaded_by_tier,
                    "cached_tokens": served.cached_tokens(),
                    "stored_tokens": served.stored_tokens,
                })
            })
            .collect();
        // A cap beyond 64 bits is refused before it gets here.
        let cap = |cap: Option<u128>| cap.and_then(|cap| u64::try_from(cap).ok());
        json!({
            "kv_transfer_params": self.params.in_effect.as_ref().map(Value::to_report),
            "max_load_tokens": cap(self.params.max_load_tokens),
            "max_offload_tokens": cap(self.params.max_offload_tokens),
            "warnings": self.params.warnings,
            "prompt_tokens": self.prompt_tokens(),
            "gpu_tokens": self.gpu_tokens(),
            "loaded_tokens": self.loaded_tokens(),
            "stored_tokens": self.stored_tokens(),
            "prompts": prompts,
        })
    }
}
