//! `config.json`, which the connector writes into `<rootDir>/<model>_<digest>/`: what its files are
//! made for. The digest in the directory's name is a hash of it.

use super::layout::{CONFIG_DIGITS, MAX_FAN_OUT, Sizes};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::fmt::Write;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connector {
    pub model: String,
    /// Computed; 12 digits.
    pub digest: String,
    pub sizes: Sizes,
    /// Tokens that one block's digest covers.
    pub hash_block_size: Option<u64>,
}

impl Connector {
    /// Errors name the field.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let Value::Object(fields) = &value else {
            return Err("not an object".into());
        };
        let Some(model) = fields.get("model_name").and_then(Value::as_str) else {
            return Err("model_name: must be a string".into());
        };
        let mut ranks = 1_u64;
        for size in ["tp_size", "pp_size", "pcp_size", "dcp_size"] {
            ranks = ranks.saturating_mul(u64::from(count(fields, &[size])?.unwrap_or(1)));
        }
        let groups = fields
            .get("kv_cache_groups")
            .and_then(Value::as_array)
            .map_or(1, |groups| groups.len().max(1));
        if ranks.saturating_mul(groups as u64) > MAX_FAN_OUT {
            return Err(format!(
                "{ranks} ranks times {groups} groups: at most {MAX_FAN_OUT} files a block"
            ));
        }
        // Its name in vLLM 0.32 and later, and before.
        let blocks_per_file = count(fields, &["blocks_per_file", "gpu_blocks_per_file"])?;
        let hash_block_size = count(fields, &["tokens_per_hash", "hash_block_size"])?;
        Ok(Self {
            model: model.to_owned(),
            digest: digest(&value),
            sizes: Sizes {
                ranks: u32::try_from(ranks).unwrap_or(1),
                groups: u32::try_from(groups).unwrap_or(1),
                blocks_per_file: blocks_per_file.unwrap_or(1),
            },
            hash_block_size: hash_block_size.map(u64::from),
        })
    }
}

/// The first of `names` that is there.
fn count(fields: &Map<String, Value>, names: &[&str]) -> Result<Option<u32>, String> {
    for name in names {
        let Some(value) = fields.get(*name) else {
            continue;
        };
        return match value.as_u64().map(u32::try_from) {
            Some(Ok(count @ 1..)) => Ok(Some(count)),
            _ => Err(format!("{name}: {value}: must be a whole number from 1 on")),
        };
    }
    Ok(None)
}

/// The connector hashes its configuration as Python writes it: keys sorted, no spaces, ASCII only.
/// Which fields there are changes from version to version; all of them count.
fn digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    let mut digits = String::new();
    for byte in Sha256::digest(text).iter().take(CONFIG_DIGITS / 2) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            let _ = write!(out, "{value}");
        }
        Value::String(text) => string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (index, (name, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                string(name, out);
                out.push(':');
                canonical(value, out);
            }
            out.push('}');
        }
    }
}

fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(ranks: u32, groups: u32, blocks_per_file: u32) -> Sizes {
        Sizes {
            ranks,
            groups,
            blocks_per_file,
        }
    }

    /// The example that llm-d's connector's rule gives, and what Python's `json` and `hashlib` make
    /// of the others.
    #[test]
    fn digests_of_configurations() {
        for (text, expected) in [
            (
                r#"{"dcp_size":1,"dtype":"bfloat16","gpu_blocks_per_file":16,"hash_block_size":16,"inference_engine":"vllm","kv_cache_groups":[{"block_size":16,"layer_names":["model.layers.0.self_attn.attn"]}],"model_name":"meta-llama/Meta-Llama-3.1-8B","pcp_size":1,"pp_size":1,"tp_size":1}"#,
                "9fd26aa602ec",
            ),
            // Written otherwise: indented, another order, a key twice.
            (
                "{\n \"tp_size\": 7, \"tp_size\": 1, \"pp_size\": 1, \"pcp_size\": 1, \"dcp_size\": 1,\n \"model_name\": \"meta-llama/Meta-Llama-3.1-8B\", \"kv_cache_groups\": [{\"layer_names\": [\"model.layers.0.self_attn.attn\"], \"block_size\": 16}],\n \"inference_engine\": \"vllm\", \"hash_block_size\": 16, \"gpu_blocks_per_file\": 16, \"dtype\": \"bfloat16\"}",
                "9fd26aa602ec",
            ),
            (
                r#"{"model_name":"é\u0001😀\"\\\/\n\u007f","parallel_agnostic":false,"x":null}"#,
                "6952533c84a7",
            ),
        ] {
            let connector = Connector::parse(text.as_bytes()).unwrap();
            assert_eq!(connector.digest, expected, "{text}");
        }
    }

    #[test]
    fn sizes_of_configurations() {
        for (more, expected, hash_block_size) in [
            ("", sizes(1, 1, 1), None),
            (
                r#","tp_size":4,"pp_size":2,"pcp_size":1,"dcp_size":1,"gpu_blocks_per_file":16,"hash_block_size":64,"kv_cache_groups":[{},{}]"#,
                sizes(8, 2, 16),
                Some(64),
            ),
            // vLLM 0.32's names.
            (
                r#","tokens_per_hash":32,"blocks_per_file":8,"kv_cache_groups":[]"#,
                sizes(1, 1, 8),
                Some(32),
            ),
        ] {
            let text = format!(r#"{{"model_name":"m"{more}}}"#);
            let connector = Connector::parse(text.as_bytes()).unwrap();
            assert_eq!(
                (connector.sizes, connector.hash_block_size),
                (expected, hash_block_size)
            );
        }
    }

    #[test]
    fn what_is_no_configuration() {
        for (text, says) in [
            ("", "EOF"),
            ("[]", "not an object"),
            ("{}", "model_name: must be a string"),
            (r#"{"model_name":1}"#, "model_name"),
            (
                r#"{"model_name":"m","tp_size":0}"#,
                "tp_size: 0: must be a whole number from 1 on",
            ),
            (r#"{"model_name":"m","pp_size":"2"}"#, r#"pp_size: "2""#),
            (
                r#"{"model_name":"m","gpu_blocks_per_file":-1}"#,
                "gpu_blocks_per_file: -1",
            ),
            (
                r#"{"model_name":"m","tp_size":4294967295,"pp_size":4294967295,"pcp_size":4294967295}"#,
                "at most 4096 files a block",
            ),
        ] {
            let error = Connector::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
