use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn parse(text: &str) -> ScorerConfig {
    match ScorerConfig::parse(text.as_bytes()) {
        Ok(config) => config,
        Err(error) => panic!("{text}: {error}"),
    }
}

fn target(cluster: &str, header: Option<&str>) -> Target {
    Target {
        cluster: cluster.into(),
        destination_header: header.map(Into::into),
    }
}

#[test]
fn defaults() {
    let config = parse(r#"{"endpoints":["10.0.0.7:8000"],"scrape":{"cluster":"scrape"}}"#);
    assert_eq!(config.name, "38689f157d040f78");
    assert_eq!(config.fingerprint, 0x3868_9f15_7d04_0f78);
    let scrape = target("scrape", Some("x-envoy-original-dst-host"));
    assert_eq!(
        config.endpoints,
        [Configured {
            address: "10.0.0.7:8000".into(),
            target: scrape
        }]
    );
    assert_eq!(config.discovery, None);
    assert_eq!(config.interval_ms, 1_000);
    assert_eq!(config.timeout_ms, 1_000);
    assert_eq!(config.path, "/metrics");
    assert_eq!(config.version_path.as_deref(), Some("/version"));
    assert_eq!(config.metric.name(), b"vllm:num_requests_waiting");
    assert_eq!(config.failures_to_remove, 3);
}

#[test]
fn every_key() {
    let config = parse(
        r#"{"name":"pool-a","endpoints":["10.0.0.7:8000","[::0001]:8000",
            {"address":"10.0.0.8:8000","cluster":"engine-b"}],
            "scrape":{"cluster":"engines-scrape","destinationHeader":"X-Scrape-To"},
            "interval":"500ms","timeout":"250ms","path":"/m?x=1","metric":"q{type=waiting}",
            "failuresToRemove":5.0,"versionPath":"/v","discover":true,"paths":["/a"]}"#,
    );
    assert_eq!(config.name, "pool-a");
    let scrape = target("engines-scrape", Some("x-scrape-to"));
    let endpoint = |address: &str, target: &Target| Configured {
        address: address.into(),
        target: target.clone(),
    };
    assert_eq!(
        config.endpoints,
        [
            endpoint("10.0.0.7:8000", &scrape),
            endpoint("[::1]:8000", &scrape),
            endpoint("10.0.0.8:8000", &target("engine-b", None)),
        ]
    );
    let paths = PathSet::new(vec!["/a".to_owned()]);
    let target = scrape;
    assert_eq!(config.discovery, Some(Discovery { paths, target }));
    assert_eq!((config.interval_ms, config.timeout_ms), (500, 250));
    assert_eq!(config.path, "/m?x=1");
    assert_eq!(config.version_path.as_deref(), Some("/v"));
    assert_eq!(config.metric.name(), b"q");
    assert_eq!(config.failures_to_remove, 5);
}

#[test]
fn the_default_timeout_leaves_an_engine_a_second() {
    let with = |interval: &str| {
        let text =
            format!(r#"{{"discover":true,"scrape":{{"cluster":"s"}},"interval":"{interval}"}}"#);
        parse(&text).timeout_ms
    };
    assert_eq!(with("200ms"), 1_000);
    assert_eq!(with("1s"), 1_000);
    assert_eq!(with("3s"), 3_000);
    assert_eq!(with("60s"), 5_000);
}

#[test]
fn the_default_name_follows_the_meaning_not_the_spelling() {
    let name = |text: &str| parse(text).name;
    let one = name(r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"interval":"1s"}"#);
    let same = [
        r#"{"interval":"1000ms","scrape":{"cluster":"s"},"endpoints":["[::1]:80"]}"#,
        r#"{"endpoints":["[0::1]:80"],"scrape":{"cluster":"s","destinationHeader":"X-Envoy-Original-Dst-Host"},"failuresToRemove":3}"#,
    ];
    for text in same {
        assert_eq!(name(text), one, "{text}");
    }
    let others = [
        r#"{"endpoints":["[::1]:81"],"scrape":{"cluster":"s"}}"#,
        r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"t"}}"#,
        r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"interval":"2s"}"#,
        r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"metric":"m"}"#,
        r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"discover":true}"#,
        r#"{"endpoints":["[::1]:80"],"scrape":{"cluster":"s"},"versionPath":null}"#,
    ];
    for text in others {
        assert_ne!(name(text), one, "{text}");
    }
}

#[test]
fn errors_name_field_value_and_what_is_allowed() {
    let keys = "name, endpoints, scrape, interval, timeout, path, metric, failuresToRemove, \
                versionPath, discover, paths, evidence";
    let address = "must be \"ip:port\" (IPv6 as \"[::1]:8000\"), or \
                   {\"address\":\"ip:port\",\"cluster\":\"name\"}";
    let name = "must be 1 to 64 of the characters a-z A-Z 0-9 . _ - / :";
    let rows: &[(&str, String)] = &[
        (
            "",
            "endpoints is missing: at least one \"ip:port\", or \"discover\": true".into(),
        ),
        (
            "{",
            "configuration is not valid JSON: EOF while parsing an object at line 1 column 1"
                .into(),
        ),
        ("[]", "configuration is []: must be a JSON object".into()),
        (
            r#"{"Name":"a"}"#,
            format!("Name is not a known key: allowed are {keys}"),
        ),
        (
            r#"{"name":"a","name":"b"}"#,
            "name is given twice: a key may appear once in an object".into(),
        ),
        (r#"{"name":""}"#, format!("name is \"\": {name}")),
        (r#"{"name":"a b"}"#, format!("name is \"a b\": {name}")),
        (r#"{"name":7}"#, format!("name is 7: {name}")),
        (
            r#"{"endpoints":"10.0.0.7:8000"}"#,
            "endpoints is \"10.0.0.7:8000\": must be a list of 0 to 256 endpoints".into(),
        ),
        (
            r#"{"endpoints":["engine:8000"]}"#,
            format!("endpoints[0] is \"engine:8000\": {address}"),
        ),
        (
            r#"{"endpoints":["::1:8000"]}"#,
            format!("endpoints[0] is \"::1:8000\": {address}"),
        ),
        (
            r#"{"endpoints":["10.0.0.7"]}"#,
            format!("endpoints[0] is \"10.0.0.7\": {address}"),
        ),
        (
            r#"{"endpoints":["10.0.0.7:0"]}"#,
            format!("endpoints[0] is \"10.0.0.7:0\": {address}"),
        ),
        (
            r#"{"endpoints":[1]}"#,
            format!("endpoints[0] is 1: {address}"),
        ),
        (
            r#"{"scrape":{"cluster":"s"},"endpoints":["[::1]:1","[::01]:1"]}"#,
            "endpoints[1] is \"[::01]:1\": each endpoint may be given once".into(),
        ),
        (
            r#"{"endpoints":["10.0.0.7:8000"]}"#,
            "endpoints[0] is \"10.0.0.7:8000\": needs \"scrape\", or a cluster of its own as \
             {\"address\":\"ip:port\",\"cluster\":\"name\"}"
                .into(),
        ),
        (
            r#"{"endpoints":[{"cluster":"c"}]}"#,
            "endpoints[0].address is missing: \"ip:port\"".into(),
        ),
        (
            r#"{"endpoints":[{"address":"x","cluster":"c"}]}"#,
            "endpoints[0].address is \"x\": must be \"ip:port\"".into(),
        ),
        (
            r#"{"endpoints":[{"address":"[::1]:1","port":2}]}"#,
            "endpoints[0].port is not a known key: allowed are address, cluster".into(),
        ),
        (
            r#"{"scrape":"s"}"#,
            "scrape is \"s\": must be a JSON object".into(),
        ),
        (
            r#"{"scrape":{}}"#,
            "scrape.cluster is missing: the name of an ORIGINAL_DST cluster".into(),
        ),
        (
            r#"{"scrape":{"cluster":""}}"#,
            "scrape.cluster is \"\": must be the name of an Envoy cluster".into(),
        ),
        (
            r#"{"scrape":{"cluster":"s","header":"h"}}"#,
            "scrape.header is not a known key: allowed are cluster, destinationHeader".into(),
        ),
        (
            r#"{"scrape":{"cluster":"s","destinationHeader":"Host"}}"#,
            "scrape.destinationHeader is \"Host\": must be a header name, not host or \
             content-length"
                .into(),
        ),
        (
            r#"{"interval":"100ms"}"#,
            "interval is \"100ms\": must be a duration from \"200ms\" to \"60s\"".into(),
        ),
        (
            r#"{"interval":1}"#,
            "interval is 1: must be a duration from \"200ms\" to \"60s\"".into(),
        ),
        (
            r#"{"timeout":"0s"}"#,
            "timeout is \"0s\": must be a duration from \"50ms\" to \"60s\"".into(),
        ),
        (
            r#"{"path":"metrics"}"#,
            "path is \"metrics\": must be a path that starts with / and has no # or space".into(),
        ),
        (
            r#"{"versionPath":"/a b"}"#,
            "versionPath is \"/a b\": must be a path that starts with / and has no # or \
             space, or null"
                .into(),
        ),
        (
            r#"{"metric":"a-b"}"#,
            "metric is \"a-b\": must be a metric name ([a-zA-Z_:][a-zA-Z0-9_:]*), optionally \
             followed by {label=value,...}"
                .into(),
        ),
        (
            r#"{"metric":"a{b}"}"#,
            "metric is \"a{b}\": must be labels written {label=value,...} after the metric \
             name"
                .into(),
        ),
        (
            r#"{"metric":null}"#,
            "metric is null: must be a metric name".into(),
        ),
        (
            r#"{"failuresToRemove":0}"#,
            "failuresToRemove is 0: must be a whole number from 1 to 1000".into(),
        ),
        (
            r#"{"failuresToRemove":1.5}"#,
            "failuresToRemove is 1.5: must be a whole number from 1 to 1000".into(),
        ),
        (
            r#"{"discover":"yes"}"#,
            "discover is \"yes\": must be true or false".into(),
        ),
        (
            r#"{"discover":true}"#,
            "scrape is missing: needed for \"discover\": true".into(),
        ),
        (
            r#"{"paths":[]}"#,
            "paths is []: must be a list of 1 to 256 paths".into(),
        ),
        (
            r#"{"paths":["/a","/a"]}"#,
            "paths[1] is \"/a\": must be a path, once, that starts with / and has no ?, # or \
             space"
                .into(),
        ),
    ];
    for (text, message) in rows {
        let error = ScorerConfig::parse(text.as_bytes()).err();
        let error = error.map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(error, *message, "{text}");
        assert!(!error.contains('\n'), "{text}");
    }
}
