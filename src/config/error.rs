//! What is wrong with a configuration, in one line: the field, its value, what is allowed.

use std::fmt;

use crate::json_value::{Json, quoted};

/// Why a configuration was refused. Its text is one log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: String,
    problem: String,
}

impl ConfigError {
    /// The field's path, such as `routes[1].ewmaHalfLife`; `configuration` for the whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    pub(crate) fn not_json(why: &serde_json::Error) -> Self {
        Self::new(WHOLE.to_owned(), format!("is not valid JSON: {why}"))
    }

    pub(crate) fn too_long(bytes: usize, max: usize) -> Self {
        let problem = format!("is {bytes} bytes long: must have at most {max}");
        Self::new(WHOLE.to_owned(), problem)
    }

    pub(crate) fn value(field: String, value: &Json, allowed: &str) -> Self {
        Self::new(field, format!("is {value}: must be {allowed}"))
    }

    /// A secret does not go into logs, whatever is wrong with it.
    pub(crate) fn secret(field: String, allowed: &str) -> Self {
        Self::new(field, format!("is not shown here: must be {allowed}"))
    }

    pub(crate) fn conflict(field: String, value: &Json, rule: &str) -> Self {
        Self::new(field, format!("is {value}: {rule}"))
    }

    pub(crate) fn missing(field: String, rule: &str) -> Self {
        Self::new(field, format!("is missing: {rule}"))
    }

    pub(crate) fn unknown(field: String, allowed: &[&str]) -> Self {
        let allowed = allowed.join(", ");
        Self::new(field, format!("is not a known key: allowed are {allowed}"))
    }

    pub(crate) fn twice(field: String) -> Self {
        let problem = "is given twice: a key may appear once in an object";
        Self::new(field, problem.to_owned())
    }

    fn new(field: String, problem: String) -> Self {
        Self { field, problem }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// The field named when the whole text is meant.
pub(crate) const WHOLE: &str = "configuration";

/// Where a layer stands in its text: empty for the top level, else `routes[1]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    /// The path of this object's member. A key that is no plain word is quoted, so that no key can
    /// break the line or pass for a path.
    pub fn member(&self, key: &str) -> String {
        let plain =
            !key.is_empty() && key.len() <= 64 && key.bytes().all(|b| b.is_ascii_alphanumeric());
        let key = if plain { key.to_owned() } else { quoted(key) };
        if self.0.is_empty() {
            key
        } else {
            format!("{}.{key}", self.0)
        }
    }

    /// The place of an object inside this one's array.
    pub fn element(&self, key: &str, index: usize) -> Self {
        Self(format!("{}[{index}]", self.member(key)))
    }

    /// The place of an object that is this one's member.
    pub fn inside(&self, key: &str) -> Self {
        Self(self.member(key))
    }

    /// The object itself.
    pub fn itself(&self) -> String {
        if self.0.is_empty() {
            WHOLE.to_owned()
        } else {
            self.0.clone()
        }
    }
}
