//! Which requests are looked at (DESIGN 4). Header values are bytes as they came: they need not be
//! UTF-8.

use super::config::Policy;
use super::endpoint::DESTINATION;
use super::route::{GENERATE, PathSet, without_query};
use crate::body::Places;

/// Why a request is not looked at, as `selective_kv_skipped_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SkipReason {
    /// The route's policy is preserve for both directions.
    Inactive,
    Method,
    Path,
    ContentType,
    ContentEncoding,
}

impl SkipReason {
    pub const ALL: [Self; 5] = [
        Self::Inactive,
        Self::Method,
        Self::Path,
        Self::ContentType,
        Self::ContentEncoding,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Method => "method",
            Self::Path => "path",
            Self::ContentType => "content_type",
            Self::ContentEncoding => "content_encoding",
        }
    }
}

/// A request's headers. Asking for them is a call to the host, so nothing is asked for that does not
/// matter any more.
pub trait Headers {
    /// One alone.
    fn one(&mut self, name: &'static str) -> Option<Vec<u8>>;
    /// Several, by their names in lower case; of several with one name the first.
    fn pick<const N: usize>(&mut self, names: [&str; N]) -> [Option<&[u8]>; N];
}

/// What the headers of a request whose body is JSON to look at say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen<'a> {
    pub path: &'a [u8],
    pub destination: Option<&'a [u8]>,
    pub request_id: Option<&'a [u8]>,
    /// Whether the request is disaggregated by its headers.
    pub disaggregated: bool,
}

/// Whether a request is looked at: what its headers say, or the first reason why not, in the order
/// of [`SkipReason`].
pub fn look_at<'a>(policy: &Policy, headers: &'a mut impl Headers) -> Result<Seen<'a>, SkipReason> {
    match policy.is_active() {
        true => fit(&policy.paths, headers),
        false => Err(SkipReason::Inactive),
    }
}

/// The same, whatever the policy.
pub fn fit<'a>(paths: &PathSet, headers: &'a mut impl Headers) -> Result<Seen<'a>, SkipReason> {
    let [prefiller, encoders, cache_source] = DISAGGREGATION_HEADERS;
    // One pass, and one call to the host: even a single header costs as much as all of them.
    let [
        path,
        method,
        content_type,
        content_encoding,
        destination,
        request_id,
        disaggregation @ ..,
    ] = headers.pick([
        ":path",
        ":method",
        "content-type",
        "content-encoding",
        DESTINATION,
        "x-request-id",
        prefiller,
        encoders,
        cache_source,
    ]);
    let path = path.filter(|path| paths.contains(path));
    if path.is_none() && method == Some(b"POST") {
        return Err(SkipReason::Path);
    }
    kind(method, content_type, content_encoding)?;
    Ok(Seen {
        path: path.ok_or(SkipReason::Path)?,
        destination,
        request_id,
        disaggregated: disaggregation.iter().any(Option::is_some),
    })
}

/// Whether the body is JSON to look at, if the path is one of them.
pub fn fits(headers: &mut impl Headers) -> Result<(), SkipReason> {
    let [method, content_type, content_encoding] =
        headers.pick([":method", "content-type", "content-encoding"]);
    kind(method, content_type, content_encoding)
}

fn kind(
    method: Option<&[u8]>,
    content_type: Option<&[u8]>,
    content_encoding: Option<&[u8]>,
) -> Result<(), SkipReason> {
    if method != Some(b"POST") {
        return Err(SkipReason::Method);
    }
    if !content_type.is_some_and(is_json) {
        return Err(SkipReason::ContentType);
    }
    if !content_encoding.is_none_or(is_identity) {
        return Err(SkipReason::ContentEncoding);
    }
    Ok(())
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
    if content_type == b"application/json" {
        return true;
    }
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

    /// And what was asked for.
    struct Fake<'a>(&'a [(&'a str, &'a str)], Vec<&'static str>);

    impl Fake<'_> {
        fn find(&self, name: &str) -> Option<&[u8]> {
            let found = self.0.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| value.as_bytes())
        }
    }

    impl Headers for Fake<'_> {
        fn one(&mut self, name: &'static str) -> Option<Vec<u8>> {
            self.1.push(name);
            self.find(name).map(<[u8]>::to_vec)
        }

        fn pick<const N: usize>(&mut self, names: [&str; N]) -> [Option<&[u8]>; N] {
            self.1.push("all");
            names.map(|name| self.find(name))
        }
    }

    #[test]
    fn the_first_reason_to_skip() {
        let active = PolicySet::parse(br#"{"loadPolicy":"disable"}"#).unwrap();
        let inactive = PolicySet::parse(b"").unwrap();
        const ALL: [&str; 4] = [":path", ":method", "content-type", "content-encoding"];
        let path = (ALL[0], "/v1/completions?x=1");
        let post = (ALL[1], "POST");
        let json = (ALL[2], "application/json");
        let gzip = (ALL[3], "gzip");
        let text = (ALL[2], "text/plain");
        let embeddings = (ALL[0], "/v1/embeddings");
        let get = (ALL[1], "GET");
        for (headers, expected) in [
            (vec![], Err(SkipReason::Method)),
            (vec![get, embeddings, text, gzip], Err(SkipReason::Method)),
            (vec![post, embeddings, text, gzip], Err(SkipReason::Path)),
            (vec![post, json], Err(SkipReason::Path)),
            (vec![path, get, text, gzip], Err(SkipReason::Method)),
            (vec![path, json], Err(SkipReason::Method)),
            (vec![(ALL[1], "post"), path, json], Err(SkipReason::Method)),
            (vec![post, path, text, gzip], Err(SkipReason::ContentType)),
            (vec![post, path, gzip], Err(SkipReason::ContentType)),
            (
                vec![post, path, json, gzip],
                Err(SkipReason::ContentEncoding),
            ),
            (vec![post, path, json], Ok(path.1)),
            (vec![post, path, json, (ALL[3], "identity")], Ok(path.1)),
        ] {
            let mut fake = Fake(&headers, Vec::new());
            let found = look_at(active.base(), &mut fake).map(|seen| seen.path);
            assert_eq!(found, expected.map(str::as_bytes), "{headers:?}");
            assert_eq!(fake.1, ["all"], "{headers:?}");
            let mut fake = Fake(&headers, Vec::new());
            let found = look_at(inactive.base(), &mut fake);
            assert_eq!(found, Err(SkipReason::Inactive), "{headers:?}");
            assert_eq!(fake.1, [""; 0], "{headers:?}");
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
    fn what_else_the_headers_say() {
        let fits = [
            (":path", "/v1/completions"),
            (":method", "POST"),
            ("content-type", "application/json"),
        ];
        let paths = PolicySet::parse(b"").unwrap().base().paths.clone();
        let seen = |more: &[(&str, &str)], check: &dyn Fn(Seen<'_>)| {
            let headers = [&fits, more].concat();
            check(fit(&paths, &mut Fake(&headers, Vec::new())).unwrap());
        };
        seen(&[("x", "1")], &|seen| {
            assert_eq!((seen.destination, seen.request_id), (None, None));
            assert!(!seen.disaggregated);
        });
        seen(&[(DESTINATION, "10.0.0.7:8000")], &|seen| {
            assert_eq!(seen.destination, Some(&b"10.0.0.7:8000"[..]));
        });
        seen(&[("x-request-id", "r")], &|seen| {
            assert_eq!(seen.request_id, Some(&b"r"[..]));
        });
        for name in DISAGGREGATION_HEADERS {
            seen(&[("x", "1"), (name, "")], &|seen| {
                assert!(seen.disaggregated, "{name}");
            });
        }
    }
}
