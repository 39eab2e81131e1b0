//! The HTTP side: `/events` for Envoys, `/healthz` and `/metrics` for operators.

use super::cursor::Cursor;
use super::hub::{Hub, add};
use super::metrics;
use super::page::{self, Head};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// After a first record, more of the same engine step are on their way: one page for all.
const LINGER: Duration = Duration::from_millis(5);
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// A client has this long to send a request's head; longer than a pool keeps an idle connection in use.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Answers under way have this long when the bridge stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Largest head of a request (bytes).
const MAX_HEAD: usize = 16 * 1024;
/// Connections beside those of readers: probes, scrapes.
const SPARE_CONNECTIONS: usize = 64;

pub struct Server {
    pub hub: Arc<Hub>,
    pub token: Option<String>,
    pub max_page: usize,
    pub max_readers: usize,
    pub max_wait: Duration,
    /// True once the bridge stops.
    pub stop: watch::Receiver<bool>,
}

type Answer = Response<Full<Bytes>>;

/// Serves until the bridge stops and what was asked is answered.
pub async fn serve(server: Arc<Server>, listener: TcpListener) {
    let mut stop = server.stop.clone();
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if connections.len() >= server.max_readers + SPARE_CONNECTIONS {
            add(&server.hub.http.busy, 1);
            continue;
        }
        let _ = stream.set_nodelay(true);
        let server = server.clone();
        connections.spawn(async move {
            let mut stop = server.stop.clone();
            let service = service_fn(|request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let mut builder = Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(MAX_HEAD);
            builder
                .http2()
                .timer(TokioTimer::new())
                .max_header_list_size(MAX_HEAD as u32);
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
            let ended = tokio::select! {
                ended = connection.as_mut() => Some(ended),
                _ = stop.wait_for(|stop| *stop) => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a reader's connection ended");
            }
        });
    }
    drop(listener);
    let _ = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}

impl Server {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let known = matches!(path, "/events" | "/healthz" | "/metrics");
        if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match path {
            "/events" => self.events(&request).await,
            "/healthz" => plain(StatusCode::OK, "ok"),
            "/metrics" => {
                let mut answer = plain(StatusCode::OK, metrics::text(&self.hub));
                answer.headers_mut().insert(
                    CONTENT_TYPE,
                    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
                );
                answer
            }
            _ => plain(
                StatusCode::NOT_FOUND,
                "there are /events, /healthz and /metrics",
            ),
        }
    }

    async fn events(&self, request: &Request<Incoming>) -> Answer {
        let http = &self.hub.http;
        if !self.admits(request) {
            add(&http.unauthorized, 1);
            let mut answer = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed");
            answer
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
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
                let mut answer = plain(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "limits.maxReaders requests are waiting already",
                );
                answer
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from_static("1"));
                return answer;
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
        let mut answer = Response::new(Full::new(Bytes::from(body)));
        answer
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/cbor"));
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

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let given = match given.split_at_checked("Bearer ".len()) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"Bearer ") => given,
            _ => return false,
        };
        same(given, token.as_bytes())
    }
}

/// Takes as long for every token of one length.
fn same(given: &[u8], token: &[u8]) -> bool {
    given.len() == token.len()
        && given
            .iter()
            .zip(token)
            .fold(0, |differs, (a, b)| differs | (a ^ b))
            == 0
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

fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}
