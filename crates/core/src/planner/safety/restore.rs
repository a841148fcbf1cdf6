//! The rules of a restore: nothing is given up before every member has what it is to begin from, and nobody begins while anybody
//! could still run on what was.

use super::{DataVerdict, judge_data};
use crate::model::{Desired, Facts, MemberName, Observation, Restore, ServiceState};

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
