//! Block keys against vLLM's own functions, recorded events and llm-d's tests (origins in
//! `testdata/README.md`).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::num::NonZeroU32;

use selective_kv::prefix::{
    Adapter, Algorithm, Chain, Context, ExtraKeyFormat, Item, Sha256Chain, event_key,
};
use serde_json::Value;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SHA256: &str = include_str!("../testdata/prefix/sha256_cbor.json");
const FNV: &str = include_str!("../testdata/prefix/fnv64a_cbor.json");

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn tokens(value: &Value) -> Vec<u32> {
    let token = |token: &Value| u32::try_from(token.as_u64().expect("a token")).expect("32 bits");
    rows(value).iter().map(token).collect()
}

fn size(value: &Value) -> NonZeroU32 {
    let size = value.as_u64().expect("a block size");
    NonZeroU32::new(u32::try_from(size).expect("32 bits")).expect("not 0")
}

fn number(value: &Value) -> u64 {
    value.as_str().expect("decimal").parse().expect("64 bits")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keys(algorithm: &Algorithm, context: Context<'_>, tokens: &[u32], block_size: u32) -> Vec<u64> {
    let chain = algorithm.chain(&context).expect("a chain");
    let size = NonZeroU32::new(block_size).expect("not 0");
    chain.keys(tokens, size).collect()
}

fn model(model: &str) -> Context<'_> {
    Context {
        model,
        ..Context::default()
    }
}

fn salted<'a>(model: &'a str, salt: &'a str) -> Context<'a> {
    Context {
        model,
        cache_salt: Some(salt),
        ..Context::default()
    }
}

fn adapter(name: &str) -> Context<'_> {
    Context {
        adapter: Some(Adapter { name, path: None }),
        ..Context::default()
    }
}

#[test]
fn request_keys_of_llm_d() {
    let file = parse(FNV);
    let rows = rows(&file["rows"]);
    assert_eq!(rows.len(), 5);
    for row in rows {
        let text = |field: &str| row[field].as_str().expect("text");
        let algorithm = Algorithm::fnv64a_cbor(text("hash_seed"));
        let context = Context {
            model: text("model"),
            cache_salt: row["block0_extras"][0].as_str(),
            adapter: None,
        };
        let tokens = tokens(&row["tokens"]);
        let chain = algorithm.chain(&context).expect("a chain");
        let found: Vec<u64> = chain.keys(&tokens, size(&row["block_size"])).collect();
        let expected: Vec<u64> = self::rows(&row["keys"]).iter().map(number).collect();
        assert_eq!(found, expected, "{row}");
    }
}

fn sha256<'a>(algorithm: &Algorithm, context: Context<'a>) -> Sha256Chain<'a> {
    match algorithm.chain(&context).expect("a chain") {
        Chain::Sha256(chain) => chain,
        Chain::Fnv(_) => panic!("another algorithm"),
    }
}

fn format(row: &Value) -> ExtraKeyFormat {
    match row["vllm_source_version"].as_str() {
        Some("0.30.0") => ExtraKeyFormat::Untagged,
        Some("0.33.0") => ExtraKeyFormat::Tagged,
        _ => panic!("a version without a format: {row}"),
    }
}

/// The multimodal items of a row that reach into the block, as vLLM lists them.
fn items<'a>(row: &'a Value, block: usize, size: usize) -> Vec<Item<'a>> {
    let start = block * size;
    rows(&row["extras_input"]["mm_features"])
        .iter()
        .filter_map(|item| {
            let field = |name: &str| usize::try_from(item[name].as_u64()?).ok();
            let (offset, length) = (field("offset")?, field("length")?);
            (offset < start + size && offset + length > start).then(|| Item {
                identifier: item["identifier"].as_str().expect("text"),
                offset: i64::try_from(offset).expect("small")
                    - i64::try_from(start).expect("small"),
            })
        })
        .collect()
}

#[test]
fn block_hashes_of_vllm() {
    let file = parse(SHA256);
    let rows = rows(&file["sha256_cbor"]);
    let mut blocks = 0;
    for row in rows {
        let algorithm = Algorithm::sha256_cbor(row["pythonhashseed"].as_str(), format(row));
        if let Algorithm::Sha256Cbor { none_hash, .. } = &algorithm {
            assert_eq!(hex(none_hash), row["none_hash_hex"].as_str().expect("hex"));
        }
        let extras = &row["extras_input"];
        let context = Context {
            model: "",
            adapter: extras["lora_name"].as_str().map(|name| Adapter {
                name,
                path: extras["lora_path"].as_str(),
            }),
            cache_salt: extras["cache_salt"].as_str(),
        };
        let mut chain = sha256(&algorithm, context);
        let name = row["tokens_name"].as_str().expect("a name");
        let tokens = tokens(&file["tokens"][name]);
        let size = size(&row["block_size"]).get() as usize;
        let expected = self::rows(&row["blocks"]);
        assert_eq!(tokens.len() / size, expected.len(), "{row}");
        for (index, (block, expected)) in tokens.chunks_exact(size).zip(expected).enumerate() {
            let digest = chain.next_with(block, &items(row, index, size), &[]);
            assert_eq!(
                hex(digest),
                expected["hash_hex"].as_str().expect("hex"),
                "{row}"
            );
            assert_eq!(event_key(digest), Some(number(&expected["event_u64"])));
            blocks += 1;
        }
        if extras["mm_features"] == Value::Array(Vec::new()) {
            let chain = algorithm.chain(&context).expect("a chain");
            let keys: Vec<u64> = chain
                .keys(&tokens, self::size(&row["block_size"]))
                .collect();
            let expected: Vec<u64> = expected.iter().map(|b| number(&b["event_u64"])).collect();
            assert_eq!(keys, expected, "{row}");
        }
    }
    assert_eq!(rows.len(), 126);
    assert!(blocks > 400, "{blocks}");
}

#[test]
fn block_hashes_with_lookahead() {
    let file = parse(SHA256);
    for row in rows(&file["lookahead"]) {
        let ahead = row["num_hash_lookahead_tokens"].as_u64().expect("tokens") as usize;
        let tokens = tokens(&file["tokens"][row["tokens_name"].as_str().expect("a name")]);
        let size = size(&row["block_size"]).get() as usize;
        let algorithm = Algorithm::sha256_cbor(row["pythonhashseed"].as_str(), format(row));
        let mut chain = sha256(&algorithm, Context::default());
        // The last block needs the tokens behind it too.
        let count = (tokens.len() - ahead) / size;
        let expected = rows(&row["blocks"]);
        assert_eq!(expected.len(), count, "{row}");
        for (index, expected) in expected.iter().enumerate() {
            let end = (index + 1) * size;
            let digest =
                chain.next_with(&tokens[index * size..end], &[], &tokens[end..end + ahead]);
            assert_eq!(
                hex(digest),
                expected["hash_hex"].as_str().expect("hex"),
                "{row}"
            );
        }
    }
}

/// The first three blocks of a recorded vLLM request (Qwen/Qwen3-0.6B).
const RECORDED: [u32; 48] = [
    2082, 1113, 2142, 374, 264, 4948, 19128, 323, 7203, 429, 374, 66351, 938, 315, 11198, 323,
    59415, 678, 90505, 11, 54263, 533, 7586, 315, 28922, 13, 1527, 1113, 2142, 6738, 369, 279,
    75345, 315, 279, 1584, 11, 892, 432, 9982, 311, 387, 25165, 11, 76244, 11, 323, 27756,
];

#[test]
fn events_recorded_from_vllm() {
    let algorithm = Algorithm::sha256_cbor(Some("42"), ExtraKeyFormat::Untagged);
    let expected = [
        (
            "7235f837d217eb40003197e4e27040edecc66c7d7fe49f86f5b600d19aef97ac",
            17_705_339_885_301_241_772,
        ),
        (
            "5407663a080a249dd6f87d30920d6a50ec3a64f7c75ada41b96a1b8db8d40bf9",
            13_360_521_540_053_240_825,
        ),
        (
            "b44faadf1fbc39c77fbd73d230164383795e2d1648ab5f3916eebb895664fb4a",
            1_652_464_311_825_922_890,
        ),
    ];
    let mut chain = sha256(&algorithm, Context::default());
    for (block, (digest, key)) in RECORDED.chunks_exact(16).zip(expected) {
        let found = chain.next(block);
        assert_eq!(hex(found), digest);
        assert_eq!(event_key(found), Some(key));
    }
    assert_eq!(
        keys(&algorithm, adapter("Alice"), &RECORDED, 16),
        [
            9_643_097_150_530_800_701,
            11_170_191_873_018_355_659,
            6_527_130_464_540_768_062,
        ]
    );
    assert_eq!(
        keys(&algorithm, salted("", "salt-1"), &RECORDED, 16),
        [
            11_149_185_757_793_751_428,
            12_425_132_427_825_016_537,
            1_763_240_275_414_172_241,
        ]
    );
    assert_eq!(
        keys(
            &Algorithm::fnv64a_cbor("42"),
            model("Qwen/Qwen3-0.6B"),
            &RECORDED,
            16
        ),
        [
            12_153_654_422_267_818_227,
            10_986_388_793_918_022_389,
            5_185_236_506_429_874_793,
        ]
    );
}

#[test]
fn keys_of_llm_d_for_counting_tokens() {
    let count = |n: u32| (1..=n).collect::<Vec<_>>();
    let fnv = Algorithm::fnv64a_cbor("");
    assert_eq!(
        keys(
            &fnv,
            model("ibm-granite/granite-3.1-8b-instruct"),
            &[8197, 438, 322, 18926, 432, 45600, 49],
            4
        ),
        [1_334_984_470_577_408_192]
    );
    assert_eq!(
        keys(&fnv, salted("test-model", "s1"), &count(64), 16),
        [
            8_806_536_956_484_641_792,
            1_440_382_170_103_717_858,
            7_067_836_452_658_928_593,
            12_116_992_365_893_833_112,
        ]
    );
    // llm-d names an adapter where it would name the model.
    assert_eq!(
        keys(&fnv, adapter("test-model"), &count(64), 64),
        keys(&fnv, model("test-model"), &count(64), 64)
    );
    assert_eq!(
        keys(&fnv, model("test-model"), &count(64), 64),
        [16_801_337_067_204_168_178]
    );

    let sha256 = |seed| Algorithm::sha256_cbor(Some(seed), ExtraKeyFormat::LlmD);
    assert_eq!(
        keys(&sha256("10"), model(""), &count(256), 64),
        [
            6_157_663_189_479_258_408,
            9_639_222_263_525_341_149,
            11_639_187_869_088_682_283,
            15_126_870_809_671_599_919,
        ]
    );
    assert_eq!(
        keys(&sha256("0"), model(""), &count(64), 16),
        [
            3_236_607_068_019_569_386,
            2_758_186_210_834_249_151,
            5_191_110_061_519_319_221,
            17_013_564_117_172_258_520,
        ]
    );
    assert_eq!(
        keys(&sha256("0"), adapter("my-lora"), &count(16), 16),
        [15_444_946_753_610_453_501]
    );
    let mut chain = self::sha256(
        &sha256("0"),
        Context {
            cache_salt: Some("salt-xyz"),
            ..adapter("lora-adapter")
        },
    );
    let item = |identifier| Item {
        identifier,
        offset: 0,
    };
    let digest = chain.next_with(&count(16), &[item("mm1"), item("mm2")], &[]);
    assert_eq!(event_key(digest), Some(2_374_715_385_960_602_001));
}
