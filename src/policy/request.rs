//! Which requests are looked at (DESIGN 4). Header values are bytes as they came: they need not be
//! UTF-8.

use super::config::Policy;
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

/// Whether a request is looked at: its path, or the first reason why not, in the order of
/// [`SkipReason`].
pub fn look_at(policy: &Policy, headers: &mut impl Headers) -> Result<Vec<u8>, SkipReason> {
    match policy.is_active() {
        true => fit(&policy.paths, headers),
        false => Err(SkipReason::Inactive),
    }
}

/// The path of a request whose body is JSON to look at, whatever the policy; or why it is not.
pub fn fit(paths: &PathSet, headers: &mut impl Headers) -> Result<Vec<u8>, SkipReason> {
    // Most requests that are not looked at are told by the path alone, which is asked for first.
    match headers.one(":path").filter(|path| paths.contains(path)) {
        Some(path) => fits(headers).map(|()| path),
        None if headers.one(":method").as_deref() == Some(b"POST") => Err(SkipReason::Path),
        None => Err(SkipReason::Method),
    }
}

/// The same of a request whose path is one of them.
pub fn fits(headers: &mut impl Headers) -> Result<(), SkipReason> {
    let [method, content_type, content_encoding] =
        headers.pick([":method", "content-type", "content-encoding"]);
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

/// Whether a request is disaggregated by its headers.
pub fn is_disaggregated(headers: &mut impl Headers) -> bool {
    let found = headers.pick(DISAGGREGATION_HEADERS);
    found.iter().any(Option::is_some)
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
            (vec![post, path, json], Ok(path.1.as_bytes().to_vec())),
            (
                vec![post, path, json, (ALL[3], "identity")],
                Ok(path.1.as_bytes().to_vec()),
            ),
        ] {
            let mut fake = Fake(&headers, Vec::new());
            assert_eq!(look_at(active.base(), &mut fake), expected, "{headers:?}");
            // Nothing behind the header that decides is read.
            let listed = headers.contains(&path);
            let needed = [":path", if listed { "all" } else { ":method" }];
            assert_eq!(fake.1, needed, "{headers:?}");
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
    fn disaggregation_is_any_of_the_headers() {
        assert!(!is_disaggregated(&mut Fake(&[], Vec::new())));
        for name in DISAGGREGATION_HEADERS {
            let headers = [("x", "1"), (name, "")];
            assert!(is_disaggregated(&mut Fake(&headers, Vec::new())), "{name}");
        }
    }
}
