//! HAProxy and PgBouncer. Agents start and reload them as the configuration says. The planner waits for one that does not run, and reports
//! it.

use crate::kinds::postgres::{HAPROXY, PGBOUNCER};
use crate::model::ServiceState;
use crate::planner::{Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let wanted = view.desired.machines().flat_map(|(member, wish)| {
        let services = [HAPROXY, PGBOUNCER].into_iter().filter(|name| wish.config.service(name).is_some());
        services.map(move |service| (member, service))
    });
    for (member, service) in wanted {
        let state = view.seen.facts(member).and_then(|facts| facts.services.get(service));
        if let Some(ServiceState::BackingOff { restarts, last_exit }) = state {
            decision.wait(WaitingFor::ServiceToStay {
                member: member.clone(),
                service: service.to_owned(),
                restarts: *restarts,
                how: last_exit.how.clone(),
                last_words: last_exit.last_words.clone(),
            });
        }
    }
}
