//! Who publishes on a page: the slot's name of each section, and the group it belongs to.

use super::page::{Page, Section};
use crate::scorer::config::{EvidenceConfig, address};
use crate::scorer::facts::Fleet;
use crate::scorer::index;
use crate::sorted::{SortedMap, sort_by};
use std::borrow::Cow;

/// A section and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Publisher<'a> {
    /// The slot's name.
    pub name: Cow<'a, str>,
    /// One of several of its endpoint.
    pub is_rank: bool,
    pub section: Section<'a>,
}

/// The publishers of a page by their slot's name, and how many sections have none that can be one.
pub(super) fn publishers<'a>(page: &Page<'a>) -> (Vec<Publisher<'a>>, usize) {
    let mut ranks: SortedMap<&str, usize> = SortedMap::new();
    for section in &page.sections {
        let n = ranks.entry(section.endpoint).or_default();
        *n = n.saturating_add(1);
    }
    let named = page.sections.iter().filter_map(|section| {
        let ranks = ranks.get(section.endpoint).copied().unwrap_or(1);
        Some(Publisher {
            name: index::publisher(section.endpoint, section.rank, ranks)?,
            is_rank: ranks > 1,
            section: *section,
        })
    });
    let mut named: Vec<_> = named.collect();
    // Who announces blocks by hashes alone comes behind those that told their tokens.
    let by_hashes = |publisher: &Publisher<'_>| address(publisher.section.endpoint).is_none();
    sort_by(&mut named, |a, b| by_hashes(a).cmp(&by_hashes(b)));
    let nameless = page.sections.len().saturating_sub(named.len());
    (named, nameless)
}

/// What the engines call the model of this name first: their series have that one.
fn base<'a>(name: &'a str, fleet: &'a Fleet) -> &'a str {
    let engines = || fleet.endpoints.values();
    let first = engines().any(|engine| engine.model.as_deref() == Some(name));
    let mut others = engines().filter(|engine| engine.aliases.iter().any(|alias| alias == name));
    match others.find_map(|engine| engine.model.as_deref()) {
        Some(model) if !first => model,
        _ => name,
    }
}

/// The model that an endpoint serves, or a publisher that is no endpoint is about: shared tiers
/// are one for all that serve it. `None`: nobody says. Without shared tiers groups do not matter.
pub(super) fn group<'a>(
    section: &Section<'a>,
    config: &'a EvidenceConfig,
    fleet: &'a Fleet,
) -> Option<&'a str> {
    if config.shared_tiers.is_empty() {
        return Some("");
    }
    let configured = config.model.as_deref();
    // llm-d's convention: kv@<pod>@<model>.
    let topic = section.topic.and_then(|topic| {
        let mut parts = topic.splitn(3, '@');
        let model = parts.nth(2).filter(|model| !model.is_empty())?;
        topic.starts_with("kv@").then_some(model)
    });
    if address(section.endpoint).is_none() {
        return topic.map(|name| base(name, fleet)).or(configured);
    }
    let facts = fleet.endpoints.get(section.endpoint);
    facts
        .and_then(|facts| facts.model.as_deref())
        .or(configured)
        .or(topic)
}
