//! Rules of a restore: no existing data is touched before every member has the verified snapshot, and no member starts while another
//! could still run on the old data. If no data exists, the members' own restore is the verification.

use super::revision;
use super::{DataVerdict, judge_data};
use crate::kinds::etcd::limits::{MARGIN, MAX_REVISION};
use crate::kinds::etcd::{Formation, Restore};
use crate::model::{AgentSeen, DataSeen, Desired, Facts, MemberName, Observation, Seen, ServiceState};
use crate::planner::{UnsafeBecause, View, machines};

/// Rule 12: by how much the revision of a snapshot must be raised, so that no client goes back in time. Never beyond what etcd can count.
pub fn bump_past(highest: u64, revision: u64) -> u64 {
    let target = highest.max(revision).saturating_add(MARGIN).min(MAX_REVISION);
    target.saturating_sub(revision)
}

/// The value that the snapshot was verified with, if it is still well above everything seen; otherwise another one.
pub fn bump_of(restore: &Restore, view: &View<'_>) -> u64 {
    let highest = revision::highest(view);
    let leads_past = |bump: &u64| {
        let begins_at = restore.revision.checked_add(*bump).filter(|at| *at <= MAX_REVISION);
        begins_at.is_some_and(|at| at >= highest.saturating_add(MARGIN / 2))
    };
    restore.bump_revision.filter(leads_past).unwrap_or_else(|| bump_past(highest, restore.revision))
}

/// Rule 7: if creating a cluster from a backup fails, it is not created empty. Clients would mistake it for the restored one.
pub fn may_begin_empty(desired: &Desired) -> Result<(), UnsafeBecause> {
    match (&desired.etcd.formation, &desired.etcd.awaits_restore) {
        (Formation::Unformed | Formation::Forming { .. }, Some(source)) => {
            Err(UnsafeBecause::AwaitsRestore { source: source.clone() })
        }
        _ => Ok(()),
    }
}

/// Rule 7: whether the snapshot was restored into a temporary etcd, raised by exactly this.
pub fn is_verified(restore: &Restore, bump: u64) -> bool {
    restore.bump_revision == Some(bump)
}

/// Rule 7: whether every machine of the cluster answers and none has data, so a failed restore costs only time.
pub fn endangers_nothing(view: &View<'_>) -> bool {
    let View { desired, seen, .. } = *view;
    let has_none = |member: &MemberName| match seen.agents.get(member).and_then(Seen::get) {
        Some(AgentSeen::Unenrolled { .. }) => true,
        Some(AgentSeen::Enrolled(facts)) => {
            facts.etcd.data == DataSeen::Empty && facts.etcd.service == ServiceState::Stopped
        }
        Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => false,
    };
    let Some(all) = seen.machines.get() else { return false };
    all.iter().filter(|(_, machine)| machines::is_ours(desired, machine)).all(|(member, _)| has_none(member))
}

/// Rule 12: whether data that was raised by so much begins where etcd can still count.
pub fn can_count_on(revision: u64, bump: u64) -> bool {
    revision.checked_add(bump).is_some_and(|begins_at| begins_at <= MAX_REVISION)
}

/// Rule 7: whether a member has the bytes that it is to begin from.
pub fn has_snapshot(restore: &Restore, facts: &Facts) -> bool {
    facts.etcd.staged.as_ref().is_some_and(|s| s.sha256 == restore.sha256 && s.bytes == restore.bytes)
}

/// Rule 6: whether an etcd runs, or will run again by itself, on data of another formation than this.
pub fn runs_on_other_data(
    desired: &Desired,
    member: &MemberName,
    token: &str,
    seen: &Observation,
    facts: &Facts,
) -> bool {
    facts.etcd.service != ServiceState::Stopped
        && judge_data(desired, member, Some(token), seen.now, facts) != DataVerdict::MayGoOn
}

/// Rule 6: the members without data of this bootstrap, although other members of it already run. They may have voted before, and
/// would vote again under the same token.
pub fn lost_after_a_start<'a>(
    view: &View<'_>,
    token: &str,
    members: impl Iterator<Item = &'a MemberName> + Clone,
) -> Option<&'a MemberName> {
    let View { desired, seen, .. } = *view;
    let runs = |f: &Facts| {
        f.etcd.service != ServiceState::Stopped && matches!(&f.etcd.data, DataSeen::Stamped(s) if s.token == token)
    };
    if !members.clone().filter_map(|m| seen.facts(m)).any(runs) {
        return None;
    }
    let holds = |m: &MemberName, f| judge_data(desired, m, Some(token), seen.now, f) == DataVerdict::MayGoOn;
    members.filter_map(|m| Some((m, seen.facts(m)?))).find(|(m, facts)| !holds(m, facts)).map(|(member, _)| member)
}
