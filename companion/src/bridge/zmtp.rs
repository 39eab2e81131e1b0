//! ZMTP 3 (ZeroMQ RFC 23), the two client roles that a bridge needs: SUB and DEALER, NULL mechanism.
//!
//! One connection is one [`Connection`]: the caller sees it come and go, which a socket over many
//! peers would hide, and nothing is held beyond [`Limits`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Bytes of a greeting.
const GREETING: usize = 64;
/// The peer has this long to say who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest command: a READY with a handful of properties, a PING.
const MAX_COMMAND: u64 = 4096;
/// Most parts of one message. Replies of vLLM's replay socket have four.
const MAX_PARTS: usize = 8;
/// A part longer than this is not skipped but ends the connection: nothing honest is as long.
const MAX_SKIP: u64 = 1 << 30;
/// Bytes asked of the socket at a time.
const READ_CHUNK: usize = 64 * 1024;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Sub,
    Dealer,
}

impl Role {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Sub => b"SUB",
            Self::Dealer => b"DEALER",
        }
    }

    fn peers(self) -> &'static [&'static [u8]] {
        match self {
            Self::Sub => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER"],
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a part that are kept; a longer part is read past and reported as [`Part::TooLong`].
    pub max_part: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    Held(Bytes),
    /// Its length in bytes.
    TooLong(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    Message(Vec<Part>),
    /// The peer answered a PING or sent one: it is alive.
    Heartbeat,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub struct Connection {
    reader: Reader,
    writer: Writer,
}

/// Parts of a [`Connection`], so that one task may write while another reads.
pub struct Reader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    limits: Limits,
    message: Vec<Part>,
    in_message: Option<Header>,
    /// Bytes of a part that are read past.
    skip: u64,
    /// PINGs of the peer, by context, that wait for their PONG.
    pings: Vec<Bytes>,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u8,
    length: u64,
}

pub struct Writer {
    stream: OwnedWriteHalf,
    /// The peer announced ZMTP 3.1 or later, which has PING.
    pub pings: bool,
}

impl Connection {
    /// Greets the peer, who must be of a type that fits, within five seconds.
    pub async fn handshake(stream: TcpStream, role: Role, limits: Limits) -> io::Result<Self> {
        timeout(HANDSHAKE_TIMEOUT, Self::greet(stream, role, limits))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no ZMTP greeting in time"))?
    }

    async fn greet(stream: TcpStream, role: Role, limits: Limits) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (read, mut write) = stream.into_split();
        write.write_all(&greeting()).await?;

        let mut reader = Reader {
            stream: read,
            buffer: BytesMut::with_capacity(READ_CHUNK),
            limits,
            message: Vec::new(),
            in_message: None,
            skip: 0,
            pings: Vec::new(),
        };
        reader.fill(1).await?;
        if reader.buffer.first() != Some(&0xff) {
            return Err(bad("the peer does not speak ZMTP"));
        }
        reader.fill(GREETING).await?;
        let minor = check_greeting(&reader.buffer.split_to(GREETING))?;

        write.write_all(&ready(role)).await?;
        let Some(Frame::Command(body)) = reader.frame().await? else {
            return Err(bad("the peer's first frame is not a command"));
        };
        check_ready(&body, role)?;
        let writer = Writer {
            stream: write,
            pings: minor >= 1,
        };
        Ok(Self { reader, writer })
    }

    pub fn into_parts(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    pub async fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.writer.send(parts).await
    }

    /// The next message; heartbeats are answered on the way.
    pub async fn message(&mut self) -> io::Result<Vec<Part>> {
        loop {
            let received = self.reader.receive().await?;
            self.writer.answer(&mut self.reader).await?;
            if let Received::Message(parts) = received {
                return Ok(parts);
            }
        }
    }
}

impl Writer {
    /// Subscribes to topics that begin with `topic`; the form of ZMTP 3.0, which 3.1 reads too.
    pub async fn subscribe(&mut self, topic: &[u8]) -> io::Result<()> {
        let mut body = Vec::with_capacity(topic.len() + 1);
        body.push(1);
        body.extend_from_slice(topic);
        self.send(&[&body]).await
    }

    pub async fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut out = BytesMut::new();
        for (index, part) in parts.iter().enumerate() {
            let flags = if index + 1 < parts.len() { MORE } else { 0 };
            put_frame(&mut out, flags, part);
        }
        self.stream.write_all(&out).await
    }

    pub async fn ping(&mut self) -> io::Result<()> {
        let mut out = BytesMut::new();
        // No time to live: the publisher need not give up on us, TCP does.
        put_frame(&mut out, COMMAND, b"\x04PING\x00\x00");
        self.stream.write_all(&out).await
    }

    /// Sends the PONGs that are due.
    pub async fn answer(&mut self, reader: &mut Reader) -> io::Result<()> {
        for context in reader.pings.drain(..) {
            let mut body = BytesMut::from(&b"\x04PONG"[..]);
            body.extend_from_slice(&context);
            let mut out = BytesMut::new();
            put_frame(&mut out, COMMAND, &body);
            self.stream.write_all(&out).await?;
        }
        Ok(())
    }
}

enum Frame {
    Command(Bytes),
    Part { part: Part, more: bool },
}

impl Reader {
    /// The next message or sign of life. Cancel-safe: what was read is kept for the next call.
    pub async fn receive(&mut self) -> io::Result<Received> {
        loop {
            match self.frame().await? {
                Some(Frame::Command(body)) => {
                    if let Some(rest) = body.strip_prefix(b"\x04PING") {
                        // Time to live (2 bytes), then a context of at most 16 bytes to give back.
                        let context = rest.get(2..).ok_or_else(|| bad("a PING without TTL"))?;
                        if context.len() > 16 || self.pings.len() >= 16 {
                            return Err(bad("too long or too many PINGs"));
                        }
                        self.pings.push(Bytes::copy_from_slice(context));
                    }
                    return Ok(Received::Heartbeat);
                }
                Some(Frame::Part { part, more }) => {
                    if self.message.len() >= MAX_PARTS {
                        return Err(bad("a message of more than 8 parts"));
                    }
                    self.message.push(part);
                    if !more {
                        return Ok(Received::Message(std::mem::take(&mut self.message)));
                    }
                }
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// None: the peer closed between two frames.
    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        let header = match self.in_message {
            Some(header) => header,
            None => {
                if self.buffer.is_empty() && self.read().await? == 0 {
                    return Ok(None);
                }
                let header = self.header().await?;
                self.in_message = Some(header);
                if header.flags & COMMAND == 0 && header.length > self.limits.max_part as u64 {
                    self.skip = header.length;
                }
                header
            }
        };
        let frame = if self.skip > 0 {
            while self.skip > 0 {
                if self.buffer.is_empty() {
                    self.fill(1).await?;
                }
                let taken = self.skip.min(self.buffer.len() as u64);
                self.buffer.advance(usize::try_from(taken).unwrap_or(0));
                self.skip -= taken;
            }
            Frame::Part {
                part: Part::TooLong(header.length),
                more: header.flags & MORE != 0,
            }
        } else {
            // At most max_part or MAX_COMMAND.
            let length = usize::try_from(header.length).map_err(|_| bad("a frame too long"))?;
            self.fill(length).await?;
            let body = Bytes::copy_from_slice(self.buffer.split_to(length).as_ref());
            if header.flags & COMMAND != 0 {
                Frame::Command(body)
            } else {
                Frame::Part {
                    part: Part::Held(body),
                    more: header.flags & MORE != 0,
                }
            }
        };
        self.in_message = None;
        Ok(Some(frame))
    }

    async fn header(&mut self) -> io::Result<Header> {
        self.fill(1).await?;
        let flags = self.buffer.first().copied().unwrap_or(0);
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(bad("reserved flags in a frame's header"));
        }
        let length = if flags & LONG != 0 {
            self.fill(9).await?;
            self.buffer.advance(1);
            self.buffer.get_u64()
        } else {
            self.fill(2).await?;
            self.buffer.advance(1);
            u64::from(self.buffer.get_u8())
        };
        if flags & COMMAND != 0 && (length > MAX_COMMAND || flags & MORE != 0) {
            return Err(bad(
                "a command of more than 4096 bytes or in several frames",
            ));
        }
        if length > MAX_SKIP {
            return Err(bad("a frame of more than 1 GiB"));
        }
        Ok(Header { flags, length })
    }

    /// Reads until the buffer holds `wanted` bytes.
    async fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while self.buffer.len() < wanted {
            if self.read().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Grows with what arrives, never with what a header claims.
    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_CHUNK);
        self.stream.read_buf(&mut self.buffer).await
    }
}

fn put_frame(out: &mut BytesMut, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => {
            out.put_u8(flags);
            out.put_u8(length);
        }
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

/// Announces 3.0: then every peer takes subscriptions in the form that we send.
fn greeting() -> BytesMut {
    let mut out = BytesMut::with_capacity(GREETING);
    out.put_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0]);
    out.put_slice(b"NULL");
    out.resize(GREETING, 0);
    out
}

/// The minor version of a peer of ZMTP 3.
fn check_greeting(greeting: &[u8]) -> io::Result<u8> {
    if greeting.first() != Some(&0xff) || greeting.get(9) != Some(&0x7f) {
        return Err(bad("the peer does not speak ZMTP"));
    }
    if greeting.get(10).is_none_or(|major| *major < 3) {
        return Err(bad("the peer speaks ZMTP older than 3"));
    }
    let mechanism = greeting.get(12..32).unwrap_or_default();
    if mechanism
        .strip_prefix(b"NULL")
        .is_none_or(|rest| rest.iter().any(|byte| *byte != 0))
    {
        return Err(bad("the peer wants a security mechanism other than NULL"));
    }
    Ok(greeting.get(11).copied().unwrap_or(0))
}

fn ready(role: Role) -> BytesMut {
    let mut body = BytesMut::from(&b"\x05READY"[..]);
    let mut property = |name: &[u8], value: &[u8]| {
        body.put_u8(name.len() as u8);
        body.put_slice(name);
        body.put_u32(value.len() as u32);
        body.put_slice(value);
    };
    property(b"Socket-Type", role.name());
    if role == Role::Dealer {
        property(b"Identity", b"");
    }
    let mut out = BytesMut::new();
    put_frame(&mut out, COMMAND, &body);
    out
}

fn check_ready(body: &[u8], role: Role) -> io::Result<()> {
    let mut rest = body
        .strip_prefix(b"\x05READY")
        .ok_or_else(|| bad("the peer refused: no READY"))?;
    while !rest.is_empty() {
        let (name, value, after) = property(rest).ok_or_else(|| bad("a READY cut short"))?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return if role.peers().contains(&value) {
                Ok(())
            } else {
                Err(bad(&format!(
                    "the peer is a {} socket, not one of {}",
                    String::from_utf8_lossy(value.get(..16).unwrap_or(value)),
                    role.peers()
                        .iter()
                        .map(|name| String::from_utf8_lossy(name))
                        .collect::<Vec<_>>()
                        .join(", "),
                )))
            };
        }
        rest = after;
    }
    Err(bad("a READY without Socket-Type"))
}

fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) =
        rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((name, value, rest))
}
