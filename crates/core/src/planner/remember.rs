//! What the ledger keeps of a step: some of it before the step is done, some after. Pure, so that the simulated world
//! and the real controller remember alike.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::Action;
use crate::kinds::etcd::cluster::Cluster;
use crate::kinds::etcd::safety::DataVerdict;
use crate::kinds::etcd::{self, AuthOp, EtcdStatus, Formation, OwnedUser};
use crate::model::{Data, Desired, Ledger, MemberName, MemberRecord, Observation, Power, PowerState, Seen, TrustPlane};

/// A machine that was last found unseen longer ago than this is counted anew.
const LONGEST_GAP: SignedDuration = SignedDuration::from_hours(1);
const WORTH_A_WRITE: SignedDuration = SignedDuration::from_secs(5);
/// Revisions that differ by less are not worth a write to the ledger.
const NEAR: u64 = 10_000;

/// Writes what must be known before the step is done. Says whether the ledger changed.
///
/// Guarantees: what a step may leave behind when it is cut short is in the ledger already.
pub fn before(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
    match action {
        Action::RecordReplacement { member, incarnation } => {
            let has = ledger.members.get(member).map_or(1, |r| r.incarnation.max(1));
            has < *incarnation && raise_incarnation(ledger, member)
        }
        Action::RecordRenewal { member, incarnation } => renew(ledger, member, *incarnation),
        Action::RecordRecovery { was, token, from } => recovering(ledger, was, token, from),
        Action::RecordRestoring { was, token, members, sha256, bump_revision } => {
            let Some(wish) = ledger.etcd.restore.as_ref().filter(|wish| wish.sha256 == *sha256) else { return false };
            // Should this attempt be given up after clients saw it, the next one begins above it.
            let begins_at = wish.revision.saturating_add(*bump_revision);
            ledger.etcd.highest_revision =
                etcd::safety::revision::remembered(ledger.etcd.highest_revision).max(begins_at);
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
        // From here on it is not seen because it starts, or because it should not be.
        Action::StartMachine { member } | Action::StopMachine { member } => match ledger.members.get_mut(member) {
            Some(record) if record.unseen_since.is_some() => {
                (record.unseen_since, record.unseen_at) = (None, None);
                true
            }
            _ => false,
        },
        Action::JoinEtcd { .. } | Action::Promote { .. } | Action::RemoveMember { .. } => {
            ledger.etcd.last_change = Some(now);
            true
        }
        Action::CreateMachine { member, incarnation, .. } => {
            let record = ledger.members.entry(member.clone()).or_default();
            if record.incarnation != *incarnation {
                // Whatever was known of the machine before it.
                *record = MemberRecord {
                    incarnation: *incarnation,
                    renewing: record.renewing,
                    join_failed: record.join_failed.take(),
                    ..MemberRecord::default()
                };
            }
            record.place = desired.members.get(member).and_then(|wish| wish.place.clone());
            ledger.places.extend(record.place.clone());
            true
        }
        Action::PushConfig { member, generation } => {
            let Some(wish) = desired.members.get(member) else { return false };
            let record = ledger.members.entry(member.clone()).or_default();
            let changed = record.generation != *generation || record.digest != wish.digest;
            record.generation = *generation;
            record.digest.clone_from(&wish.digest);
            changed
        }
        Action::RecordForming { token, members } => {
            ledger.etcd.formation = Formation::Forming { token: token.clone(), members: members.clone() };
            true
        }
        Action::AbandonFormation { token } => abandon(ledger, token),
        Action::RecordFormed { etcd_cluster_id } => formed(ledger, desired, *etcd_cluster_id),
        Action::Auth { op: AuthOp::AddUser { user }, .. } => {
            let made = OwnedUser { password: password(desired, user), adopted: false };
            ledger.etcd.auth.users.insert(user.clone(), made);
            true
        }
        Action::Auth { op: AuthOp::AddRole { role }, .. } => ledger.etcd.auth.roles.insert(role.clone()),
        Action::RevokeUser { user } => ledger.issued.revoke_user(user),
        Action::RevokeMachine { member, incarnation } => ledger.issued.revoke_machine(member, *incarnation),
        Action::RecordSigner { plane: TrustPlane::Peer, epoch } => {
            let Some(peers) = &mut ledger.authorities.peer else { return false };
            let trusted = peers.trusted.iter().any(|authority| authority.epoch == *epoch);
            trusted && std::mem::replace(&mut peers.signs, *epoch) != *epoch
        }
        Action::RecordDistrust { plane: TrustPlane::Peer, epoch } => {
            let Some(peers) = ledger.authorities.peer.as_mut().filter(|peers| peers.signs != *epoch) else {
                return false;
            };
            let trusted = peers.trusted.len();
            peers.trusted.retain(|authority| authority.epoch != *epoch);
            peers.trusted.len() < trusted
        }
        _ => false,
    }
}

/// Writes what only holds once the step is done. Says whether the ledger changed.
pub fn after(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
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
            // Its machine is of no use any more: should the seat come back, it begins on another.
            if ledger.members.contains_key(member) {
                raise_incarnation(ledger, member);
            }
            if let Some(why) = failed {
                ledger.members.entry(member.clone()).or_default().join_failed = Some(why.clone());
            }
            true
        }
        Action::DestroyMachine { member, data } => {
            // Whoever was cut short between a removal and this knew better than the ledger.
            let removed = match &mut ledger.etcd.formation {
                Formation::Formed { members, .. } if *data == Data::Goes => members.remove(member).is_some(),
                _ => false,
            };
            let Some(record) = ledger.members.get_mut(member) else { return removed };
            record.generation = 0;
            record.digest.clear();
            record.enrolment = None;
            true
        }
        Action::Auth { op: AuthOp::SetPassword { user }, .. } => {
            let known = OwnedUser { password: None, adopted: true };
            ledger.etcd.auth.users.entry(user.clone()).or_insert(known).password = password(desired, user);
            true
        }
        Action::Auth { op: AuthOp::DeleteUser { user }, .. } => ledger.etcd.auth.users.remove(user).is_some(),
        Action::Auth { op: AuthOp::DeleteRole { role }, .. } => ledger.etcd.auth.roles.remove(role),
        _ => false,
    }
}

/// Notes what a look shows and must not be forgotten: since when a machine is not seen, how far revisions went, and which version
/// all members run. Says whether the ledger changed.
pub fn sighting(ledger: &mut Ledger, desired: &Desired, seen: &Observation) -> bool {
    let noted = |l: &Ledger| (l.members.clone(), l.etcd.clone());
    let before = noted(ledger);
    if seen.machines.get().is_some() && desired.power == Power::On {
        for (member, record) in &mut ledger.members {
            note_absence(record, matches!(seen.agents.get(member), Some(Seen::At(..))), desired.grace, seen.now);
        }
    }
    note_places(ledger, seen);
    end_renewals(ledger, desired, seen);
    if let Some(cluster) = Cluster::see(desired, seen) {
        let statuses: Vec<&EtcdStatus> =
            cluster.voters().filter_map(|m| m.facts?.etcd.status.as_ref().filter(|_| m.healthy)).collect();
        if let Formation::Formed { members, .. } = &mut ledger.etcd.formation
            && etcd::safety::is_fresh(desired, &cluster)
        {
            // Who was removed in a step that was cut short. One that is wanted may be about to join.
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
        let highest = etcd::safety::revision::told(statuses.iter().copied()).unwrap_or(0);
        // Every write moves it; what is noted must only be near.
        let noted = etcd::safety::revision::remembered(ledger.etcd.highest_revision);
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
    before != noted(ledger)
}

/// Nothing is left to do or to wait for: what the operator requested is done, or was refused. A recovery or a restore that has begun is
/// neither, and continues.
pub fn answered(ledger: &mut Ledger) {
    (ledger.downtime, ledger.without_grace) = (None, None);
    if !matches!(ledger.etcd.formation, Formation::Recovering { .. }) {
        ledger.etcd.recovery = None;
    }
    if !matches!(ledger.etcd.formation, Formation::Restoring { .. }) {
        ledger.etcd.restore = None;
    }
}

/// The seat keeps its data and gets another machine. The one it has is to go for that.
pub fn renew(ledger: &mut Ledger, member: &MemberName, incarnation: u64) -> bool {
    let record = ledger.members.entry(member.clone()).or_default();
    let begins = record.incarnation.max(1) < incarnation && record.renewing != Some(incarnation);
    if begins {
        record.renewing = Some(incarnation);
    }
    begins
}

/// A renewal is over when its data was seen on the new machine, which is the member's from then on. An agent that was seen before the
/// present machine was claimed is that of one before it.
fn end_renewals(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    let Formation::Formed { token, members, .. } = &mut ledger.etcd.formation else { return };
    let is_claimed = |r: &MemberRecord| r.enrolment.as_ref().is_some_and(|e| e.bound_key.is_some());
    for (member, known) in members {
        let record = ledger.members.get_mut(member);
        let Some(record) = record.filter(|r| r.renewing == Some(r.incarnation) && is_claimed(r)) else { continue };
        let machine = seen.machines.get().and_then(|m| m.get(member));
        let is_it = machine.is_some_and(|m| m.incarnation == record.incarnation);
        let Some(facts) = seen.facts(member).filter(|_| is_it) else { continue };
        if etcd::safety::judge_data(desired, member, Some(token), seen.now, facts) == DataVerdict::MayGoOn {
            record.renewing = None;
            known.machine_id.clone_from(&facts.machine_id);
        }
    }
}

/// Where machines are. They may have been made before the ledger knew of places, or be reached by another name now.
fn note_places(ledger: &mut Ledger, seen: &Observation) {
    let Ledger { members, places, cluster_id, .. } = ledger;
    for (member, record) in members {
        let machine = seen.machines.get().and_then(|machines| machines.get(member));
        let found = machine.filter(|machine| machine.cluster_id == *cluster_id && machine.power != PowerState::Unknown);
        let place = found.filter(|machine| machine.incarnation == record.incarnation).and_then(|m| m.place.clone());
        if place.is_some() {
            places.extend(place.clone());
            record.place = place;
        }
    }
}

/// How long a machine is unseen counts from the first look of a row without long gaps: in one, it may have come and gone.
fn note_absence(record: &mut MemberRecord, is_seen: bool, grace: Option<SignedDuration>, now: Timestamp) {
    if is_seen {
        (record.unseen_since, record.unseen_at) = (None, None);
        return;
    }
    let longest = grace.map_or(LONGEST_GAP, |grace| LONGEST_GAP.max(grace.saturating_mul(2)));
    let ago = record.unseen_at.or(record.unseen_since).map(|at| now.duration_since(at));
    if record.unseen_since.is_none() || ago.is_none_or(|ago| ago > longest) {
        (record.unseen_since, record.unseen_at) = (Some(now), Some(now));
    } else if ago.is_some_and(|ago| ago > WORTH_A_WRITE) {
        record.unseen_at = Some(now);
    }
}

/// The seat gets another machine. The one it has is a former one from now on, and a member for as long as etcd lists it.
pub fn raise_incarnation(ledger: &mut Ledger, member: &MemberName) -> bool {
    let record = ledger.members.entry(member.clone()).or_default();
    let had = record.incarnation.max(1);
    *record = MemberRecord { incarnation: had + 1, ..MemberRecord::default() };
    if let Formation::Formed { members, .. }
    | Formation::Recovering { members, .. }
    | Formation::Restoring { members, .. } = &mut ledger.etcd.formation
        && let Some(known) = members.remove(member)
    {
        members.insert(member.former(had), known);
    }
    true
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

/// Lets an older ledger go on, on the operator's word: its numbers become at least those that the agents remember. What
/// an agent holds is noted as it is, so that only other content is sent anew, under a number above.
pub fn resume_above(ledger: &mut Ledger, seen: &Observation) {
    let fences = seen.agents.keys().filter_map(|m| Some(seen.facts(m)?.fence));
    ledger.fence = fences.fold(ledger.fence, u64::max);
    for member in seen.agents.keys().filter(|m| !m.is_former()) {
        let Some(facts) = seen.facts(member) else { continue };
        let Some((generation, digest)) = &facts.node_config else { continue };
        let record = ledger.members.entry(member.clone()).or_default();
        if *generation >= record.generation {
            record.generation = *generation;
            record.digest.clone_from(digest);
        }
    }
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
        // Users came back with the data, and with the passwords that they had then.
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
