//! docs/shared-data.md says what the code does: every example in it is decoded to exactly the
//! meaning the page states.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

use std::collections::{BTreeMap, BTreeSet};

use ciborium::Value;
use selective_kv::contract::evidence::{Evidence, Lookup, Prompt, find, from_header};
use selective_kv::contract::evidence_writer::{EndpointEvidence, RequestEvidence, upsert};
use selective_kv::contract::keys;
use selective_kv::contract::members::{FRESH_MS, Members};
use selective_kv::contract::queue::{self, Sample};
use selective_kv::contract::stores::{Counters, StoreSample};
use selective_kv::policy::evidence::external_tokens;
use selective_kv::policy::tiers::TierFilter;
use selective_kv::sorted::{SortedMap, SortedSet};

const DOC: &str = include_str!("../docs/shared-data.md");
const ENDPOINT: &str = "10.0.0.7:8000";
const REQUEST: &str = "5b1c0f6e-8d1a-4a53-9c39-0e6d3c1f7a20";
const T: u64 = 1_790_000_000_000;

/// What follows `<!-- example: name -->`.
fn after(name: &str) -> &'static str {
    let mark = format!("<!-- example: {name} -->\n");
    let (_, rest) = DOC.split_once(&mark).expect(name);
    assert!(!rest.contains(&mark), "{name} twice");
    rest
}

/// The next fenced block of a language.
fn block(text: &'static str, language: &str) -> &'static str {
    let (_, rest) = text
        .split_once(&format!("```{language}\n"))
        .expect(language);
    rest.split_once("```").expect("closing fence").0
}

/// The bytes of an annotated dump.
fn bytes_of(name: &str) -> Vec<u8> {
    let digits: String = block(after(name), "hex")
        .lines()
        .map(|line| line.split('#').next().unwrap())
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
        .collect();
    assert_eq!(digits.len() % 2, 0, "{name}");
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).expect(name))
        .collect()
}

fn is_record(name: &str) -> bool {
    name != "buckets" && !name.starts_with("header-")
}

fn examples() -> BTreeSet<&'static str> {
    DOC.split("<!-- example: ")
        .skip(1)
        .map(|rest| rest.split_once(" -->").unwrap().0)
        .collect()
}

#[test]
fn every_example_is_tested() {
    let known = [
        "buckets",
        "queue",
        "queue-stores",
        "evidence-runs",
        "evidence-tiers",
        "merge-before",
        "merge-after",
        "members",
        "header-tiers",
        "header-runs",
        "header-prompts",
    ];
    assert_eq!(examples(), BTreeSet::from(known));
}

#[test]
fn bytes_and_stated_value_are_the_same() {
    for name in examples().into_iter().filter(|n| is_record(n)) {
        let bytes = bytes_of(name);
        let mut rest = bytes.as_slice();
        let from_bytes: Value = ciborium::from_reader(&mut rest).expect(name);
        assert!(rest.is_empty(), "{name}");
        let stated: Value = serde_json::from_str(block(after(name), "json")).expect(name);
        assert_eq!(from_bytes, stated, "{name}");
    }
}

/// The writer that was made from the page tests itself against copies of the dumps.
#[test]
fn the_example_writer_has_the_same_dumps() {
    macro_rules! copy {
        ($name:literal) => {
            (
                $name,
                include_str!(concat!(
                    "../examples/foreign-scorer/testdata/",
                    $name,
                    ".hex"
                )),
            )
        };
    }
    let copies = BTreeMap::from([
        copy!("queue"),
        copy!("evidence-runs"),
        copy!("evidence-tiers"),
        copy!("merge-before"),
        copy!("merge-after"),
        copy!("members"),
    ]);
    let mut names: BTreeSet<_> = examples().into_iter().filter(|n| is_record(n)).collect();
    // It writes no store counters; to it they are a key like any other that it does not know.
    names.remove("queue-stores");
    assert_eq!(names, copies.keys().copied().collect());
    for (name, copy) in copies {
        assert_eq!(copy, block(after(name), "hex"), "{name}");
    }
}

#[test]
fn annotations_name_what_the_bytes_are() {
    for name in ["queue", "evidence-runs", "evidence-tiers", "members"] {
        for line in block(after(name), "hex").lines() {
            let Some((hex, note)) = line.split_once('#') else {
                continue;
            };
            let (hex, note) = (hex.trim(), note.trim());
            let byte = u8::from_str_radix(&hex[..2], 16).unwrap();
            let major = byte >> 5;
            let expected = match note.split(' ').next().unwrap() {
                "map" => 5,
                "array" => 4,
                quoted if quoted.starts_with('"') => 3,
                "true" | "false" => 7,
                float if float.contains('.') => 7,
                _ => 0,
            };
            assert_eq!(major, expected, "{name}: {line}");
        }
    }
}

#[test]
fn buckets() {
    let rows: Vec<Vec<&str>> = after("buckets")
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|c| c.trim().trim_matches('`'))
                .collect()
        })
        .collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let [name, hash, queue, evidence] = row[..] else {
            panic!("{row:?}");
        };
        assert_eq!(keys::fnv1a64(name.as_bytes()).to_string(), hash, "{name}");
        assert_eq!(
            keys::queue_key(name),
            format!("selective-kv/1/queue/{queue}")
        );
        assert_eq!(
            keys::evidence_key(name),
            format!("selective-kv/1/evidence/{evidence}")
        );
    }
    for named in [
        keys::queue_key(ENDPOINT),
        keys::evidence_key(REQUEST),
        keys::MEMBERS_KEY.to_owned(),
    ] {
        assert!(DOC.contains(&format!("`{named}`")), "{named}");
    }
}

#[test]
fn queue() {
    let entries = queue::decode(&bytes_of("queue")).unwrap();
    assert_eq!(entries.keys().collect::<Vec<_>>(), [ENDPOINT]);
    let entry = entries.get(ENDPOINT).unwrap();
    let sample = |after, waiting| Sample {
        t_ms: T + after,
        waiting,
    };
    let samples = [sample(0, 3.0), sample(1_000, 0.0), sample(2_000, 2.5)];
    assert_eq!(entry.history.samples, samples);
    assert_eq!(
        (entry.history.invalid, entry.history.out_of_order),
        (0, false)
    );
    assert_eq!(entry.engine.as_deref(), Some("vllm"));
    assert_eq!(entry.version.as_deref(), Some("0.32.0"));
}

#[test]
fn store_counters() {
    let entries = queue::decode(&bytes_of("queue-stores")).unwrap();
    let entry = entries.get(ENDPOINT).unwrap();
    let sample = |after, bytes, seconds, ema| StoreSample {
        t_ms: T + after,
        counters: Counters {
            bytes,
            seconds,
            ema,
        },
    };
    let fs = [
        sample(1_000, 104_857_600.0, 2.0, None),
        sample(2_000, 109_051_904.0, 2.0625, None),
    ];
    assert_eq!(entry.stores.get("fs").unwrap(), &fs);
    let obj = [sample(2_000, 0.0, 0.0, Some(0.031_25))];
    assert_eq!(entry.stores.get("obj").unwrap(), &obj);
    assert_eq!((entry.stores.len(), entry.invalid_stores), (2, 0));
}

fn runs(list: &[(u64, &[&str])]) -> Prompt {
    let tiers = |tiers: &[&str]| tiers.iter().map(|t| (*t).to_owned()).collect();
    let run = |(blocks, list): &(u64, &[&str])| (*blocks, tiers(list));
    Prompt::Runs(list.iter().map(run).collect())
}

fn tiers(list: &[(&str, u64)]) -> Prompt {
    let pairs = list.iter().map(|(t, n)| ((*t).to_owned(), *n));
    Prompt::Tiers(pairs.collect())
}

/// The evidence, and the tokens it comes to without a filter and with `[]`.
fn check(lookup: Lookup, expected: Evidence, tokens: [u64; 2]) {
    assert_eq!(lookup, Lookup::Found(expected.clone()));
    let filters = [TierFilter::ALL, TierFilter::PRIMARY_ONLY];
    assert_eq!(filters.map(|f| external_tokens(&expected, &f)), tokens);
}

#[test]
fn evidence_as_runs() {
    let expected = Evidence {
        t_ms: Some(T),
        block_size: 16,
        prompts: vec![runs(&[
            (4, &["gpu", "cpu"]),
            (16, &["cpu"]),
            (8, &["storage@local"]),
        ])],
        partial: false,
    };
    let found = find(&bytes_of("evidence-runs"), REQUEST, ENDPOINT);
    check(found, expected, [384, 256]);
    assert!(DOC.contains("24 blocks,\n384 tokens"));
}

#[test]
fn evidence_as_counts() {
    let expected = Evidence {
        t_ms: Some(T),
        block_size: 64,
        prompts: vec![tiers(&[("gpu", 4), ("cpu", 20)]), tiers(&[("storage", 10)])],
        partial: true,
    };
    let found = find(&bytes_of("evidence-tiers"), REQUEST, ENDPOINT);
    check(found, expected, [1664, 1024]);
    assert!(DOC.contains("26 blocks, 1664 tokens"));
}

#[test]
fn a_merge() {
    let merged = upsert(
        Some(&bytes_of("merge-before")),
        &RequestEvidence {
            id: "r1",
            writer: "b",
            t_ms: T + 250,
            block_size: 16,
            endpoints: &SortedMap::from([(
                "10.0.0.8:8000".to_owned(),
                EndpointEvidence {
                    prompts: vec![tiers(&[("cpu", 20)])],
                    partial: false,
                },
            )]),
        },
        T + 250,
        30_000,
    );
    assert_eq!(merged, Some(bytes_of("merge-after")));
    assert!(DOC.contains(
        "Writer `b` has evidence for `10.0.0.8:8000`, of 250 ms later and 20 blocks in `cpu`"
    ));
}

#[test]
fn members() {
    let members = Members::decode(&bytes_of("members")).unwrap();
    let listed = SortedSet::from([ENDPOINT, "10.0.0.8:8000"]);
    assert_eq!(members.listed(T), Some(listed));
    assert_eq!(members.writers().keys().collect::<Vec<_>>(), ["my-scorer"]);
    assert!(members.is_unlisted("10.0.0.9:8000", T + FRESH_MS));
    assert!(!members.is_unlisted("10.0.0.9:8000", T + FRESH_MS + 1));
}

#[test]
fn headers() {
    let header = |name| from_header(block(after(name), "json").trim_end().as_bytes());
    let evidence = |block_size, prompts, partial| Evidence {
        t_ms: None,
        block_size,
        prompts,
        partial,
    };
    let counts = tiers(&[("gpu", 4), ("cpu", 20)]);
    check(
        header("header-tiers"),
        evidence(64, vec![counts.clone()], false),
        [1024, 1024],
    );
    let list = runs(&[(4, &["gpu", "cpu"]), (16, &["cpu"])]);
    check(
        header("header-runs"),
        evidence(16, vec![list], false),
        [256, 256],
    );
    let prompts = vec![counts, runs(&[(10, &["storage"])])];
    check(
        header("header-prompts"),
        evidence(64, prompts, true),
        [1664, 1024],
    );
}

/// Numbers in the text that are constants in the code.
#[test]
fn limits() {
    use selective_kv::contract::{MAX_VALUE_BYTES, evidence, evidence_writer, members, store};
    let table: &[(String, &str)] = &[
        (MAX_VALUE_BYTES.to_string(), "| one value | 262,144 bytes;"),
        (store::TRIES.to_string(), "repeat at most 4 times:"),
        (store::TRIES.to_string(), "(we try 4 times)"),
        (queue::MAX_SAMPLES.to_string(), "Keep the newest 32 samples"),
        (queue::MAX_SAMPLES.to_string(), "the newest 32 count"),
        (
            queue::MIN_SPACING_MS.to_string(),
            "| 200 ms later or more | append it",
        ),
        (
            queue::MIN_SPACING_MS.to_string(),
            "| less than 200 ms later, of the same time,",
        ),
        (
            (queue::LATE_MS / 1_000).to_string(),
            "or older by at most 2 s | drop it",
        ),
        (
            (queue::LATE_MS / 1_000).to_string(),
            "| more than 2 s older | the clock stepped back",
        ),
        (
            evidence_writer::MAX_REQUESTS.to_string(),
            "At most 4 requests a bucket",
        ),
        (
            (evidence_writer::MAX_REQUESTS - 1).to_string(),
            "requests = the last 3 of them + my entry",
        ),
        (
            evidence_writer::MAX_REQUEST_BYTES.to_string(),
            "at most 16,384 encoded bytes",
        ),
        (
            evidence::MAX_PROMPTS.to_string(),
            "more than 4,096 prompts,",
        ),
        (evidence::MAX_RUNS.to_string(), "65,536 runs"),
        (
            members::MAX_WRITERS.to_string(),
            "At most 16 writers, you among them",
        ),
        (
            (members::FRESH_MS / 1_000).to_string(),
            "`t` is at most 60 s from now",
        ),
        (
            (members::FRESH_MS / 1_000).to_string(),
            "Of those more than 60 s from now you may drop",
        ),
        (
            (members::KEEP_MS / 60_000).to_string(),
            "drop other entries more than 10 minutes from now",
        ),
        (
            (members::KEEP_MS / 60_000).to_string(),
            "newest sample that counts is more than 10 minutes from now",
        ),
        (
            keys::QUEUE_BUCKETS.to_string(),
            "`selective-kv/1/queue/<bucket of endpoint>` | 256 |",
        ),
        (
            keys::EVIDENCE_BUCKETS.to_string(),
            "`selective-kv/1/evidence/<bucket of request id>` | 4096 |",
        ),
        (
            store::CREATE.to_string(),
            "the largest value, `4294967295`:",
        ),
    ];
    for (number, sentence) in table {
        assert!(DOC.contains(sentence), "{sentence}");
        let digits = sentence.replace(',', "");
        assert!(digits.contains(number.as_str()), "{sentence}: {number}");
    }
}
