//! Single requests, each on a connection of its own.

use super::PATIENCE;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub type Answer = (StatusCode, HeaderMap, Bytes);

pub async fn get(address: SocketAddr, target: &str, token: Option<&str>) -> Answer {
    request(address, "GET", target, token).await
}

pub async fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    token: Option<&str>,
) -> Answer {
    send(address, method, target, token, Bytes::new()).await
}

pub async fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    token: Option<&str>,
    body: impl Into<Bytes>,
) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .header("host", "companion");
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    (
        head.status,
        head.headers,
        body.collect().await.unwrap().to_bytes(),
    )
}

/// Waits until `/metrics` has this line.
pub async fn metric(address: SocketAddr, line: &str) {
    let waited = timeout(PATIENCE, async {
        loop {
            let (_, _, text) = get(address, "/metrics", None).await;
            if String::from_utf8_lossy(&text)
                .lines()
                .any(|found| found == line)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{line} never comes");
}
