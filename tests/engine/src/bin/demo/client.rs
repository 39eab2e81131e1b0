//! One HTTP/1.1 request on a connection of its own.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

pub struct Answer {
    pub status: u16,
    headers: hyper::HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Result<Answer, String> {
    send(
        address,
        Request::get(path)
            .body(Full::default())
            .map_err(|error| error.to_string())?,
    )
    .await
}

pub async fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Answer, String> {
    let mut request = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    send(
        address,
        request.body(body).map_err(|error| error.to_string())?,
    )
    .await
}

async fn send(address: SocketAddr, mut request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{address}: {error}");
    let host = address
        .to_string()
        .parse()
        .map_err(|error: hyper::header::InvalidHeaderValue| failed(&error))?;
    request.headers_mut().insert(hyper::header::HOST, host);
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| failed(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    // Ends with the connection, which ends when `sender` and the body are gone.
    tokio::spawn(connection);
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| failed(&error))?;
    let (head, body) = answer.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| failed(&error))?
        .to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
    })
}
