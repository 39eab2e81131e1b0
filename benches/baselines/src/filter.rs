//! The proxy-wasm side.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use crate::{Variant, raw_value, round_trip};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root(Variant::Noop)));
}}

struct Root(Variant);

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let name = self.get_plugin_configuration().unwrap_or_default();
        let variant = std::str::from_utf8(&name).ok().and_then(Variant::from_name);
        self.0 = variant.unwrap_or(self.0);
        variant.is_some()
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(match self.0 {
            Variant::Noop => Box::new(Noop),
            Variant::Copy => Box::new(CopyChunks { sized: true }),
            Variant::CopyUnsized => Box::new(CopyChunks { sized: false }),
            Variant::RawValue => Box::new(Buffered(raw_value::edited)),
            Variant::RoundTrip => Box::new(Buffered(round_trip::edited)),
        })
    }
}

struct Noop;

impl Context for Noop {}

impl HttpContext for Noop {}

struct CopyChunks {
    sized: bool,
}

impl Context for CopyChunks {}

impl HttpContext for CopyChunks {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        if !self.sized {
            self.set_http_request_header("content-length", None);
        }
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, _: bool) -> Action {
        if size > 0 {
            drop(self.get_http_request_body(0, size));
        }
        Action::Continue
    }
}

/// Edits the whole body at its end.
struct Buffered(fn(&[u8]) -> Option<Vec<u8>>);

impl Context for Buffered {}

impl HttpContext for Buffered {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_request_header("content-length", None);
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        let body = self.get_http_request_body(0, size).unwrap_or_default();
        if let Some(edited) = self.0(&body) {
            self.set_http_request_body(0, size, &edited);
        }
        Action::Continue
    }
}
