//! The keys of a request's prompts, made once however many endpoints are asked.

use super::BASE_MODEL;
use super::engine::Way;
use crate::prefix::{Adapter, AdapterPathUnknown, Context};
use crate::prompt::TokenPrompts;
use crate::scorer::config::EvidenceConfig;
use crate::scorer::runs::{Earlier, Prompt};
use std::num::NonZeroU32;

/// Keys of the full blocks of all prompts.
#[derive(Debug)]
pub struct PromptKeys {
    keys: Vec<u64>,
    prompts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    end: usize,
    shared: usize,
    ends_with_block: bool,
}

/// What beside tokens goes into a request's keys.
pub fn context<'a>(config: &'a EvidenceConfig, way: Way<'a>, salt: Option<&'a str>) -> Context<'a> {
    let path = |name: &str| config.adapters.get(name)?.as_deref();
    Context {
        model: BASE_MODEL,
        adapter: way.adapter.map(|name| Adapter {
            name,
            path: path(name),
        }),
        cache_salt: salt,
    }
}

impl PromptKeys {
    pub fn new(
        config: &EvidenceConfig,
        block_size: NonZeroU32,
        way: Way<'_>,
        salt: Option<&str>,
        tokens: &TokenPrompts,
    ) -> Result<Self, AdapterPathUnknown> {
        let context = context(config, way, salt);
        let chain = config.keys.algorithm(way.format).chain(&context)?;
        let mut all = Self {
            keys: Vec::new(),
            prompts: Vec::new(),
        };
        let size = usize::try_from(block_size.get()).unwrap_or(usize::MAX);
        let several = tokens.iter().nth(1).is_some();
        let mut earlier = Earlier::default();
        for tokens in tokens.iter() {
            let start = all.keys.len();
            all.keys
                .reserve(tokens.len().checked_div(size).unwrap_or(0));
            chain.clone().keys_into(tokens, block_size, &mut all.keys);
            let own = all.keys.get(start..).unwrap_or_default();
            let shared = if several { earlier.next(own) } else { 0 };
            all.prompts.push(Part {
                end: all.keys.len(),
                shared,
                ends_with_block: tokens.len().checked_rem(size) == Some(0),
            });
        }
        Ok(all)
    }

    /// Keys of all prompts.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn prompts(&self) -> Vec<Prompt<'_>> {
        let starts = std::iter::once(0).chain(self.prompts.iter().map(|part| part.end));
        starts
            .zip(&self.prompts)
            .map(|(start, part)| Prompt {
                keys: self.keys.get(start..part.end).unwrap_or_default(),
                shared: part.shared,
                ends_with_block: part.ends_with_block,
            })
            .collect()
    }
}
