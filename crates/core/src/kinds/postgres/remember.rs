//! What the ledger records about steps of PostgreSQL.

use super::{Formation, FormedWith, Previous, Record, Role, RotationStage, Upgrade, UpgradeFailed, safety};
use crate::model::{Data, DataSeen, Desired, Ledger, MemberName, Observation, Stamp};
use crate::planner::remember::renewed;
use crate::planner::safety::reboots::{self, Progress};
use crate::planner::{self, Action, View};

/// Records before a step. Returns whether the ledger changed.
pub(crate) fn before(ledger: &mut Ledger, desired: &Desired, action: &Action) -> bool {
    let record = &mut ledger.postgres;
    match action {
        Action::RecordInitializing { token, first, members } => {
            // Also of a bootstrap that a restore overtakes: a member may hold its data by now.
            record.replaced.extend(record.formation.token().filter(|given_up| given_up != token).map(str::to_owned));
            // A restore may begin once more with the same token.
            record.abandoned.remove(token);
            begin_with_upgraded(record, token, first);
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
            let version = record.data_version().map(str::to_owned);
            // A restore has replaced what another upgrade kept.
            let upgraded = record.upgrade.as_ref().is_some_and(|upgrade| upgrade.token == *token);
            record.previous = record.previous.take().filter(|_| upgraded);
            let members = members.iter().filter(|(name, _)| *name == first);
            let members = members.map(|(name, known)| (name.clone(), known.clone())).collect();
            record.restore = record.restore.take().filter(|restore| restore.token != *token);
            record.formation = Formation::Formed { token: token.clone(), system_id: system_id.clone(), members };
            let form_with = desired.postgres().form_with.clone();
            record.formed_with = Some(FormedWith { version: version.unwrap_or(form_with.version), ..form_with });
            (record.upgrade, record.upgrade_failed) = (None, None);
            ledger.formed_with = Some(desired.form_with.clone());
            true
        }
        Action::JoinPostgres { member, joining, .. } => match record.formation.members_mut() {
            Some(members) => members.insert(member.clone(), joining.clone()).as_ref() != Some(joining),
            None => false,
        },
        Action::RecordUpgrading { token, from, to } => {
            let (token, from, to) = (token.clone(), from.clone(), to.clone());
            record.upgrade = Some(Upgrade { token, from, to, source: None, was: None });
            record.upgrade_failed = None;
            true
        }
        Action::UpgradeData { member, .. } => {
            let source = record.upgrade.as_mut().map(|upgrade| upgrade.source.replace(member.clone()));
            source.is_some_and(|known| known.as_ref() != Some(member))
        }
        Action::AbandonUpgrade { token, to, why } => {
            if let Some(was) = record.upgrade.take().and_then(|upgrade| upgrade.was) {
                was.token().map(|token| record.replaced.remove(token));
                record.formation = was;
            }
            record.abandoned.insert(token.clone());
            record.previous = None;
            record.upgrade_failed = Some(UpgradeFailed { to: to.clone(), why: why.clone(), fence: desired.fence });
            true
        }
        Action::RecordAnalyzed => {
            record.previous.iter_mut().for_each(|previous| previous.analyzed = true);
            true
        }
        Action::RecordDiscarded => {
            (record.previous, record.discard) = (None, None);
            true
        }
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

/// The previous data is the way back from now on. Any other data cancels an upgrade in progress.
fn begin_with_upgraded(record: &mut Record, token: &str, first: &MemberName) {
    record.upgrade = record.upgrade.take().filter(|upgrade| upgrade.token == token);
    let Some(upgrade) = &mut record.upgrade else { return };
    if let Some(was) = record.formation.token() {
        let (version, token) = (upgrade.from.clone(), was.to_owned());
        record.previous = Some(Previous { version, token, member: first.clone(), analyzed: false });
    }
    upgrade.was = Some(record.formation.clone());
}

/// Records after a step. Returns whether the ledger changed.
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

/// A reboot is complete when the machine is in another boot and the member is healthy; a switchover when another member is the primary, or
/// the same one again after another.
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
        let streams = safety::status(seen, member).is_some_and(|s| s.role == Role::Primary || s.streaming);
        let serves = match record.proxy.is_some() {
            true => planner::safety::serves(&View::new(desired, seen), member),
            false => streams,
        };
        record.reboot = record
            .reboot
            .take()
            .filter(|reboot| reboots::progress(reboot, facts, desired.fence, serves) != Progress::Done);
    }
}

/// A ledger of an older program does not have Patroni's names of members: they are those of their machines.
fn note_numbers(ledger: &mut Ledger) {
    for (member, known) in ledger.postgres.formation.members_mut().into_iter().flatten() {
        let record = ledger.members.get(member).filter(|record| record.renewing.is_none());
        known.number = known.number.or_else(|| record.map(|record| record.incarnation.max(1)));
    }
}

/// A renewal is complete when data of the cluster was seen on the new machine: the previous machine's data or, if that was lost, a clone.
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
