//! `always_admit`, and `composite`: all parts must admit.

use super::{Admission, AdmissionPolicy, Completion, Job, Refusal, Reset, State, Ticket, World};

/// The default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlwaysAdmit;

impl AdmissionPolicy for AlwaysAdmit {
    fn should_admit(&self, _: &Job<'_>, _: &State, _: World<'_>) -> Result<(), Refusal> {
        Ok(())
    }
}

/// The parts are asked in their order; the first refusal is the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Composite(pub Vec<Admission>);

impl AdmissionPolicy for Composite {
    fn should_admit(&self, job: &Job<'_>, state: &State, world: World<'_>) -> Result<(), Refusal> {
        let mut parts = self.0.iter();
        parts.try_for_each(|part| part.policy().should_admit(job, state, world))
    }

    fn on_admitted(
        &self,
        job: &Job<'_>,
        ticket: &mut Ticket,
        state: &mut State,
        world: World<'_>,
    ) -> Result<(), Refusal> {
        let counted_before = ticket.lease.is_some();
        for part in &self.0 {
            if let Err(refusal) = part.policy().on_admitted(job, ticket, state, world) {
                // What the parts before it have counted is taken back.
                if !counted_before {
                    self.on_completed(&mut Completion::Load(ticket), state, world);
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn on_completed(&self, done: &mut Completion<'_>, state: &mut State, world: World<'_>) {
        for part in &self.0 {
            part.policy().on_completed(done, state, world);
        }
    }

    fn reset(&self, endpoint: &str, why: Reset, state: &mut State, world: World<'_>) {
        for part in &self.0 {
            part.policy().reset(endpoint, why, state, world);
        }
    }
}
