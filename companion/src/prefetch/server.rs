//! The HTTP side: `/prefetch` for Envoys, `/healthz` and `/metrics` for operators. An answer never
//! waits for a file.

use super::message;
use super::{Agent, metrics};
use crate::common::http::{Answer, Service, only, plain, typed};
use crate::common::token::Token;
use crate::common::{add, http};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::{Method, Request, StatusCode};
use std::time::Duration;
use tokio::time::timeout;

/// A client has this long to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

impl Service for Agent {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        match (request.uri().path(), request.method()) {
            ("/prefetch", &Method::POST) => self.prefetch(request).await,
            ("/prefetch", _) => only("POST", "only POST"),
            ("/healthz", _) if get => plain(StatusCode::OK, "ok"),
            ("/metrics", _) if get => http::metrics(metrics::text(self)),
            ("/healthz" | "/metrics", _) => only("GET, HEAD", "only GET"),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there are /prefetch, /healthz and /metrics",
            ),
        }
    }

    fn turned_away(&self) {
        add(&self.counts.busy, 1);
    }
}

impl Agent {
    async fn prefetch(&self, request: Request<Incoming>) -> Answer {
        if !self.token.admits(&request) {
            add(&self.counts.unauthorized, 1);
            return Token::refusal();
        }
        let body = request.into_body();
        let most = self.max_body as u64;
        if body.size_hint().lower() > most {
            return self.too_large();
        }
        let body = match timeout(BODY_TIMEOUT, Limited::new(body, self.max_body).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return self.too_large(),
            Ok(Err(error)) => return self.bad(error.to_string()),
            Err(_) => return self.bad("the body did not come in time".into()),
        };
        match message::decode(&body, self.max_digests) {
            Ok(blocks) => {
                add(&self.counts.blocks, blocks.len() as u64);
                let directories = self.directories();
                if directories.is_empty() {
                    add(&self.counts.no_layout, 1);
                } else {
                    add(&self.counts.accepted, 1);
                }
                let layouts = || directories.iter().map(|directory| &directory.layout);
                let count = layouts().map(|layout| layout.count(&blocks)).sum();
                let files = layouts().flat_map(|layout| layout.files(&blocks));
                let submitted = self.pool.submit(files, count);
                match serde_json::to_vec(&submitted) {
                    Ok(body) => typed(StatusCode::ACCEPTED, "application/json", body),
                    Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
                }
            }
            Err(wrong) => self.bad(wrong),
        }
    }

    fn too_large(&self) -> Answer {
        add(&self.counts.too_large, 1);
        plain(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("more than limits.maxBodyBytes, which is {}", self.max_body),
        )
    }

    fn bad(&self, wrong: String) -> Answer {
        add(&self.counts.bad, 1);
        tracing::debug!(wrong, "refused");
        plain(StatusCode::BAD_REQUEST, wrong)
    }
}
