//! One request's evidence.

use super::engine::{Way, way};
use super::models::resolve;
use super::prompt_keys::PromptKeys;
use super::results::{EndpointResult, Published, RequestResult};
use super::{Evidence, REQUEST_BYTES};
use crate::contract::evidence::Prompt as Written;
use crate::contract::evidence_writer::{EndpointEvidence, RequestEvidence, upsert, withdraw};
use crate::contract::keys::evidence_key;
use crate::contract::store::{Store, TRIES, UpdateError, Updated, update};
use crate::prompt::{Prompt, Request, TokenPrompts};
use crate::scorer::config::EvidenceConfig;
use crate::scorer::index::{Found, NotReady, Reasons};
use crate::scorer::runs::{self, Engine, Secondary};
use crate::sorted::SortedMap;
use std::num::NonZeroU32;

/// Look-ups of one request, over all endpoints: some 10 ms of work. A prompt of 128k tokens in
/// blocks of 16 takes 8,192 an endpoint.
const MAX_LOOKUPS: usize = 1 << 20;
/// What a prompt costs beside its blocks, in look-ups.
const PROMPT_LOOKUPS: usize = 16;

/// What other requests left in the record goes after this: the policy's default `maxEvidenceAge`.
const MAX_AGE_MS: u64 = 30_000;

impl Evidence {
    /// Writes what the endpoints hold of a request's prompts. To be called before the end of its
    /// body goes on.
    ///
    /// If nothing is known, what an earlier request with the same id left is taken back: ids are
    /// passed on from call to call, and this one has other prompts.
    pub fn publish(
        &mut self,
        store: &dyn Store,
        request_id: &str,
        request: &Request,
        now_ms: u64,
    ) -> Published {
        if request_id.is_empty() {
            return Published::only(RequestResult::NoRequestId);
        }
        let (mut done, endpoints) = self.look_up(store, request, now_ms);
        done.likeliest = likeliest(&endpoints);
        let writer = &self.config.name;
        if endpoints.is_empty() {
            take_back(store, request_id, writer, now_ms);
            return done;
        }
        let evidence = RequestEvidence {
            id: request_id,
            writer,
            t_ms: now_ms,
            block_size: self.block_size().map_or(0, NonZeroU32::get),
            endpoints: &endpoints,
        };
        done.result = write(store, &evidence);
        if done.result == RequestResult::TooLarge {
            take_back(store, request_id, writer, now_ms);
        }
        done
    }

    fn look_up(
        &mut self,
        store: &dyn Store,
        request: &Request,
        now_ms: u64,
    ) -> (Published, SortedMap<String, EndpointEvidence>) {
        let nothing = |result| (Published::only(result), SortedMap::new());
        let tokens = match &request.prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => return nothing(RequestResult::Text(*text)),
            Prompt::Unknown(unknown) => return nothing(RequestResult::Unknown(*unknown)),
        };
        let Some((block_size, index)) = &mut self.index else {
            return nothing(RequestResult::NoBlockSize);
        };
        if self.fleet.endpoints.is_empty() {
            return nothing(RequestResult::NoMembers);
        }
        let config = &*self.evidence;
        let mut asked = Asked {
            config,
            block_size: *block_size,
            salt: request.cache_salt.as_deref(),
            tokens,
            reads_cache: request.reads_cache,
            keys: Vec::new(),
            lookups: MAX_LOOKUPS,
            done: Published::only(RequestResult::UnknownModel),
            endpoints: SortedMap::new(),
        };
        let mut ways = Vec::new();
        for (endpoint, facts) in &self.fleet.endpoints {
            let Some(served) = resolve(config, facts, request.model.as_deref()) else {
                asked.done.count(EndpointResult::OtherModel);
                continue;
            };
            asked.done.result = RequestResult::NoEndpoint;
            match way(
                &config.keys,
                facts,
                *block_size,
                served,
                asked.salt.is_some(),
            ) {
                Ok(way) => ways.push((endpoint.as_str(), way, facts.ranks)),
                Err(result) => asked.done.count(result),
            }
        }
        let mut budget = REQUEST_BYTES;
        let mut order = ways.iter().map(|(_, way, ranks)| (*way, *ranks));
        let endpoints = ways.iter().map(|(endpoint, ..)| *endpoint);
        index.look_up(
            store,
            endpoints,
            now_ms,
            &mut budget,
            &mut |endpoint, found| {
                let Some((way, ranks)) = order.next() else {
                    return;
                };
                let result = asked.endpoint(endpoint, way, ranks, found);
                asked.done.count(result);
            },
        );
        (asked.done, asked.endpoints)
    }
}

/// A request while its endpoints are looked up.
struct Asked<'a> {
    config: &'a EvidenceConfig,
    block_size: NonZeroU32,
    salt: Option<&'a str>,
    tokens: &'a TokenPrompts,
    reads_cache: bool,
    /// Made when the first endpoint asks; `None` if they cannot be.
    keys: Vec<(Way<'a>, Option<PromptKeys>)>,
    /// How many are left.
    lookups: usize,
    done: Published,
    endpoints: SortedMap<String, EndpointEvidence>,
}

impl<'a> Asked<'a> {
    fn endpoint(
        &mut self,
        endpoint: &str,
        way: Way<'a>,
        ranks: Option<u32>,
        found: Result<Found<'_>, NotReady>,
    ) -> EndpointResult {
        let mut found = match found {
            Ok(found) => found,
            Err(not_ready) => return EndpointResult::NotReady(not_ready),
        };
        if ranks.is_some_and(|ranks| ranks > found.ranks) {
            // One of those that nobody follows may serve the request.
            found.reasons |= Reasons::RANKS;
        }
        if !self.keys.iter().any(|(other, _)| *other == way) {
            let keys =
                PromptKeys::new(self.config, self.block_size, way, self.salt, self.tokens).ok();
            self.keys.push((way, keys));
        }
        let keys = self.keys.iter().find(|(other, _)| *other == way);
        let Some(keys) = keys.and_then(|(_, keys)| keys.as_ref()) else {
            return EndpointResult::AdapterPath;
        };
        let prompts = keys.prompts();
        let cost = prompts
            .len()
            .saturating_mul(PROMPT_LOOKUPS)
            .saturating_add(keys.len());
        let Some(left) = self.lookups.checked_sub(cost) else {
            return EndpointResult::TooMuch;
        };
        self.lookups = left;
        let engine = Engine {
            blocks_per_chunk: self.config.blocks_per_chunk,
            // It has one, whether or not this request's blocks are there.
            secondary: match self.config.secondary {
                Secondary::None if found.has_secondary => Secondary::Unvouched,
                secondary => secondary,
            },
        };
        let outcome = runs::outcome_of(&prompts, self.reads_cache, engine, &found);
        self.done.count_reasons(outcome.reasons);
        let partial = outcome.evidence.partial;
        self.endpoints.insert(endpoint.to_owned(), outcome.evidence);
        match partial {
            true => EndpointResult::Partial,
            false => EndpointResult::Complete,
        }
    }
}

/// The first of those that will use the most.
fn likeliest(endpoints: &SortedMap<String, EndpointEvidence>) -> Option<String> {
    let mut most: Option<(u64, &String)> = None;
    for (endpoint, evidence) in endpoints {
        let blocks = leading(evidence);
        if most.is_none_or(|(other, _)| blocks > other) {
            most = Some((blocks, endpoint));
        }
    }
    most.map(|(_, endpoint)| endpoint.clone())
}

/// Blocks that the endpoint will use, wherever it holds them.
fn leading(evidence: &EndpointEvidence) -> u64 {
    let of = |prompt: &Written| match prompt {
        Written::Runs(runs) => runs
            .iter()
            .take_while(|(_, tiers)| !tiers.is_empty())
            .fold(0, |all: u64, (blocks, _)| all.saturating_add(blocks)),
        Written::Tiers(_) => 0,
    };
    evidence
        .prompts
        .iter()
        .fold(0, |all, prompt| all.saturating_add(of(prompt)))
}

fn write(store: &dyn Store, evidence: &RequestEvidence<'_>) -> RequestResult {
    let now_ms = evidence.t_ms;
    let key = evidence_key(evidence.id);
    let written = update(store, &key, TRIES, &mut |old| {
        upsert(old, evidence, now_ms, MAX_AGE_MS)
    });
    match written {
        Ok(Updated::Written) => RequestResult::Published,
        Ok(Updated::Left) => RequestResult::TooLarge,
        Err(UpdateError::Contended) => RequestResult::Contended,
        Err(UpdateError::Host(_)) => RequestResult::Host,
    }
}

/// What cannot be taken back expires.
fn take_back(store: &dyn Store, request_id: &str, writer: &str, now_ms: u64) {
    let key = evidence_key(request_id);
    let _ = update(store, &key, TRIES, &mut |old| {
        withdraw(old?, request_id, writer, now_ms, MAX_AGE_MS)
    });
}
