//! Something an engine is asked each time it comes up, and perhaps from time to time.

/// Tries to get an answer; one of any status settles the question.
const TRIES: u32 = 3;

/// A question and the last answer to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question<T> {
    state: State,
    known: Option<T>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The configuration has no path for it.
    Never,
    /// To be asked, that many times at most.
    Wanted(u32),
    /// A call is out; that many tries are left.
    Asked(u32),
    /// Answered, or given up.
    Settled,
}

impl<T> Question<T> {
    /// To be asked if `asks`; `known` counts until it is answered.
    pub fn new(asks: bool, known: Option<T>) -> Self {
        let state = match asks {
            true => State::Wanted(TRIES),
            false => State::Never,
        };
        Self { state, known }
    }

    /// Whether to ask now; then it counts as asked.
    pub fn ask(&mut self) -> bool {
        let State::Wanted(tries) = self.state else {
            return false;
        };
        self.state = State::Asked(tries.saturating_sub(1));
        true
    }

    /// What the engine answered, `Some(None)` if it does not tell; None: no answer, so it is asked
    /// again and what was known stays. True if what is known changed.
    pub fn answered(&mut self, answer: Option<Option<T>>) -> bool
    where
        T: PartialEq,
    {
        let State::Asked(left) = self.state else {
            return false;
        };
        match answer {
            Some(answer) => {
                self.state = State::Settled;
                let changed = self.known != answer;
                self.known = answer;
                changed
            }
            None => {
                self.state = match left {
                    0 => State::Settled,
                    left => State::Wanted(left),
                };
                false
            }
        }
    }

    /// A settled question is to be asked again.
    pub fn again(&mut self) {
        if self.state == State::Settled {
            self.state = State::Wanted(TRIES);
        }
    }

    pub fn known(&self) -> Option<&T> {
        self.known.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn one_answer_settles_it_until_it_is_asked_again() {
        let mut question = Question::new(true, None);
        // an answer that nobody asked for does not count
        assert!(!question.answered(Some(Some(1))));
        assert_eq!(question.known(), None);
        assert!(question.ask() && !question.ask());
        assert!(question.answered(Some(Some(2))));
        assert!(!question.answered(Some(Some(3))));
        assert_eq!((question.ask(), question.known()), (false, Some(&2)));
        // the old answer counts until the new one
        question.again();
        assert!(question.ask());
        question.again();
        assert_eq!((question.ask(), question.known()), (false, Some(&2)));
        assert!(!question.answered(Some(Some(2))));
        // and goes with an answer that tells nothing.
        question.again();
        assert!(question.ask());
        assert!(question.answered(Some(None)));
        assert_eq!(question.known(), None);
    }

    #[test]
    fn three_tries_without_an_answer() {
        let mut question = Question::new(true, Some(1));
        for _ in 0..3 {
            assert!(question.ask());
            assert!(!question.answered(None));
        }
        assert_eq!((question.ask(), question.known()), (false, Some(&1)));
        question.again();
        assert!(question.ask());
    }

    #[test]
    fn what_is_never_asked() {
        let mut question = Question::<u8>::new(false, None);
        question.again();
        assert!(!question.ask());
        assert!(!question.answered(Some(Some(1))));
        assert_eq!(question.known(), None);
    }
}
