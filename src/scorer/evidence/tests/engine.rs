//! What an engine says about its blocks, written as it does.

use super::SIZE;
use std::num::NonZeroU32;

/// An engine's publisher.
#[derive(Clone, Debug)]
pub struct Engine {
    pub endpoint: String,
    seq: u64,
    size: NonZeroU32,
}

#[derive(Clone, Debug)]
pub enum Said {
    Stored(Stored),
    Removed(Vec<u64>, &'static str),
    Cleared,
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub hashes: Vec<u64>,
    pub parent: Option<u64>,
    pub tokens: Vec<u32>,
    pub medium: &'static str,
    pub lora_name: Option<String>,
    pub extra_keys: Option<Vec<Vec<Extra>>>,
}

/// What is hashed beside the tokens of a block.
#[derive(Clone, Debug)]
pub enum Extra {
    Text(String),
    Image(&'static str, i64),
    Bytes(&'static [u8]),
    Number(u64),
}

pub fn text(text: &str) -> Extra {
    Extra::Text(text.to_owned())
}

/// A prompt's first blocks, in the GPU.
pub fn stored(hashes: &[u64], tokens: &[u32]) -> Stored {
    assert_eq!(tokens.len(), hashes.len() * SIZE.get() as usize);
    Stored {
        hashes: hashes.to_vec(),
        parent: None,
        tokens: tokens.to_vec(),
        medium: "GPU",
        lora_name: None,
        extra_keys: None,
    }
}

/// The offloading connector's: nothing but hashes.
pub fn offloaded(hashes: &[u64], medium: &'static str) -> Said {
    Said::Stored(Stored {
        medium,
        ..stored(hashes, &vec![0; hashes.len() * SIZE.get() as usize]).without_tokens()
    })
}

impl Stored {
    fn without_tokens(mut self) -> Self {
        self.tokens.clear();
        self
    }

    pub fn salted(mut self, salt: &str) -> Self {
        let mut extras = vec![Vec::new(); self.hashes.len()];
        extras[0] = vec![text(salt)];
        self.extra_keys = Some(extras);
        self
    }

    pub fn of(mut self, adapter: &str) -> Self {
        let blocks = self.hashes.len();
        let extras = self.extra_keys.get_or_insert(vec![Vec::new(); blocks]);
        extras.iter_mut().for_each(|e| e.insert(0, text(adapter)));
        self.lora_name = Some(adapter.to_owned());
        self
    }
}

impl Engine {
    pub fn new(endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            seq: 0,
            size: SIZE,
        }
    }

    pub fn with_size(mut self, size: NonZeroU32) -> Self {
        self.size = size;
        self
    }

    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    pub fn payload(&self, said: &[Said]) -> Vec<u8> {
        let mut out = Out(Vec::new(), self.size);
        out.list(2);
        rmp::encode::write_f64(&mut out.0, 1_795_952_365.0 + self.seq as f64).unwrap();
        out.list(said.len());
        said.iter().for_each(|said| out.said(said));
        out.0
    }
}

/// With the block size.
struct Out(Vec<u8>, NonZeroU32);

impl Out {
    fn list(&mut self, len: usize) {
        rmp::encode::write_array_len(&mut self.0, len as u32).unwrap();
    }

    fn map(&mut self, len: u32) {
        rmp::encode::write_map_len(&mut self.0, len).unwrap();
    }

    fn text(&mut self, text: &str) {
        rmp::encode::write_str(&mut self.0, text).unwrap();
    }

    fn number(&mut self, n: u64) {
        rmp::encode::write_uint(&mut self.0, n).unwrap();
    }

    fn nil(&mut self) {
        rmp::encode::write_nil(&mut self.0).unwrap();
    }

    fn numbers(&mut self, list: impl ExactSizeIterator<Item = u64>) {
        self.list(list.len());
        list.for_each(|n| self.number(n));
    }

    fn said(&mut self, said: &Said) {
        match said {
            Said::Stored(stored) => self.stored(stored),
            Said::Removed(hashes, medium) => {
                self.map(3);
                self.text("type");
                self.text("BlockRemoved");
                self.text("block_hashes");
                self.numbers(hashes.iter().copied());
                self.text("medium");
                self.text(medium);
            }
            Said::Cleared => {
                self.map(1);
                self.text("type");
                self.text("AllBlocksCleared");
            }
        }
    }

    fn stored(&mut self, stored: &Stored) {
        self.map(8);
        self.text("type");
        self.text("BlockStored");
        self.text("block_hashes");
        self.numbers(stored.hashes.iter().copied());
        self.text("parent_block_hash");
        match stored.parent {
            Some(parent) => self.number(parent),
            None => self.nil(),
        }
        self.text("token_ids");
        self.numbers(stored.tokens.iter().map(|t| u64::from(*t)));
        self.text("block_size");
        let placeholder = stored.tokens.is_empty();
        self.number(if placeholder {
            0
        } else {
            u64::from(self.1.get())
        });
        self.text("medium");
        self.text(stored.medium);
        self.text("lora_name");
        match &stored.lora_name {
            Some(name) => self.text(name),
            None => self.nil(),
        }
        self.text("extra_keys");
        match &stored.extra_keys {
            None => self.nil(),
            Some(blocks) => {
                self.list(blocks.len());
                blocks.iter().for_each(|extras| self.extras(extras));
            }
        }
    }

    fn extras(&mut self, extras: &[Extra]) {
        if extras.is_empty() {
            return self.nil();
        }
        self.list(extras.len());
        for extra in extras {
            match extra {
                Extra::Text(text) => self.text(text),
                Extra::Image(id, at) => {
                    self.list(2);
                    self.text(id);
                    rmp::encode::write_sint(&mut self.0, *at).unwrap();
                }
                Extra::Bytes(bytes) => rmp::encode::write_bin(&mut self.0, bytes).unwrap(),
                Extra::Number(n) => self.number(*n),
            }
        }
    }
}
