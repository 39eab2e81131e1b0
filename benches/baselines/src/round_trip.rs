//! The usual way: the whole body to a tree and back. Order and spelling are lost.

use serde_json::{Value, json};

use crate::{MAX_LOAD_TOKENS, PARAMS};

/// The body with `kv_transfer_params.max_load_tokens` at 0; nothing if it is no JSON object.
pub fn edited(body: &[u8]) -> Option<Vec<u8>> {
    let mut tree: Value = serde_json::from_slice(body).ok()?;
    let params = tree
        .as_object_mut()?
        .entry(PARAMS)
        .or_insert_with(|| json!({}));
    if params.is_null() {
        *params = json!({});
    }
    params
        .as_object_mut()?
        .insert(MAX_LOAD_TOKENS.to_owned(), json!(0));
    serde_json::to_vec(&tree).ok()
}
