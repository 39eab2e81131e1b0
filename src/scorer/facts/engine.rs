//! The engine at one address, from when it came up.

use super::{EngineFacts, Mismatch, Models, PageFacts};
use crate::scorer::question::Question;
use std::rc::Rc;

/// Of the pages of one process one in so many is read for facts: they hardly change.
const PAGES: u32 = 10;

/// What engines are asked, beside their metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asks {
    pub version: bool,
    pub models: bool,
    /// Good polls after which both are asked again: a restart may go unnoticed, adapters come and
    /// go. None: only when an engine comes up.
    pub again_after: Option<u32>,
}

/// What to ask now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Due {
    pub version: bool,
    pub models: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Engine {
    asks: Asks,
    polls: u32,
    version: Question<String>,
    models: Question<Models>,
    page: PageFacts,
    pages_to_skip: u32,
    facts: Rc<EngineFacts>,
    /// The one that was reported.
    mismatch: Option<Mismatch>,
}

impl Engine {
    /// One that came up, of which nothing is known.
    pub fn new(asks: Asks) -> Self {
        Self {
            asks,
            polls: 0,
            version: Question::new(asks.version, None),
            models: Question::new(asks.models, None),
            page: PageFacts::default(),
            pages_to_skip: 0,
            facts: Rc::default(),
            mismatch: None,
        }
    }

    /// One of which another VM knew this; it is asked all the same.
    pub fn inherit(&mut self, facts: &Rc<EngineFacts>) {
        let models = Models {
            base: facts.aliases.clone(),
            adapters: facts.adapters.clone(),
        };
        self.version = Question::new(self.asks.version, facts.version.clone());
        self.models = Question::new(self.asks.models, Some(models));
        self.page = PageFacts {
            model: facts.model.clone(),
            block_size: facts.block_size,
            hash_algorithm: facts.hash_algorithm.clone(),
            gpu_blocks: facts.gpu_blocks,
            ranks: facts.ranks,
            started: None,
        };
        self.facts = Rc::clone(facts);
    }

    /// Whether to read the facts of the page of a process that began then.
    pub fn wants_page(&mut self, started: Option<f64>) -> bool {
        let left = self.pages_to_skip.checked_sub(1);
        match left.filter(|_| started == self.page.started) {
            Some(left) => {
                self.pages_to_skip = left;
                false
            }
            None => true,
        }
    }

    /// Its metrics page was read. True if what is known changed. Another process than before is
    /// another engine: nothing of the old one counts.
    pub fn page(&mut self, page: PageFacts) -> bool {
        if let (Some(before), Some(now)) = (self.page.started, page.started)
            && before != now
        {
            let mismatch = self.mismatch.take();
            *self = Self::new(self.asks);
            self.mismatch = mismatch;
        }
        self.page = page;
        self.pages_to_skip = PAGES.saturating_sub(1);
        self.settle()
    }

    /// Its metrics were answered: what is to be asked now. It counts as asked.
    pub fn due(&mut self) -> Due {
        self.polls = self.polls.saturating_add(1);
        if self.asks.again_after.is_some_and(|n| self.polls > n) {
            self.polls = 1;
            self.version.again();
            self.models.again();
        }
        Due {
            version: self.version.ask(),
            models: self.models.ask(),
        }
    }

    /// True if what is known changed.
    pub fn version_answered(&mut self, answer: Option<Option<String>>) -> bool {
        self.version.answered(answer) && self.settle()
    }

    /// True if what is known changed.
    pub fn models_answered(&mut self, answer: Option<Option<Models>>) -> bool {
        self.models.answered(answer) && self.settle()
    }

    pub fn version(&self) -> Option<&str> {
        self.version.known().map(String::as_str)
    }

    pub fn facts(&self) -> &Rc<EngineFacts> {
        &self.facts
    }

    /// The mismatch that there is now; it is given back if it is to be reported: once, until it
    /// is another one.
    pub fn note(&mut self, mismatch: Option<Mismatch>) -> Option<&Mismatch> {
        if self.mismatch == mismatch {
            return None;
        }
        self.mismatch = mismatch;
        self.mismatch.as_ref()
    }

    fn settle(&mut self) -> bool {
        let models = self.models.known().cloned().unwrap_or_default();
        let facts = EngineFacts {
            model: self.page.model.clone().or(models.base.first().cloned()),
            aliases: models.base,
            adapters: models.adapters,
            block_size: self.page.block_size,
            hash_algorithm: self.page.hash_algorithm.clone(),
            gpu_blocks: self.page.gpu_blocks,
            ranks: self.page.ranks,
            version: self.version.known().cloned(),
        };
        let changed = *self.facts != facts;
        if changed {
            self.facts = Rc::new(facts);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ASKS: Asks = Asks {
        version: true,
        models: true,
        again_after: Some(3),
    };
    const NOTHING: Due = Due {
        version: false,
        models: false,
    };
    const BOTH: Due = Due {
        version: true,
        models: true,
    };

    fn page(block_size: u32, started: Option<f64>) -> PageFacts {
        PageFacts {
            model: Some("tiny".to_owned()),
            block_size: Some(block_size),
            hash_algorithm: Some("sha256".to_owned()),
            gpu_blocks: Some(160),
            ranks: None,
            started,
        }
    }

    fn models(base: &[&str], adapters: &[&str]) -> Models {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Models {
            base: owned(base),
            adapters: owned(adapters),
        }
    }

    /// An engine that has said everything.
    fn known() -> Engine {
        let mut engine = Engine::new(ASKS);
        assert!(engine.page(page(16, Some(1.5))));
        assert_eq!(engine.due(), BOTH);
        assert!(engine.version_answered(Some(Some("0.32.0".to_owned()))));
        assert!(engine.models_answered(Some(Some(models(&["tiny", "x"], &["sql"])))));
        engine
    }

    fn all(block_size: u32) -> EngineFacts {
        EngineFacts {
            model: Some("tiny".to_owned()),
            aliases: vec!["tiny".to_owned(), "x".to_owned()],
            adapters: vec!["sql".to_owned()],
            block_size: Some(block_size),
            hash_algorithm: Some("sha256".to_owned()),
            gpu_blocks: Some(160),
            ranks: None,
            version: Some("0.32.0".to_owned()),
        }
    }

    #[test]
    fn facts_come_together() {
        let mut engine = known();
        assert_eq!(engine.facts().as_ref(), &all(16));
        // the same page changes nothing, another one of the same process does
        assert!(!engine.page(page(16, Some(1.5))));
        assert!(engine.page(page(32, Some(1.5))));
        assert_eq!(engine.facts().as_ref(), &all(32));
    }

    #[test]
    fn one_page_in_ten_is_read_and_every_first_one_of_a_process() {
        let mut engine = Engine::new(ASKS);
        let mut read = |started| {
            let wanted = engine.wants_page(started);
            if wanted {
                engine.page(page(16, started));
            }
            wanted
        };
        for started in [None, Some(1.5), Some(2.5), None] {
            let pages: Vec<bool> = (0..21).map(|_| read(started)).collect();
            let wanted = |i: usize| i.is_multiple_of(10);
            assert_eq!(
                pages,
                (0..21).map(wanted).collect::<Vec<_>>(),
                "{started:?}"
            );
        }
    }

    #[test]
    fn a_page_of_another_process_replaces_everything() {
        let mut engine = known();
        assert!(engine.page(page(16, Some(2.5))));
        let only_page = EngineFacts {
            aliases: Vec::new(),
            adapters: Vec::new(),
            version: None,
            ..all(16)
        };
        assert_eq!(engine.facts().as_ref(), &only_page);
        assert_eq!(engine.due(), BOTH);
        // A page that does not say when its process began is no other process.
        let mut engine = known();
        assert!(!engine.page(page(16, None)));
        assert!(!engine.page(page(16, Some(2.5))));
        assert_eq!(engine.facts().as_ref(), &all(16));
    }

    #[test]
    fn questions_come_again_and_the_old_answers_stay_meanwhile() {
        let mut engine = known();
        assert_eq!(
            [engine.due(), engine.due(), engine.due()],
            [NOTHING, NOTHING, BOTH]
        );
        assert_eq!(engine.facts().as_ref(), &all(16));
        // No answer: asked again with the next poll.
        assert!(!engine.models_answered(None));
        let models_due = Due {
            version: false,
            models: true,
        };
        assert_eq!(engine.due(), models_due);
        assert!(engine.models_answered(Some(Some(models(&["tiny", "x"], &[])))));
        assert_eq!(engine.facts().adapters, [""; 0]);
        assert!(!engine.version_answered(Some(Some("0.32.0".to_owned()))));

        let once = Asks {
            again_after: None,
            models: false,
            ..ASKS
        };
        let mut engine = Engine::new(once);
        let version_due = Due {
            version: true,
            models: false,
        };
        assert_eq!(engine.due(), version_due);
        engine.version_answered(Some(None));
        assert!((0..1_000).all(|_| engine.due() == NOTHING));
    }

    #[test]
    fn what_another_vm_knew_counts_until_it_is_answered() {
        let mut engine = Engine::new(ASKS);
        engine.inherit(&Rc::new(all(16)));
        assert_eq!(engine.version(), Some("0.32.0"));
        assert!(!engine.page(page(16, Some(9.5))));
        assert_eq!(engine.due(), BOTH);
        assert!(engine.version_answered(Some(Some("0.33.0".to_owned()))));
        let newer = EngineFacts {
            version: Some("0.33.0".to_owned()),
            ..all(16)
        };
        assert_eq!(engine.facts().as_ref(), &newer);
    }

    #[test]
    fn the_first_served_name_is_the_model_where_the_page_says_none() {
        let mut engine = Engine::new(ASKS);
        engine.due();
        assert!(engine.models_answered(Some(Some(models(&["a", "b"], &["l"])))));
        assert_eq!(engine.facts().model.as_deref(), Some("a"));
        assert!(engine.page(page(16, None)));
        assert_eq!(engine.facts().model.as_deref(), Some("tiny"));
    }

    #[test]
    fn a_mismatch_is_reported_until_it_is_another_one() {
        let mut engine = Engine::new(ASKS);
        let mismatch = |engine| Mismatch::BlockSize {
            engine,
            expected: NonZeroU32::MIN,
        };
        assert_eq!(engine.note(None), None);
        assert_eq!(engine.note(Some(mismatch(2))), Some(&mismatch(2)));
        assert_eq!(engine.note(Some(mismatch(2))), None);
        assert_eq!(engine.note(Some(mismatch(3))), Some(&mismatch(3)));
        // a restart with the same one is no news
        engine.page(page(3, Some(1.5)));
        engine.page(page(3, Some(2.5)));
        assert_eq!(engine.note(Some(mismatch(3))), None);
        assert_eq!(engine.note(None), None);
        assert_eq!(engine.note(Some(mismatch(3))), Some(&mismatch(3)));
    }
}
