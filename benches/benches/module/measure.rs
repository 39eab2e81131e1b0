//! What one request takes of the module: its time, where nothing counts instructions, and its
//! instructions (wasmtime fuel) in another VM.

use std::collections::BTreeMap;
use std::time::Duration;

use selective_kv_bench::figures::{median, spread};
use skv_harness::{Harness, Meter, Spent, Vm};

/// A VM, and what is done with it time and again.
pub struct Subject {
    pub env: Harness,
    pub vm: Vm,
    pub act: Box<dyn FnMut()>,
}

/// Makes the same subject for either meter.
pub type Make<'a> = Box<dyn Fn(Meter) -> Subject + 'a>;

/// Of one act.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    /// Microseconds of module time: the median of the rounds.
    pub time: f64,
    /// The smallest and the largest of them.
    pub spread: (f64, f64),
    pub instructions: f64,
    pub host_calls: BTreeMap<&'static str, usize>,
    /// That the host has copied into the module.
    pub bytes: u64,
}

impl Cost {
    pub fn host_calls(&self) -> usize {
        self.host_calls.values().sum()
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    /// Of module time in one round of one subject, unless one act takes more.
    pub round: Duration,
}

/// What wasmtime and the stopwatch take for a way into the module or out of it. Other hosts take
/// other times, so it is no part of the module's.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ways {
    /// Nanoseconds each.
    pub callback: f64,
    pub host_call: f64,
    pub copy: f64,
}

impl Ways {
    pub fn measure() -> Self {
        const TIMES: u32 = 1_000;
        // A tick that calls the host so often.
        let ticks = |import: &str, call: &str| {
            let module = format!(
                r#"(module {import} (memory (export "memory") 1)
                     (data (i32.const 64) "plugin_root_id")
                     (func (export "proxy_abi_version_0_2_1"))
                     (func (export "malloc") (param i32) (result i32) (i32.const 1024))
                     (func (export "proxy_on_tick") (param i32) (local $left i32)
                       (local.set $left (i32.const {TIMES}))
                       (loop $again
                         {call}
                         (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                         (br_if $again (local.get $left)))))"#
            );
            let vm = Harness::measuring(Meter::Time).vm_of("", module);
            let plugin = vm.plugin("ways", "");
            // The least: whatever comes between is no part of the way.
            let times = (0..200).map(|_| {
                let before = vm.spent();
                plugin.tick();
                (vm.spent() - before).time.as_secs_f64() * 1e9
            });
            times.fold(f64::INFINITY, f64::min)
        };
        let time = r#"(import "env" "proxy_get_current_time_nanoseconds" (func $call (param i32) (result i32)))"#;
        let property = r#"(import "env" "proxy_get_property" (func $call (param i32 i32 i32 i32) (result i32)))"#;
        let give = "(drop (call $call (i32.const 64) (i32.const 14) (i32.const 0) (i32.const 4)))";
        let callback = ticks("", "");
        let of_one = |ticks: f64| (ticks - callback).max(0.0) / f64::from(TIMES);
        let host_call = of_one(ticks(time, "(drop (call $call (i32.const 0)))"));
        let copy = (of_one(ticks(property, give)) - host_call).max(0.0);
        Self {
            callback,
            host_call,
            copy,
        }
    }

    /// Nanoseconds of the module's own.
    fn without(self, spent: Spent) -> f64 {
        let ways = self.callback * f64::from(spent.callbacks)
            + self.host_call * f64::from(spent.host_calls)
            + self.copy * f64::from(spent.copies);
        (spent.time.as_secs_f64() * 1e9 - ways).max(0.0)
    }
}

/// Measures the subjects in turns, so that what slows the machine down slows all of them.
pub fn costs(subjects: &[Make<'_>], effort: Effort, ways: Ways) -> Vec<Cost> {
    let mut timed: Vec<(Subject, u32, Vec<f64>)> = subjects
        .iter()
        .map(|make| {
            let mut subject = make(Meter::Time);
            (subject.act)();
            let before = subject.vm.spent();
            (subject.act)();
            let once = (subject.vm.spent() - before)
                .time
                .max(Duration::from_nanos(1));
            let times = effort.round.as_nanos() / once.as_nanos();
            let times = u32::try_from(times).unwrap_or(u32::MAX).clamp(1, 2_000);
            (subject, times, Vec::new())
        })
        .collect();
    for _ in 0..effort.rounds {
        for (subject, times, found) in &mut timed {
            let before = subject.vm.spent();
            for _ in 0..*times {
                (subject.act)();
            }
            let nanos = ways.without(subject.vm.spent() - before);
            found.push(nanos / f64::from(*times) / 1e3);
            subject.env.forget_calls();
        }
    }
    let counted = subjects.iter().map(|make| {
        let mut subject = make(Meter::Instructions);
        (subject.act)();
        subject.env.forget_calls();
        let (fuel, before) = (subject.vm.fuel_consumed(), subject.vm.spent());
        (subject.act)();
        let mut host_calls = BTreeMap::new();
        for call in subject.env.calls() {
            *host_calls.entry(call.import).or_default() += 1;
        }
        let instructions = (subject.vm.fuel_consumed() - fuel) as f64;
        (
            instructions,
            host_calls,
            (subject.vm.spent() - before).bytes,
        )
    });
    let counted: Vec<_> = counted.collect();
    timed
        .into_iter()
        .zip(counted)
        .map(|((_, _, found), (instructions, host_calls, bytes))| Cost {
            time: median(&found),
            spread: spread(&found),
            instructions,
            host_calls,
            bytes,
        })
        .collect()
}
