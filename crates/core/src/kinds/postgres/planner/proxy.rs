//! HAProxy. The agents start and reload it when a configuration says so; one that does not run is waited for, and said.

use crate::kinds::postgres::HAPROXY;
use crate::model::ServiceState;
use crate::planner::{Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let wanted = view.desired.machines().filter(|(_, wish)| wish.config.haproxy().is_some());
    for (member, _) in wanted {
        let state = view.seen.facts(member).and_then(|facts| facts.services.get(HAPROXY));
        if let Some(ServiceState::BackingOff { restarts, last_exit }) = state {
            decision.wait(WaitingFor::ServiceToStay {
                member: member.clone(),
                service: HAPROXY.to_owned(),
                restarts: *restarts,
                how: last_exit.how.clone(),
                last_words: last_exit.last_words.clone(),
            });
        }
    }
}
