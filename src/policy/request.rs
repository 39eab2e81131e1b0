//! Which requests are looked at (DESIGN 4). Header values are bytes as they came: they need not be
//! UTF-8.

use super::config::Policy;
use super::route::{GENERATE, PathSet, without_query};
use crate::body::Places;

/// Why a request is not looked at, as `selective_kv_skipped_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SkipReason {
    Method,
    Path,
    ContentType,
    ContentEncoding,
    /// The route's policy is preserve for both directions.
    Inactive,
}

impl SkipReason {
    pub const ALL: [Self; 5] = [
        Self::Method,
        Self::Path,
        Self::ContentType,
        Self::ContentEncoding,
        Self::Inactive,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Path => "path",
            Self::ContentType => "content_type",
            Self::ContentEncoding => "content_encoding",
            Self::Inactive => "inactive",
        }
    }
}

/// Whether a request is looked at: its path, or the first reason why not, in the order of
/// [`SkipReason`]. `header` reads one header, None if it is absent; each is a call to the host, so
/// none is read that does not matter any more.
pub fn look_at(
    policy: &Policy,
    header: impl FnMut(&'static str) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, SkipReason> {
    let path = fit(&policy.paths, header)?;
    match policy.is_active() {
        true => Ok(path),
        false => Err(SkipReason::Inactive),
    }
}

/// The path of a request whose body is JSON to look at, whatever the policy; or why it is not.
pub fn fit(
    paths: &PathSet,
    mut header: impl FnMut(&'static str) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, SkipReason> {
    if header(":method").as_deref() != Some(b"POST") {
        return Err(SkipReason::Method);
    }
    let path = header(":path").filter(|path| paths.contains(path));
    let path = path.ok_or(SkipReason::Path)?;
    if !header("content-type").is_some_and(|value| is_json(&value)) {
        return Err(SkipReason::ContentType);
    }
    if !header("content-encoding").is_none_or(|value| is_identity(&value)) {
        return Err(SkipReason::ContentEncoding);
    }
    Ok(path)
}

/// Where the endpoint at `:path` takes `kv_transfer_params`.
pub fn places(path: &[u8]) -> Places {
    match without_query(path) == GENERATE.as_bytes() {
        true => Places::TopLevelOrNested,
        false => Places::TopLevel,
    }
}

/// `application/json` in any case, with or without parameters.
pub fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|b| *b == b';').next();
    essence.is_some_and(|e| e.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// Nothing is coded: the value is empty, or names only `identity`, which changes no byte.
pub fn is_identity(content_encoding: &[u8]) -> bool {
    content_encoding.split(|b| *b == b',').all(|coding| {
        let coding = coding.trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    })
}

/// Headers of disaggregated and peer-to-peer requests, set by llm-d's router: prefill, encode and
/// cache source. Their presence counts, whatever their value.
pub const DISAGGREGATION_HEADERS: [&str; 3] = [
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
];

/// Whether a request is disaggregated by its headers; `has` says whether it has one.
pub fn is_disaggregated(has: impl FnMut(&str) -> bool) -> bool {
    DISAGGREGATION_HEADERS.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::PolicySet;
    use crate::policy::route::DEFAULT_PATHS;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn content_types() {
        for (value, expected) in [
            ("application/json", true),
            ("Application/JSON", true),
            ("application/json; charset=utf-8", true),
            (" application/json ;charset=\"a;b\"", true),
            ("application/json;", true),
            ("application/jsonx", false),
            ("application/json, application/json", false),
            ("application/merge-patch+json", false),
            ("text/json", false),
            ("multipart/form-data; boundary=application/json", false),
            ("", false),
        ] {
            assert_eq!(is_json(value.as_bytes()), expected, "{value:?}");
        }
        assert!(!is_json(b"application/json\xff"));
        assert!(is_json(b"application/json;\xff"));
    }

    #[test]
    fn content_encodings() {
        for (value, expected) in [
            ("", true),
            ("identity", true),
            ("Identity", true),
            ("identity, identity", true),
            (" , ", true),
            ("gzip", false),
            ("identity, gzip", false),
            ("identity;q=1", false),
            ("zstd", false),
        ] {
            assert_eq!(is_identity(value.as_bytes()), expected, "{value:?}");
        }
    }

    #[test]
    fn the_first_reason_to_skip() {
        let active = PolicySet::parse(br#"{"loadPolicy":"disable"}"#).unwrap();
        let inactive = PolicySet::parse(b"").unwrap();
        const ALL: [&str; 4] = [":method", ":path", "content-type", "content-encoding"];
        let post = (ALL[0], "POST");
        let path = (ALL[1], "/v1/completions?x=1");
        let json = (ALL[2], "application/json");
        let gzip = (ALL[3], "gzip");
        let text = (ALL[2], "text/plain");
        let embeddings = (ALL[1], "/v1/embeddings");
        for (headers, expected) in [
            (vec![], Err(SkipReason::Method)),
            (
                vec![(ALL[0], "GET"), embeddings, text, gzip],
                Err(SkipReason::Method),
            ),
            (vec![(ALL[0], "post"), path, json], Err(SkipReason::Method)),
            (vec![post, embeddings, text, gzip], Err(SkipReason::Path)),
            (vec![post, json], Err(SkipReason::Path)),
            (vec![post, path, text, gzip], Err(SkipReason::ContentType)),
            (vec![post, path, gzip], Err(SkipReason::ContentType)),
            (
                vec![post, path, json, gzip],
                Err(SkipReason::ContentEncoding),
            ),
            (vec![post, path, json], Ok(path.1.as_bytes().to_vec())),
            (
                vec![post, path, json, (ALL[3], "identity")],
                Ok(path.1.as_bytes().to_vec()),
            ),
        ] {
            let mut read = Vec::new();
            let mut header = |name: &'static str| {
                read.push(name);
                let found = headers.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| value.as_bytes().to_vec())
            };
            assert_eq!(look_at(active.base(), &mut header), expected, "{headers:?}");
            // Nothing behind the header that decides is read.
            let needed = match expected {
                Err(reason) => SkipReason::ALL.iter().position(|r| *r == reason).unwrap() + 1,
                Ok(_) => ALL.len(),
            };
            assert_eq!(read, ALL[..needed], "{headers:?}");
            let expected = expected.and(Err(SkipReason::Inactive));
            let found = look_at(inactive.base(), |name| {
                let found = headers.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| value.as_bytes().to_vec())
            });
            assert_eq!(found, expected, "{headers:?}");
        }
    }

    #[test]
    fn only_generate_has_two_places() {
        for path in DEFAULT_PATHS
            .into_iter()
            .chain(["/inference/v1/generate/", ""])
        {
            let expected = if path == "/inference/v1/generate" {
                Places::TopLevelOrNested
            } else {
                Places::TopLevel
            };
            assert_eq!(places(path.as_bytes()), expected, "{path}");
            let with_query = format!("{path}?x=/inference/v1/generate");
            assert_eq!(places(with_query.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn disaggregation_is_any_of_the_headers() {
        assert!(!is_disaggregated(|_| false));
        for name in DISAGGREGATION_HEADERS {
            assert!(is_disaggregated(|asked| asked == name), "{name}");
        }
    }
}
