//! The careful way with serde_json: a visitor that skips every value but `kv_transfer_params`, and a
//! splice of the body's own bytes.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::{MAX_LOAD_TOKENS, PARAMS};

/// The body with `kv_transfer_params.max_load_tokens` at 0; nothing if it is no JSON object.
pub fn edited(body: &[u8]) -> Option<Vec<u8>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = reader.deserialize_map(FindParams).ok()?;
    reader.end().ok()?;
    let mut out = Vec::with_capacity(body.len() + 64);
    match found.params.map(RawValue::get) {
        Some(text) => {
            let at = text.as_ptr() as usize - body.as_ptr() as usize;
            let mut params: Option<Map<String, Value>> = serde_json::from_str(text).ok()?;
            let map = params.get_or_insert_default();
            map.insert(MAX_LOAD_TOKENS.to_owned(), json!(0));
            out.extend_from_slice(&body[..at]);
            serde_json::to_writer(&mut out, map).ok()?;
            out.extend_from_slice(&body[at + text.len()..]);
        }
        None => {
            let brace = body.iter().rposition(|byte| *byte == b'}')?;
            let comma = if found.empty { "" } else { "," };
            out.extend_from_slice(&body[..brace]);
            out.extend_from_slice(
                format!("{comma}\"{PARAMS}\":{{\"{MAX_LOAD_TOKENS}\":0}}").as_bytes(),
            );
            out.extend_from_slice(&body[brace..]);
        }
    }
    Some(out)
}

struct FindParams;

struct Found<'a> {
    params: Option<&'a RawValue>,
    empty: bool,
}

impl<'de> Visitor<'de> for FindParams {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found<'de>, A::Error> {
        let mut found = Found {
            params: None,
            empty: true,
        };
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            found.empty = false;
            if key == PARAMS {
                found.params = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
