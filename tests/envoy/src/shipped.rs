//! The files under `envoy/` as people install them.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::files;

/// The documents of one file, by its path under `envoy/`.
pub fn documents(name: &str) -> Vec<Value> {
    let path = files::workspace().join("envoy").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_norway::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap_or_else(|e| panic!("{name}: {e}")))
        .collect()
}

/// Every YAML file under `envoy/`, by its path there, in order.
pub fn files() -> Vec<String> {
    let root = files::workspace().join("envoy");
    let mut names = Vec::new();
    collect(&root, &root, &mut names);
    names.sort();
    names
}

fn collect(root: &Path, folder: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(root, &path, names);
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            let name = path.strip_prefix(root).expect("a path below the root");
            names.push(name.to_string_lossy().into_owned());
        }
    }
}

/// Visits every object, parents first.
pub fn objects<'a>(node: &'a Value, f: &mut dyn FnMut(&'a Value)) {
    match node {
        Value::Object(members) => {
            f(node);
            members.values().for_each(|v| objects(v, f));
        }
        Value::Array(items) => items.iter().for_each(|v| objects(v, f)),
        _ => {}
    }
}

/// What Istio makes of a WasmPlugin's `pluginConfig`: JSON that went through a protobuf `Struct`,
/// in which every number is a double.
pub fn as_istio_writes(config: &Value) -> String {
    fn doubles(node: &Value) -> Value {
        match node {
            Value::Number(n) => serde_json::json!(n.as_f64()),
            Value::Array(items) => items.iter().map(doubles).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(k, v)| (k.clone(), doubles(v)))
                .collect(),
            other => other.clone(),
        }
    }
    // Go prints a whole double without a fraction.
    doubles(config)
        .to_string()
        .replace(".0,", ",")
        .replace(".0}", "}")
        .replace(".0]", "]")
}
