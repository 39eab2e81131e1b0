//! What is loaded and stored, and that the events tell of exactly what is there.

use super::*;
use crate::hashing::Algorithm;
use crate::version::Release;
use std::collections::HashMap;

fn geometry(blocks_per_chunk: usize) -> Geometry {
    Geometry {
        block_size: 32,
        blocks_per_chunk,
        bytes_per_token: 1024,
        gpu_blocks: None,
        cpu_chunks: None,
    }
}

fn prompt(tokens: u32) -> Prompt {
    Prompt {
        tokens: (0..tokens).collect(),
        ..Prompt::default()
    }
}

fn cache(geometry: Geometry, secondary: &[&str]) -> Cache {
    let kinds: Vec<_> = secondary
        .iter()
        .map(|kind| TierKind::parse(kind).unwrap())
        .collect();
    let hasher = BlockHasher::new(Algorithm::Sha256Cbor, Some("0"), Release(0, 32, 0));
    Cache::new(geometry, &kinds, hasher)
}

fn cap(load: u128) -> Params {
    Params {
        max_load_tokens: Some(load),
        ..Params::default()
    }
}

#[test]
fn a_warm_prompt_of_whole_blocks_still_loads_its_last_one() {
    let mut cache = cache(geometry(1), &[]);
    cache.serve(&prompt(1024), &Params::default(), true);
    let again = cache.serve(&prompt(1024), &Params::default(), true);
    assert_eq!((again.gpu_tokens, again.loaded_tokens), (992, 32));
}

#[test]
fn secondary_loads_are_promoted_and_what_was_not_loaded_is_stored_again() {
    // Given a prompt on disk only; when 256 tokens may be loaded; then 768 are stored.
    let mut cache = cache(geometry(1), &["fs"]);
    assert!(cache.place(&prompt(1024), 0, 32, "fs"));
    let served = cache.serve(&prompt(1024), &cap(256), true);
    assert_eq!((served.loaded_tokens, served.stored_tokens), (256, 768));
    assert_eq!(
        served.loaded_by_tier,
        BTreeMap::from([("fs".to_owned(), 256)])
    );
    assert!(!cache.place(&prompt(1024), 0, 32, "nvme"));
}

#[test]
fn chunks_of_several_blocks_are_loaded_whole() {
    for (gpu_blocks, external_blocks, load, expected) in [
        (0, 32, u128::MAX, 1024), // all eight chunks
        (0, 30, u128::MAX, 896),  // the last chunk is not whole
        (2, 32, u128::MAX, 960),  // from the middle of a chunk on
        (29, 32, u128::MAX, 0),   // 96 tokens follow, less than a chunk of 128
        (28, 32, u128::MAX, 128),
        (0, 32, 127, 0),
        (0, 32, 300, 256),
    ] {
        let mut cache = cache(geometry(4), &[]);
        cache.place(&prompt(1025), 0, gpu_blocks, GPU);
        cache.place(&prompt(1025), 0, external_blocks, CPU);
        let served = cache.serve(&prompt(1025), &cap(load), true);
        assert_eq!(
            served.loaded_tokens, expected,
            "{gpu_blocks} {external_blocks} {load}"
        );
    }
}

#[test]
fn salts_isolate() {
    let mut cache = cache(geometry(1), &[]);
    cache.serve(&prompt(64), &Params::default(), true);
    let salted = Prompt {
        salt: Some("tenant".into()),
        ..prompt(64)
    };
    assert_eq!(
        cache
            .serve(&salted, &Params::default(), true)
            .cached_tokens(),
        0
    );
}

/// A small linear generator; any placement must do.
fn random() -> impl FnMut(usize) -> usize {
    let mut seed = 1_u64;
    move |below| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    }
}

/// External tokens of a prompt by its runs, as a reader of the contract counts them.
fn external_tokens(runs: &[Run]) -> usize {
    let blocks: Vec<_> = runs
        .iter()
        .flat_map(|run| vec![&run.tiers; run.blocks])
        .collect();
    let gpu = blocks
        .iter()
        .take_while(|tiers| tiers.iter().any(|t| t == GPU))
        .count();
    blocks[gpu..]
        .iter()
        .take_while(|tiers| tiers.iter().any(|t| t != GPU))
        .count()
        * 32
}

#[test]
fn exact_evidence_foretells_what_is_loaded() {
    let mut random = random();
    for round in 0..2000 {
        let mut cache = cache(geometry(1 + random(3)), &["fs"]);
        let mut prompts: Vec<_> = (0..1 + random(3))
            .map(|_| match random(3) {
                0 => prompt(32 * random(13) as u32),
                _ => prompt(random(400) as u32),
            })
            .collect();
        for prompt in &mut prompts {
            let fork = random(prompt.tokens.len() + 1);
            let branch = random(2) as u32;
            prompt
                .tokens
                .iter_mut()
                .skip(fork)
                .for_each(|token| *token += 1000 * branch);
        }
        for prompt in &prompts {
            for tier in [GPU, CPU, "fs"] {
                let from = random(3);
                cache.place(
                    prompt,
                    if from < 2 { 0 } else { random(9) },
                    random(14),
                    tier,
                );
            }
        }
        let evidence = cache.evidence(&prompts, true);
        for (prompt, runs) in prompts.iter().zip(&evidence) {
            let served = cache.serve(prompt, &Params::default(), true);
            assert_eq!(
                served.loaded_tokens,
                external_tokens(runs),
                "round {round}: {runs:?}"
            );
        }
    }
}

/// What a subscriber makes of the events: how often each block is there. (Chunks of several blocks
/// share blocks with others, and all but the last mean nothing.)
#[derive(Default)]
struct Told(HashMap<(Medium, BlockHash), usize>);

impl Told {
    fn holds(&self, medium: Medium, hash: &BlockHash) -> bool {
        self.0.contains_key(&(medium, *hash))
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::AllCleared => self.0.retain(|(medium, _), _| *medium != Medium::Gpu),
            Event::Stored {
                hashes,
                medium,
                content,
            } => {
                assert_eq!(content.is_some(), medium == Medium::Gpu);
                if let Some(content) = content {
                    assert_eq!(content.tokens.len(), hashes.len() * content.block_size);
                }
                for hash in hashes {
                    *self.0.entry((medium, hash)).or_default() += 1;
                }
            }
            Event::Removed { hashes, medium } => {
                for hash in hashes {
                    let copies = self.0.get_mut(&(medium, hash));
                    let copies = copies.expect("what is removed was there");
                    *copies -= 1;
                    if *copies == 0 {
                        self.0.remove(&(medium, hash));
                    }
                }
            }
        }
    }
}

#[test]
fn events_tell_exactly_what_is_held() {
    let mut random = random();
    let mut evictions = 0;
    for round in 0..40 {
        let per_chunk = 1 + random(2);
        let mut cache = cache(
            Geometry {
                gpu_blocks: Some(12 + random(20)),
                cpu_chunks: Some(8 + random(20)),
                ..geometry(per_chunk)
            },
            &["fs+events"],
        );
        let mut told = Told::default();
        let prompts: Vec<_> = (0..8)
            .map(|_| {
                let mut prompt = prompt(random(380) as u32);
                let fork = random(prompt.tokens.len() + 1);
                let branch = random(4) as u32;
                let tail = prompt.tokens.iter_mut().skip(fork);
                tail.for_each(|token| *token += 1000 * branch);
                prompt
            })
            .collect();
        let hashes: Vec<_> = prompts.iter().map(|it| cache.block_hashes(it)).collect();
        for step in 0..60 {
            let prompt = &prompts[random(prompts.len())];
            match random(20) {
                0 => cache.reset(false),
                1 => assert!(cache.evict(prompt, random(3), random(12), GPU)),
                2 => assert!(cache.evict(prompt, random(3), random(12), CPU)),
                3 => assert!(cache.place(prompt, random(3), random(12), CPU)),
                _ => {
                    cache.serve(prompt, &Params::default(), random(10) > 0);
                }
            }
            for batch in cache.take_batches() {
                evictions += usize::from(matches!(batch.first(), Some(Event::Removed { .. })));
                batch.into_iter().for_each(|event| told.hear(event));
            }
            if cache.cleared {
                continue;
            }
            for hashes in &hashes {
                for (block, hash) in hashes.iter().enumerate() {
                    let what = format!("round {round}, step {step}, block {block}");
                    assert_eq!(
                        cache.gpu.holds(hash),
                        told.holds(Medium::Gpu, hash),
                        "{what}"
                    );
                    if (block + 1) % per_chunk == 0 {
                        let fs = &cache.secondary[0].chunks;
                        let storage = Medium::Storage {
                            object_store: false,
                        };
                        assert_eq!(
                            cache.cpu.holds(hash),
                            told.holds(Medium::Cpu, hash),
                            "{what}"
                        );
                        assert_eq!(fs.holds(hash), told.holds(storage, hash), "{what}");
                    }
                }
            }
        }
    }
    assert!(evictions > 200, "{evictions}");
}

#[test]
fn a_block_computed_twice_is_two_copies() {
    // A prompt of whole blocks is never a full hit: its last block is computed again.
    let mut cache = cache(geometry(1), &[]);
    for _ in 0..2 {
        cache.serve(&prompt(64), &cap(0), true);
    }
    let stored: Vec<_> = cache
        .take_batches()
        .concat()
        .into_iter()
        .filter_map(|event| match event {
            Event::Stored {
                hashes,
                medium: Medium::Gpu,
                ..
            } => Some(hashes.len()),
            _ => None,
        })
        .collect();
    assert_eq!(stored, [2, 1]);
    assert!(cache.evict(&prompt(64), 1, 2, GPU));
    let removed = vec![removed(vec![cache.block_hashes(&prompt(64))[1]], Medium::Gpu); 2];
    assert_eq!(cache.take_batches(), [removed]);
}

#[test]
fn the_least_recently_used_go_first_and_ends_before_beginnings() {
    let small = Geometry {
        gpu_blocks: Some(4),
        cpu_chunks: Some(3),
        ..geometry(1)
    };
    let mut cache = cache(small, &[]);
    let other = |first: u32| Prompt {
        tokens: (first..first + 65).collect(),
        ..Prompt::default()
    };
    for first in [0, 1000, 2000] {
        cache.serve(&other(first), &Params::default(), true);
    }
    // Four blocks fit: of the first prompt none is left, and the CPU has three chunks.
    let runs = cache.evidence(&[other(0), other(1000), other(2000)], true);
    let run = |blocks, tiers: &[&str]| Run {
        blocks,
        tiers: tiers.iter().map(|tier| tier.to_string()).collect(),
    };
    assert_eq!(
        runs,
        [
            vec![run(2, &[])],
            vec![run(1, &[GPU]), run(1, &[GPU, CPU])],
            vec![run(2, &[GPU, CPU])],
        ]
    );
    // More than the primary tier holds is not stored at all.
    let served = cache.serve(&prompt(200), &Params::default(), true);
    assert_eq!(served.stored_tokens, 0);
}

#[test]
fn a_reset_is_told_with_the_next_request() {
    let mut cache = cache(geometry(1), &[]);
    cache.serve(&prompt(65), &Params::default(), true);
    cache.take_batches();

    cache.reset(true);
    assert_eq!(cache.take_batches(), Vec::<Vec<Event>>::new());
    let served = cache.serve(&prompt(65), &Params::default(), true);

    assert_eq!((served.cached_tokens(), served.stored_tokens), (0, 64));
    assert_eq!(
        cache.take_batches().concat().first(),
        Some(&Event::AllCleared)
    );
}

#[test]
fn a_restart_keeps_only_what_is_on_disk() {
    let mut cache = cache(geometry(1), &["fs"]);
    cache.serve(&prompt(65), &Params::default(), true);
    let hasher = BlockHasher::new(Algorithm::Sha256Cbor, Some("0"), Release(0, 32, 0));
    cache.restart(hasher);
    let served = cache.serve(&prompt(65), &Params::default(), true);
    assert_eq!(
        served.loaded_by_tier,
        BTreeMap::from([("fs".to_owned(), 64)])
    );
}
