//! What the ledger records about etcd: before and after each step, and from observations.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::cluster::Cluster;
use super::safety::{self, DataVerdict};
use super::{AuthLook, AuthOp, AuthSeen, EtcdStatus, Formation, OwnedUser};
use crate::model::{Data, Desired, Ledger, MemberName, Observation, Reboot};
use crate::planner::Action;
use crate::planner::remember::{raise_incarnation, renewed};
use crate::planner::safety::reboots::{self, Progress};

/// Revisions that differ by less are not worth a write to the ledger.
const NEAR: u64 = 10_000;

/// Records what must be known before the step. Returns whether the ledger changed.
pub(crate) fn before(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
    match action {
        Action::RecordRecovery { was, token, from } => recovering(ledger, was, token, from),
        Action::RecordRestoring { was, token, members, sha256, bump_revision } => {
            let Some(wish) = ledger.etcd.restore.as_ref().filter(|wish| wish.sha256 == *sha256) else { return false };
            // If this attempt is abandoned after clients saw it, the next one begins above it.
            let begins_at = wish.revision.saturating_add(*bump_revision);
            ledger.etcd.highest_revision = safety::revision::remembered(ledger.etcd.highest_revision).max(begins_at);
            ledger.etcd.formation = Formation::Restoring {
                was: was.clone(),
                token: token.clone(),
                members: members.clone(),
                sha256: sha256.clone(),
                bump_revision: *bump_revision,
            };
            true
        }
        Action::AddLearner { member, joining, .. } => {
            ledger.etcd.last_change = Some(now);
            if let Formation::Formed { members, .. } = &mut ledger.etcd.formation {
                members.insert(member.clone(), joining.clone());
            }
            true
        }
        Action::JoinEtcd { .. } | Action::Promote { .. } | Action::RemoveMember { .. } => {
            ledger.etcd.last_change = Some(now);
            true
        }
        Action::RecordForming { token, members } => {
            ledger.etcd.formation = Formation::Forming { token: token.clone(), members: members.clone() };
            true
        }
        Action::AbandonFormation { token } => abandon(ledger, token),
        Action::RecordFormed { etcd_cluster_id } => formed(ledger, desired, *etcd_cluster_id),
        Action::Auth { op: AuthOp::AddUser { user }, .. } => {
            let unconfirmed = desired.etcd.auth.as_ref().is_some_and(|wish| wish.users.contains_key(user));
            let made = OwnedUser { password: password(desired, user), adopted: false, unconfirmed };
            ledger.etcd.auth.users.insert(user.clone(), made);
            true
        }
        Action::Auth { op: AuthOp::AddRole { role }, .. } => ledger.etcd.auth.roles.insert(role.clone()),
        _ => false,
    }
}

/// Records what is true only after the step. Returns whether the ledger changed.
pub(crate) fn after(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
    match action {
        Action::AddLearner { .. } => {
            ledger.etcd.last_change = Some(now);
            true
        }
        Action::Promote { member, .. } => {
            ledger.etcd.last_change = Some(now);
            if let Formation::Formed { members, .. } = &mut ledger.etcd.formation
                && let Some(known) = members.get_mut(member)
            {
                known.learner = false;
            }
            true
        }
        Action::RemoveMember { member, failed, .. } => {
            ledger.etcd.last_change = Some(now);
            if let Formation::Formed { members, .. } = &mut ledger.etcd.formation {
                members.remove(member);
            }
            // Its machine is useless now: if the member returns, it gets another one.
            if ledger.members.contains_key(member) {
                raise_incarnation(ledger, member);
            }
            if let Some(why) = failed {
                ledger.members.entry(member.clone()).or_default().join_failed = Some(why.clone());
            }
            true
        }
        // A controller that was killed between a removal and this record knew better than the ledger.
        Action::DestroyMachine { member, data: Data::Goes } => match &mut ledger.etcd.formation {
            Formation::Formed { members, .. } => members.remove(member).is_some(),
            _ => false,
        },
        Action::VerifySnapshot { sha256, bump_revision } => {
            let Some(wish) = ledger.etcd.restore.as_mut().filter(|wish| wish.sha256 == *sha256) else { return false };
            wish.bump_revision = Some(*bump_revision);
            true
        }
        Action::Auth { op: AuthOp::SetPassword { user }, .. } => {
            let known = OwnedUser { password: None, adopted: true, unconfirmed: false };
            ledger.etcd.auth.users.entry(user.clone()).or_insert(known).password = password(desired, user);
            true
        }
        Action::Auth { op: AuthOp::DeleteUser { user }, .. } => ledger.etcd.auth.users.remove(user).is_some(),
        Action::Auth { op: AuthOp::DeleteRole { role }, .. } => ledger.etcd.auth.roles.remove(role),
        _ => false,
    }
}

/// Notes how far revisions went, who belongs to the cluster, and which version all members run.
pub(crate) fn sighting(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    end_renewals(ledger, desired, seen);
    end_reboots(ledger, desired, seen);
    confirm_users(ledger, desired, seen);
    if let Some(cluster) = Cluster::see(desired, seen) {
        let statuses: Vec<&EtcdStatus> =
            cluster.voters().filter_map(|m| m.facts?.etcd.status.as_ref().filter(|_| m.healthy)).collect();
        if let Formation::Formed { members, .. } = &mut ledger.etcd.formation
            && safety::is_fresh(desired, &cluster)
        {
            // A member that was removed in an interrupted step. A wanted one may be about to join.
            members.retain(|name, _| desired.members.contains_key(name) || cluster.get(name).is_some());
            for listed in cluster.listed.iter() {
                if let Some(known) = members.get_mut(&listed.name) {
                    known.learner = listed.is_learner;
                }
            }
        }
        if desired.members.keys().all(|m| cluster.get(m).is_some_and(|listed| !listed.is_learner)) {
            ledger.etcd.recovered = None;
        }
        let highest = safety::revision::told(statuses.iter().copied()).unwrap_or(0);
        // Every write changes it; the recorded value only has to be close.
        let noted = safety::revision::remembered(ledger.etcd.highest_revision);
        if highest > noted.saturating_add(NEAR) || noted != ledger.etcd.highest_revision {
            ledger.etcd.highest_revision = highest.max(noted);
        }
        let versions: BTreeSet<&String> = statuses.iter().map(|s| &s.version).collect();
        if let (Some(formed_with), [version], true) = (
            &mut ledger.etcd.formed_with,
            versions.into_iter().collect::<Vec<_>>().as_slice(),
            statuses.len() == cluster.voters().count(),
        ) {
            formed_with.version.clone_from(version);
        }
    }
}

/// A recovery or a restore that has begun is neither done nor refused; it continues.
pub(crate) fn answered(ledger: &mut Ledger) {
    if !matches!(ledger.etcd.formation, Formation::Recovering { .. }) {
        ledger.etcd.recovery = None;
    }
    if !matches!(ledger.etcd.formation, Formation::Restoring { .. }) {
        ledger.etcd.restore = None;
    }
}

/// A renewal is complete when its data was seen on the new machine, which belongs to the member from then on.
fn end_renewals(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    let Formation::Formed { token, members, .. } = &mut ledger.etcd.formation else { return };
    for (member, known) in members {
        let record = ledger.members.get_mut(member);
        let Some((record, facts)) = record.and_then(|record| renewed(record, member, seen)) else { continue };
        if safety::judge_data(desired, member, Some(token), seen.now, facts) == DataVerdict::MayGoOn {
            record.renewing = None;
            known.machine_id.clone_from(&facts.machine_id);
        }
    }
}

/// The machine that a member had stays a member under this name, until etcd no longer lists it.
pub(crate) fn former(ledger: &mut Ledger, member: &MemberName, had: u64) {
    if let Formation::Formed { members, .. }
    | Formation::Recovering { members, .. }
    | Formation::Restoring { members, .. } = &mut ledger.etcd.formation
        && let Some(known) = members.remove(member)
    {
        members.insert(member.former(had), known);
    }
}

fn recovering(ledger: &mut Ledger, lost: &str, token: &str, from: &MemberName) -> bool {
    let (Formation::Formed { token: was, members, .. } | Formation::Recovering { was, members, .. }) =
        &ledger.etcd.formation
    else {
        return false;
    };
    if was != lost {
        return false;
    }
    let (was, members) = (was.clone(), members.clone());
    ledger.etcd.formation = Formation::Recovering { was, token: token.to_owned(), from: from.clone(), members };
    true
}

fn password(desired: &Desired, user: &str) -> Option<String> {
    let wish = desired.etcd.auth.as_ref()?;
    match wish.users.get(user) {
        Some(user) => user.password.clone(),
        None => wish.root_password.clone(),
    }
}

fn abandon(ledger: &mut Ledger, abandoned: &str) -> bool {
    match &ledger.etcd.formation {
        Formation::Forming { token, .. } if token == abandoned => {
            ledger.etcd.formation = Formation::Unformed;
            ledger.etcd.abandoned.insert(abandoned.to_owned());
            true
        }
        _ => false,
    }
}

fn formed(ledger: &mut Ledger, desired: &Desired, etcd_cluster_id: u64) -> bool {
    if let Formation::Recovering { token, from, members, .. } = ledger.etcd.formation.clone() {
        let saved = members.iter().filter(|(m, _)| **m == from).map(|(m, known)| (m.clone(), known.clone()));
        let lost = members.keys().filter(|m| **m != from && !m.is_former());
        ledger.etcd.formation = Formation::Formed { token, etcd_cluster_id, members: saved.collect() };
        for member in lost {
            raise_incarnation(ledger, member);
        }
        ledger.etcd.recovered = ledger.etcd.recovery.take().map(|request| request.consent);
        return true;
    }
    if let Formation::Restoring { token, members, .. } = ledger.etcd.formation.clone() {
        ledger.etcd.formation = Formation::Formed { token, etcd_cluster_id, members };
        settle(ledger, desired);
        (ledger.etcd.restore, ledger.etcd.recovery, ledger.etcd.recovered) = (None, None, None);
        ledger.etcd.awaits_restore = None;
        // Users came back with the data, and with the passwords of that time.
        for (user, owned) in &mut ledger.etcd.auth.users {
            if user != "root" {
                owned.password = None;
            }
        }
        return true;
    }
    let Formation::Forming { token, members } = &ledger.etcd.formation else { return false };
    ledger.etcd.formation = Formation::Formed { token: token.clone(), etcd_cluster_id, members: members.clone() };
    settle(ledger, desired);
    true
}

/// Settings that the running cluster cannot change from now on.
fn settle(ledger: &mut Ledger, desired: &Desired) {
    ledger.formed_with = Some(desired.form_with.clone());
    ledger.etcd.formed_with = Some(desired.etcd.form_with.clone());
}

/// Users that are there with all that they may do: from then on, others may rely on them.
fn confirm_users(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    let Some(wish) = desired.etcd.auth.as_ref().filter(|wish| wish.owned.users.values().any(|owned| owned.unconfirmed))
    else {
        return;
    };
    let statuses = seen.agents.keys().filter_map(|member| seen.facts(member)?.etcd.status.as_ref());
    let looks: Vec<&AuthSeen> = statuses
        .filter_map(|status| match &status.auth {
            AuthLook::Seen(found) => Some(found),
            AuthLook::NotAsked | AuthLook::Failed { .. } => None,
        })
        .collect();
    let may_all = |found: &AuthSeen, role: &String| match (wish.roles.get(role), found.roles.get(role)) {
        (Some(wanted), Some(has)) => has.is_superset(wanted),
        (None, _) => true,
        (Some(_), None) => false,
    };
    let is_whole = |found: &AuthSeen, user: &String| match (wish.users.get(user), found.users.get(user)) {
        (Some(wanted), Some(has)) => {
            has.is_superset(&wanted.roles) && wanted.roles.iter().all(|role| may_all(found, role))
        }
        _ => false,
    };
    for (user, owned) in ledger.etcd.auth.users.iter_mut().filter(|(_, owned)| owned.unconfirmed) {
        owned.unconfirmed = !looks.iter().any(|found| is_whole(found, user));
    }
}

/// A reboot is over when the machine was seen in another boot, and its member healthy.
fn end_reboots(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    for (member, record) in &mut ledger.members {
        let Some(facts) = seen.facts(member) else { continue };
        let is_healthy = safety::is_healthy_voter(facts);
        let is_done = |reboot: &Reboot| reboots::progress(reboot, facts, desired.fence, is_healthy) == Progress::Done;
        record.reboot = record.reboot.take().filter(|reboot| !is_done(reboot));
    }
}
