//! Properties of the shared-data records: hostile bytes, round trips, and writers that interleave.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use selective_kv::contract::evidence::{Lookup, Prompt, find, from_header};
use selective_kv::contract::evidence_writer::{self, EndpointEvidence, RequestEvidence};
use selective_kv::contract::gate_record::{GateId, GateRecord, State};
use selective_kv::contract::members::{self, Members};
use selective_kv::contract::queue::{self, Measured, Sample};
use selective_kv::contract::store::{MemoryStore, Store, Updated, update};
use selective_kv::contract::{MAX_VALUE_BYTES, keys};
use selective_kv::sorted::SortedMap;

const NOW: u64 = 1_790_000_000_000;
const KEEP: u64 = 600_000;
const MAX_AGE: u64 = 30_000;

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-d]", "10\\.0\\.0\\.[0-9]:8000", ".{0,12}"]
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let tier = prop::sample::select(vec!["gpu", "cpu", "storage", "cpu@remote", "speculative"]);
    let tiers = prop::collection::vec(tier.clone().prop_map(str::to_owned), 0..4);
    let run = (0..50u64, tiers);
    let counts = prop::collection::btree_map(tier.prop_map(str::to_owned), 0..90u64, 0..4);
    prop_oneof![
        prop::collection::vec(run, 0..8).prop_map(|runs| Prompt::Runs(runs.into_iter().collect())),
        counts.prop_map(|counts| Prompt::Tiers(counts.into_iter().collect())),
    ]
}

fn endpoints() -> impl Strategy<Value = SortedMap<String, EndpointEvidence>> {
    let endpoint = (prop::collection::vec(prompt(), 1..4), any::<bool>())
        .prop_map(|(prompts, partial)| EndpointEvidence { prompts, partial });
    prop::collection::btree_map(name(), endpoint, 1..4)
        .prop_map(|endpoints| endpoints.into_iter().collect())
}

fn write_evidence(
    old: Option<&[u8]>,
    id: &str,
    endpoints: &SortedMap<String, EndpointEvidence>,
) -> Vec<u8> {
    let request = RequestEvidence {
        id,
        writer: "w",
        t_ms: NOW,
        block_size: 16,
        endpoints,
    };
    evidence_writer::upsert(old, &request, NOW, MAX_AGE).expect("it fits")
}

/// A valid record of any kind.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let queue =
        prop::collection::vec((name(), 0..60_000u64, 0.0..99.0f64), 1..20).prop_map(|pushes| {
            pushes
                .into_iter()
                .fold(Vec::new(), |old, (endpoint, after, waiting)| {
                    let sample = Sample {
                        t_ms: NOW + after,
                        waiting,
                    };
                    let measured = Measured {
                        engine: Some("vllm"),
                        ..Measured::of(&endpoint, sample)
                    };
                    queue::push_sample(Some(&old), &measured, NOW, KEEP).unwrap_or(old)
                })
        });
    let id = name().prop_filter("an id is not empty", |id| !id.is_empty());
    let evidence = prop::collection::vec((id, endpoints()), 1..4).prop_map(|requests| {
        requests.iter().fold(Vec::new(), |old, (id, endpoints)| {
            write_evidence(Some(&old), id, endpoints)
        })
    });
    let members = prop::collection::vec((name(), prop::collection::vec(name(), 0..4)), 1..6)
        .prop_map(|writers| {
            writers.iter().fold(Vec::new(), |old, (name, endpoints)| {
                members::upsert_writer(Some(&old), name, endpoints, NOW).expect("there is room")
            })
        });
    let gate =
        prop::collection::vec((name(), any::<u64>(), 0.0..99.0f64), 1..6).prop_map(|states| {
            let mut record = GateRecord::default();
            for (endpoint, last_ms, ewma) in states {
                record.set(
                    &endpoint,
                    gate_id(8),
                    State {
                        last_ms,
                        ewma,
                        closed: last_ms % 2 == 0,
                    },
                );
            }
            record.encode()
        });
    prop_oneof![queue, evidence, members, gate]
}

const fn gate_id(max_waiting: u64) -> GateId {
    GateId {
        max_waiting,
        half_life_ms: 2_000,
        reopen_ratio_bits: 0x3fe0_0000_0000_0000,
        max_sample_age_ms: 10_000,
    }
}

/// Every reader and every writer takes the bytes, and every writer leaves a record that readers
/// take.
fn take(bytes: &[u8]) {
    let _ = queue::decode(bytes);
    let _ = Members::decode(bytes);
    let _ = GateRecord::decode(bytes);
    let _ = from_header(bytes);
    let _ = find(bytes, "a", "b");

    let sample = Sample {
        t_ms: NOW,
        waiting: 1.0,
    };
    if let Some(new) = queue::push_sample(Some(bytes), &Measured::of("a", sample), NOW, KEEP) {
        assert!(new.len() <= MAX_VALUE_BYTES);
        let entries = queue::decode(&new).expect("a record");
        assert_eq!(
            entries.get("a").unwrap().history.samples.last(),
            Some(&sample)
        );
    }
    if let Some(new) = members::upsert_writer(Some(bytes), "a", &["x"], NOW) {
        assert!(new.len() <= MAX_VALUE_BYTES);
        assert!(
            Members::decode(&new)
                .expect("a record")
                .writers()
                .contains_key("a")
        );
    }
    if let Some(new) = members::remove_writer(Some(bytes), "a", NOW) {
        assert!(
            !Members::decode(&new)
                .expect("a record")
                .writers()
                .contains_key("a")
        );
    }
    let tiers = SortedMap::from([("cpu".to_owned(), 3)]);
    let endpoint = EndpointEvidence {
        prompts: vec![Prompt::Tiers(tiers)],
        partial: false,
    };
    let new = write_evidence(
        Some(bytes),
        "a",
        &SortedMap::from([("b".to_owned(), endpoint)]),
    );
    assert!(new.len() <= MAX_VALUE_BYTES);
    assert!(matches!(find(&new, "a", "b"), Lookup::Found(_)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        take(&bytes);
    }

    #[test]
    fn mutated_records_are_survived(
        mut bytes in record(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        take(&bytes);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        take(&bytes);
    }

    #[test]
    fn samples_written_are_read_back(
        steps in prop::collection::vec((0..3u8, 200..3_000u64, 0.0..1e6f64), 1..60),
    ) {
        let (mut record, mut model) = (Vec::new(), BTreeMap::<String, Vec<Sample>>::new());
        let mut t_ms = NOW;
        for (endpoint, step, waiting) in steps {
            t_ms += step;
            let endpoint = format!("10.0.0.{endpoint}:8000");
            let sample = Sample { t_ms, waiting: if step % 2 == 0 { waiting.floor() } else { waiting } };
            let measured = Measured { version: Some("1"), ..Measured::of(&endpoint, sample) };
            record = queue::push_sample(Some(&record), &measured, t_ms, KEEP).unwrap();
            let samples = model.entry(endpoint).or_default();
            samples.push(sample);
            samples.drain(..samples.len().saturating_sub(32));
        }
        let read: BTreeMap<String, Vec<Sample>> = queue::decode(&record)
            .unwrap()
            .into_iter()
            .map(|(name, entry)| (name, entry.history.samples))
            .collect();
        prop_assert_eq!(read, model);
    }

    #[test]
    fn evidence_written_is_read_back(
        requests in prop::collection::btree_map("[a-f]{1,3}", endpoints(), 1..4),
    ) {
        let record = requests
            .iter()
            .fold(Vec::new(), |old, (id, endpoints)| write_evidence(Some(&old), id, endpoints));
        for (id, endpoints) in &requests {
            for (endpoint, expected) in endpoints {
                let Lookup::Found(evidence) = find(&record, id, endpoint) else {
                    panic!("{id} {endpoint}");
                };
                prop_assert_eq!(&evidence.prompts, &expected.prompts);
                prop_assert_eq!(evidence.partial, expected.partial);
                prop_assert_eq!((evidence.t_ms, evidence.block_size), (Some(NOW), 16));
            }
        }
    }

    #[test]
    fn members_written_are_read_back(
        writers in prop::collection::btree_map(name(), prop::collection::btree_set(name(), 0..5), 1..16),
    ) {
        let record = writers.iter().fold(Vec::new(), |old, (name, endpoints)| {
            let list: Vec<&String> = endpoints.iter().collect();
            members::upsert_writer(Some(&old), name, &list, NOW).unwrap()
        });
        let members = Members::decode(&record).unwrap();
        let read: BTreeMap<String, BTreeSet<String>> = members
            .writers()
            .iter()
            .map(|(name, writer)| (name.clone(), writer.endpoints.iter().cloned().collect()))
            .collect();
        prop_assert_eq!(read, writers);
        prop_assert_eq!(members.invalid, 0);
    }

    #[test]
    fn gate_states_written_are_read_back(
        states in prop::collection::btree_map((name(), 0..4u64), (any::<u64>(), 0.0..1e9f64, any::<bool>()), 0..20),
    ) {
        let mut record = GateRecord::default();
        for ((endpoint, max), (last_ms, ewma, closed)) in states {
            record.set(&endpoint, gate_id(max), State { last_ms, ewma, closed });
        }
        prop_assert_eq!(GateRecord::decode(&record.encode()), Ok(record));
    }
}

/// What one writer does to the store, in steps that a schedule interleaves: the read of one update
/// may be followed by any number of other writers' writes.
#[test]
fn interleaved_writers_lose_nothing() {
    const WRITERS: usize = 8;
    const ROUNDS: u64 = 12;
    let store = MemoryStore::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                let endpoint = format!("10.0.0.{writer}:8000");
                for round in 0..ROUNDS {
                    let sample = Sample {
                        t_ms: NOW + round * 1_000,
                        waiting: 1.0,
                    };
                    let now = NOW + ROUNDS * 1_000;
                    let written = update(store, "queue", u32::MAX, &mut |old| {
                        std::thread::yield_now();
                        queue::push_sample(old, &Measured::of(&endpoint, sample), now, KEEP)
                    });
                    assert_eq!(written, Ok(Updated::Written));
                    let written = update(store, keys::MEMBERS_KEY, u32::MAX, &mut |old| {
                        members::upsert_writer(old, &endpoint, &[&endpoint], NOW + round)
                    });
                    assert_eq!(written, Ok(Updated::Written));
                }
            });
        }
    });
    let value = |key| store.get(key).unwrap().unwrap().value;
    let entries = queue::decode(&value("queue")).unwrap();
    assert_eq!(entries.len(), WRITERS);
    for entry in entries.values() {
        let times: Vec<u64> = entry.history.samples.iter().map(|s| s.t_ms - NOW).collect();
        assert_eq!(times, (0..ROUNDS).map(|r| r * 1_000).collect::<Vec<_>>());
    }
    let members = Members::decode(&value(keys::MEMBERS_KEY)).unwrap();
    assert_eq!(members.listed(NOW).unwrap().len(), WRITERS);
}

/// Two writers, one schedule: whoever comes second sees what the first one wrote.
#[test]
fn a_write_between_read_and_write_is_seen() {
    let store = MemoryStore::new();
    let push = |old: Option<&[u8]>, endpoint: &str| {
        let sample = Sample {
            t_ms: NOW,
            waiting: 1.0,
        };
        queue::push_sample(old, &Measured::of(endpoint, sample), NOW, KEEP)
    };
    let mut first = true;
    let written = update(&store, "queue", 2, &mut |old| {
        if std::mem::take(&mut first) {
            update(&store, "queue", 1, &mut |old| push(old, "b")).unwrap();
        }
        push(old, "a")
    });
    assert_eq!(written, Ok(Updated::Written));
    let entries = queue::decode(&store.get("queue").unwrap().unwrap().value).unwrap();
    assert_eq!(entries.keys().collect::<Vec<_>>(), ["a", "b"]);
}
