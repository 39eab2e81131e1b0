use super::*;
use crate::contract::store::StoreError;
use std::cell::{Cell, RefCell};

mod bounds;
#[cfg(not(target_arch = "wasm32"))]
mod contention;
pub(in crate::scorer) mod model;
mod stream;
mod upkeep;

pub(in crate::scorer) const NOW: u64 = 1_795_952_365_000;
pub(in crate::scorer) const A: &str = "10.0.0.7:8000";
pub(in crate::scorer) const B: &str = "[::1]:8000";
pub(in crate::scorer) const BLOCK: u32 = 4;

pub(in crate::scorer) fn params(bridged: bool) -> Params {
    Params {
        scorer: "pool".to_owned(),
        bridged,
        block_size: BLOCK,
        fingerprint: 7,
        shared_tiers: Vec::new(),
        max_silence_ms: 30_000,
        seed: 0x1234_5678,
        limits: Limits::default(),
    }
}

pub(in crate::scorer) fn writer(store: &dyn Store, params: Params) -> Index {
    let mut index = Index::new(params);
    index.take_over(store, NOW).unwrap();
    index
}

/// A store that counts, and that fails when told to.
#[derive(Default)]
pub(in crate::scorer) struct Counting {
    inner: crate::contract::store::MemoryStore,
    sizes: RefCell<SortedMap<String, usize>>,
    pub calls: Cell<u64>,
    pub moved: Cell<u64>,
    /// The most bytes that were stored at any time, and the largest value.
    pub peak: Cell<usize>,
    pub largest: Cell<usize>,
    /// Calls until one fails; then back to never.
    pub fail_in: Cell<Option<u64>>,
}

impl Counting {
    pub fn bytes(&self) -> usize {
        self.sizes.borrow().values().sum()
    }

    pub fn keys(&self) -> usize {
        self.sizes.borrow().len()
    }

    fn call(&self, bytes: usize) -> Result<(), StoreError> {
        self.calls.set(self.calls.get() + 1);
        self.moved.set(self.moved.get() + bytes as u64);
        match self.fail_in.get() {
            Some(0) => {
                self.fail_in.set(None);
                Err(StoreError::Host(10))
            }
            left => {
                self.fail_in.set(left.map(|n| n - 1));
                Ok(())
            }
        }
    }
}

impl Store for Counting {
    fn get(&self, key: &str) -> Result<Option<crate::contract::store::Versioned>, StoreError> {
        let value = self.inner.get(key)?;
        self.call(value.as_ref().map_or(0, |v| v.value.len()))?;
        Ok(value)
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        self.call(value.len())?;
        self.inner.set(key, value, cas)?;
        self.sizes.borrow_mut().insert(key.to_owned(), value.len());
        self.peak.set(self.peak.get().max(self.bytes()));
        self.largest.set(self.largest.get().max(value.len()));
        Ok(())
    }
}

/// An event, to be written as the engine does.
#[derive(Clone, Debug)]
pub(in crate::scorer) enum Said {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
        medium: &'static str,
        group: Option<(u64, Option<&'static str>)>,
        lora_id: Option<u64>,
    },
    Removed(Vec<u64>, &'static str),
    Cleared,
    Bad,
}

pub(in crate::scorer) fn stored(hashes: &[u64], medium: &'static str) -> Said {
    Said::Stored {
        hashes: hashes.to_vec(),
        parent: None,
        tokens: Vec::new(),
        medium,
        group: None,
        lora_id: None,
    }
}

/// With tokens: block `h` has four times the token `h`.
pub(in crate::scorer) fn told(parent: Option<u64>, hashes: &[u64], medium: &'static str) -> Said {
    Said::Stored {
        hashes: hashes.to_vec(),
        parent,
        tokens: hashes.iter().flat_map(|h| [*h as u32; 4]).collect(),
        medium,
        group: None,
        lora_id: None,
    }
}

/// A payload in the array form.
pub(in crate::scorer) fn payload(ts: f64, events: &[Said]) -> Vec<u8> {
    let mut out = vec![0x92, 0xcb];
    out.extend(ts.to_bits().to_be_bytes());
    let array = |out: &mut Vec<u8>, n: usize| {
        out.push(0xdd);
        out.extend((n as u32).to_be_bytes());
    };
    let uint = |out: &mut Vec<u8>, n: u64| {
        out.push(0xcf);
        out.extend(n.to_be_bytes());
    };
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend([0xd9, text.len() as u8]);
        out.extend(text.as_bytes());
    };
    let option = |out: &mut Vec<u8>, n: Option<u64>| match n {
        Some(n) => uint(out, n),
        None => out.push(0xc0),
    };
    array(&mut out, events.len());
    for event in events {
        match event {
            Said::Stored {
                hashes,
                parent,
                tokens,
                medium,
                group,
                lora_id,
            } => {
                out.push(0x9b);
                text(&mut out, "BlockStored");
                array(&mut out, hashes.len());
                hashes.iter().for_each(|h| uint(&mut out, *h));
                option(&mut out, *parent);
                array(&mut out, tokens.len());
                tokens.iter().for_each(|t| uint(&mut out, u64::from(*t)));
                uint(
                    &mut out,
                    if tokens.is_empty() {
                        0
                    } else {
                        u64::from(BLOCK)
                    },
                );
                option(&mut out, *lora_id);
                text(&mut out, medium);
                out.extend([0xc0, 0xc0]);
                option(&mut out, group.map(|g| g.0));
                match group.and_then(|g| g.1) {
                    Some(kind) => text(&mut out, kind),
                    None => out.push(0xc0),
                }
            }
            Said::Removed(hashes, medium) => {
                out.push(0x93);
                text(&mut out, "BlockRemoved");
                array(&mut out, hashes.len());
                hashes.iter().for_each(|h| uint(&mut out, *h));
                text(&mut out, medium);
            }
            Said::Cleared => {
                out.push(0x91);
                text(&mut out, "AllBlocksCleared");
            }
            Said::Bad => out.push(0xc0),
        }
    }
    out
}

/// The request key of a block: of its parent's and its tokens.
pub(in crate::scorer) fn request_key(parent: Option<u64>, tokens: &[u32]) -> u64 {
    let mut bytes = parent.unwrap_or(0).to_le_bytes().to_vec();
    bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
    crate::contract::keys::fnv1a64(&bytes)
}

pub(in crate::scorer) fn keys(
    parent: Option<u64>,
    event: &crate::scorer::kv_events::Stored<'_>,
    out: &mut Vec<u64>,
) -> bool {
    let tokens: Vec<u32> = event.tokens.collect();
    let mut parent = parent;
    for block in tokens.chunks(event.block_size as usize) {
        let key = request_key(parent, block);
        out.push(key);
        parent = Some(key);
    }
    true
}

/// An engine that calls blocks as requests do: by their token.
pub(in crate::scorer) fn same_keys(
    _: Option<u64>,
    event: &crate::scorer::kv_events::Stored<'_>,
    out: &mut Vec<u64>,
) -> bool {
    let tokens: Vec<u32> = event.tokens.collect();
    let blocks = tokens.chunks(event.block_size as usize);
    out.extend(blocks.map(|block| u64::from(block[0])));
    true
}

/// Request keys of the blocks of a chain that `told` speaks of.
pub(in crate::scorer) fn chain(blocks: &[u64]) -> Vec<u64> {
    let mut parent = None;
    let mut out = Vec::new();
    for h in blocks {
        let key = request_key(parent, &[*h as u32; 4]);
        out.push(key);
        parent = Some(key);
    }
    out
}

pub(in crate::scorer) fn deliver(
    index: &mut Index,
    store: &dyn Store,
    (endpoint, run): (&str, u64),
    items: &[Item<'_>],
) -> Result<Ingested, IndexError> {
    let delivery = Delivery {
        publisher: endpoint,
        group: "m",
        run,
        heard_ms: Some(NOW),
        behind: false,
        items,
    };
    if index.params.bridged {
        index.ingest(store, &delivery, &keys)
    } else {
        index.ingest(store, &delivery, &same_keys)
    }
}

/// One payload with these events; its time is its number.
pub(in crate::scorer) fn send(
    index: &mut Index,
    store: &dyn Store,
    (endpoint, run): (&str, u64),
    seq: u64,
    events: &[Said],
) -> Result<Ingested, IndexError> {
    let bytes = payload(1000.0 + seq as f64, events);
    let items = [Item::Payload { seq, bytes: &bytes }];
    deliver(index, store, (endpoint, run), &items)
}

pub(in crate::scorer) fn look(
    index: &mut Index,
    store: &dyn Store,
    endpoint: &str,
    keys: &[u64],
) -> Result<(Reasons, Vec<Held>), NotReady> {
    let view = index.view(store, endpoint, NOW, &mut u64::MAX.clone())?;
    let residency = index.residency(&view).ok_or(NotReady::TooLarge)?;
    let held = keys.iter().map(|key| residency.held(*key)).collect();
    Ok((view.reasons, held))
}

pub(in crate::scorer) fn held(gpu: u16, external: u16) -> Held {
    Held { gpu, external }
}
