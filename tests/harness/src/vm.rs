//! One VM: an instance of the module with its contexts, as on one Envoy worker.

use crate::context::{Answer, Context, Deferred, Root, Stream};
use crate::exchange::{Exchange, Placement};
use crate::imports;
use crate::metrics::MetricIds;
use crate::module::Meter;
use crate::plugin::Plugin;
use crate::stopwatch::{Spent, Stopwatch};
use crate::world::{LogLevel, LogLine, World};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use wasmtime::{Instance, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder, Val};

/// V8's limit in Envoy.
const MEMORY_LIMIT_BYTES: usize = 1 << 30;

/// Instructions one callback may take before it counts as running away.
const FUEL_PER_CALLBACK: u64 = 4_000_000_000;

thread_local! {
    // Made once: wasmtime compiles a way in for every import.
    static COUNTING: Linker<Host> = linker(Meter::Instructions);
    static TIMED: Linker<Host> = linker(Meter::Time);
}

fn linker(meter: Meter) -> Linker<Host> {
    let mut linker = Linker::new(meter.engine());
    imports::define(&mut linker);
    linker
}

/// The host's side of a VM, as the imports see it.
pub(crate) struct Host {
    pub world: Rc<RefCell<World>>,
    pub vm_id: String,
    pub vm: usize,
    pub vm_configuration: Vec<u8>,
    pub contexts: BTreeMap<u32, Context>,
    pub running: u32,
    /// 0: none was set in this callback.
    pub effective: u32,
    pub callback: &'static str,
    /// A local response was asked for: whatever the callback returns, the stream stops.
    pub stop: bool,
    pub metric_ids: MetricIds,
    pub stopwatch: Stopwatch,
    pub next_token: u32,
    next_context: u32,
    limits: StoreLimits,
}

impl Host {
    pub fn add(&mut self, context: Context) -> u32 {
        let id = self.next_context;
        self.next_context += 1;
        self.contexts.insert(id, context);
        id
    }

    /// The context that host calls speak of.
    pub fn context_id(&self) -> u32 {
        if self.effective == 0 {
            self.running
        } else {
            self.effective
        }
    }

    pub fn stream(&mut self) -> Option<&mut Stream> {
        match self.contexts.get_mut(&self.context_id()) {
            Some(Context::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub fn root_id(&self) -> u32 {
        match self.contexts.get(&self.context_id()) {
            Some(Context::Stream(stream)) => stream.root,
            _ => self.context_id(),
        }
    }

    pub fn root(&mut self) -> Option<&mut Root> {
        match self.contexts.get_mut(&self.root_id()) {
            Some(Context::Root(root)) => Some(root),
            _ => None,
        }
    }
}

/// What became of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    Returned(u32),
    /// The module does not export it.
    Missing,
    /// The VM trapped, now or before.
    Dead,
}

/// Why a plugin did not start. The log says more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// `proxy_on_vm_start` or `proxy_on_configure` returned false.
    Refused(&'static str),
    Trapped(String),
}

struct Running {
    meter: Meter,
    store: Store<Host>,
    instance: Instance,
    fuel: u64,
}

struct Inner {
    index: usize,
    running: RefCell<Running>,
    /// The trap that ended it, with the backtrace in the module.
    trap: RefCell<Option<String>>,
    stopped: RefCell<bool>,
}

/// A VM. Clones are the same VM.
#[derive(Clone)]
pub struct Vm(Rc<Inner>);

impl Vm {
    pub(crate) fn new(
        meter: Meter,
        world: &Rc<RefCell<World>>,
        index: usize,
        vm_id: &str,
        vm_configuration: &[u8],
        module: &Module,
    ) -> Self {
        let mut store = Store::new(
            meter.engine(),
            Host {
                world: world.clone(),
                vm_id: vm_id.to_owned(),
                vm: index,
                vm_configuration: vm_configuration.to_vec(),
                contexts: BTreeMap::new(),
                running: 0,
                effective: 0,
                callback: "_initialize",
                stop: false,
                metric_ids: MetricIds::default(),
                stopwatch: Stopwatch::default(),
                next_token: 1,
                next_context: 1,
                limits: StoreLimitsBuilder::new()
                    .memory_size(MEMORY_LIMIT_BYTES)
                    .build(),
            },
        );
        store.limiter(|host| &mut host.limits);
        refuel(meter, &mut store);
        let linker = match meter {
            Meter::Instructions => &COUNTING,
            Meter::Time => &TIMED,
        };
        let instance = linker
            .with(|linker| linker.instantiate(&mut store, module))
            .expect("a module whose imports the harness models");
        let vm = Self(Rc::new(Inner {
            index,
            running: RefCell::new(Running {
                meter,
                store,
                instance,
                fuel: 0,
            }),
            trap: RefCell::new(None),
            stopped: RefCell::new(false),
        }));
        assert!(
            vm.exports("proxy_abi_version_0_2_1") || vm.exports("proxy_abi_version_0_2_0"),
            "the module says no ABI version that Envoy knows"
        );
        for start in ["_initialize", "_start"] {
            vm.call(start, 0, &[]);
        }
        vm
    }

    fn exports(&self, name: &str) -> bool {
        let mut running = self.0.running.borrow_mut();
        let running = &mut *running;
        running
            .instance
            .get_func(&mut running.store, name)
            .is_some()
    }

    /// Starts a plugin; the one with the same root_id and configuration is the same plugin.
    ///
    /// # Panics
    /// If it does not start: the message has the log.
    pub fn plugin(&self, root_id: &str, configuration: impl AsRef<[u8]>) -> Plugin {
        self.try_plugin(root_id, configuration)
            .unwrap_or_else(|e| panic!("{root_id} did not start: {e:?}, {:#?}", self.log()))
    }

    /// # Errors
    /// The module refused its configuration, or trapped.
    pub fn try_plugin(
        &self,
        root_id: &str,
        configuration: impl AsRef<[u8]>,
    ) -> Result<Plugin, StartError> {
        let configuration = configuration.as_ref();
        let there = self
            .host()
            .contexts
            .iter()
            .find(|(_, context)| match context {
                Context::Root(root) => {
                    root.root_id == root_id && root.configuration == configuration
                }
                Context::Stream(_) => false,
            })
            .map(|(id, _)| *id);
        if let Some(id) = there {
            return Ok(Plugin::new(self.clone(), id));
        }
        let id = self.host_mut().add(Context::Root(Root {
            root_id: root_id.to_owned(),
            plugin_name: root_id.to_owned(),
            configuration: configuration.to_vec(),
            ..Root::default()
        }));
        let vm_size = self.host().vm_configuration.len() as u32;
        let refused = |vm: &Self, step| match vm.trap() {
            Some(trap) => StartError::Trapped(trap),
            None => StartError::Refused(step),
        };
        self.call("proxy_on_context_create", id, &[0]);
        if matches!(
            self.call("proxy_on_vm_start", id, &[vm_size]),
            Called::Returned(0) | Called::Dead
        ) {
            return Err(refused(self, "proxy_on_vm_start"));
        }
        self.with_root(id, |root| root.configuring = true);
        let configured = self.call("proxy_on_configure", id, &[configuration.len() as u32]);
        self.with_root(id, |root| root.configuring = false);
        if matches!(configured, Called::Returned(0) | Called::Dead) {
            return Err(refused(self, "proxy_on_configure"));
        }
        Ok(Plugin::new(self.clone(), id))
    }

    /// Bytes of linear memory; it never shrinks.
    pub fn memory_bytes(&self) -> usize {
        let mut running = self.0.running.borrow_mut();
        let running = &mut *running;
        running
            .instance
            .get_memory(&mut running.store, "memory")
            .map_or(0, |memory: Memory| memory.data_size(&running.store))
    }

    /// Instructions (wasmtime fuel) that the module has executed since the VM's start; 0 under
    /// [`Meter::Time`].
    pub fn fuel_consumed(&self) -> u64 {
        self.0.running.borrow().fuel
    }

    /// What the module has taken since the VM's start.
    pub fn spent(&self) -> Spent {
        self.host().stopwatch.spent
    }

    /// The trap that ended this VM, with the module's backtrace.
    pub fn trap(&self) -> Option<String> {
        self.0.trap.borrow().clone()
    }

    /// A callback that no host should make now, or ever: what the module answers, if it still runs.
    pub fn callback(&self, export: &'static str, context: u32, args: &[u32]) -> Option<u32> {
        match self.call(export, context, args) {
            Called::Returned(result) => Some(result),
            Called::Missing | Called::Dead => None,
        }
    }

    /// The worker is gone without a word: no more ticks.
    pub fn stop(&self) {
        *self.0.stopped.borrow_mut() = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.stopped.borrow() || self.trap().is_some()
    }

    pub(crate) fn index(&self) -> usize {
        self.0.index
    }

    /// The log lines of this VM.
    pub fn log(&self) -> Vec<LogLine> {
        let host = self.host();
        let world = host.world.borrow();
        world
            .log
            .iter()
            .filter(|line| line.vm == self.0.index)
            .cloned()
            .collect()
    }

    pub(crate) fn host(&self) -> Ref<'_, Host> {
        Ref::map(self.0.running.borrow(), |running| running.store.data())
    }

    pub(crate) fn host_mut(&self) -> RefMut<'_, Host> {
        RefMut::map(self.0.running.borrow_mut(), |running| {
            running.store.data_mut()
        })
    }

    pub(crate) fn with_root<R>(&self, id: u32, f: impl FnOnce(&mut Root) -> R) -> Option<R> {
        match self.host_mut().contexts.get_mut(&id) {
            Some(Context::Root(root)) => Some(f(root)),
            _ => None,
        }
    }

    pub(crate) fn with_stream<R>(&self, id: u32, f: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        match self.host_mut().contexts.get_mut(&id) {
            Some(Context::Stream(stream)) => Some(f(stream)),
            _ => None,
        }
    }

    pub(crate) fn open(
        &self,
        root: u32,
        exchange: &Rc<RefCell<Exchange>>,
        placement: Placement,
    ) -> u32 {
        let stream = Stream::new(root, exchange.clone(), placement);
        let id = self.host_mut().add(Context::Stream(stream));
        self.call("proxy_on_context_create", id, &[root]);
        id
    }

    /// Log, unless it was destroyed from inside a callback.
    pub(crate) fn log_stream(&self, id: u32) {
        if self.with_stream(id, |s| s.destroyed) == Some(false) {
            self.call("proxy_on_log", id, &[]);
        }
    }

    pub(crate) fn close(&self, id: u32) {
        if self.with_stream(id, |s| s.destroyed) == Some(false) {
            self.call("proxy_on_done", id, &[]);
            self.call("proxy_on_delete", id, &[]);
        }
        self.host_mut().contexts.remove(&id);
    }

    pub(crate) fn answer(&self, root: u32, token: u32, answer: Option<Answer>) {
        let sizes = answer.as_ref().map_or([0; 3], |a| {
            [
                a.headers.len() as u32,
                a.body.len() as u32,
                a.trailers.len() as u32,
            ]
        });
        self.with_root(root, |r| r.answer = answer);
        self.call(
            "proxy_on_http_call_response",
            root,
            &[token, sizes[0], sizes[1], sizes[2]],
        );
        self.with_root(root, |r| r.answer = None);
    }

    /// Takes what the stream's callbacks asked for, and whether one of them stopped it.
    pub(crate) fn deferred(&self, id: u32) -> Vec<Deferred> {
        self.with_stream(id, |s| std::mem::take(&mut s.deferred))
            .unwrap_or_default()
    }

    /// Calls an export with the context first, except for the start functions.
    pub(crate) fn call(&self, export: &'static str, context: u32, args: &[u32]) -> Called {
        if self.trap().is_some() {
            return Called::Dead;
        }
        let mut running = self.0.running.borrow_mut();
        let Running {
            meter,
            store,
            instance,
            fuel,
        } = &mut *running;
        let Some(function) = instance.get_func(&mut *store, export) else {
            return Called::Missing;
        };
        let params: Vec<Val> = if context == 0 {
            Vec::new()
        } else {
            std::iter::once(context)
                .chain(args.iter().copied())
                .map(|word| Val::I32(word as i32))
                .collect()
        };
        let mut results = vec![Val::I32(0); function.ty(&*store).results().len()];
        let host = store.data_mut();
        host.running = context;
        host.effective = 0;
        host.callback = export;
        host.stop = false;
        refuel(*meter, store);
        store.data_mut().stopwatch.spent.callbacks += 1;
        store.data_mut().stopwatch.start();
        let outcome = function.call(&mut *store, &params, &mut results);
        store.data_mut().stopwatch.stop();
        if *meter == Meter::Instructions {
            *fuel += FUEL_PER_CALLBACK - store.get_fuel().unwrap_or(0);
        }
        let stop = store.data().stop;
        match outcome {
            Ok(()) => {
                let result = match results.first() {
                    Some(Val::I32(word)) => *word as u32,
                    _ => 0,
                };
                // Envoy: a callback that asked for a local response never continues.
                Called::Returned(if stop { result.max(1) } else { result })
            }
            Err(error) => {
                let text = format!("{export}: {error:?}");
                store.data().world.borrow_mut().log.push(LogLine {
                    level: LogLevel::Critical,
                    vm: self.0.index,
                    text: text.clone(),
                });
                *self.0.trap.borrow_mut() = Some(text);
                Called::Dead
            }
        }
    }
}

fn refuel(meter: Meter, store: &mut Store<Host>) {
    if meter == Meter::Instructions {
        store
            .set_fuel(FUEL_PER_CALLBACK)
            .expect("the engine counts fuel");
    }
}
