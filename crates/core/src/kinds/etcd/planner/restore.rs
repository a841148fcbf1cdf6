//! Restore: replaces the data of all members by one snapshot, after confirmation.
//!
//! First every wanted member gets a machine and the snapshot. Meanwhile the controller verifies the snapshot in a temporary etcd, unless
//! no member has data to lose. When both have succeeded, the restore is recorded, and every etcd on other data is stopped. When none of
//! them runs, each member's data is created from the snapshot. When all members have theirs, the first one starts. So members never run
//! on old and new data at the same time, and existing data is not touched until every member has the verified snapshot.

use std::collections::BTreeMap;

use super::formation::{broken, forming_member, start_members};
use super::version;
use crate::kinds::etcd::safety::{self, DataVerdict};
use crate::kinds::etcd::versions::Path;
use crate::kinds::etcd::{Formation, FormingMember, Restore};
use crate::model::{AgentSeen, DataSeen, Desired, DesiredMember, Facts, MemberName, Observation, Seen, Stamp};
use crate::planner::{
    Action, Decision, Precondition, Step, UnsafeBecause, View, certificates, config, enrolment, machines, repair,
};

/// The formation that a restore has begun.
struct Begun<'a> {
    token: &'a str,
    members: &'a BTreeMap<MemberName, FormingMember>,
    bump_revision: u64,
}

pub(crate) fn decide(view: &View<'_>, restore: &Restore, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let begun = begun(desired, restore);
    if let Some(begun) = &begun
        && is_served(seen, decision, begun)
    {
        return;
    }
    machines::decide(view, decision);
    repair::give_up_the_lost(view, decision);
    enrolment::decide(view, decision);
    certificates::decide(view, decision);
    let Some(begun) = begun else {
        return prepare(view, restore, decision, "the restore was confirmed");
    };
    match unsound(view, restore, &begun) {
        Some(why) => prepare(view, restore, decision, &why),
        None => go_on(view, restore, decision, &begun),
    }
}

/// A restore of another snapshot is not this one.
fn begun<'a>(desired: &'a Desired, restore: &Restore) -> Option<Begun<'a>> {
    match &desired.etcd.formation {
        Formation::Restoring { token, members, sha256, bump_revision, .. } if *sha256 == restore.sha256 => {
            Some(Begun { token, members, bump_revision: *bump_revision })
        }
        _ => None,
    }
}

/// Clients may write as soon as a quorum runs, so this is recorded before anything else is examined. Missing members
/// are started or replaced as in any cluster.
fn is_served(seen: &Observation, decision: &mut Decision, begun: &Begun<'_>) -> bool {
    let of_this = |facts: &&Facts| matches!(&facts.etcd.data, DataSeen::Stamped(s) if s.token == begun.token);
    let statuses = begun.members.keys().filter_map(|m| seen.facts(m).filter(of_this)?.etcd.status.as_ref());
    let healthy: Vec<u64> = statuses.filter(|s| s.healthy && !s.is_learner).map(|s| s.cluster_id).collect();
    let all = begun.members.len();
    let Some(id) = healthy.first().filter(|id| healthy.iter().all(|other| other == *id)) else { return false };
    if healthy.len() < safety::quorum(all) {
        return false;
    }
    let why = format!("{} of {all} members serve the restored data; clients may write from now on", healthy.len());
    decision.step(Action::RecordFormed { etcd_cluster_id: *id }, why);
    true
}

/// Why a restore that has begun cannot be completed as it began.
fn unsound(view: &View<'_>, restore: &Restore, begun: &Begun<'_>) -> Option<String> {
    let View { desired, seen, .. } = *view;
    if !safety::restore::can_count_on(restore.revision, begun.bump_revision) {
        return Some(format!("etcd cannot add {} to revision {}", begun.bump_revision, restore.revision));
    }
    if !begun.members.keys().eq(desired.members.keys()) {
        return Some(String::from("the members have changed since the restore began"));
    }
    let machines = seen.machines.get()?;
    let is_fresh = |m: &MemberName| {
        matches!(seen.agents.get(m).and_then(Seen::get), Some(AgentSeen::Unenrolled { .. }))
            || !machines.contains_key(m)
    };
    if let Some(gone) = begun.members.keys().find(|m| is_fresh(m)) {
        return Some(format!("the machine of {gone} is missing"));
    }
    safety::restore::lost_after_a_start(view, begun.token, begun.members.keys())
        .map(|member| format!("{member} does not hold the restored data, and others have started on theirs"))
        .or_else(|| broken(view, begun.token, begun.members))
}

/// Sends the snapshot to every wanted member, and verifies it meanwhile. Then the restore is recorded.
fn prepare(view: &View<'_>, restore: &Restore, decision: &mut Decision, why: &str) {
    let View { desired, seen, .. } = *view;
    // If only a restore leads from one version to the other, programs change when nothing runs on the old data any more.
    if matches!(version::path(view), Ok(Path::Same | Path::Patch | Path::Up)) {
        config::decide(view, decision);
    }
    let mut members = BTreeMap::new();
    for member in desired.members.keys().filter(|m| !decision.has_business_with(m)).cloned().collect::<Vec<_>>() {
        let Some(facts) = seen.facts(&member) else { continue };
        if let Some(found) = foreign(view, &member, facts) {
            decision.block(UnsafeBecause::ForeignData { member, found });
        } else if !safety::restore::has_snapshot(restore, facts) {
            stage(restore, decision, &member);
        } else {
            members.extend(forming_member(seen, &member, facts));
        }
    }
    let is_staging = |step: &Step| matches!(step.action, Action::StageSnapshot { .. });
    let staging = decision.steps.iter().filter(|step| is_staging(step)).count();
    let undisturbed = decision.waiting.is_empty() && decision.blocked.is_empty() && staging == decision.steps.len();
    if !undisturbed || staging + members.len() != desired.members.len() {
        return;
    }
    let bump_revision = safety::restore::bump_of(restore, view);
    if !safety::restore::is_verified(restore, bump_revision) && !safety::restore::endangers_nothing(view) {
        return verify(view, restore, decision, bump_revision);
    }
    if staging > 0 {
        return;
    }
    let was = match &desired.etcd.formation {
        Formation::Restoring { was, .. } => was.clone(),
        other => other.token().map(str::to_owned),
    };
    let all = match members.len() {
        1 => String::from("the only member has"),
        all => format!("all {all} members have"),
    };
    let from = format!("{}, revision {}", restore.source, restore.revision);
    let ready = match safety::restore::is_verified(restore, bump_revision) {
        true => format!("the snapshot is verified, and {all} it ({from}); every etcd on other data is stopped now"),
        false => format!("{all} the snapshot ({from}), and no data exists that could be lost"),
    };
    let why = format!("{why}, {ready}; revisions continue {bump_revision} above the snapshot's");
    let (token, sha256) = (desired.etcd.next_token.clone(), restore.sha256.clone());
    decision.step(Action::RecordRestoring { was, token, members, sha256, bump_revision }, why);
}

fn stage(restore: &Restore, decision: &mut Decision, member: &MemberName) {
    let Restore { sha256, bytes, source, at_hand, .. } = restore;
    if !at_hand {
        let (member, source) = (member.clone(), source.clone());
        return decision.block(UnsafeBecause::SnapshotGone { member, source });
    }
    let action = Action::StageSnapshot { member: member.clone(), sha256: sha256.clone(), bytes: *bytes };
    decision.step(
        action,
        format!("{member} will be restored from {source}; existing data is kept until every member holds the snapshot"),
    );
}

/// Takes as long as sending the snapshot does, so both are done at the same time.
fn verify(view: &View<'_>, restore: &Restore, decision: &mut Decision, bump_revision: u64) {
    let Restore { sha256, source, at_hand, .. } = restore;
    let Some(member) = view.desired.members.keys().next().filter(|_| !at_hand) else {
        let why = format!(
            "its revision is raised by {bump_revision}, as the members will do it; existing data is kept until this has succeeded"
        );
        return decision.step(Action::VerifySnapshot { sha256: sha256.clone(), bump_revision }, why);
    };
    decision.block(UnsafeBecause::SnapshotGone { member: member.clone(), source: source.clone() });
}

/// The restore is recorded: stops the old members, creates the new data, and starts it.
fn go_on(view: &View<'_>, restore: &Restore, decision: &mut Decision, begun: &Begun<'_>) {
    let View { desired, seen, .. } = *view;
    if stop_what_was(view, decision, begun.token) {
        return;
    }
    config::decide(view, decision);
    let mut ready = 0;
    for (member, wish) in &desired.members {
        if decision.has_business_with(member) {
            continue;
        }
        let Some(facts) = seen.facts(member) else { continue };
        match safety::judge_data(desired, member, Some(begun.token), seen.now, facts) {
            DataVerdict::MayGoOn => ready += 1,
            DataVerdict::Foreign(found) => {
                decision.block(UnsafeBecause::ForeignData { member: member.clone(), found });
            }
            _ if !safety::restore::has_snapshot(restore, facts) => stage(restore, decision, member),
            _ => make_data(desired, restore, decision, begun, member, wish, facts),
        }
    }
    if ready == desired.members.len() && decision.steps.is_empty() && decision.blocked.is_empty() {
        start_members(view, decision, begun.token);
    }
}

/// Stops every etcd of this cluster on other data, including members that the spec no longer wants. If one of their machines
/// does not answer, it is switched off. Returns whether any of that is left to do.
fn stop_what_was(view: &View<'_>, decision: &mut Decision, token: &str) -> bool {
    let View { desired, seen, .. } = *view;
    let ours = seen.machines.get().into_iter().flatten().filter(|(_, machine)| machines::is_ours(desired, machine));
    let mut stopped = false;
    for (member, _) in ours.filter(|(_, machine)| machine.may_run()) {
        let wanted = desired.members.contains_key(member);
        match seen.agents.get(member).and_then(Seen::get) {
            Some(AgentSeen::Enrolled(facts)) => {
                if safety::restore::runs_on_other_data(desired, member, token, seen, facts) {
                    stopped = true;
                    // If it is refused, nothing continues either.
                    if !decision.has_business_with(member) {
                        let why = format!(
                            "{member} still runs the old data; all members must be stopped before the restored data starts"
                        );
                        decision.step(Action::StopEtcd { member: member.clone() }, why);
                    }
                }
            }
            // It never ran anything.
            Some(AgentSeen::Unenrolled { .. }) => {}
            // Nothing starts before every member is known to hold the new data.
            Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None if wanted => {}
            Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => {
                let why =
                    format!("{member} is no longer wanted, and it may still run the old data while it does not answer");
                decision.step(Action::StopMachine { member: member.clone() }, why);
                stopped = true;
            }
        }
    }
    stopped
}

fn make_data(
    desired: &Desired,
    restore: &Restore,
    decision: &mut Decision,
    begun: &Begun<'_>,
    member: &MemberName,
    wish: &DesiredMember,
    facts: &Facts,
) {
    let Some(known) = begun.members.get(member) else { return };
    let stamp = Stamp {
        cluster_id: desired.cluster_id.clone(),
        token: begun.token.to_owned(),
        member: member.clone(),
        incarnation: wish.incarnation,
    };
    let action = Action::RestoreData {
        member: member.clone(),
        was: facts.etcd.data.clone(),
        stamp,
        initial_cluster: begun.members.iter().map(|(m, known)| (m.clone(), known.peer_url.clone())).collect(),
        peer_url: known.peer_url.clone(),
        sha256: restore.sha256.clone(),
        bump_revision: begun.bump_revision,
    };
    let why = match &facts.etcd.data {
        DataSeen::Empty => "no etcd runs the old data any more",
        _ => "no etcd runs the old data any more; the existing data is kept next to it",
    };
    decision.step_expecting(action, why, Precondition::Data(facts.etcd.data.clone()));
}

/// A snapshot on a machine contains all data, unencrypted. It is removed when nothing else is left to do: after a restore, or after
/// one that was abandoned before it was recorded. Nothing depends on it by then, so an unreachable member keeps it until it returns.
pub(crate) fn clean_up(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !decision.steps.is_empty() || !desired.etcd.formation.is_formed() || desired.etcd.restore.is_some() {
        return;
    }
    let holds = |m: &&MemberName| seen.facts(m).is_some_and(|facts| facts.etcd.staged.is_some());
    let holders = seen.agents.keys().filter(holds).filter(|m| !decision.has_business_with(m));
    for member in holders.cloned().collect::<Vec<_>>() {
        let why = "no restore needs it any more, and it holds all data unencrypted";
        decision.step(Action::DropSnapshot { member }, why);
    }
}

/// Data that quorate never replaces, whatever the operator confirmed for this cluster.
fn foreign(view: &View<'_>, member: &MemberName, facts: &Facts) -> Option<String> {
    let View { desired, seen, .. } = *view;
    match safety::judge_data(desired, member, None, seen.now, facts) {
        DataVerdict::Foreign(found) => Some(found),
        _ => None,
    }
}
