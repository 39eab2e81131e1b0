//! Which route a request took, and which paths a policy looks at.

use crate::sorted::sort_by;

/// What Envoy says of the request's route: `xds.route_name`, `xds.virtual_host_name`,
/// `xds.cluster_name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteFacts<'a> {
    pub route_name: Option<&'a str>,
    pub virtual_host: Option<&'a str>,
    pub cluster: Option<&'a str>,
}

/// A `routes` entry's condition: exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    RouteName(String),
    RouteNamePrefix(String),
    VirtualHost(String),
    Cluster(String),
}

impl RouteMatch {
    pub fn matches(&self, route: &RouteFacts<'_>) -> bool {
        match self {
            Self::RouteName(name) => route.route_name == Some(name),
            Self::RouteNamePrefix(prefix) => {
                let name = route.route_name;
                name.is_some_and(|name| name.starts_with(prefix.as_str()))
            }
            Self::VirtualHost(name) => route.virtual_host == Some(name),
            Self::Cluster(name) => route.cluster == Some(name),
        }
    }
}

/// vLLM's own endpoint, which takes its parameters in two places.
pub const GENERATE: &str = "/inference/v1/generate";

/// The endpoints whose bodies have `kv_transfer_params` (DESIGN 4).
pub const DEFAULT_PATHS: [&str; 7] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/invocations",
    GENERATE,
];

/// Exact paths, without query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSet(Vec<String>);

impl Default for PathSet {
    fn default() -> Self {
        Self::new(DEFAULT_PATHS.map(str::to_owned).to_vec())
    }
}

impl PathSet {
    pub fn new(mut paths: Vec<String>) -> Self {
        sort_by(&mut paths, Ord::cmp);
        paths.dedup();
        Self(paths)
    }

    /// Whether a request's `:path` (its query ignored) is one of them.
    pub fn contains(&self, path: &[u8]) -> bool {
        let path = without_query(path);
        // Most differ in their length already.
        self.0.iter().any(|known| known.as_bytes() == path)
    }
}

/// A `:path` up to its `?`.
pub fn without_query(path: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'?', path).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Endpoint;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_default_path_is_a_different_endpoint() {
        let mut found = Vec::new();
        for path in DEFAULT_PATHS {
            let endpoint = Endpoint::of_path(path.as_bytes()).expect(path);
            assert!(!found.contains(&endpoint), "{path}");
            found.push(endpoint);
        }
        assert_eq!(Endpoint::of_path(b"/v1/embeddings"), None);
    }

    #[test]
    fn matching() {
        let route = RouteFacts {
            route_name: Some("prod.chat.0"),
            virtual_host: Some("models"),
            cluster: Some("llama"),
        };
        let name = |s: &str| RouteMatch::RouteName(s.to_owned());
        let prefix = |s: &str| RouteMatch::RouteNamePrefix(s.to_owned());
        let host = |s: &str| RouteMatch::VirtualHost(s.to_owned());
        let cluster = |s: &str| RouteMatch::Cluster(s.to_owned());
        for (condition, expected) in [
            (name("prod.chat.0"), true),
            (name("prod.chat"), false),
            (name("models"), false),
            (prefix("prod.chat."), true),
            (prefix("prod.chat.0"), true),
            (prefix("prod.chat.0."), false),
            (prefix("chat"), false),
            (host("models"), true),
            (host("model"), false),
            (cluster("llama"), true),
            (cluster("LLAMA"), false),
        ] {
            assert_eq!(condition.matches(&route), expected, "{condition:?}");
            assert!(!condition.matches(&RouteFacts::default()), "{condition:?}");
        }
    }

    #[test]
    fn paths_are_exact_and_queries_are_ignored() {
        let defaults = PathSet::default();
        for path in DEFAULT_PATHS {
            assert!(defaults.contains(path.as_bytes()), "{path}");
            assert!(defaults.contains(format!("{path}?a=/b?c").as_bytes()));
            assert!(!defaults.contains(format!("{path}/").as_bytes()));
            assert!(!defaults.contains(format!("/x{path}").as_bytes()));
        }
        for path in [
            "",
            "?",
            "/",
            "/v1/embeddings",
            "/V1/completions",
            "/v1/completions#x",
        ] {
            assert!(!defaults.contains(path.as_bytes()), "{path}");
        }
        assert!(!defaults.contains(b"/v1/completions\xff"));
        let one = PathSet::new(vec!["/a".to_owned()]);
        assert!(one.contains(b"/a?x") && !one.contains(b"/v1/completions"));
    }
}
