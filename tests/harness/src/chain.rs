//! The filters that a request passes.

use crate::exchange::Placement;
use crate::outcome::Outcome;
use crate::plugin::Plugin;
use crate::request::Request;
use crate::stream::Stream;

/// Filters in the order of the request: downstream ones, the router, upstream ones.
#[derive(Clone, Default)]
pub struct Chain {
    pub(crate) downstream: Vec<Plugin>,
    pub(crate) upstream: Vec<Plugin>,
}

impl Chain {
    pub fn then(mut self, plugin: &Plugin, placement: Placement) -> Self {
        match placement {
            Placement::Downstream => self.downstream.push(plugin.clone()),
            Placement::Upstream => self.upstream.push(plugin.clone()),
        }
        self
    }

    /// Opens a stream: its headers are sent, more is to come.
    pub fn request(&self, request: Request) -> Stream {
        Stream::open(self, request, false)
    }

    /// A request without a body; the upstream answers 200.
    pub fn header_only(&self, request: Request) -> Outcome {
        Stream::open(self, request, true).close()
    }

    /// A whole request in one chunk with its content-length; the upstream answers 200.
    pub fn send(&self, request: Request, body: impl AsRef<[u8]>) -> Outcome {
        let body = body.as_ref();
        let request = request.header("content-length", body.len().to_string());
        self.request(request).end_with(body)
    }
}
