//! Pages of docs/kv-events-bridge.md with events of vLLM 0.24 and later.

use ciborium::Value;

/// Tokens a block.
pub const BLOCK: usize = 16;

/// Blocks of one prompt, as one event.
pub struct Chain {
    pub hashes: Vec<u64>,
    pub parent: Option<u64>,
    pub tokens: Vec<u32>,
}

impl Chain {
    /// Prompt `n`: its hashes are nobody else's, its tokens neither.
    pub fn prompt(n: u64, blocks: usize) -> Self {
        let tokens = (0..blocks * BLOCK).map(|at| ((n * 7_919 + at as u64 * 31) % 128_000) as u32);
        let mix = |at: u64| (n << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            hashes: (0..blocks as u64).map(mix).collect(),
            parent: None,
            tokens: tokens.collect(),
        }
    }
}

pub enum Event<'a> {
    Stored(&'a Chain),
    /// As the offloading connector says it: no tokens.
    Offloaded(&'a [u64]),
    Removed(&'a [u64]),
}

/// MessagePack, with the shortest heads, as msgspec writes it.
#[derive(Default)]
struct Pack(Vec<u8>);

impl Pack {
    fn uint(&mut self, n: u64) -> &mut Self {
        match n {
            0..=0x7f => self.0.push(n as u8),
            0x80..=0xff => self.0.extend([0xcc, n as u8]),
            0x100..=0xffff => {
                self.0.push(0xcd);
                self.0.extend((n as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(0xce);
                self.0.extend((n as u32).to_be_bytes());
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend(n.to_be_bytes());
            }
        }
        self
    }

    fn array(&mut self, len: usize) -> &mut Self {
        match len {
            0..=15 => self.0.push(0x90 | len as u8),
            _ => {
                self.0.push(0xdc);
                self.0.extend((len as u16).to_be_bytes());
            }
        }
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push(0xa0 | text.len() as u8);
        self.0.extend(text.bytes());
        self
    }

    fn map(&mut self, pairs: u8) -> &mut Self {
        self.0.push(0x80 | pairs);
        self
    }

    fn list(&mut self, items: impl ExactSizeIterator<Item = u64>) -> &mut Self {
        self.array(items.len());
        for item in items {
            self.uint(item);
        }
        self
    }
}

/// The engine's payload.
pub fn payload(ts: f64, events: &[Event<'_>]) -> Vec<u8> {
    let mut out = Pack::default();
    out.array(2).0.push(0xcb);
    out.0.extend(ts.to_be_bytes());
    out.array(events.len());
    for event in events {
        let name = match event {
            Event::Stored(_) | Event::Offloaded(_) => "BlockStored",
            Event::Removed(_) => "BlockRemoved",
        };
        match event {
            Event::Stored(chain) => {
                out.map(6 - u8::from(chain.parent.is_none()));
                out.text("type").text(name);
                out.text("block_hashes").list(chain.hashes.iter().copied());
                if let Some(parent) = chain.parent {
                    out.text("parent_block_hash").uint(parent);
                }
                let tokens = chain.tokens.iter().map(|t| u64::from(*t));
                out.text("token_ids").list(tokens);
                out.text("block_size").uint(BLOCK as u64);
                out.text("medium").text("GPU");
            }
            Event::Offloaded(hashes) => {
                out.map(5).text("type").text(name);
                out.text("block_hashes").list(hashes.iter().copied());
                out.text("token_ids").array(0);
                out.text("block_size").uint(0);
                out.text("medium").text("CPU");
            }
            Event::Removed(hashes) => {
                out.map(3).text("type").text(name);
                out.text("block_hashes").list(hashes.iter().copied());
                out.text("medium").text("GPU");
            }
        }
    }
    out.0
}

pub enum Item {
    Start(bool),
    Batch(u64, Vec<u8>),
    Gap(u64),
}

/// A page about one endpoint.
pub fn page(endpoint: &str, cursor: &str, reset: bool, more: bool, items: Vec<Item>) -> Vec<u8> {
    let text = |t: &str| Value::Text(t.to_owned());
    let items = items.into_iter().map(|item| {
        Value::Array(match item {
            Item::Start(complete) => vec![text("start"), Value::Bool(complete)],
            Item::Batch(seq, bytes) => vec![text("batch"), seq.into(), Value::Bytes(bytes)],
            Item::Gap(next) => vec![text("gap"), next.into()],
        })
    });
    let section = Value::Map(vec![
        (text("endpoint"), text(endpoint)),
        (text("rank"), 0.into()),
        (text("state"), text("live")),
        (text("silent_ms"), 0.into()),
        (text("items"), Value::Array(items.collect())),
    ]);
    let page = Value::Map(vec![
        (text("v"), 1.into()),
        (text("cursor"), text(cursor)),
        (text("reset"), Value::Bool(reset)),
        (text("more"), Value::Bool(more)),
        (text("endpoints"), Value::Array(vec![section])),
    ]);
    let mut bytes = Vec::new();
    ciborium::into_writer(&page, &mut bytes).expect("a page is CBOR");
    bytes
}
