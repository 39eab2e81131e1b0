//! What storing costs an endpoint, tier by tier: `"stores"` of a queue record's entry.
//!
//! The counters are the engine's own and only grow, so a reader that missed samples still has the
//! exact sums between the two that it saw.

use crate::sorted::SortedMap;

use super::cbor::{Item, Kind, Map, Out};

/// Samples of one tier that count, and that a writer keeps.
pub const MAX_SAMPLES: usize = 16;
/// Tiers of one endpoint that count, and that a writer keeps.
pub const MAX_TIERS: usize = 8;
/// Longest name of a tier, bytes.
pub const MAX_TIER_BYTES: usize = 64;

/// A tier's store counters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counters {
    /// Bytes stored since the engine started; finite and not negative.
    pub bytes: f64,
    /// Seconds that storing them took; finite and not negative.
    pub seconds: f64,
    /// The engine's own moving average of the cost, seconds per MiB, if it publishes one.
    pub ema: Option<f64>,
}

/// The counters at one time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StoreSample {
    /// Unix ms.
    pub t_ms: u64,
    pub counters: Counters,
}

/// By the tier's name; each ascending in time, at most the newest [`MAX_SAMPLES`].
pub type Stores = SortedMap<String, Vec<StoreSample>>;

impl Counters {
    fn is_sound(&self) -> bool {
        let sound = |x: f64| x.is_finite() && x >= 0.0;
        sound(self.bytes) && sound(self.seconds) && self.ema.is_none_or(sound)
    }

    /// The engine started anew: a counter went back.
    pub fn restarted_since(&self, before: &Self) -> bool {
        self.bytes < before.bytes || self.seconds < before.seconds
    }
}

/// Reads `"stores"`, and how much of it is none: no map of arrays, no
/// `[t, bytes, seconds]` (or with the average as a fourth), a history out of order.
pub(super) fn decode(item: Option<Item<'_>>) -> (Stores, u32) {
    let mut stores = Stores::new();
    let mut invalid = 0u32;
    let Some(item) = item else {
        return (stores, 0);
    };
    let Some(tiers) = item.map() else {
        return (stores, 1);
    };
    for (name, samples) in tiers.iter() {
        let Some(name) = name.text().filter(|n| n.len() <= MAX_TIER_BYTES) else {
            continue;
        };
        if stores.len() >= MAX_TIERS && !stores.contains_key(name.as_ref()) {
            break;
        }
        match history(samples, &mut invalid) {
            Some(history) if !history.is_empty() => {
                stores.insert(name.into_owned(), history);
            }
            Some(_) => {}
            None => invalid = invalid.saturating_add(1),
        }
    }
    (stores, invalid)
}

/// None: no array, or out of order.
fn history(item: Item<'_>, invalid: &mut u32) -> Option<Vec<StoreSample>> {
    let mut history: Vec<StoreSample> = Vec::new();
    for item in item.array()?.iter() {
        match sample(item) {
            None => *invalid = invalid.saturating_add(1),
            Some(sample) => match history.last() {
                Some(last) if sample.t_ms < last.t_ms => return None,
                Some(last) if sample.t_ms == last.t_ms => {}
                _ => history.push(sample),
            },
        }
    }
    history.drain(..history.len().saturating_sub(MAX_SAMPLES));
    Some(history)
}

fn sample(item: Item<'_>) -> Option<StoreSample> {
    let mut items = item.array()?.iter();
    let t_ms = items.next()?.uint()?;
    let counters = Counters {
        bytes: number(items.next()?)?,
        seconds: number(items.next()?)?,
        ema: match items.next() {
            Some(ema) => Some(number(ema)?),
            None => None,
        },
    };
    (items.next().is_none() && counters.is_sound()).then_some(StoreSample { t_ms, counters })
}

fn number(item: Item<'_>) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)] // 2⁵³ bytes are 9 PB
    match item.kind() {
        Kind::Uint(n) => Some(n as f64),
        Kind::Float(x) => Some(x),
        _ => None,
    }
}

/// The new value of `"stores"`, and of how many tiers: `measured` at `t_ms` added to what `old`
/// says of those tiers. Tiers that were not measured go: the engine has them no more.
pub(super) fn merged(
    old: Option<Item<'_>>,
    measured: &[(String, Counters)],
    t_ms: u64,
) -> Option<Out> {
    let before = old.and_then(Item::map).unwrap_or(Map::EMPTY);
    let mut all = SortedMap::new();
    for (name, counters) in measured {
        if all.len() >= MAX_TIERS || name.len() > MAX_TIER_BYTES || !counters.is_sound() {
            continue;
        }
        let old = before.get(name).and_then(|item| history(item, &mut 0));
        let counters = *counters;
        all.insert(
            name.as_str(),
            push(old.unwrap_or_default(), StoreSample { t_ms, counters }),
        );
    }
    if all.is_empty() {
        return None;
    }
    let mut out = Out::default();
    out.map(all.len());
    for (name, samples) in all {
        out.text(name).array(samples.len());
        for StoreSample { t_ms, counters } in samples {
            out.array(if counters.ema.is_some() { 4 } else { 3 });
            out.uint(t_ms);
            super::queue::write_number(&mut out, counters.bytes);
            super::queue::write_number(&mut out, counters.seconds);
            if let Some(ema) = counters.ema {
                super::queue::write_number(&mut out, ema);
            }
        }
    }
    Some(out)
}

/// A run of samples without a change is kept as its first and its last one, so that the history
/// reaches back over as many changes as it can and a reader still sees how long nothing was stored.
fn push(mut history: Vec<StoreSample>, new: StoreSample) -> Vec<StoreSample> {
    // Not the same engine any more, or not the same clock.
    let anew = history
        .last()
        .is_some_and(|last| new.counters.restarted_since(&last.counters) || new.t_ms <= last.t_ms);
    if anew {
        history.clear();
    }
    let still = match history.as_slice() {
        [.., first, last] => first.counters == last.counters && last.counters == new.counters,
        _ => false,
    };
    if still {
        history.pop();
    }
    history.push(new);
    history.drain(..history.len().saturating_sub(MAX_SAMPLES));
    history
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::cbor::from_json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(json: &str) -> (Stores, u32) {
        let bytes = from_json(json);
        decode(Item::parse(&bytes))
    }

    fn counters(bytes: f64, seconds: f64, ema: Option<f64>) -> Counters {
        Counters {
            bytes,
            seconds,
            ema,
        }
    }

    fn sample(t_ms: u64, bytes: f64, seconds: f64, ema: Option<f64>) -> StoreSample {
        let counters = counters(bytes, seconds, ema);
        StoreSample { t_ms, counters }
    }

    #[test]
    fn samples_that_count() {
        type Row = (&'static str, Vec<StoreSample>, u32);
        let table: Vec<Row> = vec![
            ("[]", vec![], 0),
            (
                "[[1,0,0],[2,1048576,0.5,0.25]]",
                vec![
                    sample(1, 0.0, 0.0, None),
                    sample(2, 1_048_576.0, 0.5, Some(0.25)),
                ],
                0,
            ),
            // Not one: counted, the others stay.
            (
                "[[1,2,3],[2,2],[3,-1,1],[4,1,-1],[5,1,1,-1],[6,1,1,null],[7,1,1,1,1],7,[-8,1,1]]",
                vec![sample(1, 2.0, 3.0, None)],
                8,
            ),
            // Of one time the first; out of order none at all.
            ("[[1,2,3],[1,9,9]]", vec![sample(1, 2.0, 3.0, None)], 0),
            ("[[2,2,3],[1,9,9]]", vec![], 1),
            ("{}", vec![], 1),
            // A restarted engine is the reader's to see.
            (
                "[[1,9,9],[2,1,1]]",
                vec![sample(1, 9.0, 9.0, None), sample(2, 1.0, 1.0, None)],
                0,
            ),
        ];
        for (json, expected, invalid) in table {
            let (mut stores, found) = read(&format!(r#"{{"fs":{json}}}"#));
            assert_eq!(stores.remove("fs").unwrap_or_default(), expected, "{json}");
            assert_eq!(found, invalid, "{json}");
        }
        assert_eq!(read("7"), (Stores::new(), 1));
        assert_eq!(decode(None), (Stores::new(), 0));
    }

    #[test]
    fn what_is_too_much_does_not_count() {
        let tiers: Vec<String> = (0..12).map(|i| format!(r#""t{i:02}":[[1,1,1]]"#)).collect();
        let (stores, _) = read(&format!("{{{}}}", tiers.join(",")));
        assert_eq!(stores.len(), MAX_TIERS);
        let samples: Vec<String> = (0..40).map(|i| format!("[{i},{i},{i}]")).collect();
        let (stores, _) = read(&format!(r#"{{"fs":[{}]}}"#, samples.join(",")));
        let times: Vec<u64> = stores.get("fs").unwrap().iter().map(|s| s.t_ms).collect();
        assert_eq!(times, (24..40).collect::<Vec<u64>>());
        let long = "x".repeat(65);
        assert_eq!(read(&format!(r#"{{"{long}":[[1,1,1]]}}"#)).0.len(), 0);
    }

    /// What a writer makes of these, one after the other, from an old value.
    fn written(old: &str, pushes: &[(u64, Counters)]) -> Vec<StoreSample> {
        let mut bytes = from_json(old);
        for (t_ms, counters) in pushes {
            let measured = [("fs".to_owned(), *counters)];
            let out = merged(Item::parse(&bytes), &measured, *t_ms).unwrap();
            bytes = out.as_slice().to_vec();
        }
        let (mut stores, invalid) = decode(Item::parse(&bytes));
        assert_eq!((stores.len(), invalid), (1, 0));
        stores.remove("fs").unwrap()
    }

    #[test]
    fn a_history_as_a_writer_keeps_it() {
        let c = |bytes| counters(bytes, 1.0, None);
        // An idle run is its first and its last sample.
        let pushes = [
            (1, c(1.0)),
            (2, c(1.0)),
            (3, c(1.0)),
            (4, c(2.0)),
            (5, c(2.0)),
        ];
        let times: Vec<u64> = written("{}", &pushes).iter().map(|s| s.t_ms).collect();
        assert_eq!(times, [1, 3, 4, 5]);
        // A change of the engine's average is a change.
        let pushes = [
            (1, counters(1.0, 1.0, Some(0.5))),
            (2, counters(1.0, 1.0, Some(0.25))),
            (3, counters(1.0, 1.0, Some(0.25))),
            (4, counters(1.0, 1.0, Some(0.25))),
        ];
        let times: Vec<u64> = written("{}", &pushes).iter().map(|s| s.t_ms).collect();
        assert_eq!(times, [1, 2, 4]);
        // A counter that went back, or a clock: afresh.
        let restarted = written("{}", &[(1, c(5.0)), (2, c(4.0))]);
        assert_eq!(restarted, [sample(2, 4.0, 1.0, None)]);
        let stepped = written("{}", &[(9, c(5.0)), (2, c(6.0))]);
        assert_eq!(stepped, [sample(2, 6.0, 1.0, None)]);
        // What does not count in the old value goes, other tiers too.
        let kept = written(
            r#"{"fs":[[1,1,1],7,[2,2,1]],"obj":[[1,1,1]],"cpu":7}"#,
            &[(3, c(3.0))],
        );
        assert_eq!(kept.len(), 3);
        let pushes: Vec<(u64, Counters)> = (0..40u32)
            .map(|i| (u64::from(i), c(f64::from(i))))
            .collect();
        assert_eq!(written("{}", &pushes).len(), MAX_SAMPLES);
    }

    #[test]
    fn nothing_measured_that_counts_is_nothing_to_write() {
        assert!(merged(None, &[], 1).is_none());
        let nan = [("fs".to_owned(), counters(f64::NAN, 1.0, None))];
        assert!(merged(None, &nan, 1).is_none());
        let endless = [("fs".to_owned(), counters(1.0, 1.0, Some(f64::INFINITY)))];
        assert!(merged(None, &endless, 1).is_none());
    }
}
