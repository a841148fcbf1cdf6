//! An agent in the model: it obeys or refuses a controller's order exactly like the real agent and its etcd, on top of the
//! simulated machine. Separate from the planner's own simulation, which obeys every order.

use quorate_core::kinds::etcd::simulate::SimListed;
use quorate_core::kinds::etcd::{EtcdStatus, Membership};
use quorate_core::model::{CertificateUse, DataSeen, Desired, Facts, MemberName, PowerState, ServiceState, Stamp};
use quorate_core::planner::simulate::{SimMachine, World, take_up_trust};
use quorate_core::planner::{Action, Precondition, Step};

use crate::etcd::{RESTARTED, backing_off, may_run, quorum, runs, url_of};

/// Why an order was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    StaleFence,
    Unreachable,
    NotAsExpected,
}

/// Whether the order would change anything: one whose answer was lost may come again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obeyed {
    Done,
    WasSoAlready,
}

/// Gives an enrolled agent an order, with the fencing number of the controller that sends it.
pub fn obey(world: &mut World, desired: &Desired, fence: u64, step: &Step) -> Result<Obeyed, Refusal> {
    let member = step.action.member().expect("an order is for one machine");
    let facts = learn_fence(world, member, fence)?;
    if judge(facts, desired, step)? == Obeyed::WasSoAlready {
        return Ok(Obeyed::WasSoAlready);
    }
    match &step.action {
        Action::Auth { .. } => drop(answers_clients(world, member)?),
        Action::MoveLeader { to_id, .. } => judge_handover(world, member, *to_id)?,
        Action::AddLearner { .. } | Action::Promote { .. } | Action::RemoveMember { .. }
            if judge_membership(world, member, step)? == Obeyed::WasSoAlready =>
        {
            return Ok(Obeyed::WasSoAlready);
        }
        _ => {}
    }
    world.effect(desired, &step.action);
    use Action::{JoinEtcd, RebootMachine, RestartEtcd, TakeRaftSnapshot};
    if let RestartEtcd { .. } | TakeRaftSnapshot { .. } | RebootMachine { .. } | JoinEtcd { .. } = step.action {
        takes_a_moment(world, member);
    }
    Ok(Obeyed::Done)
}

/// Every observation and every order carries its fencing number; a lower one than was obeyed before is refused.
pub fn learn_fence<'a>(world: &'a mut World, member: &MemberName, fence: u64) -> Result<&'a Facts, Refusal> {
    let machine =
        world.machines.get_mut(member).filter(|m| m.seen.power == PowerState::On).ok_or(Refusal::Unreachable)?;
    let obeyed = machine.facts().ok_or(Refusal::Unreachable)?.fence;
    if fence < obeyed {
        return Err(Refusal::StaleFence);
    }
    // What stays the same stays shared with the worlds before.
    if fence > obeyed
        && let Some(facts) = machine.facts_mut()
    {
        facts.fence = fence;
    }
    machine.facts().ok_or(Refusal::Unreachable)
}

fn judge(facts: &Facts, desired: &Desired, step: &Step) -> Result<Obeyed, Refusal> {
    match &step.action {
        Action::PushConfig { member, generation } => {
            let digest = &desired.members[member].digest;
            match &facts.node_config {
                Some((held, _)) if held > generation => Err(Refusal::NotAsExpected),
                Some((held, content)) if held == generation && content != digest => Err(Refusal::NotAsExpected),
                Some((held, _)) if held == generation => Ok(Obeyed::WasSoAlready),
                _ => Ok(Obeyed::Done),
            }
        }
        Action::StartEtcd { bootstrap, .. } => judge_start(facts, &step.expects, bootstrap.as_ref()),
        Action::JoinEtcd { stamp, .. } => judge_start(facts, &step.expects, Some(stamp)),
        Action::WipeData { stamp, .. } => judge_wipe(facts, stamp),
        Action::RestartEtcd { member } => judge_restart(facts, &desired.members[member].service_digest),
        // It has rebooted since.
        Action::RebootMachine { boot, .. } if facts.host.boot.as_ref() != Some(boot) => Ok(Obeyed::WasSoAlready),
        Action::Rebuild { was, stamp, .. } => judge_rebuild(facts, was, stamp),
        Action::StageSnapshot { sha256, .. } => Ok(match &facts.etcd.staged {
            Some(staged) if staged.sha256 == *sha256 => Obeyed::WasSoAlready,
            _ => Obeyed::Done,
        }),
        Action::RestoreData { was, stamp, sha256, .. } => judge_restore(facts, was, stamp, sha256),
        _ => Ok(Obeyed::Done),
    }
}

fn judge_start(facts: &Facts, expects: &Precondition, bootstrap: Option<&Stamp>) -> Result<Obeyed, Refusal> {
    let ready = facts.node_config.is_some() && facts.certificates.contains_key(&CertificateUse::Member);
    if !ready {
        return Err(Refusal::NotAsExpected);
    }
    let found = &facts.etcd.data;
    match facts.etcd.service {
        ServiceState::Running { .. } => {
            let other = bootstrap.is_some_and(|b| matches!(found, DataSeen::Stamped(stamp) if stamp != b));
            return if other { Err(Refusal::NotAsExpected) } else { Ok(Obeyed::WasSoAlready) };
        }
        ServiceState::BackingOff { .. } => return Ok(Obeyed::WasSoAlready),
        ServiceState::Unknown { .. } => return Err(Refusal::NotAsExpected),
        ServiceState::Stopped => {}
    }
    if *expects != Precondition::Data(found.clone()) {
        return Err(Refusal::NotAsExpected);
    }
    match (found, bootstrap) {
        (DataSeen::Empty, Some(_)) if facts.etcd.last_started.is_none() => Ok(Obeyed::Done),
        (DataSeen::Stamped(_), None) if facts.etcd.older.is_none() => Ok(Obeyed::Done),
        _ => Err(Refusal::NotAsExpected),
    }
}

fn judge_wipe(facts: &Facts, stamp: &Stamp) -> Result<Obeyed, Refusal> {
    let stopped = facts.etcd.service == ServiceState::Stopped;
    let last = facts.etcd.last_started.as_ref();
    match &facts.etcd.data {
        DataSeen::Stamped(found) if stopped && found == stamp => Ok(Obeyed::Done),
        DataSeen::Empty if stopped && last.is_none_or(|last| last == stamp) => Ok(Obeyed::Done),
        _ => Err(Refusal::NotAsExpected),
    }
}

/// A restart is for etcd to take up what is in place. One that comes late must not disturb an etcd that runs with it.
fn judge_restart(facts: &Facts, digest: &String) -> Result<Obeyed, Refusal> {
    if matches!(&facts.etcd.service, ServiceState::Running { digest: with, .. } if with == digest) {
        return Ok(Obeyed::WasSoAlready);
    }
    let fits = matches!((&facts.etcd.data, &facts.etcd.last_started),
        (DataSeen::Stamped(stamp), Some(last)) if stamp == last);
    let may = facts.etcd.service != ServiceState::Stopped && facts.etcd.older.is_none();
    if fits && may { Ok(Obeyed::Done) } else { Err(Refusal::NotAsExpected) }
}

fn judge_rebuild(facts: &Facts, was: &Stamp, stamp: &Stamp) -> Result<Obeyed, Refusal> {
    match &facts.etcd.data {
        DataSeen::Stamped(found) if found == stamp => Ok(Obeyed::WasSoAlready),
        DataSeen::Stamped(found) if found == was && facts.etcd.service == ServiceState::Stopped => Ok(Obeyed::Done),
        _ => Err(Refusal::NotAsExpected),
    }
}

fn judge_restore(facts: &Facts, was: &DataSeen, stamp: &Stamp, sha256: &str) -> Result<Obeyed, Refusal> {
    let ready = facts.node_config.is_some() && facts.etcd.staged.as_ref().is_some_and(|s| s.sha256 == *sha256);
    match &facts.etcd.data {
        DataSeen::Stamped(found) if found == stamp => Ok(Obeyed::WasSoAlready),
        found if found == was && ready && facts.etcd.service == ServiceState::Stopped => Ok(Obeyed::Done),
        _ => Err(Refusal::NotAsExpected),
    }
}

/// Only who leads can hand over, and only to a voter that runs.
fn judge_handover(world: &World, member: &MemberName, to: u64) -> Result<(), Refusal> {
    let leads = answers_clients(world, member)?;
    let follows = world.listed.iter().any(|l| l.id == to && !l.is_learner && runs(world, l));
    if leads.leader == leads.member_id && follows { Ok(()) } else { Err(Refusal::NotAsExpected) }
}

/// The list is read with a quorum, and must be as expected. What etcd itself refuses comes after that.
fn judge_membership(world: &World, through: &MemberName, step: &Step) -> Result<Obeyed, Refusal> {
    answers_clients(world, through)?;
    let Precondition::Membership(expects) = &step.expects else { return Err(Refusal::NotAsExpected) };
    let found: Membership = world.listed.iter().map(|l| (l.id, l.is_learner)).collect();
    if is_so_already(world, expects, &found, &step.action) {
        return Ok(Obeyed::WasSoAlready);
    }
    if found != *expects {
        return Err(Refusal::NotAsExpected);
    }
    let voters = || world.listed.iter().filter(|l| !l.is_learner);
    let (all, running) = (voters().count(), voters().filter(|l| runs(world, l)).count());
    let listed = |id: u64| world.listed.iter().find(|l| l.id == id);
    let etcd_agrees = match &step.action {
        // It asks for a connection to every voter, and knows no second learner.
        Action::AddLearner { .. } => running == all && world.listed.iter().all(|l| !l.is_learner),
        Action::Promote { id, .. } => listed(*id).is_some_and(|l| runs(world, l)) && running + 1 >= quorum(all + 1),
        Action::RemoveMember { id, .. } => {
            listed(*id).is_some_and(|l| l.is_learner || !runs(world, l) || running > quorum(all - 1))
        }
        _ => false,
    };
    if etcd_agrees { Ok(Obeyed::Done) } else { Err(Refusal::Unreachable) }
}

fn is_so_already(world: &World, expects: &Membership, found: &Membership, action: &Action) -> bool {
    match action {
        Action::AddLearner { joining, .. } => {
            let mut new = world.listed.iter().filter(|l| !expects.contains_key(&l.id));
            let unchanged = expects.iter().all(|(id, is_learner)| found.get(id) == Some(is_learner));
            let joined = |l: &SimListed| l.is_learner && l.peer_url == joining.peer_url;
            unchanged && new.next().is_some_and(joined) && new.next().is_none()
        }
        Action::Promote { id, .. } => {
            let mut promoted = expects.clone();
            promoted.insert(*id, false);
            *found == promoted
        }
        Action::RemoveMember { id, .. } => {
            let mut left = expects.clone();
            left.remove(id);
            *found == left
        }
        _ => false,
    }
}

/// An etcd that starts is down at first; one that is no member ends, and again.
fn takes_a_moment(world: &mut World, member: &MemberName) {
    if let Some(facts) = world.machines.get_mut(member).and_then(SimMachine::facts_mut) {
        facts.etcd.service = backing_off(RESTARTED);
        facts.etcd.peer_serving = false;
    }
}

/// What a change goes through is an etcd that has a quorum behind it.
fn answers_clients(world: &World, member: &MemberName) -> Result<EtcdStatus, Refusal> {
    let seen = world.observe();
    let status = seen.facts(member).and_then(|f| f.etcd.status.clone());
    status.filter(|s| s.healthy).ok_or(Refusal::Unreachable)
}

/// The formation whose data is on a member's disk.
pub fn token_on_disk(world: &World, member: &MemberName) -> Option<String> {
    match &world.machines.get(member)?.facts()?.etcd.data {
        DataSeen::Stamped(stamp) => Some(stamp.token.clone()),
        DataSeen::Empty | DataSeen::Unstamped => None,
    }
}

/// An etcd that ended or was just started comes up by itself, where it can.
pub fn comes_up(world: &mut World, desired: &Desired, member: &MemberName) {
    let wish = desired.members.get(member);
    let may = world.machines.get(member).is_some_and(|m| may_run(world, &url_of(m), m));
    let Some(facts) = world.machines.get_mut(member).and_then(SimMachine::facts_mut) else { return };
    if facts.etcd.data == DataSeen::Empty {
        facts.etcd.service = ServiceState::Stopped;
    } else if may {
        // It reads what is in place, which need not be what is wanted by now.
        let in_place = facts.node_config.as_ref().map(|(_, digest)| digest);
        let digest = wish.filter(|wish| in_place == Some(&wish.digest)).map(|wish| wish.service_digest.clone());
        let since = jiff::Timestamp::UNIX_EPOCH;
        facts.etcd.service = ServiceState::Running { since, digest: digest.unwrap_or_default(), restarts: 0 };
        facts.etcd.peer_serving = true;
        take_up_trust(facts);
        world.take_up_program(member);
    }
}
