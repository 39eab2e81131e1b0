//! The record of a fleet in shared data, private: `selective-kv/1/engines/<bucket of scorer>`.
//!
//! Most engines of a fleet say the same, so it has each set of facts once.

use super::{EngineFacts, Fleet, MAX_NAMES, is_name};
use crate::contract::cbor::{Item, Out};
use crate::contract::keys::bucket;
use crate::contract::store::{Store, StoreError, TRIES, UpdateError, update};
use crate::scorer::config::{MAX_ENDPOINTS, address};
use crate::scorer::record::{self, Value, fields};
use crate::sorted::SortedMap;
use std::num::NonZeroU32;
use std::rc::Rc;

const PREFIX: &str = "selective-kv/1/engines/";

/// A fleet that was not written for this long is nobody's any more, ms. The poller writes it about
/// once a minute, changed or not.
pub const KEEP_MS: u64 = 600_000;

/// Where a scorer's fleet is kept.
pub fn key(scorer: &str) -> String {
    format!("{PREFIX}{}", bucket(scorer, record::BUCKETS))
}

#[derive(Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
struct Stored {
    /// Unix ms of the last write.
    t: u64,
    block_size: Option<NonZeroU32>,
    engines: Vec<EngineFacts>,
    /// Address to a place in `engines`.
    endpoints: SortedMap<String, usize>,
}

impl Value for Stored {
    fn read(item: Item<'_>) -> Option<Self> {
        let [t, block_size, engines, endpoints] =
            fields(item, ["t", "block_size", "engines", "endpoints"])?;
        Some(Stored {
            t: t?.uint()?,
            block_size: or_default(block_size)?,
            engines: Value::read(engines?)?,
            endpoints: Value::read(endpoints?)?,
        })
    }

    fn write(&self, out: &mut Out) {
        out.map(4).text("t").uint(self.t);
        self.block_size.write(out.text("block_size"));
        self.engines.write(out.text("engines"));
        self.endpoints.write(out.text("endpoints"));
    }
}

const NAMES: [&str; 8] = [
    "model",
    "aliases",
    "adapters",
    "block_size",
    "hash_algorithm",
    "gpu_blocks",
    "ranks",
    "version",
];

impl Value for EngineFacts {
    fn read(item: Item<'_>) -> Option<Self> {
        let [
            model,
            aliases,
            adapters,
            block_size,
            hash_algorithm,
            gpu_blocks,
            ranks,
            version,
        ] = fields(item, NAMES)?;
        Some(EngineFacts {
            model: or_default(model)?,
            aliases: or_default(aliases)?,
            adapters: or_default(adapters)?,
            block_size: or_default(block_size)?,
            hash_algorithm: or_default(hash_algorithm)?,
            gpu_blocks: or_default(gpu_blocks)?,
            ranks: or_default(ranks)?,
            version: or_default(version)?,
        })
    }

    fn write(&self, out: &mut Out) {
        let [
            model,
            aliases,
            adapters,
            block_size,
            hash_algorithm,
            gpu_blocks,
            ranks,
            version,
        ] = NAMES;
        out.map(NAMES.len());
        self.model.write(out.text(model));
        self.aliases.write(out.text(aliases));
        self.adapters.write(out.text(adapters));
        self.block_size.write(out.text(block_size));
        self.hash_algorithm.write(out.text(hash_algorithm));
        self.gpu_blocks.write(out.text(gpu_blocks));
        self.ranks.write(out.text(ranks));
        self.version.write(out.text(version));
    }
}

impl Value for NonZeroU32 {
    fn read(item: Item<'_>) -> Option<Self> {
        Self::new(u32::read(item)?)
    }

    fn write(&self, out: &mut Out) {
        self.get().write(out);
    }
}

impl Value for usize {
    fn read(item: Item<'_>) -> Option<Self> {
        item.uint()?.try_into().ok()
    }

    fn write(&self, out: &mut Out) {
        out.uint(*self as u64);
    }
}

/// At most [`MAX_NAMES`]: a record of a few bytes an element must not become many times its size
/// in memory.
impl<T: Value> Value for Vec<T> {
    fn read(item: Item<'_>) -> Option<Self> {
        let mut list = Vec::new();
        for item in item.array()?.iter() {
            (list.len() < MAX_NAMES).then_some(())?;
            list.push(T::read(item)?);
        }
        Some(list)
    }

    fn write(&self, out: &mut Out) {
        out.array(self.len());
        for item in self {
            item.write(out);
        }
    }
}

/// A field that may be missing.
fn or_default<T: Value + Default>(item: Option<Item<'_>>) -> Option<T> {
    item.map_or_else(|| Some(T::default()), T::read)
}

/// What [`Fleet::write`] wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    Whole,
    /// There is no room for aliases and adapters.
    WithoutNames,
    /// There is no room at all.
    Nothing,
}

impl Fleet {
    /// The fleet of a scorer and the record's version; None if there is none that makes sense.
    ///
    /// # Errors
    /// [`StoreError::Host`].
    pub fn read(store: &dyn Store, scorer: &str) -> Result<Option<(u32, Self)>, StoreError> {
        let Some(record) = store.get(&key(scorer))? else {
            return Ok(None);
        };
        let fleet = decode(Some(&record.value)).remove(scorer);
        Ok(fleet.map(|stored| (record.cas, stored.fleet())))
    }

    /// The same, and None too if the record still has this version.
    ///
    /// # Errors
    /// [`StoreError::Host`].
    pub fn read_newer(
        store: &dyn Store,
        scorer: &str,
        cas: Option<u32>,
    ) -> Result<Option<(u32, Self)>, StoreError> {
        match store.get(&key(scorer))? {
            Some(record) if Some(record.cas) != cas => {
                let fleet = decode(Some(&record.value)).remove(scorer);
                Ok(fleet.map(|stored| (record.cas, stored.fleet())))
            }
            _ => Ok(None),
        }
    }

    /// # Errors
    /// [`UpdateError`].
    pub fn write(
        &self,
        store: &dyn Store,
        scorer: &str,
        now_ms: u64,
    ) -> Result<Wrote, UpdateError> {
        let mut wrote = Wrote::Nothing;
        update(store, &key(scorer), TRIES, &mut |old| {
            let with = |names| {
                let mut scorers = decode(old);
                scorers.retain(|_, other| now_ms.abs_diff(other.t) <= KEEP_MS);
                record::make_room(&mut scorers, scorer, |stored| stored.t);
                scorers.insert(scorer.to_owned(), self.stored(now_ms, names));
                record::encode(&scorers)
            };
            let whole = with(true).map(|bytes| (Wrote::Whole, bytes));
            let written = whole.or_else(|| Some((Wrote::WithoutNames, with(false)?)));
            let (what, bytes) = written.unzip();
            wrote = what.unwrap_or(Wrote::Nothing);
            bytes
        })?;
        Ok(wrote)
    }

    fn stored(&self, now_ms: u64, names: bool) -> Stored {
        let mut places: SortedMap<EngineFacts, usize> = SortedMap::new();
        let mut engines = Vec::new();
        let mut endpoints = SortedMap::new();
        for (address, facts) in self.endpoints.iter().take(MAX_ENDPOINTS) {
            let mut facts = facts.as_ref().clone();
            if !names {
                facts.aliases.clear();
                facts.adapters.clear();
            }
            let next = engines.len();
            let place = *places.entry(facts.clone()).or_insert(next);
            if place == next {
                engines.push(facts);
            }
            endpoints.insert(address.clone(), place);
        }
        Stored {
            t: now_ms,
            block_size: self.block_size,
            engines,
            endpoints,
        }
    }
}

impl Stored {
    /// Without what no scorer of ours writes.
    fn fleet(self) -> Fleet {
        let engines: Vec<_> = self.engines.into_iter().map(sane).map(Rc::new).collect();
        let named = self.endpoints.into_iter().filter_map(|(endpoint, place)| {
            address(&endpoint)?;
            Some((endpoint, Rc::clone(engines.get(place)?)))
        });
        Fleet {
            block_size: self.block_size,
            endpoints: named.take(MAX_ENDPOINTS).collect(),
        }
    }
}

fn sane(mut facts: EngineFacts) -> EngineFacts {
    let texts = [
        &mut facts.model,
        &mut facts.hash_algorithm,
        &mut facts.version,
    ];
    for text in texts {
        *text = text.take().filter(|text| is_name(text));
    }
    facts.aliases.retain(|name| is_name(name));
    facts.adapters.retain(|name| is_name(name));
    facts.block_size = facts.block_size.filter(|size| *size > 0);
    facts
}

fn decode(value: Option<&[u8]>) -> SortedMap<String, Stored> {
    record::decode(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::MAX_VALUE_BYTES;
    use crate::contract::store::MemoryStore;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW: u64 = 1_795_952_365_000;
    const A: &str = "10.0.0.1:8000";
    const B: &str = "[fd00::2]:8000";

    fn facts(adapters: usize, tag: &str) -> Rc<EngineFacts> {
        Rc::new(EngineFacts {
            model: Some("tiny".to_owned()),
            aliases: vec!["tiny".to_owned(), tag.to_owned()],
            adapters: (0..adapters).map(|i| format!("{tag}-{i:0>40}")).collect(),
            block_size: Some(32),
            hash_algorithm: Some("sha256_cbor".to_owned()),
            gpu_blocks: Some(160),
            ranks: Some(2),
            version: Some("0.32.0".to_owned()),
        })
    }

    fn fleet(endpoints: &[(&str, Rc<EngineFacts>)]) -> Fleet {
        let endpoints = endpoints.iter();
        Fleet {
            block_size: NonZeroU32::new(32),
            endpoints: endpoints
                .map(|(address, facts)| ((*address).to_owned(), Rc::clone(facts)))
                .collect(),
        }
    }

    fn value(store: &MemoryStore, scorer: &str) -> Vec<u8> {
        store.get(&key(scorer)).unwrap().unwrap().value
    }

    #[test]
    fn what_is_written_is_read() {
        let store = MemoryStore::new();
        assert_eq!(Fleet::read(&store, "pool"), Ok(None));
        let all = fleet(&[(A, facts(2, "x")), (B, facts(0, "y"))]);
        assert_eq!(all.write(&store, "pool", NOW), Ok(Wrote::Whole));
        assert_eq!(Fleet::read(&store, "pool"), Ok(Some((1, all.clone()))));
        // another scorer's is not this one's
        assert_eq!(Fleet::read(&store, "pool-b"), Ok(None));
        // a reader that has this version is told nothing
        assert_eq!(Fleet::read_newer(&store, "pool", Some(1)), Ok(None));
        let newer = Fleet::read_newer(&store, "pool", None);
        assert_eq!(newer, Ok(Some((1, all))));
        // and an endpoint that is no member any more is gone
        let less = fleet(&[(B, facts(0, "y"))]);
        assert_eq!(less.write(&store, "pool", NOW + 1), Ok(Wrote::Whole));
        let newer = Fleet::read_newer(&store, "pool", Some(1));
        assert_eq!(newer, Ok(Some((2, less))));
    }

    #[test]
    fn engines_that_say_the_same_take_room_once() {
        let store = MemoryStore::new();
        let same: Vec<_> = (0..256).map(|i| format!("10.0.1.{i}:8000")).collect();
        let all: Vec<_> = same
            .iter()
            .map(|a| (a.as_str(), facts(1_000, "x")))
            .collect();
        assert_eq!(fleet(&all).write(&store, "pool", NOW), Ok(Wrote::Whole));
        // 1,000 names of 44 bytes, 256 addresses of up to 15 bytes
        let size = value(&store, "pool").len();
        assert!((44_000..52_000).contains(&size), "{size}");
        let (_, read) = Fleet::read(&store, "pool").unwrap().unwrap();
        assert_eq!(read, fleet(&all));
    }

    #[test]
    fn names_go_first_where_there_is_no_room() {
        let store = MemoryStore::new();
        let tags: Vec<_> = (0..20).map(|i| format!("t{i:0>9}")).collect();
        let addresses: Vec<_> = (0..20).map(|i| format!("10.0.1.{i}:8000")).collect();
        let all: Vec<_> = addresses
            .iter()
            .zip(&tags)
            .map(|(address, tag)| (address.as_str(), facts(1_000, tag)))
            .collect();
        let large = fleet(&all);
        assert_eq!(large.write(&store, "pool", NOW), Ok(Wrote::WithoutNames));
        let (_, read) = Fleet::read(&store, "pool").unwrap().unwrap();
        assert_eq!(read.endpoints.len(), 20);
        for facts in read.endpoints.values() {
            let expected = EngineFacts {
                aliases: Vec::new(),
                ..self::facts(0, "").as_ref().clone()
            };
            assert_eq!(facts.as_ref(), &expected);
        }
    }

    #[test]
    fn others_in_the_bucket_stay_while_they_are_written() {
        let store = MemoryStore::new();
        let other = (0..10_000u32)
            .map(|i| format!("s{i}"))
            .find(|name| key(name) == key("pool"))
            .unwrap();
        let (one, two) = (fleet(&[(A, facts(0, "x"))]), fleet(&[(B, facts(0, "y"))]));
        one.write(&store, "pool", NOW).unwrap();
        two.write(&store, &other, NOW + KEEP_MS).unwrap();
        assert_eq!(Fleet::read(&store, "pool"), Ok(Some((2, one))));
        two.write(&store, &other, NOW + KEEP_MS + 1).unwrap();
        assert_eq!(Fleet::read(&store, "pool"), Ok(None));
        assert_eq!(Fleet::read(&store, &other), Ok(Some((3, two))));
    }

    fn read_stored(stored: Stored) -> Fleet {
        let store = MemoryStore::new();
        let bytes = record::encode(&SortedMap::from([("pool".to_owned(), stored)])).unwrap();
        store.set(&key("pool"), &bytes, 0).unwrap();
        Fleet::read(&store, "pool").unwrap().unwrap().1
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let text = |text: &str| Some(text.to_owned());
        let hostile = EngineFacts {
            model: text("a\nb"),
            aliases: vec![String::new(), "ok".to_owned()],
            adapters: vec!["m".repeat(513)],
            block_size: Some(0),
            hash_algorithm: text(""),
            gpu_blocks: Some(7),
            ranks: Some(2),
            version: text("\u{7f}"),
        };
        let endpoints = [(A, 0), (B, 1), ("engine:80", 0), ("10.0.0.1:0", 0)];
        let read = read_stored(Stored {
            t: NOW,
            block_size: None,
            engines: vec![hostile],
            endpoints: endpoints.map(|(a, at)| (a.to_owned(), at)).into(),
        });
        let left = EngineFacts {
            aliases: vec!["ok".to_owned()],
            gpu_blocks: Some(7),
            ranks: Some(2),
            ..EngineFacts::default()
        };
        assert_eq!(read.block_size, None);
        assert_eq!(
            read.endpoints,
            SortedMap::from([(A.to_owned(), Rc::new(left))])
        );
    }

    #[test]
    fn what_is_no_record_is_no_fleet() {
        let store = MemoryStore::new();
        let all = fleet(&[(A, facts(2, "x"))]);
        all.write(&store, "pool", NOW).unwrap();
        let good = value(&store, "pool");
        let engines = |n: usize| Stored {
            t: NOW,
            block_size: None,
            engines: vec![EngineFacts::default(); n],
            endpoints: SortedMap::new(),
        };
        let of = |stored| record::encode(&SortedMap::from([("pool".to_owned(), stored)])).unwrap();
        let rows: &[(&str, Vec<u8>, bool)] = &[
            ("good", good.clone(), true),
            ("the longest list", of(engines(MAX_NAMES)), true),
            ("a longer list", of(engines(MAX_NAMES + 1)), false),
            ("empty", Vec::new(), false),
            ("cut", good[..good.len() - 1].to_vec(), false),
            ("nested", vec![0x81; 1_000], false),
            ("long", vec![0; MAX_VALUE_BYTES + 1], false),
        ];
        for (what, bytes, is_fleet) in rows {
            store.set(&key("pool"), bytes, 0).unwrap();
            let read = Fleet::read(&store, "pool").unwrap();
            assert_eq!(read.is_some(), *is_fleet, "{what}");
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod properties {
        use super::*;
        use proptest::collection::vec;
        use proptest::prelude::*;

        proptest! {
            /// Nothing panics, and nothing past the bounds comes out.
            #[test]
            fn garbage(bytes in vec(any::<u8>(), 0..400)) {
                read_garbage(&bytes)?;
            }

            /// A real record with some bytes changed.
            #[test]
            fn damage(changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
                let store = MemoryStore::new();
                let all = fleet(&[(A, facts(3, "x")), (B, facts(0, "y"))]);
                all.write(&store, "pool", NOW).unwrap();
                let mut bytes = value(&store, "pool");
                for (at, byte) in changes {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                read_garbage(&bytes)?;
            }
        }

        fn read_garbage(bytes: &[u8]) -> Result<(), TestCaseError> {
            let store = MemoryStore::new();
            store.set(&key("pool"), bytes, 0).unwrap();
            for (endpoint, facts) in Fleet::read(&store, "pool")
                .unwrap()
                .unwrap_or_default()
                .1
                .endpoints
            {
                prop_assert!(address(&endpoint).is_some());
                let texts = [&facts.model, &facts.hash_algorithm, &facts.version];
                let names = facts.aliases.iter().chain(&facts.adapters);
                let mut all = names.chain(texts.into_iter().flatten());
                prop_assert!(all.all(|name| is_name(name)), "{facts:?}");
            }
            // and it is ours to overwrite
            prop_assert_eq!(fleet(&[]).write(&store, "pool", NOW), Ok(Wrote::Whole));
            Ok(())
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod against_ciborium {
        use super::*;
        use crate::scorer::record::against_ciborium::{damage, same_bytes, same_reading};
        use proptest::collection::{btree_map, vec};
        use proptest::prelude::*;

        fn facts() -> impl Strategy<Value = EngineFacts> {
            let text = || prop::option::of(".{0,30}");
            let names = || vec(".{0,30}", 0..4);
            let texts = (text(), text(), text());
            let numbers = any::<(Option<u32>, Option<u32>, Option<u32>)>();
            let all = (texts, names(), names(), numbers);
            all.prop_map(|(texts, aliases, adapters, numbers)| EngineFacts {
                model: texts.0,
                aliases,
                adapters,
                block_size: numbers.0,
                hash_algorithm: texts.1,
                gpu_blocks: numbers.1,
                ranks: numbers.2,
                version: texts.2,
            })
        }

        fn scorers() -> impl Strategy<Value = SortedMap<String, Stored>> {
            let endpoints = btree_map(".{0,30}", any::<usize>(), 0..4)
                .prop_map(|endpoints| endpoints.into_iter().collect());
            let stored = (
                any::<u64>(),
                any::<Option<NonZeroU32>>(),
                vec(facts(), 0..4),
                endpoints,
            );
            let stored = stored.prop_map(|(t, block_size, engines, endpoints)| Stored {
                t,
                block_size,
                engines,
                endpoints,
            });
            btree_map(".{0,30}", stored, 0..3).prop_map(|all| all.into_iter().collect())
        }

        proptest! {
            #[test]
            fn the_same_bytes(scorers in scorers()) {
                same_bytes(&scorers)?;
            }

            #[test]
            fn the_same_reading(scorers in scorers(), damage in damage()) {
                same_reading(&scorers, &damage)?;
            }
        }
    }
}
