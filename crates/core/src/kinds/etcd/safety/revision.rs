//! Which revisions are believed. etcd counts them in 63 bits and panics beyond that, so a number that no cluster can have reached is
//! refused at every entry. A member that is alone with its report does not influence the others.

use crate::kinds::etcd::limits::{MARGIN, MAX_REVISION};
use crate::kinds::etcd::{EtcdFacts, EtcdStatus, Record};
use crate::model::{Distrust, Number};
use crate::planner::View;

/// Members of one cluster are never this far apart: the cause would be a false report, or a restore.
const APART: u64 = MARGIN / 2;

/// How far a revision may be ahead of the highest one in the ledger: 100,000 writes a second for 89 years.
const MOST_WRITES: u64 = 1 << 48;

impl EtcdFacts {
    /// A number in this report that no etcd can reach.
    pub(crate) fn distrust(&self, record: &Record) -> Option<Distrust> {
        let (status, highest) = (self.status.as_ref(), record.highest_revision);
        let revision = status.map_or(0, |status| status.revision);
        if revision > MAX_REVISION || revision > highest.saturating_add(MOST_WRITES) {
            return Some(Distrust { what: Number::Revision, known: Some(highest), told: revision });
        }
        let log = self.log.as_ref().map_or(0, |log| log.index.max(log.commit));
        let index = status.map_or(0, |status| status.raft_index.max(status.raft_applied_index)).max(log);
        (index > MAX_REVISION).then_some(Distrust { what: Number::LogIndex, known: None, told: index })
    }
}

/// The ledger's value. A number beyond all revisions came from a damaged or false source; then the members' and backups' values are
/// used.
pub fn remembered(highest: u64) -> u64 {
    if highest > MAX_REVISION { 0 } else { highest }
}

/// The highest revision that members report. A value far above all others is ignored if there are others.
pub fn told<'a>(statuses: impl Iterator<Item = &'a EtcdStatus>) -> Option<u64> {
    let mut told: Vec<u64> = statuses.map(|status| status.revision).filter(|told| *told <= MAX_REVISION).collect();
    told.sort_unstable_by(|one, other| other.cmp(one));
    let agreed = told.windows(2).find(|pair| pair[0] - pair[1] <= APART).map(|pair| pair[0]);
    agreed.or_else(|| told.last().copied())
}

/// The highest revision that clients can have seen, as far as is known.
pub fn highest(view: &View<'_>) -> u64 {
    let View { desired, seen, .. } = *view;
    let statuses = seen.agents.keys().filter_map(|member| seen.facts(member)?.etcd.status.as_ref());
    remembered(desired.etcd.highest_revision).max(told(statuses).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd::AuthLook;

    fn status(revision: u64) -> EtcdStatus {
        EtcdStatus {
            member_id: 1,
            cluster_id: 1,
            leader: 1,
            is_learner: false,
            healthy: true,
            version: String::new(),
            cluster_version: None,
            downgrade_target: None,
            storage_version: None,
            db_size: 0,
            db_size_in_use: 0,
            raft_term: 1,
            raft_index: 1,
            raft_applied_index: 1,
            revision,
            members: Vec::new(),
            alarms: Vec::new(),
            auth: AuthLook::NotAsked,
        }
    }

    fn believed(revisions: &[u64]) -> Option<u64> {
        let statuses: Vec<EtcdStatus> = revisions.iter().copied().map(status).collect();
        told(statuses.iter())
    }

    #[test]
    fn a_member_that_is_alone_with_its_revision_is_ignored() {
        assert_eq!(believed(&[]), None);
        assert_eq!(believed(&[7]), Some(7));
        assert_eq!(believed(&[7, 9, 8]), Some(9));
        assert_eq!(believed(&[7, 1 << 61, 8]), Some(8));
        assert_eq!(believed(&[u64::MAX, 8, (1 << 62) + 1]), Some(8));
        assert_eq!(believed(&[u64::MAX]), None);
        assert_eq!(believed(&[8, 1 << 61]), Some(8), "of two that differ, the one that can do less harm");
    }

    #[test]
    fn impossible_revisions_are_not_remembered() {
        assert_eq!(remembered(1 << 62), 1 << 62);
        assert_eq!(remembered(9_223_372_037_854_775_807), 0);
    }
}
