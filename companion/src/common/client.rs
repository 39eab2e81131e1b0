//! One GET of an engine's API server, on a connection of its own.

use super::address::Address;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a 2xx answer of at most `max` bytes.
pub async fn fetch(api: &Address, path: &str, max: usize) -> io::Result<Bytes> {
    match timeout(TIMEOUT, ask(api, path, max)).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
    }
}

async fn ask(api: &Address, path: &str, max: usize) -> io::Result<Bytes> {
    let stream = api.dial().await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let host = api.to_string();
    let request = Request::get(path)
        .header("host", host.strip_prefix("tcp://").unwrap_or(&host))
        .header("connection", "close")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        if !response.status().is_success() {
            return Err(io::Error::other(format!(
                "GET {path} answered {}",
                response.status()
            )));
        }
        let body = Limited::new(response.into_body(), max)
            .collect()
            .await
            .map_err(io::Error::other)?;
        Ok(body.to_bytes())
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection may end first, with the answer read.
        _ = connection => exchange.await,
    }
}
