//! An engine that costs little: it reads requests, throws them away and answers 200. It keeps the
//! last body if it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub const ANSWER_BODY: &[u8] = b"{}";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const BUFFER: usize = 256 << 10;

#[derive(Default)]
struct Shared {
    keeping: AtomicBool,
    kept: Mutex<Vec<u8>>,
}

pub struct Sink {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Sink {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<Shared>::default();
        let mine = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mine = Arc::clone(&mine);
                thread::spawn(move || serve(stream, &mine));
            }
        });
        Sink { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The body that comes with what `send` sends; it must wait for the answer.
    pub fn kept(&self, send: impl FnOnce()) -> Vec<u8> {
        self.shared.keeping.store(true, Ordering::SeqCst);
        send();
        self.shared.keeping.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.shared.kept.lock().expect("the body"))
    }
}

fn serve(stream: TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut wire = Wire {
        stream,
        buffer: vec![0; BUFFER],
        at: 0,
        end: 0,
    };
    let mut kept = Vec::new();
    loop {
        let keep = || shared.keeping.load(Ordering::SeqCst);
        if wire.body(&mut kept, &keep).is_none() {
            return;
        }
        if keep() {
            *shared.kept.lock().expect("the body") = std::mem::take(&mut kept);
        }
        if wire.stream.write_all(ANSWER).is_err() {
            return;
        }
    }
}

struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
}

/// None: the connection is over.
impl Wire {
    /// Reads one request.
    fn body(&mut self, kept: &mut Vec<u8>, keep: &dyn Fn() -> bool) -> Option<()> {
        let mut length = None;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix(b"content-length: ") {
                length = std::str::from_utf8(value).ok()?.parse().ok();
            }
        }
        if let Some(length) = length {
            return self.take(length, kept, keep);
        }
        // Chunked, then: Envoy forwards no request that has neither.
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(std::str::from_utf8(&line).ok()?, 16).ok()?;
            self.take(size, kept, keep)?;
            if !self.line()?.is_empty() {
                return None;
            }
            if size == 0 {
                return Some(());
            }
        }
    }

    /// Without its line end.
    fn line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let there = &self.buffer[self.at..self.end];
            match there.iter().position(|byte| *byte == b'\n') {
                Some(feed) => {
                    line.extend_from_slice(&there[..feed]);
                    self.at += feed + 1;
                    line.pop();
                    return Some(line);
                }
                None => {
                    line.extend_from_slice(there);
                    self.fill()?;
                }
            }
        }
    }

    fn take(
        &mut self,
        mut length: usize,
        kept: &mut Vec<u8>,
        keep: &dyn Fn() -> bool,
    ) -> Option<()> {
        while length > 0 {
            if self.at == self.end {
                self.fill()?;
            }
            let now = length.min(self.end - self.at);
            if keep() {
                kept.extend_from_slice(&self.buffer[self.at..self.at + now]);
            }
            self.at += now;
            length -= now;
        }
        Some(())
    }

    fn fill(&mut self) -> Option<()> {
        self.at = 0;
        self.end = self.stream.read(&mut self.buffer).ok()?;
        (self.end > 0).then_some(())
    }
}
