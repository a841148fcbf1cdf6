//! The result of a decision: the steps, and what is waited for or refused. Each concern adds its part.

use serde::Serialize;

use super::{Action, Precondition, Reason, Step, UnsafeBecause, WaitingFor};
use crate::model::MemberName;

/// The result of one decision. Converged: nothing to do, nothing to wait for, nothing refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize)]
pub struct Decision {
    /// Steps for one machine run in this order; different machines in parallel.
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

    /// Nothing is listed twice: the first concern's text is enough.
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

    /// Whether this member's agent is about to be claimed. Every new machine's next steps follow in the same decision, because they do
    /// not depend on the agent's reports.
    pub(crate) fn enrols(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|step| matches!(&step.action, Action::Enrol { member: enrolled } if enrolled == member))
    }

    /// Whether another entry already says that this member's machine is rebooting.
    pub(crate) fn awaits_reboot(&self, member: &MemberName) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting, WaitingFor::Reboot { member: of, .. } if of == member))
    }

    /// Whether an earlier refusal forbids any request to this member.
    pub(crate) fn bars_orders(&self, member: &MemberName) -> bool {
        self.blocked.iter().any(|b| b.member() == Some(member) && b.bars_orders())
    }

    /// Whether an earlier concern has a step for this member, or refuses one.
    pub(crate) fn has_business_with(&self, member: &MemberName) -> bool {
        self.steps.iter().any(|s| s.action.member() == Some(member) || s.action.about() == Some(member))
            || self.blocked.iter().any(|b| b.member() == Some(member))
    }
}
