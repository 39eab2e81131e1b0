//! Which series of a metrics page count: a metric name, optionally with labels that must match.
//!
//! The written form is llm-d's: `name` or `name{label=value,…}`, for engines whose queue gauge
//! shares its name with others (Triton: `nv_trt_llm_request_metrics{request_type=waiting}`).
//! Values may be quoted.

use memchr::memmem::Finder;
use std::fmt;

/// Longest accepted written form, bytes.
const MAX_SPEC_BYTES: usize = 512;

/// A metric name and the labels a series must carry to count.
#[derive(Clone, Debug)]
pub struct MetricSpec {
    finder: Finder<'static>,
    labels: Vec<(String, String)>,
}

/// Why a written metric specification is refused; `Display` says what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricSpecError {
    Name,
    Labels,
    Length,
}

impl fmt::Display for MetricSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str(
                "a metric name ([a-zA-Z_:][a-zA-Z0-9_:]*), optionally followed by {label=value,...}",
            ),
            Self::Labels => f.write_str("labels written {label=value,...} after the metric name"),
            Self::Length => write!(f, "at most {MAX_SPEC_BYTES} bytes"),
        }
    }
}

impl MetricSpec {
    /// Reads `name` or `name{label=value,…}`. A comma or a brace inside a value needs quotes;
    /// there are no escapes.
    pub fn parse(spec: &str) -> Result<Self, MetricSpecError> {
        if spec.len() > MAX_SPEC_BYTES {
            return Err(MetricSpecError::Length);
        }
        let (name, rest) = match spec.split_once('{') {
            Some((name, rest)) => (name.trim(), Some(rest)),
            None => (spec.trim(), None),
        };
        let mut bytes = name.bytes();
        if !bytes.next().is_some_and(is_name_start) || !bytes.all(is_name_byte) {
            return Err(MetricSpecError::Name);
        }
        let labels = match rest {
            Some(rest) => parse_labels(rest)?,
            None => Vec::new(),
        };
        Ok(Self {
            finder: Finder::new(name).into_owned(),
            labels,
        })
    }

    /// The metric name, without labels.
    pub fn name(&self) -> &[u8] {
        self.finder.needle()
    }

    /// The engine that publishes this metric, as far as the name tells: the part before its
    /// colon (`vllm`, `sglang`).
    pub fn engine(&self) -> Option<&str> {
        let name = std::str::from_utf8(self.name()).ok()?;
        let (engine, _) = name.split_once(':')?;
        (!engine.is_empty()).then_some(engine)
    }

    pub(super) fn finder(&self) -> &Finder<'static> {
        &self.finder
    }

    pub(super) fn labels(&self) -> &[(String, String)] {
        &self.labels
    }
}

pub(super) fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b':'
}

pub(super) fn is_name_byte(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit()
}

/// What follows the opening brace, to the closing one.
fn parse_labels(text: &str) -> Result<Vec<(String, String)>, MetricSpecError> {
    let mut labels = Vec::new();
    let mut rest = text.trim();
    loop {
        if rest == "}" {
            return Ok(labels);
        }
        let (label, after) = rest.split_once('=').ok_or(MetricSpecError::Labels)?;
        let label = label.trim();
        let mut bytes = label.bytes();
        if !bytes.next().is_some_and(is_name_start) || !bytes.all(is_name_byte) {
            return Err(MetricSpecError::Labels);
        }
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(MetricSpecError::Labels)?,
            None => {
                let end = after.find([',', '}']).ok_or(MetricSpecError::Labels)?;
                let (value, after) = after.split_at_checked(end).ok_or(MetricSpecError::Labels)?;
                (value.trim_end(), after)
            }
        };
        labels.push((label.to_owned(), value.to_owned()));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after == "}" => after,
            None => return Err(MetricSpecError::Labels),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn written_forms() {
        type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
        let rows: &[Row<'_>] = &[
            ("up", "up", &[]),
            (
                "vllm:num_requests_waiting",
                "vllm:num_requests_waiting",
                &[],
            ),
            ("a{}", "a", &[]),
            ("a{b=c}", "a", &[("b", "c")]),
            ("a { b = c , d = e }", "a", &[("b", "c"), ("d", "e")]),
            ("a{b=\"c,}d\",}", "a", &[("b", "c,}d")]),
            ("a{b=}", "a", &[("b", "")]),
        ];
        for (spec, name, labels) in rows {
            let parsed = MetricSpec::parse(spec).unwrap();
            assert_eq!(parsed.name(), name.as_bytes(), "{spec}");
            let want: Vec<(String, String)> = labels
                .iter()
                .map(|(label, value)| (label.to_string(), value.to_string()))
                .collect();
            assert_eq!(parsed.labels(), want, "{spec}");
        }
    }

    #[test]
    fn refused_forms() {
        let long = "a".repeat(513);
        let rows: &[(&str, MetricSpecError)] = &[
            ("", MetricSpecError::Name),
            ("{b=c}", MetricSpecError::Name),
            ("9a", MetricSpecError::Name),
            ("a b", MetricSpecError::Name),
            ("a-b", MetricSpecError::Name),
            ("a{", MetricSpecError::Labels),
            ("a{b}", MetricSpecError::Labels),
            ("a{b=c", MetricSpecError::Labels),
            ("a{b=\"c}", MetricSpecError::Labels),
            ("a{b=c}x", MetricSpecError::Labels),
            ("a{=c}", MetricSpecError::Labels),
            (&long, MetricSpecError::Length),
        ];
        for (spec, error) in rows {
            assert_eq!(MetricSpec::parse(spec).err(), Some(*error), "{spec}");
        }
    }

    #[test]
    fn the_engine_is_the_part_before_the_colon() {
        for (spec, engine) in [
            ("vllm:num_requests_waiting", Some("vllm")),
            ("sglang:num_queue_reqs", Some("sglang")),
            ("trtllm_num_requests_waiting", None),
            (":odd", None),
        ] {
            assert_eq!(MetricSpec::parse(spec).unwrap().engine(), engine, "{spec}");
        }
    }
}
