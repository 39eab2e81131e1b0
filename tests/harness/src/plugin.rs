//! A plugin of a VM: a root context that serves streams, ticks and HTTP calls.

use crate::chain::Chain;
use crate::context::Answer;
use crate::exchange::Placement;
use crate::outcome::Outcome;
use crate::request::Request;
use crate::stream::Stream;
use crate::vm::{Called, Vm};
use crate::world::HttpCall;

/// Clones are the same plugin.
#[derive(Clone)]
pub struct Plugin {
    pub(crate) vm: Vm,
    pub(crate) root: u32,
}

impl Plugin {
    pub(crate) fn new(vm: Vm, root: u32) -> Self {
        Self { vm, root }
    }

    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// A chain of this filter alone, before the router.
    pub fn downstream(&self) -> Chain {
        Chain::default().then(self, Placement::Downstream)
    }

    /// A chain of this filter alone, as an upstream filter.
    pub fn upstream(&self) -> Chain {
        Chain::default().then(self, Placement::Upstream)
    }

    /// Opens a stream through this filter alone, before the router: its headers are sent, more
    /// is to come.
    pub fn request(&self, request: Request) -> Stream {
        self.downstream().request(request)
    }

    /// A request without a body.
    pub fn header_only(&self, request: Request) -> Outcome {
        self.downstream().header_only(request)
    }

    /// A whole request in one chunk with its content-length; the upstream answers 200.
    pub fn send(&self, request: Request, body: impl AsRef<[u8]>) -> Outcome {
        self.downstream().send(request, body)
    }

    /// One tick, whatever the period.
    pub fn tick(&self) {
        self.vm.call("proxy_on_tick", self.root, &[]);
    }

    /// 0: none is set.
    pub fn tick_period_ms(&self) -> u32 {
        self.vm.with_root(self.root, |r| r.tick_ms).unwrap_or(0)
    }

    /// The HTTP calls of this plugin that are not answered yet.
    pub fn http_calls(&self) -> Vec<HttpCall> {
        let host = self.vm.host();
        let world = host.world.borrow();
        world
            .http_calls
            .iter()
            .filter(|c| c.vm == self.vm.index() && c.root == self.root)
            .cloned()
            .collect()
    }

    /// Answers an open call.
    ///
    /// # Panics
    /// If no such call is open.
    pub fn answer(&self, token: u32, answer: Answer) {
        self.take(token);
        self.vm.answer(self.root, token, Some(answer));
    }

    /// The call fails (reset, timeout): the callback with nothing to read.
    ///
    /// # Panics
    /// If no such call is open.
    pub fn fail_call(&self, token: u32) {
        self.take(token);
        self.vm.answer(self.root, token, None);
    }

    fn take(&self, token: u32) {
        let host = self.vm.host();
        let mut world = host.world.borrow_mut();
        let before = world.http_calls.len();
        let (vm, root) = (self.vm.index(), self.root);
        world
            .http_calls
            .retain(|c| (c.vm, c.root, c.token) != (vm, root, token));
        assert!(world.http_calls.len() < before, "no call {token} is open");
    }

    /// The plugin is taken out of the configuration in good order: done, then delete. False if
    /// the module asks to wait.
    pub fn shut_down(&self) -> bool {
        let done = self.vm.call("proxy_on_done", self.root, &[]) != Called::Returned(0);
        if done {
            self.vm.with_root(self.root, |r| r.tick_ms = 0);
            self.vm.call("proxy_on_delete", self.root, &[]);
        }
        done
    }
}
