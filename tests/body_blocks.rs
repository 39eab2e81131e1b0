//! Bodies made to meet the borders of blocks and runs, against the naive edit: whole and cut, with
//! little room to hold, with outputs that the host refuses, and damaged.
#![cfg(not(target_arch = "wasm32"))]
// Helpers outside the test functions are tests too.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]

mod body;

use std::rc::Rc;

use body::blocks::{self, Random};
use body::{Answer, ROOM, all_edits, dom, run};
use selective_kv::body::{Editor, HeldBudget, Outcome, Places};

const BODIES: u64 = 1_000;

struct Case {
    random: Random,
    places: Places,
    answer: Answer,
    body: Vec<u8>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let body = blocks::body(&mut random);
        let edits = random.of(&all_edits());
        let places = random.of(&[Places::TopLevel, Places::TopLevelOrNested]);
        let answer = random.of(&[Answer::AtOnce(edits), Answer::AtTheEnd(edits)]);
        Case {
            random,
            places,
            answer,
            body,
        }
    }

    fn cuts(&mut self) -> Vec<usize> {
        blocks::cuts(&mut self.random, self.body.len())
    }

    fn naive(&self) -> Vec<u8> {
        dom::edited(self.places, &self.body, self.answer.edits()).expect("valid JSON")
    }
}

/// The beginning of one and the end of the other, and nothing between.
fn is_begun(out: &[u8], edited: &[u8], body: &[u8]) -> bool {
    let same = |(a, b): &(&u8, &u8)| a == b;
    let begin = out.iter().zip(edited).take_while(same).count();
    let end = out.iter().rev().zip(body.iter().rev());
    begin + end.take_while(same).count() >= out.len()
}

#[test]
fn bodies_get_the_naive_edit_however_they_are_cut() {
    for seed in 0..BODIES {
        let mut case = Case::new(seed);
        let expected = case.naive();
        for _ in 0..3 {
            let cuts = case.cuts();
            let run = run(case.places, &case.body, &cuts, case.answer);
            assert!(run.out == expected, "body {seed} at {cuts:?}");
            assert_eq!((run.outcome, run.left), (Outcome::Complete, 0), "{seed}");
            assert_eq!(run.edited.any(), run.out != case.body, "body {seed}");
        }
    }
}

#[test]
fn what_is_held_comes_back_at_every_limit_and_after_every_refusal() {
    let mut seen = [0; 3];
    for seed in 0..BODIES {
        let mut case = Case::new(seed);
        let expected = case.naive();
        let cuts = case.cuts();
        let limit = match case.random.below(2) {
            0 => case.random.below(case.body.len() / 8 + 1),
            _ => ROOM,
        };
        let mut until_refused = case.random.below(4);
        let budget = Rc::new(HeldBudget::new(limit));
        let mut editor = Editor::new(case.places, limit, Rc::clone(&budget));
        let (mut out, mut from) = (Vec::new(), 0);
        for &to in cuts.iter().chain([&case.body.len()]) {
            let chunk = &case.body[from..to];
            let output = editor.feed(chunk, to == case.body.len(), &mut case.answer);
            match output.apply(chunk.to_vec()) {
                None => out.extend_from_slice(chunk),
                Some(_) if until_refused == 0 => {
                    out.extend_from_slice(&editor.refused());
                    out.extend_from_slice(chunk);
                    until_refused = usize::MAX;
                }
                Some(bytes) => {
                    out.extend_from_slice(&bytes);
                    until_refused -= 1;
                }
            }
            assert!(budget.held() <= limit, "body {seed}");
            assert_eq!(budget.held(), editor.held(), "body {seed}");
            from = to;
        }
        match editor.outcome() {
            Outcome::Complete => {
                assert!(out == expected, "body {seed}");
                seen[0] += 1;
            }
            Outcome::HeldLimit => seen[1] += 1,
            _ => seen[2] += 1,
        }
        assert!(is_begun(&out, &expected, &case.body), "body {seed}");
        assert_eq!(editor.edited().any(), out != case.body, "body {seed}");
        assert_eq!(budget.held(), 0, "body {seed}");
    }
    assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
}

#[test]
fn damaged_bodies_come_to_the_same_as_byte_by_byte() {
    for seed in 0..BODIES {
        let mut case = Case::new(seed);
        case.body = blocks::damaged(&mut case.random, case.body);
        let bytes: Vec<usize> = (1..case.body.len()).collect();
        let expected = run(case.places, &case.body, &bytes, case.answer);
        let edits = case.answer.edits();
        if let Some(edited) = dom::edited(case.places, &case.body, edits) {
            assert!(expected.out == edited, "body {seed}");
        }
        assert_eq!(expected.edited.any(), expected.out != case.body, "{seed}");
        for _ in 0..2 {
            let cuts = case.cuts();
            let run = run(case.places, &case.body, &cuts, case.answer);
            assert!(run.out == expected.out, "body {seed} at {cuts:?}");
            assert_eq!(run.outcome, expected.outcome, "body {seed} at {cuts:?}");
        }
    }
}
