//! A JSON text as one value that forgets nothing an error has to name: members in the order they
//! came, a repeated key as often as it was written. For configurations and short answers; what
//! streams by is walked through instead.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Doubles up to here are exact integers: 2^53.
const EXACT_F64: f64 = 9_007_199_254_740_992.0;

impl Json {
    /// A whole number that is not negative, however it is spelt: a protobuf `Struct` (Istio's
    /// `pluginConfig`) knows doubles only, and its printer may write `1024.0` or `1.024e3`.
    pub fn as_whole(&self) -> Option<u64> {
        match *self {
            Json::Unsigned(n) => Some(n),
            Json::Float(x) if (0.0..=EXACT_F64).contains(&x) && x.trunc() == x => Some(x as u64),
            _ => None,
        }
    }

    /// Any number, as a double.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Json::Unsigned(n) => Some(n as f64),
            Json::Signed(n) => Some(n as f64),
            Json::Float(x) => Some(x),
            _ => None,
        }
    }

    /// The values of these members. None: no object, or it has one of them twice.
    pub fn members<const N: usize>(self, keys: [&str; N]) -> Option<[Option<Json>; N]> {
        let Json::Object(members) = self else {
            return None;
        };
        let mut values = [const { None }; N];
        for (key, value) in members {
            let known = keys.iter().position(|known| *known == key);
            if let Some(slot) = known.and_then(|i| values.get_mut(i))
                && slot.replace(value).is_some()
            {
                return None;
            }
        }
        Some(values)
    }
}

/// Longest value shown in a message, in characters.
const SHOWN: usize = 60;

/// Compact JSON on one line, cut after [`SHOWN`] characters: it stands in log lines.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        if text.chars().count() <= SHOWN {
            return f.write_str(&text);
        }
        for c in text.chars().take(SHOWN) {
            fmt::Write::write_char(f, c)?;
        }
        f.write_str("…")
    }
}

impl Json {
    /// Stops soon after [`SHOWN`] bytes: a value may be large.
    fn write(&self, out: &mut String) {
        if out.len() > SHOWN.saturating_mul(4) {
            return;
        }
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Unsigned(n) => out.push_str(&n.to_string()),
            Json::Signed(n) => out.push_str(&n.to_string()),
            Json::Float(x) => out.push_str(&number(*x)),
            Json::Text(text) => out.push_str(&quoted(text)),
            Json::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    out.push_str(&quoted(key));
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// The shortest decimal number that is read as this double, which is finite. Every double is written
/// with this: core's formatter would be 19 kB more of the module.
pub fn number(x: f64) -> String {
    serde_json::to_string(&x).unwrap_or_default()
}

/// A JSON string of the text.
pub fn string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// A JSON string of the text, cut as values are, with no control character in it.
pub fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN.saturating_add(1)).collect();
    string(&cut)
}

/// A whole text.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(text: &[u8]) -> Result<Json, serde_json::Error> {
    read_wanted(text, Wanted(None))
}

/// A whole text, without the members of other names at any level: those are no more than skipped.
/// None: no JSON.
pub fn read_only(text: &[u8], keys: &[&str]) -> Option<Json> {
    read_wanted(text, Wanted(Some(keys))).ok()
}

fn read_wanted(text: &[u8], wanted: Wanted<'_>) -> Result<Json, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let json = wanted.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(json)
}

/// The keys of the members that are kept; None: all. The only thing that is ever deserialized: each
/// further type would bring a deserializer of its own into the module.
#[derive(Clone, Copy)]
struct Wanted<'k>(Option<&'k [&'k str]>);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Json, E> {
        Ok(Json::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(Json::Unsigned(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(Json::Signed(n))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Json, E> {
        Ok(Json::Float(x))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            match self.0 {
                Some(keys) if !keys.contains(&key.as_str()) => {
                    map.next_value::<IgnoredAny>()?;
                }
                _ => members.push((key, map.next_value_seed(self)?)),
            }
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn json(text: &str) -> Json {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_repeated_key_is_kept() {
        let one = ("a".to_owned(), Json::Unsigned(1));
        let two = ("a".to_owned(), Json::Unsigned(2));
        assert_eq!(json(r#"{"a":1,"a":2}"#), Json::Object(vec![one, two]));
    }

    #[test]
    fn whole_numbers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("1024.0", Some(1024)),
            ("1.024e3", Some(1024)),
            ("1.6777216e+07", Some(16_777_216)),
            ("-0", Some(0)),
            ("-0.0", Some(0)),
            ("9007199254740992.0", Some(9_007_199_254_740_992)),
            ("9007199254740994.0", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1.5", None),
            ("-1", None),
            ("\"1\"", None),
            ("true", None),
            ("null", None),
        ] {
            assert_eq!(json(text).as_whole(), expected, "{text}");
        }
    }

    #[test]
    fn a_value_is_shown_on_one_short_line() {
        let long = format!("[\"{}\"]", "é".repeat(100));
        let cut = format!("[\"{}…", "é".repeat(58));
        for (text, shown) in [
            (
                r#"{"a":[1,-2,1.5,null,true,"x\ny"]}"#,
                r#"{"a":[1,-2,1.5,null,true,"x\ny"]}"#,
            ),
            (&long, &cut),
        ] {
            assert_eq!(json(text).to_string(), shown);
        }
    }

    #[test]
    fn numbers_are_shown_with_an_exponent_where_they_are_long() {
        for (text, shown) in [
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("0.00001", "0.00001"),
            ("1e-6", "1e-6"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("18446744073709551616", "1.8446744073709552e+19"),
        ] {
            assert_eq!(json(text).to_string(), shown, "{text}");
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    proptest::proptest! {
        #[test]
        fn a_number_is_read_again(bits: u64) {
            let x = f64::from_bits(bits);
            if x.is_finite() {
                proptest::prop_assert_eq!(number(x).parse(), Ok(x));
            }
        }
    }
}
