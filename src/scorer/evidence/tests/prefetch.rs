//! What kv-prefetch-agent is told of a request: which blocks, by which digests, and when nothing.

use super::engine::{Engine, Said, offloaded, stored};
use super::vectors::rows;
use super::{A, B, EvidenceConfig, NOW, SIZE, World, config, facts, tokens};
use crate::contract::store::MemoryStore;
use crate::prefix::{Algorithm, Chain, Context, ExtraKeyFormat};
use crate::prompt::{Prompt, Request, TokenPrompts};
use crate::scorer::config::{KeysConfig, PrefetchConfig, ScorerConfig};
use crate::scorer::evidence::{EngineFacts, Evidence, Fleet};
use crate::scorer::poller::Answer;
use crate::scorer::prefetch::{Answered, Asked, Plan, Prefetch, PrefetchResult};
use std::num::NonZeroU32;
use std::rc::Rc;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn files() -> PrefetchConfig {
    PrefetchConfig {
        cluster: "agent".into(),
        authority: "agent".to_owned(),
        path: "/prefetch".to_owned(),
        token: None,
        timeout_ms: 1_000,
        keys: KeysConfig::Sha256Cbor {
            python_hash_seed: Some("0".to_owned()),
            extra_keys: None,
        },
        blocks_per_file: NonZeroU32::MIN,
        max_digests: 4_096,
        max_in_flight: 2,
        window_ms: 10_000,
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digests of a prompt's blocks, in blocks of 4.
fn digests(tokens: &[u32]) -> Vec<String> {
    let algorithm = Algorithm::sha256_cbor(Some("0"), ExtraKeyFormat::Tagged);
    let Ok(Chain::Sha256(mut chain)) = algorithm.chain(&Context::default()) else {
        panic!()
    };
    let blocks = tokens.chunks_exact(SIZE.get() as usize);
    blocks.map(|block| hex(chain.next(block))).collect()
}

/// Index and digest of each block of a message.
fn blocks(plan: &Plan) -> Vec<(u32, String)> {
    let message: serde_json::Value = serde_json::from_slice(&plan.body).unwrap();
    assert_eq!(message["v"], 1);
    let blocks: Vec<(u32, String)> = serde_json::from_value(message["blocks"].clone()).unwrap();
    assert_eq!(blocks.len(), plan.digests);
    blocks
}

impl World {
    /// Publishes a request, and plans what the agent is told of it.
    fn plan(
        &mut self,
        prefetch: &mut Prefetch,
        body: &str,
        chosen: Option<&str>,
    ) -> Result<Plan, &'static str> {
        let published = self.request("id", body);
        let asked = Asked {
            request: &Self::read(body),
            chosen,
            likeliest: published.likeliest.as_deref(),
        };
        prefetch
            .plan(&mut self.worker, &self.store, asked, self.now)
            .map_err(PrefetchResult::as_str)
    }

    /// Which blocks of a prompt of `length` tokens from 100 on are told.
    fn told_of(&mut self, config: PrefetchConfig, length: u32, chosen: Option<&str>) -> Vec<u32> {
        let mut prefetch = Prefetch::new(config, 7);
        let prompt: Vec<u32> = (100..100 + length).collect();
        match self.plan(&mut prefetch, &body(&prompt), chosen) {
            Ok(plan) => {
                let all = digests(&prompt);
                let told = blocks(&plan).into_iter();
                told.map(|(index, digest)| {
                    assert_eq!(digest, all[index as usize]);
                    index
                })
                .collect()
            }
            Err(why) => {
                assert_eq!(why, "warm");
                Vec::new()
            }
        }
    }
}

fn body(prompt: &[u32]) -> String {
    format!("{{\"prompt\":{prompt:?}}}")
}

/// A holds blocks 0 and 1 in the GPU, 1 and 2 in memory, 2 and 3 in storage; 4 and 5 nowhere.
fn world(evidence: EvidenceConfig) -> World {
    let members = [(A, facts("base", &["lora"])), (B, facts("base", &[]))];
    let mut world = World::new(evidence, &members);
    let mut engine = Engine::new(A);
    world.told(
        &mut engine,
        &[
            Said::Stored(stored(&[1, 2, 3, 4], &tokens(100, 4))),
            offloaded(&[2, 3], "CPU"),
            offloaded(&[3, 4], "STORAGE"),
            Said::Removed(vec![3, 4], "GPU"),
        ],
    );
    world.told(
        &mut Engine::new(B),
        &[Said::Stored(stored(&[1], &tokens(100, 1)))],
    );
    world.tick();
    world
}

#[test]
fn only_blocks_that_lie_in_files_are_told() {
    let mut world = world(config());
    // 27 tokens: the last 3 are in no full block.
    assert_eq!(world.told_of(files(), 27, Some(A)), [3, 4, 5]);
    assert_eq!(world.told_of(files(), 24, Some(A)), [3, 4, 5]);
    assert_eq!(world.told_of(files(), 15, Some(A)), [0; 0]);
    assert_eq!(world.told_of(files(), 3, Some(A)), [0; 0]);
    assert_eq!(world.told_of(files(), 24, Some(B)), [1, 2, 3, 4, 5]);
    // Nobody has chosen yet: where it will find most.
    assert_eq!(world.told_of(files(), 24, None), [3, 4, 5]);
}

#[test]
fn a_file_has_the_name_of_its_last_block() {
    let per_file = |n| PrefetchConfig {
        blocks_per_file: NonZeroU32::new(n).unwrap(),
        ..files()
    };
    let mut world = world(config());
    assert_eq!(world.told_of(per_file(2), 27, Some(B)), [1, 3, 5]);
    assert_eq!(world.told_of(per_file(2), 27, Some(A)), [3, 5]);
    assert_eq!(world.told_of(per_file(3), 27, Some(A)), [5]);
    assert_eq!(world.told_of(per_file(7), 27, Some(A)), [0; 0]);
}

#[test]
fn the_engines_own_keys_serve_too() {
    let keys = files().keys;
    let mut world = world(EvidenceConfig {
        keys: keys.clone(),
        ..config()
    });
    // Under the engine's own names, which the hashes 1, 2, … are not.
    let all = digests(&tokens(100, 6));
    let mut engine = Engine::new("10.0.0.9:8000");
    world.members(&[("10.0.0.9:8000", facts("base", &[]))]);
    let hash = |digest: &String| u64::from_str_radix(digest.get(48..).unwrap(), 16).unwrap();
    let hashes: Vec<u64> = all.iter().take(2).map(hash).collect();
    world.told(
        &mut engine,
        &[Said::Stored(stored(&hashes, &tokens(100, 2)))],
    );
    world.tick();
    let chosen = Some("10.0.0.9:8000");
    assert_eq!(world.told_of(files(), 24, chosen), [2, 3, 4, 5]);
}

#[test]
fn at_most_max_digests_are_told_the_first_ones() {
    let few = PrefetchConfig {
        max_digests: 2,
        ..files()
    };
    assert_eq!(world(config()).told_of(few, 27, Some(B)), [1, 2]);
}

/// An endpoint of which no events are known holds nothing.
#[test]
fn a_member_that_has_said_nothing_is_told_of_all() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    assert_eq!(world.told_of(files(), 12, Some(A)), [0, 1, 2]);
    assert_eq!(world.told_of(files(), 12, None), [0, 1, 2]);
}

#[test]
fn what_several_prompts_share_is_told_once() {
    let mut world = world(config());
    let mut prefetch = Prefetch::new(files(), 7);
    let (one, other) = (tokens(100, 6), [tokens(100, 4), tokens(900, 1)].concat());
    let body = format!("{{\"prompt\":{:?}}}", [&one, &other]);
    let plan = world.plan(&mut prefetch, &body, Some(A)).unwrap();
    let (one, other) = (digests(&one), digests(&other));
    let expected = [(3, &one[3]), (4, &one[4]), (5, &one[5]), (4, &other[4])];
    assert_eq!(
        blocks(&plan),
        expected.map(|(index, digest)| (index, digest.clone()))
    );
}

#[test]
fn what_was_told_a_short_time_ago_is_not_told_again() {
    let mut world = world(config());
    let mut prefetch = Prefetch::new(files(), 7);
    let short = body(&tokens(100, 5));
    let plan = world.plan(&mut prefetch, &short, Some(A)).unwrap();
    // Not sent: it was not told.
    assert_eq!(world.plan(&mut prefetch, &short, Some(A)).unwrap(), plan);
    prefetch.sent(&plan, 1);
    assert_eq!(prefetch.answered(1, Answer::None), Some(Answered::NoAnswer));
    assert_eq!(world.plan(&mut prefetch, &short, Some(A)), Err("repeated"));
    let indexes = |plan: Result<Plan, _>| -> Vec<u32> {
        let blocks = blocks(&plan.unwrap()).into_iter();
        blocks.map(|(index, _)| index).collect()
    };
    let longer = body(&tokens(100, 7));
    assert_eq!(indexes(world.plan(&mut prefetch, &longer, Some(A))), [5, 6]);
    // Another endpoint reads the same files.
    assert_eq!(indexes(world.plan(&mut prefetch, &short, Some(B))), [1, 2]);
    // Another salt, other files.
    let salted = short.replace('{', "{\"cache_salt\":\"s\",");
    assert_eq!(
        indexes(world.plan(&mut prefetch, &salted, Some(A))),
        [0, 1, 2, 3, 4]
    );
    world.now += 10_000;
    world.told(&mut Engine::new(A), &[]);
    assert_eq!(indexes(world.plan(&mut prefetch, &short, Some(A))), [3, 4]);
}

#[test]
fn calls_in_flight_are_bounded() {
    let mut world = world(config());
    let mut prefetch = Prefetch::new(files(), 7);
    let mut next =
        |prefetch: &mut Prefetch, first| world.plan(prefetch, &body(&tokens(first, 2)), Some(A));
    for (token, first) in [(7, 500), (8, 600)] {
        let plan = next(&mut prefetch, first).unwrap();
        prefetch.sent(&plan, token);
    }
    assert_eq!(next(&mut prefetch, 700), Err("busy"));
    assert!(prefetch.is_mine(7) && !prefetch.is_mine(9));
    assert_eq!(prefetch.answered(9, Answer::None), None);
    let accepted = Answer::Http {
        status: 202,
        body: b"",
    };
    assert_eq!(prefetch.answered(7, accepted), Some(Answered::Ok));
    assert_eq!(prefetch.answered(7, accepted), None);
    assert!(next(&mut prefetch, 700).is_ok());
    // Answers that never come: a timeout of 1 s is two ticks of 500 ms, and four to spare.
    let given_up: Vec<usize> = (0..8).map(|_| prefetch.tick(500)).collect();
    assert_eq!(given_up, [0, 0, 0, 0, 0, 0, 1, 0]);
    assert!(!prefetch.is_mine(8));
}

#[test]
fn what_the_agent_makes_of_a_message() {
    let http = |status| Answer::Http { status, body: b"" };
    for (answer, expected) in [
        (http(202), "ok"),
        (http(200), "ok"),
        (http(400), "status"),
        (http(401), "unauthorized"),
        (http(413), "status"),
        (http(503), "unavailable"),
        (http(504), "unavailable"),
        (Answer::TooLarge, "status"),
        (Answer::None, "no_answer"),
        (Answer::Unreadable, "no_answer"),
    ] {
        let mut world = world(config());
        let mut prefetch = Prefetch::new(files(), 7);
        let plan = world.plan(&mut prefetch, &body(&tokens(100, 6)), Some(A));
        prefetch.sent(&plan.unwrap(), 1);
        let result = prefetch.answered(1, answer).map(Answered::as_str);
        assert_eq!(result, Some(expected), "{answer:?}");
    }
}

#[test]
fn why_nothing_is_told() {
    let ids = format!("{:?}", tokens(100, 6));
    let old = |version: &str, algorithm: &str| EngineFacts {
        version: Some(version.to_owned()),
        hash_algorithm: Some(algorithm.to_owned()),
        ..facts("base", &[])
    };
    let members = [
        (A, facts("base", &["lora"])),
        ("10.0.1.1:1", old("0.32.0", "sha256")),
        ("10.0.1.2:1", old("0.1.dev3", "sha256_cbor")),
        ("10.0.1.3:1", old("0.28.0", "sha256_cbor")),
    ];
    let mut world = World::new(config(), &members);
    let seeded = files();
    let unseeded = PrefetchConfig {
        keys: KeysConfig::Sha256Cbor {
            python_hash_seed: None,
            extra_keys: None,
        },
        ..files()
    };
    let plain = format!("{{\"prompt\":{ids}}}");
    let salted = format!("{{\"prompt\":{ids},\"cache_salt\":\"s\"}}");
    let table = [
        (
            &seeded,
            A,
            "{\"prompt\":\"hello\"}".to_owned(),
            "not_looked",
        ),
        (&seeded, A, "{}".to_owned(), "not_looked"),
        (
            &seeded,
            A,
            format!("{{\"prompt\":{ids},\"prompt_logprobs\":1}}"),
            "not_looked",
        ),
        (&seeded, "10.9.9.9:1", plain.clone(), "no_endpoint"),
        (
            &seeded,
            A,
            format!("{{\"prompt\":{ids},\"model\":\"other\"}}"),
            "other_model",
        ),
        (
            &seeded,
            A,
            format!("{{\"prompt\":{ids},\"model\":\"lora\"}}"),
            "adapter_path",
        ),
        (&seeded, "10.0.1.1:1", plain.clone(), "hash_algorithm"),
        (&seeded, "10.0.1.2:1", plain.clone(), "sent"),
        (&seeded, "10.0.1.2:1", salted.clone(), "extra_keys"),
        (&seeded, "10.0.1.3:1", salted, "sent"),
        (&unseeded, "10.0.1.3:1", plain.clone(), "hash_seed"),
        (&unseeded, A, plain, "sent"),
    ];
    for (config, chosen, body, expected) in table {
        let mut prefetch = Prefetch::new(config.clone(), 7);
        let result = world.plan(&mut prefetch, &body, Some(chosen));
        assert_eq!(result.err().unwrap_or("sent"), expected, "{chosen} {body}");
    }
}

/// vLLM's own digests of prompts without images, with salts and adapters, of both formats.
#[test]
fn digests_are_the_engines() {
    let mut tried = 0;
    for row in rows() {
        let evidence = row.config(KeysConfig::Fnv64aCbor {
            hash_seed: String::new(),
        });
        let prefetch = PrefetchConfig {
            keys: KeysConfig::Sha256Cbor {
                python_hash_seed: row.seed.clone(),
                extra_keys: None,
            },
            ..files()
        };
        let text = br#"{"name":"pool","endpoints":["1.2.3.4:5"],"scrape":{"cluster":"engines"}}"#;
        let mut config = ScorerConfig::parse(text).unwrap();
        config.evidence = Some(Rc::new(evidence));
        let store = MemoryStore::new();
        let fleet = Fleet {
            block_size: Some(row.size),
            endpoints: [(A.to_owned(), Rc::new(row.engine()))].into(),
        };
        fleet.write(&store, "pool", NOW).unwrap();
        let mut evidence = Evidence::new(Rc::new(config), 1).unwrap();
        evidence.tick(&store, NOW).unwrap();

        let request = Request {
            reads_cache: true,
            prompt: Prompt::Tokens(TokenPrompts::one(row.tokens.clone())),
            model: row.adapter.as_ref().map(|(name, _)| name.clone()),
            cache_salt: row.salt.clone(),
            n: None,
        };
        let asked = Asked {
            request: &request,
            chosen: Some(A),
            likeliest: None,
        };
        let plan = Prefetch::new(prefetch, 7).plan(&mut evidence, &store, asked, NOW);
        let told = match plan {
            Ok(plan) => blocks(&plan),
            Err(why) => {
                assert_eq!((why, row.digests.len()), (PrefetchResult::Warm, 0));
                continue;
            }
        };
        let expected: Vec<(u32, String)> = (0..).zip(row.digests.clone()).collect();
        assert_eq!(told, expected, "{} {:?}", row.version, row.salt);
        tried += 1;
    }
    assert!(tried > 50, "{tried}");
}
