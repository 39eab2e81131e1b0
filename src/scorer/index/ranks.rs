//! Names of slots. An endpoint has one, under its own name; if it has several data-parallel ranks,
//! each has one of its own, because each has its own cache and its own stream.

use std::borrow::Cow;

/// Begins the name of the slot that holds a group's shared tiers; no publisher's name does.
const SHARED: &str = "*";
/// Stands between an endpoint and its rank; no publisher's name has it.
const RANK: char = '/';

/// The slot's name of a rank that is one of `ranks` of its endpoint. `None` if the endpoint's name
/// cannot be one.
#[must_use]
pub fn publisher(endpoint: &str, rank: u32, ranks: usize) -> Option<Cow<'_, str>> {
    if endpoint.is_empty() || endpoint.starts_with(SHARED) || endpoint.contains(RANK) {
        return None;
    }
    Some(match ranks {
        0 | 1 => Cow::Borrowed(endpoint),
        _ => Cow::Owned(format!("{endpoint}{RANK}{rank}")),
    })
}

/// Whose slot it is.
#[must_use]
pub fn endpoint_of(publisher: &str) -> &str {
    publisher.split(RANK).next().unwrap_or(publisher)
}

pub(super) fn shared_name(group: &str) -> String {
    format!("{SHARED}{group}")
}

pub(super) fn is_shared(name: &str) -> bool {
    name.starts_with(SHARED)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn ranks_have_names_of_their_own_if_there_are_several() {
        for (endpoint, rank, ranks, expected) in [
            ("10.0.0.7:8000", 0, 1, Some("10.0.0.7:8000")),
            // A rank with an endpoint of its own.
            ("10.0.0.7:8001", 1, 1, Some("10.0.0.7:8001")),
            ("10.0.0.7:8000", 0, 2, Some("10.0.0.7:8000/0")),
            ("[::1]:8000", 12, 16, Some("[::1]:8000/12")),
            ("SHARED_STORAGE", 0, 1, Some("SHARED_STORAGE")),
            ("", 0, 1, None),
            ("*m", 0, 1, None),
            ("10.0.0.7:8000/0", 0, 1, None),
        ] {
            let name = publisher(endpoint, rank, ranks);
            assert_eq!(name.as_deref(), expected, "{endpoint} {rank}");
            if let Some(name) = name {
                assert_eq!(endpoint_of(&name), endpoint);
                assert!(!is_shared(&name));
            }
        }
        assert!(is_shared(&shared_name("")) && is_shared(&shared_name("m")));
    }
}
