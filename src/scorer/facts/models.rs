//! An engine's answer to `GET /v1/models`: which names it serves.
//!
//! vLLM lists every served name of the base model without a `parent`, and every LoRA adapter with
//! the base model as its `parent`.

use super::{MAX_NAMES, is_name};
use crate::json_value::{self, Json};

/// Longest answer that is read, bytes. vLLM writes about 450 a name.
const MAX_BODY_BYTES: usize = 512 * 1024;

/// The names an engine serves, in its order, each once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Models {
    /// Of the base model.
    pub base: Vec<String>,
    pub adapters: Vec<String>,
}

/// A name, and whether it is an adapter's.
fn card(json: Json) -> Option<(String, bool)> {
    let [id, parent] = json.members(["id", "parent"])?;
    let Json::Text(id) = id? else {
        return None;
    };
    match parent {
        None | Some(Json::Null) => Some((id, false)),
        Some(Json::Text(_)) => Some((id, true)),
        Some(_) => None,
    }
}

impl Models {
    /// None: not such an answer. Names that are too long or could break a line, and those past
    /// [`MAX_NAMES`], are left out.
    pub fn read(body: &[u8]) -> Option<Self> {
        if body.len() > MAX_BODY_BYTES {
            return None;
        }
        let [data] = json_value::read_only(body, &["data", "id", "parent"])?.members(["data"])?;
        let Json::Array(data) = data? else {
            return None;
        };
        let cards: Vec<_> = data.into_iter().map(card).collect::<Option<_>>()?;
        let mut models = Self::default();
        let mut seen = crate::sorted::SortedSet::new();
        for (id, is_adapter) in cards {
            if seen.len() >= MAX_NAMES {
                break;
            }
            if !is_name(&id) || !seen.insert(id.clone()) {
                continue;
            }
            match is_adapter {
                false => models.base.push(id),
                true => models.adapters.push(id),
            }
        }
        Some(models)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn models(base: &[&str], adapters: &[&str]) -> Option<Models> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Some(Models {
            base: owned(base),
            adapters: owned(adapters),
        })
    }

    #[test]
    fn answers() {
        let vllm = r#"{"object":"list","data":[
            {"id":"tiny","object":"model","created":1795952365,"owned_by":"vllm","root":"/m/tiny",
             "parent":null,"max_model_len":4096,"permission":[{"id":"modelperm-1"}]},
            {"id":"gpt-x","root":"/m/tiny","parent":null},
            {"id":"sql","root":"/lora/sql","parent":"tiny"}]}"#;
        let long = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "m".repeat(513));
        let longest = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "m".repeat(512));
        let padded = format!(r#"{{"data":[]}}{}"#, " ".repeat(512 * 1024));
        let longest_name = "m".repeat(512);
        let rows: &[(&str, Option<Models>)] = &[
            (vllm, models(&["tiny", "gpt-x"], &["sql"])),
            (r#"{"data":[]}"#, models(&[], &[])),
            (r#"{"data":[{"id":"m"}]}"#, models(&["m"], &[])),
            // a parent is an adapter's, whatever it says
            (r#"{"data":[{"id":"l","parent":""}]}"#, models(&[], &["l"])),
            // a name counts once, as it came first
            (
                r#"{"data":[{"id":"m"},{"id":"m","parent":"x"},{"id":"m"}]}"#,
                models(&["m"], &[]),
            ),
            (
                r#"{"data":[{"id":""},{"id":"a\nb"},{"id":"m"}]}"#,
                models(&["m"], &[]),
            ),
            (&long, models(&[], &[])),
            (&longest, models(&[&longest_name], &[])),
            (r#"{"data":[{"id":1}]}"#, None),
            (r#"{"data":[{"parent":"m"}]}"#, None),
            (r#"{"data":[{"id":"m","parent":1}]}"#, None),
            (r#"{"data":[{"id":"m","id":"m"}]}"#, None),
            (r#"{"data":[],"data":[]}"#, None),
            (r#"{"data":[["m"]]}"#, None),
            (r#"{"data":{}}"#, None),
            (r#"{"object":"list"}"#, None),
            ("[]", None),
            ("", None),
            ("not found", None),
            (&padded, None),
        ];
        for (body, expected) in rows {
            assert_eq!(Models::read(body.as_bytes()), *expected, "{body:.80}");
        }
    }

    #[test]
    fn at_most_1024_names() {
        let card = |i: usize| format!(r#"{{"id":"a{i}","parent":"m"}}"#);
        let cards: Vec<String> = (0..2_000).map(card).collect();
        let body = format!(r#"{{"data":[{}]}}"#, cards.join(","));
        let models = Models::read(body.as_bytes()).unwrap();
        assert_eq!((models.base.len(), models.adapters.len()), (0, 1_024));
    }
}
