//! The native editor with a decision that is known from the start.

use crate::rig::GENERATE;
use selective_kv::body::{Decide, Editor, Edits, HeldBudget, ParamsFacts, Places};
use std::rc::Rc;

const LIMIT: usize = 64 << 20;

struct Always(Edits);

impl Decide for Always {
    fn decide(&mut self, facts: &ParamsFacts<'_>, _: bool) -> Option<Edits> {
        Some(if facts.disaggregated {
            Edits::KEEP
        } else {
            self.0
        })
    }
}

/// What becomes of a whole body sent to `path`.
pub fn edited(path: &str, body: &[u8], edits: Edits) -> Vec<u8> {
    let places = match path {
        GENERATE => Places::TopLevelOrNested,
        _ => Places::TopLevel,
    };
    let mut editor = Editor::new(places, LIMIT, Rc::new(HeldBudget::new(LIMIT)));
    let output = editor.feed(body, true, &mut Always(edits));
    output.apply(body.to_vec()).unwrap_or_else(|| body.to_vec())
}
