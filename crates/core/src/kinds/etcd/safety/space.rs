//! The space of the database. When it reaches its quota, etcd refuses all writes.

use crate::model::{DesiredMember, Facts};
use crate::planner::{UnsafeBecause, View};
use crate::spec::Size;

/// The alarm of a member whose database has reached its quota.
const NOSPACE: &str = "NOSPACE";

/// `MachineIsReady`: no member gets a quota that its database has reached already. If etcd refuses writes anyway, a quota cannot harm.
pub(crate) fn quota_has_room(view: &View<'_>) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let quota = desired.etcd.quota;
    for (member, wish) in &desired.members {
        let Some(facts) = seen.facts(member) else { continue };
        let Some(status) = &facts.etcd.status else { continue };
        let is_full = status.alarms.iter().any(|alarm| alarm.kind == NOSPACE);
        if quota.0 > 0 && status.db_size >= quota.0 && !is_full && gets_other_settings(wish, facts) {
            let size = Size::rounded_up(status.db_size);
            return Err(UnsafeBecause::NotReady {
                member: member.clone(),
                why: format!("its database has {size} and the quota would be {quota}, so etcd would refuse all writes"),
                remedy: format!(
                    "set `etcd.quota` above {size}; or delete keys, compact and defragment before you lower it"
                ),
            });
        }
    }
    Ok(())
}

fn gets_other_settings(wish: &DesiredMember, facts: &Facts) -> bool {
    facts.node_config.as_ref().is_some_and(|(_, digest)| *digest != wish.digest)
}
