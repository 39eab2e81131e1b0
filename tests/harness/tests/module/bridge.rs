//! Engines with a `kv-events-bridge` before them, as far as the scorer sees them: their pages, and
//! what they say about their blocks.

use crate::records::{encode, list, map};
use ciborium::Value;
use skv_harness::{Answer, Harness, HttpCall};
use std::cell::RefCell;
use std::rc::Rc;

pub const BLOCK: usize = 16;

/// Clones are the same ones.
#[derive(Clone, Default)]
pub struct Engines(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// The bridge's log: endpoint and item, in order.
    log: Vec<(String, Value)>,
    /// Batches of each endpoint so far.
    seqs: Vec<(String, u64)>,
    bridge_is_down: bool,
}

impl Engines {
    /// Engines that have just started, with nothing in their caches.
    pub fn behind(env: &Harness, endpoints: &[&str]) -> Self {
        let engines = Self::default();
        for endpoint in endpoints {
            let mut state = engines.0.borrow_mut();
            state.seqs.push(((*endpoint).to_owned(), 0));
            let start = list(["start".into(), true.into()]);
            state.log.push(((*endpoint).to_owned(), start));
        }
        let served = engines.clone();
        env.respond(move |call| Some(served.answer(call)));
        engines
    }

    pub fn bridge_goes_down(&self) {
        self.0.borrow_mut().bridge_is_down = true;
    }

    fn answer(&self, call: &HttpCall) -> Answer {
        let path = call.headers.text(":path").unwrap_or_default();
        if path.starts_with("/events") {
            return self.page(&path);
        }
        match path.as_ref() {
            "/metrics" => Answer::new(
                200,
                "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n\
                 vllm:cache_config_info{block_size=\"16\",engine=\"0\",\
                 prefix_caching_hash_algo=\"sha256\"} 1.0\n",
            ),
            "/version" => Answer::new(200, r#"{"version":"0.32.0"}"#),
            "/v1/models" => Answer::new(
                200,
                r#"{"data":[{"id":"m","parent":null},{"id":"sql","parent":"m"}]}"#,
            ),
            _ => Answer::new(404, ""),
        }
    }

    /// What came after the cursor, which is the number of items before.
    fn page(&self, path: &str) -> Answer {
        let state = self.0.borrow();
        if state.bridge_is_down {
            return Answer::new(503, "");
        }
        let after = path
            .split(['?', '&'])
            .find_map(|q| q.strip_prefix("after="));
        let after: usize = after.map_or(0, |n| n.parse().expect("our cursor"));
        let sections = state.seqs.iter().map(|(endpoint, _)| {
            let items = state.log.iter().skip(after);
            let own = items.filter(|(of, _)| of == endpoint);
            map([
                ("endpoint", endpoint.as_str().into()),
                ("rank", 0.into()),
                ("state", "live".into()),
                ("silent_ms", 0.into()),
                ("topic", "kv@pod@m".into()),
                ("items", list(own.map(|(_, item)| item.clone()))),
            ])
        });
        let page = map([
            ("v", 1.into()),
            ("cursor", state.log.len().to_string().into()),
            ("reset", false.into()),
            ("more", false.into()),
            ("endpoints", list(sections)),
        ]);
        Answer::new(200, encode(&page))
    }

    /// One batch of events.
    pub fn say(&self, endpoint: &str, events: impl IntoIterator<Item = Value>) {
        let mut state = self.0.borrow_mut();
        let entry = state.seqs.iter_mut().find(|(of, _)| of == endpoint);
        let (_, next) = entry.expect("an engine");
        let seq = *next;
        *next += 1;
        let time = Value::Float(1_790_000_000.0 + seq as f64);
        let mut payload = Vec::new();
        pack(&list([time, list(events), Value::Null]), &mut payload);
        let batch = list(["batch".into(), seq.into(), Value::Bytes(payload)]);
        state.log.push((endpoint.to_owned(), batch));
    }

    /// A prompt is computed and offloaded; then the GPU needs its room for others.
    pub fn offload(&self, endpoint: &str, prompt: &[u32], salt: Option<&str>) {
        let hashes = hashes(prompt, salt);
        let placeholder = stored(&hashes, &[], None, "CPU");
        let events = [stored(&hashes, prompt, salt, "GPU"), placeholder];
        self.say(endpoint, events);
        self.say(endpoint, [removed(&hashes, "GPU")]);
    }
}

/// What the engine calls the prompt's full blocks: anything, as long as it is theirs.
pub fn hashes(prompt: &[u32], salt: Option<&str>) -> Vec<u64> {
    let mut hash = salt.map_or(7, |salt| 1_000_003 * salt.len() as u64);
    let mut step = |block: &[u32]| {
        for token in block {
            hash = (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        hash
    };
    prompt.chunks_exact(BLOCK).map(&mut step).collect()
}

pub fn stored(hashes: &[u64], tokens: &[u32], salt: Option<&str>, medium: &str) -> Value {
    let extra = |at: usize| match salt {
        Some(salt) if at == 0 => list([salt.into()]),
        _ => Value::Null,
    };
    let size = if tokens.is_empty() { 0 } else { BLOCK as u64 };
    let full = tokens.len() / BLOCK * BLOCK;
    map([
        ("type", "BlockStored".into()),
        ("block_hashes", numbers(hashes.iter().copied())),
        ("parent_block_hash", Value::Null),
        (
            "token_ids",
            numbers(tokens[..full].iter().map(|t| u64::from(*t))),
        ),
        ("block_size", size.into()),
        ("medium", medium.into()),
        (
            "extra_keys",
            match salt {
                Some(_) => list((0..hashes.len()).map(extra)),
                None => Value::Null,
            },
        ),
    ])
}

pub fn removed(hashes: &[u64], medium: &str) -> Value {
    map([
        ("type", "BlockRemoved".into()),
        ("block_hashes", numbers(hashes.iter().copied())),
        ("medium", medium.into()),
    ])
}

fn numbers(of: impl Iterator<Item = u64>) -> Value {
    list(of.map(Value::from))
}

/// As MessagePack, in its longest forms.
fn pack(value: &Value, out: &mut Vec<u8>) {
    let head = |out: &mut Vec<u8>, byte: u8, len: usize| {
        out.push(byte);
        out.extend((len as u32).to_be_bytes());
    };
    match value {
        Value::Null => out.push(0xc0),
        Value::Integer(n) => {
            out.push(0xcf);
            out.extend(u64::try_from(*n).expect("unsigned").to_be_bytes());
        }
        Value::Float(x) => {
            out.push(0xcb);
            out.extend(x.to_be_bytes());
        }
        Value::Text(text) => {
            head(out, 0xdb, text.len());
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            head(out, 0xdd, items.len());
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Map(entries) => {
            head(out, 0xdf, entries.len());
            for (key, value) in entries {
                pack(key, out);
                pack(value, out);
            }
        }
        other => panic!("no event has {other:?}"),
    }
}
