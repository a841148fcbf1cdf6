//! Bootstrap: creates the cluster once, and afterwards keeps its members running on their data.
//!
//! The ledger records `Forming` before the first start and `Formed` before the first client write. Between the two, any
//! problem is solved by wiping all data and starting again under a new token. After `Formed`, an empty disk is never a
//! beginning.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::kinds::etcd::safety::{self, DataVerdict};
use crate::kinds::etcd::{EtcdStatus, Formation, FormingMember};
use crate::model::{Desired, Facts, MemberName, Observation, PEER_PORT, ServiceState, Stamp, https_url};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};
use crate::providers::MachineKind;

/// How long etcd may take to answer after its start before it is reported.
const START: SignedDuration = SignedDuration::from_secs(30);
/// The cluster id of an etcd that reports its health but not its identity.
const UNTOLD: u64 = 0;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if let Err(because) = safety::restore::may_begin_empty(desired) {
        return decision.block(because);
    }
    match &desired.etcd.formation {
        Formation::Unformed => begin(view, decision),
        Formation::Forming { token, members } => form(view, decision, token, members),
        Formation::Formed { token, etcd_cluster_id, members } => keep(view, decision, token, *etcd_cluster_id, members),
        Formation::Restoring { token, .. } if desired.etcd.restore.is_none() => {
            decision.block(UnsafeBecause::RestoreUnfinished { token: token.clone() });
        }
        Formation::Recovering { .. } | Formation::Restoring { .. } => {}
    }
}

/// No bootstrap has begun: removes leftovers of an abandoned one, and begins when every member is ready and empty.
fn begin(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if let Err(because) = safety::no_client_wrote(view) {
        return decision.block(because);
    }
    let mut members = BTreeMap::new();
    for member in desired.members.keys() {
        let Some(facts) = ready(seen, decision, member) else { continue };
        match safety::judge_data(desired, member, None, seen.now, facts) {
            DataVerdict::MayBeginAsNew if facts.etcd.service == ServiceState::Stopped => {
                members.extend(forming_member(seen, member, facts));
            }
            verdict => clear(desired, decision, member, facts, verdict),
        }
    }
    if members.len() == desired.members.len() {
        let token = desired.etcd.next_token.clone();
        let ready = match members.len() {
            1 => String::from("the only member is"),
            all => format!("all {all} members are"),
        };
        let why = format!("{ready} ready and empty; only this bootstrap token may start a new cluster from now on");
        decision.step(Action::RecordForming { token, members }, why);
    }
}

/// A bootstrap is in progress: starts the members, and records it as complete when all of them vote.
fn form(view: &View<'_>, decision: &mut Decision, token: &str, members: &BTreeMap<MemberName, FormingMember>) {
    let View { desired, seen, .. } = *view;
    if let Some(why) = broken(view, token, members) {
        return match safety::no_client_wrote(view) {
            Ok(()) => decision.step(Action::AbandonFormation { token: token.to_owned() }, why),
            Err(because) => decision.block(because),
        };
    }
    for member in desired.members.keys() {
        let Some(facts) = ready(seen, decision, member) else { return };
        match safety::judge_data(desired, member, Some(token), seen.now, facts) {
            DataVerdict::MayBeginAsNew | DataVerdict::MayGoOn => {}
            verdict => clear(desired, decision, member, facts, verdict),
        }
    }
    if decision.steps.is_empty() && decision.blocked.is_empty() {
        start_members(view, decision, token);
    }
    if decision.steps.is_empty() && decision.waiting.is_empty() && decision.blocked.is_empty() {
        record_formed(view, decision);
    }
}

/// Why a bootstrap cannot be completed. No client has written yet, so it simply starts again.
pub(crate) fn broken(view: &View<'_>, token: &str, members: &BTreeMap<MemberName, FormingMember>) -> Option<String> {
    let View { desired, seen, .. } = *view;
    if !members.keys().eq(desired.members.keys()) {
        return Some(String::from("the spec names other members now, and no client has written yet"));
    }
    members.iter().find_map(|(member, began)| {
        let facts = seen.facts(member)?;
        let now = forming_member(seen, member, facts).map(|(_, now)| now)?;
        if now.machine_id != began.machine_id {
            return Some(format!("{member} got another machine after the bootstrap began, so its votes are lost"));
        }
        if now.peer_url != began.peer_url {
            return Some(format!("{member} got another address after the bootstrap began"));
        }
        let lost = safety::judge_data(desired, member, Some(token), seen.now, facts) == DataVerdict::Lost;
        lost.then(|| match &facts.etcd.service {
            ServiceState::BackingOff { last_exit, .. } => format!(
                "etcd on {member} exited without leaving data ({}: {}), and its votes may be lost",
                last_exit.how, last_exit.last_words
            ),
            _ => format!("{member} lost the data of this bootstrap, and with it its votes"),
        })
    })
}

/// Each starts when the one before answers its peers: a new etcd that asks a peer whose port is open but silent waits a second. Virtual
/// machines need longer than that for a turn, and start at the same time. So do members with restored data: they ask no peer, and need
/// their time to read it.
pub(crate) fn start_members(view: &View<'_>, decision: &mut Decision, token: &str) {
    let View { desired, seen, .. } = *view;
    for (member, wish) in &desired.members {
        let Some(facts) = seen.facts(member) else { return };
        let is_new = matches!(desired.etcd.formation, Formation::Forming { .. });
        let in_turn = is_new && desired.machines == MachineKind::Process;
        match &facts.etcd.service {
            ServiceState::Stopped => {
                let stamp = Stamp {
                    cluster_id: desired.cluster_id.clone(),
                    token: token.to_owned(),
                    member: member.clone(),
                    incarnation: wish.incarnation,
                };
                let fresh =
                    safety::judge_data(desired, member, Some(token), seen.now, facts) == DataVerdict::MayBeginAsNew;
                decision.step_expecting(
                    Action::StartEtcd { member: member.clone(), bootstrap: fresh.then_some(stamp) },
                    if fresh {
                        format!("{member} takes part in the bootstrap and was not started yet")
                    } else {
                        format!("{member} holds data of this bootstrap and does not run")
                    },
                    Precondition::Data(facts.etcd.data.clone()),
                );
                if in_turn {
                    return;
                }
            }
            ServiceState::Unknown { .. } | ServiceState::BackingOff { .. } => {
                wait_for_etcd(seen, decision, member, facts);
            }
            ServiceState::Running { .. } if !facts.etcd.peer_serving => {
                decision.wait(WaitingFor::PeerPort { member: member.clone() });
                if in_turn {
                    return;
                }
            }
            ServiceState::Running { .. } => wait_for_etcd(seen, decision, member, facts),
        }
    }
}

fn record_formed(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let statuses: Vec<&EtcdStatus> =
        desired.members.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref()).collect();
    let ids: BTreeSet<u64> = statuses.iter().map(|s| s.cluster_id).collect();
    let all = desired.members.len();
    if let (Some(id), 1, true) = (ids.first(), ids.len(), statuses.len() == all) {
        let healthy = match all {
            1 => String::from("the only voter is healthy"),
            _ => format!("{all} of {all} voters are healthy and agree that they are one cluster"),
        };
        let why = format!("{healthy}; clients may write from now on");
        decision.step(Action::RecordFormed { etcd_cluster_id: *id }, why);
    } else if let Some((member, _)) = desired.members.first_key_value() {
        let why = String::from("the members do not agree yet which cluster they are");
        decision.wait(WaitingFor::Health { member: member.clone(), why });
    }
}

/// The cluster is bootstrapped: members run on their existing data, or not at all.
fn keep(
    view: &View<'_>,
    decision: &mut Decision,
    token: &str,
    etcd_cluster_id: u64,
    members: &BTreeMap<MemberName, FormingMember>,
) {
    let View { desired, seen, .. } = *view;
    let cluster = view.cluster();
    let is_learner = |m: &MemberName| cluster.and_then(|c| c.get(m)).is_some_and(|l| l.is_learner);
    let hopeless = cluster.is_none() && safety::majority_is_there(view).is_err();
    // Without a quorum no member can leave, so those that are no longer wanted are needed as well.
    let is_needed = |m: &MemberName| desired.members.contains_key(m) || cluster.is_none();
    for member in members.keys().filter(|m| is_needed(m) && !is_learner(m)) {
        // etcd never starts on outdated data: `repair` replaces the member when the rules allow it.
        let Some(facts) = ready(seen, decision, member).filter(|f| f.etcd.older.is_none()) else { continue };
        match safety::judge_data(desired, member, Some(token), seen.now, facts) {
            DataVerdict::MayGoOn => keep_running(seen, decision, member, facts, etcd_cluster_id, hopeless),
            // It was about to join, or it is lost, which `repair` handles.
            DataVerdict::MayBeginAsNew | DataVerdict::Lost => {}
            DataVerdict::Leftover(stamp) => decision.block(UnsafeBecause::OtherFormation {
                member: member.clone(),
                found: format!("the bootstrap with token {}", stamp.token),
                ours: format!("the one with token {token}"),
            }),
            DataVerdict::Foreign(found) => {
                decision.block(UnsafeBecause::ForeignData { member: member.clone(), found });
            }
        }
    }
}

fn keep_running(
    seen: &Observation,
    decision: &mut Decision,
    member: &MemberName,
    facts: &Facts,
    cluster_id: u64,
    hopeless: bool,
) {
    match (&facts.etcd.service, &facts.etcd.status) {
        (ServiceState::Stopped, _) => decision.step_expecting(
            Action::StartEtcd { member: member.clone(), bootstrap: None },
            format!("etcd on {member} does not run; it holds data of this cluster"),
            Precondition::Data(facts.etcd.data.clone()),
        ),
        (_, Some(status)) if ![cluster_id, UNTOLD].contains(&status.cluster_id) => {
            decision.block(UnsafeBecause::OtherFormation {
                member: member.clone(),
                found: format!("etcd cluster {:x}", status.cluster_id),
                ours: format!("etcd cluster {cluster_id:x}"),
            })
        }
        // Waiting does not restore a majority.
        _ if hopeless => {}
        _ => wait_for_etcd(seen, decision, member, facts),
    }
}

/// The report about an etcd that does not answer, if it is no longer starting.
pub fn is_silent(service: &ServiceState, now: Timestamp) -> Option<String> {
    let ServiceState::Running { since, .. } = service else { return None };
    let hung = now.duration_since(*since) > START;
    hung.then(|| format!("it has been running since {} and does not answer", since.strftime("%Y-%m-%d %H:%M:%S UTC")))
}

/// Waits if a member's etcd is not healthy yet.
fn wait_for_etcd(seen: &Observation, decision: &mut Decision, member: &MemberName, facts: &Facts) {
    let member = member.clone();
    let why = match (&facts.etcd.service, &facts.etcd.status) {
        (ServiceState::BackingOff { restarts, last_exit }, _) => {
            return decision.wait(WaitingFor::EtcdToStay {
                member,
                restarts: *restarts,
                how: last_exit.how.clone(),
                last_words: last_exit.last_words.clone(),
            });
        }
        (ServiceState::Unknown { why }, _) => {
            let why = format!("cannot tell whether it is running: {why}");
            return decision.wait(WaitingFor::Health { member, why });
        }
        (_, Some(status)) if status.healthy => return,
        (_, Some(status)) if status.leader == 0 => String::from("it sees no leader"),
        (_, Some(_)) => String::from("it does not answer reads yet"),
        (service, None) => is_silent(service, seen.now).unwrap_or_else(|| String::from("it does not answer yet")),
    };
    decision.wait(WaitingFor::Health { member, why });
}

/// Stops and wipes leftovers that no client ever wrote to; refuses data of others.
fn clear(desired: &Desired, decision: &mut Decision, member: &MemberName, facts: &Facts, verdict: DataVerdict) {
    if let Err(because) = safety::formation_is_known(desired, member, facts) {
        return decision.block(because);
    }
    match verdict {
        DataVerdict::Foreign(found) => decision.block(UnsafeBecause::ForeignData { member: member.clone(), found }),
        _ if facts.etcd.service != ServiceState::Stopped => decision.step(
            Action::StopEtcd { member: member.clone() },
            "its bootstrap was abandoned before any client could write",
        ),
        DataVerdict::Leftover(stamp) if safety::may_wipe_leftover(&desired.etcd.formation) => {
            // One that exited before it was complete does not run, and should be started again.
            let why = "it must not start again on data that is being wiped";
            decision.step(Action::StopEtcd { member: member.clone() }, why);
            decision.step_expecting(
                Action::WipeData { member: member.clone(), stamp },
                "that bootstrap was abandoned before any client could write",
                Precondition::Data(facts.etcd.data.clone()),
            );
        }
        _ => {}
    }
}

/// The facts of a member that no earlier concern is working on.
fn ready<'a>(seen: &'a Observation, decision: &Decision, member: &MemberName) -> Option<&'a Facts> {
    if decision.has_business_with(member) { None } else { seen.facts(member) }
}

pub(crate) fn forming_member(
    seen: &Observation,
    member: &MemberName,
    facts: &Facts,
) -> Option<(MemberName, FormingMember)> {
    let address = seen.machines.get()?.get(member)?.address?;
    let peer_url = https_url(address, PEER_PORT);
    Some((member.clone(), FormingMember { machine_id: facts.machine_id.clone(), peer_url, learner: false }))
}
