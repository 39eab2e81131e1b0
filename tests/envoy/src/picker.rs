//! An endpoint picker as llm-d's is seen from Envoy: an ext_proc server that reads the whole body,
//! then names the engine in a header and in dynamic metadata, and gives the body back in pieces.
//!
//! The few protobuf messages are written and read by hand: generated code would cost more to build
//! than all the rest of these tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream, server};
use http::{HeaderMap, HeaderValue};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::message::Field;

/// What llm-d's picker uses.
const PIECE_BYTES: usize = 62_000;

/// The answer for one request.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Set or overwritten, in order.
    pub headers: Vec<Field>,
    /// `envoy.lb` / `x-gateway-destination-endpoint` in dynamic metadata.
    pub metadata: Option<String>,
}

impl Choice {
    /// Header and metadata both, as llm-d does.
    pub fn endpoint(endpoint: &str) -> Self {
        Choice::default()
            .header("x-gateway-destination-endpoint", endpoint)
            .metadata(endpoint)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn metadata(mut self, endpoint: &str) -> Self {
        self.metadata = Some(endpoint.into());
        self
    }
}

type Choose = dyn Fn(&[Field]) -> Choice + Send + Sync;

pub struct Picker {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl Picker {
    /// Asked with the request's headers.
    pub fn with(choose: impl Fn(&[Field]) -> Choice + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("a bound address");
        listener.set_nonblocking(true).expect("non-blocking");
        let (stop, stopped) = oneshot::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, Arc::new(choose)) => {}
                    _ = stopped => {}
                }
            });
        });
        Picker {
            address,
            stop: Some(stop),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.stop.take();
    }
}

async fn accept(listener: TcpListener, choose: Arc<Choose>) {
    while let Ok((stream, _)) = listener.accept().await {
        let choose = Arc::clone(&choose);
        tokio::spawn(async move {
            let Ok(mut connection) = server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, answer))) = connection.accept().await {
                let choose = Arc::clone(&choose);
                tokio::spawn(async move { process(request.into_body(), answer, &*choose).await });
            }
        });
    }
}

/// One `Process` call: one HTTP request through Envoy.
async fn process(
    mut from: RecvStream,
    mut answer: SendResponse<Bytes>,
    choose: &Choose,
) -> Option<()> {
    let head = http::Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .ok()?;
    let mut to = answer.send_response(head, false).ok()?;
    let (mut unread, mut headers, mut body) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(message) = next(&mut from, &mut unread).await {
        for (field, value) in proto::fields(&message) {
            let value = value.bytes();
            let ends = proto::flag(
                value,
                if field <= REQUEST_OR_RESPONSE_HEADERS {
                    3
                } else {
                    2
                },
            );
            match field {
                request::HEADERS => {
                    headers = header_map(value);
                    if ends {
                        send(&mut to, &picked(&choose(&headers)))?;
                    }
                }
                request::BODY => {
                    body.extend_from_slice(proto::first(value, 1));
                    if ends {
                        send(&mut to, &picked(&choose(&headers)))?;
                        give_back(&mut to, &body, true)?;
                    }
                }
                request::TRAILERS => {
                    send(&mut to, &picked(&choose(&headers)))?;
                    give_back(&mut to, &body, false)?;
                    send(&mut to, &proto::message(response::TRAILERS, &[]))?;
                }
                request::RESPONSE_HEADERS => {
                    send(&mut to, &proto::message(response::RESPONSE_HEADERS, &[]))?
                }
                request::RESPONSE_BODY => {
                    send(
                        &mut to,
                        &piece(response::RESPONSE_BODY, proto::first(value, 1), ends),
                    )?;
                }
                request::RESPONSE_TRAILERS => {
                    send(&mut to, &proto::message(response::RESPONSE_TRAILERS, &[]))?;
                }
                _ => {}
            }
        }
    }
    let ok = HeaderMap::from_iter([("grpc-status".parse().ok()?, HeaderValue::from_static("0"))]);
    to.send_trailers(ok).ok()
}

/// Field numbers of `envoy.service.ext_proc.v3.ProcessingRequest`.
mod request {
    pub const HEADERS: u64 = 2;
    pub const RESPONSE_HEADERS: u64 = 3;
    pub const BODY: u64 = 4;
    pub const RESPONSE_BODY: u64 = 5;
    pub const TRAILERS: u64 = 6;
    pub const RESPONSE_TRAILERS: u64 = 7;
}
const REQUEST_OR_RESPONSE_HEADERS: u64 = request::RESPONSE_HEADERS;

/// Field numbers of `envoy.service.ext_proc.v3.ProcessingResponse`.
mod response {
    pub const HEADERS: u64 = 1;
    pub const RESPONSE_HEADERS: u64 = 2;
    pub const BODY: u64 = 3;
    pub const RESPONSE_BODY: u64 = 4;
    pub const TRAILERS: u64 = 5;
    pub const RESPONSE_TRAILERS: u64 = 6;
    pub const DYNAMIC_METADATA: u64 = 8;
}

fn give_back(to: &mut SendStream<Bytes>, body: &[u8], ends: bool) -> Option<()> {
    let count = body.len().div_ceil(PIECE_BYTES).max(1);
    for index in 0..count {
        let part = body
            .iter()
            .skip(index * PIECE_BYTES)
            .take(PIECE_BYTES)
            .copied()
            .collect::<Vec<_>>();
        send(
            to,
            &piece(response::BODY, &part, ends && index + 1 == count),
        )?;
    }
    Some(())
}

/// `BodyResponse { response: { body_mutation: { streamed_response: { body, end_of_stream } } } }`
fn piece(field: u64, body: &[u8], ends: bool) -> Vec<u8> {
    let streamed = [proto::message(1, body), proto::flag_field(2, ends)].concat();
    proto::nested(&[field, 1, 3, 3], &streamed)
}

/// `HeadersResponse { response: { header_mutation, clear_route_cache } }` and the metadata.
fn picked(choice: &Choice) -> Vec<u8> {
    let mut common = Vec::new();
    for (name, value) in &choice.headers {
        let header = [proto::message(1, name.as_bytes()), proto::message(3, value)].concat();
        // append_action OVERWRITE_IF_EXISTS_OR_ADD
        let option = [proto::message(1, &header), proto::number(3, 2)].concat();
        common.extend(proto::nested(&[2, 1], &option));
    }
    common.extend(proto::flag_field(5, true));
    let mut all = proto::nested(&[response::HEADERS, 1], &common);
    if let Some(endpoint) = &choice.metadata {
        let inner = struct_of(
            "x-gateway-destination-endpoint",
            &proto::message(3, endpoint.as_bytes()),
        );
        let outer = struct_of("envoy.lb", &proto::message(5, &inner));
        all.extend(proto::message(response::DYNAMIC_METADATA, &outer));
    }
    all
}

/// `google.protobuf.Struct` with one field.
fn struct_of(key: &str, value: &[u8]) -> Vec<u8> {
    proto::message(
        1,
        &[proto::message(1, key.as_bytes()), proto::message(2, value)].concat(),
    )
}

fn header_map(headers: &[u8]) -> Vec<Field> {
    let map = proto::fields(proto::first(headers, 1));
    let pairs = map.into_iter().map(|(_, header)| {
        let header = header.bytes();
        let (value, raw) = (proto::first(header, 2), proto::first(header, 3));
        let name = String::from_utf8_lossy(proto::first(header, 1)).into_owned();
        (name, if raw.is_empty() { value } else { raw }.to_vec())
    });
    pairs.collect()
}

/// The next gRPC message of the stream.
async fn next(from: &mut RecvStream, unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some((prefix, rest)) = unread.split_first_chunk::<5>() {
            let [_, length @ ..] = prefix;
            let length = u32::from_be_bytes(*length) as usize;
            if rest.len() >= length {
                let message = rest[..length].to_vec();
                unread.drain(..5 + length);
                return Some(message);
            }
        }
        let data = from.data().await?.ok()?;
        let _ = from.flow_control().release_capacity(data.len());
        unread.extend_from_slice(&data);
    }
}

/// The library queues what the window does not yet allow.
fn send(to: &mut SendStream<Bytes>, message: &[u8]) -> Option<()> {
    let length = u32::try_from(message.len()).ok()?.to_be_bytes();
    to.send_data([&[0], length.as_slice(), message].concat().into(), false)
        .ok()
}

/// Protobuf's wire format, as far as needed.
mod proto {
    #[derive(Clone, Copy)]
    pub enum Value<'a> {
        Number(u64),
        Bytes(&'a [u8]),
    }

    impl<'a> Value<'a> {
        pub fn bytes(self) -> &'a [u8] {
            match self {
                Value::Bytes(bytes) => bytes,
                Value::Number(_) => &[],
            }
        }
    }

    pub fn fields(mut message: &[u8]) -> Vec<(u64, Value<'_>)> {
        let mut all = Vec::new();
        while let Some(field) = take_field(&mut message) {
            all.push(field);
        }
        all
    }

    /// The first value of a field that holds bytes; empty if there is none.
    pub fn first(message: &[u8], field: u64) -> &[u8] {
        fields(message)
            .into_iter()
            .find(|(f, _)| *f == field)
            .map_or(&[], |(_, v)| v.bytes())
    }

    pub fn flag(message: &[u8], field: u64) -> bool {
        fields(message)
            .iter()
            .any(|(f, v)| *f == field && matches!(v, Value::Number(1)))
    }

    pub fn message(field: u64, bytes: &[u8]) -> Vec<u8> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        [varint(field << 3 | 2), varint(length), bytes.to_vec()].concat()
    }

    /// Messages in messages, outermost first.
    pub fn nested(path: &[u64], bytes: &[u8]) -> Vec<u8> {
        path.iter()
            .rev()
            .fold(bytes.to_vec(), |inner, field| message(*field, &inner))
    }

    pub fn number(field: u64, value: u64) -> Vec<u8> {
        [varint(field << 3), varint(value)].concat()
    }

    pub fn flag_field(field: u64, value: bool) -> Vec<u8> {
        if value { number(field, 1) } else { Vec::new() }
    }

    fn take_field<'a>(from: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
        let key = take_varint(from)?;
        let value = match key & 7 {
            0 => Value::Number(take_varint(from)?),
            1 => Value::Bytes(take(from, 8)?),
            2 => {
                let length = usize::try_from(take_varint(from)?).ok()?;
                Value::Bytes(take(from, length)?)
            }
            5 => Value::Bytes(take(from, 4)?),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(taken)
    }

    fn take_varint(from: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *take(from, 1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }
}
