//! What was received, kept within bounds until every reader had a chance to fetch it.
//!
//! Every record of every source gets the next number of one count, its position. So a reader's
//! place in all sources is one number, and a page is "what follows it, in order, until it is full".

use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tokio::time::Instant;

/// What one record takes of memory besides its payload (bytes, rounded up).
const MEMORY_OVERHEAD: usize = 128;
/// What one record costs on a page besides its payload, at most (bytes).
pub const RECORD_OVERHEAD: usize = 32;
/// What one source costs on a page without its records, at most (bytes); what is planned for each.
pub const SOURCE_OVERHEAD: usize = 512;
/// The same, without the names in it.
const SOURCE_KEYS: usize = 128;
/// What a page costs without its sources, at most (bytes).
pub const PAGE_OVERHEAD: usize = 256;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A process of the engine begins here. `complete`: the batches that follow are all it ever
    /// published, from its first on.
    Start { complete: bool },
    /// The engine's own bytes.
    Batch { seq: u64, payload: Bytes },
    /// Something before batch `next` was lost, or nobody can vouch that nothing was.
    Gap { next: u64 },
}

impl Record {
    fn payload(&self) -> usize {
        match self {
            Self::Batch { payload, .. } => payload.len(),
            Self::Start { .. } | Self::Gap { .. } => 0,
        }
    }

    /// Bytes of memory.
    fn kept(&self) -> usize {
        self.payload() + MEMORY_OVERHEAD
    }

    /// Bytes of a page, at most.
    pub fn shown(&self) -> usize {
        self.payload() + RECORD_OVERHEAD
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No connection to the engine.
    Connecting,
    /// Connected; what was missed is being fetched.
    Replaying,
    /// Connected, and everything that the engine published is here or marked as lost.
    Live,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
        }
    }
}

/// Who publishes: an engine as Envoy knows it, and its data-parallel rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    pub endpoint: String,
    pub rank: u32,
}

/// Counted since the bridge started.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    pub live: u64,
    pub replayed: u64,
    pub duplicates: u64,
    pub bytes: u64,
    pub gaps: u64,
    pub starts: u64,
    pub evicted: u64,
    pub connections: u64,
    pub replays_ok: u64,
    pub replays_failed: u64,
    pub refused_shape: u64,
    pub refused_topic: u64,
    pub refused_too_long: u64,
    pub refused_stale: u64,
}

pub struct Source {
    pub name: Name,
    pub state: State,
    /// When the engine last gave a sign of life; None: never.
    pub heard: Option<Instant>,
    /// Of the last batch, if it is text of at most 128 bytes.
    pub topic: String,
    pub counts: Counts,
    entries: VecDeque<(u64, Record)>,
    bytes: usize,
    /// Positions of the last record, and of the last start, that was evicted; 0: none.
    evicted: u64,
    evicted_start: u64,
}

impl Source {
    /// Records and bytes now in the log.
    pub fn held(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }

    /// A reader that comes now gets everything from the process's first batch on.
    pub fn complete(&self) -> bool {
        let mut complete = false;
        for (_, record) in &self.entries {
            match record {
                Record::Start { complete: whole } => complete = *whole,
                Record::Gap { .. } => complete = false,
                Record::Batch { .. } => {}
            }
        }
        complete
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of each source.
    pub max_bytes: usize,
    pub max_records: usize,
}

pub struct Log {
    sources: Vec<Source>,
    bounds: Bounds,
    last: u64,
}

/// Records of one source on a page.
pub struct Section {
    pub name: Name,
    pub state: State,
    pub heard: Option<Instant>,
    pub topic: String,
    pub records: Vec<Record>,
}

impl Page {
    /// Bytes of its encoding, roughly.
    pub fn size_hint(&self) -> usize {
        let records = self.sections.iter().flat_map(|section| &section.records);
        PAGE_OVERHEAD
            + SOURCE_KEYS * self.sections.len()
            + records.map(Record::shown).sum::<usize>()
    }
}

pub struct Page {
    pub sections: Vec<Section>,
    /// Everything up to here is on this page or was on one before.
    pub position: u64,
    pub more: bool,
}

impl Log {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            sources: Vec::new(),
            bounds,
            last: 0,
        }
    }

    /// Position of the newest record; 0: none yet.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn add_source(&mut self, name: Name) -> usize {
        self.sources.push(Source {
            name,
            state: State::Connecting,
            heard: None,
            topic: String::new(),
            counts: Counts::default(),
            entries: VecDeque::new(),
            bytes: 0,
            evicted: 0,
            evicted_start: 0,
        });
        self.sources.len() - 1
    }

    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    pub fn source(&mut self, index: usize) -> Option<&mut Source> {
        self.sources.get_mut(index)
    }

    /// Appends, and evicts the source's oldest records past its bounds; the newest always stays.
    pub fn append(&mut self, index: usize, record: Record) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        self.last += 1;
        match &record {
            Record::Start { .. } => source.counts.starts += 1,
            Record::Gap { .. } => source.counts.gaps += 1,
            Record::Batch { payload, .. } => source.counts.bytes += payload.len() as u64,
        }
        source.bytes += record.kept();
        source.entries.push_back((self.last, record));
        while source.entries.len() > 1
            && (source.bytes > self.bounds.max_bytes
                || source.entries.len() > self.bounds.max_records)
        {
            let Some((position, record)) = source.entries.pop_front() else {
                break;
            };
            source.bytes -= record.kept();
            source.counts.evicted += 1;
            source.evicted = position;
            if matches!(record, Record::Start { .. }) {
                source.evicted_start = position;
            }
        }
    }

    /// What follows position `after` (0: from the beginning), as much as fits `max_bytes`; at least
    /// one record if there is one.
    pub fn page(&self, after: u64, max_bytes: usize) -> Page {
        let mut sections: Vec<Section> = self.sources.iter().map(Source::section).collect();
        let mut room = max_bytes
            .saturating_sub(PAGE_OVERHEAD)
            .saturating_sub(self.sources.iter().map(Source::overhead).sum());
        // Each source's next record, the lowest position on top.
        let mut heap: BinaryHeap<Reverse<(u64, usize, usize)>> = self
            .sources
            .iter()
            .enumerate()
            .filter_map(|(index, source)| {
                let next = source
                    .entries
                    .partition_point(|(position, _)| *position <= after);
                source
                    .entries
                    .get(next)
                    .map(|(position, _)| Reverse((*position, index, next)))
            })
            .collect();
        let mut position = after;
        let mut taken = 0usize;
        while let Some(Reverse((at, index, entry))) = heap.pop() {
            let (Some(source), Some(section)) = (self.sources.get(index), sections.get_mut(index))
            else {
                continue;
            };
            let Some((_, record)) = source.entries.get(entry) else {
                continue;
            };
            let lost = section
                .records
                .is_empty()
                .then(|| source.lost(after, record))
                .flatten();
            let cost = record.shown() + lost.as_ref().map_or(0, Record::shown);
            if taken > 0 && cost > room {
                return Page {
                    sections,
                    position,
                    more: true,
                };
            }
            room = room.saturating_sub(cost);
            taken += 1;
            section.records.extend(lost);
            section.records.push(record.clone());
            position = at;
            if let Some((next, _)) = source.entries.get(entry + 1) {
                heap.push(Reverse((*next, index, entry + 1)));
            }
        }
        // Nothing is left: what was evicted meanwhile does not come back either.
        Page {
            sections,
            position: self.last.max(position),
            more: false,
        }
    }
}

impl Source {
    /// What the source costs on a page without its records, at most (bytes).
    fn overhead(&self) -> usize {
        SOURCE_KEYS + self.name.endpoint.len() + self.topic.len()
    }

    fn section(&self) -> Section {
        Section {
            name: self.name.clone(),
            state: self.state,
            heard: self.heard,
            topic: self.topic.clone(),
            records: Vec::new(),
        }
    }

    /// What stands for the evicted records that a reader at `after` has not seen; `first` is what it
    /// sees next.
    fn lost(&self, after: u64, first: &Record) -> Option<Record> {
        if self.evicted <= after {
            return None;
        }
        match first {
            Record::Start { .. } => None,
            _ if self.evicted_start > after => Some(Record::Start { complete: false }),
            Record::Batch { seq, .. } => Some(Record::Gap { next: *seq }),
            Record::Gap { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64, length: usize) -> Record {
        Record::Batch {
            seq,
            payload: Bytes::from(vec![seq as u8; length]),
        }
    }

    fn log(max_records: usize, sources: usize) -> Log {
        let mut log = Log::new(Bounds {
            max_bytes: 1 << 20,
            max_records,
        });
        for rank in 0..sources {
            log.add_source(Name {
                endpoint: "10.0.0.7:8000".into(),
                rank: rank as u32,
            });
        }
        log
    }

    fn records(page: &Page, index: usize) -> Vec<Record> {
        page.sections[index].records.clone()
    }

    #[test]
    fn a_reader_gets_everything_once_and_in_order() {
        let mut log = log(100, 2);
        log.append(0, Record::Start { complete: true });
        log.append(1, Record::Start { complete: false });
        log.append(0, batch(0, 10));

        let first = log.page(0, 100_000);
        assert_eq!(
            records(&first, 0),
            [Record::Start { complete: true }, batch(0, 10)]
        );
        assert_eq!(records(&first, 1), [Record::Start { complete: false }]);
        assert_eq!((first.position, first.more), (3, false));

        log.append(1, batch(7, 10));
        let second = log.page(first.position, 100_000);
        assert_eq!(records(&second, 0), []);
        assert_eq!(records(&second, 1), [batch(7, 10)]);
    }

    #[test]
    fn pages_are_cut_between_records_and_lose_none() {
        let mut log = log(1000, 2);
        for index in 0..2 {
            log.append(index, Record::Start { complete: true });
        }
        for seq in 0..50 {
            log.append((seq % 2) as usize, batch(seq / 2, 100));
        }
        let limit = PAGE_OVERHEAD + 2 * (SOURCE_KEYS + 13) + 1000;
        let mut after = 0;
        let mut seen = [Vec::new(), Vec::new()];
        loop {
            let page = log.page(after, limit);
            let size: usize = page
                .sections
                .iter()
                .flat_map(|section| &section.records)
                .map(Record::shown)
                .sum();
            assert!(size <= 1000, "{size}");
            for (index, section) in page.sections.iter().enumerate() {
                seen[index].extend(section.records.clone());
            }
            after = page.position;
            if !page.more {
                break;
            }
        }
        for side in &seen {
            assert_eq!(side.len(), 26);
            assert_eq!(side[25], batch(24, 100));
        }
    }

    #[test]
    fn what_was_evicted_before_a_reader_saw_it_is_said() {
        // given: room for three records
        let mut log = log(3, 1);
        log.append(0, Record::Start { complete: true });
        log.append(0, batch(0, 10));
        let reader = log.page(0, 100_000).position;
        for seq in 1..5 {
            log.append(0, batch(seq, 10));
        }
        // then: who knew the start has a gap, who comes new a start that vouches for nothing
        assert_eq!(
            records(&log.page(reader, 100_000), 0),
            [
                Record::Gap { next: 2 },
                batch(2, 10),
                batch(3, 10),
                batch(4, 10)
            ]
        );
        assert_eq!(
            records(&log.page(0, 100_000), 0)[0],
            Record::Start { complete: false }
        );
        // and: who saw the evicted ones has neither
        assert_eq!(
            records(&log.page(log.last() - 3, 100_000), 0),
            [batch(2, 10), batch(3, 10), batch(4, 10)]
        );
    }

    #[test]
    fn an_evicted_restart_is_a_restart_to_who_missed_it() {
        let mut log = log(2, 1);
        log.append(0, Record::Start { complete: true });
        log.append(0, batch(0, 10));
        let reader = log.page(0, 100_000).position;
        log.append(0, Record::Start { complete: true });
        for seq in 0..3 {
            log.append(0, batch(seq, 10));
        }
        assert_eq!(
            records(&log.page(reader, 100_000), 0),
            [
                Record::Start { complete: false },
                batch(1, 10),
                batch(2, 10)
            ]
        );
    }

    #[test]
    fn bytes_are_bounded_too_and_the_newest_record_stays() {
        let mut log = Log::new(Bounds {
            max_bytes: 400,
            max_records: 100,
        });
        log.add_source(Name {
            endpoint: "a".into(),
            rank: 0,
        });
        log.append(0, batch(0, 100));
        log.append(0, batch(1, 100));
        assert_eq!(log.sources()[0].held(), (1, 228));
        log.append(0, batch(2, 500));
        assert_eq!(log.sources()[0].held(), (1, 628));
        assert_eq!(log.sources()[0].counts.evicted, 2);
    }
}
