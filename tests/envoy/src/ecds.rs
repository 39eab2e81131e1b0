//! A filter whose configuration Envoy discovers (ECDS), as under Istio, and which can change while
//! Envoy runs. The discovery service here is a file.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::bootstrap::{Bootstrap, string_value};

pub struct Discovered {
    name: String,
    folder: PathBuf,
    versions: AtomicU32,
    typed_config: Value,
}

impl Bootstrap {
    /// Moves a filter's configuration into a file that Envoy watches.
    pub fn discovered(self, filter: &str) -> (Self, Discovered) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("envoy-tests-ecds-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder to watch");
        let file = folder.join("filter.json");
        let mut typed_config = Value::Null;
        let bootstrap = self.resolved().edit(|node| {
            if node.get("name").is_some_and(|n| n == filter) && node.get("typed_config").is_some() {
                typed_config = node["typed_config"].clone();
                *node = json!({"name": filter, "config_discovery": {
                    "config_source": {"path_config_source": {"path": file}, "initial_fetch_timeout": "5s"},
                    "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"],
                }});
            }
        });
        assert!(!typed_config.is_null(), "no filter {filter}");
        let discovered = Discovered {
            name: filter.into(),
            folder,
            versions: AtomicU32::new(0),
            typed_config,
        };
        discovered.publish(&discovered.typed_config);
        (bootstrap, discovered)
    }
}

impl Discovered {
    /// Another plugin configuration, from now on.
    pub fn configure(&self, config: &Value) {
        let mut typed_config = self.typed_config.clone();
        typed_config["config"]["configuration"] = string_value(&config.to_string());
        self.publish(&typed_config);
    }

    /// Another module in the same place.
    pub fn module(&self, file: PathBuf) {
        let mut typed_config = self.typed_config.clone();
        typed_config["config"]["vm_config"]["code"]["local"]["filename"] = json!(file);
        self.publish(&typed_config);
    }

    fn publish(&self, typed_config: &Value) {
        let version = self.versions.fetch_add(1, Ordering::SeqCst).to_string();
        let response = json!({"version_info": version, "resources": [{
            "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            "name": self.name,
            "typed_config": typed_config,
        }]});
        // Envoy watches for files that are moved into place.
        let (new, file) = (self.folder.join("new"), self.folder.join("filter.json"));
        fs::write(&new, response.to_string()).expect("the configuration is written");
        fs::rename(new, file).expect("the configuration is moved into place");
    }
}

impl Drop for Discovered {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
