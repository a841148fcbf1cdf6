//! Logs that etcd 3.7 cannot read. Releases before 3.6 wrote entries in the format of the v2 API, and 3.7 panics on them.
//! When a member starts, it reads its log from its newest Raft snapshot on; a joining member gets the leader's log.

use crate::kinds::etcd::cluster::{Cluster, Listed};
use crate::kinds::etcd::{EtcdStatus, OldEntries};
use crate::model::{Desired, Facts, MemberName, Version};
use crate::planner::{UnsafeBecause, View};

/// From here on etcd cannot read entries in the format of the v2 API.
const WITHOUT_V2: Version = Version::new(3, 7, 0);

/// Whether the etcd that the spec asks for can read the log of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Log {
    Readable,
    /// Nobody has looked yet.
    Unread,
    /// Not after its last Raft snapshot. `due`: etcd takes another one after the next entry.
    Old {
        index: u64,
        snapshot: u64,
        due: bool,
    },
}

/// `KnownVersions`: a member gets the configuration of 3.7 only when 3.7 can start on its log.
pub(crate) fn log_of(view: &View<'_>, member: &MemberName) -> Log {
    let View { desired, seen, .. } = *view;
    let goes = desired.members.get(member).is_some_and(|wish| cannot_read_v2(&wish.etcd_version));
    let Some(facts) = seen.facts(member).filter(|_| goes) else { return Log::Readable };
    match entries(facts) {
        OldEntries::None => Log::Readable,
        OldEntries::Unknown => Log::Unread,
        OldEntries::Until { index, snapshot, .. } if snapshot >= index => Log::Readable,
        OldEntries::Until { index, snapshot, due } => Log::Old { index, snapshot, due },
    }
}

/// `KnownVersions`: a member joins with 3.7 only if 3.7 can read the log that the leader sends, which may begin before the
/// leader's newest snapshot. `None`: the leader has not reported its log yet.
pub(crate) fn may_join_this_log(
    desired: &Desired,
    cluster: &Cluster<'_>,
    member: &MemberName,
) -> Option<Result<(), UnsafeBecause>> {
    let wanted = &desired.members[member].etcd_version;
    let leader = cluster.voters().find(|voter| voter.leads);
    let Some(leader) = leader.filter(|_| cannot_read_v2(wanted)) else { return Some(Ok(())) };
    match entries(leader.facts?) {
        OldEntries::None => Some(Ok(())),
        OldEntries::Unknown => None,
        OldEntries::Until { .. } => Some(Err(UnsafeBecause::OldEntries {
            member: member.clone(),
            leader: leader.name.clone(),
            runs: version_of(leader)?.to_owned(),
            wanted: wanted.clone(),
        })),
    }
}

/// A healthy voter that has started with 3.7, so it has no old entry.
pub(crate) fn reader<'c, 'a>(cluster: &'c Cluster<'a>) -> Option<&'c Listed<'a>> {
    cluster.voters().find(|voter| voter.healthy && version_of(voter).is_some_and(cannot_read_v2))
}

/// A member that runs 3.7 has read its log.
fn entries(facts: &Facts) -> OldEntries {
    let runs = facts.etcd.status.as_ref().map(|status| status.version.as_str());
    if runs.is_some_and(cannot_read_v2) { OldEntries::None } else { facts.etcd.old_entries }
}

fn version_of<'a>(member: &Listed<'a>) -> Option<&'a str> {
    member.facts?.etcd.status.as_ref().map(|status: &EtcdStatus| status.version.as_str())
}

fn cannot_read_v2(version: &str) -> bool {
    version.parse::<Version>().is_ok_and(|version| version >= WITHOUT_V2)
}
