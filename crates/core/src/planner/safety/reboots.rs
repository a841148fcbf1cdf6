//! When a requested reboot is complete, and what must not be concluded while a machine is rebooting.

use jiff::SignedDuration;

use crate::model::{Facts, MemberName, Reboot, RebootSeen};
use crate::planner::{View, WaitingFor};

/// A provider may find a machine switched off while it reboots.
const BETWEEN_OFF_AND_ON: SignedDuration = SignedDuration::from_secs(30);

/// Of a boot's name, which goes into the ledger.
const LONGEST_BOOT: usize = 128;

/// The progress of a reboot, for a machine that answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    NotBegun,
    /// An order was recorded, and it is not known that the agent got it.
    OrderLost,
    UnderWay {
        why: String,
    },
    Failed {
        why: String,
    },
    Done,
}

/// A machine has rebooted when it is in another boot than the one in which it was ordered to, with its packages upgraded if that was
/// requested. The request is done when the member is healthy, too.
///
/// Guarantees: an agent that accepts an order and does something else is not ordered again by the same controller (`fence`).
pub fn progress(reboot: &Reboot, facts: &Facts, fence: u64, is_healthy: bool) -> Progress {
    let Some(now) = facts.host.boot.as_ref().filter(|boot| boot.len() <= LONGEST_BOOT) else {
        let why = String::from("its agent does not report in which boot its machine is");
        return Progress::Failed { why };
    };
    let Some(ordered) = &reboot.ordered else {
        return match &facts.reboot {
            Some(RebootSeen::Failed { why }) => Progress::Failed { why: why.clone() },
            _ => Progress::NotBegun,
        };
    };
    let accepted = ordered.accepted == Some(fence);
    let upgraded = facts.host.packages.as_ref().is_some_and(|packages| packages.boot == ordered.boot);
    match &facts.reboot {
        Some(RebootSeen::Failed { why }) => Progress::Failed { why: why.clone() },
        _ if *now == ordered.boot && accepted => Progress::UnderWay { why: String::from("it has not rebooted yet") },
        _ if *now == ordered.boot => Progress::OrderLost,
        _ if reboot.upgrade_packages && !upgraded && accepted => {
            Progress::Failed { why: String::from("it rebooted before its packages were upgraded") }
        }
        _ if reboot.upgrade_packages && !upgraded => Progress::OrderLost,
        _ if is_healthy => Progress::Done,
        _ => Progress::UnderWay { why: String::from("it is up again, and its member is not healthy yet") },
    }
}

/// Rule 9: a machine that upgrades its packages or goes down is about to be disturbed, whichever controller ordered it. Nothing else
/// begins.
pub fn under_way(view: &View<'_>) -> Vec<WaitingFor> {
    let View { desired, seen, .. } = *view;
    let mut waiting = Vec::new();
    for (member, _) in desired.machines() {
        let (why, upgrading) = match seen.facts(member).and_then(|facts| facts.reboot.as_ref()) {
            Some(RebootSeen::UpgradingPackages { seconds }) => {
                (format!("its packages have been upgrading for {seconds} s"), Some(*seconds))
            }
            Some(RebootSeen::Leaving) => (String::from("it is going down"), None),
            Some(RebootSeen::Failed { .. }) | None => continue,
        };
        waiting.push(WaitingFor::Reboot { member: member.clone(), why, upgrading });
    }
    waiting
}

/// Whether a machine does not answer because it is rebooting. A controller waits as long as a boot may take; then it stops
/// waiting and reports what it saw, before the machine counts as unreachable.
pub fn is_away(view: &View<'_>, member: &MemberName) -> bool {
    unseen_while_rebooting(view, member).is_some_and(|unseen| unseen < view.desired.boots_within * 2)
}

/// Whether a machine that its provider finds switched off may come back by itself.
pub fn may_switch_on(view: &View<'_>, member: &MemberName) -> bool {
    unseen_while_rebooting(view, member).is_some_and(|unseen| unseen < BETWEEN_OFF_AND_ON)
}

fn unseen_while_rebooting(view: &View<'_>, member: &MemberName) -> Option<SignedDuration> {
    let wish = view.desired.machine(member)?;
    wish.reboot.as_ref()?.ordered.as_ref()?;
    Some(wish.unseen_since.map_or(SignedDuration::ZERO, |since| view.seen.now.duration_since(since)))
}
