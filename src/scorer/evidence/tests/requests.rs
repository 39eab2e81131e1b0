//! Whole requests: what is said of each endpoint, and what is counted.

use super::engine::{Engine, Said, offloaded, stored};
use super::{A, B, NOW, Published, World, config, facts, tokens};
use crate::contract::store::{Store, StoreError, Versioned};
use crate::prompt::{Prompt, Request, TokenPrompts};
use crate::scorer::config::KeysConfig;
use crate::scorer::evidence::{EngineFacts, Evidence};
use crate::scorer::index::Item;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn counts(done: &Published) -> String {
    let endpoints = done
        .endpoints
        .iter()
        .map(|(r, n)| format!("{n} {}", r.as_str()));
    let partial = done
        .partial
        .iter()
        .map(|(reason, n)| format!("{n} {reason}"));
    let all: Vec<String> = endpoints.chain(partial).collect();
    format!("{}: {}", done.result.as_str(), all.join(", "))
}

fn body(prompt: &[u32]) -> String {
    format!("{{\"prompt\":{prompt:?}}}")
}

/// `gpu` blocks in the GPU, of which the last `both` and `cpu` more are in the CPU tier.
fn warm(first: u32, gpu: usize, cpu: usize, hashes: u64) -> Vec<Said> {
    let all: Vec<u64> = (hashes..).take(gpu + cpu).collect();
    let mut said = vec![Said::Stored(stored(
        &all,
        &tokens(first, (gpu + cpu) as u32),
    ))];
    if cpu > 0 {
        said.push(offloaded(&all[gpu..], "CPU"));
        said.push(Said::Removed(all[gpu..].to_vec(), "GPU"));
    }
    said
}

#[test]
fn each_endpoint_says_what_it_holds() {
    let members = [(A, facts("base", &[])), (B, facts("base", &[]))];
    let mut world = World::new(config(), &members);
    world.told(&mut Engine::new(A), &warm(100, 2, 3, 1));
    world.told(&mut Engine::new(B), &warm(100, 1, 0, 1));
    world.tick();
    let done = world.request("r", &body(&tokens(100, 6)));
    assert_eq!(counts(&done), "published: 2 complete");
    assert_eq!(world.found("r", A), "2[gpu] 3[cpu] 1[]");
    assert_eq!(world.found("r", B), "1[gpu] 5[]");
    // The last token is not in a full block, or is.
    let longer = [tokens(100, 2), vec![1]].concat();
    assert_eq!(world.asks(&body(&longer)), "2[gpu]");
    assert_eq!(world.asks(&body(&tokens(100, 2))), "1[gpu] 1[]");
    assert_eq!(world.asks(&body(&tokens(100, 3))), "2[gpu] 1[cpu]");
    // No full block at all is known to be nothing.
    assert_eq!(world.asks(&body(&[100, 101, 102])), "");
}

#[test]
fn a_reset_of_the_gpus_cache_leaves_the_rest() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    let mut engine = Engine::new(A);
    world.told(&mut engine, &warm(100, 2, 3, 1));
    let all: Vec<u64> = (1..4).collect();
    world.told(&mut engine, &[offloaded(&all, "CPU"), Said::Cleared]);
    world.tick();
    assert_eq!(world.asks(&body(&tokens(100, 6))), "5[cpu] 1[]");
}

#[test]
fn prompts_share_blocks() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    world.told(&mut Engine::new(A), &warm(100, 1, 4, 1));
    world.tick();
    let whole = tokens(100, 6);
    let other = [&whole[..8], &tokens(500, 2)].concat();
    let table = [
        // The first one loads or computes what the others then find in the GPU.
        (
            vec![whole.clone(), other.clone()],
            "1[gpu] 4[cpu] 1[] | 1[gpu] 1[gpu cpu] 2[]",
        ),
        (
            vec![other.clone(), whole.clone()],
            "1[gpu] 1[cpu] 2[] | 1[gpu] 1[gpu cpu] 3[cpu] 1[]",
        ),
        // What it computes, too; the last block is never a hit in the GPU, but on its way to the CPU.
        (
            vec![whole.clone(), whole.clone()],
            "1[gpu] 4[cpu] 1[] | 1[gpu] 4[gpu cpu] 1[cpu]",
        ),
        (vec![tokens(500, 2), tokens(500, 3)], "2[] | 2[gpu] 1[]"),
        (
            vec![tokens(500, 3), tokens(600, 1), tokens(500, 2)],
            "3[] | 1[] | 1[gpu] 1[cpu]",
        ),
    ];
    for (prompts, expected) in table {
        let body = format!("{{\"prompt\":{prompts:?}}}");
        assert_eq!(world.asks(&body), expected);
    }
}

#[test]
fn a_request_that_reads_no_cache_finds_nothing() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    world.told(&mut Engine::new(A), &warm(100, 2, 3, 1));
    world.tick();
    let ids = format!("{:?}", tokens(100, 6));
    for (body, expected) in [
        (format!("{{\"prompt\":{ids},\"prompt_logprobs\":1}}"), "6[]"),
        (
            format!("{{\"echo\":true,\"logprobs\":0,\"prompt\":{ids}}}"),
            "6[]",
        ),
        (
            format!("{{\"echo\":true,\"prompt\":{ids}}}"),
            "2[gpu] 3[cpu] 1[]",
        ),
        (
            format!("{{\"prompt\":[{ids},{ids}],\"prompt_logprobs\":1}}"),
            "6[] | 6[]",
        ),
    ] {
        assert_eq!(world.asks(&body), expected, "{body}");
    }
}

#[test]
fn why_nothing_is_said() {
    let mut world = World::new(config(), &[(A, facts("base", &["lora"]))]);
    world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
    world.tick();
    let ids = format!("{:?}", tokens(100, 2));
    for (id, body, expected) in [
        (
            "r",
            format!("{{\"prompt\":{ids}}}"),
            "published: 1 complete",
        ),
        ("", format!("{{\"prompt\":{ids}}}"), "no_request_id: "),
        ("r", "{\"prompt\":\"hello\"}".to_owned(), "text: "),
        ("r", "{\"prompt\":[\"a\",\"b\"]}".to_owned(), "texts: "),
        ("r", "{}".to_owned(), "no_prompt: "),
        ("r", "{\"prompt\":[-1]}".to_owned(), "malformed_prompt: "),
        (
            "r",
            format!("{{\"prompt\":{ids},\"prompt_embeds\":\"x\"}}"),
            "prompt_embeds: ",
        ),
        (
            "r",
            format!("{{\"prompt\":{ids},\"model\":7}}"),
            "invalid_model: ",
        ),
        (
            "r",
            format!("{{\"prompt\":{ids},\"model\":\"Base\"}}"),
            "unknown_model: 1 other_model",
        ),
    ] {
        assert_eq!(counts(&world.request(id, &body)), expected, "{body}");
    }
}

#[test]
fn what_is_not_known_of_an_endpoint_is_not_said() {
    let says = |block_size, version: Option<&str>| EngineFacts {
        block_size,
        version: version.map(str::to_owned),
        ..facts("base", &[])
    };
    let silent = |world: &mut World| {
        world.now += 30_001;
        world.told(&mut Engine::new(B), &[]);
    };
    let row = |member: EngineFacts, change: &dyn Fn(&mut World)| {
        let mut world = World::new(config(), &[(A, member), (B, facts("base", &[]))]);
        world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
        world.told(&mut Engine::new(B), &warm(100, 1, 0, 1));
        world.tick();
        change(&mut world);
        let done = world.request("r", &body(&tokens(100, 3)));
        assert_ne!(world.found("r", B), "?");
        (counts(&done), world.found("r", A))
    };
    let nothing = |text: &str| (text.to_owned(), "?".to_owned());
    assert_eq!(
        row(says(Some(4), None), &|_| {}),
        ("published: 2 complete".to_owned(), "2[gpu] 1[]".to_owned())
    );
    assert_eq!(
        row(says(Some(8), None), &|_| {}),
        nothing("published: 1 block_size, 1 complete")
    );
    assert_eq!(
        row(facts("another", &[]), &|world| {
            let members = [(A, facts("another", &[])), (B, facts("base", &[]))];
            world.members(&members);
            // Both serve their base model to a request that names none.
            let done = world.request("r", "{\"model\":\"base\",\"prompt\":[1,2,3,4]}");
            assert_eq!(counts(&done), "published: 1 other_model, 1 complete");
        }),
        ("published: 2 complete".to_owned(), "2[gpu] 1[]".to_owned())
    );
    assert_eq!(
        row(facts("base", &[]), &silent),
        nothing("published: 1 silent, 1 complete")
    );
}

#[test]
fn a_replica_that_is_behind_gives_none_until_the_timer_has_moved_it() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    let mut engine = Engine::new(A);
    world.told(&mut engine, &warm(100, 2, 0, 1));
    world.tick();
    // More than a request moves.
    for n in 0..20u32 {
        let hashes: Vec<u64> = (u64::from(n) * 1000 + 1000..).take(1000).collect();
        let event = Said::Stored(stored(&hashes, &tokens(10_000 * (n + 1), 1000)));
        world.told(&mut engine, &[event]);
    }
    let request = body(&tokens(100, 3));
    assert_eq!(
        counts(&world.request("r", &request)),
        "no_endpoint: 1 behind"
    );
    assert_eq!(world.found("r", A), "?");
    world.tick();
    assert_eq!(
        counts(&world.request("r", &request)),
        "published: 1 complete"
    );
    // A little is moved at once.
    world.told(
        &mut engine,
        &[Said::Stored(stored(&[90_000], &tokens(700, 1)))],
    );
    assert_eq!(world.asks(&body(&tokens(700, 2))), "1[gpu] 1[]");
}

#[test]
fn what_makes_it_a_lower_bound_is_counted() {
    let mut config = config();
    config.blocks_per_chunk = None;
    let mut world = World::new(config, &[(A, facts("base", &[])), (B, facts("base", &[]))]);
    world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
    let mut late = Engine::new(B);
    late.next_seq();
    world.told(&mut late, &warm(100, 1, 0, 1));
    world.tick();
    let done = world.request("r", &body(&tokens(100, 3)));
    assert_eq!(
        counts(&done),
        "published: 2 partial, 2 chunk_unknown, 1 joined_late"
    );
    assert_eq!(world.found("r", A), "2[gpu] 1[] partial");
}

#[test]
fn an_endpoint_holds_what_all_its_ranks_hold() {
    let mut world = World::new(
        config(),
        &[(A, facts("base", &[])), (B, facts("base", &[]))],
    );
    let rank = |n: u32| Engine::new(&format!("{A}/{n}"));
    world.told(&mut rank(0), &warm(100, 2, 3, 1));
    world.told(&mut rank(1), &warm(100, 1, 3, 1));
    world.told(&mut Engine::new(B), &warm(100, 2, 0, 1));
    world.tick();
    world.tick();
    let request = body(&tokens(100, 6));
    let done = world.request("r", &request);
    assert_eq!(counts(&done), "published: 1 partial, 1 complete, 1 ranks");
    // Block 1 is in one GPU and in the other's CPU tier.
    assert_eq!(world.found("r", A), "1[gpu] 1[] 2[cpu] 2[] partial");
    assert_eq!(world.found("r", B), "2[gpu] 4[]");
    // One rank that is not heard of is enough.
    world.now += 30_001;
    for endpoint in [&format!("{A}/0"), B] {
        world.deliver(endpoint, &[]);
    }
    let done = world.request("r", &request);
    assert_eq!(counts(&done), "published: 1 silent, 1 complete");
}

#[test]
fn engines_own_hashes() {
    // vLLM's hashes of three blocks without, with salt "a", with adapter "lora" (by its path),
    // computed here: the vectors are tested elsewhere.
    let mut config = config();
    config.keys = KeysConfig::Sha256Cbor {
        python_hash_seed: Some("0".to_owned()),
        extra_keys: None,
    };
    let engine = |version: Option<&str>| EngineFacts {
        version: version.map(str::to_owned),
        ..facts("base", &["lora"])
    };
    let chain = |format, salt| {
        let context = crate::prefix::Context {
            model: "",
            adapter: None,
            cache_salt: salt,
        };
        let algorithm = config.keys.algorithm(format);
        let chain = algorithm.chain(&context).unwrap();
        chain
            .keys(&tokens(100, 3), super::SIZE)
            .collect::<Vec<u64>>()
    };
    use crate::prefix::ExtraKeyFormat::{Tagged, Untagged};
    let hashes = [
        chain(Untagged, None),
        chain(Untagged, Some("a")),
        chain(Tagged, Some("a")),
    ];
    let members = [
        (A, engine(Some("0.30.0"))),
        (B, engine(Some("0.31.0"))),
        ("10.0.0.9:8000", engine(None)),
        ("10.0.0.9:8001", engine(Some("0.32.0"))),
    ];
    let mut world = World::new(config.clone(), &members);
    for (endpoint, _) in &members {
        // A block of the plain prompt, two of the untagged salt's, three of the tagged one's.
        let said: Vec<Said> = hashes
            .iter()
            .zip(1..)
            .map(
                |(hashes, n)| match (n, stored(&hashes[..n], &tokens(100, n as u32))) {
                    (1, plain) => Said::Stored(plain),
                    (_, event) => Said::Stored(event.salted("a")),
                },
            )
            .collect();
        world.told(&mut Engine::new(endpoint), &said);
    }
    world.tick();
    let ids = format!("{:?}", tokens(100, 4));
    let done = world.request("r", &format!("{{\"prompt\":{ids}}}"));
    assert_eq!(counts(&done), "published: 4 complete");
    for (endpoint, _) in &members {
        assert_eq!(world.found("r", endpoint), "1[gpu] 3[]");
    }
    let done = world.request("s", &format!("{{\"prompt\":{ids},\"cache_salt\":\"a\"}}"));
    assert_eq!(counts(&done), "published: 1 extra_keys, 3 complete");
    let found = members
        .each_ref()
        .map(|(endpoint, _)| world.found("s", endpoint));
    assert_eq!(found, ["2[gpu] 2[]", "3[gpu] 1[]", "?", "3[gpu] 1[]"]);
    // An engine of another seed: what it holds is not found, and does not pass for nothing.
    let other = stored(&[1], &tokens(100, 1));
    let mut engine = Engine::new(B);
    engine.next_seq();
    let done = world.told(&mut engine, &[Said::Stored(other)]);
    assert_eq!(done.mismatches, 1);
    world.tick();
    let done = world.request("u", &format!("{{\"prompt\":{ids}}}"));
    let expected = "published: 3 complete, 1 partial, 1 hash_mismatch";
    assert_eq!(counts(&done), expected);
    assert_eq!(world.found("u", B), "1[gpu] 3[] partial");
    // The adapter's path is configured for nobody; the untagged format needs none.
    let done = world.request("t", &format!("{{\"prompt\":{ids},\"model\":\"lora\"}}"));
    assert_eq!(
        counts(&done),
        "published: 1 extra_keys, 1 complete, 2 adapter_path"
    );
}

/// Nothing but salted requests, or an adapter's, must not hide that its blocks are called otherwise.
#[test]
fn an_engine_of_other_hashes_is_found_out_by_any_prompts_first_block() {
    use crate::prefix::{Adapter, Context, ExtraKeyFormat::Tagged};
    let mut config = config();
    config.keys = KeysConfig::Sha256Cbor {
        python_hash_seed: Some("0".to_owned()),
        extra_keys: None,
    };
    let path = |path: &str| Some(path.to_owned());
    config.adapters.insert("sql".to_owned(), path("/lora/sql"));
    config.adapters.insert("nameless".to_owned(), None);
    let hash = |seed: &str, adapter: Option<(&str, &str)>, salt| {
        let keys = KeysConfig::Sha256Cbor {
            python_hash_seed: Some(seed.to_owned()),
            extra_keys: None,
        };
        let context = Context {
            model: "",
            adapter: adapter.map(|(name, path)| Adapter {
                name,
                path: Some(path),
            }),
            cache_salt: salt,
        };
        let chain = keys.algorithm(Tagged).chain(&context).unwrap();
        chain.keys(&tokens(100, 1), super::SIZE).next().unwrap()
    };
    let salt = Some("s");
    let plain = || stored(&[0], &tokens(100, 1));
    let of = |name: &str| plain().of(name);
    let sql = |path| Some(("sql", path));
    let rows = [
        ("the salt's", hash("0", None, salt), plain().salted("s"), 0),
        (
            "another seed",
            hash("1", None, salt),
            plain().salted("s"),
            1,
        ),
        ("its path", hash("0", sql("/lora/sql"), None), of("sql"), 0),
        (
            "another path",
            hash("0", sql("/lora/sql/"), None),
            of("sql"),
            1,
        ),
        (
            "with a salt",
            hash("0", sql("/lora/sql"), salt),
            plain().salted("s").of("sql"),
            0,
        ),
        (
            "with a salt, another path",
            hash("0", sql("/sql"), salt),
            plain().salted("s").of("sql"),
            1,
        ),
        // No request for it has evidence.
        (
            "no path to check",
            hash("0", Some(("nameless", "/x")), None),
            of("nameless"),
            0,
        ),
    ];
    for (what, hash, event, mismatches) in rows {
        let mut world = World::new(config.clone(), &[(A, facts("base", &["sql"]))]);
        let event = super::engine::Stored {
            hashes: vec![hash],
            ..event
        };
        let done = world.told(&mut Engine::new(A), &[Said::Stored(event)]);
        assert_eq!(done.mismatches, mismatches, "{what}");
        world.tick();
        let partial = if mismatches > 0 { " partial" } else { "" };
        let asked = world.asks(&body(&tokens(500, 2)));
        assert_eq!(asked, format!("2[]{partial}"), "{what}");
    }
}

/// The bridge follows one rank, and the engine's metrics tell of two.
#[test]
fn ranks_that_nobody_follows_are_missing() {
    let engine = |ranks| EngineFacts {
        ranks,
        ..facts("base", &[])
    };
    let members = [(A, engine(Some(2))), (B, engine(None))];
    let mut world = World::new(config(), &members);
    world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
    world.told(&mut Engine::new(B), &warm(100, 2, 0, 1));
    world.tick();
    let done = world.request("r", &body(&tokens(100, 3)));
    assert_eq!(counts(&done), "published: 1 partial, 1 complete, 1 ranks");
    assert_eq!(world.found("r", A), "2[gpu] 1[] partial");
    assert_eq!(world.found("r", B), "2[gpu] 1[]");
}

/// What lay in such a tier before was never announced, wherever this request's blocks are.
#[test]
fn an_engine_that_names_a_secondary_tier_has_one() {
    use crate::scorer::runs::Secondary;
    for secondary in [Secondary::None, Secondary::Vouched, Secondary::Unvouched] {
        let mut config = config();
        config.secondary = secondary;
        let mut world = World::new(config, &[(A, facts("base", &[])), (B, facts("base", &[]))]);
        let (mut a, mut b) = (Engine::new(A), Engine::new(B));
        world.told(&mut a, &warm(100, 2, 1, 1));
        world.told(&mut b, &warm(100, 2, 1, 1));
        world.tick();
        let asks = |world: &mut World| {
            world.request("r", &body(&tokens(500, 2)));
            [world.found("r", A), world.found("r", B)]
        };
        let (whole, partial) = ("2[]".to_owned(), "2[] partial".to_owned());
        let expected = match secondary {
            Secondary::Unvouched => [&partial, &partial],
            _ => [&whole, &whole],
        };
        assert_eq!(asks(&mut world).each_ref(), expected, "{secondary:?}");
        world.told(&mut a, &[offloaded(&[1], "STORAGE")]);
        world.tick();
        let expected = match secondary {
            Secondary::None => [&partial, &whole],
            _ => expected,
        };
        assert_eq!(asks(&mut world).each_ref(), expected, "{secondary:?}");
        // It outlives the engine.
        world.told_run(&mut Engine::new(A), 2, &warm(100, 1, 0, 1));
        world.tick();
        assert_eq!(asks(&mut world).each_ref(), expected, "{secondary:?}");
    }
}

#[test]
fn before_the_engines_have_spoken() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    let request = Request {
        model: None,
        cache_salt: None,
        prompt: Prompt::Tokens(TokenPrompts::one(tokens(0, 2))),
        reads_cache: true,
        n: None,
    };
    let mut fresh = Evidence::new(std::rc::Rc::clone(&world.worker.config), 3).unwrap();
    let publish =
        |vm: &mut Evidence, world: &World| counts(&vm.publish(&world.store, "r", &request, NOW));
    assert_eq!(publish(&mut fresh, &world), "no_block_size: ");
    assert!(fresh.index().is_none());
    fresh.tick(&world.store, NOW).unwrap();
    assert_eq!(
        publish(&mut fresh, &world),
        "no_endpoint: 1 unknown_endpoint"
    );
    world.members(&[]);
    fresh.tick(&world.store, NOW).unwrap();
    assert_eq!(publish(&mut fresh, &world), "no_members: ");
}

/// A store whose evidence cannot be written.
struct Broken<'a>(&'a dyn Store, StoreError);

impl Store for Broken<'_> {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.0.get(key)
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        match key.contains("/evidence/") {
            true => Err(self.1),
            false => self.0.set(key, value, cas),
        }
    }
}

#[test]
fn a_record_that_cannot_be_written_is_said() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
    world.tick();
    let mut request = Request {
        model: None,
        cache_salt: None,
        prompt: Prompt::Tokens(TokenPrompts::one(tokens(100, 2))),
        reads_cache: true,
        n: None,
    };
    let World { store, worker, .. } = &mut world;
    for (error, expected) in [
        (StoreError::CasMismatch, "contended: 1 complete"),
        (StoreError::Host(10), "host: 1 complete"),
    ] {
        let done = worker.publish(&Broken(store, error), "r", &request, NOW);
        assert_eq!(counts(&done), expected);
    }
    // An id that leaves no room in a record.
    let id = "r".repeat(20_000);
    let done = worker.publish(store, &id, &request, NOW);
    assert_eq!(counts(&done), "evidence_too_large: 1 complete");
    // More blocks than are looked up.
    request.prompt = Prompt::Tokens(TokenPrompts::one(vec![0; 4 << 20]));
    let done = worker.publish(store, "r", &request, NOW);
    assert_eq!(counts(&done), "no_endpoint: 1 too_many_blocks");
}

#[test]
fn a_heartbeat_alone_is_an_engine_that_holds_nothing() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    world.deliver(A, &[Item::FromStart]);
    world.tick();
    assert_eq!(world.asks(&body(&tokens(100, 3))), "3[]");
}

#[test]
fn an_id_that_comes_again_with_another_prompt_finds_nothing_of_the_first() {
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    world.told(&mut Engine::new(A), &warm(100, 2, 0, 1));
    world.tick();
    let known = body(&tokens(100, 3));
    for other in [
        "{\"prompt\":\"text\"}",
        "{\"messages\":[]}",
        "{\"prompt\":[1,2,3,4],\"model\":\"nobody\"}",
    ] {
        assert_eq!(world.asks(&known), "2[gpu] 1[]");
        assert_eq!(world.asks(other), "?", "{other}");
    }
    assert_eq!(world.asks(&known), "2[gpu] 1[]");
    assert_eq!(world.asks(&body(&[1, 2, 3, 4])), "1[]");
}
