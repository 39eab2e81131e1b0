//! When a quiet publisher's heartbeat is worth a write.

use crate::sorted::SortedMap;

/// A heart is written this many times within the longest silence.
const BEATS: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Beat {
    heard_ms: Option<u64>,
    behind: bool,
}

/// What this VM wrote last, by publisher.
#[derive(Debug, Default)]
pub(super) struct Beats {
    written: SortedMap<String, Beat>,
}

impl Beats {
    pub fn is_due(
        &self,
        publisher: &str,
        heard_ms: Option<u64>,
        behind: bool,
        max_silence_ms: u64,
    ) -> bool {
        let Some(last) = self.written.get(publisher) else {
            return true;
        };
        let moved = match (last.heard_ms, heard_ms) {
            (_, None) => false,
            (None, Some(_)) => true,
            // A clock that stepped back counts too.
            (Some(last), Some(now)) => now.abs_diff(last) >= max_silence_ms / BEATS,
        };
        moved || last.behind != behind
    }

    pub fn written(&mut self, publisher: &str, heard_ms: Option<u64>, behind: bool) {
        let beat = Beat { heard_ms, behind };
        match self.written.get_mut(publisher) {
            Some(last) => *last = beat,
            None => {
                self.written.insert(publisher.to_owned(), beat);
            }
        }
    }

    pub fn forget(&mut self, publisher: &str) {
        self.written.remove(publisher);
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.written.retain(|publisher, _| keep(publisher));
    }

    pub fn clear(&mut self) {
        self.written.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_heart_that_beats_is_written_now_and_then() {
        let mut beats = Beats::default();
        let due = |beats: &Beats, heard, behind| beats.is_due("a", heard, behind, 8_000);
        assert!(due(&beats, None, false));
        beats.written("a", Some(10_000), false);
        for (heard, behind, expected) in [
            (Some(10_999), false, false),
            (Some(11_000), false, true),
            (Some(9_000), false, true),
            // The engine is silent: its time stands still.
            (Some(10_000), false, false),
            (None, false, false),
            (None, true, true),
        ] {
            assert_eq!(due(&beats, heard, behind), expected, "{heard:?} {behind}");
        }
        beats.written("a", None, true);
        assert!(due(&beats, Some(1), true) && !due(&beats, None, true));
        beats.retain(|publisher| publisher != "a");
        assert!(due(&beats, None, true));
    }
}
