//! Keys from events are those of requests with the same tokens, salt and adapter.

use super::engine::{Engine, Extra, Said, Stored, stored, text};
use super::{A, SIZE, config as everything, tokens};
use crate::prefix::{Adapter, Algorithm, Context, ExtraKeyFormat};
use crate::scorer::config::{EvidenceConfig, KeysConfig};
use crate::scorer::evidence::request_keys;
use crate::scorer::kv_events::{self, Event};
use serde_json::Value;
use std::num::NonZeroU32;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn fnv(seed: &str) -> KeysConfig {
    KeysConfig::Fnv64aCbor {
        hash_seed: seed.to_owned(),
    }
}

fn sha(seed: &str) -> KeysConfig {
    KeysConfig::Sha256Cbor {
        python_hash_seed: Some(seed.to_owned()),
        extra_keys: None,
    }
}

/// Of the first event that stores blocks.
fn from_payload(
    config: &KeysConfig,
    size: NonZeroU32,
    parent: Option<u64>,
    payload: &[u8],
) -> Option<Vec<u64>> {
    let batch = kv_events::decode(payload).unwrap();
    let event = batch.events().find_map(|event| match event {
        Event::Stored(stored) => Some(stored),
        _ => None,
    });
    keys_of(config, size, parent, &event.unwrap())
}

fn keys_of(
    config: &KeysConfig,
    size: NonZeroU32,
    parent: Option<u64>,
    event: &kv_events::Stored<'_>,
) -> Option<Vec<u64>> {
    let mut config = EvidenceConfig {
        keys: config.clone(),
        ..everything()
    };
    let path = Some("/lora/a".to_owned());
    config.adapters.insert("a".to_owned(), path);
    let mut keys = Vec::new();
    request_keys(&config, size)(parent, event, &mut keys).then_some(keys)
}

fn from_event(config: &KeysConfig, parent: Option<u64>, stored: Stored) -> Option<Vec<u64>> {
    let payload = Engine::new(A).payload(&[Said::Stored(stored)]);
    from_payload(config, SIZE, parent, &payload)
}

fn from_request(config: &KeysConfig, adapter: Option<&str>, salt: Option<&str>) -> Vec<u64> {
    let context = Context {
        model: "",
        adapter: adapter.map(|name| Adapter { name, path: None }),
        cache_salt: salt,
    };
    let algorithm = config.algorithm(ExtraKeyFormat::Untagged);
    let chain = algorithm.chain(&context).unwrap();
    chain.keys(&tokens(100, 3), SIZE).collect()
}

fn three() -> Stored {
    stored(&[1, 2, 3], &tokens(100, 3))
}

#[test]
fn salt_and_adapter_are_in_the_keys_as_in_a_requests() {
    for seed in ["", "42"] {
        let config = fnv(seed);
        let table = [
            (three(), None, None),
            (three().salted("s"), None, Some("s")),
            (three().of("a"), Some("a"), None),
            (three().salted("s").of("a"), Some("a"), Some("s")),
            // A salt that is called as the adapter is.
            (three().salted("a").of("a"), Some("a"), Some("a")),
            (
                Stored {
                    lora_name: Some("a".to_owned()),
                    ..three()
                },
                Some("a"),
                None,
            ),
        ];
        let mut seen = Vec::new();
        for (event, adapter, salt) in table {
            let requests = from_request(&config, adapter, salt);
            let events = from_event(&config, None, event.clone());
            assert_eq!(events.as_ref(), Some(&requests), "{event:?}");
            // The rest of it, behind the first block.
            let rest = Stored {
                parent: Some(1),
                ..stored(&[2, 3], &tokens(104, 2))
            };
            let rest = match adapter {
                Some(name) => rest.of(name),
                None => rest,
            };
            let events = from_event(&config, Some(requests[0]), rest);
            assert_eq!(events.as_deref(), Some(&requests[1..]), "{event:?}");
            seen.push(requests);
        }
        seen.dedup();
        // The last two are one adapter's, without and with its name in the event's extra keys.
        assert_eq!(seen.len(), 6);
    }
}

#[test]
fn blocks_with_more_are_never_a_requests() {
    let config = fnv("");
    let with = |at: usize, extras: Vec<Extra>| {
        let mut all = vec![Vec::new(); 3];
        all[at] = extras;
        Stored {
            extra_keys: Some(all),
            ..three()
        }
    };
    let image = |at| Extra::Image("img", at);
    let embeds = || Extra::Bytes(&[0xab, 1]);
    let mut seen: Vec<Vec<u64>> = vec![from_request(&config, None, None)];
    for salt in ["s", "img", "", "0", "ab01"] {
        seen.push(from_request(&config, None, Some(salt)));
    }
    let before = seen.clone();
    for event in [
        with(0, vec![image(0)]),
        with(0, vec![image(1)]),
        with(0, vec![image(0), text("s")]),
        with(0, vec![embeds()]),
        with(0, vec![text("s"), embeds()]),
        with(0, vec![image(0), image(2)]),
    ] {
        let keys = from_event(&config, None, event.clone()).unwrap();
        for other in &seen {
            assert!(keys.iter().all(|key| !other.contains(key)), "{event:?}");
        }
        seen.push(keys);
    }
    // From the block on in which it is.
    for event in [with(1, vec![image(-2)]), with(1, vec![embeds()])] {
        let keys = from_event(&config, None, event.clone()).unwrap();
        assert_eq!(keys[0], before[0][0], "{event:?}");
        assert!(keys[1..].iter().all(|k| !before.concat().contains(k)));
    }
}

#[test]
fn what_cannot_be_told_has_no_keys() {
    let extras = |extras: Vec<Vec<Extra>>| Stored {
        extra_keys: Some(extras),
        ..three()
    };
    let first = |e: Vec<Extra>| extras(vec![e, Vec::new(), Vec::new()]);
    let lora = |e| Stored {
        lora_name: Some("a".to_owned()),
        ..first(e)
    };
    let table = [
        ("a number", None, first(vec![Extra::Number(7)])),
        ("two texts", None, first(vec![text("s"), text("t")])),
        (
            "a text in a later block",
            None,
            extras(vec![vec![], vec![text("s")], vec![]]),
        ),
        ("a text behind a parent", Some(9), first(vec![text("s")])),
        (
            "another name than the adapter's",
            None,
            lora(vec![text("b")]),
        ),
        (
            "an image in the adapter's place",
            None,
            lora(vec![Extra::Image("a", 0)]),
        ),
        (
            "a block without its list",
            None,
            extras(vec![vec![], vec![]]),
        ),
        (
            "too few tokens",
            None,
            Stored {
                tokens: tokens(0, 2),
                ..three()
            },
        ),
    ];
    for (what, parent, event) in table {
        assert_eq!(from_event(&fnv(""), parent, event), None, "{what}");
    }
    // Another block size.
    let payload = Engine::new(A).payload(&[Said::Stored(three())]);
    let other = NonZeroU32::new(2).unwrap();
    assert_eq!(from_payload(&fnv(""), other, None, &payload), None);
    assert!(from_payload(&fnv(""), SIZE, None, &payload).is_some());
}

#[test]
fn of_engines_own_hashes_those_that_a_first_block_may_have_are_told() {
    use ExtraKeyFormat::{Tagged, Untagged};
    let config = sha("0");
    let first = |format, adapter: Option<&str>, salt: Option<&str>| {
        let context = Context {
            model: "",
            adapter: adapter.map(|name| Adapter {
                name,
                path: Some("/lora/a"),
            }),
            cache_salt: salt,
        };
        let chain = config.algorithm(format).chain(&context).unwrap();
        chain.keys(&tokens(100, 1), SIZE).next().unwrap()
    };
    let both = |adapter, salt| {
        let formats = [Untagged, Tagged];
        Some(formats.map(|format| first(format, adapter, salt)).to_vec())
    };
    let with = |first: Vec<Extra>| Stored {
        extra_keys: Some(vec![first, Vec::new(), Vec::new()]),
        ..three()
    };
    let a = Some("a");
    let named = Stored {
        lora_name: Some("a".to_owned()),
        ..three()
    };
    for (event, parent, expected) in [
        (three(), None, both(None, None)),
        (with(Vec::new()), None, both(None, None)),
        (three().salted("s"), None, both(None, Some("s"))),
        (three().of("a"), None, both(a, None)),
        (named, None, both(a, None)),
        (three().salted("s").of("a"), None, both(a, Some("s"))),
        // Its path is configured for nobody.
        (three().of("b"), None, None),
        (three(), Some(1), None),
        (with(vec![Extra::Image("img", 0)]), None, None),
        (with(vec![Extra::Bytes(&[1])]), None, None),
        (with(vec![text("s"), Extra::Image("img", 0)]), None, None),
        (with(vec![text("s"), text("t")]), None, None),
    ] {
        let found = from_event(&config, parent, event.clone());
        assert_eq!(found, expected, "{event:?} {parent:?}");
    }
    let KeysConfig::Sha256Cbor {
        python_hash_seed, ..
    } = config.clone()
    else {
        panic!()
    };
    let tagged = KeysConfig::Sha256Cbor {
        python_hash_seed,
        extra_keys: Some(Tagged),
    };
    let found = from_event(&tagged, None, three().salted("s"));
    assert_eq!(found, Some(vec![first(Tagged, None, Some("s"))]));
}

fn hex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes().chunks(2);
    let byte = |two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

#[test]
fn recorded_events_of_a_live_engine() {
    let file: Value =
        serde_json::from_str(include_str!("../../../../testdata/kv_events.json")).unwrap();
    let size = NonZeroU32::new(32).unwrap();
    let (mut blocks, mut first, mut salted) = (0, 0, 0);
    for row in file["live"].as_array().unwrap() {
        let payload = hex(&row["payload_hex"]);
        for event in kv_events::decode(&payload).unwrap().events() {
            let Event::Stored(event) = event else {
                continue;
            };
            if event.tokens.is_empty() {
                continue;
            }
            let tokens: Vec<u32> = event.tokens.collect();
            let keys = |config: &KeysConfig, parent| keys_of(config, size, parent, &event);
            let extra = event
                .extra_keys
                .blocks()
                .next()
                .and_then(|mut of| of.next());
            let salt = match extra {
                Some(kv_events::Extra::Text(salt)) => Some(salt),
                _ => None,
            };
            let request = |algorithm: Algorithm| -> Vec<u64> {
                let context = Context {
                    cache_salt: salt,
                    ..Context::default()
                };
                let chain = algorithm.chain(&context).unwrap();
                chain.keys(&tokens, size).collect()
            };
            // As if it began a prompt; and, where it does, by the engine's own hashes.
            let expected = request(Algorithm::fnv64a_cbor(""));
            assert_eq!(keys(&fnv(""), None), Some(expected.clone()));
            blocks += expected.len();
            if event.parent.is_none() {
                let hashes: Vec<u64> = event.hashes.collect();
                let own = Algorithm::sha256_cbor(Some("0"), ExtraKeyFormat::Tagged);
                assert_eq!(request(own), hashes);
                let fits = |seed| keys(&sha(seed), None).unwrap().contains(&hashes[0]);
                assert!(fits("0") && !fits("1"));
                first += 1;
                salted += usize::from(salt.is_some());
            }
        }
    }
    assert_eq!((blocks, first, salted), (128, 4, 1));
}
