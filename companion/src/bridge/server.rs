//! The HTTP side: `/events` for Envoys, `/healthz` and `/metrics` for operators.

use super::cursor::Cursor;
use super::hub::Hub;
use super::metrics;
use super::page::{self, Head};
use crate::common::http::{Answer, Service, busy, only, plain, typed};
use crate::common::token::Token;
use crate::common::{add, http};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// After a first record, more of the same engine step are on their way: one page for all.
const LINGER: Duration = Duration::from_millis(5);
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// Connections beside those of readers: probes, scrapes.
pub const SPARE_CONNECTIONS: usize = 64;

pub struct Server {
    pub hub: Arc<Hub>,
    pub token: Token,
    pub max_page: usize,
    pub max_readers: usize,
    pub max_wait: Duration,
    /// True once the bridge stops.
    pub stop: watch::Receiver<bool>,
}

impl Service for Server {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let known = matches!(path, "/events" | "/healthz" | "/metrics");
        if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
            return only("GET, HEAD", "only GET");
        }
        match path {
            "/events" => self.events(&request).await,
            "/healthz" => plain(StatusCode::OK, "ok"),
            "/metrics" => http::metrics(metrics::text(&self.hub)),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there are /events, /healthz and /metrics",
            ),
        }
    }

    fn turned_away(&self) {
        add(&self.hub.http.busy, 1);
    }
}

impl Server {
    async fn events(&self, request: &Request<Incoming>) -> Answer {
        let http = &self.hub.http;
        if !self.token.admits(request) {
            add(&http.unauthorized, 1);
            return Token::refusal();
        }
        let query = match Query::parse(request.uri().query().unwrap_or_default()) {
            Ok(query) => query,
            Err(wrong) => {
                add(&http.bad, 1);
                return plain(StatusCode::BAD_REQUEST, wrong);
            }
        };
        let _reader = match Reader::enter(&self.hub, self.max_readers) {
            Some(reader) => reader,
            None => {
                add(&http.busy, 1);
                return busy("limits.maxReaders requests are waiting already");
            }
        };

        // A cursor of another run, or of no run at all, is at the beginning.
        let (after, reset) = match query.after {
            Some(cursor)
                if cursor.epoch == self.hub.epoch && cursor.position <= self.hub.log().last() =>
            {
                (cursor.position, false)
            }
            _ => (0, true),
        };
        if !reset {
            self.wait(after, query.wait.min(self.max_wait)).await;
        }
        let page = self.hub.page(after, self.max_page);
        let cursor = Cursor {
            epoch: self.hub.epoch,
            position: page.position,
        }
        .to_string();
        let body = page::encode(
            &page,
            &Head {
                cursor: &cursor,
                reset,
                now: Instant::now(),
            },
        );
        add(&http.pages, 1);
        add(&http.resets, u64::from(reset));
        add(&http.page_bytes, body.len() as u64);
        let mut answer = typed(StatusCode::OK, "application/cbor", body);
        answer
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    /// Until there is something after `after`, or for `wait`, or until the bridge stops.
    async fn wait(&self, after: u64, wait: Duration) {
        let mut newest = self.hub.watch();
        let mut stop = self.stop.clone();
        let news = async {
            if newest.wait_for(|newest| *newest > after).await.is_ok() {
                sleep(LINGER).await;
            }
        };
        tokio::select! {
            _ = timeout(wait, news) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// A reader is counted while its request lives, also if it goes away.
struct Reader<'a>(&'a Hub);

impl<'a> Reader<'a> {
    fn enter(hub: &'a Hub, most: usize) -> Option<Self> {
        let reader = Self(hub);
        let before = hub.http.readers.fetch_add(1, Ordering::Relaxed);
        (before < most as u64).then_some(reader)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.http.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Query {
    after: Option<Cursor>,
    wait: Duration,
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self {
            after: None,
            wait: DEFAULT_WAIT,
        };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" if value.is_empty() => {}
                "after" => {
                    let cursor = Cursor::parse(value)
                        .ok_or("after: not a cursor of this API: leave it out to begin anew")?;
                    query.after = Some(cursor);
                }
                "timeout_ms" => {
                    let wait = value
                        .parse()
                        .map_err(|_| "timeout_ms: must be a number of milliseconds")?;
                    query.wait = Duration::from_millis(wait);
                }
                _ => {
                    let name: String = name.chars().take(32).collect();
                    return Err(format!(
                        "{name}: unknown parameter: there are after and timeout_ms"
                    ));
                }
            }
        }
        Ok(query)
    }
}
