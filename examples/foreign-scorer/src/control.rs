//! The control paths: what a request asks for, and what it is told.

use crate::Refusal;
use crate::evidence::Evidence;
use crate::hex::{from_hex, percent_decoded, to_hex};
use crate::members::Membership;
use crate::queue::Update;
use crate::store::{Failure, MEMBERS, Store, evidence_key, queue_key, update};

/// Requests whose path starts with this are answered here.
pub const PREFIX: &str = "/foreign-scorer/";

/// Four values of the largest size that a reader takes.
const MAX_ZEROS: usize = 1 << 20;

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: u32,
    pub body: Option<String>,
    /// Headers for what went well, but not wholly as asked.
    pub notes: Vec<(&'static str, String)>,
}

impl Answer {
    fn new(status: u32, body: impl Into<String>) -> Self {
        Answer {
            status,
            body: Some(body.into()),
            notes: Vec::new(),
        }
    }

    fn done(name: &'static str, count: usize) -> Self {
        Answer {
            status: 204,
            body: None,
            notes: vec![(name, count.to_string())],
        }
    }

    pub fn refused(refusal: &Refusal) -> Self {
        Self::new(400, format!("{}\n", refusal.0))
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Answer::refused(&refusal),
            Failure::Busy => Answer::new(409, "others wrote in between 8 times; try again\n"),
        }
    }
}

/// When now is, in Unix ms, and for how long evidence counts.
#[derive(Clone, Copy)]
pub struct Clock {
    pub now: u64,
    pub max_evidence_age: u64,
}

/// Answers a control request. `path` begins with `PREFIX`.
pub fn answer(store: &impl Store, method: &str, path: &str, body: &[u8], clock: Clock) -> Answer {
    respond(store, method, path, body, clock).unwrap_or_else(Answer::from)
}

fn respond(
    store: &impl Store,
    method: &str,
    path: &str,
    body: &[u8],
    clock: Clock,
) -> Result<Answer, Failure> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let name = path.strip_prefix(PREFIX).unwrap_or(path);
    match (method, name) {
        ("POST", "queue") => {
            let samples = Update::parse(body, clock.now).map_err(Failure::Refused)?;
            let added = update(store, &queue_key(&samples.endpoint), |stored| {
                samples.merge(stored, clock.now)
            })?;
            Ok(Answer::done("x-samples-added", added))
        }
        ("POST", "evidence") => {
            let evidence = Evidence::parse(body).map_err(Failure::Refused)?;
            let id = evidence
                .id
                .as_deref()
                .ok_or_else(|| refusal("id: missing"))?;
            let dropped = write_evidence(store, &evidence, id, clock)?;
            Ok(Answer::done("x-endpoints-dropped", dropped))
        }
        ("POST", "members") => {
            let membership = Membership::parse(body).map_err(Failure::Refused)?;
            update(store, MEMBERS, |stored| {
                Ok((membership.merge(stored, clock.now)?, ()))
            })?;
            Ok(Answer::done("x-writers", 1))
        }
        ("POST", "raw") => {
            let text = std::str::from_utf8(body).ok().and_then(from_hex);
            let mut bytes = text.ok_or_else(|| refusal("the body is no hex"))?;
            bytes.resize(bytes.len() + zeros_in(query)?, 0);
            let key = key_in(query)?;
            update(store, &key, |_| Ok((bytes.clone(), ())))?;
            Ok(Answer::done("x-bytes", bytes.len()))
        }
        ("GET", "raw") => Ok(match store.get(&key_in(query)?) {
            (None, None) => Answer::new(404, "no such key\n"),
            (value, _) => Answer::new(200, to_hex(&value.unwrap_or_default())),
        }),
        _ => Err(refusal(
            "there are POST queue, evidence, members and raw, and GET raw",
        )),
    }
}

/// Writes evidence of one request; how many endpoints did not fit.
pub fn write_evidence(
    store: &impl Store,
    evidence: &Evidence,
    id: &str,
    clock: Clock,
) -> Result<usize, Failure> {
    update(store, &evidence_key(id), |stored| {
        evidence.merge(id, stored, clock.now, clock.max_evidence_age)
    })
}

fn key_in(query: &str) -> Result<String, Failure> {
    let key = parameter(query, "key").ok_or_else(|| refusal("?key= is missing"))?;
    percent_decoded(key)
        .filter(|key| !key.is_empty())
        .ok_or_else(|| refusal("?key= is not percent-encoded text"))
}

/// How many zero bytes follow those of the body.
fn zeros_in(query: &str) -> Result<usize, Failure> {
    match parameter(query, "zeros").map(str::parse) {
        None => Ok(0),
        Some(Ok(n)) if n <= MAX_ZEROS => Ok(n),
        Some(_) => Err(refusal("zeros= is no number up to 1048576")),
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(n, _)| *n == name).map(|(_, value)| value)
}

fn refusal(text: &str) -> Failure {
    Failure::Refused(Refusal(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    const CLOCK: Clock = Clock {
        now: 1_790_000_000_000,
        max_evidence_age: 30_000,
    };

    #[test]
    fn each_path_writes_under_its_key() {
        let store = Memory::default();
        let ask = |method: &str, path: &str, body: &str| {
            answer(&store, method, path, body.as_bytes(), CLOCK)
        };
        for (path, body, key, note) in [
            (
                "queue",
                r#"{"endpoint":"10.0.0.7:8000","samples":[{"ago":0,"waiting":8},{"ago":0,"waiting":9}]}"#,
                "selective-kv%2F1/queue/203",
                ("x-samples-added", "1"),
            ),
            (
                "evidence",
                r#"{"id":"5b1c0f6e-8d1a-4a53-9c39-0e6d3c1f7a20","block_size":16,"endpoints":{}}"#,
                "selective-kv/1/evidence/1430",
                ("x-endpoints-dropped", "0"),
            ),
            (
                "members?x=1",
                r#"{"endpoints":[]}"#,
                "selective-kv/1/members",
                ("x-writers", "1"),
            ),
            (
                "raw?zeros=3&key=a%20b",
                "01 ff # two bytes",
                "a%20b",
                ("x-bytes", "5"),
            ),
        ] {
            let get = format!("/foreign-scorer/raw?key={key}");
            assert_eq!(ask("GET", &get, "").status, 404, "{path}");

            let answer = ask("POST", &format!("/foreign-scorer/{path}"), body);
            assert_eq!(answer.status, 204, "{answer:?}");
            assert_eq!(answer.notes, [(note.0, note.1.to_owned())]);

            let stored = ask("GET", &get, "");
            assert_eq!(stored.status, 200, "{path}");
            assert!(stored.body.is_some_and(|hex| !hex.is_empty()));
        }
        assert_eq!(
            ask("GET", "/foreign-scorer/raw?key=a%20b", "")
                .body
                .as_deref(),
            Some("01ff000000")
        );
        // An empty value is there, and may be replaced.
        assert_eq!(ask("POST", "/foreign-scorer/raw?key=e", "").status, 204);
        assert_eq!(
            ask("GET", "/foreign-scorer/raw?key=e", ""),
            Answer::new(200, "")
        );
        assert_eq!(ask("POST", "/foreign-scorer/raw?key=e", "01").status, 204);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let store = Memory::default();
        for (method, path, body, message) in [
            ("GET", "queue", "", "there are POST queue"),
            ("POST", "nothing", "{}", "there are POST queue"),
            ("POST", "queue", "", "JSON: EOF"),
            (
                "POST",
                "evidence",
                r#"{"block_size":16,"endpoints":{}}"#,
                "id: missing",
            ),
            ("POST", "raw?key=a", "0", "the body is no hex"),
            ("POST", "raw", "00", "?key= is missing"),
            ("POST", "raw?key=a&zeros=-1", "", "zeros= is no number"),
            ("POST", "raw?key=a&zeros=1048577", "", "zeros= is no number"),
            ("GET", "raw?key=%f", "", "?key= is not percent-encoded text"),
        ] {
            let path = format!("{PREFIX}{path}");
            let answer = answer(&store, method, &path, body.as_bytes(), CLOCK);
            let text = answer.body.expect("a text");
            assert!(answer.status == 400 && text.starts_with(message), "{text}");
        }
    }

    #[test]
    fn rivals_make_a_conflict() {
        let store = Memory::default();
        *store.rivals.borrow_mut() = 8;
        let answer = answer(&store, "POST", "/foreign-scorer/raw?key=a", b"00", CLOCK);
        assert_eq!(answer.status, 409);
    }
}
