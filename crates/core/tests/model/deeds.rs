//! How a step reaches the simulated cluster: through the ledger, the provider or an agent, and who accepts or refuses it.

use quorate_core::model::{Desired, PowerState};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, Step, remember};

use crate::agent::{self, Obeyed, Refusal};
use crate::names::{are_alike, called_as};
use crate::past::{Deed, Past};

/// A step on its way into the world, and who answers for it.
pub struct Deeds<'a> {
    pub past: &'a mut Past,
    pub before: &'a World,
    pub desired: &'a Desired,
    pub fence: u64,
    pub disturbed: bool,
}

impl Deeds<'_> {
    pub fn carry_out(self, world: &mut World, step: &Step) -> Result<Obeyed, Refusal> {
        let Deeds { past, before, desired, fence, disturbed } = self;
        let renamed = (!are_alike(world, desired)).then(|| called_as(&mut world.clone(), desired, |w| w.clone()));
        let before = renamed.as_ref().unwrap_or(before);
        called_as(world, desired, |world| {
            let formed = world.ledger.etcd.formation.is_formed();
            let obeyed = if is_order(&step.action) {
                agent::obey(world, desired, fence, step)?
            } else {
                provide(world, desired, &step.action)?
            };
            if obeyed == Obeyed::Done {
                past.judge(&Deed { before, after: world, desired, formed, fence, step, disturbed });
            }
            Ok(obeyed)
        })
    }
}

/// Steps of which a part is kept in the ledger by the very act, so that the lock is checked with them.
pub fn writes_ledger(action: &Action) -> bool {
    matches!(action, Action::CreateMachine { .. } | Action::Enrol { .. } | Action::MakeSecrets { .. })
}

/// Steps that are done by the very write that records them.
pub fn is_done_by_the_write(action: &Action) -> bool {
    use Action::{MakeSecrets, RecordFormed, RevokeMachine, RevokeUser};
    matches!(action, MakeSecrets { .. } | RecordFormed { .. } | RevokeMachine { .. } | RevokeUser { .. })
}

/// What makes a machine ready, and touches no etcd.
pub fn prepares(action: &Action) -> bool {
    writes_ledger(action) || matches!(action, Action::InstallCertificates { .. } | Action::PushConfig { .. })
}

pub fn prepare(world: &mut World, desired: &Desired, step: &Step) {
    remember::before(&mut world.ledger, desired, &step.action, world.now);
    let done = if is_order(&step.action) {
        agent::obey(world, desired, world.ledger.fence, step)
    } else {
        provide(world, desired, &step.action)
    };
    if done.is_ok() {
        remember::after(&mut world.ledger, desired, &step.action, world.now);
    }
}

fn is_for_provider(action: &Action) -> bool {
    matches!(action, Action::StartMachine { .. } | Action::StopMachine { .. } | Action::DestroyMachine { .. })
}

/// Whether an enrolled agent does it.
pub fn is_order(action: &Action) -> bool {
    action.member().is_some() && !writes_ledger(action) && !is_for_provider(action)
}

pub fn machine_id(world: &World, action: &Action) -> Option<String> {
    Some(world.machines.get(action.member()?)?.facts()?.machine_id.clone())
}

/// The formation that a step begins or begins in.
pub fn named_token(action: &Action) -> Option<String> {
    match action {
        Action::StartEtcd { bootstrap: Some(stamp), .. } => Some(stamp.token.clone()),
        Action::RecordForming { token, .. } => Some(token.clone()),
        _ => None,
    }
}

/// The provider does what it is asked where it can; a machine that exists is not made again.
pub fn provide(world: &mut World, desired: &Desired, action: &Action) -> Result<Obeyed, Refusal> {
    match action {
        Action::CreateMachine { member, .. } if world.machines.contains_key(member) => Err(Refusal::NotAsExpected),
        Action::StartMachine { member } | Action::Enrol { member } if !world.machines.contains_key(member) => {
            Err(Refusal::Unreachable)
        }
        Action::Enrol { member } if world.machines[member].seen.power == PowerState::Off => Err(Refusal::Unreachable),
        _ => {
            world.effect(desired, action);
            Ok(Obeyed::Done)
        }
    }
}
