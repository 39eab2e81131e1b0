//! What is delivered of a stream, and what came of it.

use crate::scorer::kv_events::Stored;

/// The request keys of an event's blocks, which follow the block with this request key (none: they
/// begin a prompt): appended to the list, one for each block. Where the engine's keys are the
/// request's own: each that a prompt's first block may have. False if they cannot be told (an extra
/// key of an unknown kind, an adapter without what its hash needs).
pub type RequestKeys<'a> = dyn Fn(Option<u64>, &Stored<'_>, &mut Vec<u64>) -> bool + 'a;

/// News of one endpoint's stream.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// By [`super::publisher`]: an endpoint, a rank of one, or a publisher of shared tiers that is
    /// no endpoint.
    pub publisher: &'a str,
    /// Endpoints of one group run the same model the same way.
    pub group: &'a str,
    /// A number, not 0, for this run of the engine. With another one the engine is another process,
    /// or its stream is told anew from its start: what was known does not count any more.
    pub run: u64,
    /// When the engine was last heard of, Unix ms; `None`: as before.
    pub heard_ms: Option<u64>,
    /// The engine has published more than this, or may have.
    pub behind: bool,
    /// In order.
    pub items: &'a [Item<'a>],
}

/// One item of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The engine's payload number `seq`.
    Payload { seq: u64, bytes: &'a [u8] },
    /// The payloads before `next` are lost, or nobody can vouch that none is.
    Lost { next: u64 },
    /// The engine has published nothing before `next`, or nothing that was not delivered: a replay
    /// from 0 said so. Without it a stream that begins later than 0, or not at all, is not whole.
    FromStart,
}

/// What came of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ingested {
    /// Payloads applied; those that were applied before.
    pub payloads: u32,
    pub duplicates: u32,
    /// Events that count.
    pub events: u32,
    /// Events of other cache groups, and of types unknown to this version.
    pub ignored: u32,
    /// Events whose blocks could not be told.
    pub unresolved: u32,
    /// Payloads and events that could not be read.
    pub unreadable: u32,
    /// Blocks in stored and removed events that count.
    pub stored: u32,
    pub removed: u32,
    /// Blocks that had to give way.
    pub evicted: u32,
    /// Times the engine's stream began again.
    pub restarted: u32,
    /// Payloads were missed.
    pub gaps: u32,
    /// Blocks that the engine calls otherwise than they should be.
    pub mismatches: u32,
}

impl Ingested {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = u32::saturating_add;
        Self {
            payloads: sum(self.payloads, other.payloads),
            duplicates: sum(self.duplicates, other.duplicates),
            events: sum(self.events, other.events),
            ignored: sum(self.ignored, other.ignored),
            unresolved: sum(self.unresolved, other.unresolved),
            unreadable: sum(self.unreadable, other.unreadable),
            stored: sum(self.stored, other.stored),
            removed: sum(self.removed, other.removed),
            evicted: sum(self.evicted, other.evicted),
            restarted: sum(self.restarted, other.restarted),
            gaps: sum(self.gaps, other.gaps),
            mismatches: sum(self.mismatches, other.mismatches),
        }
    }
}
