//! Bad configurations: each is refused with one line that names the field, the value and what is
//! allowed.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::fmt::Write;

use selective_kv::policy::config::{GateRegistry, MAX_GATES, PolicySet};
use selective_kv::policy::route::RouteFacts;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn error(text: &str) -> String {
    match PolicySet::parse(text.as_bytes()) {
        Ok(_) => format!("{text} was taken"),
        Err(error) => error.to_string(),
    }
}

const KEYS: &str = "loadPolicy, offloadPolicy, minExternalReusableTokens, maxWaitingRequests, \
    ewmaHalfLife, reopenRatio, maxSampleAge, maxEvidenceAge, admission, defaultLoadTiers, clientCaps, dryRun, maxHeldBytes, \
    maxHeldBytesPerVm, evidenceHeader, paths, endpointSources";
const DURATION: &str =
    "must be a duration from \"1ms\" to \"1440m\": a whole number with ms, s or m";
const MATCH: &str =
    "an object with exactly one of routeName, routeNamePrefix, virtualHost, cluster";
const HEADER: &str = "must be an HTTP header name that means nothing else, or null for none";
const PATH: &str = "must be a path, once, that starts with / and has no ?, # or space";
const SOURCES: &str = "must be \"upstream\", \"header\" or \"metadata\", each once";

fn check(cases: &[(&str, &str)]) {
    let mut wrong = String::new();
    for (text, expected) in cases {
        let found = error(text);
        let one_line = !found.contains('\n') && found.chars().count() < 700;
        if found != *expected || !one_line {
            writeln!(wrong, "{text}\n  is      {found}\n  must be {expected}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn text_that_is_no_object() {
    check(&[
        (
            "{",
            "configuration is not valid JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            "loadPolicy: disable",
            "configuration is not valid JSON: expected value at line 1 column 1",
        ),
        (
            r#"{"dryRun":true,}"#,
            "configuration is not valid JSON: trailing comma at line 1 column 16",
        ),
        (
            "{} {}",
            "configuration is not valid JSON: trailing characters at line 1 column 4",
        ),
        (
            r#"{"reopenRatio":NaN}"#,
            "configuration is not valid JSON: expected value at line 1 column 16",
        ),
        (
            r#"{"reopenRatio":1e999}"#,
            "configuration is not valid JSON: number out of range at line 1 column 20",
        ),
        ("[]", "configuration is []: must be a JSON object"),
        ("null", "configuration is null: must be a JSON object"),
        (r#""{}""#, r#"configuration is "{}": must be a JSON object"#),
    ]);
    let nested = "[".repeat(200);
    assert_eq!(
        error(&nested),
        "configuration is not valid JSON: recursion limit exceeded at line 1 column 128"
    );
    let latin = PolicySet::parse(b"{\"loadPolicy\":\"\xff\"}").unwrap_err();
    assert_eq!(
        latin.to_string(),
        "configuration is not valid JSON: invalid unicode code point at line 1 column 16"
    );
    assert_eq!(latin.field(), "configuration");
}

#[test]
fn keys() {
    let unknown = |key: &str| format!("{key} is not a known key: allowed are {KEYS}, routes");
    let break_line = unknown(r#""a\nb""#);
    let dotted = unknown(r#""routes[0].dryRun""#);
    let empty = unknown(r#""""#);
    let match_in_route =
        format!("routes[1].loadpolicy is not a known key: allowed are match, {KEYS}");
    check(&[
        (r#"{"loadpolicy":"disable"}"#, &unknown("loadpolicy")),
        (r#"{"match":{"routeName":"a"}}"#, &unknown("match")),
        (r#"{"a\nb":1}"#, &break_line),
        (r#"{"routes[0].dryRun":1}"#, &dotted),
        (r#"{"":1}"#, &empty),
        (
            r#"{"dryRun":true,"dryRun":true}"#,
            "dryRun is given twice: a key may appear once in an object",
        ),
        (
            r#"{"dryRun":true,"dry\u0052un":1}"#,
            "dryRun is given twice: a key may appear once in an object",
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"}},{"match":{"cluster":"b"},"loadpolicy":1}]}"#,
            &match_in_route,
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"},"dryRun":true,"dryRun":true}]}"#,
            "routes[0].dryRun is given twice: a key may appear once in an object",
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a","cluster":"a"}}]}"#,
            "routes[0].match.cluster is given twice: a key may appear once in an object",
        ),
        (
            r#"{"routes":[{"match":{"route":"a"}}]}"#,
            "routes[0].match.route is not a known key: allowed are routeName, routeNamePrefix, \
             virtualHost, cluster",
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"},"routes":[]}]}"#,
            &format!("routes[0].routes is not a known key: allowed are match, {KEYS}"),
        ),
    ]);
}

#[test]
fn values() {
    let load = "must be \"preserve\", \"disable\" or \"threshold\"";
    let tokens = "minExternalReusableTokens is";
    let above_0 = "must be a whole number of tokens greater than 0";
    let waiting = "must be a whole number from 0 to 4294967295";
    let ratio = "must be a number greater than 0 and at most 1";
    let bytes = "must be a whole number of bytes from 0 to 1073741824";
    let list_of_paths = "must be a list of 1 to 256 paths";
    let list_of_sources = "must be a list of 1 to 3 endpoint sources";
    let cases: Vec<(&str, String)> = vec![
        (
            r#"{"loadPolicy":"sometimes"}"#,
            format!(r#"loadPolicy is "sometimes": {load}"#),
        ),
        (
            r#"{"loadPolicy":"Disable"}"#,
            format!(r#"loadPolicy is "Disable": {load}"#),
        ),
        (
            r#"{"loadPolicy":"a\nb"}"#,
            format!(r#"loadPolicy is "a\nb": {load}"#),
        ),
        (
            r#"{"loadPolicy":null}"#,
            format!("loadPolicy is null: {load}"),
        ),
        (
            r#"{"offloadPolicy":"threshold"}"#,
            r#"offloadPolicy is "threshold": must be "preserve", "disable", "pressure" or "backpressure""#.to_owned(),
        ),
        (
            r#"{"minExternalReusableTokens":0}"#,
            format!("{tokens} 0: {above_0}"),
        ),
        (
            r#"{"minExternalReusableTokens":-1024}"#,
            format!("{tokens} -1024: {above_0}"),
        ),
        (
            r#"{"minExternalReusableTokens":1024.5}"#,
            format!("{tokens} 1024.5: {above_0}"),
        ),
        (
            r#"{"minExternalReusableTokens":"1024"}"#,
            format!(r#"{tokens} "1024": {above_0}"#),
        ),
        (
            r#"{"minExternalReusableTokens":1e300}"#,
            format!("{tokens} 1e+300: {above_0}"),
        ),
        (
            r#"{"maxWaitingRequests":-1}"#,
            format!("maxWaitingRequests is -1: {waiting}"),
        ),
        (
            r#"{"maxWaitingRequests":4294967296}"#,
            format!("maxWaitingRequests is 4294967296: {waiting}"),
        ),
        (
            r#"{"maxWaitingRequests":7.5}"#,
            format!("maxWaitingRequests is 7.5: {waiting}"),
        ),
        (
            r#"{"maxWaitingRequests":true}"#,
            format!("maxWaitingRequests is true: {waiting}"),
        ),
        (
            r#"{"ewmaHalfLife":2}"#,
            format!("ewmaHalfLife is 2: {DURATION}"),
        ),
        (
            r#"{"ewmaHalfLife":"2"}"#,
            format!(r#"ewmaHalfLife is "2": {DURATION}"#),
        ),
        (
            r#"{"ewmaHalfLife":"0s"}"#,
            format!(r#"ewmaHalfLife is "0s": {DURATION}"#),
        ),
        (
            r#"{"ewmaHalfLife":"1.5s"}"#,
            format!(r#"ewmaHalfLife is "1.5s": {DURATION}"#),
        ),
        (
            r#"{"maxSampleAge":"-1s"}"#,
            format!(r#"maxSampleAge is "-1s": {DURATION}"#),
        ),
        (
            r#"{"maxSampleAge":"1h"}"#,
            format!(r#"maxSampleAge is "1h": {DURATION}"#),
        ),
        (
            r#"{"maxEvidenceAge":"1441m"}"#,
            format!(r#"maxEvidenceAge is "1441m": {DURATION}"#),
        ),
        (r#"{"reopenRatio":0}"#, format!("reopenRatio is 0: {ratio}")),
        (
            r#"{"reopenRatio":1.01}"#,
            format!("reopenRatio is 1.01: {ratio}"),
        ),
        (
            r#"{"reopenRatio":-0.5}"#,
            format!("reopenRatio is -0.5: {ratio}"),
        ),
        (
            r#"{"reopenRatio":"0.5"}"#,
            format!(r#"reopenRatio is "0.5": {ratio}"#),
        ),
        (
            r#"{"clientCaps":"keep"}"#,
            r#"clientCaps is "keep": must be "override" or "respect""#.to_owned(),
        ),
        (
            r#"{"dryRun":"true"}"#,
            r#"dryRun is "true": must be true or false"#.to_owned(),
        ),
        (
            r#"{"dryRun":1}"#,
            "dryRun is 1: must be true or false".to_owned(),
        ),
        (
            r#"{"maxHeldBytes":-1}"#,
            format!("maxHeldBytes is -1: {bytes}"),
        ),
        (
            r#"{"maxHeldBytes":"16MiB"}"#,
            format!(r#"maxHeldBytes is "16MiB": {bytes}"#),
        ),
        (
            r#"{"maxHeldBytesPerVm":1073741825}"#,
            format!("maxHeldBytesPerVm is 1073741825: {bytes}"),
        ),
        (
            r#"{"evidenceHeader":""}"#,
            format!(r#"evidenceHeader is "": {HEADER}"#),
        ),
        (
            r#"{"evidenceHeader":":path"}"#,
            format!(r#"evidenceHeader is ":path": {HEADER}"#),
        ),
        (
            r#"{"evidenceHeader":"x tier"}"#,
            format!(r#"evidenceHeader is "x tier": {HEADER}"#),
        ),
        (
            r#"{"evidenceHeader":"Content-Length"}"#,
            format!(r#"evidenceHeader is "Content-Length": {HEADER}"#),
        ),
        (
            r#"{"evidenceHeader":false}"#,
            format!("evidenceHeader is false: {HEADER}"),
        ),
        (
            r#"{"paths":"/v1/completions"}"#,
            format!(r#"paths is "/v1/completions": {list_of_paths}"#),
        ),
        (r#"{"paths":[]}"#, format!("paths is []: {list_of_paths}")),
        (
            r#"{"paths":["/a","v1/completions"]}"#,
            format!(r#"paths[1] is "v1/completions": {PATH}"#),
        ),
        (
            r#"{"paths":["/a?b"]}"#,
            format!(r#"paths[0] is "/a?b": {PATH}"#),
        ),
        (
            r#"{"paths":["/a","/b","/a"]}"#,
            format!(r#"paths[2] is "/a": {PATH}"#),
        ),
        (r#"{"paths":[7]}"#, format!("paths[0] is 7: {PATH}")),
        (
            r#"{"endpointSources":[]}"#,
            format!("endpointSources is []: {list_of_sources}"),
        ),
        (
            r#"{"endpointSources":"header"}"#,
            format!(r#"endpointSources is "header": {list_of_sources}"#),
        ),
        (
            r#"{"endpointSources":["header","Upstream"]}"#,
            format!(r#"endpointSources[1] is "Upstream": {SOURCES}"#),
        ),
        (
            r#"{"endpointSources":["header","header"]}"#,
            format!(r#"endpointSources[1] is "header": {SOURCES}"#),
        ),
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|(t, e)| (*t, e.as_str())).collect();
    check(&cases);
}

#[test]
fn rules_across_keys() {
    let needs = "loadPolicy \"threshold\" needs it, a whole number of tokens greater than 0";
    let missing = format!("minExternalReusableTokens is missing: {needs}");
    let missing_1 = format!("routes[1].minExternalReusableTokens is missing: {needs}");
    let gate = |place: &str, policy: &str| {
        format!(
            "{place}maxWaitingRequests is 8: more than 0 needs loadPolicy \"threshold\", and \
             loadPolicy is \"{policy}\" here"
        )
    };
    check(&[
        (r#"{"loadPolicy":"threshold"}"#, &missing),
        (
            r#"{"loadPolicy":"threshold","maxWaitingRequests":8}"#,
            &missing,
        ),
        (r#"{"maxWaitingRequests":8}"#, &gate("", "preserve")),
        (
            r#"{"loadPolicy":"disable","maxWaitingRequests":8}"#,
            &gate("", "disable"),
        ),
        (
            r#"{"maxWaitingRequests":8,"minExternalReusableTokens":1024}"#,
            &gate("", "preserve"),
        ),
        // An entry that is valid by itself, on a base that it does not fit.
        (
            r#"{"routes":[{"match":{"cluster":"a"},"maxWaitingRequests":8}]}"#,
            &gate("routes[0].", "preserve"),
        ),
        (
            r#"{"loadPolicy":"threshold","minExternalReusableTokens":1,
               "routes":[{"match":{"cluster":"a"},"loadPolicy":"disable","maxWaitingRequests":8}]}"#,
            &gate("routes[0].", "disable"),
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"}},{"match":{"cluster":"b"},"loadPolicy":"threshold"}]}"#,
            &missing_1,
        ),
    ]);
}

#[test]
fn routes() {
    let missing = format!("routes[0].match is missing: it must be {MATCH}");
    let empty = format!("routes[0].match is {{}}: must be {MATCH}");
    let two = format!(r#"routes[0].match is {{"cluster":"a","routeName":"b"}}: must be {MATCH}"#);
    let value = r#"routes[0].ewmaHalfLife is "2": must be a duration from "1ms" to "1440m": a whole number with ms, s or m"#;
    check(&[
        (
            r#"{"routes":{}}"#,
            "routes is {}: must be a list of at most 1000 objects",
        ),
        (r#"{"routes":[7]}"#, "routes[0] is 7: must be a JSON object"),
        (r#"{"routes":[{}]}"#, &missing),
        (r#"{"routes":[{"match":{}}]}"#, &empty),
        (
            r#"{"routes":[{"match":{"cluster":"a","routeName":"b"}}]}"#,
            &two,
        ),
        (
            r#"{"routes":[{"match":"a"}]}"#,
            r#"routes[0].match is "a": must be a JSON object"#,
        ),
        (
            r#"{"routes":[{"match":{"routeNamePrefix":""}}]}"#,
            r#"routes[0].match.routeNamePrefix is "": must be a string, not empty"#,
        ),
        (
            r#"{"routes":[{"match":{"cluster":7}}]}"#,
            "routes[0].match.cluster is 7: must be a string, not empty",
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"},"ewmaHalfLife":"2"}]}"#,
            value,
        ),
        (
            r#"{"routes":[{"match":{"cluster":"a"},"paths":["/a","b"]}]}"#,
            &format!(r#"routes[0].paths[1] is "b": {PATH}"#),
        ),
    ]);
    let many = vec![r#"{"match":{"cluster":"a"}}"#; 1001].join(",");
    assert_eq!(
        error(&format!("{{\"routes\":[{many}]}}")),
        r#"routes is [{"match":{"cluster":"a"}},{"match":{"cluster":"a"}},{"match…: must be a list of at most 1000 objects"#
    );
}

#[test]
fn one_gate_too_many() {
    let too_many = "one gate too many: at most 16 different combinations of maxWaitingRequests, \
        ewmaHalfLife, reopenRatio and maxSampleAge in a VM";
    let routes = |n: u32| {
        let entry = |i: u32| format!(r#"{{"match":{{"cluster":"{i}"}},"maxWaitingRequests":{i}}}"#);
        let entries: Vec<String> = (1..=n).map(entry).collect();
        let entries = entries.join(",");
        format!(
            r#"{{"loadPolicy":"threshold","minExternalReusableTokens":1,"routes":[{entries}]}}"#
        )
    };
    let gates = GateRegistry::new();
    let full = PolicySet::parse_in(routes(16).as_bytes(), &gates).unwrap();
    assert_eq!(full.gates().len(), MAX_GATES);
    let same = PolicySet::parse_in(routes(16).as_bytes(), &gates).unwrap();
    assert_eq!(same.gates().len(), MAX_GATES);
    let error = PolicySet::parse_in(routes(17).as_bytes(), &gates).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("routes[16].maxWaitingRequests is 17: {too_many}")
    );
    // A new configuration can take over from any old one.
    let others = routes(16).replace("maxWaitingRequests\":", "maxWaitingRequests\":9");
    let others = PolicySet::parse_in(others.as_bytes(), &gates).unwrap();
    // The ones that the wrong one did get are given back.
    drop((full, same, others));
    assert_eq!(gates.gates(), []);
    let route = RouteFacts::default();
    let full = PolicySet::parse_in(routes(16).as_bytes(), &gates).unwrap();
    let metadata = r#"{"maxWaitingRequests":17}"#;
    let error = full.effective(&route, Some(metadata)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("route metadata: maxWaitingRequests is 17: {too_many}")
    );
    // A known combination needs no place.
    let metadata = r#"{"maxWaitingRequests":16,"maxSampleAge":"10000ms"}"#;
    assert!(full.effective(&route, Some(metadata)).is_ok());
}

#[test]
fn admission() {
    const NEEDS_CASCADE: &str =
        r#"offloadPolicy is "backpressure": it needs an admission policy cascade_backpressure"#;
    check(&[
        (r#"{"offloadPolicy":"backpressure"}"#, NEEDS_CASCADE),
        (
            r#"{"offloadPolicy":"backpressure","loadPolicy":"threshold","minExternalReusableTokens":1,
                "admission":{"type":"promotion_concurrency"}}"#,
            NEEDS_CASCADE,
        ),
        (
            r#"{"admission":{"type":"promotion_concurrency","maxInflightPromotions":0}}"#,
            "admission.maxInflightPromotions is 0: must be a whole number from 1 to 4294967295",
        ),
    ]);
}

#[test]
fn default_load_tiers() {
    const LIST: &str = "must be a list of 0 to 9 tier matchers, or null for none";
    const MEDIUM: &str = "must be \"cpu\" or \"storage\"; the engine skips a matcher with another";
    const LOCALITY: &str =
        "must be \"local\" or \"remote\"; the engine skips a matcher with another";
    let rows = [
        ("{}", format!("defaultLoadTiers is {{}}: {LIST}")),
        (r#""all""#, format!("defaultLoadTiers is \"all\": {LIST}")),
        (
            "[5]",
            "defaultLoadTiers[0] is 5: must be a JSON object".to_owned(),
        ),
        (
            r#"[{},{"medium":"gpu"}]"#,
            format!("defaultLoadTiers[1].medium is \"gpu\": {MEDIUM}"),
        ),
        (
            r#"[{"medium":" cpu"}]"#,
            format!("defaultLoadTiers[0].medium is \" cpu\": {MEDIUM}"),
        ),
        (
            r#"[{"medium":null}]"#,
            format!("defaultLoadTiers[0].medium is null: {MEDIUM}"),
        ),
        (
            r#"[{"locality":"global"}]"#,
            format!("defaultLoadTiers[0].locality is \"global\": {LOCALITY}"),
        ),
        (
            r#"[{"tier":"fs"}]"#,
            "defaultLoadTiers[0].tier is not a known key: allowed are medium, locality".to_owned(),
        ),
    ];
    for (value, expected) in rows {
        check(&[(&format!(r#"{{"defaultLoadTiers":{value}}}"#), &expected)]);
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod any_text {
    use super::PolicySet;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"loadPolicy":"threshold","offloadPolicy":"disable",
        "minExternalReusableTokens":1536,"maxWaitingRequests":12,"ewmaHalfLife":"500ms",
        "reopenRatio":0.25,"evidenceHeader":"x-a","paths":["/b","/a"],
        "endpointSources":["metadata"],"routes":[{"match":{"cluster":"a"},"dryRun":true}]}"#;

    /// A good configuration with some pieces of it replaced by others.
    fn nearly_good() -> impl Strategy<Value = Vec<u8>> {
        let piece = (0..GOOD.len(), 0..GOOD.len(), 0..12usize, 0..12usize);
        prop::collection::vec(piece, 1..4).prop_map(|pieces| {
            let mut text = GOOD.as_bytes().to_vec();
            for (to, from, cut, length) in pieces {
                let to = to.min(text.len());
                let end = (to + cut).min(text.len());
                let from_end = (from + length).min(GOOD.len());
                text.splice(to..end, GOOD.as_bytes()[from..from_end].iter().copied());
            }
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn is_taken_or_refused_in_one_line(
            text in prop_oneof![nearly_good(), prop::collection::vec(any::<u8>(), 0..64)],
        ) {
            if let Err(error) = PolicySet::parse(&text) {
                let line = error.to_string();
                prop_assert!(!line.chars().any(char::is_control), "{line:?}");
                prop_assert!(line.chars().count() < 700, "{line}");
                prop_assert!(line.starts_with(error.field()));
            }
        }
    }
}
