//! Which scorer's index lies where. A scorer's default name follows its configuration, and keys
//! cannot be deleted: without a fixed number of places every change of configuration would leave
//! an index behind for good.

use super::wire::{In, Out};
use crate::contract::store::{Store, UpdateError, update};

const KEY: &str = "selective-kv/1/index/places";
const FORMAT: u8 = 1;
/// Scorers with an index in one store.
pub const MAX_PLACES: usize = 8;
/// A place whose scorer has not written for this long may be taken.
pub const ABANDONED_MS: u64 = 10 * 60 * 1000;
const TRIES: u32 = 4;

type Place = (String, u64);

fn decode(value: Option<&[u8]>) -> Vec<Place> {
    let read = |value| {
        let mut rest = In { rest: value };
        (rest.byte()? == FORMAT).then_some(())?;
        let mut places = Vec::new();
        while !rest.rest.is_empty() {
            places.push((rest.text()?.to_owned(), rest.number()?));
        }
        Some(places)
    };
    value.and_then(read).unwrap_or_default()
}

/// Where a scorer's index lies: the prefix of its keys.
///
/// # Errors
/// Raw proxy-wasm status.
pub(super) fn find(store: &dyn Store, scorer: &str) -> Result<Option<String>, UpdateError> {
    let mut at = None;
    update(store, KEY, 1, &mut |old| {
        at = decode(old).iter().position(|(name, _)| name == scorer);
        None
    })?;
    Ok(at.map(prefix))
}

fn prefix(at: usize) -> String {
    format!("selective-kv/1/index/{at}")
}

/// The same for its writer, which takes a place if it has none and says that it lives. `None` if
/// every place is in use.
///
/// # Errors
/// [`UpdateError`].
pub(super) fn claim(
    store: &dyn Store,
    scorer: &str,
    now_ms: u64,
) -> Result<Option<String>, UpdateError> {
    let mut at = None;
    update(store, KEY, TRIES, &mut |old| {
        let mut places = decode(old);
        let free = |(_, t): &Place| now_ms.saturating_sub(*t) > ABANDONED_MS;
        at = places
            .iter()
            .position(|(name, _)| name == scorer)
            .or_else(|| (places.len() < MAX_PLACES).then_some(places.len()))
            .or_else(|| places.iter().position(free));
        let mine = (scorer.to_owned(), now_ms);
        match places.get_mut(at?) {
            Some(place) => *place = mine,
            None => places.push(mine),
        }
        let mut out = Out::default();
        out.byte(FORMAT);
        for (name, t) in &places {
            out.text(name).number(*t);
        }
        Some(out.bytes)
    })?;
    Ok(at.map(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::store::MemoryStore;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_scorer_keeps_its_place() {
        let store = MemoryStore::new();
        let claim = |name: &str, t| claim(&store, name, t).unwrap();
        let at = |n: usize| Some(format!("selective-kv/1/index/{n}"));
        assert_eq!(find(&store, "s0"), Ok(None));
        for i in 0..MAX_PLACES {
            assert_eq!(claim(&format!("s{i}"), 1000 + i as u64), at(i));
        }
        assert_eq!(find(&store, "s3"), Ok(at(3)));
        // All in use; then the first one that went silent gives way.
        assert_eq!(claim("new", 1000 + ABANDONED_MS), None);
        assert_eq!(claim("s0", 1000 + ABANDONED_MS), at(0));
        assert_eq!(claim("new", 1002 + ABANDONED_MS), at(1));
        assert_eq!(find(&store, "s1"), Ok(None));
        assert_eq!(find(&store, "new"), Ok(at(1)));
        // A clock that stepped back frees nothing.
        assert_eq!(claim("late", 0), None);
    }
}
