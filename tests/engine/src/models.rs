//! The models that an engine serves: its base under one name or several, and adapters.

use crate::Refusal;
use serde_json::{Value, json};

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// vLLM numbers them from 1.
    pub id: u64,
    pub name: String,
    pub path: String,
}

#[derive(Clone, Debug)]
pub struct Models {
    /// The first of `--served-model-name`: what metrics say.
    pub base: String,
    /// The others.
    pub aliases: Vec<String>,
    pub adapters: Vec<Adapter>,
}

impl Models {
    /// The adapter that a request asks for by its `model`; `None` is the base model.
    pub fn adapter(&self, model: Option<&str>) -> Result<Option<Adapter>, Refusal> {
        let Some(model) = model else { return Ok(None) };
        if model == self.base || self.aliases.iter().any(|alias| alias == model) {
            return Ok(None);
        }
        let adapter = self.adapters.iter().find(|adapter| adapter.name == model);
        adapter
            .cloned()
            .map(Some)
            .ok_or_else(|| Refusal::unknown_model(model))
    }

    /// `GET /v1/models`.
    pub fn list(&self) -> Value {
        let entry = |id: &str, root: &str, parent: Option<&str>| {
            json!({
                "id": id, "object": "model", "created": 0, "owned_by": "vllm",
                "root": root, "parent": parent, "max_model_len": 4096, "permission": [],
            })
        };
        let root = format!("/models/{}", self.base);
        let names = [&self.base].into_iter().chain(&self.aliases);
        let bases = names.map(|name| entry(name, &root, None));
        let adapters = self.adapters.iter();
        let adapters = adapters.map(|it| entry(&it.name, &it.path, Some(&self.base)));
        json!({"object": "list", "data": bases.chain(adapters).collect::<Vec<_>>()})
    }
}
