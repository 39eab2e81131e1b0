//! The engine's side: HTTP/1.1 and HTTP/2 (prior knowledge) on one port.

use crate::answers::Answer;
use crate::api::Endpoint;
use crate::json::Value;
use crate::record::{BodyState, Headers, Record};
use crate::state::{Fault, FaultKind, State, unix_ms};
use crate::{Job, Refusal, tokenizer};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Events that a slow reader may leave unread before the engine waits for it.
const EVENTS_AHEAD: usize = 16;
/// What the engine does not treat as requests: only counted.
const POLLS: [&str; 6] = [
    "/metrics",
    "/version",
    "/health",
    "/load",
    "/v1/models",
    "/kv_event_sources",
];

/// The stream is dropped without an answer.
#[derive(Debug)]
pub struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// An answer's body: all at once, or event by event.
pub enum AnswerBody {
    Whole(Full<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Events(events) => events
                .poll_recv(context)
                .map(|event| event.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

pub async fn handle(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Dropped> {
    let path = request.uri().path().to_owned();
    let target = request
        .uri()
        .path_and_query()
        .map_or(path.clone(), |target| target.to_string());
    let poll = request.method() == Method::GET && POLLS.contains(&path.as_str());
    let fault = state.take_fault(&target, poll);
    if poll {
        state.count_poll(&path);
        if let Some(answer) = apply(fault.as_ref()).await? {
            return Ok(answer);
        }
        return Ok(answer_poll(&state, &path));
    }

    let (head, body) = request.into_parts();
    let sequence = state.begin(Record {
        method: head.method.to_string(),
        target,
        version: format!("{:?}", head.version),
        headers: headers(&head.headers),
        ..Record::default()
    });
    if let Some(answer) = apply(fault.as_ref().filter(|fault| !fault.after_body)).await? {
        return Ok(finish(&state, sequence, answer));
    }
    let Some(body) = read(&state, sequence, body).await else {
        return Err(Dropped);
    };
    if let Some(answer) = apply(fault.as_ref().filter(|fault| fault.after_body)).await? {
        return Ok(finish(&state, sequence, answer));
    }
    let answer = match answer(&state, sequence, &head, &body) {
        Ok(Work::Job(job)) if job.stream => return Ok(stream(state, sequence, job)),
        Ok(Work::Job(job)) => whole(&state, sequence, &job).await,
        Ok(Work::Value(value)) => json(200, &value),
        Err(refusal) => json(refusal.status, &refusal.body),
    };
    Ok(finish(&state, sequence, answer))
}

/// What a request comes to.
enum Work {
    Job(Box<Job>),
    Value(serde_json::Value),
}

fn answer(state: &State, sequence: u64, head: &Parts, body: &[u8]) -> Result<Work, Refusal> {
    let (method, path, headers) = (&head.method, head.uri.path(), &head.headers);
    let query = head.uri.query();
    let serves = Endpoint::of_path(path).is_some() || path == "/invocations";
    let others = ["/tokenize", "/v1/embeddings", "/reset_prefix_cache"];
    if !serves && !others.contains(&path) {
        return Err(Refusal::not_found());
    }
    if method != Method::POST {
        return Err(Refusal::method());
    }
    if path == "/reset_prefix_cache" {
        let query = query.unwrap_or_default();
        state.reset_prefix_cache(query.contains("reset_external=true"));
        return Ok(Work::Value(serde_json::Value::Null));
    }
    let media_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::media_type());
    }
    let body = Value::parse(body).map_err(|error| Refusal::not_json(&error))?;
    match path {
        "/tokenize" => tokenize(state, &body).map(Work::Value),
        // Takes no kv_transfer_params; only that it answers matters here.
        "/v1/embeddings" => Ok(Work::Value(serde_json::json!({
            "id": format!("embd-{sequence}"), "object": "list", "model": state.options.model,
            "data": [{"index": 0, "object": "embedding", "embedding": [0.0, 1.0]}],
        }))),
        _ => state.job(path, &body).map(|job| Work::Job(Box::new(job))),
    }
}

fn tokenize(state: &State, body: &Value) -> Result<serde_json::Value, Refusal> {
    let tokens = match body.get("prompt") {
        Some(prompt) => {
            let text = prompt
                .as_str()
                .ok_or_else(|| Refusal::bad_request("prompt must be one text"))?;
            state
                .models
                .adapter(body.get("model").and_then(Value::as_str))?;
            tokenizer::tokenize(text)
        }
        None => {
            let job = state.job("/v1/chat/completions", body)?;
            job.prompts
                .into_iter()
                .next()
                .map(|prompt| prompt.tokens)
                .unwrap_or_default()
        }
    };
    Ok(serde_json::json!({"count": tokens.len(), "max_model_len": 4096, "tokens": tokens}))
}

fn answer_poll(state: &State, path: &str) -> Response<AnswerBody> {
    match path {
        "/metrics" => {
            let mut answer = response(200, state.metrics().into());
            let media_type = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
            answer.headers_mut().insert(CONTENT_TYPE, media_type);
            answer
        }
        "/version" => json(200, &serde_json::json!({"version": state.version()})),
        "/load" => json(200, &serde_json::json!({"server_load": 0})),
        "/v1/models" => json(200, &state.models.list()),
        "/kv_event_sources" => match state.event_sources() {
            Some(sources) => json(200, &sources),
            None => json(404, &Refusal::not_found().body),
        },
        _ => response(200, Bytes::new()),
    }
}

/// The answer that a fault makes; nothing if it only delays.
async fn apply(fault: Option<&Fault>) -> Result<Option<Response<AnswerBody>>, Dropped> {
    match fault.map(|fault| fault.kind) {
        None => Ok(None),
        Some(FaultKind::Reset) => Err(Dropped),
        Some(FaultKind::Status(status)) => {
            let refusal =
                serde_json::json!({"error": {"message": "failed on purpose", "code": status}});
            Ok(Some(json(status, &refusal)))
        }
        Some(FaultKind::Delay(delay)) => {
            tokio::time::sleep(delay).await;
            Ok(None)
        }
    }
}

/// The whole body, noted as it comes; `None` if it was cut.
async fn read(state: &State, sequence: u64, mut body: Incoming) -> Option<Bytes> {
    let mut bytes = Vec::new();
    let mut trailers = None;
    let outcome = loop {
        match body.frame().await {
            None => break BodyState::Complete,
            Some(Err(error)) => break BodyState::Cut(error.to_string()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    bytes.extend_from_slice(&data);
                    state.update(sequence, |record| record.received = bytes.len());
                }
                Err(frame) => trailers = frame.trailers_ref().map(headers),
            },
        }
    };
    let bytes = Bytes::from(bytes);
    let whole = outcome == BodyState::Complete;
    state.update(sequence, |record| {
        record.body = bytes.clone();
        record.body_state = outcome;
        record.trailers = trailers;
    });
    whole.then_some(bytes)
}

/// Waits for a slot, as a request waits in the engine's queue.
async fn slot(state: &State) -> Option<tokio::sync::SemaphorePermit<'_>> {
    if let Ok(permit) = state.slots.try_acquire() {
        return Some(permit);
    }
    /// Counts as queued while it lives: the client may go away first.
    struct Queued<'s>(&'s State);
    impl Drop for Queued<'_> {
        fn drop(&mut self) {
            self.0.queue_changed(-1, 0);
        }
    }
    state.queue_changed(1, 0);
    let _queued = Queued(state);
    state.slots.acquire().await.ok()
}

/// Counts as running while it lives.
struct Running<'s>(&'s State);

impl<'s> Running<'s> {
    fn start(state: &'s State) -> Self {
        state.queue_changed(0, 1);
        Self(state)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.queue_changed(0, -1);
    }
}

/// Counts as loading while it lives, if there is something to load.
struct Loading<'s>(Option<&'s State>);

impl<'s> Loading<'s> {
    fn start(state: &'s State, served: &[crate::cache::Served]) -> Self {
        let loads = served.iter().any(|one| one.loaded_tokens > 0);
        if loads {
            state.loading_changed(1);
        }
        Self(loads.then_some(state))
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.loading_changed(-1);
        }
    }
}

async fn whole(state: &State, sequence: u64, job: &Job) -> Response<AnswerBody> {
    let _permit = slot(state).await;
    let _running = Running::start(state);
    // Before the record says that it is served: settings after that are for the next.
    let (latency, interval) = state.timing();
    let served = state.serve(sequence, job);
    let loading = Loading::start(state, &served);
    let tokens = u32::try_from(job.answer_tokens).unwrap_or(u32::MAX);
    pause(latency).await;
    drop(loading);
    pause(interval * tokens).await;
    json(200, &to_answer(state, sequence, job, &served).whole())
}

/// The headers go out before the request is scheduled; events follow.
fn stream(state: Arc<State>, sequence: u64, job: Box<Job>) -> Response<AnswerBody> {
    let (sender, events) = mpsc::channel(EVENTS_AHEAD);
    state.update(sequence, |record| record.status = Some(200));
    tokio::spawn(async move {
        let _permit = slot(&state).await;
        let _running = Running::start(&state);
        let (latency, interval) = state.timing();
        let served = state.serve(sequence, &job);
        let loading = Loading::start(&state, &served);
        pause(latency).await;
        drop(loading);
        for event in to_answer(&state, sequence, &job, &served).events() {
            if sender.send(event).await.is_err() {
                return;
            }
            pause(interval).await;
        }
        state.update(sequence, |record| record.answered = true);
    });
    let mut answer = Response::new(AnswerBody::Events(events));
    let media_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, media_type);
    answer
}

async fn pause(time: std::time::Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn to_answer<'j>(
    state: &'j State,
    sequence: u64,
    job: &'j Job,
    served: &'j [crate::cache::Served],
) -> Answer<'j> {
    Answer {
        job,
        served,
        sequence,
        model: job.model.as_deref().unwrap_or(&state.options.model),
        created: unix_ms() / 1000,
    }
}

fn finish(state: &State, sequence: u64, answer: Response<AnswerBody>) -> Response<AnswerBody> {
    let status = answer.status().as_u16();
    state.update(sequence, |record| {
        record.status = Some(status);
        record.answered = true;
    });
    answer
}

pub fn json(status: u16, value: &serde_json::Value) -> Response<AnswerBody> {
    let mut answer = response(status, value.to_string().into());
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

pub fn response(status: u16, body: Bytes) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::Whole(Full::new(body)));
    *answer.status_mut() =
        hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

fn headers(map: &HeaderMap) -> Headers {
    map.iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}
