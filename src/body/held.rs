//! Bytes taken out of a stream, and the limit over all streams of a VM.

use std::cell::Cell;
use std::rc::Rc;

use super::segments::Segments;

/// Held bytes of all requests of a VM (`maxHeldBytesPerVm`). VMs are single-threaded: shared by `Rc`.
#[derive(Debug)]
pub struct HeldBudget {
    limit: usize,
    held: Rc<Cell<usize>>,
}

impl HeldBudget {
    /// `limit` in bytes.
    pub fn new(limit: usize) -> Self {
        Self::sharing(Rc::default(), limit)
    }

    /// A limit of its own on bytes that others hold too (routes may have different limits).
    pub fn sharing(held: Rc<Cell<usize>>, limit: usize) -> Self {
        HeldBudget { limit, held }
    }

    /// Bytes held now, over all requests.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Takes `bytes` out of the budget, or nothing and false.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        match self.held.get().checked_add(bytes) {
            Some(held) if held <= self.limit => {
                self.held.set(held);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }
}

/// The bytes one request holds. What it has reserved goes back to the budget when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Segments,
    reserved: usize,
    limit: usize,
    budget: Rc<HeldBudget>,
}

impl Held {
    pub fn new(limit: usize, budget: Rc<HeldBudget>) -> Self {
        Held {
            bytes: Segments::default(),
            reserved: 0,
            limit,
            budget,
        }
    }

    pub fn bytes(&self) -> &Segments {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends bytes that are given back before the callback ends: they put a member that spans
    /// chunks in one place, and do not count. False, with nothing changed, if there is no memory.
    pub fn join(&mut self, bytes: &[u8]) -> bool {
        self.bytes.push(bytes, 0)
    }

    /// Appends bytes that stay, and reserves for all that is held. False, with nothing held more, at
    /// a limit.
    pub fn keep(&mut self, bytes: &[u8]) -> bool {
        let Some(held) = self.len().checked_add(bytes.len()) else {
            return false;
        };
        let more = held.saturating_sub(self.reserved);
        if held > self.limit || !self.budget.reserve(more) {
            return false;
        }
        self.reserved = self.reserved.saturating_add(more);
        self.bytes.push(bytes, self.limit.saturating_sub(held))
    }

    /// All bytes held; the reservation is given back.
    pub fn take(&mut self) -> Segments {
        self.budget.give_back(self.reserved);
        self.reserved = 0;
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn keeps_up_to_its_own_limit() {
        let budget = Rc::new(HeldBudget::new(100));
        let mut held = Held::new(5, budget.clone());
        assert!(held.keep(b"abc"));
        assert!(!held.keep(b"def"));
        assert_eq!((held.len(), budget.held()), (3, 3));
        assert!(held.keep(b"de"));
        assert_eq!(budget.held(), 5);
        assert_eq!(held.take().into_bytes(), b"abcde");
    }

    #[test]
    fn shares_the_budget_and_gives_back() {
        let budget = Rc::new(HeldBudget::new(6));
        let mut one = Held::new(100, budget.clone());
        let mut two = Held::new(100, budget.clone());
        assert!(one.keep(b"abcd"));
        assert!(!two.keep(b"xyz"));
        assert_eq!((two.len(), budget.held()), (0, 4));
        assert_eq!(one.take().into_bytes(), b"abcd");
        assert_eq!(budget.held(), 0);
        assert!(two.keep(b"xyz"));
        drop(two);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn joined_bytes_that_stay_count() {
        let budget = Rc::new(HeldBudget::new(5));
        let mut held = Held::new(100, budget.clone());
        assert!(held.keep(b"ab"));
        held.join(b"cd");
        assert!(!held.keep(b"ef"));
        assert!(held.keep(b"e"));
        assert_eq!((held.len(), budget.held()), (5, 5));
    }

    #[test]
    fn joined_bytes_count_only_if_they_stay() {
        let budget = Rc::new(HeldBudget::new(100));
        let mut held = Held::new(4, budget.clone());
        assert!(held.keep(b"ab"));
        held.join(b"cdef");
        assert_eq!(budget.held(), 2);
        assert!(!held.keep(b""));
        assert_eq!(held.take().into_bytes(), b"abcdef");
        assert_eq!(budget.held(), 0);
    }
}
