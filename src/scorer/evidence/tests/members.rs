//! Members of a body in every order, and duplicates of them: the last ones count, and nothing of
//! what another salt's or adapter's blocks are is ever said.

use super::engine::{Engine, Said, offloaded, stored};
use super::{A, World, config, facts, tokens};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Which prompt (`p`, `q`: two blocks each), salt and adapter the CPU tier's blocks are of, each a
/// different number of blocks, so that no two answers are alike.
const HELD: [(char, Option<&str>, Option<&str>, usize); 6] = [
    ('p', None, None, 1),
    ('p', Some("a"), None, 2),
    ('p', Some("b"), None, 3),
    ('q', Some("a"), None, 4),
    ('p', Some("a"), Some("lora"), 5),
    ('q', None, Some("lora"), 6),
];
const BLOCKS: u32 = 8;

fn prompt(name: char) -> Vec<u32> {
    tokens(if name == 'p' { 100 } else { 900 }, BLOCKS)
}

fn world() -> World {
    let mut world = World::new(config(), &[(A, facts("base", &["lora"]))]);
    let mut engine = Engine::new(A);
    let mut said = Vec::new();
    for (of, (name, salt, adapter, blocks)) in (1u64..).zip(HELD) {
        let hashes: Vec<u64> = (0..blocks as u64).map(|n| of * 100 + n).collect();
        let mut event = stored(&hashes, &prompt(name)[..blocks * 4]);
        if let Some(salt) = salt {
            event = event.salted(salt);
        }
        if let Some(adapter) = adapter {
            event = event.of(adapter);
        }
        said.extend([
            Said::Stored(event),
            offloaded(&hashes, "CPU"),
            Said::Removed(hashes, "GPU"),
        ]);
    }
    let done = world.told(&mut engine, &said);
    assert_eq!((done.unresolved, done.unreadable), (0, 0));
    world.tick();
    world
}

fn expected(name: char, salt: Option<&str>, adapter: Option<&str>) -> String {
    let held = HELD
        .iter()
        .find(|h| (h.0, h.1, h.2) == (name, salt, adapter));
    match held.map_or(0, |h| h.3 as u32) {
        0 => format!("{BLOCKS}[]"),
        n => format!("{n}[cpu] {}[]", BLOCKS - n),
    }
}

/// One member of a body and what it means.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Member {
    Prompt(char),
    Salt(Option<&'static str>),
    /// An adapter, or the base model.
    Model(Option<&'static str>),
    Other,
}

fn json(member: Member) -> String {
    match member {
        Member::Prompt(name) => format!("\"prompt\":{:?}", prompt(name)),
        Member::Salt(Some(salt)) => format!("\"cache_salt\":\"{salt}\""),
        Member::Salt(None) => "\"cache_salt\":null".to_owned(),
        Member::Model(Some(adapter)) => format!("\"mod\\u0065l\":\"{adapter}\""),
        Member::Model(None) => "\"model\":\"base\"".to_owned(),
        Member::Other => "\"user\":{\"cache_salt\":\"b\",\"prompt\":[1,2,3,4]}".to_owned(),
    }
}

fn permutations(members: &[Member]) -> Vec<Vec<Member>> {
    let Some((first, rest)) = members.split_first() else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for at in 0..=shorter.len() {
            let mut one = shorter.clone();
            one.insert(at, *first);
            all.push(one);
        }
    }
    all
}

#[test]
fn in_every_order_the_last_of_each_counts() {
    use Member::{Model, Other, Prompt, Salt};
    let mut world = world();
    let sets: [&[Member]; 6] = [
        &[Prompt('p'), Salt(Some("a")), Model(None)],
        &[Prompt('p'), Salt(Some("c")), Model(None), Other],
        &[
            Prompt('p'),
            Salt(Some("a")),
            Salt(Some("b")),
            Model(None),
            Other,
        ],
        &[
            Prompt('p'),
            Prompt('q'),
            Salt(Some("a")),
            Salt(None),
            Model(None),
        ],
        &[
            Prompt('p'),
            Salt(Some("a")),
            Salt(Some("b")),
            Model(Some("lora")),
            Model(None),
        ],
        &[
            Prompt('p'),
            Prompt('q'),
            Salt(Some("b")),
            Salt(None),
            Model(Some("lora")),
        ],
    ];
    let mut seen = std::collections::BTreeSet::new();
    for order in sets.iter().flat_map(|set| permutations(set)) {
        let (mut name, mut salt, mut adapter) = ('-', None, None);
        for member in &order {
            match *member {
                Prompt(last) => name = last,
                Salt(last) => salt = last,
                Model(last) => adapter = last,
                Other => {}
            }
        }
        let members: Vec<String> = order.iter().map(|member| json(*member)).collect();
        let body = format!("{{{}}}", members.join(","));
        let found = world.asks(&body);
        assert_eq!(found, expected(name, salt, adapter), "{order:?}");
        seen.insert(found);
    }
    // Every answer that there is came up.
    assert_eq!(seen.len(), HELD.len() + 1);
}

#[test]
fn a_salt_that_no_engine_takes_has_no_evidence() {
    let mut world = world();
    for salt in ["7", "\"\"", "[]", "{\"a\":1}", "true"] {
        let body = format!("{{\"prompt\":{:?},\"cache_salt\":{salt}}}", prompt('p'));
        let done = world.request("other", &body);
        assert_eq!(done.result.as_str(), "invalid_cache_salt", "{salt}");
        assert_eq!(world.found("other", A), "?");
    }
}

#[test]
fn an_offload_event_that_tells_tokens_says_nothing_of_salts() {
    // `self_describing_kv_events`: tokens and parent, and never extra keys. By its tokens a salted
    // block would be one that anybody may ask for.
    let mut world = World::new(config(), &[(A, facts("base", &[]))]);
    let mut engine = Engine::new(A);
    let (hashes, other) = ([1u64, 2], [3u64, 4]);
    let described = |hashes: &[u64], of: char| {
        let mut event = stored(hashes, &prompt(of)[..8]);
        event.medium = "CPU";
        Said::Stored(event)
    };
    let salted = stored(&hashes, &prompt('p')[..8]).salted("a");
    let done = world.told(
        &mut engine,
        &[
            Said::Stored(salted),
            Said::Removed(hashes.to_vec(), "GPU"),
            described(&hashes, 'p'),
        ],
    );
    // The GPU's event has told what it is.
    assert_eq!((done.unresolved, done.events), (0, 3));
    world.tick();
    let ask = |world: &mut World, name, salt: &str| {
        world.asks(&format!("{{\"prompt\":{:?}{salt}}}", prompt(name)))
    };
    assert_eq!(ask(&mut world, 'p', ""), "8[]");
    assert_eq!(ask(&mut world, 'p', ",\"cache_salt\":\"a\""), "2[cpu] 6[]");
    // Without one it is not told: less is known, and said so, to anybody.
    let done = world.told(&mut engine, &[described(&other, 'q')]);
    assert_eq!((done.unresolved, done.events), (1, 0));
    world.tick();
    assert_eq!(ask(&mut world, 'q', ""), "8[] partial");
    assert_eq!(ask(&mut world, 'q', ",\"cache_salt\":\"a\""), "8[] partial");
}
