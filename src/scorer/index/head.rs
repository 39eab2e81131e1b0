//! The head of one endpoint's part: what is valid of its pages, and how far its stream was read.
//!
//! Writing the head is what commits: pages without a head that speaks of them do not count, and
//! the stream's next sequence number changes together with the blocks.

use super::reasons::Reasons;
use super::wire::{In, Out};
use crate::scorer::kv_events::Groups;

const FORMAT: u8 = 1;

/// How far an engine's stream was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stream {
    /// The bridge's number for this run of the engine; 0: nothing was read yet.
    pub run: u64,
    /// The next payload to read.
    pub next_seq: u64,
    /// The newest payload's own time, Unix seconds by the engine's clock.
    pub last_ts: f64,
    /// Unix ms of the last word of the engine or its heartbeat.
    pub heard_ms: u64,
    /// What keeps the stream from being the whole truth.
    pub reasons: Reasons,
    pub(super) groups: Groups,
}

/// One endpoint's head.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Head {
    /// Of what the keys depend on; blocks of another one are no blocks.
    pub fingerprint: u64,
    /// The writer's number. It grows with every change of the writer.
    pub term: u64,
    pub endpoint: String,
    /// Counts snapshots. Position in an endpoint's history: generation and bytes of its log.
    pub generation: u64,
    pub snapshot_len: u64,
    pub log_len: u64,
    /// The log of the generation before, if it is still there.
    pub previous_log_len: Option<u64>,
    /// Blocks in a tier.
    pub blocks: u64,
    pub stream: Stream,
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.byte(FORMAT).word(self.fingerprint);
        out.number(self.term).text(&self.endpoint);
        out.number(self.generation).number(self.snapshot_len);
        out.number(self.log_len);
        match self.previous_log_len {
            None => out.byte(0),
            Some(len) => out.byte(1).number(len),
        };
        out.number(self.blocks);
        let stream = &self.stream;
        out.word(stream.run).number(stream.next_seq);
        out.word(stream.last_ts.to_bits()).number(stream.heard_ms);
        out.number(stream.reasons.bits().into());
        for (idx, indexed) in stream.groups.iter() {
            out.number(idx).byte(indexed.into());
        }
        out.bytes
    }

    /// `None` for what this version did not write.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let mut rest = In { rest: value };
        if rest.byte()? != FORMAT {
            return None;
        }
        Some(Self {
            fingerprint: rest.word()?,
            term: rest.number()?,
            endpoint: rest.text()?.to_owned(),
            generation: rest.number()?,
            snapshot_len: rest.number()?,
            log_len: rest.number()?,
            previous_log_len: match rest.byte()? {
                0 => None,
                _ => Some(rest.number()?),
            },
            blocks: rest.number()?,
            stream: Stream {
                run: rest.word()?,
                next_seq: rest.number()?,
                last_ts: f64::from_bits(rest.word()?),
                heard_ms: rest.number()?,
                reasons: Reasons::from_bits(u16::try_from(rest.number()?).ok()?),
                groups: {
                    let mut groups = Vec::new();
                    while !rest.rest.is_empty() {
                        groups.push((rest.number()?, rest.byte()? != 0));
                    }
                    groups.into_iter().collect()
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_head_survives_its_record() {
        let mut head = Head {
            fingerprint: u64::MAX,
            term: 3,
            endpoint: "[::1]:8000".to_owned(),
            generation: 12,
            snapshot_len: 2_500_000,
            log_len: 17,
            previous_log_len: None,
            blocks: 262_144,
            stream: Stream {
                run: 1 << 63,
                next_seq: 940,
                last_ts: 1_795_952_365.25,
                heard_ms: 1_795_952_365_250,
                reasons: Reasons::GAP | Reasons::EVICTED,
                groups: [(0, true), (1, false)].into_iter().collect(),
            },
        };
        assert_eq!(Head::decode(&head.encode()), Some(head.clone()));
        assert!(head.encode().len() < 96);
        head.previous_log_len = Some(0);
        head.stream.groups = Groups::default();
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        for cut in 0..bytes.len() {
            assert_eq!(Head::decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(Head::decode(b"\x02"), None);
    }
}
