//! Running an editor over a body in pieces, for the `body_*` tests.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

pub mod blocks;
#[cfg(not(target_arch = "wasm32"))]
pub mod dom;

use std::rc::Rc;

use selective_kv::body::{
    Cap, Decide, Edited, Editor, Edits, HeldBudget, Outcome, Output, ParamsFacts, Places,
};
use selective_kv::policy::tiers::{Locality, Medium, TierFilter};

/// More than any test body.
pub const ROOM: usize = 1 << 30;

pub fn top_level() -> Places {
    Places::TopLevel
}

pub fn generate() -> Places {
    Places::TopLevelOrNested
}

pub fn keep() -> Edits {
    Edits::KEEP
}

/// A route's default for `kv_load_tiers`.
pub fn default_tiers() -> TierFilter {
    TierFilter::of([(Some(Medium::Storage), Some(Locality::Local))])
}

/// As the edit writes it.
pub const DEFAULT_TIERS: &str = r#"[{"medium":"storage","locality":"local"}]"#;

/// Every answer a policy can give.
pub fn all_edits() -> Vec<Edits> {
    let mut all = Vec::new();
    for load in [Cap::Keep, Cap::SetZero, Cap::Remove] {
        for offload in [Cap::Keep, Cap::SetZero] {
            for load_tiers in [None, Some(default_tiers())] {
                all.push(Edits {
                    load,
                    offload,
                    load_tiers,
                });
            }
        }
    }
    all
}

/// A decider that always says the same, and leaves disaggregated members alone.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Whenever asked.
    AtOnce(Edits),
    /// At the last chance only.
    AtTheEnd(Edits),
}

impl Answer {
    pub fn edits(self) -> Edits {
        match self {
            Answer::AtOnce(edits) | Answer::AtTheEnd(edits) => edits,
        }
    }
}

impl Decide for Answer {
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits> {
        match *self {
            Answer::AtTheEnd(_) if !last_chance => None,
            _ if facts.disaggregated => Some(Edits::KEEP),
            _ => Some(self.edits()),
        }
    }
}

pub fn answers() -> Vec<Answer> {
    all_edits()
        .into_iter()
        .flat_map(|edits| [Answer::AtOnce(edits), Answer::AtTheEnd(edits)])
        .collect()
}

/// What became of a body.
#[derive(Debug)]
pub struct Run {
    pub out: Vec<u8>,
    pub outcome: Outcome,
    pub edited: Edited,
    /// Bytes still held at the end.
    pub left: usize,
    pub held_total: u64,
}

pub fn editor(places: Places) -> Editor {
    Editor::new(places, ROOM, Rc::new(HeldBudget::new(ROOM)))
}

/// Appends what goes on for one chunk.
pub fn pass_on(output: Output, chunk: &[u8], out: &mut Vec<u8>) {
    match output.apply(chunk.to_vec()) {
        None => out.extend_from_slice(chunk),
        Some(bytes) => out.extend_from_slice(&bytes),
    }
}

/// Feeds the body cut at these ascending positions; the last chunk, which may be empty, ends the
/// stream.
pub fn run(places: Places, body: &[u8], cuts: &[usize], mut answer: Answer) -> Run {
    let mut editor = editor(places);
    let mut out = Vec::with_capacity(body.len() + 100);
    let mut from = 0;
    for &to in cuts {
        let chunk = &body[from..to];
        let output = editor.feed(chunk, false, &mut answer);
        pass_on(output, chunk, &mut out);
        from = to;
    }
    let output = editor.feed(&body[from..], true, &mut answer);
    pass_on(output, &body[from..], &mut out);
    Run {
        out,
        outcome: editor.outcome(),
        edited: editor.edited(),
        left: editor.held(),
        held_total: editor.held_total(),
    }
}
