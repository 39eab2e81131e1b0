use super::super::ScorerConfig;
use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A configuration with this block.
fn parse(evidence: &str) -> Result<ScorerConfig, String> {
    let text = format!(
        r#"{{"endpoints":[],"discover":true,"scrape":{{"cluster":"s"}},"evidence":{evidence}}}"#
    );
    ScorerConfig::parse(text.as_bytes()).map_err(|e| e.to_string())
}

fn evidence(text: &str) -> EvidenceConfig {
    let config = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    config.evidence.unwrap().as_ref().clone()
}

/// The least there can be, and `more` keys.
fn with(more: &str) -> String {
    format!(r#"{{"events":{{"cluster":"b"}}{more}}}"#)
}

fn events(cluster: &str) -> EventsConfig {
    EventsConfig {
        target_cluster: cluster.into(),
        authority: "kv-events-bridge".to_owned(),
        path: "/events".to_owned(),
    }
}

#[test]
fn defaults() {
    assert_eq!(
        evidence(&with("")),
        EvidenceConfig {
            events: events("b"),
            keys: KeysConfig::Fnv64aCbor {
                hash_seed: String::new()
            },
            model: None,
            aliases: SortedMap::new(),
            adapters: SortedMap::new(),
            models_path: Some("/v1/models".to_owned()),
            block_size: None,
            blocks_per_chunk: None,
            secondary: Secondary::Unvouched,
            shared_tiers: Vec::new(),
            max_silence_ms: 30_000,
            max_prompt_tokens: 1_000_000,
            limits: Limits {
                max_endpoints: 256,
                max_blocks_per_endpoint: 262_144,
                max_index_bytes: 268_435_456,
                max_cache_bytes: 134_217_728,
            },
            paths: PathSet::default(),
            tokenize: None,
            prefetch: None,
            fingerprint: fnv1a64(b"fnv64a_cbor "),
        }
    );
}

#[test]
fn every_key() {
    let config = evidence(
        r#"{"events":{"cluster":"bridge","authority":"bridge.kv:8099","path":"/e"},
            "algorithm":"sha256_cbor","pythonHashSeed":"42","extraKeys":"tagged","model":"m",
            "aliases":{"gpt-x":"m","gpt-l":"l"},"adapters":[{"name":"l","path":"/l"}],
            "modelsPath":null,"blockSize":16,"blocksPerChunk":4.0,"secondaryTiers":"vouched",
            "sharedTiers":["storage","obj"],"maxSilence":"1m","maxPromptTokens":7,
            "maxEndpoints":8,"maxBlocksPerEndpoint":9,"maxIndexBytes":1048576,
            "maxCacheBytes":1048577,"tokenize":{"cluster":"t","authority":"v","path":"/t?x=1",
            "timeout":"1s","maxBodyBytes":10,"maxCacheBytes":0}}"#,
    );
    let text = |text: &str| text.to_owned();
    assert_eq!(
        config,
        EvidenceConfig {
            events: EventsConfig {
                target_cluster: "bridge".into(),
                authority: text("bridge.kv:8099"),
                path: text("/e"),
            },
            keys: KeysConfig::Sha256Cbor {
                python_hash_seed: Some(text("42")),
                extra_keys: Some(ExtraKeyFormat::Tagged),
            },
            model: Some(text("m")),
            aliases: SortedMap::from([(text("gpt-x"), text("m")), (text("gpt-l"), text("l"))]),
            adapters: SortedMap::from([(text("l"), Some(text("/l")))]),
            models_path: None,
            block_size: NonZeroU32::new(16),
            blocks_per_chunk: NonZeroU32::new(4),
            secondary: Secondary::Vouched,
            shared_tiers: vec![text("storage"), text("obj")],
            max_silence_ms: 60_000,
            max_prompt_tokens: 7,
            limits: Limits {
                max_endpoints: 8,
                max_blocks_per_endpoint: 9,
                max_index_bytes: 1_048_576,
                max_cache_bytes: 1_048_577,
            },
            paths: PathSet::default(),
            tokenize: Some(TokenizeConfig {
                cluster: "t".into(),
                authority: text("v"),
                path: text("/t?x=1"),
                timeout_ms: 1_000,
                max_body_bytes: 10,
                max_cache_bytes: 0,
            }),
            prefetch: None,
            fingerprint: fnv1a64(br#"sha256_cbor Some("42") Tagged "l" "/l""#),
        }
    );
}

#[test]
fn tokenize_by_default() {
    let config = evidence(&with(r#","tokenize":{"cluster":"t"}"#));
    assert_eq!(
        config.tokenize,
        Some(TokenizeConfig {
            cluster: "t".into(),
            authority: "vllm".to_owned(),
            path: "/tokenize".to_owned(),
            timeout_ms: 200,
            max_body_bytes: 24_576,
            max_cache_bytes: 8_388_608,
        })
    );
}

#[test]
fn bodies_are_read_on_the_scorers_paths() {
    let text = r#"{"endpoints":[{"address":"[::1]:1","cluster":"c"}],"paths":["/b","/a"],
                   "evidence":{"events":{"cluster":"b"}}}"#;
    let config = ScorerConfig::parse(text.as_bytes()).unwrap();
    let paths = PathSet::new(vec!["/a".to_owned(), "/b".to_owned()]);
    assert_eq!(config.evidence.unwrap().paths, paths);
}

#[test]
fn without_the_block_there_is_none() {
    let text = r#"{"endpoints":[{"address":"[::1]:1","cluster":"c"}]}"#;
    assert_eq!(ScorerConfig::parse(text.as_bytes()).unwrap().evidence, None);
}

#[test]
fn the_format_of_extra_keys_is_the_engines_unless_configured() {
    let algorithm = |more: &str, format| evidence(&with(more)).keys.algorithm(format);
    let (tagged, untagged) = (ExtraKeyFormat::Tagged, ExtraKeyFormat::Untagged);
    let sha = r#","algorithm":"sha256_cbor","pythonHashSeed":"0""#;
    let set = format!(r#"{sha},"extraKeys":"untagged""#);
    for format in [tagged, untagged] {
        assert_eq!(
            algorithm(sha, format),
            Algorithm::sha256_cbor(Some("0"), format)
        );
        let expected = Algorithm::sha256_cbor(Some("0"), untagged);
        assert_eq!(algorithm(&set, format), expected);
        let seeded = r#","hashSeed":"x""#;
        assert_eq!(algorithm(seeded, format), Algorithm::fnv64a_cbor("x"));
    }
}

#[test]
fn what_keys_depend_on_has_its_fingerprint() {
    let print = |more: &str| evidence(&with(more)).fingerprint;
    let sha = r#","algorithm":"sha256_cbor""#;
    let seeded = format!(r#"{sha},"pythonHashSeed":"0""#);
    let (fnv, sha_print) = (print(""), print(sha));
    for same in [
        r#","hashSeed":"""#,
        r#","maxSilence":"9s""#,
        r#","blockSize":64"#,
    ] {
        assert_eq!(print(same), fnv, "{same}");
    }
    let nameless = format!(r#"{sha},"adapters":[{{"name":"l"}}]"#);
    assert_eq!(print(&nameless), sha_print);
    // Engines' hashes were checked against these.
    let tagged = format!(r#"{sha},"extraKeys":"tagged""#);
    let path = |path: &str| format!(r#"{sha},"adapters":[{{"name":"l","path":"{path}"}}]"#);
    let others = [
        fnv,
        sha_print,
        print(&seeded),
        print(r#","hashSeed":"0""#),
        print(&tagged),
        print(&path("/l")),
        print(&path("/l/")),
    ];
    for (i, one) in others.iter().enumerate() {
        assert!(!others[i + 1..].contains(one), "{i}");
    }
}

/// A change of any key hands the lease over.
#[test]
fn the_scorers_fingerprint_covers_the_block() {
    let print = |text: &str| parse(text).unwrap().fingerprint;
    let least = print(&with(""));
    let same = [
        r#","algorithm":"fnv64a_cbor","modelsPath":"/v1/models","aliases":{},"sharedTiers":[]"#,
        r#","maxSilence":"30000ms","maxEndpoints":256"#,
    ];
    for same in same {
        assert_eq!(print(&with(same)), least, "{same}");
    }
    let others = [
        r#","algorithm":"sha256_cbor""#,
        r#","hashSeed":"x""#,
        r#","model":"m""#,
        r#","aliases":{"a":"b"}"#,
        r#","adapters":[{"name":"l"}]"#,
        r#","modelsPath":null"#,
        r#","blockSize":16"#,
        r#","blocksPerChunk":16"#,
        r#","secondaryTiers":"none""#,
        r#","sharedTiers":["cpu"]"#,
        r#","maxSilence":"31s""#,
        r#","maxPromptTokens":16"#,
        r#","maxEndpoints":16"#,
        r#","maxBlocksPerEndpoint":16"#,
        r#","maxIndexBytes":1048576"#,
        r#","maxCacheBytes":1048576"#,
        r#","tokenize":{"cluster":"t"}"#,
        r#","tokenize":{"cluster":"t","maxBodyBytes":1}"#,
    ];
    let mut prints = vec![least, print(r#"{"events":{"cluster":"c"}}"#)];
    for other in others {
        let print = print(&with(other));
        assert!(!prints.contains(&print), "{other}");
        prints.push(print);
    }
    let none = r#"{"discover":true,"scrape":{"cluster":"s"}}"#;
    let none = ScorerConfig::parse(none.as_bytes()).unwrap().fingerprint;
    assert!(!prints.contains(&none));
}

#[test]
fn errors_name_field_value_and_what_is_allowed() {
    let keys = "events, algorithm, hashSeed, pythonHashSeed, extraKeys, model, aliases, adapters, \
                modelsPath, blockSize, blocksPerChunk, secondaryTiers, sharedTiers, maxSilence, \
                maxPromptTokens, maxEndpoints, maxBlocksPerEndpoint, maxIndexBytes, \
                maxCacheBytes, tokenize, prefetch";
    let model = "must be a name of 1 to 512 bytes without control characters";
    let seed = "must be the engines' PYTHONHASHSEED as a text: \"0\" to \"4294967295\", or \
                \"random\"";
    let tier = "must be a tier, once, of 1 to 40 lower-case letters, digits, _ or -, and not \
                \"gpu\"";
    let only_sha = "only with \"algorithm\": \"sha256_cbor\"";
    let sha = r#","algorithm":"sha256_cbor""#;
    let rows: &[(String, String)] = &[
        ("null".into(), " is null: must be a JSON object".into()),
        (
            "{}".into(),
            ".events is missing: {\"cluster\":\"name\"} of kv-events-bridge".into(),
        ),
        (
            r#"{"Model":1}"#.into(),
            format!(".Model is not a known key: allowed are {keys}"),
        ),
        (
            r#"{"events":{}}"#.into(),
            ".events.cluster is missing: the name of the cluster of kv-events-bridge".into(),
        ),
        (
            r#"{"events":{"cluster":""}}"#.into(),
            ".events.cluster is \"\": must be the name of an Envoy cluster".into(),
        ),
        (
            r#"{"events":{"url":""}}"#.into(),
            ".events.url is not a known key: allowed are cluster, authority, path".into(),
        ),
        (
            r#"{"events":{"cluster":"b","path":"/e?x"}}"#.into(),
            ".events.path is \"/e?x\": must be a path that starts with / and has no ?, # or space"
                .into(),
        ),
        (
            r#"{"events":{"cluster":"b","authority":"a/b"}}"#.into(),
            ".events.authority is \"a/b\": must be a host, with or without a port".into(),
        ),
        (
            with(r#","algorithm":"sha256""#),
            ".algorithm is \"sha256\": must be \"fnv64a_cbor\" or \"sha256_cbor\"".into(),
        ),
        (
            with(r#","pythonHashSeed":"0""#),
            format!(".pythonHashSeed is \"0\": {only_sha}"),
        ),
        (
            with(r#","extraKeys":"tagged""#),
            format!(".extraKeys is \"tagged\": {only_sha}"),
        ),
        (
            with(r#","adapters":[{"name":"l","path":"/l"}]"#),
            format!(".adapters[0].path is \"/l\": {only_sha}"),
        ),
        (
            with(&format!(r#"{sha},"hashSeed":"""#)),
            ".hashSeed is \"\": only with \"algorithm\": \"fnv64a_cbor\"".into(),
        ),
        (
            with(&format!(r#"{sha},"extraKeys":"llmd""#)),
            ".extraKeys is \"llmd\": must be \"untagged\" or \"tagged\"".into(),
        ),
        (
            with(&format!(
                r#"{sha},"extraKeys":"untagged","adapters":[{{"name":"l","path":"/l"}}]"#
            )),
            ".adapters[0].path is \"/l\": not with \"extraKeys\": \"untagged\"".into(),
        ),
        (
            with(&format!(
                r#"{sha},"extraKeys":"tagged","adapters":[{{"name":"l"}}]"#
            )),
            ".adapters[0].path is missing: needed with \"extraKeys\": \"tagged\"".into(),
        ),
        (
            with(&format!(r#"{sha},"pythonHashSeed":0"#)),
            format!(".pythonHashSeed is 0: {seed}"),
        ),
        (
            with(&format!(r#"{sha},"pythonHashSeed":"+1""#)),
            format!(".pythonHashSeed is \"+1\": {seed}"),
        ),
        (
            with(&format!(r#"{sha},"pythonHashSeed":"4294967296""#)),
            format!(".pythonHashSeed is \"4294967296\": {seed}"),
        ),
        (
            with(&format!(r#"{sha},"pythonHashSeed":"""#)),
            format!(".pythonHashSeed is \"\": {seed}"),
        ),
        (
            with(r#","hashSeed":0"#),
            ".hashSeed is 0: must be a text of at most 1024 bytes".into(),
        ),
        (with(r#","model":"""#), format!(".model is \"\": {model}")),
        (
            with(r#","aliases":["a"]"#),
            ".aliases is [\"a\"]: must be a JSON object".into(),
        ),
        (
            with(r#","aliases":{"a":1}"#),
            format!(".aliases.a is 1: {model}"),
        ),
        (
            with(r#","aliases":{"":"m"}"#),
            format!(".aliases is \"\": {model}"),
        ),
        (
            with(r#","aliases":{"a":"b","a":"c"}"#),
            ".aliases.a is given twice: a key may appear once in an object".into(),
        ),
        (
            with(r#","aliases":{"a":"a"}"#),
            ".aliases.a is \"a\": an alias may not stand for an alias".into(),
        ),
        (
            with(r#","aliases":{"a":"b","b":"m"}"#),
            ".aliases.a is \"b\": an alias may not stand for an alias".into(),
        ),
        (
            with(r#","model":"m","aliases":{"m":"x"}"#),
            ".aliases.m is \"x\": an alias may not be the base model's name (\"model\")".into(),
        ),
        (
            with(r#","adapters":[{"name":"l"}],"aliases":{"l":"x"}"#),
            ".aliases.l is \"x\": an alias may not be an adapter's name".into(),
        ),
        (
            with(r#","adapters":["l"]"#),
            ".adapters[0] is \"l\": must be a JSON object".into(),
        ),
        (
            with(r#","adapters":[{}]"#),
            ".adapters[0].name is missing: the adapter as requests name it".into(),
        ),
        (
            with(r#","adapters":[{"name":"l","dir":"d"}]"#),
            ".adapters[0].dir is not a known key: allowed are name, path".into(),
        ),
        (
            with(r#","adapters":[{"name":"l"},{"name":"l"}]"#),
            ".adapters[1].name is \"l\": each adapter may be given once".into(),
        ),
        (
            with(r#","model":"m","adapters":[{"name":"m"}]"#),
            ".adapters[0].name is \"m\": an adapter may not have the base model's name (\"model\")"
                .into(),
        ),
        (
            with(r#","modelsPath":"models""#),
            ".modelsPath is \"models\": must be a path that starts with / and has no # or space, \
             or null"
                .into(),
        ),
        (
            with(r#","blockSize":0"#),
            ".blockSize is 0: must be a whole number from 1 to 65536".into(),
        ),
        (
            with(r#","blocksPerChunk":65537"#),
            ".blocksPerChunk is 65537: must be a whole number from 1 to 65536".into(),
        ),
        (
            with(r#","secondaryTiers":true"#),
            ".secondaryTiers is true: must be \"none\", \"vouched\" or \"unvouched\"".into(),
        ),
        (
            with(r#","sharedTiers":["cpu","storage"],"secondaryTiers":"none""#),
            ".sharedTiers[1] is \"storage\": not with \"secondaryTiers\": \"none\"".into(),
        ),
        (
            with(r#","sharedTiers":["Storage"]"#),
            format!(".sharedTiers[0] is \"Storage\": {tier}"),
        ),
        (
            with(r#","sharedTiers":["gpu"]"#),
            format!(".sharedTiers[0] is \"gpu\": {tier}"),
        ),
        (
            with(r#","sharedTiers":["fs","fs"]"#),
            format!(".sharedTiers[1] is \"fs\": {tier}"),
        ),
        (
            with(r#","maxSilence":"999ms""#),
            ".maxSilence is \"999ms\": must be a duration from \"1s\" to \"60m\"".into(),
        ),
        (
            with(r#","maxPromptTokens":16777217"#),
            ".maxPromptTokens is 16777217: must be a whole number from 1 to 16777216".into(),
        ),
        (
            with(r#","maxEndpoints":4097"#),
            ".maxEndpoints is 4097: must be a whole number from 1 to 4096".into(),
        ),
        (
            with(r#","maxBlocksPerEndpoint":0"#),
            ".maxBlocksPerEndpoint is 0: must be a whole number from 1 to 16777216".into(),
        ),
        (
            with(r#","maxIndexBytes":1048575"#),
            ".maxIndexBytes is 1048575: must be a whole number from 1048576 to 17179869184".into(),
        ),
        (
            with(r#","maxCacheBytes":536870913"#),
            ".maxCacheBytes is 536870913: must be a whole number from 1048576 to 536870912".into(),
        ),
        (
            with(r#","tokenize":{}"#),
            ".tokenize.cluster is missing: the name of a cluster that answers vLLM's /tokenize"
                .into(),
        ),
        (
            with(r#","tokenize":{"body":1}"#),
            ".tokenize.body is not a known key: allowed are cluster, authority, path, timeout, \
             maxBodyBytes, maxCacheBytes"
                .into(),
        ),
        (
            with(r#","tokenize":{"timeout":"9ms"}"#),
            ".tokenize.timeout is \"9ms\": must be a duration from \"10ms\" to \"10s\"".into(),
        ),
        (
            with(r#","tokenize":{"maxBodyBytes":16777217}"#),
            ".tokenize.maxBodyBytes is 16777217: must be a whole number from 1 to 16777216".into(),
        ),
        (
            with(r#","tokenize":{"maxCacheBytes":268435457}"#),
            ".tokenize.maxCacheBytes is 268435457: must be a whole number from 0 to 268435456"
                .into(),
        ),
    ];
    for (text, message) in rows {
        let error = parse(text).err().unwrap_or_default();
        assert_eq!(error, format!("evidence{message}"), "{text}");
    }
}

fn prefetch(more: &str) -> PrefetchConfig {
    let config = evidence(&with(more));
    config.prefetch.unwrap()
}

fn sha(seed: Option<&str>, extra_keys: Option<ExtraKeyFormat>) -> KeysConfig {
    KeysConfig::Sha256Cbor {
        python_hash_seed: seed.map(str::to_owned),
        extra_keys,
    }
}

#[test]
fn prefetch_by_default_and_with_every_key() {
    let least = PrefetchConfig {
        cluster: "p".into(),
        authority: "kv-prefetch-agent".to_owned(),
        path: "/prefetch".to_owned(),
        token: None,
        timeout_ms: 1_000,
        keys: sha(None, None),
        blocks_per_file: NonZeroU32::MIN,
        max_digests: 4_096,
        max_in_flight: 32,
        window_ms: 10_000,
    };
    assert_eq!(prefetch(r#","prefetch":{"cluster":"p"}"#), least);
    let chunks = r#","blocksPerChunk":8,"prefetch":{"cluster":"p"}"#;
    let blocks_per_file = NonZeroU32::new(8).unwrap();
    assert_eq!(prefetch(chunks).blocks_per_file, blocks_per_file);
    assert_eq!(
        prefetch(
            r#","blocksPerChunk":8,"prefetch":{"cluster":"p","authority":"a:1","path":"/p","token":"s3cret",
                "timeout":"50ms","pythonHashSeed":"0","extraKeys":"tagged","blocksPerFile":16,
                "maxDigests":7,"maxInFlight":1,"window":"100ms"}"#
        ),
        PrefetchConfig {
            cluster: "p".into(),
            authority: "a:1".to_owned(),
            path: "/p".to_owned(),
            token: Some("s3cret".to_owned()),
            timeout_ms: 50,
            keys: sha(Some("0"), Some(ExtraKeyFormat::Tagged)),
            blocks_per_file: NonZeroU32::new(16).unwrap(),
            max_digests: 7,
            max_in_flight: 1,
            window_ms: 100,
        }
    );
}

/// Files have the engines' own names, whatever the scorer's keys are.
#[test]
fn digests_of_files_are_the_engines() {
    let own = r#","algorithm":"sha256_cbor","pythonHashSeed":"42","extraKeys":"untagged","prefetch":{"cluster":"p"}"#;
    let expected = sha(Some("42"), Some(ExtraKeyFormat::Untagged));
    assert_eq!(prefetch(own).keys, expected);
    // Their paths are hashed, too.
    let paths = r#","adapters":[{"name":"l","path":"/l"}],"prefetch":{"cluster":"p"}"#;
    let config = evidence(&with(paths));
    assert_eq!(config.adapters.get("l").unwrap().as_deref(), Some("/l"));
    assert_eq!(config.fingerprint, evidence(&with("")).fingerprint);
    let print = |text: &str| parse(&with(text)).unwrap().fingerprint;
    let other = r#","prefetch":{"cluster":"p","window":"9s"}"#;
    assert_ne!(print(r#","prefetch":{"cluster":"p"}"#), print(""));
    assert_ne!(print(r#","prefetch":{"cluster":"p"}"#), print(other));
}

#[test]
fn errors_of_prefetch_name_field_value_and_what_is_allowed() {
    let block = |more: &str| with(&format!(r#","prefetch":{{"cluster":"p"{more}}}"#));
    let own = r#","algorithm":"sha256_cbor","prefetch":{"cluster":"p""#;
    let only_fnv = "only with \"algorithm\": \"fnv64a_cbor\": that of the scorer counts";
    for (text, says) in [
        (
            with(r#","prefetch":{}"#),
            ".prefetch.cluster is missing: the name of the cluster of kv-prefetch-agent".to_owned(),
        ),
        (
            with(r#","prefetch":true"#),
            ".prefetch is true: must be a JSON object".into(),
        ),
        (
            block(r#","url":1"#),
            ".prefetch.url is not a known key: allowed are cluster, authority, path, token, \
             timeout, pythonHashSeed, extraKeys, blocksPerFile, maxDigests, maxInFlight, window"
                .into(),
        ),
        (
            block(r#","token":"a b""#),
            ".prefetch.token is not shown here: must be a token of 1 to 4096 visible ASCII characters"
                .into(),
        ),
        (
            block(r#","timeout":"11s""#),
            ".prefetch.timeout is \"11s\": must be a duration from \"10ms\" to \"10s\"".into(),
        ),
        (
            block(r#","window":"11m""#),
            ".prefetch.window is \"11m\": must be a duration from \"100ms\" to \"10m\"".into(),
        ),
        (
            block(r#","blocksPerFile":0"#),
            ".prefetch.blocksPerFile is 0: must be a whole number from 1 to 65536".into(),
        ),
        (
            block(r#","maxDigests":16385"#),
            ".prefetch.maxDigests is 16385: must be a whole number from 1 to 16384".into(),
        ),
        (
            block(r#","maxInFlight":0"#),
            ".prefetch.maxInFlight is 0: must be a whole number from 1 to 1024".into(),
        ),
        (
            with(&format!(r#"{own},"pythonHashSeed":"0"}}"#)),
            format!(".prefetch.pythonHashSeed is \"0\": {only_fnv}"),
        ),
        (
            with(&format!(r#"{own},"extraKeys":"tagged"}}"#)),
            format!(".prefetch.extraKeys is \"tagged\": {only_fnv}"),
        ),
        (
            with(r#","adapters":[{"name":"l"}],"prefetch":{"cluster":"p","extraKeys":"tagged"}"#),
            ".adapters[0].path is missing: needed with \"extraKeys\": \"tagged\"".into(),
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(
            error.contains(&format!("evidence{says}")),
            "{error}\n{says}"
        );
    }
}
