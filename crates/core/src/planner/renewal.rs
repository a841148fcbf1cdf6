//! Renewal: a member gets a new machine and keeps its data and its membership. The other members see a restart. The ledger records it
//! before the machine is destroyed, so a later run knows why the machine is missing and creates the next one. If the data cannot stay, the
//! member is replaced (`repair`, `membership`).

use super::machines::is_ours;
use super::voters::Voters;
use super::{Action, Decision, UnsafeBecause, View, WaitingFor};
use crate::model::{Data, DesiredMember, MachineSeen, MemberName, Observation, PowerState};

/// Removes the next machine with a recorded renewal; if there is none, records the next renewal.
pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !desired.is_formed() || !decision.steps.is_empty() || !view.may_exchange_machines() {
        return;
    }
    let another = |member: &MemberName, wish: &DesiredMember| {
        let known = machine(view, member).filter(|machine| machine.power != PowerState::Unknown);
        let difference = known?.build.as_ref()?.difference(wish.build.as_ref()?)?;
        Some(format!("{member}'s machine {difference}"))
    };
    let recorded = in_turn(view, |member, wish| {
        machine(view, member).filter(|_| is_recorded(seen, member, wish))?;
        Some(another(member, wish).unwrap_or_else(|| format!("{member} will get a new machine")))
    });
    if let Some((member, why)) = recorded.into_iter().find(|(member, _)| !is_barred(decision, member)) {
        return let_go(view, decision, member, &why);
    }
    if let Some((member, why)) = in_turn(view, another).into_iter().find(|(member, _)| !is_barred(decision, member)) {
        record(view, decision, member, &why);
    }
}

/// Whether its current machine should be removed, and its data is not needed for that.
pub(super) fn is_recorded(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    wish.renewing.is_some_and(|to| to > wish.incarnation) && keeps_data(seen, member, wish)
}

/// Whether the current machine of a member and its next one share their data.
pub(super) fn keeps_data(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let had = seen.machines.get().and_then(|machines| machines.get(member));
    wish.data.is_some() && had.is_none_or(|machine| machine.data == wish.data)
}

fn machine<'a>(view: &View<'a>, member: &MemberName) -> Option<&'a MachineSeen> {
    let View { desired, seen, .. } = *view;
    seen.machines.get()?.get(member).filter(|machine| is_ours(desired, machine) && desired.belongs(member))
}

/// The members for which `tells` has a reason: the unhealthy first, then followers.
fn in_turn<'a>(
    view: &View<'a>,
    tells: impl Fn(&MemberName, &DesiredMember) -> Option<String>,
) -> Vec<(&'a MemberName, String)> {
    let all = view.desired.members.iter().filter_map(|(member, wish)| Some((member, tells(member, wish)?)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(member, _)| (view.is_well(member), view.leads(member)));
    all
}

/// The next machine may have what this one lacks.
fn is_barred(decision: &Decision, member: &MemberName) -> bool {
    let about = |b: &&UnsafeBecause| b.member() == Some(member);
    decision
        .blocked
        .iter()
        .filter(about)
        .any(|b| !matches!(b, UnsafeBecause::WrongBinary { .. } | UnsafeBecause::NotReady { .. }))
}

/// The machine is removed, and its data stays. Its successor is created afterwards (`machines`).
fn let_go(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    if let Err(because) = view.may_renew(member) {
        return refuse(view, decision, member, because);
    }
    let why = view.with_numbers(member, why);
    if view.hand_over(member, &why, decision) {
        return;
    }
    decision.step(Action::DestroyMachine { member: member.clone(), data: Data::Stays }, why);
}

/// Records that this member gets another machine, if the current one could be removed now.
fn record(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    let View { desired, seen, .. } = *view;
    let wish = &desired.members[member];
    let incarnation = wish.incarnation + 1;
    if keeps_data(seen, member, wish) {
        return match view.may_renew(member) {
            Ok(()) => {
                let why = view.with_numbers(member, why);
                decision.step(Action::RecordRenewal { member: member.clone(), incarnation }, why);
            }
            Err(because) => refuse(view, decision, member, because),
        };
    }
    // It is replaced, which takes longer: nothing else may be in progress then, including an earlier replacement.
    let nobody_leaves = seen.machines.get().is_some_and(|all| all.keys().all(|m| desired.wants(m)));
    let quiet = nobody_leaves && decision.waiting.is_empty() && decision.blocked.is_empty();
    let Some(may) = view.may_replace(member).filter(|_| quiet) else { return };
    match may {
        Ok(()) => {
            let why = format!(
                "{why}; {}; its data does not outlive its machine, so the new one copies it from the others",
                view.numbers()
            );
            decision.step(Action::RecordReplacement { member: member.clone(), incarnation }, why);
        }
        Err(because) => decision.block(because),
    }
}

/// A member that is starting needs time, not the operator.
fn refuse(view: &View<'_>, decision: &mut Decision, member: &MemberName, because: UnsafeBecause) {
    match because {
        UnsafeBecause::Quorum { .. } if !decision.waiting.is_empty() => {
            let Voters { all, healthy } = view.voters();
            decision.wait(WaitingFor::Turn { member: member.clone(), voters: all, healthy });
        }
        UnsafeBecause::CommitsWait { .. } if !decision.waiting.is_empty() => {}
        because => decision.block(because),
    }
}
