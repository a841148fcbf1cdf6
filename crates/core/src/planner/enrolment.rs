//! Enrolment: an unclaimed agent gets its certificate, once, for one key.

use jiff::SignedDuration;

use super::{Action, Decision, UnsafeBecause, View, WaitingFor, safety};
use crate::model::{AgentSeen, Data, DesiredMember, MemberName, Seen};

/// quorate waits for other agents while a token is valid for at least this long.
const TOGETHER: SignedDuration = SignedDuration::from_mins(30);

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    for (member, wish) in desired.machines() {
        if decision.has_business_with(member) {
            continue;
        }
        match seen.agents.get(member) {
            // While the provider does not answer, the address is unknown; the plan waits for that already.
            None if seen.machines.get().is_none() => {}
            // Nor if there is no machine.
            None if seen.machines.get().is_some_and(|machines| !machines.contains_key(member)) => {}
            None if safety::reboots::is_away(view, member) => {
                let why = String::from("it has not been asked yet");
                decision.wait(WaitingFor::Reboot { member: member.clone(), why, upgrading: None });
            }
            None => wait(decision, member, "it has not been asked yet"),
            Some(Seen::Unreachable { .. }) if decision.awaits_reboot(member) => {}
            Some(Seen::Unreachable { why, .. }) => wait(decision, member, why),
            // It is refused already, by name.
            Some(Seen::At(_, AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_))) => {}
            Some(Seen::At(_, AgentSeen::Unenrolled { public_key })) => {
                unenrolled(view, decision, member, wish, public_key)
            }
            Some(Seen::At(_, AgentSeen::Enrolled(facts))) => {
                if let Err(because) = safety::ledger_is_current(desired, member, facts) {
                    decision.block(because);
                }
            }
        }
    }
}

fn unenrolled(view: &View<'_>, decision: &mut Decision, member: &MemberName, wish: &DesiredMember, key: &str) {
    let View { desired, seen, .. } = *view;
    let bound = wish.enrolment.as_ref().and_then(|e| e.bound_key.as_deref());
    let formed = desired.belongs(member);
    let learns = desired.joined(member).is_some_and(|joined| joined.learns);
    // A cluster has only enrolled agents, so this is a different one, and its machine may hold data. A member that was recreated
    // before it joined has no data and no vote. A renewed machine belongs to the cluster.
    let expected = !formed || learns || wish.renewing == Some(wish.incarnation);
    if bound.is_some_and(|bound| bound != key) || (!expected && bound.is_none()) {
        return decision.block(UnsafeBecause::SecondKey { member: member.clone() });
    }
    let (data, holds) = match wish.renewing {
        Some(_) => (Data::Stays, "its data is kept"),
        None => (Data::Goes, "holds nothing"),
    };
    let destroy = Action::DestroyMachine { member: member.clone(), data };
    let Some(enrolment) = &wish.enrolment else {
        return decision.step(
            destroy,
            format!("its agent was never enrolled and the ledger holds no token for it: it is recreated, and {holds}"),
        );
    };
    if bound.is_none() && enrolment.expires <= seen.now {
        return decision.step(
            destroy,
            format!("its enrolment token expired before it was used: the machine is recreated, and {holds}"),
        );
    }
    let in_time = bound.is_some() || enrolment.expires.duration_since(seen.now) > TOGETHER;
    if desired.is_unformed() && in_time && somebody_is_awaited(view) {
        return;
    }
    decision.step(
        Action::Enrol { member: member.clone() },
        format!("the agent of {member} answers and has no certificate yet"),
    );
}

/// Whether the agent of a running machine does not answer yet. Machines that are created together start together, and the first ones
/// would delay the others; none is useful before all are there.
fn somebody_is_awaited(view: &View<'_>) -> bool {
    let View { desired, seen, .. } = *view;
    desired.members.keys().any(|member| matches!(seen.agents.get(member), Some(Seen::Unreachable { .. })))
}

fn wait(decision: &mut Decision, member: &MemberName, why: &str) {
    decision.wait(WaitingFor::Agent { member: member.clone(), why: why.to_owned() });
}
