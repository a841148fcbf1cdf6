//! Before etcd 3.7: each member must have a Raft snapshot later than the log entries that releases before 3.6 wrote. etcd takes one by
//! itself after many entries; a member that was restarted for this takes one after its next entry.

use crate::kinds::etcd::safety::{Log, log_of};
use crate::model::MemberName;
use crate::planner::{View, WaitingFor};

/// Whether every member can start with the version that the spec asks for.
pub(crate) fn is_ready(view: &View<'_>) -> bool {
    members(view).all(|member| log_of(view, member) == Log::Readable)
}

/// What must be known or done before the next member restarts.
pub(crate) fn awaited(view: &View<'_>) -> Option<WaitingFor> {
    members(view).find_map(|member| match log_of(view, member) {
        Log::Unread => Some(WaitingFor::RaftSnapshot { member: member.clone(), entry: None }),
        Log::Old { index, due: true, .. } => {
            Some(WaitingFor::RaftSnapshot { member: member.clone(), entry: Some(index) })
        }
        Log::Old { .. } | Log::Readable => None,
    })
}

/// The members that do not take a snapshot soon enough by themselves.
pub(crate) fn behind<'v>(view: &'v View<'_>) -> Vec<&'v MemberName> {
    members(view).filter(|member| matches!(log_of(view, member), Log::Old { due: false, .. })).collect()
}

/// The reason for a member's restart for a snapshot.
pub(crate) fn why(view: &View<'_>, member: &MemberName) -> String {
    let wanted = &view.desired.members[member].etcd_version;
    let Log::Old { index, snapshot, .. } = log_of(view, member) else { return String::new() };
    let newest = match snapshot {
        0 => String::from("etcd has taken no snapshot yet"),
        snapshot => format!("the newest snapshot ends at entry {snapshot}"),
    };
    format!("etcd {wanted} panics on log entries that a release before 3.6 wrote, up to entry {index} here; {newest}")
}

fn members<'v>(view: &'v View<'_>) -> impl Iterator<Item = &'v MemberName> {
    let formation = &view.desired.etcd.formation;
    view.desired.members.keys().filter(|member| formation.is_formed() && formation.has_member(member))
}
