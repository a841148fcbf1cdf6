//! Recovery, after the operator has confirmed that the quorum is permanently lost. The survivors are stopped, so their data no longer
//! changes. The survivor with the most recent log becomes a cluster of one, under a new token and at a revision far above any that clients
//! have seen. The others rejoin as new members.

use std::collections::BTreeSet;

use crate::kinds::etcd::cluster::peer_url;
use crate::kinds::etcd::safety;
use crate::kinds::etcd::safety::requests::{holds, loss_is_as_confirmed};
use crate::kinds::etcd::{Formation, LogEnd};
use crate::model::{DataSeen, Desired, Facts, MemberName, ServiceState, Stamp};
use crate::planner::safety::{Absence, judge_absence};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};

/// Whether a survivor must be chosen, for the first time or again.
pub(crate) fn is_to_begin(view: &View<'_>) -> bool {
    let View { desired, seen, .. } = *view;
    match &desired.etcd.formation {
        Formation::Formed { .. } => true,
        Formation::Recovering { from, .. } => seen.machines.get().is_some_and(|machines| !machines.contains_key(from)),
        Formation::Unformed | Formation::Forming { .. } | Formation::Restoring { .. } => false,
    }
}

/// The recovery was confirmed: finds the survivor to begin from, also when the chosen one has disappeared since.
pub(crate) fn begin(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let (Formation::Formed { token, members, .. } | Formation::Recovering { was: token, members, .. }) =
        &desired.etcd.formation
    else {
        return;
    };
    if let Err(because) = safety::majority_is_lost(view) {
        return decision.block(because);
    }
    let (mut survivors, mut unread, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    let (mut silent, mut doubts) = (BTreeSet::new(), Vec::new());
    for member in members.keys() {
        let is_shown = seen.machines.get().is_some_and(|machines| machines.contains_key(member));
        if is_shown && seen.facts(member).is_none() {
            let what = format!("the machine of {member} does not answer, and may hold more than the others");
            match judge_absence(view, member, &what) {
                Ok(Absence::Dead(_)) => {}
                Ok(Absence::Brief) => return decision.wait(WaitingFor::Agent { member: member.clone(), why: what }),
                Err(because) => {
                    silent.insert(member.clone());
                    doubts.push(because);
                }
            }
        }
        let Some(facts) = seen.facts(member).filter(|f| holds(f, &desired.cluster_id, token)) else { continue };
        if let Some(why) = &facts.etcd.log_damage {
            unreadable.push(format!("the log of {member} cannot be read ({why})"));
            unread.push((member, facts));
            continue;
        }
        survivors.push((member, facts));
    }
    // If no survivor is left, it does not matter whether silent members are dead, and no confirmation is needed: only their data would
    // help. This refuses as well, so nothing is done that was not done before.
    let lives = doubts.iter().any(|because| matches!(because, UnsafeBecause::PeersReach { .. }));
    if survivors.is_empty() && !lives {
        return decision.block(UnsafeBecause::NothingSurvives { voters: members.len(), silent });
    }
    if !doubts.is_empty() {
        return doubts.into_iter().for_each(|because| decision.block(because));
    }
    let mut left: Vec<(&MemberName, &Facts)> = survivors.clone();
    left.extend(unread);
    left.sort_by_key(|(member, _)| *member);
    if let Err(because) = loss_is_as_confirmed(desired.etcd.recovery_of.as_ref(), token, &left) {
        return decision.block(because);
    }
    let running: Vec<_> = survivors.iter().filter(|(_, f)| f.etcd.service != ServiceState::Stopped).collect();
    if !running.is_empty() {
        for (member, _) in running {
            let why = format!(
                "the majority is lost, and nothing may change on {member} while its data is compared and copied"
            );
            decision.step(Action::StopEtcd { member: (*member).clone() }, why);
        }
        return;
    }
    choose(desired, decision, token, members.len(), &survivors, &unreadable);
}

fn choose(
    desired: &Desired,
    decision: &mut Decision,
    was: &str,
    all: usize,
    survivors: &[(&MemberName, &Facts)],
    unreadable: &[String],
) {
    let mut ends: Vec<(LogEnd, &MemberName)> = Vec::new();
    for (member, facts) in survivors {
        match facts.etcd.log {
            Some(log) => ends.push((log, member)),
            None => {
                let why = String::from("it has not reported yet where its log ends");
                return decision.wait(WaitingFor::Agent { member: (*member).clone(), why });
            }
        }
    }
    let rank = |(log, m): &&(LogEnd, &MemberName)| (log.term, log.index, desired.members.contains_key(*m));
    let Some((best, from)) = ends.iter().max_by_key(rank).copied() else { return };
    let told = ends.iter().map(|(log, m)| match *log {
        LogEnd::UNREAD => format!("the end of the log of {m} is known once it is read"),
        LogEnd { term, index, .. } => format!("{m} ends at term {term} index {index}"),
    });
    let told = told.chain(unreadable.iter().cloned()).collect::<Vec<_>>().join(", ");
    let why = format!(
        "{} of {all} members hold their data: {told}. Writes that the lost members acknowledged after index {} of term {} \
         are lost; {} knows its log to be committed up to index {}",
        ends.len(),
        best.index,
        best.term,
        from,
        best.commit
    );
    let (was, token) = (was.to_owned(), desired.etcd.next_token.clone());
    decision.step(Action::RecordRecovery { was, token, from: from.clone() }, why);
}

/// The survivor was chosen and recorded: it becomes a cluster of one.
pub(crate) fn go_on(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let Formation::Recovering { was, token, from, .. } = &desired.etcd.formation else { return };
    if decision.has_business_with(from) {
        return;
    }
    if seen.machines.get().is_none() {
        return;
    }
    let machine = seen.machines.get().and_then(|machines| machines.get(from));
    let (Some(machine), Some(peer_url)) = (machine, peer_url(seen, from)) else {
        return decision.block(UnsafeBecause::SurvivorGone { member: from.clone() });
    };
    let Some(facts) = seen.facts(from) else {
        let why = String::from("the cluster is being recovered from its data");
        return decision.wait(WaitingFor::Agent { member: from.clone(), why });
    };
    match &facts.etcd.data {
        DataSeen::Stamped(stamp) if stamp.token == *was && facts.etcd.service != ServiceState::Stopped => {
            decision.step(Action::StopEtcd { member: from.clone() }, "its data is about to be copied");
        }
        DataSeen::Stamped(stamp) if stamp.token == *was => {
            let new = Stamp {
                cluster_id: desired.cluster_id.clone(),
                token: token.clone(),
                member: from.seat().into(),
                incarnation: machine.incarnation,
            };
            let bump_revision =
                safety::restore::bump_past(safety::revision::remembered(desired.etcd.highest_revision), 0);
            decision.step_expecting(
                Action::Rebuild { member: from.clone(), was: stamp.clone(), stamp: new, peer_url, bump_revision },
                format!(
                    "a copy of its data becomes a cluster of one, whose revisions continue above {bump_revision}, so no \
                     client goes back in time; the existing data is kept next to it"
                ),
                Precondition::Data(facts.etcd.data.clone()),
            );
        }
        DataSeen::Stamped(stamp) if stamp.token == *token => run(decision, from, facts),
        found => decision.block(UnsafeBecause::ForeignData { member: from.clone(), found: format!("{found:?}") }),
    }
}

fn run(decision: &mut Decision, from: &MemberName, facts: &Facts) {
    match (&facts.etcd.service, &facts.etcd.status) {
        (ServiceState::Stopped, _) => decision.step_expecting(
            Action::StartEtcd { member: from.clone(), bootstrap: None },
            format!("{from} holds the recovered data"),
            Precondition::Data(facts.etcd.data.clone()),
        ),
        (_, Some(status)) if status.healthy => decision.step(
            Action::RecordFormed { etcd_cluster_id: status.cluster_id },
            format!("{from} serves the recovered data; the others rejoin as new members, and clients may write again"),
        ),
        _ => {
            let why = String::from("it does not answer reads yet");
            decision.wait(WaitingFor::Health { member: from.clone(), why });
        }
    }
}
