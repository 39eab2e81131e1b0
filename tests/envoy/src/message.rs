//! A request as a list of steps on the wire, and what came back; the same for HTTP/1.1 and HTTP/2.

use std::time::Duration;

/// A header or trailer: values are bytes, not text.
pub type Field = (String, Vec<u8>);

/// What the client does after the head.
#[derive(Clone, Debug)]
pub enum Step {
    /// One write (HTTP/1.1: one chunk if chunked; HTTP/2: one DATA frame if it fits).
    Send(Vec<u8>),
    Pause(Duration),
    /// HTTP/1.1: a TCP reset. HTTP/2: RST_STREAM with CANCEL. Nothing follows.
    Reset,
    /// HTTP/1.1: stops writing without ending the body. Nothing follows.
    HalfClose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// No body at all.
    None,
    /// `content-length` of the sum of the steps.
    Length,
    /// `transfer-encoding: chunked` (HTTP/2: no content-length).
    Chunked,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<Field>,
    pub framing: Framing,
    pub steps: Vec<Step>,
    pub trailers: Vec<Field>,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        Request {
            method: method.into(),
            target: target.into(),
            headers: Vec::new(),
            framing: Framing::None,
            steps: Vec::new(),
            trailers: Vec::new(),
        }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST of JSON, as an OpenAI client sends it.
    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target)
            .header("content-type", "application/json")
            .body(body)
    }

    /// The same in chunks of at most `size` bytes, without content-length.
    pub fn post_chunked(target: &str, body: &[u8], size: usize) -> Self {
        let mut request = Self::new("POST", target).header("content-type", "application/json");
        request.framing = Framing::Chunked;
        for chunk in body.chunks(size) {
            request = request.send(chunk);
        }
        request
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.into(), value.as_ref().to_vec()));
        self
    }

    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(n, _)| n != name);
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.framing = Framing::Length;
        self.steps = vec![Step::Send(body.into())];
        self
    }

    pub fn chunked(mut self) -> Self {
        self.framing = Framing::Chunked;
        self
    }

    pub fn send(mut self, bytes: &[u8]) -> Self {
        self.steps.push(Step::Send(bytes.to_vec()));
        self
    }

    pub fn pause(mut self, ms: u64) -> Self {
        self.steps.push(Step::Pause(Duration::from_millis(ms)));
        self
    }

    /// Puts a pause between all sends.
    pub fn slowly(mut self, ms: u64) -> Self {
        let pause = Step::Pause(Duration::from_millis(ms));
        self.steps = self
            .steps
            .into_iter()
            .flat_map(|s| [s, pause.clone()])
            .collect();
        self
    }

    pub fn reset(mut self) -> Self {
        self.steps.push(Step::Reset);
        self
    }

    pub fn half_close(mut self) -> Self {
        self.steps.push(Step::HalfClose);
        self
    }

    /// Only sent with a chunked body.
    pub fn trailer(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.trailers.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// All bytes of the body in order.
    pub fn sent(&self) -> Vec<u8> {
        let parts = self.steps.iter().filter_map(|s| match s {
            Step::Send(bytes) => Some(bytes.as_slice()),
            _ => None,
        });
        parts.collect::<Vec<_>>().concat()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<Field>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<String> {
        lookup(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The first value of a field, lossily as text.
pub fn lookup(fields: &[Field], name: &str) -> Option<String> {
    fields
        .iter()
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, v)| String::from_utf8_lossy(v).into_owned())
}
