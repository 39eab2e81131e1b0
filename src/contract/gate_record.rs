//! The policy's private record of gate states, `selective-kv/1/gate/<bucket of endpoint>`.
//!
//! Read and written on the request path, so it is a flat binary form: one version byte, then
//! entries of `u16 length, endpoint, 4 × u64 gate, u64 last_ms, f64 ewma, u8 closed`, little
//! endian. Nobody else may rely on it.

use crate::sorted::{SortedMap, sort_by};

use super::{MAX_VALUE_BYTES, Malformed};

const FORMAT: u8 = 1;

/// States kept in one bucket; the ones not fed for longest give way. At most about half of
/// [`MAX_VALUE_BYTES`] with endpoint names of usual length.
pub const MAX_STATES: usize = 1024;

/// Longest endpoint name stored, in bytes; a longer one is left out.
const MAX_ENDPOINT_BYTES: usize = 128;

/// Identity of a gate: the four parameters that make it one (DESIGN 6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GateId {
    /// Requests.
    pub max_waiting: u64,
    pub half_life_ms: u64,
    /// `f64::to_bits` of the ratio.
    pub reopen_ratio_bits: u64,
    pub max_sample_age_ms: u64,
}

/// State of one gate at one endpoint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct State {
    /// Time of the last sample consumed, Unix ms.
    pub last_ms: u64,
    /// Requests; finite and not negative.
    pub ewma: f64,
    pub closed: bool,
}

/// All states of one bucket.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GateRecord {
    states: SortedMap<String, SortedMap<GateId, State>>,
}

impl GateRecord {
    /// An empty value is an empty record.
    ///
    /// # Errors
    /// Whatever this version did not write; start afresh then.
    pub fn decode(value: &[u8]) -> Result<Self, Malformed> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(Malformed::TooLarge);
        }
        let mut record = Self::default();
        let Some((&format, mut rest)) = value.split_first() else {
            return Ok(record);
        };
        if format != FORMAT {
            return Err(Malformed::Version);
        }
        let mut count = 0usize;
        while !rest.is_empty() {
            count = count.saturating_add(1);
            if count > MAX_STATES {
                return Err(Malformed::TooLarge);
            }
            let (endpoint, id, state) = entry(&mut rest).ok_or(Malformed::Shape)?;
            record.set(endpoint, id, state);
        }
        Ok(record)
    }

    /// Deterministic, and within the size limit: of more than [`MAX_STATES`] the ones not fed
    /// for longest are left out. So is a state that `decode` would refuse: it would take the
    /// whole bucket with it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut all: Vec<(&str, &GateId, &State)> = self
            .states
            .iter()
            .filter(|(endpoint, _)| endpoint.len() <= MAX_ENDPOINT_BYTES)
            .flat_map(|(endpoint, gates)| {
                gates
                    .iter()
                    .map(|(id, state)| (endpoint.as_str(), id, state))
            })
            .filter(|(_, _, state)| sound(state.ewma))
            .collect();
        if all.len() > MAX_STATES {
            sort_by(&mut all, |(.., a), (.., b)| b.last_ms.cmp(&a.last_ms));
            all.truncate(MAX_STATES);
            sort_by(&mut all, |a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        }
        let mut out = vec![FORMAT];
        for (endpoint, id, state) in all {
            let Ok(len) = u16::try_from(endpoint.len()) else {
                continue;
            };
            out.extend(len.to_le_bytes());
            out.extend(endpoint.as_bytes());
            for word in [
                id.max_waiting,
                id.half_life_ms,
                id.reopen_ratio_bits,
                id.max_sample_age_ms,
                state.last_ms,
                state.ewma.to_bits(),
            ] {
                out.extend(word.to_le_bytes());
            }
            out.push(u8::from(state.closed));
        }
        out
    }

    #[must_use]
    pub fn get(&self, endpoint: &str, id: &GateId) -> Option<State> {
        self.states.get(endpoint)?.get(id).copied()
    }

    pub fn set(&mut self, endpoint: &str, id: GateId, state: State) {
        match self.states.get_mut(endpoint) {
            Some(gates) => {
                gates.insert(id, state);
            }
            None => {
                let mut gates = SortedMap::new();
                gates.insert(id, state);
                self.states.insert(endpoint.to_owned(), gates);
            }
        }
    }

    /// Drops one gate's state; true if there was one.
    pub fn remove(&mut self, endpoint: &str, id: &GateId) -> bool {
        let Some(gates) = self.states.get_mut(endpoint) else {
            return false;
        };
        let removed = gates.remove(id).is_some();
        if gates.is_empty() {
            self.states.remove(endpoint);
        }
        removed
    }

    /// Drops all states of an endpoint; true if there were any.
    pub fn remove_endpoint(&mut self, endpoint: &str) -> bool {
        self.states.remove(endpoint).is_some()
    }

    /// Keeps what `keep` wants; true if anything went.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &GateId, &State) -> bool) -> bool {
        let mut dropped = false;
        self.states.retain(|endpoint, gates| {
            gates.retain(|id, state| {
                let kept = keep(endpoint, id, state);
                dropped |= !kept;
                kept
            });
            !gates.is_empty()
        });
        dropped
    }

    /// Every state, by endpoint and gate.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GateId, &State)> {
        self.states.iter().flat_map(|(endpoint, gates)| {
            gates
                .iter()
                .map(|(id, state)| (endpoint.as_str(), id, state))
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }
}

/// Takes one entry off the front.
fn entry<'a>(rest: &mut &'a [u8]) -> Option<(&'a str, GateId, State)> {
    let len = u16::from_le_bytes(*take(rest)?);
    let (endpoint, after) = rest.split_at_checked(usize::from(len))?;
    *rest = after;
    let mut word = || Some(u64::from_le_bytes(*take(rest)?));
    let id = GateId {
        max_waiting: word()?,
        half_life_ms: word()?,
        reopen_ratio_bits: word()?,
        max_sample_age_ms: word()?,
    };
    let last_ms = word()?;
    let ewma = f64::from_bits(word()?);
    let closed = match *take(rest)? {
        [0] => false,
        [1] => true,
        _ => return None,
    };
    let state = State {
        last_ms,
        ewma,
        closed,
    };
    sound(ewma).then_some((std::str::from_utf8(endpoint).ok()?, id, state))
}

fn sound(ewma: f64) -> bool {
    ewma.is_finite() && ewma >= 0.0
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ID: GateId = GateId {
        max_waiting: 8,
        half_life_ms: 2000,
        reopen_ratio_bits: 0x3fe0_0000_0000_0000, // 0.5
        max_sample_age_ms: 10_000,
    };

    fn state(last_ms: u64) -> State {
        State {
            last_ms,
            ewma: 5.656_854_249_492_381,
            closed: true,
        }
    }

    fn one() -> GateRecord {
        let mut record = GateRecord::default();
        record.set("10.0.0.7:8000", ID, state(1_000));
        record
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut record = one();
        record.set("[::1]:8000", ID, state(2_000));
        let other = GateId {
            max_waiting: 9,
            ..ID
        };
        record.set("10.0.0.7:8000", other, state(3_000));
        let back = GateRecord::decode(&record.encode()).unwrap();
        assert_eq!(back, record);
        assert_eq!(back.get("10.0.0.7:8000", &ID), Some(state(1_000)));
        assert_eq!(back.get("10.0.0.7:8000", &other), Some(state(3_000)));
        assert_eq!(back.get("10.0.0.8:8000", &ID), None);
        assert_eq!(back.iter().count(), 3);
        assert_eq!(GateRecord::decode(b""), Ok(GateRecord::default()));
    }

    #[test]
    fn states_can_be_dropped() {
        let mut record = one();
        assert!(!record.remove("10.0.0.8:8000", &ID));
        assert!(record.remove("10.0.0.7:8000", &ID));
        assert!(record.is_empty());
        let mut record = one();
        assert!(!record.retain(|_, _, _| true));
        assert!(record.retain(|endpoint, _, _| endpoint != "10.0.0.7:8000"));
        assert!(record.is_empty());
        let mut record = one();
        assert!(record.remove_endpoint("10.0.0.7:8000"));
        assert!(!record.remove_endpoint("10.0.0.7:8000"));
    }

    #[test]
    fn anything_else_is_malformed() {
        let good = one().encode();
        assert_eq!(good.len(), 1 + 2 + 13 + 6 * 8 + 1);
        for cut in 2..good.len() {
            assert_eq!(
                GateRecord::decode(&good[..cut]),
                Err(Malformed::Shape),
                "{cut}"
            );
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            GateRecord::decode(&bytes)
        };
        assert_eq!(with(0, 2), Err(Malformed::Version));
        assert_eq!(with(3, 0xff), Err(Malformed::Shape)); // not UTF-8
        assert_eq!(with(good.len() - 1, 2), Err(Malformed::Shape)); // closed
        assert_eq!(with(good.len() - 2, 0xc0), Err(Malformed::Shape)); // negative
        let large = vec![FORMAT; MAX_VALUE_BYTES + 1];
        assert_eq!(GateRecord::decode(&large), Err(Malformed::TooLarge));
        let entry = &one().encode()[1..];
        let many = |n| [&[FORMAT], entry.repeat(n).as_slice()].concat();
        assert_eq!(GateRecord::decode(&many(MAX_STATES)), Ok(one()));
        let more = many(MAX_STATES + 1);
        assert_eq!(GateRecord::decode(&more), Err(Malformed::TooLarge));
        let mut nan = one();
        nan.set(
            "x",
            ID,
            State {
                ewma: f64::NAN,
                ..state(1)
            },
        );
        assert_eq!(GateRecord::decode(&nan.encode()), Ok(one()));
    }

    #[test]
    fn a_full_bucket_keeps_the_states_fed_last() {
        let mut record = GateRecord::default();
        for i in 0..2_000u64 {
            record.set(&format!("{i}:{}", "x".repeat(100)), ID, state(i));
        }
        record.set(&"x".repeat(129), ID, state(9_999));
        let bytes = record.encode();
        assert!(bytes.len() <= MAX_VALUE_BYTES);
        let back = GateRecord::decode(&bytes).unwrap();
        assert_eq!(back.iter().count(), MAX_STATES);
        assert_eq!(back.iter().map(|(_, _, s)| s.last_ms).min(), Some(976));
    }
}
