//! A bootstrap under test: one of the shipped files with this run's ports, engines and
//! configurations put in. Tests thus run what people install.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::files;
use crate::picker::Picker;
use crate::shipped::documents;
use crate::sink::Sink;

/// Where the shipped files expect the module.
const MODULE: &str = "/etc/envoy/selective_kv.wasm";

#[derive(Clone)]
pub struct Bootstrap {
    root: Value,
    /// Instead of the module that was built.
    module: Option<PathBuf>,
}

impl Bootstrap {
    /// A file of `envoy/` as it is, but for the module's path.
    pub fn unchanged(name: &str) -> Self {
        let root = documents(name).remove(0);
        Bootstrap { root, module: None }
    }

    /// A file of `envoy/`, on free ports.
    pub fn shipped(name: &str) -> Self {
        Self::unchanged(name)
            .edit_at("/static_resources/listeners", |listeners| {
                for listener in listeners.as_array_mut().into_iter().flatten() {
                    let socket = &mut listener["address"]["socket_address"];
                    *socket = json!({"address": "127.0.0.1", "port_value": 0});
                }
            })
            .edit_at("/admin/address/socket_address", |socket| {
                socket["port_value"] = json!(0);
            })
    }

    /// As Envoy reads it.
    pub fn json(&self) -> String {
        self.clone().resolved().root.to_string()
    }

    /// With the path of the module that was built, where the files have their placeholder.
    pub fn resolved(self) -> Self {
        let module = self.module.clone();
        self.edit(|node| {
            if node.get("filename").is_some_and(|name| name == MODULE) {
                node["filename"] = json!(module.clone().unwrap_or_else(files::module));
            }
        })
    }

    /// Another module in its place.
    pub fn module(mut self, file: PathBuf) -> Self {
        self.module = Some(file);
        self
    }

    pub fn root(&self) -> &Value {
        &self.root
    }

    /// Visits every object and array, parents first.
    pub fn edit(mut self, mut f: impl FnMut(&mut Value)) -> Self {
        visit(&mut self.root, &mut f);
        self
    }

    /// Changes what a JSON pointer names; it must be there.
    pub fn edit_at(mut self, pointer: &str, f: impl FnOnce(&mut Value)) -> Self {
        f(self
            .root
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("{pointer} in the bootstrap")));
        self
    }

    /// Sets the plugin configuration of the policy.
    pub fn policy(self, config: &Value) -> Self {
        self.plugin("selective-kv", &config.to_string())
    }

    pub fn scorer(self, config: &Value) -> Self {
        self.plugin("kv-scorer", &config.to_string())
    }

    /// Sets the configuration text of every plugin with this root_id.
    pub fn plugin(self, root_id: &str, config: &str) -> Self {
        let mut found = false;
        let edited = self.edit(|node| {
            if node.get("root_id").is_some_and(|id| id == root_id) {
                node["configuration"] = string_value(config);
                found = true;
            }
        });
        assert!(found, "no plugin {root_id} in the bootstrap");
        edited
    }

    /// Puts the foreign writer of shared data first (examples/foreign-scorer).
    pub fn foreign_scorer(self) -> Self {
        let filter = json!({"name": "foreign-scorer", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "foreign-scorer",
                "allow_on_headers_stop_iteration": true,
                "vm_config": {
                    "vm_id": "selective-kv",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": files::foreign_scorer()}},
                },
            },
        }});
        self.manager(|m| {
            let filters = m["http_filters"].as_array_mut();
            filters.expect("filters").insert(0, filter.clone());
        })
    }

    /// Takes a filter out of every chain.
    pub fn without_filter(self, name: &str) -> Self {
        self.edit(|node| {
            if let Some(filters) = node.as_array_mut() {
                filters.retain(|filter| filter.get("name").is_none_or(|n| n != name));
            }
        })
    }

    /// The hosts of the cluster `engines`.
    pub fn engines(self, engines: &[&Sink]) -> Self {
        let addresses: Vec<_> = engines.iter().map(|e| e.address()).collect();
        self.hosts("engines", &addresses)
    }

    /// One engine after the other; on one worker a retry then goes to the next.
    pub fn in_turn(self) -> Self {
        self.cluster("engines", |c| c["lb_policy"] = json!("ROUND_ROBIN"))
    }

    pub fn hosts(self, cluster: &str, addresses: &[SocketAddr]) -> Self {
        let hosts: Vec<_> = addresses
            .iter()
            .map(|a| json!({"endpoint": {"address": {"socket_address": {"address": a.ip().to_string(), "port_value": a.port()}}}}))
            .collect();
        self.cluster(cluster, |c| {
            c["load_assignment"]["endpoints"] = json!([{"lb_endpoints": hosts}]);
        })
    }

    /// A STATIC cluster with these hosts; in place of the one of that name, if there is one.
    pub fn add_cluster(self, name: &str, addresses: &[SocketAddr]) -> Self {
        let added = json!({
            "name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": name},
        });
        self.edit_at("/static_resources/clusters", |clusters| {
            let clusters = clusters.as_array_mut().expect("clusters");
            clusters.retain(|cluster| cluster["name"] != name);
            clusters.push(added);
        })
        .hosts(name, addresses)
    }

    /// A picker that serves without TLS.
    pub fn picker(self, picker: &Picker) -> Self {
        self.hosts("endpoint-picker", &[picker.address()])
            .cluster("endpoint-picker", |c| {
                c.as_object_mut().map(|c| c.remove("transport_socket"));
            })
    }

    pub fn cluster(self, name: &str, mut f: impl FnMut(&mut Value)) -> Self {
        self.edit_at("/static_resources/clusters", |clusters| {
            let mut all = clusters.as_array_mut().into_iter().flatten();
            f(all
                .find(|c| c["name"] == name)
                .unwrap_or_else(|| panic!("cluster {name}")));
        })
    }

    /// The HTTP connection manager's configuration of the listener `llm`.
    pub fn manager(self, mut f: impl FnMut(&mut Value)) -> Self {
        self.edit(|node| {
            let manager = node.get("@type").and_then(Value::as_str);
            if manager.is_some_and(|t| t.ends_with("v3.HttpConnectionManager")) {
                f(node);
            }
        })
    }

    /// Replaces the routes of the first virtual host.
    pub fn routes(self, routes: &Value) -> Self {
        self.manager(|m| m["route_config"]["virtual_hosts"][0]["routes"] = routes.clone())
    }

    /// Request trailers pass on HTTP/1.1, from the client and to the engines.
    pub fn trailers(self) -> Self {
        let on = json!({"enable_trailers": true});
        self.manager(|m| m["http_protocol_options"] = on.clone())
            .cluster("engines", |c| {
                let options = &mut c["typed_extension_protocol_options"][HTTP_OPTIONS];
                options["@type"] = json!(format!("type.googleapis.com/{HTTP_OPTIONS}"));
                options["explicit_http_config"]["http_protocol_options"] = on.clone();
            })
    }
}

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

pub fn string_value(text: &str) -> Value {
    json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text})
}

fn visit(node: &mut Value, f: &mut dyn FnMut(&mut Value)) {
    if !(node.is_object() || node.is_array()) {
        return;
    }
    f(node);
    match node {
        Value::Object(members) => members.values_mut().for_each(|v| visit(v, f)),
        Value::Array(items) => items.iter_mut().for_each(|v| visit(v, f)),
        _ => {}
    }
}
