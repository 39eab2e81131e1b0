//! The native editor with a decision that is known from the start, or at the end.

use crate::rig::GENERATE;
use selective_kv::body::{Decide, Editor, Edits, HeldBudget, ParamsFacts, Places};
use std::rc::Rc;

const LIMIT: usize = 64 << 20;

struct Always {
    edits: Edits,
    /// Not before the closing brace.
    late: bool,
}

impl Decide for Always {
    fn decide(&mut self, facts: &ParamsFacts<'_>, last_chance: bool) -> Option<Edits> {
        match facts.disaggregated {
            true => Some(Edits::KEEP),
            false => (last_chance || !self.late).then_some(self.edits),
        }
    }
}

/// What becomes of a whole body sent to `path`.
pub fn edited(path: &str, body: &[u8], edits: Edits) -> Vec<u8> {
    decided(path, body, edits, false)
}

/// The same; `late`: decided at the closing brace, up to which all is held.
pub fn decided(path: &str, body: &[u8], edits: Edits, late: bool) -> Vec<u8> {
    let places = match path {
        GENERATE => Places::TopLevelOrNested,
        _ => Places::TopLevel,
    };
    let mut editor = Editor::new(places, LIMIT, Rc::new(HeldBudget::new(LIMIT)));
    let output = editor.feed(body, true, &mut Always { edits, late });
    output.apply(body.to_vec()).unwrap_or_else(|| body.to_vec())
}
