//! An HTTP server, version 1.1 and 2: connections, their bounds, their end. What is answered is the
//! program's.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A client has this long to send a request's head; longer than a pool keeps an idle connection in use.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Answers under way have this long when the program stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Largest head of a request (bytes).
const MAX_HEAD: usize = 16 * 1024;

pub type Answer = Response<Full<Bytes>>;

/// What a program does with a request.
pub trait Service: Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Answer> + Send;
    /// A connection beyond the most is closed at once.
    fn turned_away(&self);
}

/// Serves until `stop` is true and what was asked is answered.
pub async fn serve<S: Service>(
    service: Arc<S>,
    listener: TcpListener,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) {
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
        if connections.len() >= max_connections {
            service.turned_away();
            continue;
        }
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let mut stop = stop.clone();
        connections.spawn(async move {
            let service = service_fn(|request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(service.answer(request).await) }
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
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    drop(listener);
    let _ = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}

pub fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    typed(status, "text/plain; charset=utf-8", text.into())
}

/// The Prometheus text of `/metrics`.
pub fn metrics(text: String) -> Answer {
    typed(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        text,
    )
}

pub fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// 405, with the methods that there are.
pub fn only(allow: &'static str, text: &str) -> Answer {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, text);
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    answer
}

/// 503, to be tried again.
pub fn busy(text: &str) -> Answer {
    let mut answer = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    answer
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}
