//! The result of a decision: the steps, and what is waited for or refused. Each concern adds its part.

use serde::Serialize;

use super::{Action, Precondition, Reason, Step, UnsafeBecause, WaitingFor};
use crate::model::MemberName;

/// What follows from one look. Settled: nothing to do, nothing to wait for, nothing refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize)]
pub struct Decision {
    /// Steps for one machine are done in this order; different machines in parallel.
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
    /// it rests on what the agent may report.
    pub(crate) fn enrols(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|step| matches!(&step.action, Action::Enrol { member: enrolled } if enrolled == member))
    }

    /// Whether it is said already that this member's machine is away because it reboots.
    pub(crate) fn awaits_reboot(&self, member: &MemberName) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting, WaitingFor::Reboot { member: of, .. } if of == member))
    }

    /// Whether nothing at all is asked of this member, because of what was refused before.
    pub(crate) fn bars_orders(&self, member: &MemberName) -> bool {
        self.blocked.iter().any(|b| b.member() == Some(member) && b.bars_orders())
    }

    /// Whether an earlier concern has something to do on this member, or refuses it.
    pub(crate) fn has_business_with(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|s| s.action.member() == Some(member) || s.action.about() == Some(member))
            || self.blocked.iter().any(|b| b.member() == Some(member))
    }
}
