//! What Istio makes of the manifests, in Envoy: no vm_id, no VM configuration, root_id =
//! pluginName, the configuration as JSON in a StringValue, the failure policy of failStrategy.

use envoy_tests::bootstrap::string_value;
use envoy_tests::shipped::{as_istio_writes, documents};
use envoy_tests::{Bootstrap, Choice, Envoy, Picker, Request, until};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::support::{CHAT, decision_and_endpoint};

const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";

/// The HTTP filters of a manifest's WasmPlugins in Istio's order.
fn filters(file: &str) -> Vec<Value> {
    let mut plugins = documents(file);
    plugins.sort_by_key(|p| -p["spec"]["priority"].as_i64().expect("a priority"));
    let filters = plugins.iter().enumerate().map(|(number, plugin)| {
        let (meta, spec) = (&plugin["metadata"], &plugin["spec"]);
        let name = format!("{}.{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
        json!({"name": name, "typed_config": {"@type": WASM, "config": {
            "name": name,
            "root_id": spec["pluginName"],
            "failure_policy": spec["failStrategy"],
            "configuration": string_value(&as_istio_writes(&spec["pluginConfig"])),
            "vm_config": {
                "runtime": "envoy.wasm.runtime.v8",
                // Istio's own marks differ between the two.
                "environment_variables": {"key_values": {"ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION": number.to_string()}},
                // Istio's agent has put the image's module here.
                "code": {"local": {"filename": "/etc/envoy/selective_kv.wasm"}},
            },
        }}})
    });
    filters.collect()
}

/// `stats_tags` that Istio writes into a proxy's bootstrap for `extraStatTags`.
fn stats_tags() -> Value {
    let names =
        &documents("istio/telemetry.yaml")[0]["meshConfig"]["defaultConfig"]["extraStatTags"];
    let names = names
        .as_array()
        .expect("names")
        .iter()
        .filter_map(Value::as_str);
    names
        .map(|name| json!({"tag_name": name, "regex": format!(r"({name}=\.=(.*?);\.;)")}))
        .collect()
}

/// The `value` of every patch of that kind in a manifest.
fn patches(file: &str, apply_to: &str) -> Vec<Value> {
    let documents = documents(file);
    let all = documents.iter().flat_map(|d| {
        d["spec"]["configPatches"]
            .as_array()
            .expect("patches")
            .clone()
    });
    all.filter(|p| p["applyTo"] == apply_to)
        .map(|p| p["patch"]["value"].clone())
        .collect()
}

fn scrape_cluster(bootstrap: Bootstrap) -> Bootstrap {
    let cluster = patches("istio/scrape-cluster.yaml", "CLUSTER").remove(0);
    bootstrap.edit_at("/static_resources/clusters", |clusters| {
        let clusters = clusters.as_array_mut().expect("clusters");
        clusters.retain(|c| c["name"] != cluster["name"]);
        clusters.push(cluster);
    })
}

#[test]
fn wasm_plugins_on_a_gateway() {
    let engine = Engine::waiting(20);
    let metadata = patches("istio/route-metadata.yaml", "HTTP_ROUTE").remove(0);
    let route = |name: &str, more: &Value| {
        let mut route = json!({
            "name": name,
            "match": {"path": CHAT, "query_parameters": [{"name": name, "present_match": true}]},
            "route": {"cluster": "engines"},
        });
        route
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        route
    };
    let bootstrap = scrape_cluster(Bootstrap::shipped("downstream.yaml"))
        .edit_at("/stats_config/stats_tags", |tags| *tags = stats_tags())
        .without_filter("kv-scorer")
        .without_filter("selective-kv")
        .manager(|m| {
            let chain = m["http_filters"].as_array_mut().expect("filters");
            chain.splice(0..0, filters("istio/wasmplugins.yaml"));
        })
        .routes(&json!([
            route("llm.chat.0", &json!({})),
            route("llm.chat.1", &json!({})),
            route("llm.batch.0", &metadata),
            route("llm.batch.1", &json!({})),
        ]))
        // The manifest's engines stand elsewhere.
        .edit(|node| {
            if let Some(text) = node.get("value").and_then(Value::as_str) {
                let text = text
                    .replace("10.0.0.7:8000", &engine.endpoint())
                    .replace("10.0.0.8:8000", "127.0.0.1:9");
                node["value"] = json!(text);
            }
        })
        .engines(&[&engine.sink]);
    let envoy = Envoy::with_workers(&bootstrap, 2);
    engine.await_polls(1);

    for (route, arrives, decision) in [
        (
            "llm.chat.0",
            "{}",
            "load=preserve;reason=no_evidence;offload=preserve",
        ),
        (
            "llm.chat.1",
            "{}",
            "load=preserve;reason=no_evidence;offload=preserve",
        ),
        (
            "llm.batch.0",
            r#"{"kv_transfer_params":{"max_load_tokens":0,"max_offload_tokens":0}}"#,
            "load=disable;reason=policy;offload=disable",
        ),
        (
            "llm.batch.1",
            r#"{"kv_transfer_params":{"max_load_tokens":0}}"#,
            "load=disable;reason=policy;offload=preserve",
        ),
    ] {
        let target = format!("{CHAT}?{route}=1");
        let request = Request::post(&target, "{}").header("x-request-id", route);
        assert_eq!(request.to(envoy.address()).status, 200);
        assert_eq!(engine.sink.by_id(route).text(), arrives, "{route}");
        let (logged, _) = decision_and_endpoint(&envoy, &target);
        // The two roles meet without a vm_id: the gate has its samples.
        let (logged, ewma) = split_ewma(&logged);
        assert_eq!(logged, decision, "{route}");
        if decision.contains("no_evidence") {
            assert_eq!(ewma.as_deref(), Some("ewma=20"), "{route}");
        }
    }
    let labels =
        r#"selective_kv_decisions_total{direction="load",action="disable",reason="policy"} 2"#;
    assert_eq!(
        envoy.prometheus("selective_kv_decisions_total{direction=\"load\",action=\"disable\""),
        [labels]
    );
}

fn split_ewma(logged: &str) -> (String, Option<String>) {
    let (ewma, rest): (Vec<_>, Vec<_>) = logged
        .split(';')
        .partition(|part| part.starts_with("ewma="));
    (rest.join(";"), ewma.first().map(|e| (*e).to_owned()))
}

#[test]
fn envoy_filter_behind_an_endpoint_picker() {
    let file = "istio/after-endpoint-picker.yaml";
    let engine = Engine::waiting(0);
    let endpoint = engine.endpoint();
    let picker = Picker::with(move |_| Choice::endpoint(&endpoint));
    let configs = patches(file, "EXTENSION_CONFIG");
    let inserted = patches(file, "HTTP_FILTER");
    let config_of = |name: &Value| {
        let found = configs
            .iter()
            .find(|c| &c["name"] == name)
            .expect("a configuration of that name");
        let mut filter = found.clone();
        // What Istio's agent does with the image.
        filter["typed_config"]["config"]["vm_config"]["code"] =
            json!({"local": {"filename": "/etc/envoy/selective_kv.wasm"}});
        filter
    };
    let bootstrap = scrape_cluster(Bootstrap::shipped("endpoint-picker.yaml").picker(&picker))
        .without_filter("kv-scorer")
        .without_filter("selective-kv")
        .manager(|m| {
            let chain = m["http_filters"].as_array_mut().expect("filters");
            // INSERT_FIRST, and INSERT_BEFORE the router.
            chain.insert(0, config_of(&inserted[0]["name"]));
            let last = chain.len() - 1;
            chain.insert(last, config_of(&inserted[1]["name"]));
            let names: Vec<_> = chain.iter().filter_map(|f| f["name"].as_str()).collect();
            assert_eq!(
                names,
                [
                    "llm.kv-scorer",
                    "endpoint-picker",
                    "llm.selective-kv",
                    "envoy.filters.http.router"
                ]
            );
        });
    let envoy = Envoy::start(&bootstrap);

    assert_eq!(Request::post(CHAT, "{}").to(envoy.address()).status, 200);

    let (decision, known) = decision_and_endpoint(&envoy, CHAT);
    assert_eq!(
        (decision.as_str(), known),
        (
            "load=preserve;reason=no_evidence;offload=preserve",
            engine.endpoint()
        )
    );
    until("the discovered engine's poll", || {
        (!engine.polls("/metrics").is_empty()).then_some(())
    });
}
