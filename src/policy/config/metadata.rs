//! Route metadata met so far, with what it compiled to. Bounded: a control plane may make any
//! number of different strings over time.

use crate::sorted::SortedMap;
use std::collections::VecDeque;
use std::rc::Rc;

use super::Policy;
use super::set::MAX_METADATA;

/// Strings kept; past this the one met first gives way.
const MAX_KEPT: usize = 1024;

/// Bytes of all strings kept.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Milliseconds without a request after which a string is forgotten.
const KEEP_MS: u64 = 10 * 60 * 1000;

/// What a string compiled to.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Policy(Rc<Policy>),
    Invalid {
        text: Rc<str>,
        /// Wrong only for want of a gate's place; the registry's count of places given back then.
        no_place_since: Option<u64>,
    },
}

impl Kept {
    /// A place was given back since.
    pub fn may_recover(&self, freed: u64) -> bool {
        match self {
            Kept::Policy(_) => false,
            Kept::Invalid { no_place_since, .. } => no_place_since.is_some_and(|n| n != freed),
        }
    }
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    /// Since the last tick.
    used: bool,
    /// The last tick with a use before it, Unix milliseconds.
    used_ms: u64,
}

/// Index of the matched `routes` entry, if any.
type Route = Option<usize>;

#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: SortedMap<Route, SortedMap<Rc<str>, Entry>>,
    order: VecDeque<(Route, Rc<str>)>,
    bytes: usize,
}

impl Cache {
    pub fn get(&mut self, route: Route, text: &str) -> Option<Kept> {
        let entry = self.entries.get_mut(&route)?.get_mut(key(text))?;
        entry.used = true;
        Some(entry.kept.clone())
    }

    pub fn put(&mut self, route: Route, text: &str, kept: Kept) {
        let texts = self.entries.entry(route).or_default();
        if let Some(entry) = texts.get_mut(key(text)) {
            entry.kept = kept;
            return;
        }
        let text: Rc<str> = key(text).into();
        let entry = Entry {
            kept,
            used: true,
            used_ms: 0,
        };
        texts.insert(text.clone(), entry);
        self.bytes = self.bytes.saturating_add(text.len());
        self.order.push_back((route, text));
        while self.order.len() > MAX_KEPT || self.bytes > MAX_BYTES {
            let Some((route, text)) = self.order.pop_front() else {
                break;
            };
            self.remove(route, &text);
        }
    }

    /// The policies among what is kept.
    pub fn policies(&self) -> Vec<Rc<Policy>> {
        let entries = self.entries.values().flat_map(SortedMap::values);
        let policies = entries.filter_map(|entry| match &entry.kept {
            Kept::Policy(policy) => Some(Rc::clone(policy)),
            Kept::Invalid { .. } => None,
        });
        policies.collect()
    }

    pub fn tick(&mut self, now_ms: u64) {
        let mut old = Vec::new();
        for (route, texts) in &mut self.entries {
            for (text, entry) in texts {
                if std::mem::take(&mut entry.used) {
                    entry.used_ms = now_ms;
                } else if now_ms.saturating_sub(entry.used_ms) > KEEP_MS {
                    old.push((*route, text.clone()));
                }
            }
        }
        if old.is_empty() {
            return;
        }
        for (route, text) in old {
            self.remove(route, &text);
        }
        let entries = &self.entries;
        let there = |route: &Route, text: &Rc<str>| {
            entries
                .get(route)
                .is_some_and(|texts| texts.contains_key(text))
        };
        self.order.retain(|(route, text)| there(route, text));
    }

    fn remove(&mut self, route: Route, text: &Rc<str>) {
        if let Some(texts) = self.entries.get_mut(&route) {
            texts.remove(text);
            self.bytes = self.bytes.saturating_sub(text.len());
        }
    }
}

/// A string too long to be read is known by its start, which is itself too long to be read: it is
/// no other string's key.
fn key(text: &str) -> &str {
    if text.len() <= MAX_METADATA {
        return text;
    }
    let mut ends = text.char_indices().map(|(at, _)| at);
    let end = ends.find(|at| *at > MAX_METADATA);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}
