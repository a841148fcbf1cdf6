//! What etcd needs before a member gets a new machine with its existing data.

use super::restart::leads;
use super::version;
use crate::kinds::etcd::safety;
use crate::model::{MemberName, ServiceState};
use crate::planner::{Action, Decision, View};

/// etcd starts on the new machine with the version that is wanted.
pub(crate) fn is_open(view: &View<'_>) -> bool {
    version::path(view).is_ok_and(|path| version::is_open(view, path))
}

/// The leader hands over first, and etcd is stopped. Returns whether the machine must wait for that.
pub(crate) fn hand_over(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    let View { desired, seen, .. } = *view;
    let facts = seen.facts(member);
    let successor = view.cluster().and_then(|cluster| cluster.successor(desired, cluster.get(member)?.id));
    let hands_over = leads(seen, member) && facts.is_some_and(safety::is_healthy_voter);
    if let Some((to, to_id)) = successor.filter(|_| hands_over) {
        let why = format!(
            "{member} is the leader and about to get a new machine; moving leadership first shortens the write gap"
        );
        decision.step(Action::MoveLeader { member: member.clone(), to, to_id }, why);
        return true;
    }
    if facts.is_some_and(|facts| facts.etcd.service != ServiceState::Stopped) {
        decision.step(Action::StopEtcd { member: member.clone() }, why);
    }
    false
}
