//! What the ledger records of steps that concern PostgreSQL.

use super::{Formation, Role, RotationStage, safety};
use crate::model::{Data, DataSeen, Desired, Ledger, MemberName, Observation, Stamp};
use crate::planner::remember::renewed;
use crate::planner::safety::reboots::{self, Progress};
use crate::planner::{Action, View};

/// Before a step. Says whether the ledger changed.
pub(crate) fn before(ledger: &mut Ledger, desired: &Desired, action: &Action) -> bool {
    let record = &mut ledger.postgres;
    match action {
        Action::RecordInitializing { token, first, members } => {
            if let Formation::Formed { token: replaced, .. } = &record.formation {
                record.replaced.insert(replaced.clone());
            }
            // A restore may begin once more with the same token.
            record.abandoned.remove(token);
            record.formation =
                Formation::Forming { token: token.clone(), first: first.clone(), members: members.clone() };
            true
        }
        Action::AbandonFormation { token } => {
            record.formation = Formation::Unformed;
            record.abandoned.insert(token.clone())
        }
        Action::RecordInitialized { system_id } => {
            let Formation::Forming { token, first, members } = &record.formation else { return false };
            let members = members.iter().filter(|(name, _)| *name == first);
            let members = members.map(|(name, known)| (name.clone(), known.clone())).collect();
            record.restore = record.restore.take().filter(|restore| restore.token != *token);
            record.formation = Formation::Formed { token: token.clone(), system_id: system_id.clone(), members };
            record.formed_with = Some(desired.postgres().form_with.clone());
            ledger.formed_with = Some(desired.form_with.clone());
            true
        }
        Action::JoinPostgres { member, joining, .. } => match record.formation.members_mut() {
            Some(members) => members.insert(member.clone(), joining.clone()).as_ref() != Some(joining),
            None => false,
        },
        Action::RecordLeft { member } => leave(ledger, member),
        Action::RecordRotation { stage } => {
            if let (Some(rotation), Some(passwords)) = (&record.rotation, &mut record.passwords)
                && matches!(stage, Some(RotationStage::Switching) | None)
            {
                rotation.next.iter().for_each(|(user, password)| passwords.change(user, password.clone()));
            }
            match stage {
                Some(stage) => record.rotation.iter_mut().for_each(|rotation| rotation.stage = *stage),
                None => record.rotation = None,
            }
            true
        }
        _ => false,
    }
}

/// After a step. Says whether the ledger changed.
pub(crate) fn after(ledger: &mut Ledger, _: &Desired, action: &Action) -> bool {
    match action {
        Action::DestroyMachine { member, data: Data::Goes } => leave(ledger, member),
        Action::Switchover { .. } => ledger.postgres.switchover.take().is_some(),
        _ => false,
    }
}

fn leave(ledger: &mut Ledger, member: &MemberName) -> bool {
    ledger.postgres.formation.members_mut().is_some_and(|members| members.remove(member).is_some())
}

/// A reboot is over when the machine is in another boot and the member is well; a switchover when another member is the primary, or the same
/// one again after another.
pub(crate) fn sighting(ledger: &mut Ledger, desired: &Desired, seen: &Observation) {
    if let Some(primary) = safety::primary(&View::new(desired, seen)) {
        let timeline = safety::status(seen, primary).and_then(|status| status.timeline);
        let open = &mut ledger.postgres.switchover;
        *open = open.take().filter(|request| request.from == *primary && request.timeline == timeline);
    }
    note_numbers(ledger);
    end_renewals(ledger, seen);
    for (member, record) in &mut ledger.members {
        let Some(facts) = seen.facts(member) else { continue };
        let serves = safety::status(seen, member).is_some_and(|s| s.role == Role::Primary || s.streaming);
        record.reboot = record
            .reboot
            .take()
            .filter(|reboot| reboots::progress(reboot, facts, desired.fence, serves) != Progress::Done);
    }
}

/// A ledger of an older program does not say what Patroni calls its members: as their machines.
fn note_numbers(ledger: &mut Ledger) {
    for (member, known) in ledger.postgres.formation.members_mut().into_iter().flatten() {
        let record = ledger.members.get(member).filter(|record| record.renewing.is_none());
        known.number = known.number.or_else(|| record.map(|record| record.incarnation.max(1)));
    }
}

/// A renewal is over when data of the cluster was seen on the new machine: what the one before had, or, if that was lost, a clone.
fn end_renewals(ledger: &mut Ledger, seen: &Observation) {
    let Ledger { members: records, postgres, cluster_id, .. } = ledger;
    let Formation::Formed { token, members, .. } = &mut postgres.formation else { return };
    for (member, known) in members {
        let Some((record, facts)) = records.get_mut(member).and_then(|record| renewed(record, member, seen)) else {
            continue;
        };
        let is_ours = |stamp: &Stamp| stamp.cluster_id == *cluster_id && stamp.token == *token;
        if matches!(safety::postgres(facts).map(|found| &found.data), Some(DataSeen::Stamped(stamp)) if is_ours(stamp))
        {
            record.renewing = None;
            known.machine_id.clone_from(&facts.machine_id);
        }
    }
}

/// The machine that a member had stays a member under this name until it has left.
pub(crate) fn former(ledger: &mut Ledger, member: &MemberName, had: u64) {
    if let Some(members) = ledger.postgres.formation.members_mut()
        && let Some(known) = members.remove(member)
    {
        members.insert(member.former(had), known);
    }
}
