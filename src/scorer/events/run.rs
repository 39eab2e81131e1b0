//! Numbers of an engine's runs.
//!
//! Each `start` of a page begins a run with a number that nothing had before, so the index forgets
//! what was before it. The number also says after which cursor the page was asked for. A stream
//! that is found with the mark of the page that is being applied was already moved past a start of
//! it, by an earlier try that then failed for another publisher: the items before the first start
//! are of a process that is gone, and are not for this stream.

use crate::contract::keys::fnv1a64;

const COUNTER_BITS: u32 = 16;

/// What the runs of one page have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark(u64);

impl Mark {
    /// Of the page that follows a cursor.
    pub fn after(cursor: &[u8]) -> Self {
        Self::of(b'a', cursor)
    }

    /// Of a page that begins the log anew. Nothing of it has to be told from an earlier try: it
    /// says everything again.
    pub fn anew(cursor: &str, now_ms: u64) -> Self {
        Self::of(b'n', format!("{cursor} {now_ms}").as_bytes())
    }

    fn of(kind: u8, text: &[u8]) -> Self {
        let hash = fnv1a64(&[&[kind], text].concat());
        // FNV's high bits are the better mixed ones. Never 0: no run is.
        Self((hash >> COUNTER_BITS).max(1))
    }

    pub fn is_of(self, run: u64) -> bool {
        run >> COUNTER_BITS == self.0
    }

    /// The run after `run`, which need not be one of this page.
    pub fn next(self, run: u64) -> u64 {
        let counter = if self.is_of(run) { run as u16 } else { 0 };
        self.0 << COUNTER_BITS | u64::from(counter.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_start_is_another_run() {
        let (a, b) = (Mark::after(b"e-1"), Mark::after(b"e-2"));
        assert_ne!(a, b);
        assert_ne!(a, Mark::anew("e-1", 0));
        assert_ne!(Mark::anew("e-1", 1), Mark::anew("e-1", 0));
        let first = a.next(0);
        assert!(a.is_of(first) && !b.is_of(first) && !a.is_of(0));
        // Again after a failure, or the next start of the page.
        let second = a.next(first);
        assert!(a.is_of(second) && second != first);
        assert_eq!(a.next(b.next(0)), first);
        // Round the counter's end it is still another one than before, and a number.
        let last = first | 0xffff;
        assert!(a.is_of(a.next(last)) && a.next(last) != last);
        assert_ne!(a.next(last), 0);
    }
}
