//! The planner: a pure function from what is desired and what was seen to the next safe steps.
//!
//! One file per concern; each is handed the same `View`. Rules about safety live in `safety` and nowhere else; `simulate` runs the same function
//! against an imagined world, which is what `plan` shows and what the model check explores.

mod agents;
mod blocked;
pub(crate) mod certificates;
pub(crate) mod config;
mod destroy;
pub(crate) mod enrolment;
pub(crate) mod machines;
mod plan;
mod remarks;
pub mod remember;
mod renewal;
mod repair;
mod revocation;
pub mod safety;
pub mod simulate;
mod step;
mod trust;
mod view;
mod waiting;

pub use blocked::{Change, UnsafeBecause};
pub use certificates::{renewal_window, sans as certificate_sans};
pub use plan::{Plan, plan};
pub use remarks::{Remark, RemarkKind, Surroundings, remarks};
pub use step::{Action, Effect, Precondition, Reason, Step};
pub use view::View;
pub use waiting::{Outstanding, WaitingFor};

use serde::Serialize;

use crate::kinds::etcd::planner::{auth, formation, membership, recovery, restore};
use crate::model::{AgentSeen, Desired, MemberName, Observation, Power, Seen};

/// What follows from one look. Settled: nothing to do, nothing to wait for, nothing refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize)]
pub struct Decision {
    /// Steps for one machine are done in this order; different machines go on beside each other.
    pub steps: Vec<Step>,
    pub waiting: Vec<WaitingFor>,
    pub blocked: Vec<UnsafeBecause>,
}

impl Decision {
    pub fn settled(&self) -> bool {
        self.steps.is_empty() && self.waiting.is_empty() && self.blocked.is_empty()
    }

    pub(crate) fn step(&mut self, action: Action, why: impl Into<String>) {
        self.steps.push(Step { action, why: Reason::new(why), expects: Precondition::Nothing });
    }

    pub(crate) fn step_expecting(&mut self, action: Action, why: impl Into<String>, expects: Precondition) {
        self.steps.push(Step { action, why: Reason::new(why), expects });
    }

    /// Nothing is waited for twice: what the first concern says of it is enough.
    pub(crate) fn wait(&mut self, waiting: WaitingFor) {
        if !self.waiting.iter().any(|known| known.subject() == waiting.subject()) {
            self.waiting.push(waiting);
        }
    }

    pub(crate) fn block(&mut self, because: UnsafeBecause) {
        if !self.blocked.contains(&because) {
            self.blocked.push(because);
        }
    }

    /// Whether this member's agent is about to be claimed. What every new machine needs follows at once, without another look: nothing of
    /// it rests on what the agent may have to tell.
    pub(crate) fn enrols(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|step| matches!(&step.action, Action::Enrol { member: enrolled } if enrolled == member))
    }

    /// Whether an earlier concern has something to do on this member, or refuses it.
    pub(crate) fn has_business_with(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|s| s.action.member() == Some(member) || s.action.about() == Some(member))
            || self.blocked.iter().any(|b| b.member() == Some(member))
    }
}

/// Decides for one cluster. A refused concern does not stop the others.
pub fn decide(desired: &Desired, seen: &Observation) -> Decision {
    let view = &View::new(desired, seen);
    let mut decision = Decision::default();
    if let Some(word) = &desired.destroy {
        destroy::decide(view, word, &mut decision);
        return decision;
    }
    if desired.power == Power::Off {
        machines::switch_off(view, &mut decision);
        return decision;
    }
    refuse_the_untrusted(view, &mut decision);
    // What an order still changes is not in these facts, so nothing that rests on them is decided.
    let under_way = safety::orders_under_way(view);
    if !under_way.is_empty() {
        decision.waiting = under_way;
        return decision;
    }
    if agents::decide(view, &mut decision) {
        return decision;
    }
    // Half of a change that may not be made is worse than none: where the spec contradicts what was settled at formation,
    // the members are kept running as they are.
    let fixed = safety::fixed_at_formation(desired);
    let as_formed = fixed.is_empty();
    fixed.into_iter().for_each(|because| decision.block(because));
    if as_formed && !desired.secrets_missing.is_empty() {
        let kinds = desired.secrets_missing.clone();
        let why = step::missing_secrets(&kinds);
        decision.step(Action::MakeSecrets { kinds }, why);
        return decision;
    }
    if let Some(restore) = desired.etcd.restore.as_ref().filter(|_| as_formed) {
        restore::decide(view, restore, &mut decision);
        return decision;
    }
    if desired.etcd.recovery && recovery::is_to_begin(view) {
        machines::decide(view, &mut decision);
        if decision.steps.is_empty() {
            recovery::begin(view, &mut decision);
        }
        return decision;
    }
    machines::decide(view, &mut decision);
    repair::decide(view, &mut decision);
    enrolment::decide(view, &mut decision);
    if as_formed {
        certificates::decide(view, &mut decision);
        config::decide(view, &mut decision);
    }
    formation::decide(view, &mut decision);
    recovery::go_on(view, &mut decision);
    let growing = membership::grow(view, &mut decision);
    if as_formed && !growing {
        config::restart(view, &mut decision);
        renewal::decide(view, &mut decision);
    }
    membership::shrink(view, &mut decision, growing);
    membership::tell_failures(desired, &mut decision);
    machines::remove_leftover(view, &mut decision);
    if as_formed {
        auth::decide(view, &mut decision);
        trust::decide(view, &mut decision);
    }
    restore::clean_up(view, &mut decision);
    if as_formed {
        revocation::decide(view, &mut decision);
    }
    decision
}

/// Machines that go anyway need no trust.
fn refuse_the_untrusted(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    for (member, agent) in seen.agents.iter().filter(|(member, _)| desired.members.contains_key(*member)) {
        if let Some(AgentSeen::Untrusted(distrust)) = Seen::get(agent) {
            decision.block(UnsafeBecause::Untrusted { member: member.clone(), distrust: *distrust });
        }
    }
}
