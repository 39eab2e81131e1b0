//! One request and its answer, as all filters and attempts share them.

use crate::headers::HeaderMap;
use crate::status;
use std::collections::BTreeMap;

/// Where a filter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In the HTTP filter chain, before the router: the upstream host is not yet chosen in the
    /// headers phase.
    Downstream,
    /// Upstream filter of the cluster: once per attempt, the host is known from the start.
    Upstream,
}

/// An answer made by the proxy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResponse {
    pub status: u32,
    pub details: String,
    pub body: Vec<u8>,
    pub headers: HeaderMap,
    /// -1: none.
    pub grpc_status: i32,
}

#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub request_headers: HeaderMap,
    pub request_trailers: HeaderMap,
    pub response_headers: HeaderMap,
    pub filter_state: BTreeMap<Vec<u8>, Vec<u8>>,
    /// By path, its parts joined by NUL: a value, or the status the host answers with.
    pub properties: BTreeMap<Vec<u8>, Result<Vec<u8>, u32>>,
    /// `ip:port` of the host that the router picks (next).
    pub upstream: Option<String>,
    /// The headers passed the whole downstream chain.
    pub host_picked: bool,
    pub answered: bool,
}

pub(crate) fn path(parts: &[&str]) -> Vec<u8> {
    parts.join("\0").into_bytes()
}

impl Exchange {
    /// What a filter of that placement can read, `headers` being true while its
    /// request headers are readable.
    pub fn property(&self, at: &[u8], placement: Placement, headers: bool) -> Result<Vec<u8>, u32> {
        let at = at.strip_suffix(b"\0").unwrap_or(at);
        if let Some(answer) = self.properties.get(at) {
            return answer.clone();
        }
        let parts: Vec<&[u8]> = at.split(|b| *b == 0).collect();
        let host = (self.host_picked || placement == Placement::Upstream)
            .then_some(self.upstream.as_ref())
            .flatten();
        match parts.as_slice() {
            [b"upstream", b"address"] => host
                .map(|h| h.clone().into_bytes())
                .ok_or(status::NOT_FOUND),
            // A host without metadata: the message is null.
            [b"xds", b"upstream_host_metadata"] if host.is_some() => {
                Err(status::SERIALIZATION_FAILURE)
            }
            [b"request", rest @ ..] if headers => self.request_property(rest),
            [b"response", b"code"] if self.answered => {
                let code = self
                    .response_headers
                    .get(":status")
                    .and_then(|v| std::str::from_utf8(v).ok())
                    .and_then(|v| v.parse::<i64>().ok())
                    .unwrap_or(0);
                Ok(code.to_le_bytes().to_vec())
            }
            [name] => self
                .filter_state
                .get(*name)
                .cloned()
                .ok_or(status::NOT_FOUND),
            _ => Err(status::NOT_FOUND),
        }
    }

    fn request_property(&self, rest: &[&[u8]]) -> Result<Vec<u8>, u32> {
        let name = match rest {
            [b"path"] => ":path",
            [b"method"] => ":method",
            [b"host"] => ":authority",
            [b"id"] => "x-request-id",
            [b"headers", name] => std::str::from_utf8(name).map_err(|_| status::NOT_FOUND)?,
            _ => return Err(status::NOT_FOUND),
        };
        self.request_headers
            .get(name)
            .map(<[u8]>::to_vec)
            .ok_or(status::NOT_FOUND)
    }
}
