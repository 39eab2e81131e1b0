//! The process: VMs, and everything a test sets or looks at that is not one stream's.

use crate::context::{Answer, Context};
use crate::fault::{Armed, Fault};
use crate::metrics::Metric;
use crate::module::{self, Meter};
use crate::status;
use crate::vm::Vm;
use crate::world::{CallRecord, HttpCall, LogLevel, LogLine, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// 2026-01-01T00:00:00Z, when every run begins.
const START_MS: u64 = 1_767_225_600_000;

struct Inner {
    meter: Meter,
    world: Rc<RefCell<World>>,
    vms: RefCell<Vec<Vm>>,
    traps_allowed: Cell<bool>,
}

/// One Envoy process. Clones are the same process.
#[derive(Clone)]
pub struct Harness(Rc<Inner>);

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

impl Harness {
    /// Counts instructions.
    pub fn new() -> Self {
        Self::measuring(Meter::Instructions)
    }

    pub fn measuring(meter: Meter) -> Self {
        let world = World {
            now_ns: START_MS * 1_000_000,
            ..World::default()
        };
        Self(Rc::new(Inner {
            meter,
            world: Rc::new(RefCell::new(world)),
            vms: RefCell::default(),
            traps_allowed: Cell::new(false),
        }))
    }

    /// A VM of the product: env `SELECTIVE_KV_WASM`, else `dist/selective_kv.wasm`.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn vm(&self, vm_id: &str) -> Vm {
        self.add(vm_id, &module::product(self.0.meter))
    }

    /// A VM of the module that the file named by `variable` holds, else the one at `default` in
    /// the workspace.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn vm_from_file(&self, vm_id: &str, variable: &str, default: &str) -> Vm {
        self.add(vm_id, &module::from_file(self.0.meter, variable, default))
    }

    /// A VM of that module: wasm, or WAT text.
    ///
    /// # Panics
    /// If it is no module, or imports what the harness does not model.
    pub fn vm_of(&self, vm_id: &str, wasm: impl AsRef<[u8]>) -> Vm {
        self.add(vm_id, &module::compile(self.0.meter, wasm.as_ref()))
    }

    fn add(&self, vm_id: &str, module: &wasmtime::Module) -> Vm {
        let mut vms = self.0.vms.borrow_mut();
        let vm = Vm::new(self.0.meter, &self.0.world, vms.len(), vm_id, b"", module);
        vms.push(vm.clone());
        vm
    }

    /// Unix time in ms.
    pub fn now_ms(&self) -> u64 {
        self.0.world.borrow().now_ms()
    }

    /// Sets the wall clock; it may step back. No tick fires.
    pub fn set_ms(&self, now_ms: u64) {
        self.0.world.borrow_mut().now_ns = now_ms * 1_000_000;
    }

    /// Moves the wall clock on. No tick fires.
    pub fn advance_ms(&self, ms: u64) {
        self.0.world.borrow_mut().now_ns += ms * 1_000_000;
    }

    /// Lets time pass: every tick that falls due fires at its time, calls are answered by the
    /// responder at once, those past their timeout fail.
    pub fn run_ms(&self, ms: u64) {
        let end = self.now_ms() + ms;
        loop {
            self.serve_calls();
            let Some((due, vm, root)) = self.next_tick().filter(|(due, ..)| *due <= end) else {
                break;
            };
            if due > self.now_ms() {
                self.set_ms(due);
                self.serve_calls();
            }
            vm.with_root(root, |r| r.next_tick_ms = due + u64::from(r.tick_ms.max(1)));
            vm.call("proxy_on_tick", root, &[]);
        }
        self.set_ms(end);
        self.serve_calls();
    }

    fn next_tick(&self) -> Option<(u64, Vm, u32)> {
        let vms = self.0.vms.borrow();
        let mut next: Option<(u64, Vm, u32)> = None;
        for vm in vms.iter().filter(|vm| !vm.is_stopped()) {
            for (id, context) in &vm.host().contexts {
                if let Context::Root(root) = context
                    && root.tick_ms > 0
                    && next
                        .as_ref()
                        .is_none_or(|(due, ..)| root.next_tick_ms < *due)
                {
                    next = Some((root.next_tick_ms, vm.clone(), *id));
                }
            }
        }
        next
    }

    /// Answers HTTP calls from now on; `None` leaves a call open until its timeout.
    pub fn respond(&self, responder: impl FnMut(&HttpCall) -> Option<Answer> + 'static) {
        self.0.world.borrow_mut().responder = Some(Box::new(responder));
    }

    /// Asks the responder for every open call once, and fails those past their timeout.
    pub fn serve_calls(&self) {
        let mut responder = self.0.world.borrow_mut().responder.take();
        let open = self.0.world.borrow().http_calls.clone();
        let now = self.now_ms();
        for call in open {
            let answer = responder.as_mut().and_then(|r| r(&call));
            let late = now >= call.sent_ms + u64::from(call.timeout_ms);
            if answer.is_none() && !late {
                continue;
            }
            self.0
                .world
                .borrow_mut()
                .http_calls
                .retain(|c| (c.vm, c.token) != (call.vm, call.token));
            let vm = self.0.vms.borrow()[call.vm].clone();
            if !vm.is_stopped() {
                vm.answer(call.root, call.token, answer);
            }
        }
        let mut world = self.0.world.borrow_mut();
        if world.responder.is_none() {
            world.responder = responder;
        }
    }

    /// Every HTTP call that is open, of all VMs.
    pub fn http_calls(&self) -> Vec<HttpCall> {
        self.0.world.borrow().http_calls.clone()
    }

    /// The clusters that exist; before the first call of this, every name does.
    pub fn add_cluster(&self, name: &str) {
        self.0.world.borrow_mut().clusters.insert(name.to_owned());
    }

    /// A value of shared data with its cas.
    pub fn shared(&self, vm_id: &str, key: &str) -> Option<(Vec<u8>, u32)> {
        let world = self.0.world.borrow();
        world.shared.get(vm_id, key.as_bytes()).cloned()
    }

    /// Writes shared data as another writer would, unconditionally.
    pub fn set_shared(&self, vm_id: &str, key: &str, value: impl AsRef<[u8]>) {
        let mut world = self.0.world.borrow_mut();
        let status = world.shared.set(vm_id, key.as_bytes(), value.as_ref(), 0);
        assert_eq!(status, status::OK);
    }

    pub fn shared_keys(&self, vm_id: &str) -> Vec<String> {
        self.0.world.borrow().shared.keys(vm_id)
    }

    /// The value of a counter or gauge by its raw name (without `wasmcustom.`); 0 if there is
    /// none.
    pub fn metric(&self, name: &str) -> u64 {
        let world = self.0.world.borrow();
        world.metrics.0.get(name).map_or(0, |m| m.value)
    }

    /// The metric `name` with these labels, in the form Istio's `extraStatTags` reads:
    /// `name.tag=.=value;.;`.
    pub fn labelled(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let labels: String = labels
            .iter()
            .map(|(tag, value)| format!("{tag}=.={value};.;"))
            .collect();
        self.metric(&format!("{name}.{labels}"))
    }

    /// The sum over all metrics whose name begins so.
    pub fn sum(&self, prefix: &str) -> u64 {
        let world = self.0.world.borrow();
        world
            .metrics
            .0
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, m)| m.value)
            .sum()
    }

    /// Every metric by its raw name.
    pub fn metrics(&self) -> BTreeMap<String, Metric> {
        self.0.world.borrow().metrics.0.clone()
    }

    pub fn log(&self) -> Vec<LogLine> {
        self.0.world.borrow().log.clone()
    }

    /// The log lines of that level and above.
    pub fn log_from(&self, level: LogLevel) -> Vec<LogLine> {
        let mut lines = self.log();
        lines.retain(|line| line.level >= level);
        lines
    }

    /// Injects a fault; it counts calls from here on.
    pub fn inject(&self, fault: Fault) {
        self.0.world.borrow_mut().faults.push(Armed::new(fault));
    }

    /// How often injected faults have hit.
    pub fn faults_fired(&self) -> u64 {
        let world = self.0.world.borrow();
        world.faults.iter().map(|fault| fault.fired).sum()
    }

    pub fn clear_faults(&self) {
        self.0.world.borrow_mut().faults.clear();
    }

    /// Every host call so far, in order.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.0.world.borrow().calls.clone()
    }

    pub fn call_count(&self) -> u64 {
        self.0.world.borrow().calls.len() as u64
    }

    /// The record of host calls begins anew.
    pub fn forget_calls(&self) {
        self.0.world.borrow_mut().calls.clear();
    }

    /// A trap is part of this test.
    pub fn allow_traps(&self) {
        self.0.traps_allowed.set(true);
    }

    /// The traps so far, with backtraces.
    pub fn traps(&self) -> Vec<String> {
        let vms = self.0.vms.borrow();
        vms.iter().filter_map(Vm::trap).collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.traps_allowed.get() || std::thread::panicking() {
            return;
        }
        for vm in self.vms.borrow().iter() {
            if let Some(trap) = vm.trap() {
                panic!("the module trapped: {trap}");
            }
        }
    }
}
