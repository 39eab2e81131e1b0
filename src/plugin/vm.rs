//! What all root contexts of one VM share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::policy::config::GateRegistry;
use crate::policy::gatekeeper::Gatekeeper;

/// One for each VM, handed to its roots.
#[derive(Clone, Default)]
pub struct Vm {
    /// The distinct gate tuples of all configurations (at most 16).
    pub gates: GateRegistry,
    pub gatekeeper: Rc<RefCell<Gatekeeper>>,
    /// Request bytes that all editors hold.
    pub held: Rc<Cell<usize>>,
}

thread_local! {
    static VM: Vm = Vm::default();
}

pub fn vm() -> Vm {
    VM.with(Vm::clone)
}
