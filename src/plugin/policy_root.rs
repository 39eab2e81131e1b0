//! Root context of the policy role: configuration, the effective policy of a route, and the timer
//! that keeps the queue gates up to date between requests.

use std::rc::Rc;

use super::abi::{Root, Stream};
use super::host::{self, Level, SharedData};
use super::metrics::{self, Metric};
use super::policy_http::PolicyHttp;
use super::vm::{Vm, vm};
use crate::policy::config::{Policy, PolicySet, RouteError};
use crate::policy::gate::Transition;
use crate::policy::gatekeeper::Problems;
use crate::policy::route::RouteFacts;

/// The gates' timer: samples come about once a second.
const TICK_MS: u32 = 1_000;

/// What every stream of this root shares.
pub struct Shared {
    pub policies: PolicySet,
    pub vm: Vm,
}

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
        Ok(Self {
            shared: Rc::new(Shared { policies, vm }),
        })
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
    }

    fn new_stream(&self) -> Box<dyn Stream> {
        Box::new(PolicyHttp::new(Rc::clone(&self.shared)))
    }
}

pub fn count_gate_events(problems: &Problems, transitions: impl IntoIterator<Item = Transition>) {
    for (problem, count) in problems.iter() {
        metrics::add(Metric::QueueProblem(problem.as_str()), i64::from(count));
    }
    for transition in transitions {
        metrics::count(Metric::GateTransition(match transition {
            Transition::Closed => "closed",
            Transition::Opened => "open",
        }));
    }
}

impl Shared {
    /// The policy of the stream's route.
    ///
    /// # Errors
    /// The route's configuration is invalid; it is counted, and logged the first time.
    pub fn effective(&self) -> Result<Rc<Policy>, RouteError> {
        let name = |property| {
            let wanted = self.policies.has_routes();
            wanted.then(|| text_property(&["xds", property])).flatten()
        };
        let route_name = name("route_name");
        let virtual_host = name("virtual_host_name");
        let cluster = name("cluster_name");
        let facts = RouteFacts {
            route_name: route_name.as_deref(),
            virtual_host: virtual_host.as_deref(),
            cluster: cluster.as_deref(),
        };
        // Anything but a string (a struct comes as an untyped pair list) is invalid JSON then.
        let metadata = text_property(&ROUTE_CONFIG);
        let policy = self.policies.effective(&facts, metadata.as_deref());
        policy.inspect_err(|error| {
            metrics::count(Metric::InvalidRouteConfig);
            if error.is_first() {
                let route = route_name.as_deref().unwrap_or_default();
                host::log(
                    Level::Error,
                    &format!("selective-kv: route {route:?}: {error}"),
                );
            }
        })
    }
}

/// Where a route carries its own configuration.
const ROUTE_CONFIG: [&str; 5] = [
    "xds",
    "route_metadata",
    "filter_metadata",
    "selective-kv",
    "config",
];

/// Absent, or not to be had in this phase: `None`.
pub fn property(path: &[&str]) -> Option<Vec<u8>> {
    host::property(path).ok().flatten()
}

fn text_property(path: &[&str]) -> Option<String> {
    property(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
