//! The rules of a restore: nothing is given up before every member has what it is to begin from, and nobody begins while anybody
//! could still run on what was.

use super::{DataVerdict, judge_data};
use crate::model::{DataSeen, Desired, Facts, MemberName, Observation, Restore, ServiceState};

/// How far above every revision ever seen a restored or recovered cluster begins.
pub const MARGIN: u64 = 1_000_000_000;

/// Rule 12: by how much the revision of a snapshot must go up, so that no client is sent back in time.
pub fn bump_past(desired: &Desired, seen: &Observation, revision: u64) -> u64 {
    let told = seen.agents.keys().filter_map(|m| Some(seen.facts(m)?.etcd.status.as_ref()?.revision)).max();
    let highest = desired.highest_revision.max(told.unwrap_or(0)).max(revision);
    (highest - revision).saturating_add(MARGIN)
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

/// Rule 6: who has no data of this formation, though members of it run already. It may have voted among them before, and would vote
/// again if it began once more under the same token.
pub fn lost_after_a_start<'a>(
    desired: &Desired,
    seen: &Observation,
    token: &str,
    members: impl Iterator<Item = &'a MemberName> + Clone,
) -> Option<&'a MemberName> {
    let runs = |f: &Facts| {
        f.etcd.service != ServiceState::Stopped && matches!(&f.etcd.data, DataSeen::Stamped(s) if s.token == token)
    };
    if !members.clone().filter_map(|m| seen.facts(m)).any(runs) {
        return None;
    }
    let holds = |m: &MemberName, f| judge_data(desired, m, Some(token), seen.now, f) == DataVerdict::MayGoOn;
    members.filter_map(|m| Some((m, seen.facts(m)?))).find(|(m, facts)| !holds(m, facts)).map(|(member, _)| member)
}
