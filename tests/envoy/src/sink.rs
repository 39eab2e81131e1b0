//! A recording upstream: keeps what reached it, byte for byte, and answers as told.

use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::http1::reset_on_close;
use crate::message::{Field, Framing, lookup};
use crate::wait::until;
use crate::wire;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: Vec<Field>,
    pub framing: Framing,
    pub body: Vec<u8>,
    pub trailers: Vec<Field>,
    /// False: the connection ended inside the request.
    pub complete: bool,
    /// When its head was there.
    pub at: Instant,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<String> {
        lookup(&self.headers, name)
    }

    /// The body as text, for messages of failing tests.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What to do with a request once it is there.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16, Vec<u8>),
    /// Closes with a TCP reset.
    Reset,
    /// Sends these bytes, whatever they are, and is gone.
    Cut(Vec<u8>),
    /// Waits, then does the other.
    After(Duration, Box<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Reply::Status(200, b"{}".to_vec())
    }
}

/// From the bytes of a [`Reply::Cut`] to its end.
const CUT_AFTER: Duration = Duration::from_millis(100);

type Answer = dyn Fn(&Seen) -> Reply + Send + Sync;
/// Asked as the body grows (bytes so far); Some ends the request there with that reply.
type Early = dyn Fn(&Seen, usize) -> Option<Reply> + Send + Sync;

struct Shared {
    answer: Box<Answer>,
    early: Box<Early>,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
    stopped: AtomicBool,
}

pub struct Sink {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Sink {
    /// Answers 200 to everything.
    pub fn ok() -> Self {
        Self::with(|_| Reply::ok())
    }

    pub fn with(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::at(any_port(), answer, |_, _| None)
    }

    /// At a chosen address, and with an early end of some requests.
    pub fn at(
        address: SocketAddr,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
        early: impl Fn(&Seen, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = until("the sink's port", || TcpListener::bind(address).ok());
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            early: Box::new(early),
            seen: Mutex::default(),
            open: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let mine = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if mine.stopped.load(Ordering::SeqCst) {
                    return;
                }
                lock(&mine.open).extend(stream.try_clone());
                let mine = Arc::clone(&mine);
                thread::spawn(move || serve(&stream, &mine));
            }
        });
        Sink { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `ip:port`, the endpoint's identity.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// The requests that carry this `x-request-id`; waits for the first.
    pub fn by_id(&self, id: &str) -> Seen {
        until(&format!("request {id} at {}", self.address), || {
            self.seen()
                .into_iter()
                .find(|s| s.header("x-request-id").as_deref() == Some(id))
        })
    }

    /// Forgets what was seen, gives it back.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *lock(&self.shared.seen))
    }

    /// The one request since the last take; waits for it.
    pub fn take_one(&self) -> Seen {
        until("a request at the sink", || {
            lock(&self.shared.seen).first().cloned()
        });
        let mut all = self.take();
        assert_eq!(all.len(), 1, "one request was expected: {all:?}");
        all.remove(0)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then closes the port.
        let _ = TcpStream::connect(self.address);
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    while let Ok(Some(head)) = wire::read_head(&mut reader) {
        let mut words = head.start.split(' ');
        let mut seen = Seen {
            method: words.next().unwrap_or_default().into(),
            target: words.next().unwrap_or_default().into(),
            framing: wire::framing(&head),
            headers: head.fields.clone(),
            body: Vec::new(),
            trailers: Vec::new(),
            complete: false,
            at: Instant::now(),
        };
        let mut early = (shared.early)(&seen, 0);
        let body = wire::read_body(&mut reader, &head, &mut |so_far| {
            early = early.take().or_else(|| (shared.early)(&seen, so_far));
            early.is_none()
        });
        seen = Seen {
            body: body.bytes,
            trailers: body.trailers,
            complete: body.complete,
            ..seen
        };
        let reply = early.or_else(|| body.complete.then(|| (shared.answer)(&seen)));
        lock(&shared.seen).push(seen);
        if !reply.is_some_and(|reply| answer(stream, reply)) || !body.complete {
            return;
        }
    }
}

/// False: the connection is over.
fn answer(mut stream: &TcpStream, reply: Reply) -> bool {
    match reply {
        Reply::Status(status, body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} Told\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &body].concat()).is_ok()
        }
        Reply::Reset => {
            let _ = reset_on_close(stream);
            let _ = stream.shutdown(Shutdown::Both);
            false
        }
        Reply::Cut(bytes) => {
            let _ = stream.write_all(&bytes);
            // A reset would take with it what was not read yet.
            thread::sleep(CUT_AFTER);
            answer(stream, Reply::Reset)
        }
        Reply::After(time, reply) => {
            thread::sleep(time);
            answer(stream, *reply)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
