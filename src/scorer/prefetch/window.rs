//! What was told a short time ago, which is not told again.

use fnv::FnvHashSet;

/// Entries of each half.
const MAX_ENTRIES: usize = 65_536;

/// Two halves of the window, so that what is old is dropped without looking at it: an entry is
/// remembered for half the window at least, and for the whole at most.
#[derive(Debug)]
pub struct Window {
    half_ms: u64,
    /// Random: nobody can choose keys that collide in the table.
    seed: u64,
    current: FnvHashSet<u64>,
    before: FnvHashSet<u64>,
    /// When the current half began.
    since_ms: u64,
}

impl Window {
    pub fn new(window_ms: u64, seed: u64) -> Self {
        Self {
            half_ms: window_ms / 2,
            seed,
            current: FnvHashSet::default(),
            before: FnvHashSet::default(),
            since_ms: 0,
        }
    }

    /// Time goes on. A clock that steps back begins anew.
    pub fn turn(&mut self, now_ms: u64) {
        match now_ms.checked_sub(self.since_ms) {
            Some(age) if age < self.half_ms => return,
            Some(age) if age < self.half_ms.saturating_mul(2) => self.push_back(),
            _ => {
                self.current.clear();
                self.before.clear();
            }
        }
        self.since_ms = now_ms;
    }

    pub fn has(&self, key: u64) -> bool {
        let key = self.mixed(key);
        self.current.contains(&key) || self.before.contains(&key)
    }

    pub fn note(&mut self, key: u64) {
        if self.current.len() >= MAX_ENTRIES {
            self.push_back();
        }
        self.current.insert(self.mixed(key));
    }

    fn push_back(&mut self) {
        std::mem::swap(&mut self.current, &mut self.before);
        self.current.clear();
    }

    /// The finaliser of MurmurHash3: every bit of the key and of the seed counts in every bit.
    fn mixed(&self, key: u64) -> u64 {
        let mut mixed = key ^ self.seed;
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            mixed = (mixed ^ (mixed >> 33)).wrapping_mul(factor);
        }
        mixed ^ (mixed >> 33)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const T0: u64 = 1_795_952_365_000;

    /// given: a key noted at 0 s in a window of 10 s; then: whether it is known at a time (ms)
    #[test]
    fn a_key_is_known_for_the_window() {
        for (at, known) in [(0, true), (4_999, true), (9_999, true), (10_000, false)] {
            let mut window = Window::new(10_000, 7);
            window.turn(T0);
            window.note(1);
            window.turn(T0 + at);
            assert_eq!(window.has(1), known, "{at}");
            assert!(!window.has(2));
        }
        // Noted late in a half, it goes with that half.
        for (at, known) in [(9_000, true), (9_999, true), (14_000, false)] {
            let mut window = Window::new(10_000, 7);
            for now in [0, 4_900] {
                window.turn(T0 + now);
            }
            window.note(1);
            window.turn(T0 + 5_000);
            window.turn(T0 + at);
            assert_eq!(window.has(1), known, "{at}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_begins_anew() {
        let mut window = Window::new(10_000, 7);
        window.turn(T0);
        window.note(1);
        window.turn(T0 - 1);
        assert!(!window.has(1));
        window.note(1);
        window.turn(T0 + 4_998);
        assert!(window.has(1));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let mut window = Window::new(10_000, 7);
        window.turn(T0);
        for key in 0..200_000 {
            window.note(key);
        }
        assert!(window.current.len() + window.before.len() <= 2 * MAX_ENTRIES);
        assert!(window.has(199_999) && !window.has(0));
    }
}
