//! What a client sends, and what Envoy knows about it.

use crate::exchange::{Exchange, path};
use crate::headers::HeaderMap;

/// A request to be sent through a chain. Values set twice: the last counts.
#[derive(Debug)]
pub struct Request {
    pub(crate) exchange: Exchange,
    pub(crate) buffer_limit: usize,
}

/// Envoy's default for `per_connection_buffer_limit_bytes`.
const BUFFER_LIMIT_BYTES: usize = 1 << 20;

impl Request {
    /// `POST`, `content-type: application/json`, `x-request-id: r-1`; no upstream host yet, a
    /// route without a name.
    pub fn post(path: &str) -> Self {
        let request_headers: HeaderMap = [
            (":method", "POST"),
            (":path", path),
            (":authority", "engines"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("x-request-id", "r-1"),
        ]
        .into_iter()
        .collect();
        Self {
            exchange: Exchange {
                request_headers,
                ..Exchange::default()
            },
            buffer_limit: BUFFER_LIMIT_BYTES,
        }
        .property(&["connection", "id"], 1u64.to_le_bytes())
        .route("")
        .virtual_host("")
        .cluster("engines")
    }

    /// This one value for the header, in place of what was there.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.exchange.request_headers.replace(name, value);
        self
    }

    /// One more value for the header.
    pub fn add_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.exchange.request_headers.add(name, value);
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.exchange.request_headers.remove(name);
        self
    }

    pub fn id(self, id: &str) -> Self {
        self.header("x-request-id", id)
    }

    /// The `ip:port` that the router picks once the headers are through the chain.
    pub fn upstream(mut self, address: &str) -> Self {
        self.exchange.upstream = Some(address.to_owned());
        self
    }

    pub fn route(self, name: &str) -> Self {
        self.property(&["xds", "route_name"], name)
    }

    pub fn virtual_host(self, name: &str) -> Self {
        self.property(&["xds", "virtual_host_name"], name)
    }

    pub fn cluster(self, name: &str) -> Self {
        self.property(&["xds", "cluster_name"], name)
    }

    pub fn route_metadata(self, namespace: &str, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.property(
            &["xds", "route_metadata", "filter_metadata", namespace, key],
            value,
        )
    }

    pub fn dynamic_metadata(self, namespace: &str, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.property(&["metadata", "filter_metadata", namespace, key], value)
    }

    /// A property that is readable in every phase.
    pub fn property(mut self, parts: &[&str], value: impl AsRef<[u8]>) -> Self {
        self.exchange
            .properties
            .insert(path(parts), Ok(value.as_ref().to_vec()));
        self
    }

    /// A property that is answered with a status in every phase.
    pub fn property_status(mut self, parts: &[&str], status: u32) -> Self {
        self.exchange.properties.insert(path(parts), Err(status));
        self
    }

    /// Bytes Envoy buffers for a paused filter before it answers 413.
    pub fn buffer_limit(mut self, bytes: usize) -> Self {
        self.buffer_limit = bytes;
        self
    }
}
