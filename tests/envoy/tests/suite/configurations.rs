//! Every configuration in the files under `envoy/`, through the module's own parsers.

use envoy_tests::shipped::{as_istio_writes, documents, files, objects};
use selective_kv::policy::config::PolicySet;
use selective_kv::policy::route::RouteFacts;
use selective_kv::scorer::config::ScorerConfig;
use serde_json::Value;

/// A configuration block: its role's root_id and its text.
fn blocks(file: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for document in documents(file) {
        objects(&document, &mut |node| {
            if let (Some(root_id), Some(config)) =
                (text(node, "/root_id"), text(node, "/configuration/value"))
            {
                found.push((root_id, config));
            }
            if let (Some(name), Some(config)) =
                (text(node, "/pluginName"), node.get("pluginConfig"))
            {
                found.push((name, as_istio_writes(config)));
            }
            if let Some(config) = text(node, "/filter_metadata/selective-kv/config") {
                found.push(("route metadata".into(), config));
            }
        });
    }
    found
}

fn text(node: &Value, pointer: &str) -> Option<String> {
    Some(node.pointer(pointer)?.as_str()?.to_owned())
}

#[test]
fn every_block_is_valid() {
    let base = PolicySet::parse(b"{}").unwrap();
    let mut kinds = Vec::new();
    for file in files() {
        for (kind, config) in blocks(&file) {
            let error = match kind.as_str() {
                "selective-kv" => PolicySet::parse(config.as_bytes())
                    .err()
                    .map(|e| e.to_string()),
                "kv-scorer" => ScorerConfig::parse(config.as_bytes())
                    .err()
                    .map(|e| e.to_string()),
                "route metadata" => {
                    let policy = base.effective(&RouteFacts::default(), Some(&config));
                    policy.err().map(|e| e.to_string())
                }
                other => panic!("{file}: a role that does not exist: {other}"),
            };
            assert_eq!(error, None, "{file}, {kind}: {config}");
            kinds.push((file.clone(), kind));
        }
    }

    let expected = [
        ("downstream.yaml", "route metadata"),
        ("downstream.yaml", "kv-scorer"),
        ("downstream.yaml", "selective-kv"),
        ("endpoint-picker.yaml", "kv-scorer"),
        ("endpoint-picker.yaml", "selective-kv"),
        ("istio/after-endpoint-picker.yaml", "kv-scorer"),
        ("istio/after-endpoint-picker.yaml", "selective-kv"),
        ("istio/route-metadata.yaml", "route metadata"),
        ("istio/wasmplugins.yaml", "kv-scorer"),
        ("istio/wasmplugins.yaml", "selective-kv"),
        ("upstream.yaml", "selective-kv"),
        ("upstream.yaml", "route metadata"),
        ("upstream.yaml", "kv-scorer"),
    ];
    assert_eq!(
        sorted(kinds),
        sorted(expected.map(|(f, k)| (f.to_owned(), k.to_owned())).to_vec())
    );
}

#[test]
fn the_scorer_runs_before_the_policy_in_every_istio_manifest() {
    let plugins = documents("istio/wasmplugins.yaml");
    let priority = |name: &str| {
        let plugin = plugins
            .iter()
            .find(|p| p["spec"]["pluginName"] == name)
            .expect("a plugin");
        (
            plugin["spec"]["phase"].clone(),
            plugin["spec"]["priority"].as_i64(),
        )
    };
    let (scorer, policy) = (priority("kv-scorer"), priority("selective-kv"));
    assert_eq!(scorer.0, policy.0, "one phase");
    assert!(
        scorer.1 > policy.1,
        "within a phase, the higher priority first"
    );
    assert!(
        plugins
            .iter()
            .all(|p| p["spec"]["failStrategy"] == "FAIL_OPEN")
    );
}

#[test]
fn one_list_of_labels_everywhere() {
    let istio = documents("istio/telemetry.yaml").remove(0);
    let names = istio["meshConfig"]["defaultConfig"]["extraStatTags"]
        .as_array()
        .expect("a list")
        .clone();
    for file in ["downstream.yaml", "upstream.yaml", "endpoint-picker.yaml"] {
        let bootstrap = documents(file).remove(0);
        let tags = bootstrap["stats_config"]["stats_tags"]
            .as_array()
            .expect("a list")
            .clone();
        let tag_names: Vec<_> = tags.iter().map(|t| t["tag_name"].clone()).collect();
        assert_eq!(tag_names, names, "{file}");
        for tag in tags {
            let name = tag["tag_name"].as_str().expect("a name");
            let regex = format!(r"^wasmcustom\.selective_kv_.*?[.;]({name}=\.=(.*?);\.;)");
            assert_eq!(tag["regex"], regex, "{file}");
        }
    }
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items
}
