//! One member of a configuration object, read as the type its key asks for. Every error names the
//! field, its value and what is allowed.

use std::ops::RangeInclusive;

use super::duration;
use super::error::{ConfigError, Place, WHOLE};
use crate::json_value::{self, Json};

/// The members of the text's top-level object. No bytes, or white space only, is `{}`.
pub(crate) fn members(text: &[u8]) -> Result<Vec<(String, Json)>, ConfigError> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let json = json_value::read(text).map_err(|why| ConfigError::not_json(&why))?;
    object(&Place::default(), WHOLE.to_owned(), json)
}

/// The members of an object, each key once.
pub(crate) fn object(
    place: &Place,
    field: String,
    json: Json,
) -> Result<Vec<(String, Json)>, ConfigError> {
    let members = match json {
        Json::Object(members) => members,
        other => return Err(ConfigError::value(field, &other, "a JSON object")),
    };
    for (i, (key, _)) in members.iter().enumerate() {
        if members.iter().take(i).any(|(earlier, _)| earlier == key) {
            return Err(ConfigError::twice(place.member(key)));
        }
    }
    Ok(members)
}

/// A member of the object at `place`.
pub(crate) struct Field<'a> {
    pub place: &'a Place,
    pub key: &'a str,
    pub value: &'a Json,
}

impl Field<'_> {
    /// This value is not allowed; `allowed` says what is.
    pub fn wrong(&self, allowed: &str) -> ConfigError {
        ConfigError::value(self.place.member(self.key), self.value, allowed)
    }

    /// The value that this name stands for.
    pub fn one_of<T: Copy>(&self, names: &[(&'static str, T)]) -> Result<T, ConfigError> {
        let at = self.name_of(&|at| names.get(at).map(|(name, _)| *name));
        match at.and_then(|at| names.get(at)) {
            Some((_, value)) => Ok(*value),
            None => Err(self.wrong(&listed(names))),
        }
    }

    /// Which of these names it is. Compiled once, whatever the names stand for.
    fn name_of(&self, names: Names<'_>) -> Option<usize> {
        let Json::Text(text) = self.value else {
            return None;
        };
        (0..).map_while(names).position(|name| name == text)
    }

    pub fn boolean(&self) -> Result<bool, ConfigError> {
        match self.value {
            Json::Bool(b) => Ok(*b),
            _ => Err(self.wrong("true or false")),
        }
    }

    /// A whole number in `range`, also written as a double.
    pub fn whole(&self, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let whole = self.value.as_whole().filter(|n| range.contains(n));
        whole.ok_or_else(|| {
            let (min, max) = range.into_inner();
            self.wrong(&format!("a whole number from {min} to {max}"))
        })
    }

    /// A duration in `range`, ms; `allowed` says the range as a person writes it.
    pub fn duration_ms(
        &self,
        range: RangeInclusive<u64>,
        allowed: &str,
    ) -> Result<u64, ConfigError> {
        let ms = match self.value {
            Json::Text(text) => duration::parse_ms(text).filter(|ms| range.contains(ms)),
            _ => None,
        };
        ms.ok_or_else(|| self.wrong(allowed))
    }

    /// A text that `fits`.
    pub fn text(&self, fits: fn(&str) -> bool, allowed: &str) -> Result<String, ConfigError> {
        match self.value {
            Json::Text(text) if fits(text) => Ok(text.clone()),
            _ => Err(self.wrong(allowed)),
        }
    }

    /// A list with as many elements as `len` says, called `what` in the message.
    pub fn list(&self, len: RangeInclusive<usize>, what: &str) -> Result<&[Json], ConfigError> {
        match self.value {
            Json::Array(items) if len.contains(&items.len()) => Ok(items),
            _ => {
                let (min, max) = len.into_inner();
                Err(self.wrong(&format!("a list of {min} to {max} {what}")))
            }
        }
    }

    /// A list of request paths without a query, each once.
    pub fn paths(&self, max: usize) -> Result<Vec<String>, ConfigError> {
        let mut paths: Vec<String> = Vec::new();
        for (i, item) in self.list(1..=max, "paths")?.iter().enumerate() {
            match item {
                Json::Text(path) if is_path(path) && !paths.contains(path) => {
                    paths.push(path.clone());
                }
                _ => {
                    let field = self.place.element(self.key, i).itself();
                    let allowed = "a path, once, that starts with / and has no ?, # or space";
                    return Err(ConfigError::value(field, item, allowed));
                }
            }
        }
        Ok(paths)
    }
}

/// Names by place.
type Names<'a> = &'a dyn Fn(usize) -> Option<&'static str>;

/// `"a", "b" or "c"`.
pub(crate) fn listed<T>(names: &[(&'static str, T)]) -> String {
    list(&|at| names.get(at).map(|(name, _)| *name))
}

fn list(names: Names<'_>) -> String {
    let quoted: Vec<String> = (0..)
        .map_while(names)
        .map(|name| format!("\"{name}\""))
        .collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A request path without a query.
pub(crate) fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#')
}

/// RFC 9110 token characters, at most 256.
pub(crate) fn is_header_name(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
