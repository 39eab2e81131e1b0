//! The editor of one request body: feeds the scanner, holds what cannot be decided yet, asks, and
//! splices.

use std::borrow::Cow;
use std::rc::Rc;

use super::held::{Held, HeldBudget};
use super::params::Params;
use super::piece::Piece;
use super::places::{InEffect, Waiting};
use super::scanner::{Event, Kind, Scanner};
use super::segments::Segments;
use super::{Decide, Edited, Edits, Outcome, Output, ParamsFacts, Places};

/// Members waiting for their decision at a time. Each costs some bytes beside the bytes held; no
/// client sends more than one.
const MAX_WAITING: usize = 256;

/// Edits one body as it streams through. Dropping it gives back what it has reserved.
pub struct Editor {
    places: Places,
    scanner: Scanner,
    outcome: Outcome,
    in_effect: InEffect,
    /// Out of the stream: everything from the first waiting member on.
    held: Held,
    /// In the order of the stream. The last one may still be open.
    slots: Vec<Slot>,
    /// The decider was asked, and has a decision or will have one.
    asked: bool,
    edited: Edited,
    held_total: u64,
    /// To take the last [`Self::feed`] back.
    before: Before,
}

/// A waiting member. Indices count from the first byte of `held`, or, with nothing held, from the
/// first byte of the chunk that is not dealt with yet.
#[derive(Clone, Copy, Debug)]
struct Slot {
    start: usize,
    /// Past the value; `start` while it is open.
    end: usize,
    waiting: Waiting,
}

/// How things stood before the last chunk.
#[derive(Default, Debug)]
struct Before {
    /// Bytes held.
    held: usize,
    /// Those bytes, if the last chunk's output let them go.
    let_go: Option<Segments>,
    edited: Edited,
}

impl Editor {
    /// `max_held_bytes` is this request's limit (`maxHeldBytes`), `budget` that of the VM.
    pub fn new(places: Places, max_held_bytes: usize, budget: Rc<HeldBudget>) -> Self {
        Editor {
            places,
            scanner: Scanner::new(places),
            outcome: Outcome::Pending,
            in_effect: InEffect::default(),
            held: Held::new(max_held_bytes, budget),
            slots: Vec::new(),
            asked: false,
            edited: Edited::default(),
            held_total: 0,
            before: Before::default(),
        }
    }

    /// One chunk as it came; `end` says that it is the stream's last (it may be empty). Once the
    /// outcome is no longer pending this does nothing.
    pub fn feed(&mut self, chunk: &[u8], end: bool, decide: &mut dyn Decide) -> Output {
        self.before = Before {
            held: self.held.len(),
            let_go: None,
            edited: self.edited,
        };
        let mut piece = Piece::new(chunk);
        let mut at = 0;
        while self.outcome == Outcome::Pending {
            match self.scanner.next(chunk, &mut at) {
                Some(event) => self.on(event, &mut piece, decide),
                None if end => {
                    let outcome = if self.scanner.before_object() {
                        Outcome::NotJson
                    } else {
                        Outcome::Cut
                    };
                    self.give_up(&mut piece, outcome);
                }
                None => {
                    self.hold(&mut piece);
                    break;
                }
            }
        }
        piece.finish()
    }

    /// How far it has come.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What has really been changed, in outputs that were not refused.
    pub fn edited(&self) -> Edited {
        self.edited
    }

    /// Bytes now out of the stream.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Bytes that were out of the stream between two chunks, each counted once.
    pub fn held_total(&self) -> u64 {
        self.held_total
    }

    /// The host has taken the last [`Output::Replace`]: frees what was kept for
    /// [`Self::refused`]. Calling it is optional; the next feed and dropping the editor do the same.
    pub fn accepted(&mut self) {
        self.before = Before {
            held: self.held.len(),
            let_go: None,
            edited: self.edited,
        };
    }

    /// The host refused the last [`Output::Replace`], so the stream still has the chunk as it
    /// came. Returns the bytes that were held before it, unchanged, to be put in front of it; from now
    /// on everything passes. An outcome that was pending or complete becomes
    /// [`Outcome::Refused`], and [`Self::edited`] forgets what the output had changed.
    pub fn refused(&mut self) -> Vec<u8> {
        let before = std::mem::take(&mut self.before);
        self.edited = before.edited;
        self.before.edited = before.edited;
        self.slots.clear();
        if matches!(self.outcome, Outcome::Pending | Outcome::Complete) {
            self.outcome = Outcome::Refused;
        }
        let mut held = self.held.take();
        let held = before.let_go.unwrap_or_else(|| {
            held.truncate(before.held);
            held
        });
        held.into_bytes()
    }

    /// The scan cannot go on. Returns the bytes that are held now, unchanged, to be put in front of
    /// whatever the stream still has; from now on everything passes.
    pub fn abandon(&mut self) -> Vec<u8> {
        self.accepted();
        self.refused()
    }

    fn on(&mut self, event: Event, piece: &mut Piece<'_>, decide: &mut dyn Decide) {
        match event {
            Event::Params { at, nested, kind } => self.params_begin(piece, at, nested, kind),
            Event::ParamsEnd { at, nested, kind } => {
                self.params_end(piece, at, nested, kind, decide);
            }
            Event::NestedAfresh => {
                self.in_effect.nested = None;
                self.let_go(piece, |waiting| waiting == Waiting::Nested);
            }
            Event::Close { at, empty } => self.close(piece, at, empty, decide),
            Event::Broken => self.give_up(piece, Outcome::NotJson),
        }
    }

    fn params_begin(&mut self, piece: &mut Piece<'_>, at: usize, nested: bool, kind: Kind) {
        match (nested, kind) {
            (false, Kind::Object) => {
                self.top_has_value(piece, kind);
                self.open(piece, at, Waiting::Top);
            }
            (false, Kind::Null) => {
                let waiting = match self.places {
                    Places::TopLevel => Waiting::Top,
                    Places::TopLevelOrNested => Waiting::TopNull,
                };
                self.open(piece, at, waiting);
            }
            (false, Kind::Other) => self.top_has_value(piece, kind),
            (true, Kind::Object) => {
                self.in_effect.nested = Some(kind);
                if !self.in_effect.top_rules() {
                    self.open(piece, at, Waiting::Nested);
                }
            }
            // Whether it is really null shows at its end; it is not edited in either case.
            (true, Kind::Null) => {}
            (true, Kind::Other) => self.in_effect.nested = Some(kind),
        }
    }

    fn params_end(
        &mut self,
        piece: &mut Piece<'_>,
        at: usize,
        nested: bool,
        kind: Kind,
        decide: &mut dyn Decide,
    ) {
        match (nested, kind) {
            (false, Kind::Other) => {
                // Began like null, so a slot was opened for it.
                self.slots.pop();
                self.top_has_value(piece, kind);
                return;
            }
            (false, _) => self.in_effect.top = Some(kind),
            (true, _) => self.in_effect.nested = Some(kind),
        }
        let end = self.line_index(piece, at);
        let Some(slot) = self.slots.last_mut().filter(|slot| slot.end == slot.start) else {
            return;
        };
        slot.end = end;
        let slot = *slot;
        if !self.join(piece, slot) {
            self.give_up(piece, Outcome::HeldLimit);
            return;
        }
        // Behind another member that waits, this one has to wait anyway, and is asked for in turn.
        let ask = slot.waiting == Waiting::Top && self.slots.len() == 1;
        let text = self.text(piece, slot).unwrap_or_default();
        let Some(params) = Params::read(&text) else {
            self.give_up(piece, Outcome::NotJson);
            return;
        };
        if !ask {
            return;
        }
        let decision = decide.decide(&params.facts(&text), false);
        self.asked = true;
        if let Some(edits) = decision {
            self.write(piece, &[Some((params, edits))]);
        }
    }

    /// The top level's value is not null, so neither a nested one nor an earlier null counts.
    fn top_has_value(&mut self, piece: &mut Piece<'_>, kind: Kind) {
        self.in_effect.top = Some(kind);
        self.let_go(piece, |waiting| waiting != Waiting::Top);
    }

    /// The closing brace: everything that waits is decided now.
    fn close(&mut self, piece: &mut Piece<'_>, at: usize, empty: bool, decide: &mut dyn Decide) {
        let mut answers = Vec::with_capacity(self.slots.len());
        let mut asked = self.asked;
        for &slot in &self.slots {
            let text = match self.in_effect.edits(slot.waiting) {
                true => self.text(piece, slot),
                false => None,
            };
            answers.push(text.and_then(|text| {
                let params = Params::read(&text)?;
                asked = true;
                let edits = decide.decide(&params.facts(&text), true)?;
                Some((params, edits))
            }));
        }
        self.asked = asked;
        self.write(piece, &answers);
        if self.in_effect.inserts() {
            let edits = decide.decide(&ParamsFacts::ABSENT, true);
            self.insert(piece, at, empty, edits.unwrap_or(Edits::KEEP));
        } else if !self.asked {
            // Nothing to edit, but still one decision to count.
            let _ = decide.decide(&ParamsFacts::ABSENT, true);
        }
        self.outcome = Outcome::Complete;
    }

    /// Adds the member directly before the closing brace at `at`.
    fn insert(&mut self, piece: &mut Piece<'_>, at: usize, empty: bool, edits: Edits) {
        let changed = Params::ABSENT.changed_by(edits);
        if !changed.any() {
            return;
        }
        piece.copy_to(at);
        let out = piece.out();
        if !empty {
            out.push(b',');
        }
        out.extend_from_slice(b"\"kv_transfer_params\":");
        Params::ABSENT.write(&[], edits, out);
        self.edited = self.edited.or(changed);
    }

    /// Begins to wait for the value whose first byte is at `at`.
    fn open(&mut self, piece: &mut Piece<'_>, at: usize, waiting: Waiting) {
        if self.slots.len() >= MAX_WAITING {
            self.give_up(piece, Outcome::HeldLimit);
            return;
        }
        let start = self.line_index(piece, at);
        self.slots.push(Slot {
            start,
            end: start,
            waiting,
        });
    }

    /// Lets members go that are not in effect, and, if none is left, everything held.
    fn let_go(&mut self, piece: &mut Piece<'_>, gone: impl Fn(Waiting) -> bool) {
        self.slots.retain(|slot| !gone(slot.waiting));
        if self.slots.is_empty() {
            self.release(piece);
        }
    }

    /// Everything on, unchanged from here.
    fn give_up(&mut self, piece: &mut Piece<'_>, outcome: Outcome) {
        self.release(piece);
        self.outcome = outcome;
    }

    /// Gives back everything held, unchanged.
    fn release(&mut self, piece: &mut Piece<'_>) {
        self.slots.clear();
        self.write(piece, &[]);
    }

    /// Writes everything that waits; `answers` are those for the slots, in order: a value and its edits.
    fn write(&mut self, piece: &mut Piece<'_>, answers: &[Option<(Params, Edits)>]) {
        let slots = std::mem::take(&mut self.slots);
        let mut decided = slots.iter().zip(answers).peekable();
        let held = self.held.take();
        if !held.is_empty() {
            let out = piece.out_for(held.len());
            let mut done = 0;
            while let Some((slot, answer)) = decided.next_if(|(slot, _)| slot.end <= held.len()) {
                if let Some((params, edits, changed)) = change(answer) {
                    held.parts(done..slot.start)
                        .for_each(|part| out.extend_from_slice(part));
                    params.write(&held.slice(slot.start..slot.end), edits, out);
                    done = slot.end;
                    self.edited = self.edited.or(changed);
                }
            }
            held.parts(done..held.len())
                .for_each(|part| out.extend_from_slice(part));
        }
        // The rest of the line: slot indices as chunk indices.
        let chunk = piece.chunk;
        let base = piece.copied;
        let index = |line: usize| base.saturating_add(line.saturating_sub(held.len()));
        for (slot, answer) in decided {
            let (start, end) = (index(slot.start), index(slot.end));
            if let Some((params, edits, changed)) = change(answer)
                && let Some(text) = chunk.get(start..end)
            {
                piece.copy_to(start);
                params.write(text, edits, piece.out());
                piece.copied = end;
                self.edited = self.edited.or(changed);
            }
        }
        if !held.is_empty() {
            let mut held = held;
            held.truncate(self.before.held);
            self.before.let_go = Some(held);
        }
    }

    /// At the end of a chunk: takes out what waits.
    fn hold(&mut self, piece: &mut Piece<'_>) {
        let Some(first) = self.slots.first() else {
            return;
        };
        // The part of the chunk that is not held begins the line, if nothing is held yet.
        let skip = if self.held.is_empty() { first.start } else { 0 };
        let from = piece.copied.saturating_add(skip);
        let rest = piece.chunk.get(from..).unwrap_or_default();
        if !self.held.keep(rest) {
            self.give_up(piece, Outcome::HeldLimit);
            return;
        }
        for slot in &mut self.slots {
            slot.start = slot.start.saturating_sub(skip);
            slot.end = slot.end.saturating_sub(skip);
        }
        piece.copy_to(from);
        piece.out();
        piece.copied = piece.chunk.len();
        let earlier = match self.before.let_go {
            Some(_) => 0,
            None => self.before.held,
        };
        let more = self.held.len().saturating_sub(earlier);
        self.held_total = self
            .held_total
            .saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
    }

    /// Puts all of a member that began in an earlier chunk in `held`; false if there is no memory.
    fn join(&mut self, piece: &mut Piece<'_>, slot: Slot) -> bool {
        if slot.start < self.held.len() {
            let missing = slot.end.saturating_sub(self.held.len());
            let line = piece.line();
            if !self.held.join(line.get(..missing).unwrap_or_default()) {
                return false;
            }
            piece.copied = piece.copied.saturating_add(missing);
        }
        true
    }

    /// The text of a complete member: in `held`, or in the chunk.
    fn text<'t>(&'t self, piece: &Piece<'t>, slot: Slot) -> Option<Cow<'t, [u8]>> {
        match slot.start.checked_sub(self.held.len()) {
            None => Some(self.held.bytes().slice(slot.start..slot.end)),
            Some(start) => {
                let end = slot.end.checked_sub(self.held.len())?;
                piece.line().get(start..end).map(Cow::Borrowed)
            }
        }
    }

    /// A chunk index as a slot's index.
    fn line_index(&self, piece: &Piece<'_>, at: usize) -> usize {
        at.saturating_sub(piece.copied)
            .saturating_add(self.held.len())
    }
}

/// A value, its edits, and what they change, if they do.
#[inline(never)]
fn change(answer: &Option<(Params, Edits)>) -> Option<(&Params, Edits, Edited)> {
    let (params, edits) = answer.as_ref()?;
    let changed = params.changed_by(*edits);
    changed.any().then_some((params, *edits, changed))
}
