//! What all root contexts of one VM share.

use crate::sorted::SortedSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::host::SharedData;
use super::metrics::{self, Metric};
use crate::policy::admission;
use crate::policy::config::GateRegistry;
use crate::policy::gatekeeper::Gatekeeper;

/// One for each VM, handed to its roots.
#[derive(Clone, Default)]
pub struct Vm {
    /// The different gates of all configurations.
    pub gates: GateRegistry,
    pub gatekeeper: Rc<RefCell<Gatekeeper>>,
    pub admission: Rc<RefCell<admission::State>>,
    /// Loads that are over and could not be given back yet.
    pub orphans: Rc<RefCell<Vec<admission::Ticket>>>,
    /// Endpoints of which it was said that they ignore something.
    pub unsupported: Rc<RefCell<SortedSet<String>>>,
    /// Request bytes that all editors hold.
    pub held: Rc<Cell<usize>>,
    /// Bytes of prompts that all scorers keep while their requests' bodies pass.
    pub prompts: Rc<Cell<usize>>,
    /// What the gauge of held bytes has of this VM.
    shown: Rc<Cell<i64>>,
}

impl Vm {
    /// Gives back what could not be given back when it was over.
    pub fn take_in_orphans(&self, state: &mut admission::State) {
        let orphans = self.orphans.try_borrow_mut();
        let orphans = orphans.map(|mut orphans| std::mem::take(&mut *orphans));
        for ticket in orphans.unwrap_or_default() {
            if let Some(lease) = ticket.lease() {
                state.loads.release(&SharedData, lease);
            }
        }
    }

    /// Brings the gauge up to date. What the host does not take now it is told the next time.
    pub fn show_held(&self) {
        let held = i64::try_from(self.held.get()).unwrap_or(i64::MAX);
        let change = held.saturating_sub(self.shown.get());
        if metrics::add(Metric::HeldBytes, change) {
            self.shown.set(held);
        }
    }
}

thread_local! {
    static VM: Vm = Vm::default();
}

pub fn vm() -> Vm {
    VM.with(Vm::clone)
}
