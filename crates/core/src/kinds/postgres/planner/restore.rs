//! Restore: one member restores the backup next to its data and recovers it to the requested point, while the cluster still serves. Only
//! then do all members stop. The restored data becomes the first data of a new bootstrap, which the others clone. The previous data is
//! kept next to it.

use std::collections::BTreeMap;

use super::formation::{known, ready, stamp};
use crate::kinds::postgres::safety::{self, postgres};
use crate::kinds::postgres::{PostgresFacts, RestoreSeen, RestoreState, RestoreWish};
use crate::model::{DataSeen, MemberName, ServiceState};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};

/// Until the bootstrap with the restored data begins. Returns whether there is such a restore.
pub(super) fn decide(view: &View<'_>, decision: &mut Decision) -> bool {
    let wish = view.desired.postgres();
    let Some(restore) = wish.restore.as_ref().filter(|restore| wish.formation.token() != Some(&restore.token)) else {
        return false;
    };
    if restore.target.is_none()
        && let Err(because) = safety::may_go_back(view)
    {
        decision.block(because);
        return true;
    }
    let Some(first) = chosen(view, decision, restore) else { return true };
    match prepared(view, &first, &restore.token) {
        Some(RestoreState::Ready) => {
            let why = format!("the restored data on {first} is ready, and all members restart with it");
            if stop_all(view, decision, &why) == Stopped::All {
                begin(view, decision, first, restore);
            }
        }
        Some(RestoreState::Running { doing }) => {
            decision.wait(WaitingFor::Restore { member: first, doing: doing.clone() });
        }
        Some(RestoreState::Failed { why }) => {
            let has_data = wish.has_data();
            decision.block(UnsafeBecause::RestoreFailed { member: first, why: why.clone(), has_data });
        }
        None => {
            let stamp = stamp(view, &first, &restore.token);
            let why = format!("{} will replace all data; nothing else is touched until it is ready", restore.source);
            let action = match (&restore.target, safety::kept(view, &first)) {
                (Some(target), _) => Action::RestoreBackup { member: first, stamp, target: target.clone() },
                (None, Some(kept)) => Action::TakeBack { member: first, was: kept.stamp.clone(), stamp },
                (None, None) => return true,
            };
            decision.step(action, why);
        }
    }
    true
}

/// The member that restores the backup: the one that has begun; otherwise a replica, which has the least load; otherwise any member that
/// can.
fn chosen(view: &View<'_>, decision: &Decision, restore: &RestoreWish) -> Option<MemberName> {
    let members = || view.desired.members.keys();
    let begun = members().find(|member| prepared(view, member, &restore.token).is_some());
    if restore.target.is_none() {
        let keeps = || members().find(|member| safety::kept(view, member).is_some());
        return begun.or_else(keeps).filter(|member| ready(view, decision, member).is_some()).cloned();
    }
    let able = || members().filter(|member| ready(view, decision, member).is_some());
    let replica = || able().find(|member| view.is_well(member) && !safety::leads(view, member));
    begun.or_else(replica).or_else(|| able().next()).cloned()
}

/// The progress of the data that a member prepares for this bootstrap.
pub(super) fn prepared<'a>(view: &View<'a>, member: &MemberName, wanted: &str) -> Option<&'a RestoreState> {
    let RestoreSeen { token, state } = view.seen.facts(member).and_then(postgres)?.restored.as_ref()?;
    (*token == wanted).then_some(state)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    All,
    NotYet,
}

/// No member may run on the old data when one begins with other data. Replicas stop first, so none takes over meanwhile.
pub(super) fn stop_all(view: &View<'_>, decision: &mut Decision, why: &str) -> Stopped {
    let machines = view.seen.machines.get();
    let exists = |member: &&MemberName| machines.is_none_or(|machines| machines.contains_key(*member));
    let service = |member: &MemberName| view.seen.facts(member).and_then(postgres).map(|found| &found.service);
    let all: Vec<&MemberName> = view.desired.all_joined().filter(exists).collect();
    let unknown: Vec<&MemberName> = all.iter().copied().filter(|member| service(member).is_none()).collect();
    for member in &unknown {
        let why = String::from("whether PostgreSQL runs there must be known before all members stop");
        decision.wait(WaitingFor::Agent { member: (*member).clone(), why });
    }
    let runs = |member: &&MemberName| service(member).is_some_and(|service| *service != ServiceState::Stopped);
    let next = all.into_iter().filter(runs).min_by_key(|member| (safety::leads(view, member), *member));
    match next {
        _ if !unknown.is_empty() => {}
        Some(member) => {
            // Patroni may have promoted it since: then it has commits that no other member has, and stops last.
            let expects = if safety::leads(view, member) { Precondition::Nothing } else { Precondition::Replica };
            decision.step_expecting(Action::StopPatroni { member: member.clone() }, why, expects);
        }
        None => return Stopped::All,
    }
    Stopped::NotYet
}

fn begin(view: &View<'_>, decision: &mut Decision, first: MemberName, restore: &RestoreWish) {
    let Some((facts, _)) = ready(view, decision, &first) else { return };
    let members = BTreeMap::from([(first.clone(), known(view, &first, facts))]);
    let why = format!("the restored data on {first} is ready and no member runs; the others clone it");
    decision.step(Action::RecordInitializing { token: restore.token.clone(), first, members }, why);
}

/// Abandons a bootstrap to which no client has written. If it was to begin with upgraded data, the cluster continues as before.
pub(super) fn abandon(view: &View<'_>, decision: &mut Decision, token: &str, why: String) {
    match view.desired.postgres().upgrade.as_ref().filter(|upgrade| upgrade.token == token) {
        Some(upgrade) => super::upgrade::abandon(decision, upgrade, why),
        None => decision.step(Action::AbandonFormation { token: token.to_owned() }, why),
    }
}

/// In a bootstrap that begins with restored data: puts it in place. Returns whether this is such a bootstrap.
pub(super) fn put(
    view: &View<'_>,
    decision: &mut Decision,
    token: &str,
    first: &MemberName,
    found: &PostgresFacts,
) -> bool {
    let wish = view.desired.postgres();
    if wish.prepared_token() != Some(token) {
        return false;
    }
    let stamp = stamp(view, first, token);
    if found.data == DataSeen::Stamped(stamp.clone()) {
        return false;
    }
    match prepared(view, first, token) {
        Some(RestoreState::Ready) if found.service == ServiceState::Stopped => {
            let was = found.data.clone();
            let why = match (&wish.restore, &wish.upgrade) {
                (None, Some(upgrade)) => format!("all members restart with PostgreSQL {}", upgrade.to),
                (restore, _) => {
                    let source = restore.as_ref().map_or("it", |restore| &restore.source);
                    format!("all members restart with {source}")
                }
            };
            let action = Action::PutRestored { member: first.clone(), was: was.clone(), stamp };
            decision.step_expecting(action, why, Precondition::Data(was));
        }
        _ => {
            let why = format!("{first} has lost the restored data; no client has written to it");
            abandon(view, decision, token, why);
        }
    }
    true
}

/// A member with data that a restore has replaced: it stops, and its data is put aside. Returns whether it was one.
pub(super) fn set_aside(view: &View<'_>, decision: &mut Decision, member: &MemberName, found: &PostgresFacts) -> bool {
    let DataSeen::Stamped(stamp) = &found.data else { return false };
    if stamp.cluster_id != view.desired.cluster_id || !view.desired.postgres().replaced.contains(&stamp.token) {
        return false;
    }
    let why = match view.desired.postgres().previous.as_ref().is_some_and(|previous| previous.token == stamp.token) {
        true => "an upgrade has replaced its data, which is kept; it clones the upgraded data",
        false => "a restore has replaced its data; it clones the restored data",
    };
    match found.service {
        ServiceState::Stopped => {
            let action = Action::SetAside { member: member.clone(), stamp: stamp.clone() };
            decision.step_expecting(action, why, Precondition::Data(found.data.clone()));
        }
        _ => decision.step(Action::StopPatroni { member: member.clone() }, why),
    }
    true
}
