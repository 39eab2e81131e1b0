//! What happens to an endpoint's blocks, as a stream of operations. Logs and snapshots are both
//! made of it: a snapshot is what builds the same state from nothing.
//!
//! Entries are numbered in the order in which they came, so that changing one costs a few bytes.

use super::held::Held;
use super::wire::{In, Out};

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op<'a> {
    /// New entries, numbered on; their keys follow.
    New { held: Held, keys: Keys<'a> },
    /// An entry's new state.
    Set { id: u32, held: Held },
    /// An entry is gone.
    Remove { id: u32 },
    /// No entry is in the GPU any more.
    ClearGpu,
    /// No entry is left; numbering starts again.
    Reset,
}

/// A request key, and the engine's own key if that is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub request: u64,
    pub engine: u64,
}

/// Bytes of one key: with the engine's own or without.
pub(super) const fn key_bytes(bridged: bool) -> usize {
    if bridged { 16 } else { 8 }
}

/// Keys of a run of new entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Keys<'a> {
    bytes: &'a [u8],
    bridged: bool,
}

impl Iterator for Keys<'_> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let mut rest = In { rest: self.bytes };
        let request = rest.word()?;
        let engine = if self.bridged { rest.word()? } else { request };
        self.bytes = rest.rest;
        Some(Key { request, engine })
    }
}

const NEW: u64 = 0;
const SET: u64 = 1;
const REMOVE: u64 = 2;
const CLEAR_GPU: u64 = 3;
const RESET: u64 = 4;
const OP_BITS: u32 = 3;

/// Writes operations; new entries in the same state become one run.
#[derive(Clone, Debug)]
pub(super) struct Log {
    bridged: bool,
    out: Out,
    run: Out,
    run_held: Held,
    run_len: u64,
}

impl Log {
    pub fn new(bridged: bool) -> Self {
        Self {
            bridged,
            out: Out::default(),
            run: Out::default(),
            run_held: Held::NOWHERE,
            run_len: 0,
        }
    }

    pub fn push(&mut self, key: Key, held: Held) {
        if held != self.run_held {
            self.flush();
            self.run_held = held;
        }
        self.run.word(key.request);
        if self.bridged {
            self.run.word(key.engine);
        }
        self.run_len = self.run_len.saturating_add(1);
    }

    pub fn set(&mut self, id: u32, held: Held) {
        self.flush();
        self.head(SET, id.into());
        held.write(&mut self.out);
    }

    pub fn remove(&mut self, id: u32) {
        self.flush();
        self.head(REMOVE, id.into());
    }

    pub fn clear_gpu(&mut self) {
        self.flush();
        self.head(CLEAR_GPU, 0);
    }

    pub fn reset(&mut self) {
        // What came before does not matter any more.
        *self = Self::new(self.bridged);
        self.head(RESET, 0);
    }

    /// Bytes so far, about.
    pub fn len(&self) -> usize {
        self.out.bytes.len().saturating_add(self.run.bytes.len())
    }

    pub fn take(&mut self) -> Vec<u8> {
        self.flush();
        std::mem::take(&mut self.out.bytes)
    }

    fn head(&mut self, op: u64, n: u64) {
        self.out.number(n << OP_BITS | op);
    }

    fn flush(&mut self) {
        if self.run_len == 0 {
            return;
        }
        self.head(NEW, self.run_len);
        self.run_held.write(&mut self.out);
        self.out.bytes.append(&mut self.run.bytes);
        self.run_len = 0;
    }
}

/// Reads operations; an error ends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ops<'a> {
    rest: In<'a>,
    bridged: bool,
}

/// Bytes that this version did not write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

impl<'a> Ops<'a> {
    pub fn new(bytes: &'a [u8], bridged: bool) -> Self {
        let rest = In { rest: bytes };
        Self { rest, bridged }
    }

    fn op(&mut self) -> Option<Op<'a>> {
        let head = self.rest.number()?;
        let n = head >> OP_BITS;
        let id = u32::try_from(n).ok();
        Some(match head & ((1 << OP_BITS) - 1) {
            NEW => {
                let held = Held::read(&mut self.rest)?;
                let bytes = usize::try_from(n).ok()?;
                let bytes = bytes.checked_mul(key_bytes(self.bridged))?;
                let (bytes, rest) = self.rest.rest.split_at_checked(bytes)?;
                self.rest.rest = rest;
                let bridged = self.bridged;
                let keys = Keys { bytes, bridged };
                Op::New { held, keys }
            }
            SET => Op::Set {
                id: id?,
                held: Held::read(&mut self.rest)?,
            },
            REMOVE => Op::Remove { id: id? },
            CLEAR_GPU => Op::ClearGpu,
            RESET => Op::Reset,
            _ => return None,
        })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.rest.is_empty() {
            return None;
        }
        let op = self.op().ok_or(Broken);
        if op.is_err() {
            self.rest.rest = &[];
        }
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const GPU: Held = Held {
        gpu: 1,
        external: 0,
    };
    const BOTH: Held = Held {
        gpu: 1,
        external: 1,
    };

    fn key(n: u64) -> Key {
        Key {
            request: n,
            engine: n,
        }
    }

    #[test]
    fn runs_cost_eight_bytes_a_block() {
        let mut log = Log::new(false);
        for n in 0..1000 {
            log.push(key(n), GPU);
        }
        log.set(70_000, BOTH);
        log.remove(5);
        log.push(key(1), BOTH);
        log.clear_gpu();
        let bytes = log.take();
        assert_eq!(bytes.len(), 3 + 8000 + 4 + 1 + 10 + 1);
        let ops: Vec<_> = Ops::new(&bytes, false).map(Result::unwrap).collect();
        let Op::New { held, keys } = ops[0] else {
            panic!()
        };
        assert_eq!(held, GPU);
        assert!(keys.eq((0..1000).map(key)));
        assert_eq!(
            ops[1..3],
            [
                Op::Set {
                    id: 70_000,
                    held: BOTH
                },
                Op::Remove { id: 5 }
            ]
        );
        assert_eq!(ops[4], Op::ClearGpu);
        assert_eq!(ops.len(), 5);
        assert!(log.take().is_empty());
    }

    #[test]
    fn engine_keys_go_along_where_they_differ() {
        let mut log = Log::new(true);
        let one = Key {
            request: 7,
            engine: u64::MAX,
        };
        log.push(key(3), GPU);
        log.reset();
        log.push(one, BOTH);
        let bytes = log.take();
        let ops: Vec<_> = Ops::new(&bytes, true).map(Result::unwrap).collect();
        assert_eq!(ops[0], Op::Reset);
        let Op::New { held, mut keys } = ops[1] else {
            panic!()
        };
        assert_eq!((held, keys.next(), keys.next()), (BOTH, Some(one), None));
    }

    #[test]
    fn broken_bytes_end_the_stream() {
        for bytes in [
            &b"\x80"[..],
            b"\x05",
            b"\x07",
            b"\x08",
            b"\x08\x01\x00",
            b"\x01",
            b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01",
        ] {
            let ops: Vec<_> = Ops::new(bytes, false).collect();
            assert_eq!(ops, [Err(Broken)], "{bytes:02x?}");
        }
    }
}
