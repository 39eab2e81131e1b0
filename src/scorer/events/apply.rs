//! One page into the index.

use super::beats::Beats;
use super::outcome::{Event, Problem};
use super::page::{Page, Record};
use super::publishers::{Publisher, group, publishers};
use crate::contract::store::Store;
use crate::scorer::config::EvidenceConfig;
use crate::scorer::facts::Fleet;
use crate::scorer::index::{Delivery, Index, IndexError, Ingested, Item, RequestKeys, endpoint_of};
use crate::sorted::{SortedMap, SortedSet};

/// Starts of one publisher on one page that are gone through; of more the last ones. Only shared
/// tiers remember what was before the last one.
const MAX_RUNS: usize = 16;

/// What outlives a page.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub beats: Beats,
    /// Publishers whose events were passed over, because their group was not known.
    pub passed_over: SortedSet<String>,
    /// Ticks before the log may be begun again for a publisher's sake.
    pub pauses: SortedMap<String, u32>,
}

pub(super) struct Apply<'a> {
    pub config: &'a EvidenceConfig,
    pub index: &'a mut Index,
    pub store: &'a dyn Store,
    pub fleet: &'a Fleet,
    pub keys: &'a RequestKeys<'a>,
    pub now_ms: u64,
    pub memory: &'a mut Memory,
    pub events: &'a mut Vec<Event>,
    /// Ticks between two times that the log is begun again for one publisher.
    pub pause: u32,
}

/// How a page was read.
#[derive(Clone, Copy)]
struct Reading {
    /// From the beginning: nothing that is known counts.
    anew: bool,
    more: bool,
}

impl Apply<'_> {
    /// Applies the whole page, then sets the cursor. `asked`: it was asked for with a cursor.
    pub fn page(&mut self, page: &Page<'_>, asked: bool) -> Result<Ingested, IndexError> {
        let reading = Reading {
            anew: page.reset || !asked,
            more: page.more,
        };
        if reading.anew {
            // Should the rest fail, it is begun again.
            self.index.set_cursor(self.store, b"")?;
            self.index.forget_shared(self.store)?;
        }
        let (publishers, nameless) = publishers(page);
        for _ in 0..nameless {
            self.problem(Problem::Name);
        }
        self.retain(&publishers, reading.anew)?;
        let left_out = self.list_ranks(&publishers)?;
        let listed = |p: &Publisher<'_>| !left_out.contains(p.section.endpoint);
        if !left_out.is_empty() {
            // What room they have is for others.
            let rest: Vec<_> = publishers.iter().filter(|p| listed(p)).cloned().collect();
            self.retain(&rest, true)?;
        }
        let mut all = Ingested::default();
        let mut again = false;
        for publisher in publishers.iter().filter(|p| listed(p)) {
            match self.publisher(publisher, reading, &mut again) {
                Ok(done) => all = all.and(done),
                Err(e) => self.leave_out(&publisher.name, e)?,
            }
        }
        let cursor = if again { "" } else { page.cursor };
        self.index.set_cursor(self.store, cursor.as_bytes())?;
        Ok(all)
    }

    /// Gives up what neither the bridge nor the scorer knows any more; with a log that is read from
    /// its beginning, what the bridge does not know. An endpoint that got ranks, or lost them, has
    /// other names.
    fn retain(&mut self, publishers: &[Publisher<'_>], anew: bool) -> Result<(), IndexError> {
        let names: SortedSet<&str> = publishers.iter().map(|p| p.name.as_ref()).collect();
        let endpoints: SortedSet<&str> = publishers.iter().map(|p| p.section.endpoint).collect();
        let keep = |name: &str| {
            let endpoint = endpoint_of(name);
            names.contains(name)
                || (!anew
                    && !endpoints.contains(endpoint)
                    && self.fleet.endpoints.contains_key(endpoint))
        };
        if !anew {
            // What was said under an endpoint's former names is not known under its new ones.
            let former = self.index.publishers();
            let former = former.filter(|name| !names.contains(name));
            let renamed: SortedSet<&str> = former.map(endpoint_of).collect();
            let renamed = publishers
                .iter()
                .filter(|p| renamed.contains(p.section.endpoint));
            let names = renamed.map(|p| p.name.as_ref().to_owned());
            self.memory.passed_over.extend(names);
        }
        self.memory.beats.retain(keep);
        self.memory.passed_over.retain(|name| keep(name));
        self.memory.pauses.retain(|name, _| keep(name));
        self.index.retain(self.store, &keep)
    }

    /// Lists the ranks of endpoints that have several before anything is known of the first: one
    /// alone would pass for the endpoint. Endpoints that do not fit with all their ranks are left
    /// out.
    fn list_ranks<'p>(
        &mut self,
        publishers: &[Publisher<'p>],
    ) -> Result<SortedSet<&'p str>, IndexError> {
        let mut left_out = SortedSet::new();
        for publisher in publishers.iter().filter(|p| p.is_rank) {
            let name = publisher.name.as_ref();
            let group = group(&publisher.section, self.config, self.fleet);
            let listed = match (self.index.group_of(name), group) {
                (Some(_), _) => Ok(()),
                // Unknown for now, under any name.
                (None, group) => self.index.list(self.store, name, group.unwrap_or("")),
            };
            if let Err(e) = listed {
                self.leave_out(name, e)?;
                left_out.insert(publisher.section.endpoint);
            }
        }
        Ok(left_out)
    }

    /// One publisher that cannot be stored must not keep the others out. What it says from now on
    /// is missed, so what is known of it does not count.
    fn leave_out(&mut self, name: &str, e: IndexError) -> Result<(), IndexError> {
        match e {
            IndexError::TooManyEndpoints | IndexError::Invalid => {
                self.problem(Problem::Publisher(e));
                self.forget(name)
            }
            e => Err(e),
        }
    }

    fn publisher(
        &mut self,
        publisher: &Publisher<'_>,
        reading: Reading,
        again: &mut bool,
    ) -> Result<Ingested, IndexError> {
        let name = publisher.name.as_ref();
        let section = &publisher.section;
        let Some(group) = group(section, self.config, self.fleet) else {
            // Not to be taken for whole later.
            self.problem(Problem::NoGroup);
            self.memory.passed_over.insert(name.to_owned());
            self.forget(name)?;
            return Ok(Ingested::default());
        };
        if self.index.group_of(name).is_some_and(|old| old != group) {
            // What it put into shared tiers is another group's.
            self.forget(name)?;
            self.index.list(self.store, name, group)?;
            self.memory.passed_over.insert(name.to_owned());
        }
        if self.memory.passed_over.contains(name) && !reading.anew {
            *again |= self.may_begin_again(name);
        }

        let (leading, mut runs) = split(section.records());
        // Of what is gone only shared tiers keep anything.
        let kept = if self.config.shared_tiers.is_empty() {
            1
        } else {
            MAX_RUNS
        };
        runs.drain(..runs.len().saturating_sub(kept));
        let heard_ms = section
            .silent_ms
            .map(|ms| self.now_ms.saturating_sub(ms).max(1));
        let behind = reading.more || !section.live;
        let news = !leading.is_empty() || !runs.is_empty();
        if !news && !reading.anew {
            self.heartbeat(name, heard_ms, behind)?;
            return Ok(Ingested::default());
        }

        let stream = self.index.stream(self.store, name)?;
        let mut run = stream.as_ref().map_or(0, |stream| stream.run);
        let mut deliveries: Vec<(u64, Vec<Item<'_>>)> = Vec::new();
        if stream.is_some() && !reading.anew {
            if !leading.is_empty() {
                deliveries.push((run, leading));
            }
        } else if runs.is_empty() {
            if !leading.is_empty() {
                self.problem(Problem::NoStart);
                *again |= !reading.anew && self.may_begin_again(name);
            }
            self.forget(name)?;
            return Ok(Ingested::default());
        }
        for items in runs {
            // Any other number: what follows a start is told whole, also if it is told again.
            run = run.wrapping_add(1).max(1);
            deliveries.push((run, items));
        }
        let mut all = Ingested::default();
        let last = run;
        for (run, items) in &deliveries {
            let delivery = Delivery {
                publisher: name,
                group,
                run: *run,
                heard_ms,
                // If an earlier try of this page came past a start, what stands before it is not
                // for this stream. It is gone with the start, which may be on the next page.
                behind: behind || *run != last,
                items,
            };
            let done = self.index.ingest(self.store, &delivery, self.keys)?;
            all = all.and(done);
            self.memory.passed_over.remove(name);
            self.memory.beats.written(name, heard_ms, behind);
        }
        Ok(all)
    }

    fn heartbeat(
        &mut self,
        name: &str,
        heard_ms: Option<u64>,
        behind: bool,
    ) -> Result<(), IndexError> {
        let max_silence_ms = self.config.max_silence_ms;
        let beats = &mut self.memory.beats;
        if beats.is_due(name, heard_ms, behind, max_silence_ms) {
            self.index.heartbeat(self.store, name, heard_ms, behind)?;
            beats.written(name, heard_ms, behind);
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) -> Result<(), IndexError> {
        self.memory.beats.forget(name);
        self.index.forget(self.store, name)
    }

    /// Not too often: everybody's events are told again.
    fn may_begin_again(&mut self, name: &str) -> bool {
        let allowed = !self.memory.pauses.contains_key(name);
        if allowed {
            self.problem(Problem::BegunAgain);
            self.memory.pauses.insert(name.to_owned(), self.pause);
        }
        allowed
    }

    fn problem(&mut self, problem: Problem) {
        self.events.push(Event::Problem(problem));
    }
}

/// What goes on with the run before, and one list for each start.
fn split<'a>(records: impl Iterator<Item = Record<'a>>) -> (Vec<Item<'a>>, Vec<Vec<Item<'a>>>) {
    let mut leading = Vec::new();
    let mut runs: Vec<Vec<Item<'a>>> = Vec::new();
    for record in records {
        let item = match record {
            Record::Start { complete } => {
                runs.push(if complete {
                    vec![Item::FromStart]
                } else {
                    Vec::new()
                });
                continue;
            }
            Record::Batch { seq, payload } => Item::Payload {
                seq,
                bytes: payload,
            },
            Record::Gap { next } => Item::Lost { next },
        };
        runs.last_mut().unwrap_or(&mut leading).push(item);
    }
    (leading, runs)
}
