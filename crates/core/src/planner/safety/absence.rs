//! Rule 8 for machines: what follows when one cannot be reached. It counts as dead when the operator confirms it, or after its grace time
//! if enough peers report that they cannot reach it either; never while a peer reaches it. An agent that does not answer, or does not say
//! whom it reaches, counts as no report.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::SignedDuration;

use crate::model::MemberName;
use crate::planner::voters::{Voters, quorum};
use crate::planner::{UnsafeBecause, View};

/// If an agent is unreachable for less than this, quorate waits and reports nothing.
const BLINK: SignedDuration = SignedDuration::from_secs(10);

/// The consequence of an unreachable machine.
pub enum Absence {
    /// It may be back in a moment: nothing is concluded yet.
    Brief,
    /// It counts as dead, and why.
    Dead(String),
}

/// Judges an unreachable machine. `what` describes the symptom.
pub fn judge_absence(view: &View<'_>, member: &MemberName, what: &str) -> Result<Absence, UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    // A former machine has no record, so only the operator can say that it is dead.
    let since = desired.machine(member).and_then(|wish| wish.unseen_since);
    let unseen = since.map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since));
    if desired.grace.is_some() && desired.wants(member) && unseen < BLINK {
        return Ok(Absence::Brief);
    }
    let peers = Peers::of(view, member);
    peers.none_reaches(member)?;
    let seconds = unseen.as_secs().unsigned_abs();
    match desired.grace.map(|grace| grace.as_secs().unsigned_abs()) {
        // The operator's confirmation stands in for reports of agents.
        None => Ok(Absence::Dead(format!("{what}; the operator confirmed that it is dead"))),
        Some(grace) if seconds >= grace => {
            peers.enough_told(member)?;
            Ok(Absence::Dead(format!("{what}, for {seconds} s; it counts as dead after {grace} s")))
        }
        Some(grace) => {
            let lost = view.able().filter(|Voters { all, healthy }| *all > 0 && *healthy < quorum(*all));
            let majority = lost.map(|Voters { all, healthy }| (healthy, all));
            Err(UnsafeBecause::Unseen { member: member.clone(), what: what.to_owned(), seconds, grace, majority })
        }
    }
}

/// Whether enough peers report that they do not reach a machine, and none that it does.
pub fn peers_miss(view: &View<'_>, member: &MemberName) -> Result<(), UnsafeBecause> {
    let peers = Peers::of(view, member);
    peers.none_reaches(member)?;
    peers.enough_told(member)
}

/// What the other members' agents report about one machine.
struct Peers {
    reach: BTreeSet<MemberName>,
    miss: usize,
    untold: BTreeSet<MemberName>,
    /// How many peers must report it unreachable. With the controller they make a quorum of those who could: so one more agent may
    /// be unreachable in a cluster of three, and two in one of five.
    needed: usize,
}

impl Peers {
    fn of(view: &View<'_>, member: &MemberName) -> Self {
        let View { desired, seen, .. } = *view;
        let address = address_of(view, member);
        let told = |peer: &MemberName| seen.facts(peer)?.reaches.get(&address?).copied();
        let others: Vec<&MemberName> = desired.all_joined().filter(|peer| *peer != member).collect();
        let all = view.voters().all.max(1);
        // Every report counts, also from machines that are not members yet: the successor of a lost machine reports in its place.
        // Proxies are less trusted.
        let counts = move |peer: &&MemberName| *peer != member && !desired.is_proxy(peer);
        let telling = |word: bool| seen.agents.keys().filter(counts).filter(move |peer| told(peer) == Some(word));
        Peers {
            reach: telling(true).cloned().collect(),
            miss: telling(false).count(),
            untold: others.iter().copied().filter(|peer| told(peer).is_none()).cloned().collect(),
            needed: (quorum(all) - 1).min(others.len()),
        }
    }

    fn none_reaches(&self, member: &MemberName) -> Result<(), UnsafeBecause> {
        if self.reach.is_empty() {
            return Ok(());
        }
        Err(UnsafeBecause::PeersReach { member: member.clone(), by: self.reach.clone() })
    }

    fn enough_told(&self, member: &MemberName) -> Result<(), UnsafeBecause> {
        let Peers { miss, needed, .. } = *self;
        if miss >= needed {
            return Ok(());
        }
        Err(UnsafeBecause::PeersUntold { member: member.clone(), miss, needed, untold: self.untold.clone() })
    }
}

/// The address of its machine, or the one it had when it joined.
fn address_of(view: &View<'_>, member: &MemberName) -> Option<IpAddr> {
    let View { desired, seen, .. } = *view;
    let machine = seen.machines.get()?.get(member).and_then(|machine| machine.address);
    let known = || desired.known_proxies.get(member)?.first().copied();
    machine.or_else(|| desired.joined(member)?.address).or_else(known)
}
