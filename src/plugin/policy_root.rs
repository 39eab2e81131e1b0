//! Root context of the policy role: configuration, the effective policy of a route, and the timer
//! that keeps the queue gates up to date between requests.

use std::cell::RefCell;
use std::rc::Rc;

use super::admission_timer;
use super::context::{Root, SharedStream};
use super::host::{self, SharedData};
use super::metrics::{self, Metric};
use super::policy_http::PolicyHttp;
use super::policy_shared::{Shared, count_gate_events};
use super::vm::vm;
use crate::policy::admission::World;
use crate::policy::config::PolicySet;

/// The gates' timer: samples come about once a second.
const TICK_MS: u32 = 1_000;

pub struct PolicyRoot {
    shared: Rc<Shared>,
}

impl PolicyRoot {
    /// An error refuses the configuration; it is the one clear line of the log.
    pub fn new(configuration: &[u8]) -> Result<Self, String> {
        let vm = vm();
        let policies = PolicySet::parse_in(configuration, &vm.gates).map_err(|e| e.to_string())?;
        if host::set_tick_period_ms(TICK_MS).is_err() {
            // Requests still consume every sample, only idle spells do not.
            metrics::count(Metric::HostFailure("set_tick_period"));
        }
        let shared = Rc::new(Shared { policies, vm });
        if let Ok(mut state) = shared.vm.admission.try_borrow_mut() {
            let world = World {
                store: &SharedData,
                now_ms: 0,
            };
            state.policies_changed(&admission_timer::in_use(&shared), world);
        }
        Ok(Self { shared })
    }
}

impl Root for PolicyRoot {
    fn tick(&mut self) {
        let shared = &self.shared;
        let Ok(now_ms) = host::now_ms() else {
            metrics::count(Metric::HostFailure("get_current_time"));
            return;
        };
        shared.policies.tick(now_ms);
        admission_timer::tick(shared, now_ms);
        let gates = shared.policies.gates();
        if gates.is_empty() {
            return;
        }
        let Ok(mut gatekeeper) = shared.vm.gatekeeper.try_borrow_mut() else {
            return;
        };
        let report = gatekeeper.sweep(&SharedData, &gates, now_ms);
        count_gate_events(&report.problems, report.transitions.iter().map(|(_, t)| *t));
        for reading in &report.readings {
            metrics::set_endpoint_gauges(&reading.endpoint, reading.ewma, reading.closed);
        }
        for endpoint in &report.dropped {
            metrics::clear_endpoint_gauges(endpoint);
        }
    }

    fn new_stream(&self, _id: u32) -> SharedStream {
        let stream = PolicyHttp::new(Rc::clone(&self.shared));
        Rc::new(RefCell::new(stream))
    }
}
