//! An HTTP/1.1 client that costs little: it writes what was prepared, and reads to the end of the one
//! answer that there is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::sink::ANSWER_BODY;

/// Far more than any request takes: who waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("Envoy listens");
        stream.set_nodelay(true).expect("nodelay");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a read timeout");
        Client {
            stream,
            answer: Vec::with_capacity(1024),
        }
    }

    /// Panics unless the answer is 200.
    pub fn exchange(&mut self, request: &[u8]) {
        let written = self.stream.write_all(request);
        self.answer.clear();
        let end = [b"\r\n\r\n", ANSWER_BODY].concat();
        let mut buffer = [0; 1024];
        while !self.answer.ends_with(&end) {
            let length = self.stream.read(&mut buffer).unwrap_or(0);
            if length == 0 {
                break;
            }
            self.answer.extend_from_slice(&buffer[..length]);
        }
        assert!(
            written.is_ok() && self.answer.starts_with(b"HTTP/1.1 200 "),
            "{written:?}, and the answer is {:?}",
            String::from_utf8_lossy(&self.answer)
        );
    }
}

/// A whole request, of JSON. `padding` bytes in its head let the body begin elsewhere in Envoy's memory.
pub fn request(path: &str, id: &str, padding: usize, body: &[u8]) -> Vec<u8> {
    let padding = "x".repeat(padding);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: llm.test\r\ncontent-type: application/json\r\n\
         x-request-id: {id}\r\nx-padding: {padding}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
