//! JSON objects as lists: the order of the text is the order of the record.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};

use crate::Refusal;

#[derive(Clone, Debug, PartialEq)]
pub struct Object<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ObjectVisitor<V> {
    type Value = Object<V>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut names = HashSet::new();
        let mut members = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, V>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name} is there twice")));
            }
            members.push((name, value));
        }
        Ok(Object(members))
    }
}

/// For a member that may be absent, null or there.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(text).map_err(|e| Refusal(format!("JSON: {e}")))
}
