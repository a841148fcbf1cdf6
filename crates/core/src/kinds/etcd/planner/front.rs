//! Fronts. Agents start them as the configuration says. The planner waits for a front that does not run, and reports it.

use crate::kinds::etcd::front::FRONT;
use crate::model::ServiceState;
use crate::planner::{Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    for (member, _) in view.desired.machines().filter(|(_, wish)| wish.config.front().is_some()) {
        let state = view.seen.facts(member).and_then(|facts| facts.services.get(FRONT));
        if let Some(ServiceState::BackingOff { restarts, last_exit }) = state {
            decision.wait(WaitingFor::ServiceToStay {
                member: member.clone(),
                service: FRONT.to_owned(),
                restarts: *restarts,
                how: last_exit.how.clone(),
                last_words: last_exit.last_words.clone(),
            });
        }
    }
}
