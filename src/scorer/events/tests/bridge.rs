//! A bridge as docs/kv-events-bridge.md has it, the plainest way.

use super::NOW;
use ciborium::Value;

#[derive(Clone, Debug)]
pub enum Rec {
    Start(bool),
    Batch(u64, Vec<u8>),
    Gap(u64),
}

#[derive(Clone, Debug)]
pub struct Source {
    pub endpoint: String,
    pub rank: u32,
    pub state: &'static str,
    pub heard_ms: Option<u64>,
    pub topic: String,
    pub log: Vec<(u64, Rec)>,
    evicted: u64,
    evicted_start: u64,
}

#[derive(Clone, Debug)]
pub struct Bridge {
    epoch: u64,
    last: u64,
    pub sources: Vec<Source>,
    /// Records kept for each source.
    pub keep: usize,
    /// Records on one page.
    pub page: usize,
}

pub struct Written {
    pub bytes: Vec<u8>,
    pub more: bool,
}

impl Bridge {
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            last: 0,
            sources: Vec::new(),
            keep: 1000,
            page: 1000,
        }
    }

    pub fn source(&mut self, endpoint: &str, rank: u32) -> usize {
        self.sources.push(Source {
            endpoint: endpoint.to_owned(),
            rank,
            state: "live",
            heard_ms: Some(NOW),
            topic: String::new(),
            log: Vec::new(),
            evicted: 0,
            evicted_start: 0,
        });
        self.sources.len() - 1
    }

    /// With sources and these records.
    pub fn with(epoch: u64, sources: &[(&str, u32, &[Rec])]) -> Self {
        let mut bridge = Self::new(epoch);
        for (endpoint, rank, records) in sources {
            let source = bridge.source(endpoint, *rank);
            for record in *records {
                bridge.say(source, record.clone());
            }
        }
        bridge
    }

    pub fn say(&mut self, source: usize, record: Rec) {
        self.last += 1;
        self.sources[source].log.push((self.last, record));
        self.evict(source, self.keep);
    }

    pub fn evict(&mut self, source: usize, keep: usize) {
        let source = &mut self.sources[source];
        while source.log.len() > keep {
            let (position, record) = source.log.remove(0);
            source.evicted = position;
            if matches!(record, Rec::Start(_)) {
                source.evicted_start = position;
            }
        }
    }

    pub fn page(&self, after: Option<&str>) -> Written {
        let cursor = after.and_then(|c| c.split_once('-'));
        let mine = cursor.filter(|(epoch, _)| *epoch == format!("{:016x}", self.epoch));
        let reset = after.is_some() && mine.is_none();
        let after = mine.map_or(0, |(_, at)| u64::from_str_radix(at, 16).unwrap());
        let mut all: Vec<u64> = self
            .sources
            .iter()
            .flat_map(|s| s.log.iter().map(|(at, _)| *at))
            .filter(|at| *at > after)
            .collect();
        all.sort_unstable();
        let more = all.len() > self.page;
        let last = if more { all[self.page - 1] } else { self.last };
        let text = |t: &str| Value::Text(t.to_owned());
        let sections = self.sources.iter().map(|s| {
            let mut items = Vec::new();
            for (_, record) in s
                .log
                .iter()
                .filter(|(at, _)| (after + 1..=last).contains(at))
            {
                if items.is_empty() && s.evicted > after {
                    match record {
                        Rec::Start(_) => {}
                        _ if s.evicted_start > after => items.push(Rec::Start(false)),
                        Rec::Batch(seq, _) => items.push(Rec::Gap(*seq)),
                        Rec::Gap(_) => {}
                    }
                }
                items.push(record.clone());
            }
            let items = items.into_iter().map(|record| {
                Value::Array(match record {
                    Rec::Start(complete) => vec![text("start"), Value::Bool(complete)],
                    Rec::Batch(seq, payload) => {
                        vec![text("batch"), seq.into(), Value::Bytes(payload)]
                    }
                    Rec::Gap(next) => vec![text("gap"), next.into()],
                })
            });
            let mut section = vec![
                (text("endpoint"), text(&s.endpoint)),
                (text("rank"), s.rank.into()),
                (text("state"), text(s.state)),
                (text("items"), Value::Array(items.collect())),
            ];
            if let Some(heard) = s.heard_ms {
                section.push((text("silent_ms"), (NOW - heard).into()));
            }
            if !s.topic.is_empty() {
                section.push((text("topic"), text(&s.topic)));
            }
            Value::Map(section)
        });
        let page = Value::Map(vec![
            (text("v"), 1.into()),
            (
                text("cursor"),
                Value::Text(format!("{:016x}-{last:x}", self.epoch)),
            ),
            (text("reset"), Value::Bool(reset)),
            (text("more"), Value::Bool(more)),
            (text("endpoints"), Value::Array(sections.collect())),
        ]);
        let mut bytes = Vec::new();
        ciborium::into_writer(&page, &mut bytes).unwrap();
        Written { bytes, more }
    }
}
