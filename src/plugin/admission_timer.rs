//! Admission on the policy's timer: a round of the pure code, and its gauges.

use std::rc::Rc;

use super::host::SharedData;
use super::metrics::{self, Metric};
use super::policy_shared::{Shared, count_gate_events};
use crate::policy::admission::rounds::{Fleet, Round};
use crate::policy::admission::{ACTIVE, Admission, LOAD_TOKENS, LOADS, STORE_COST, World};

/// The different admission policies in use, but the one that always admits.
pub fn in_use(shared: &Shared) -> Vec<Rc<Admission>> {
    let mut all: Vec<Rc<Admission>> = Vec::new();
    for policy in shared.policies.policies() {
        let admission = &policy.admission;
        let idle = matches!(admission.as_ref(), Admission::AlwaysAdmit(_));
        if !idle && !all.contains(admission) {
            all.push(Rc::clone(admission));
        }
    }
    all
}

pub fn tick(shared: &Shared, now_ms: u64) {
    let policies = in_use(shared);
    let Ok(mut state) = shared.vm.admission.try_borrow_mut() else {
        return;
    };
    shared.vm.take_in_orphans(&mut state);
    if policies.is_empty() && state.loads.is_empty() {
        return;
    }
    let Ok(mut gatekeeper) = shared.vm.gatekeeper.try_borrow_mut() else {
        return;
    };
    let (queues, members, problems) = gatekeeper.fleet(&SharedData);
    count_gate_events(&problems, None);
    let entries = queues.iter().flat_map(|queue| &queue.entries);
    let entries: Vec<_> = entries
        .map(|(name, entry)| (name.as_str(), entry))
        .collect();
    let fleet = Fleet {
        entries: &entries,
        is_unlisted: &|endpoint| members.is_unlisted(endpoint, now_ms),
    };
    let world = World {
        store: &SharedData,
        now_ms,
    };
    show(&state.round(&policies, &fleet, world));
}

fn show(round: &Round) {
    metrics::add(Metric::LoadEnded("max_time"), i64::from(round.timed_out));
    metrics::add(
        Metric::LoadProblem("lost_worker"),
        i64::from(round.lost_slots),
    );
    if let Some(in_flight) = &round.in_flight {
        metrics::show_all(
            LOADS,
            in_flight
                .iter()
                .map(|(name, now)| (name.as_str(), "", now.loads)),
        );
        metrics::show_all(
            LOAD_TOKENS,
            in_flight
                .iter()
                .map(|(name, now)| (name.as_str(), "", now.tokens)),
        );
    }
    let costs = || round.costs.iter();
    metrics::show_all(
        ACTIVE,
        costs().map(|c| (c.endpoint.as_str(), c.tier, u64::from(c.under_pressure))),
    );
    // A float-to-integer `as` saturates; NaN becomes 0.
    let micros = |cost: Option<f64>| (cost.unwrap_or_default() * 1e6) as u64;
    metrics::show_all(
        STORE_COST,
        costs().map(|c| (c.endpoint.as_str(), c.tier, micros(c.cost))),
    );
}
