//! The answer of `GET /events`, as CBOR (docs/kv-events-bridge.md has the schema).

use super::log::{Page, Record, Section};
use tokio::time::Instant;

pub const VERSION: u64 = 1;

/// What belongs to an answer besides the page itself.
pub struct Head<'a> {
    pub cursor: &'a str,
    pub reset: bool,
    pub now: Instant,
}

pub fn encode(page: &Page, head: &Head<'_>) -> Vec<u8> {
    let mut out = Writer(Vec::with_capacity(page.size_hint()));
    out.head(MAP, 5);
    out.text("v");
    out.head(UINT, VERSION);
    out.text("cursor");
    out.text(head.cursor);
    out.text("reset");
    out.bool(head.reset);
    out.text("more");
    out.bool(page.more);
    out.text("endpoints");
    out.head(ARRAY, page.sections.len() as u64);
    for section in &page.sections {
        encode_section(&mut out, section, head.now);
    }
    out.0
}

fn encode_section(out: &mut Writer, section: &Section, now: Instant) {
    let silent = section
        .heard
        .map(|heard| now.saturating_duration_since(heard).as_millis());
    let members = 4 + u64::from(silent.is_some()) + u64::from(!section.topic.is_empty());
    out.head(MAP, members);
    out.text("endpoint");
    out.text(&section.name.endpoint);
    out.text("rank");
    out.head(UINT, u64::from(section.name.rank));
    out.text("state");
    out.text(section.state.as_str());
    if let Some(silent) = silent {
        out.text("silent_ms");
        out.head(UINT, u64::try_from(silent).unwrap_or(u64::MAX));
    }
    if !section.topic.is_empty() {
        out.text("topic");
        out.text(&section.topic);
    }
    out.text("items");
    out.head(ARRAY, section.records.len() as u64);
    for record in &section.records {
        match record {
            Record::Start { complete } => {
                out.head(ARRAY, 2);
                out.text("start");
                out.bool(*complete);
            }
            Record::Batch { seq, payload } => {
                out.head(ARRAY, 3);
                out.text("batch");
                out.head(UINT, *seq);
                out.bytes(payload);
            }
            Record::Gap { next } => {
                out.head(ARRAY, 2);
                out.text("gap");
                out.head(UINT, *next);
            }
        }
    }
}

const UINT: u8 = 0 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;
const MAP: u8 = 5 << 5;
const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;

struct Writer(Vec<u8>);

impl Writer {
    /// The shortest head that holds `value` (RFC 8949, 3).
    fn head(&mut self, major: u8, value: u64) {
        match value {
            0..=23 => self.0.push(major | value as u8),
            24..=0xff => self.0.extend_from_slice(&[major | 24, value as u8]),
            0x100..=0xffff => {
                self.0.push(major | 25);
                self.0.extend_from_slice(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(major | 26);
                self.0.extend_from_slice(&(value as u32).to_be_bytes());
            }
            _ => {
                self.0.push(major | 27);
                self.0.extend_from_slice(&value.to_be_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.head(TEXT, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.head(BYTES, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn bool(&mut self, value: bool) {
        self.0.push(if value { TRUE } else { FALSE });
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::{Bounds, Log, Name, PAGE_OVERHEAD, RECORD_OVERHEAD, SOURCE_OVERHEAD};
    use super::*;
    use bytes::Bytes;
    use std::time::Duration;

    /// The bytes of the manual's block of hexadecimal digits with comments.
    fn manual() -> Vec<u8> {
        let text = include_str!("../../../docs/kv-events-bridge.md");
        let block = text.split("### A page, byte by byte").nth(1).unwrap();
        let block = block.split("```").nth(1).unwrap();
        let digits: String = block
            .lines()
            .flat_map(|line| line.split('#').next())
            .flat_map(str::chars)
            .filter(|c| !c.is_whitespace())
            .collect();
        (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn the_example_of_the_manual() {
        let heard = Instant::now();
        let mut log = Log::new(Bounds {
            max_bytes: 1 << 20,
            max_records: 100,
        });
        let first = log.add_source(Name {
            endpoint: "10.0.0.7:8000".into(),
            rank: 0,
        });
        log.add_source(Name {
            endpoint: "10.0.0.8:8000".into(),
            rank: 1,
        });
        let source = log.source(first).unwrap();
        source.state = super::super::log::State::Live;
        source.heard = Some(heard);
        source.topic = "kv@10.0.0.7".into();
        let payload = Bytes::from_static(b"\x93\xcb\x41\xda\xc3\x03\x92\x10\0\0\x90\0");
        for record in [
            Record::Start { complete: true },
            Record::Batch {
                seq: 0,
                payload: payload.clone(),
            },
            Record::Gap { next: 5 },
            Record::Batch { seq: 5, payload },
        ] {
            log.append(first, record);
        }
        let head = Head {
            cursor: "0123456789abcdef-6",
            reset: false,
            now: heard + Duration::from_millis(1200),
        };
        assert_eq!(encode(&log.page(0, 1 << 20), &head), manual());
    }

    fn page(log: &Log) -> Vec<u8> {
        let head = Head {
            cursor: &"c".repeat(40),
            reset: true,
            now: Instant::now(),
        };
        encode(&log.page(0, 1 << 20), &head)
    }

    #[test]
    fn no_page_is_longer_than_what_its_parts_are_charged() {
        // given: the largest of everything
        let mut log = Log::new(Bounds {
            max_bytes: 1 << 20,
            max_records: 100,
        });
        assert!(page(&log).len() <= PAGE_OVERHEAD, "{}", page(&log).len());
        let source = log.add_source(Name {
            endpoint: "e".repeat(128),
            rank: u32::MAX,
        });
        log.source(source).unwrap().topic = "t".repeat(128);
        log.source(source).unwrap().heard = Some(Instant::now());
        let bare = page(&log).len();
        assert!(bare <= PAGE_OVERHEAD + 128 + 2 * 128, "{bare}");
        assert!(bare <= PAGE_OVERHEAD + SOURCE_OVERHEAD, "{bare}");
        for record in [
            Record::Start { complete: true },
            Record::Gap { next: u64::MAX },
            Record::Batch {
                seq: u64::MAX,
                payload: Bytes::from(vec![0; 70_000]),
            },
        ] {
            let before = page(&log).len();
            let charged = record.shown();
            log.append(source, record);
            assert!(page(&log).len() - before <= charged);
            assert!(charged >= RECORD_OVERHEAD);
        }
    }
}
