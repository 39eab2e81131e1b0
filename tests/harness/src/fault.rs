//! Faults: a host call that fails with a chosen status, or calls back into the module.

/// What happens at which host call. Calls are counted from the moment the fault is injected, over
/// all VMs, the first being 1.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) at: At,
    pub(crate) effect: Effect,
}

#[derive(Clone, Debug)]
pub(crate) enum At {
    /// The k-th call of any import.
    Any(u64),
    /// Calls of one import, from the first to the last occurrence named.
    Import(&'static str, u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The host does nothing, writes no result and returns this status.
    Status(u32),
    /// The host destroys the running stream first (log, done, delete), inside the callback, then
    /// does what was asked. Envoy has done so with the local reply of an upstream filter.
    Destroy,
    /// The host first has every plugin of the VM serve a request, inside the callback.
    Nest,
}

/// A fault that has no effect yet.
#[derive(Clone, Debug)]
pub struct FaultAt(At);

impl Fault {
    /// The `k`-th host call of any kind.
    pub fn call(k: u64) -> FaultAt {
        FaultAt(At::Any(k))
    }

    /// The first call of that import, for example `proxy_set_buffer_bytes`.
    pub fn on(import: &'static str) -> FaultAt {
        FaultAt(At::Import(import, 1, 1))
    }

    /// Every call of that import.
    pub fn always(import: &'static str) -> FaultAt {
        FaultAt(At::Import(import, 1, u64::MAX))
    }
}

impl FaultAt {
    /// The `n`-th occurrence instead of the first.
    pub fn nth(self, n: u64) -> Self {
        self.between(n, n)
    }

    /// The `n`-th occurrence and every later one.
    pub fn from(self, n: u64) -> Self {
        self.between(n, u64::MAX)
    }

    fn between(self, first: u64, last: u64) -> Self {
        match self.0 {
            At::Import(import, ..) => Self(At::Import(import, first, last)),
            At::Any(_) => panic!("occurrences are counted for one import: Fault::on(..)"),
        }
    }

    pub fn status(self, status: u32) -> Fault {
        Fault {
            at: self.0,
            effect: Effect::Status(status),
        }
    }

    /// The running stream is destroyed inside its callback.
    pub fn destroy(self) -> Fault {
        Fault {
            at: self.0,
            effect: Effect::Destroy,
        }
    }

    /// Another request is served inside the callback.
    pub fn nest(self) -> Fault {
        Fault {
            at: self.0,
            effect: Effect::Nest,
        }
    }
}

/// An injected fault with its counts.
#[derive(Debug)]
pub(crate) struct Armed {
    fault: Fault,
    calls: u64,
    occurrences: u64,
    pub fired: u64,
}

impl Armed {
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            calls: 0,
            occurrences: 0,
            fired: 0,
        }
    }

    /// Counts one call; the effect if this is the one.
    pub fn meet(&mut self, import: &str) -> Option<Effect> {
        self.calls += 1;
        let hit = match self.fault.at {
            At::Any(k) => self.calls == k,
            At::Import(name, first, last) => {
                if name != import {
                    return None;
                }
                self.occurrences += 1;
                (first..=last).contains(&self.occurrences)
            }
        };
        if hit {
            self.fired += 1;
        }
        hit.then_some(self.fault.effect)
    }
}
