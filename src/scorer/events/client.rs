//! When the bridge is asked, and what becomes of its answers. Pure: the shell sends and hands over.
//!
//! Pauses are counted in ticks, so that a step of the wall clock neither floods the bridge nor stops
//! the reading.

use super::apply::{Apply, Memory};
use super::outcome::{Event, Problem, PullResult};
use super::page::{self, Malformed, Page};
use crate::contract::store::Store;
use crate::scorer::config::EvidenceConfig;
use crate::scorer::facts::Fleet;
use crate::scorer::index::{Index, IndexError, RequestKeys};
use crate::scorer::poller::Answer;
use std::rc::Rc;

/// Longest wait of a request for which there is nothing new, ms. It is also how long a quiet
/// engine's sign of life may take.
const MAX_WAIT_MS: u64 = 10_000;
/// The same while the bridge is fetching what it missed of an engine: its evidence is partial until
/// a page says that it has it.
const UNSETTLED_WAIT_MS: u64 = 1_000;
/// What an answer may take beyond its wait, ms.
const ANSWER_MS: u64 = 5_000;
/// Longest pause after failures, in ticks.
const MAX_PAUSE: u32 = 8;
/// Failures in a row to store what was read, after which it is read from the beginning.
const MAX_STORE_FAILURES: u32 = 8;
/// The index is claimed again this often, ms, and the log begun again for one publisher at most.
const MINUTE_MS: u64 = 60_000;

/// A GET to be sent to the bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pull {
    /// With the query.
    pub path: String,
    /// For the whole call.
    pub timeout_ms: u64,
}

/// The one call of a client.
#[derive(Debug)]
enum Call {
    None,
    /// Given out.
    Due {
        asked: bool,
    },
    /// `asked`: with a cursor.
    InFlight {
        token: u32,
        asked: bool,
        ticks: u32,
    },
}

/// One per root context; it does something while its VM holds the lease.
#[derive(Debug)]
pub struct Client {
    config: Rc<EvidenceConfig>,
    tick_ms: u64,
    running: bool,
    call: Call,
    /// Ticks before the next call.
    pause: u32,
    failures: u32,
    /// How long the next request may wait, ms.
    wait_ms: u64,
    /// Ticks before the index is claimed again.
    claim: u32,
    memory: Memory,
    events: Vec<Event>,
}

impl Client {
    /// `tick_ms`: how often [`Client::tick`] is called.
    #[must_use]
    pub fn new(config: Rc<EvidenceConfig>, tick_ms: u64) -> Self {
        Self {
            config,
            tick_ms,
            running: false,
            call: Call::None,
            pause: 0,
            failures: 0,
            wait_ms: 0,
            claim: 0,
            memory: Memory::default(),
            events: Vec::new(),
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The lease was taken.
    pub fn start(&mut self) {
        *self = Self {
            running: true,
            events: std::mem::take(&mut self.events),
            ..Self::new(Rc::clone(&self.config), self.tick_ms)
        };
    }

    /// The lease was lost, or given back. A call that is under way is nobody's from now on.
    pub fn stop(&mut self, index: Option<&mut Index>) {
        self.start();
        self.running = false;
        if let Some(index) = index {
            index.step_down();
        }
    }

    /// The timer.
    pub fn tick(&mut self) {
        self.pause = self.pause.saturating_sub(1);
        self.claim = self.claim.saturating_sub(1);
        self.memory.pauses.retain(|_, ticks| {
            *ticks = ticks.saturating_sub(1);
            *ticks > 0
        });
        let limit = self.ticks(self.timeout_ms()).saturating_add(2);
        if let Call::InFlight { ticks, .. } = &mut self.call {
            *ticks = ticks.saturating_add(1);
            // The host ends every call. Should it ever not, nothing would be read any more.
            if *ticks > limit {
                self.failed(PullResult::Lost);
            }
        }
    }

    /// What to send now, if anything; then [`Client::sent`] or [`Client::not_sent`] has to follow.
    /// To be called with the timer and after each answer. It also sees to it that this VM is the
    /// index's writer.
    pub fn due(&mut self, index: &mut Index, store: &dyn Store, now_ms: u64) -> Option<Pull> {
        if !self.running || self.pause > 0 || !matches!(self.call, Call::None) {
            return None;
        }
        if !index.is_writing() {
            // Also one that was made anew.
            self.claim = 0;
            self.memory.beats.clear();
        }
        if self.claim == 0 {
            if let Err(e) = index.take_over(store, now_ms) {
                self.events.push(Event::Problem(Problem::TakeOver(e)));
                self.back_off();
                return None;
            }
            self.claim = self.ticks(MINUTE_MS);
        }
        let asked = match index.cursor(store) {
            Ok(cursor) => cursor,
            Err(e) => {
                self.failed(PullResult::Index(e));
                return None;
            }
        };
        let mut path = format!("{}?", self.config.events.path);
        if let Some(cursor) = &asked {
            path.push_str("after=");
            percent(cursor, &mut path);
            path.push('&');
        }
        path.push_str(&format!("timeout_ms={}", self.wait_ms));
        self.call = Call::Due {
            asked: asked.is_some(),
        };
        Some(Pull {
            path,
            timeout_ms: self.timeout_ms(),
        })
    }

    /// The call was sent, and its answer will come with this token.
    pub fn sent(&mut self, token: u32) {
        if let Call::Due { asked } = self.call {
            self.call = Call::InFlight {
                token,
                asked,
                ticks: 0,
            };
        }
    }

    /// The host refused it.
    pub fn not_sent(&mut self) {
        if matches!(self.call, Call::Due { .. }) {
            self.failed(PullResult::NotSent);
        }
    }

    /// Whether an answer with this token is waited for here.
    #[must_use]
    pub fn is_mine(&self, token: u32) -> bool {
        matches!(self.call, Call::InFlight { token: mine, .. } if mine == token)
    }

    /// The answer to the call with this token. Then [`Client::due`] may have the next one.
    #[allow(clippy::too_many_arguments)] // the shell's whole hand
    pub fn answered(
        &mut self,
        token: u32,
        answer: Answer<'_>,
        index: &mut Index,
        store: &dyn Store,
        fleet: &Fleet,
        keys: &RequestKeys<'_>,
        now_ms: u64,
    ) {
        if !self.is_mine(token) {
            return;
        }
        let Call::InFlight { asked, .. } = std::mem::replace(&mut self.call, Call::None) else {
            return;
        };
        let body = match answer {
            Answer::Http { status: 200, body } => body,
            Answer::Http { status, .. } => {
                if status == 400 {
                    // It may be the cursor. Without one it is right in any case.
                    let _ = index.set_cursor(store, b"");
                }
                self.failed(match status {
                    504 => PullResult::Timeout,
                    _ => PullResult::Status(status),
                });
                return;
            }
            Answer::TooLarge => {
                self.failed(PullResult::Malformed(Malformed::TooLarge));
                return;
            }
            Answer::None => {
                self.failed(PullResult::NoAnswer);
                return;
            }
            Answer::Unreadable => {
                self.failed(PullResult::Unreadable);
                return;
            }
        };
        let page = match page::decode(body) {
            Ok(page) => page,
            Err(why) => {
                self.failed(PullResult::Malformed(why));
                return;
            }
        };
        let pause = self.ticks(MINUTE_MS);
        let applied = Apply {
            config: &self.config,
            index: &mut *index,
            store,
            fleet,
            keys,
            now_ms,
            memory: &mut self.memory,
            events: &mut self.events,
            pause,
        }
        .page(&page, asked);
        match applied {
            Ok(done) => {
                self.events.push(Event::Ingested(done));
                self.applied(&page, asked);
            }
            Err(e) => self.not_applied(e, index, store),
        }
    }

    fn applied(&mut self, page: &Page<'_>, asked: bool) {
        let result = match page.reset && asked {
            true => PullResult::Reset,
            false => PullResult::Ok,
        };
        self.events.push(Event::Pull(result));
        self.failures = 0;
        // A state that changes does not end a wait.
        let settled = page.sections.iter().all(|section| section.live);
        self.wait_ms = self.longest_wait_ms();
        if !settled {
            self.wait_ms = self.wait_ms.min(UNSETTLED_WAIT_MS);
        }
        let empty = page.sections.iter().all(|s| s.records().next().is_none());
        if empty {
            // A bridge that does not wait must not be asked without end.
            self.pause = 1;
        }
    }

    /// The page counts as not read. What of it is stored is found again.
    fn not_applied(&mut self, e: IndexError, index: &mut Index, store: &dyn Store) {
        self.memory.beats.clear();
        if e == IndexError::Superseded {
            // The lease is held: the other one's turn is over.
            index.step_down();
        } else if self.failures >= MAX_STORE_FAILURES {
            let _ = index.set_cursor(store, b"");
        }
        self.failed(PullResult::Index(e));
    }

    fn failed(&mut self, result: PullResult) {
        self.events.push(Event::Pull(result));
        self.back_off();
    }

    fn back_off(&mut self) {
        self.call = Call::None;
        // Nothing was heard of for a while.
        self.wait_ms = 0;
        self.pause = 1u32
            .checked_shl(self.failures)
            .unwrap_or(MAX_PAUSE)
            .clamp(1, MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
    }

    /// So that a quiet engine's sign of life comes well in time.
    fn longest_wait_ms(&self) -> u64 {
        MAX_WAIT_MS.min(self.config.max_silence_ms / 3)
    }

    fn timeout_ms(&self) -> u64 {
        self.longest_wait_ms().saturating_add(ANSWER_MS)
    }

    fn ticks(&self, ms: u64) -> u32 {
        let ticks = ms.div_ceil(self.tick_ms.max(1));
        u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
    }
}

/// A cursor is another program's: only what is unreserved (RFC 3986) stays as it is.
fn percent(text: &[u8], out: &mut String) {
    for byte in text {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}
