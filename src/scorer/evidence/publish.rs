//! One request's evidence.

use super::engine::{Way, way};
use super::models::resolve;
use super::prompt_keys::PromptKeys;
use super::results::{EndpointResult, Published, RequestResult};
use super::{Evidence, REQUEST_BYTES};
use crate::contract::evidence_writer::{EndpointEvidence, RequestEvidence, upsert};
use crate::contract::keys::evidence_key;
use crate::contract::store::{Store, TRIES, UpdateError, Updated, update};
use crate::prompt::{Prompt, Request};
use crate::scorer::index::{NotReady, View};
use crate::scorer::runs::{self, Engine};
use std::collections::BTreeMap;

/// Look-ups of one request, over all endpoints: some 10 ms of work. A prompt of 128k tokens in
/// blocks of 16 takes 8,192 an endpoint.
const MAX_LOOKUPS: usize = 1 << 20;
/// What a prompt costs beside its blocks, in look-ups.
const PROMPT_LOOKUPS: usize = 16;

/// What other requests left in the record goes after this: the policy's default `maxEvidenceAge`.
const MAX_AGE_MS: u64 = 30_000;

/// An endpoint that can be looked up.
struct Ready<'a> {
    endpoint: &'a String,
    way: Way<'a>,
    view: View,
}

impl Evidence {
    /// Writes what the endpoints hold of a request's prompts. To be called before the end of its
    /// body goes on.
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
        let tokens = match &request.prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => return Published::only(RequestResult::Text(*text)),
            Prompt::Unknown(unknown) => {
                return Published::only(RequestResult::Unknown(*unknown));
            }
        };
        let Some((block_size, index)) = &mut self.index else {
            return Published::only(RequestResult::NoBlockSize);
        };
        if self.fleet.endpoints.is_empty() {
            return Published::only(RequestResult::NoMembers);
        }
        let config = &*self.evidence;
        let salt = request.cache_salt.as_deref();
        let mut done = Published::only(RequestResult::UnknownModel);
        let mut budget = REQUEST_BYTES;
        let mut ready = Vec::new();
        for (endpoint, facts) in &self.fleet.endpoints {
            let Some(served) = resolve(config, facts, request.model.as_deref()) else {
                done.count(EndpointResult::OtherModel);
                continue;
            };
            done.result = RequestResult::NoEndpoint;
            let way = match way(config, facts, *block_size, served, salt.is_some()) {
                Ok(way) => way,
                Err(result) => {
                    done.count(result);
                    continue;
                }
            };
            match index.view(store, endpoint, now_ms, &mut budget) {
                Ok(view) => ready.push(Ready {
                    endpoint,
                    way,
                    view,
                }),
                Err(not_ready) => done.count(EndpointResult::NotReady(not_ready)),
            }
        }

        let mut ways: Vec<Way<'_>> = Vec::new();
        for Ready { way, .. } in &ready {
            if !ways.contains(way) {
                ways.push(*way);
            }
        }
        let keys: Vec<(Way<'_>, Option<PromptKeys>)> = ways
            .into_iter()
            .map(|way| {
                (
                    way,
                    PromptKeys::new(config, *block_size, way, salt, tokens).ok(),
                )
            })
            .collect();
        let engine = Engine {
            blocks_per_chunk: config.blocks_per_chunk,
            secondary: config.secondary,
        };
        let mut lookups = MAX_LOOKUPS;
        let mut endpoints: BTreeMap<String, EndpointEvidence> = BTreeMap::new();
        for (way, keys) in &keys {
            let alike = ready.iter().filter(|ready| ready.way == *way);
            let Some(keys) = keys else {
                alike.for_each(|_| done.count(EndpointResult::AdapterPath));
                continue;
            };
            let prompts = keys.prompts();
            let cost = prompts
                .len()
                .saturating_mul(PROMPT_LOOKUPS)
                .saturating_add(keys.len());
            for ready in alike {
                let Some(rest) = lookups.checked_sub(cost) else {
                    done.count(EndpointResult::TooMuch);
                    continue;
                };
                lookups = rest;
                let Some(residency) = index.residency(&ready.view) else {
                    done.count(EndpointResult::NotReady(NotReady::TooLarge));
                    continue;
                };
                let outcome = runs::outcome(
                    &prompts,
                    request.reads_cache,
                    engine,
                    index.tiers(),
                    ready.view.reasons,
                    |key| residency.held(key),
                );
                done.count(match outcome.evidence.partial {
                    true => EndpointResult::Partial,
                    false => EndpointResult::Complete,
                });
                done.count_reasons(outcome.reasons);
                endpoints.insert(ready.endpoint.clone(), outcome.evidence);
            }
        }
        if !endpoints.is_empty() {
            let evidence = RequestEvidence {
                id: request_id,
                writer: &self.config.name,
                t_ms: now_ms,
                block_size: block_size.get(),
                endpoints: &endpoints,
            };
            done.result = write(store, &evidence);
        }
        done
    }
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
