//! What the streams of a policy root share with it: the effective policy of a route, and the counts
//! of the queue gates.

use std::rc::Rc;

use super::host::{self, Level};
use super::metrics::{self, Metric};
use super::vm::Vm;
use crate::policy::config::{Policy, PolicySet, RouteError};
use crate::policy::gate::Transition;
use crate::policy::gatekeeper::Problems;
use crate::policy::route::RouteFacts;

/// One for each root.
pub struct Shared {
    pub policies: PolicySet,
    pub vm: Vm,
}

pub fn count_gate_events(problems: &Problems, transitions: impl IntoIterator<Item = Transition>) {
    for (problem, count) in problems.iter() {
        metrics::add(Metric::QueueProblem(problem.as_str()), i64::from(count));
    }
    for transition in transitions {
        metrics::count(Metric::GateTransition(transition.to()));
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
            wanted.then(|| text_property(property)).flatten()
        };
        let route_name = name("xds\0route_name");
        let virtual_host = name("xds\0virtual_host_name");
        let cluster = name("xds\0cluster_name");
        let facts = RouteFacts {
            route_name: route_name.as_deref(),
            virtual_host: virtual_host.as_deref(),
            cluster: cluster.as_deref(),
        };
        // Anything but a string (a struct comes as an untyped pair list) is invalid JSON then.
        let metadata = text_property(ROUTE_CONFIG);
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
const ROUTE_CONFIG: &str = "xds\0route_metadata\0filter_metadata\0selective-kv\0config";

/// Absent, or not to be had in this phase: `None`.
pub fn property(path: &str) -> Option<Vec<u8>> {
    host::property(path).ok().flatten()
}

fn text_property(path: &str) -> Option<String> {
    property(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
