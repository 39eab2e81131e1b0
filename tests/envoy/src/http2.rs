//! An HTTP/2 client (clear text, prior knowledge) that keeps to the request's steps.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpStream;
use tokio::runtime::Builder;

use crate::message::{Field, Framing, Request, Response, Step};
use crate::wait::PATIENCE;

impl Request {
    /// Over HTTP/2 on an own connection; None if the stream ends without an answer.
    pub fn try_h2(&self, address: SocketAddr) -> Option<Response> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, exchange(self, address))
                .await
                .expect("an answer in time")
                .ok()
        })
    }

    pub fn h2(&self, address: SocketAddr) -> Response {
        self.try_h2(address).expect("an answer")
    }
}

async fn exchange(request: &Request, address: SocketAddr) -> Result<Response, h2::Error> {
    let stream = TcpStream::connect(address).await.expect("Envoy listens");
    stream.set_nodelay(true).expect("nodelay");
    let (sender, connection) = handshake(stream).await?;
    let driver = tokio::spawn(connection);
    let answer = speak(request, sender).await;
    driver.abort();
    answer
}

async fn speak(request: &Request, sender: SendRequest<Bytes>) -> Result<Response, h2::Error> {
    let mut sender = sender.ready().await?;
    let ends = request.framing == Framing::None;
    let (response, mut stream) = sender.send_request(head(request), ends)?;
    // The answer may come, or the stream end, before the whole body is out.
    let written = tokio::spawn({
        let (steps, trailers) = (request.steps.clone(), request.trailers.clone());
        async move {
            if !ends {
                let _ = write(&mut stream, steps, &trailers).await;
            }
        }
    });
    let response = response.await?;
    let status = response.status().as_u16();
    let headers = fields(response.headers());
    let body = read(response.into_body()).await?;
    written.abort();
    Ok(Response {
        status,
        headers,
        body,
    })
}

fn head(request: &Request) -> http::Request<()> {
    let uri = format!("http://llm.test{}", request.target);
    let mut head = http::Request::new(());
    *head.method_mut() = request.method.parse().expect("a method");
    *head.uri_mut() = uri.parse().expect("a target");
    *head.headers_mut() = map(&request.headers);
    if request.framing == Framing::Length {
        head.headers_mut()
            .insert("content-length", request.sent().len().into());
    }
    head
}

async fn write(
    stream: &mut SendStream<Bytes>,
    steps: Vec<Step>,
    trailers: &[Field],
) -> Result<(), h2::Error> {
    for step in steps {
        match step {
            Step::Send(bytes) => send(stream, Bytes::from(bytes)).await?,
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Reset | Step::HalfClose => {
                stream.send_reset(Reason::CANCEL);
                return Ok(());
            }
        }
    }
    if trailers.is_empty() {
        stream.send_data(Bytes::new(), true)
    } else {
        stream.send_trailers(map(trailers))
    }
}

/// As the peer's window allows: what bounds HTTP/2 uploads.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(granted) => {
                let part = bytes.split_to(granted?.min(bytes.len()));
                stream.send_data(part, false)?;
            }
            None => return Ok(()),
        }
    }
    Ok(())
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        let _ = body.flow_control().release_capacity(part.len());
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

fn map(fields: &[Field]) -> HeaderMap {
    let pairs = fields.iter().map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a field name");
        (name, HeaderValue::from_bytes(value).expect("a field value"))
    });
    pairs.collect()
}

fn fields(map: &HeaderMap) -> Vec<Field> {
    map.iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}
