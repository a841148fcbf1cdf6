//! A plan: `decide` run against the simulated cluster until nothing is left to do, so a plan shows what `apply` will do.

use std::collections::{BTreeMap, BTreeSet};

use super::simulate::World;
use super::{Action, Decision, Remark, Step, Strength, View, WaitingFor, decide};
use crate::desire::{Configs, Wish};
use crate::model::{Desired, Ledger, MachineId, MemberName, Observation};
use crate::spec::Change;
use crate::text::rename;

/// More rounds than any plan needs: a plan that has not converged by then never will, which is a bug.
const MOST_ROUNDS: usize = 200;

/// The suffix of a simulated bootstrap token.
const IMAGINED: &str = "…";

/// All steps from the observation to convergence, and what remains refused or waited for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Nothing was known of a cluster with this name.
    pub is_new: bool,
    pub steps: Vec<Step>,
    /// By step, the machine that is meant, if its member has another one in this plan.
    pub machines: Vec<Option<MachineId>>,
    /// Settings that differ from those carried out before.
    pub changes: Vec<Change>,
    /// The cluster's fault tolerance during each step.
    pub strengths: Vec<Option<Strength>>,
    pub end: Decision,
    /// Remarks for the operator.
    pub remarks: Vec<Remark>,
}

/// Runs `decide` against a simulated cluster that begins like the observed one. Rendering configurations is most of a plan's work, so
/// the caller's are used while they are current.
pub fn plan(wish: Wish<'_>, mut configs: Configs, ledger: &Ledger, beginning: &Observation) -> Plan {
    let mut world = World::imagine(ledger.clone(), beginning.clone());
    let (mut steps, mut strengths, mut meant) = (Vec::new(), Vec::new(), Vec::new());
    let changes = configs.changes.clone();
    for _ in 0..MOST_ROUNDS {
        if !configs.are_current(wish.spec, &world.ledger) {
            configs = wish.configs(&world.ledger);
        }
        let desired = wish.desire_with(&world.ledger, &configs, IMAGINED);
        let mut seen = world.observe();
        let decision = decide(&desired, &seen);
        let formed = desired.is_formed();
        if decision.steps.is_empty() {
            let end = if steps.is_empty() { as_seen(&desired, beginning, decision) } else { decision };
            return Plan { machines: several(meant), steps, changes, strengths, end, ..Plan::default() };
        }
        for (at, step) in decision.steps.into_iter().enumerate() {
            // An observation copies every fact. Before the cluster is formed, nothing is asked of it here.
            if formed && at > 0 {
                seen = world.observe();
            }
            meant.push(world.machine_of(&step.action));
            strengths.push(View::new(&desired, &seen).strength_during(&step.action));
            world.perform(&desired, &step.action);
            steps.push(step);
        }
        if steps.last().is_some_and(|step| step.action == Action::ForgetCluster) {
            return Plan { machines: several(meant), steps, changes, strengths, ..Plan::default() };
        }
    }
    let end = decide(&wish.desire(&world.ledger, IMAGINED), &world.observe());
    Plan { machines: several(meant), steps, changes, strengths, end, ..Plan::default() }
}

/// How a plan without steps ends. The simulation assumes that an etcd that was started just now will answer; `apply` waits for it.
fn as_seen(desired: &Desired, seen: &Observation, simulated: Decision) -> Decision {
    let now = decide(desired, seen);
    let waits = now.waiting.iter().any(|waiting| *waiting != WaitingFor::AuthSight);
    if now.steps.is_empty() && waits { now } else { simulated }
}

/// The machines of those members that have more than one.
fn several(mut meant: Vec<Option<MachineId>>) -> Vec<Option<MachineId>> {
    let mut numbers: BTreeMap<MemberName, BTreeSet<u64>> = BTreeMap::new();
    for MachineId { member, incarnation } in meant.iter().flatten() {
        numbers.entry(member.clone()).or_default().insert(*incarnation);
    }
    meant.iter_mut().for_each(|machine| {
        machine.take_if(|machine| numbers.get(&machine.member).is_none_or(|numbers| numbers.len() < 2));
    });
    meant
}

impl World {
    /// The machine that an action is about: the one that its member has now, or gets next.
    fn machine_of(&self, action: &Action) -> Option<MachineId> {
        let member = action.about()?;
        if let Some((_, number)) = member.as_str().rsplit_once('.').filter(|_| member.is_former()) {
            return Some(MachineId::new(member, number.parse().ok()?));
        }
        let there = self.machines.get(member).map(|machine| machine.seen.incarnation);
        let next = match action {
            Action::CreateMachine { incarnation, .. } => Some(*incarnation),
            _ => self.ledger.members.get(member).map(|record| record.incarnation.max(1)),
        };
        Some(MachineId::new(member, there.or(next).unwrap_or(1)))
    }
}

impl Plan {
    /// What a step does, for the operator. If its member has several machines in this plan, the one that is meant is named.
    pub fn action(&self, at: usize) -> String {
        let action = &self.steps[at].action;
        let text = action.to_string();
        let member = action.about().filter(|member| !member.is_former());
        match (self.machines.get(at).and_then(Option::as_ref), member) {
            (Some(machine), Some(member)) => rename(&text, member.as_str(), &machine.to_string()),
            _ => text,
        }
    }

    /// Why a step is taken, for the operator. What a machine has or lacks is said of that machine, by the name that the step has for it.
    pub fn why(&self, at: usize) -> String {
        let Step { action, why, .. } = &self.steps[at];
        let of_its_machine = matches!(
            action,
            Action::Enrol { .. }
                | Action::InstallCertificates { .. }
                | Action::PushConfig { .. }
                | Action::JoinEtcd { .. }
                | Action::StartEtcd { .. }
                | Action::JoinPostgres { .. }
                | Action::StartPatroni { .. }
        );
        match (self.machines.get(at).and_then(Option::as_ref), action.about()) {
            (Some(machine), Some(member)) if of_its_machine && !member.is_former() => {
                rename(&why.to_string(), member.as_str(), &machine.to_string())
            }
            _ => why.to_string(),
        }
    }

    /// The member that a step is about, or its machine if there are several.
    pub fn name(&self, at: usize) -> Option<String> {
        let machine = self.machines.get(at).and_then(Option::as_ref).map(ToString::to_string);
        machine.or_else(|| self.steps[at].action.about().map(ToString::to_string))
    }
}
