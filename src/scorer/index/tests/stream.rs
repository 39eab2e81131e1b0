//! Streams, tiers and what makes evidence partial, by example.

use super::*;
use crate::contract::store::MemoryStore;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NONE: Reasons = Reasons::NONE;

#[test]
fn copies_are_counted_and_tiers_are_sets() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    let steps: [(&[Said], [Held; 2]); 9] = [
        (&[stored(&[1, 2], "GPU")], [held(1, 0), held(1, 0)]),
        (&[stored(&[1], "GPU")], [held(2, 0), held(1, 0)]),
        (&[stored(&[1, 2], "CPU")], [held(2, 1), held(1, 1)]),
        (&[stored(&[1], "cpu")], [held(2, 1), held(1, 1)]),
        (&[stored(&[1], "STORAGE")], [held(2, 3), held(1, 1)]),
        (
            &[Said::Removed(vec![1, 2], "GPU")],
            [held(1, 3), held(0, 1)],
        ),
        (&[Said::Removed(vec![1], "CPU")], [held(1, 2), held(0, 1)]),
        (&[Said::Cleared], [held(0, 2), held(0, 1)]),
        (
            &[
                Said::Removed(vec![1, 2, 3], "CPU"),
                Said::Removed(vec![1, 2], "GPU"),
            ],
            [held(0, 2), held(0, 0)],
        ),
    ];
    for (seq, (events, expected)) in (0..).zip(steps) {
        send(&mut index, &store, (A, 1), seq, events).unwrap();
        let now = look(&mut index, &store, A, &[1, 2]).unwrap();
        assert_eq!(now, (NONE, expected.to_vec()), "payload {seq}");
    }
    assert_eq!(index.tiers(), ["cpu", "storage"]);
    // Another VM finds the same.
    let mut reader = Index::new(params(false));
    let now = look(&mut reader, &store, A, &[1, 2]).unwrap();
    assert_eq!(now, (NONE, vec![held(0, 2), held(0, 0)]));
    assert_eq!(reader.tiers(), ["cpu", "storage"]);
    assert!(reader.endpoints().eq([A]));
}

#[test]
fn a_stream_is_whole_if_it_was_seen_from_the_start() {
    let bytes = payload(5.0, &[stored(&[1], "GPU")]);
    let seq = |seq| Item::Payload { seq, bytes: &bytes };
    let late = Reasons::JOINED_LATE;
    let gap = Reasons::GAP;
    let table: &[(&str, &[Item<'_>], Reasons)] = &[
        ("from 0", &[seq(0)], NONE),
        ("later", &[seq(3)], late),
        ("nothing yet", &[], late),
        ("nothing yet, vouched for", &[Item::FromStart], NONE),
        ("vouched for, then late", &[Item::FromStart, seq(3)], late),
        ("a gap", &[seq(0), seq(2)], gap),
        (
            "told of a gap",
            &[seq(0), Item::Lost { next: 2 }, seq(2)],
            gap,
        ),
        (
            "told that nobody can vouch",
            &[seq(0), Item::Lost { next: 1 }, seq(1)],
            gap,
        ),
        ("late and a gap", &[seq(1), seq(3)], late | gap),
        (
            "lost from 0 on",
            &[Item::Lost { next: 9 }, seq(9)],
            late | gap,
        ),
        (
            "unreadable",
            &[
                seq(0),
                Item::Payload {
                    seq: 1,
                    bytes: b"\xc1",
                },
            ],
            Reasons::UNREADABLE,
        ),
    ];
    for (name, items, expected) in table {
        let store = MemoryStore::new();
        let mut index = writer(&store, params(false));
        deliver(&mut index, &store, (A, 1), items).unwrap();
        let (reasons, _) = look(&mut index, &store, A, &[]).unwrap();
        assert_eq!(reasons, *expected, "{name}");
        // Told again from the start, it is whole.
        let again = deliver(&mut index, &store, (A, 2), &[seq(0)]).unwrap();
        assert_eq!(again.restarted, 1);
        let now = look(&mut index, &store, A, &[1]).unwrap();
        assert_eq!(now, (NONE, vec![held(1, 0)]), "{name}");
    }
}

#[test]
fn what_was_applied_is_not_applied_again() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    for seq in 0..3 {
        send(&mut index, &store, (A, 1), seq, &[stored(&[seq], "GPU")]).unwrap();
    }
    for seq in 0..3 {
        let again = send(&mut index, &store, (A, 1), seq, &[stored(&[seq], "GPU")]).unwrap();
        assert_eq!((again.payloads, again.duplicates), (0, 1));
    }
    let (_, now) = look(&mut index, &store, A, &[0, 1, 2]).unwrap();
    assert_eq!(now, [held(1, 0); 3]);
    let stream = index.stream(&store, A).unwrap().unwrap();
    assert_eq!(
        (stream.run, stream.next_seq, stream.last_ts),
        (1, 3, 1002.0)
    );
}

#[test]
fn a_restarted_engine_is_empty_and_whole() {
    for (newer, seq, reasons) in [
        (true, 0, NONE),
        (true, 1, Reasons::JOINED_LATE),
        (false, 0, Reasons::GAP),
    ] {
        let store = MemoryStore::new();
        let mut index = writer(&store, params(false));
        for seq in [0, 2] {
            let events = [stored(&[1], "GPU"), stored(&[1], "CPU")];
            send(&mut index, &store, (A, 1), seq, &events).unwrap();
        }
        // The sequence steps back in one run: the engine's clock says whether that is news.
        let ts = if newer { 1002.5 } else { 1002.0 };
        let bytes = payload(ts, &[stored(&[2], "GPU")]);
        let items = [Item::Payload { seq, bytes: &bytes }];
        let done = deliver(&mut index, &store, (A, 1), &items).unwrap();
        assert_eq!(done.restarted, u32::from(newer));
        let (now, blocks) = look(&mut index, &store, A, &[1, 2]).unwrap();
        assert_eq!(now, reasons);
        let expected = match newer {
            true => [held(0, 0), held(1, 0)],
            false => [held(2, 1), held(0, 0)],
        };
        assert_eq!(blocks, expected);
    }
}

#[test]
fn silence_is_no_evidence() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    let mut budget = u64::MAX;
    let mut view = |index: &mut Index, now| index.view(&store, A, now, &mut budget).err();
    assert_eq!(view(&mut index, NOW), Some(NotReady::Unknown));
    send(&mut index, &store, (A, 1), 0, &[]).unwrap();
    assert_eq!(view(&mut index, NOW + 30_000), None);
    assert_eq!(view(&mut index, NOW + 30_001), Some(NotReady::Silent));
    // The clock stepped back.
    assert_eq!(view(&mut index, NOW - 3_600_000), None);
    let beat = |index: &mut Index, at| index.heartbeat(&store, A, at, false);
    assert_eq!(beat(&mut index, Some(NOW + 30_001)), Ok(true));
    assert_eq!(view(&mut index, NOW + 60_001), None);
}

#[test]
fn engine_keys_are_bridged_by_tokens_and_parents() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(true));
    let now = |index: &mut Index, seq: u64, events: &[Said], blocks: &[u64]| {
        let done = send(index, &store, (A, 1), seq, events).unwrap();
        let (reasons, held) = look(index, &store, A, &chain(blocks)).unwrap();
        (done.unresolved, reasons.contains(Reasons::UNRESOLVED), held)
    };
    let ok = |held: &[Held]| (0, false, held.to_vec());
    let (g, c, n) = (held(1, 0), held(0, 1), held(0, 0));
    // A chain, then more of it by its parent's engine key.
    assert_eq!(
        now(&mut index, 0, &[told(None, &[1, 2], "GPU")], &[1, 2, 3]),
        ok(&[g, g, n])
    );
    assert_eq!(
        now(&mut index, 1, &[told(Some(2), &[3], "GPU")], &[1, 2, 3]),
        ok(&[g, g, g])
    );
    // Offloaded without tokens; an offload after the GPU's copy went; with tokens, but known.
    let events = [
        stored(&[1], "CPU"),
        Said::Removed(vec![2], "GPU"),
        stored(&[2], "CPU"),
    ];
    assert_eq!(
        now(&mut index, 2, &events, &[1, 2, 3]),
        ok(&[held(1, 1), c, g])
    );
    let events = [Said::Cleared, told(Some(2), &[3], "CPU")];
    assert_eq!(now(&mut index, 3, &events, &[1, 2, 3]), ok(&[c, c, c]));
    // A second engine key for the same tokens: both count.
    let mut other = told(None, &[1], "GPU");
    let Said::Stored { hashes, .. } = &mut other else {
        panic!()
    };
    hashes[0] = 999;
    assert_eq!(now(&mut index, 4, &[other], &[1]), ok(&[held(1, 1)]));
    assert_eq!(
        now(&mut index, 5, &[Said::Removed(vec![1], "CPU")], &[1]),
        ok(&[g])
    );
    // A change of the writer in between.
    let mut index = writer(&store, params(true));
    assert_eq!(
        now(&mut index, 6, &[told(Some(3), &[4], "GPU")], &[1, 2, 3, 4]),
        ok(&[g, c, c, g])
    );
}

#[test]
fn what_cannot_be_told_is_partial() {
    let with = |change: &dyn Fn(&mut Said)| {
        let mut said = told(None, &[5], "GPU");
        change(&mut said);
        said
    };
    let group = |idx, kind| {
        with(&|said| {
            if let Said::Stored { group, .. } = said {
                *group = Some((idx, kind));
            }
        })
    };
    let lora = with(&|said| {
        if let Said::Stored { lora_id, .. } = said {
            *lora_id = Some(1);
        }
    });
    let short = with(&|said| {
        if let Said::Stored { tokens, .. } = said {
            tokens.pop();
        }
    });
    let full = Some("full_attention");
    let yes = (true, held(1, 0));
    let no = (false, held(0, 0));
    // Bridged, direct: whether the block is found, and whether something stayed unresolved.
    type Row<'a> = (&'a str, Vec<Said>, (bool, Held), (bool, Held));
    let table: &[Row<'_>] = &[
        (
            "plain",
            vec![told(None, &[5], "GPU")],
            (false, yes.1),
            (false, yes.1),
        ),
        (
            "no tokens",
            vec![stored(&[5], "GPU")],
            (true, no.1),
            (false, yes.1),
        ),
        (
            "no parent",
            vec![told(Some(4), &[5], "GPU")],
            (true, no.1),
            (false, yes.1),
        ),
        (
            "offloaded, extra keys unknown",
            vec![told(None, &[5], "CPU")],
            (true, no.1),
            (false, held(0, 1)),
        ),
        (
            "an adapter by number",
            vec![lora],
            (true, no.1),
            (false, yes.1),
        ),
        ("a token too few", vec![short], (true, no.1), (false, yes.1)),
        (
            "a group never told of",
            vec![group(0, None)],
            (true, no.1),
            (true, no.1),
        ),
        (
            "full attention",
            vec![group(0, full)],
            (false, yes.1),
            (false, yes.1),
        ),
        ("another group", vec![group(1, Some("mamba"))], no, no),
        (
            "the same, later",
            vec![group(0, full), group(0, None)],
            (false, held(2, 0)),
            (false, held(2, 0)),
        ),
    ];
    for (name, events, bridged, direct) in table {
        for (mode, expected) in [(true, bridged), (false, direct)] {
            let store = MemoryStore::new();
            let mut index = writer(&store, params(mode));
            send(&mut index, &store, (A, 1), 0, events).unwrap();
            let key = if mode { chain(&[5])[0] } else { 5 };
            let (reasons, now) = look(&mut index, &store, A, &[key]).unwrap();
            let now = (reasons.contains(Reasons::UNRESOLVED), now[0]);
            assert_eq!(now, *expected, "{name}, bridged {mode}");
        }
    }
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    send(
        &mut index,
        &store,
        (A, 1),
        0,
        &[Said::Bad, stored(&[1], "GPU")],
    )
    .unwrap();
    let now = look(&mut index, &store, A, &[1]).unwrap();
    assert_eq!(now, (Reasons::UNREADABLE, vec![held(1, 0)]));
}

#[test]
fn another_block_size_is_not_ours() {
    let store = MemoryStore::new();
    let mut index = writer(
        &store,
        Params {
            block_size: 16,
            ..params(false)
        },
    );
    send(&mut index, &store, (A, 1), 0, &[told(None, &[5], "GPU")]).unwrap();
    let now = look(&mut index, &store, A, &[5]).unwrap();
    assert_eq!(now, (Reasons::UNRESOLVED, vec![held(0, 0)]));
}

/// Of two groups' copies one may go: then the engine no longer uses the block.
#[test]
fn several_groups_of_full_attention_are_a_lower_bound() {
    for bridged in [false, true] {
        let of = |group, kind| {
            let mut said = told(None, &[5], "GPU");
            if let Said::Stored { group: is, .. } = &mut said {
                *is = Some((group, Some(kind)));
            }
            said
        };
        for (kind, expected) in [
            ("full_attention", Reasons::GROUPS),
            ("mla_attention", Reasons::GROUPS),
            ("sliding_window", NONE),
        ] {
            let store = MemoryStore::new();
            let mut index = writer(&store, params(bridged));
            let events = [of(0, "full_attention"), of(1, kind)];
            send(&mut index, &store, (A, 1), 0, &events[..1]).unwrap();
            assert_eq!(look(&mut index, &store, A, &[]).unwrap().0, NONE);
            send(&mut index, &store, (A, 1), 1, &events[1..]).unwrap();
            let now = look(&mut index, &store, A, &[]).unwrap().0;
            assert_eq!(now, expected, "{bridged} {kind}");
            send(&mut index, &store, (A, 2), 0, &[]).unwrap();
            assert_eq!(look(&mut index, &store, A, &[]).unwrap().0, NONE);
        }
    }
}

/// Hashes alone are hashes, whatever they say of a block's size: some connectors write a chunk's.
#[test]
fn a_chunks_size_beside_hashes_alone_does_not_count() {
    for bridged in [false, true] {
        let store = MemoryStore::new();
        let mut index = writer(&store, params(bridged));
        send(&mut index, &store, (A, 1), 0, &[told(None, &[5], "GPU")]).unwrap();
        // [ts, [["BlockStored", [5], nil, [], 8, nil, "CPU"]]]
        let mut bytes = vec![0x92, 0xcb];
        bytes.extend(1_795_952_400_f64.to_bits().to_be_bytes());
        bytes.extend(b"\x91\x97\xabBlockStored\x91\x05\xc0\x90\x08\xc0\xa3CPU");
        let items = [Item::Payload {
            seq: 1,
            bytes: &bytes,
        }];
        deliver(&mut index, &store, (A, 1), &items).unwrap();
        let key = if bridged { chain(&[5])[0] } else { 5 };
        let now = look(&mut index, &store, A, &[key]).unwrap();
        assert_eq!(now, (NONE, vec![held(1, 1)]), "{bridged}");
    }
}

#[test]
fn shared_tiers_are_one_for_the_group() {
    for bridged in [false, true] {
        let store = MemoryStore::new();
        let shared = Params {
            shared_tiers: vec!["storage".to_owned(), "shared_storage".to_owned()],
            ..params(bridged)
        };
        let mut index = writer(&store, shared.clone());
        let keys = if bridged { chain(&[1, 2]) } else { vec![1, 2] };
        send(&mut index, &store, (B, 1), 0, &[told(None, &[9], "GPU")]).unwrap();
        let events = [
            told(None, &[1, 2], "GPU"),
            stored(&[1], "STORAGE"),
            stored(&[2], "CPU"),
        ];
        send(&mut index, &store, (A, 1), 0, &events).unwrap();
        // A publisher that is no endpoint, and knows no tokens.
        let phantom = ("SHARED_STORAGE", 1);
        let done = send(
            &mut index,
            &store,
            phantom,
            0,
            &[stored(&[2, 77], "SHARED_STORAGE")],
        )
        .unwrap();
        assert_eq!(done.unresolved, u32::from(bridged));
        for index in [&mut index, &mut Index::new(shared.clone())] {
            let (_, a) = look(index, &store, A, &keys).unwrap();
            let (reasons, b) = look(index, &store, B, &keys).unwrap();
            assert_eq!(index.tiers(), ["storage", "cpu", "shared_storage"]);
            assert_eq!(a, [held(1, 1), held(1, 2 | 4)], "bridged {bridged}");
            assert_eq!(b, [held(0, 1), held(0, 4)], "bridged {bridged}");
            // What the phantom said of a block that nobody knows is missing for all.
            let unknown = Reasons::UNRESOLVED;
            assert_eq!(reasons, if bridged { unknown } else { NONE });
        }
        // A restart of one takes nothing from the others.
        send(&mut index, &store, (A, 2), 0, &[]).unwrap();
        let (_, a) = look(&mut index, &store, A, &keys).unwrap();
        assert_eq!(a, [held(0, 1), held(0, 4)]);
        // The last endpoint takes the group's tiers along.
        index.retain(&store, &|endpoint| endpoint == B).unwrap();
        assert_eq!(
            look(&mut index, &store, B, &keys).unwrap().1,
            [held(0, 1), held(0, 4)]
        );
        index.retain(&store, &|_| false).unwrap();
        assert_eq!(index.endpoints().count(), 0);
        send(&mut index, &store, (B, 1), 0, &[told(None, &[9], "GPU")]).unwrap();
        assert_eq!(
            look(&mut index, &store, B, &keys).unwrap().1,
            [held(0, 0); 2]
        );
    }
}

#[test]
fn another_configuration_starts_afresh() {
    let store = MemoryStore::new();
    let mut old = writer(&store, params(false));
    send(&mut old, &store, (A, 1), 0, &[stored(&[1], "GPU")]).unwrap();
    let other = Params {
        fingerprint: 8,
        ..params(false)
    };
    let mut reader = Index::new(other.clone());
    assert_eq!(look(&mut reader, &store, A, &[1]), Err(NotReady::Unknown));
    let mut new = writer(&store, other);
    send(&mut new, &store, (A, 1), 1, &[stored(&[2], "GPU")]).unwrap();
    let now = look(&mut reader, &store, A, &[1, 2]).unwrap();
    assert_eq!(now, (Reasons::JOINED_LATE, vec![held(0, 0), held(1, 0)]));
    // The old one notices, as reader and as writer.
    assert_eq!(look(&mut old, &store, A, &[1]), Err(NotReady::Unknown));
    let late = send(&mut old, &store, (A, 1), 1, &[stored(&[3], "GPU")]);
    assert_eq!(late, Err(IndexError::Superseded));
}

#[test]
fn the_cursor_and_the_place_outlive_the_writer() {
    let store = MemoryStore::new();
    let mut index = writer(&store, params(false));
    assert_eq!(index.cursor(&store), Ok(None));
    index.set_cursor(&store, b"e7:940").unwrap();
    let mut next = writer(&store, params(false));
    assert_eq!(next.cursor(&store), Ok(Some(b"e7:940".to_vec())));
    assert_eq!(
        next.set_cursor(&store, &[0; 1025]),
        Err(IndexError::Invalid)
    );
    let mut reader = Index::new(params(false));
    assert_eq!(reader.set_cursor(&store, b"x"), Err(IndexError::Superseded));
    let late = send(&mut reader, &store, (A, 1), 0, &[]);
    assert_eq!(late, Err(IndexError::Superseded));
    // A scorer that takes the place of an abandoned one clears it.
    send(&mut next, &store, (A, 1), 0, &[stored(&[1], "GPU")]).unwrap();
    for i in 1..=MAX_PLACES {
        let scorer = format!("s{i}");
        let mut other = Index::new(Params {
            scorer,
            ..params(false)
        });
        let at = NOW + ABANDONED_MS + 1;
        let time = if i == MAX_PLACES { at } else { at - 1 };
        assert_eq!(other.take_over(&store, time), Ok(()));
        if i == MAX_PLACES {
            assert_eq!(other.place, next.place);
            assert_eq!(look(&mut other, &store, A, &[1]), Err(NotReady::Unknown));
            send(&mut other, &store, (A, 1), 0, &[]).unwrap();
            assert_eq!(look(&mut other, &store, A, &[1]).unwrap().1, [held(0, 0)]);
        }
    }
    assert_eq!(look(&mut next, &store, A, &[1]), Err(NotReady::Unknown));
    let late = send(&mut next, &store, (A, 1), 1, &[stored(&[1], "GPU")]);
    assert_eq!(late, Err(IndexError::Superseded));
}

#[test]
fn an_engine_that_calls_blocks_otherwise_is_found_out() {
    let salted = Reasons::HASH_MISMATCH;
    // The first block is 5 by its tokens, whatever the engine calls it.
    let with = |hash: u64, change: &dyn Fn(&mut Said)| {
        let mut said = told(None, &[5, 6], "GPU");
        if let Said::Stored { hashes, .. } = &mut said {
            hashes[0] = hash;
        }
        change(&mut said);
        said
    };
    let plain = |_: &mut Said| {};
    let table: &[(&str, Said, Reasons)] = &[
        ("as it should", with(5, &plain), NONE),
        ("another seed", with(1005, &plain), salted),
        (
            "not the first of a prompt",
            with(1005, &|said| {
                if let Said::Stored { parent, .. } = said {
                    *parent = Some(4);
                }
            }),
            NONE,
        ),
        (
            "an adapter's",
            with(1005, &|said| {
                if let Said::Stored { lora_id, .. } = said {
                    *lora_id = Some(1);
                }
            }),
            NONE,
        ),
        ("without tokens", stored(&[1005], "GPU"), NONE),
        (
            "offloaded, salt unknown",
            with(1005, &|said| {
                if let Said::Stored { medium, .. } = said {
                    *medium = "CPU";
                }
            }),
            NONE,
        ),
    ];
    for (name, said, expected) in table {
        let store = MemoryStore::new();
        let mut index = writer(&store, params(false));
        let done = send(&mut index, &store, (A, 1), 0, std::slice::from_ref(said)).unwrap();
        assert_eq!(done.mismatches, u32::from(*expected != NONE), "{name}");
        // It stays until the engine starts anew.
        send(&mut index, &store, (A, 1), 1, &[told(None, &[7], "GPU")]).unwrap();
        let (reasons, _) = look(&mut index, &store, A, &[]).unwrap();
        assert_eq!(reasons, *expected, "{name}");
        send(&mut index, &store, (A, 2), 0, &[]).unwrap();
        assert_eq!(look(&mut index, &store, A, &[]).unwrap().0, NONE, "{name}");
    }
}
