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

/// The headers that say whether a request is looked at; None is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHead<'a> {
    pub method: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    pub content_type: Option<&'a [u8]>,
    pub content_encoding: Option<&'a [u8]>,
}

/// None: the request is looked at. Else the first reason why not, in the order of [`SkipReason`].
pub fn skip(policy: &Policy, head: &RequestHead<'_>) -> Option<SkipReason> {
    unfit(&policy.paths, head).or_else(|| (!policy.is_active()).then_some(SkipReason::Inactive))
}

/// Why the body of a request is no JSON to look at, whatever the policy; None if it is.
pub fn unfit(paths: &PathSet, head: &RequestHead<'_>) -> Option<SkipReason> {
    if head.method != Some(b"POST") {
        Some(SkipReason::Method)
    } else if !head.path.is_some_and(|path| paths.contains(path)) {
        Some(SkipReason::Path)
    } else if !head.content_type.is_some_and(is_json) {
        Some(SkipReason::ContentType)
    } else if !head.content_encoding.is_none_or(is_identity) {
        Some(SkipReason::ContentEncoding)
    } else {
        None
    }
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
        let good = RequestHead {
            method: Some(b"POST"),
            path: Some(b"/v1/completions?x=1"),
            content_type: Some(b"application/json"),
            content_encoding: None,
        };
        let coded = RequestHead {
            content_encoding: Some(b"gzip"),
            ..good
        };
        let typed = RequestHead {
            content_type: Some(b"text/plain"),
            ..coded
        };
        let untyped = RequestHead {
            content_type: None,
            ..coded
        };
        let elsewhere = RequestHead {
            path: Some(b"/v1/embeddings"),
            ..typed
        };
        let get = RequestHead {
            method: Some(b"GET"),
            ..elsewhere
        };
        let lower = RequestHead {
            method: Some(b"post"),
            ..good
        };
        let identity = RequestHead {
            content_encoding: Some(b"identity"),
            ..good
        };
        for (head, expected) in [
            (RequestHead::default(), Some(SkipReason::Method)),
            (get, Some(SkipReason::Method)),
            (lower, Some(SkipReason::Method)),
            (elsewhere, Some(SkipReason::Path)),
            (RequestHead { path: None, ..good }, Some(SkipReason::Path)),
            (typed, Some(SkipReason::ContentType)),
            (untyped, Some(SkipReason::ContentType)),
            (coded, Some(SkipReason::ContentEncoding)),
            (good, None),
            (identity, None),
        ] {
            assert_eq!(skip(active.base(), &head), expected, "{head:?}");
            let expected = expected.or(Some(SkipReason::Inactive));
            assert_eq!(skip(inactive.base(), &head), expected, "{head:?}");
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
