//! An HTTP/1.1 client on a raw socket.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::message::{Field, Framing, Request, Response, Step, lookup};
use crate::wire;

const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// One connection; several requests may follow each other on it.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("Envoy listens");
        stream.set_nodelay(true).expect("nodelay");
        stream
            .set_read_timeout(Some(ANSWER_WITHIN))
            .expect("read timeout");
        let reader = BufReader::new(stream.try_clone().expect("a second handle"));
        Client { stream, reader }
    }

    /// Sends and reads the answer; None if there is none (reset by us, or closed by Envoy).
    pub fn exchange(&mut self, request: &Request) -> Option<Response> {
        // Envoy may answer and close before the body is out: what it says is what counts.
        match self.write(request) {
            Ok(true) | Err(_) => self.read(),
            Ok(false) => None,
        }
    }

    /// False: the request ended in a reset by the client.
    fn write(&mut self, request: &Request) -> io::Result<bool> {
        self.stream.write_all(&head(request))?;
        let chunked = request.framing == Framing::Chunked;
        for step in &request.steps {
            match step {
                Step::Send(bytes) if chunked && !bytes.is_empty() => {
                    let chunk =
                        [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
                    self.stream.write_all(&chunk)?;
                }
                Step::Send(bytes) => self.stream.write_all(bytes)?,
                Step::Pause(time) => std::thread::sleep(*time),
                Step::Reset => {
                    reset_on_close(&self.stream)?;
                    self.stream.shutdown(Shutdown::Both)?;
                    return Ok(false);
                }
                Step::HalfClose => {
                    self.stream.shutdown(Shutdown::Write)?;
                    return Ok(true);
                }
            }
        }
        if chunked {
            let mut end = b"0\r\n".to_vec();
            write_fields(&mut end, &request.trailers);
            self.stream.write_all(&end)?;
        }
        Ok(true)
    }

    fn read(&mut self) -> Option<Response> {
        let head = wire::read_head(&mut self.reader).ok()??;
        let status = head.start.split(' ').nth(1)?.parse().ok()?;
        let body = if wire::framing(&head) == Framing::None && closes(&head) {
            wire::read_rest(&mut self.reader)
        } else {
            wire::read_body(&mut self.reader, &head, &mut |_| true).bytes
        };
        Some(Response {
            status,
            headers: head.fields,
            body,
        })
    }
}

fn closes(head: &wire::Head) -> bool {
    lookup(&head.fields, "connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
}

impl Request {
    /// Over HTTP/1.1 on an own connection; panics if there is no answer.
    pub fn to(&self, address: SocketAddr) -> Response {
        self.try_to(address).expect("an answer")
    }

    pub fn try_to(&self, address: SocketAddr) -> Option<Response> {
        Client::connect(address).exchange(self)
    }
}

fn head(request: &Request) -> Vec<u8> {
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.target).into_bytes();
    let mut fields = request.headers.clone();
    if lookup(&fields, "host").is_none() {
        fields.push(("host".into(), b"llm.test".to_vec()));
    }
    match request.framing {
        Framing::None => {}
        Framing::Length if lookup(&fields, "content-length").is_some() => {}
        Framing::Length => {
            fields.push((
                "content-length".into(),
                request.sent().len().to_string().into_bytes(),
            ));
        }
        Framing::Chunked => fields.push(("transfer-encoding".into(), b"chunked".to_vec())),
    }
    write_fields(&mut head, &fields);
    head
}

fn write_fields(out: &mut Vec<u8>, fields: &[Field]) {
    for (name, value) in fields {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// SO_LINGER 0: closing sends RST, as a client does that dies in mid-body.
pub(crate) fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the descriptor is open, and the option's value lives for the call.
    let answer = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
