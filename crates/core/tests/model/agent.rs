//! An agent as the model knows it: the order of a controller is obeyed or refused exactly as the real agent does it,
//! on top of the simulated machine. Kept beside the planner's own simulation, which does as it is told.

use quorate_core::model::{CertificateUse, DataSeen, Desired, Facts, MemberName, Power, ServiceState, Stamp};
use quorate_core::planner::simulate::{SimAgent, World};
use quorate_core::planner::{Action, Precondition, Step};

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
    let verdict = judge(facts, desired, step)?;
    if verdict == Obeyed::WasSoAlready {
        return Ok(verdict);
    }
    if let Action::Auth { .. } = step.action {
        answers_clients(world, member)?;
    }
    world.effect(desired, &step.action);
    Ok(Obeyed::Done)
}

/// Whoever looks or orders tells its fencing number first; a lower one than was obeyed before is refused.
pub fn learn_fence<'a>(world: &'a mut World, member: &MemberName, fence: u64) -> Result<&'a mut Facts, Refusal> {
    let machine = world.machines.get_mut(member).filter(|m| m.seen.power == Power::On).ok_or(Refusal::Unreachable)?;
    let SimAgent::Enrolled(facts) = &mut machine.agent else { return Err(Refusal::Unreachable) };
    if fence < facts.fence {
        return Err(Refusal::StaleFence);
    }
    facts.fence = fence;
    Ok(facts)
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
        Action::WipeData { stamp, .. } => judge_wipe(facts, stamp),
        Action::RestartEtcd { .. } => match (&facts.etcd.data, &facts.etcd.last_started) {
            (DataSeen::Stamped(stamp), Some(last)) if stamp == last => Ok(Obeyed::Done),
            _ => Err(Refusal::NotAsExpected),
        },
        _ => Ok(Obeyed::Done),
    }
}

fn judge_start(facts: &Facts, expects: &Precondition, bootstrap: Option<&Stamp>) -> Result<Obeyed, Refusal> {
    let ready = facts.node_config.is_some() && facts.certificates.contains_key(&CertificateUse::Member);
    if !ready {
        return Err(Refusal::NotAsExpected);
    }
    let found = &facts.etcd.data;
    if let ServiceState::Running { .. } = facts.etcd.service {
        let other = bootstrap.is_some_and(|b| matches!(found, DataSeen::Stamped(stamp) if stamp != b));
        return if other { Err(Refusal::NotAsExpected) } else { Ok(Obeyed::WasSoAlready) };
    }
    if *expects != Precondition::Data(found.clone()) {
        return Err(Refusal::NotAsExpected);
    }
    match (found, bootstrap) {
        (DataSeen::Empty, Some(_)) if facts.etcd.last_started.is_none() => Ok(Obeyed::Done),
        (DataSeen::Stamped(_), None) => Ok(Obeyed::Done),
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

/// A change to users goes through an etcd that has a quorum behind it.
fn answers_clients(world: &World, member: &MemberName) -> Result<(), Refusal> {
    let seen = world.observe();
    let status = seen.facts(member).and_then(|f| f.etcd.status.as_ref());
    if status.is_some_and(|s| s.healthy) { Ok(()) } else { Err(Refusal::Unreachable) }
}

/// The formation whose data lies on a member's disk.
pub fn token_on_disk(world: &World, member: &MemberName) -> Option<String> {
    match &world.machines.get(member)?.facts()?.etcd.data {
        DataSeen::Stamped(stamp) => Some(stamp.token.clone()),
        DataSeen::Empty | DataSeen::Unstamped => None,
    }
}
