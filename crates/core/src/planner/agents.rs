//! Agents: upgrades every machine's agent to the controller's version of quorate, one machine at a time. The machine's services keep
//! running.
//!
//! This comes first, because everything else uses the controller's protocol.

use super::{Action, Decision, UnsafeBecause, View, WaitingFor, safety};
use crate::model::{Desired, MemberName, ProgramSeen};

/// Returns whether an agent is about to be upgraded: then nothing else is done until it is back.
pub(super) fn decide(view: &View<'_>, decision: &mut Decision) -> bool {
    let desired = view.desired;
    let ours = &desired.program;
    let mut older = Vec::new();
    for (member, program) in answering(view) {
        match refusal(desired, member, program) {
            Some(because) => decision.block(because),
            None if program.runs.is_older_than(ours) && program.runs.takes_programs() => older.push((member, program)),
            None => {}
        }
    }
    let Some((member, program)) = older.first() else { return false };
    if let Some((away, why)) = safety::another_agent_is_away(view, member) {
        decision.wait(WaitingFor::Agent { member: away.clone(), why: why.to_owned() });
        return false;
    }
    let (from, to) = (program.runs.clone(), ours.clone());
    let runs = desired.program_name();
    let why = match older.len() {
        1 => format!("its agent runs an older quorate than this controller; {runs} keeps running"),
        many => {
            format!("{many} agents run an older quorate than this controller: one at a time, and {runs} keeps running")
        }
    };
    decision.step(Action::UpgradeAgent { member: (*member).clone(), from, to }, why);
    true
}

/// Agents of this cluster with a known program. A machine that will be removed keeps its program, unless its reports could not
/// be understood at all.
fn answering<'a>(view: &View<'a>) -> impl Iterator<Item = (&'a MemberName, &'a ProgramSeen)> {
    let View { desired, seen, .. } = *view;
    let programs = seen.agents.keys().filter_map(|member| Some((member, seen.program(member)?)));
    programs.filter(|(member, program)| {
        let leaves = || desired.belongs(member) && !desired.program.understands(&program.runs);
        let is_held = safety::held(view).is_some() && desired.is_proxy(member);
        (desired.wants(member) || leaves()) && !is_held
    })
}

/// An agent that still reports an old version after an upgrade must not block the cluster: each is tried once per run.
fn refusal(desired: &Desired, member: &MemberName, program: &ProgramSeen) -> Option<UnsafeBecause> {
    let ours = &desired.program;
    let tried = desired.not_upgraded.get(member).filter(|_| program.runs.is_older_than(ours)).cloned();
    let (member, runs) = (member.clone(), program.runs.clone());
    if runs.protocol > ours.protocol {
        return Some(UnsafeBecause::NewerAgent { member, runs, ours: ours.clone() });
    }
    let undone = program.failed.as_ref().filter(|failed| failed.to == *ours).map(|failed| failed.why.clone());
    Some(UnsafeBecause::UpgradeFailed { member, runs, to: ours.clone(), why: undone.or(tried)? })
}
