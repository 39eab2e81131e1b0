//! Who scores which endpoints, `selective-kv/1/members`. Each writer owns one entry.

use crate::sorted::{SortedMap, SortedSet};
use std::borrow::Cow;

use super::Malformed;
use super::cbor::{self, Item, Map, Out};

/// A writer counts while its entry is at most this old, ms.
pub const FRESH_MS: u64 = 60_000;
/// Writers drop entries older than this, ms.
pub const KEEP_MS: u64 = 600_000;
/// Most writers in the record.
pub const MAX_WRITERS: usize = 16;

/// One writer's entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Writer {
    /// When it was written, Unix ms.
    pub t_ms: u64,
    /// The endpoints it scores, `ip:port`.
    pub endpoints: SortedSet<String>,
}

impl Writer {
    /// At most 60 s old. An entry from the future by more than that is as wrong as an old one.
    fn is_fresh(&self, now_ms: u64) -> bool {
        self.t_ms.abs_diff(now_ms) <= FRESH_MS
    }
}

/// The members record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    writers: SortedMap<String, Writer>,
    /// Entries that are malformed; they do not count as writers.
    pub invalid: u32,
}

impl Members {
    /// An empty value is a record without writers.
    ///
    /// # Errors
    /// [`Malformed`] for the value as a whole; a bad entry is only counted in `invalid`.
    pub fn decode(value: &[u8]) -> Result<Self, Malformed> {
        if value.is_empty() {
            return Ok(Self::default());
        }
        let record = cbor::record(value)?;
        let entries = record.get("writers").and_then(Item::map);
        let mut invalid = 0u32;
        let writers = entries.ok_or(Malformed::Shape)?.iter();
        let writers = writers.filter_map(|(name, entry)| {
            let both = name.text().zip(writer(entry));
            invalid = invalid.saturating_add(u32::from(both.is_none()));
            both.map(|(name, writer)| (name.into_owned(), writer))
        });
        Ok(Self {
            writers: writers.collect(),
            invalid,
        })
    }

    /// At least one fresh writer, and none of them lists the endpoint.
    #[must_use]
    pub fn is_unlisted(&self, endpoint: &str, now_ms: u64) -> bool {
        let mut fresh = self.fresh(now_ms).peekable();
        fresh.peek().is_some() && !fresh.any(|w| w.endpoints.contains(endpoint))
    }

    /// Every endpoint that fresh writers list; `None` without a fresh writer (then every endpoint
    /// counts).
    #[must_use]
    pub fn listed(&self, now_ms: u64) -> Option<SortedSet<&str>> {
        let mut fresh = self.fresh(now_ms).peekable();
        fresh.peek()?;
        let listed = fresh.flat_map(|w| w.endpoints.iter().map(String::as_str));
        Some(listed.collect())
    }

    /// All writers, fresh or not, by name.
    #[must_use]
    pub const fn writers(&self) -> &SortedMap<String, Writer> {
        &self.writers
    }

    fn fresh(&self, now_ms: u64) -> impl Iterator<Item = &Writer> {
        self.writers.values().filter(move |w| w.is_fresh(now_ms))
    }
}

fn writer(entry: Item<'_>) -> Option<Writer> {
    let fields = entry.map()?;
    let endpoints = fields.get("endpoints")?.array()?;
    Some(Writer {
        t_ms: fields.get("t")?.uint()?,
        endpoints: endpoints
            .iter()
            .map(|e| e.text().map(Cow::into_owned))
            .collect::<Option<_>>()?,
    })
}

/// The record with this writer's entry set, ready for compare-and-swap; `None` if there is no
/// room: 16 other writers are fresh, or the value would be too large. (A 17th that pushed one
/// out would make that one's endpoints unlisted, in turns.)
///
/// Other writers' entries and unknown keys stay as they are, except that entries more than 10
/// minutes from `now_ms` either way, or malformed ones (no time to age by), are dropped. So is the
/// oldest one that is no longer fresh, if room is needed. A malformed `old` is replaced.
#[must_use]
pub fn upsert_writer<E: AsRef<str>>(
    old: Option<&[u8]>,
    name: &str,
    endpoints: &[E],
    now_ms: u64,
) -> Option<Vec<u8>> {
    let record = cbor::old_record(old);
    let mut others = kept(record, name, now_ms);
    let endpoints: SortedSet<&str> = endpoints.iter().map(AsRef::as_ref).collect();
    let mut own = Out::default();
    own.map(2).text("t").uint(now_ms);
    own.text("endpoints").array(endpoints.len());
    for endpoint in endpoints {
        own.text(endpoint);
    }
    loop {
        if others.len() < MAX_WRITERS {
            let mut all = others.clone();
            all.insert(Cow::Borrowed(name), (now_ms, own.as_slice()));
            if let Some(bytes) = encode(record, &all) {
                return Some(bytes);
            }
        }
        let (_, stalest) = others
            .iter()
            .map(|(name, (t, _))| (t.abs_diff(now_ms), name))
            .filter(|(age, _)| *age > FRESH_MS)
            .max()?;
        let stalest = stalest.clone();
        others.remove(&stalest);
    }
}

/// The record without this writer's entry (it stops, or has nothing to list); `None` if there is
/// no such entry. Drops what [`upsert_writer`] drops.
#[must_use]
pub fn remove_writer(old: Option<&[u8]>, name: &str, now_ms: u64) -> Option<Vec<u8>> {
    let record = cbor::old_record(old);
    record.get("writers")?.map()?.get(name)?;
    encode(record, &kept(record, name, now_ms))
}

/// Entries by name: time (Unix ms) and encoded value.
type Entries<'a> = SortedMap<Cow<'a, str>, (u64, &'a [u8])>;

/// The other writers' entries that a writer keeps.
fn kept<'a>(record: Map<'a>, name: &str, now_ms: u64) -> Entries<'a> {
    let writers = record.get("writers").and_then(Item::map);
    writers
        .unwrap_or(Map::EMPTY)
        .iter()
        .filter_map(|(k, entry)| Some((k.text()?, (writer(entry)?.t_ms, entry.bytes()))))
        .filter(|(k, (t, _))| k != name && t.abs_diff(now_ms) <= KEEP_MS)
        .collect()
}

fn encode(record: Map<'_>, writers: &Entries<'_>) -> Option<Vec<u8>> {
    let mut body = Out::default();
    body.map(writers.len());
    for (name, (_, entry)) in writers {
        body.text(name).raw(entry);
    }
    cbor::encode_record(record, "writers", body.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::cbor::from_json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_790_000_000_000;

    fn members(writers: &str) -> Members {
        Members::decode(&from_json(&format!(r#"{{"v":1,"writers":{writers}}}"#))).unwrap()
    }

    #[test]
    fn who_is_unlisted() {
        let at = |t: u64, list: &str| format!(r#"{{"t":{t},"endpoints":{list}}}"#);
        let fresh = at(NOW - FRESH_MS, r#"["a","b"]"#);
        let old = at(NOW - FRESH_MS - 1, r#"["c"]"#);
        let future = at(NOW + FRESH_MS + 1, r#"["d"]"#);
        let empty = at(NOW, "[]");
        // (writers, which of a, b, c, d are unlisted)
        let table: &[(String, &str)] = &[
            ("{}".into(), ""),
            (format!(r#"{{"w":{old}}}"#), ""),
            (format!(r#"{{"w":{future}}}"#), ""),
            (format!(r#"{{"w":{fresh}}}"#), "cd"),
            (format!(r#"{{"w":{fresh},"x":{old},"y":{future}}}"#), "cd"),
            (format!(r#"{{"w":{empty}}}"#), "abcd"),
            (format!(r#"{{"w":{empty},"x":{fresh}}}"#), "cd"),
            (r#"{"w":7,"x":{"t":-1,"endpoints":[]}}"#.into(), ""),
        ];
        for (writers, unlisted) in table {
            let members = members(writers);
            let got: String = ["a", "b", "c", "d"]
                .into_iter()
                .filter(|e| members.is_unlisted(e, NOW))
                .collect();
            assert_eq!(got, *unlisted, "{writers}");
        }
        assert!(!Members::default().is_unlisted("a", NOW));
    }

    #[test]
    fn listed_is_the_union_of_fresh_writers() {
        let m = members(&format!(
            r#"{{"w":{{"t":{NOW},"endpoints":["b","a"]}},"x":{{"t":{NOW},"endpoints":["a","c"]}},"y":{{"t":0,"endpoints":["z"]}}}}"#
        ));
        assert_eq!(m.listed(NOW), Some(SortedSet::from(["a", "b", "c"])));
        assert_eq!(m.listed(NOW + FRESH_MS + 1), None);
    }

    #[test]
    fn a_malformed_entry_does_not_spoil_the_others() {
        let m = members(
            r#"{"a":{"t":1,"endpoints":["x"],"more":2},"b":[],"c":{"t":1},"d":{"t":1.5,"endpoints":[]},
                "e":{"t":1,"endpoints":[5]},"f":{"endpoints":[]}}"#,
        );
        assert_eq!(m.writers().keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(m.invalid, 5);
    }

    #[test]
    fn a_value_that_is_no_record_is_malformed() {
        assert_eq!(Members::decode(b""), Ok(Members::default()));
        assert_eq!(
            Members::decode(&from_json(r#"{"v":1}"#)),
            Err(Malformed::Shape)
        );
        assert_eq!(
            Members::decode(&from_json(r#"{"v":2}"#)),
            Err(Malformed::Version)
        );
        assert_eq!(Members::decode(b"\x00\x00"), Err(Malformed::Cbor));
    }

    #[test]
    fn a_writer_sets_and_removes_only_its_entry() {
        let old = from_json(&format!(
            r#"{{"v":1,"note":"n","writers":{{
                "z":{{"t":{},"endpoints":["9"],"more":[1]}},
                "aged":{{"t":{},"endpoints":[]}},
                "future":{{"t":{},"endpoints":[]}},
                "bad":1,
                "me":{{"t":1,"endpoints":["gone"],"more":2}}}}}}"#,
            NOW - KEEP_MS,
            NOW - KEEP_MS - 1,
            NOW + KEEP_MS + 1,
        ));
        let new = upsert_writer(Some(&old), "me", &["b", "a", "b"], NOW).unwrap();
        let z = format!(
            r#""z":{{"t":{},"endpoints":["9"],"more":[1]}}"#,
            NOW - KEEP_MS
        );
        let expected = format!(
            r#"{{"v":1,"writers":{{"me":{{"t":{NOW},"endpoints":["a","b"]}},{z}}},"note":"n"}}"#
        );
        assert_eq!(new, from_json(&expected));
        let removed = remove_writer(Some(&new), "me", NOW).unwrap();
        let expected = format!(r#"{{"v":1,"writers":{{{z}}},"note":"n"}}"#);
        assert_eq!(removed, from_json(&expected));
        assert_eq!(remove_writer(Some(&removed), "me", NOW), None);
        assert_eq!(remove_writer(None, "me", NOW), None);
    }

    #[test]
    fn a_malformed_or_foreign_old_value_is_replaced() {
        let fresh = upsert_writer(None, "me", &["a"], NOW);
        for old in [&b"\xff"[..], b"\xa1\x61v\x02", b"", b"\xa1\x61v\x01"] {
            assert_eq!(
                upsert_writer(Some(old), "me", &["a"], NOW),
                fresh,
                "{old:02x?}"
            );
        }
    }

    #[test]
    fn at_most_16_writers() {
        let mut bytes = None;
        for i in 0..16 {
            let name = format!("w{i:02}");
            bytes = upsert_writer(bytes.as_deref(), &name, &["e"], NOW + i);
        }
        let full = bytes.unwrap();
        // All 16 are fresh: no room for one more, but each may renew.
        let now = NOW + FRESH_MS;
        assert_eq!(upsert_writer(Some(&full), "new", &["e"], now), None);
        assert!(upsert_writer(Some(&full), "w07", &["e"], now).is_some());
        // The oldest is no longer fresh: it makes room.
        let new = upsert_writer(Some(&full), "new", &["e"], now + 1).unwrap();
        let members = Members::decode(&new).unwrap();
        assert_eq!(members.writers().len(), 16);
        assert!(!members.writers().contains_key("w00") && members.writers().contains_key("new"));
        // Somebody broke the rule: as many go as must.
        let seventeen: Vec<String> = (0..17u64)
            .map(|i| {
                let t = NOW - if i < 3 { FRESH_MS + 3 - i } else { 0 };
                format!(r#""w{i:02}":{{"t":{t},"endpoints":[]}}"#)
            })
            .collect();
        let old = from_json(&format!(
            r#"{{"v":1,"writers":{{{}}}}}"#,
            seventeen.join(",")
        ));
        let new = upsert_writer(Some(&old), "new", &["e"], NOW).unwrap();
        let names: Vec<String> = Members::decode(&new)
            .unwrap()
            .writers()
            .keys()
            .cloned()
            .collect();
        assert_eq!(names.len(), 16);
        assert_eq!(names[..2], ["new", "w02"]);
    }

    #[test]
    fn a_value_never_grows_past_the_limit() {
        let many =
            |c: char, n: usize| -> Vec<String> { (0..n).map(|i| format!("{c}{i:099}")).collect() };
        let first = upsert_writer(None, "first", &many('a', 2_000), NOW).unwrap();
        // Two such entries do not fit; the first is fresh, then not.
        assert_eq!(
            upsert_writer(Some(&first), "me", &many('b', 2_000), NOW),
            None
        );
        let now = NOW + FRESH_MS + 1;
        let second = upsert_writer(Some(&first), "me", &many('b', 2_000), now).unwrap();
        let members = Members::decode(&second).unwrap();
        assert_eq!(members.writers().keys().collect::<Vec<_>>(), ["me"]);
        assert_eq!(upsert_writer(None, "me", &many('b', 3_000), NOW), None);
    }
}
