//! Which engines started anew, as far as their records show: the process has a later start, a store
//! counter went back, or the version is another.

use crate::sorted::SortedMap;

use crate::contract::queue::QueueEntry;
use crate::contract::stores::StoreSample;

/// Endpoints looked at; past this all are seen for the first time again.
const MAX_KNOWN: usize = 4096;

#[derive(Debug, Default)]
pub struct Restarts {
    known: SortedMap<String, Known>,
}

#[derive(Debug, Default)]
struct Known {
    version: Option<String>,
    /// The latest one.
    started_ms: Option<u64>,
    /// The newest sample of each tier.
    newest: SortedMap<String, StoreSample>,
}

impl Restarts {
    /// True if the engine is not the one that the last look saw.
    pub fn see(&mut self, endpoint: &str, entry: &QueueEntry) -> bool {
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(endpoint) {
            self.known.clear();
        }
        let known = self.known.entry(endpoint.to_owned()).or_default();
        let mut restarted = false;
        if let Some(version) = &entry.version
            && known.version.as_ref() != Some(version)
        {
            restarted |= known.version.is_some();
            known.version = Some(version.clone());
        }
        // Only forwards: where two records disagree, each look would find another start.
        if let Some(started_ms) = entry.started_ms
            && known.started_ms.is_none_or(|known| known < started_ms)
        {
            restarted |= known.started_ms.is_some();
            known.started_ms = Some(started_ms);
        }
        let newest = entry
            .stores
            .iter()
            .filter_map(|(tier, history)| Some((tier.clone(), *history.last()?)));
        let newest: SortedMap<String, StoreSample> = newest.collect();
        restarted |= newest.iter().any(|(tier, now)| {
            let before = known.newest.get(tier);
            before.is_some_and(|before| {
                before.t_ms < now.t_ms && now.counters.restarted_since(&before.counters)
            })
        });
        known.newest = newest;
        restarted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::stores::Counters;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn entry(version: Option<&str>, stores: &[(&str, u64, f64)]) -> QueueEntry {
        let sample = |t_ms, bytes| StoreSample {
            t_ms,
            counters: Counters {
                bytes,
                seconds: 1.0,
                ema: None,
            },
        };
        let stores = stores.iter();
        QueueEntry {
            version: version.map(str::to_owned),
            stores: stores
                .map(|(tier, t_ms, bytes)| ((*tier).to_owned(), vec![sample(*t_ms, *bytes)]))
                .collect(),
            ..QueueEntry::default()
        }
    }

    #[test]
    fn signs_of_a_restart() {
        let mut restarts = Restarts::default();
        for (version, stores, restarted) in [
            (None, &[][..], false),
            (Some("0.32.0"), &[("fs", 1, 5.0)][..], false),
            (Some("0.32.0"), &[("fs", 2, 5.0)], false),
            (Some("0.32.0"), &[("fs", 3, 4.0)], true),
            (Some("0.32.0"), &[("fs", 3, 4.0)], false),
            // An older sample is an older record.
            (Some("0.32.0"), &[("fs", 2, 3.0)], false),
            (None, &[("fs", 4, 6.0), ("cpu", 4, 1.0)], false),
            (Some("0.33.0"), &[("fs", 5, 6.0)], true),
            (Some("0.33.0"), &[("cpu", 6, 0.0)], false),
        ] {
            assert_eq!(
                restarts.see("a", &entry(version, stores)),
                restarted,
                "{version:?} {stores:?}"
            );
            assert!(!restarts.see("b", &entry(Some("0.32.0"), &[])));
        }
    }

    #[test]
    fn a_later_start_of_the_process_is_a_restart() {
        let mut restarts = Restarts::default();
        for (started_ms, restarted) in [
            (None, false),
            (Some(5), false),
            (Some(5), false),
            (None, false),
            (Some(9), true),
            (Some(9), false),
            // Two records disagree, or a clock stepped back.
            (Some(5), false),
            (Some(9), false),
            (Some(5), false),
            (Some(10), true),
        ] {
            let entry = QueueEntry {
                started_ms,
                ..QueueEntry::default()
            };
            assert_eq!(restarts.see("a", &entry), restarted, "{started_ms:?}");
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_known() {
        let mut restarts = Restarts::default();
        for i in 0..10_000 {
            restarts.see(&i.to_string(), &entry(Some("0.32.0"), &[]));
            assert!(restarts.known.len() <= MAX_KNOWN);
        }
    }
}
