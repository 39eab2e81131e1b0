//! What came of a request, for the counters.

use crate::prompt::{Text, Unknown};
use crate::scorer::facts::Mismatch;
use crate::scorer::index::{NotReady, Reasons};

/// What came of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    pub result: RequestResult,
    /// How many endpoints had which result. None if it did not come to that.
    pub endpoints: Vec<(EndpointResult, u32)>,
    /// Of how many endpoints the evidence is partial for which reason.
    pub partial: Vec<(&'static str, u32)>,
    /// Of the endpoints that have evidence, one that will use the most: a load balancer that knows
    /// of caches chooses it.
    pub likeliest: Option<String>,
}

/// What came of one request; it is counted once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestResult {
    /// There is evidence of at least one endpoint.
    Published,
    /// Without `x-request-id` nobody would find it.
    NoRequestId,
    /// No token ids can be had.
    Unknown(Unknown),
    /// Text, which nothing has made tokens of.
    Text(Text),
    /// The engines have not said how many tokens a block has.
    NoBlockSize,
    /// No endpoint is a member.
    NoMembers,
    /// No endpoint serves the request's model.
    UnknownModel,
    /// Of no endpoint is there evidence; [`EndpointResult`] says why.
    NoEndpoint,
    /// It does not fit into a record.
    TooLarge,
    /// Other writers were quicker each time.
    Contended,
    /// The host refused to read or write the record.
    Host,
}

/// What came of one endpoint in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointResult {
    /// Evidence that the scorer vouches for.
    Complete,
    /// A lower bound.
    Partial,
    /// It does not serve the request's model.
    OtherModel,
    /// It cannot go with the configuration, for this reason ([`Mismatch::as_str`]).
    Mismatch(&'static str),
    /// The request has a salt or an adapter, and the engine's version does not tell how they are hashed.
    ExtraKeys,
    /// vLLM 0.31 and later hash the adapter's path, and none is configured.
    AdapterPath,
    /// The request's blocks are more than are looked up for one request.
    TooMuch,
    NotReady(NotReady),
}

impl RequestResult {
    /// A counter's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::NoRequestId => "no_request_id",
            Self::Unknown(unknown) => unknown.as_str(),
            Self::Text(text) => text.as_str(),
            Self::NoBlockSize => "no_block_size",
            Self::NoMembers => "no_members",
            Self::UnknownModel => "unknown_model",
            Self::NoEndpoint => "no_endpoint",
            Self::TooLarge => "evidence_too_large",
            Self::Contended => "contended",
            Self::Host => "host",
        }
    }
}

impl RequestResult {
    const OWN: [Self; 9] = [
        Self::Published,
        Self::NoRequestId,
        Self::NoBlockSize,
        Self::NoMembers,
        Self::UnknownModel,
        Self::NoEndpoint,
        Self::TooLarge,
        Self::Contended,
        Self::Host,
    ];

    /// Every label there is.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        let own = Self::OWN.map(Self::as_str).into_iter();
        let texts = Text::ALL.map(Text::as_str);
        own.chain(texts).chain(Unknown::ALL.map(Unknown::as_str))
    }
}

impl EndpointResult {
    const OWN: [Self; 6] = [
        Self::Complete,
        Self::Partial,
        Self::OtherModel,
        Self::ExtraKeys,
        Self::AdapterPath,
        Self::TooMuch,
    ];

    /// Every label there is.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        let own = Self::OWN.map(Self::as_str).into_iter();
        own.chain(Mismatch::LABELS)
            .chain(NotReady::ALL.map(NotReady::as_str))
    }

    /// A counter's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::OtherModel => "other_model",
            Self::Mismatch(kind) => kind,
            Self::ExtraKeys => "extra_keys",
            Self::AdapterPath => "adapter_path",
            Self::TooMuch => "too_many_blocks",
            Self::NotReady(not_ready) => not_ready.as_str(),
        }
    }
}

impl Published {
    pub(super) fn only(result: RequestResult) -> Self {
        Self {
            result,
            endpoints: Vec::new(),
            partial: Vec::new(),
            likeliest: None,
        }
    }

    pub(super) fn count(&mut self, result: EndpointResult) {
        add(&mut self.endpoints, result);
    }

    pub(super) fn count_reasons(&mut self, reasons: Reasons) {
        for name in reasons.names() {
            add(&mut self.partial, name);
        }
    }
}

fn add<T: PartialEq>(counts: &mut Vec<(T, u32)>, what: T) {
    match counts.iter_mut().find(|(other, _)| *other == what) {
        Some((_, n)) => *n = n.saturating_add(1),
        None => counts.push((what, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorted::SortedSet;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn labels_are_names_and_each_its_own() {
        let lists: [Vec<&str>; 3] = [
            RequestResult::labels().collect(),
            EndpointResult::labels().collect(),
            Reasons::labels().collect(),
        ];
        for (labels, n) in lists.iter().zip([25, 14, 11]) {
            let distinct: SortedSet<_> = labels.iter().collect();
            assert_eq!((labels.len(), distinct.len()), (n, n), "{labels:?}");
            let plain = |b: u8| b.is_ascii_lowercase() || b == b'_';
            assert!(labels.iter().all(|label| label.bytes().all(plain)));
        }
    }

    #[test]
    fn equal_ones_are_counted_together() {
        let mut done = Published::only(RequestResult::Published);
        for result in [
            EndpointResult::Complete,
            EndpointResult::Partial,
            EndpointResult::Complete,
        ] {
            done.count(result);
        }
        done.count_reasons(Reasons::GAP | Reasons::EVICTED);
        done.count_reasons(Reasons::GAP);
        assert_eq!(
            done.endpoints,
            [(EndpointResult::Complete, 2), (EndpointResult::Partial, 1)]
        );
        assert_eq!(done.partial, [("gap", 2), ("evicted", 1)]);
    }
}
