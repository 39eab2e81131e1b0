//! Asks an engine's replay socket (a ROUTER) for what it still has.

use super::zmtp::{Connection, Limits, Part, Role};
use crate::common::address::Address;
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Sequence of the reply that ends a replay.
const END: u64 = u64::MAX;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    Held(Bytes),
    /// Longer than the bridge is configured to keep (bytes).
    TooLong(u64),
}

impl From<Part> for Payload {
    fn from(part: Part) -> Self {
        match part {
            Part::Held(bytes) => Self::Held(bytes),
            Part::TooLong(length) => Self::TooLong(length),
        }
    }
}

pub struct Replay {
    connection: Connection,
    idle: Duration,
    last: Option<u64>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Replay {
    /// Requests every batch from `from` on. `idle`: longest wait for one reply.
    pub async fn open(
        address: &Address,
        from: u64,
        limits: Limits,
        idle: Duration,
    ) -> io::Result<Self> {
        let stream = address.dial().await?;
        let mut connection = Connection::handshake(stream, Role::Dealer, limits).await?;
        connection.send(&[b"", &from.to_be_bytes()]).await?;
        Ok(Self {
            connection,
            idle,
            last: None,
        })
    }

    /// The next batch, in ascending order; None at the end.
    pub async fn next(&mut self) -> io::Result<Option<(u64, Payload)>> {
        let parts = timeout(self.idle, self.connection.message())
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no reply in time"))??;
        let (seq, payload) = reply(parts)?;
        if seq == END {
            return Ok(None);
        }
        if self.last.is_some_and(|last| seq <= last) {
            return Err(bad("replies out of order"));
        }
        self.last = Some(seq);
        Ok(Some((seq, payload)))
    }
}

/// vLLM up to 0.25 answers `"", seq, payload`, from 0.26 on `"", topic, seq, payload`.
fn reply(parts: Vec<Part>) -> io::Result<(u64, Payload)> {
    if !matches!(parts.len(), 3 | 4) {
        return Err(bad("a reply of other than 3 or 4 parts"));
    }
    let mut parts = parts.into_iter().rev();
    let (Some(payload), Some(Part::Held(seq))) = (parts.next(), parts.next()) else {
        return Err(bad("a reply without a sequence"));
    };
    let seq =
        <[u8; 8]>::try_from(seq.as_ref()).map_err(|_| bad("a sequence that is not 8 bytes"))?;
    if parts.next_back() != Some(Part::Held(Bytes::new())) {
        return Err(bad("a reply whose first part is not empty"));
    }
    Ok((u64::from_be_bytes(seq), payload.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: &'static [u8]) -> Part {
        Part::Held(Bytes::from_static(bytes))
    }

    #[test]
    fn both_formats_of_a_reply() {
        let payload = Payload::Held(Bytes::from_static(b"p"));
        let seq = b"\0\0\0\0\0\0\0\x07";
        assert_eq!(
            reply(vec![held(b""), held(seq), held(b"p")]).unwrap(),
            (7, payload.clone())
        );
        assert_eq!(
            reply(vec![held(b""), held(b"topic"), held(seq), held(b"p")]).unwrap(),
            (7, payload)
        );
        let end = b"\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(reply(vec![held(b""), held(end), held(b"")]).unwrap().0, END);
        assert_eq!(
            reply(vec![held(b""), held(b""), held(end), held(b"")])
                .unwrap()
                .0,
            END
        );
    }

    #[test]
    fn replies_that_are_none() {
        let seq = b"\0\0\0\0\0\0\0\x07";
        for parts in [
            vec![],
            vec![held(seq), held(b"p")],
            vec![held(b"x"), held(seq), held(b"p")],
            vec![held(b""), held(b"\x07"), held(b"p")],
            vec![held(b""), Part::TooLong(9), held(b"p")],
            vec![held(b""), held(b""), held(b""), held(seq), held(b"p")],
        ] {
            assert!(reply(parts.clone()).is_err(), "{parts:?}");
        }
    }
}
