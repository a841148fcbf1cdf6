//! A plan: `decide` run against the simulated cluster until nothing is left to do, so a plan shows what `apply` will do.

use serde::Serialize;

use super::simulate::World;
use super::{Action, Decision, Remark, Step, Strength, View, decide};
use crate::desire::{Configs, Wish};
use crate::model::{Ledger, Observation};
use crate::spec::Change;

/// More rounds than any plan needs: a plan that has not converged by then never will, which is a bug.
const MOST_ROUNDS: usize = 200;

/// The suffix of a simulated bootstrap token.
const IMAGINED: &str = "…";

/// All steps from the observation to convergence, and what remains refused or waited for.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    pub steps: Vec<Step>,
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
pub fn plan(wish: Wish<'_>, mut configs: Configs, ledger: &Ledger, seen: &Observation) -> Plan {
    let mut world = World::imagine(ledger.clone(), seen.clone());
    let (mut steps, mut strengths) = (Vec::new(), Vec::new());
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
            return Plan { steps, changes, strengths, end: decision, remarks: Vec::new() };
        }
        for (at, step) in decision.steps.into_iter().enumerate() {
            // An observation copies every fact. Before the cluster is formed, nothing is asked of it here.
            if formed && at > 0 {
                seen = world.observe();
            }
            strengths.push(View::new(&desired, &seen).strength_during(&step.action));
            world.perform(&desired, &step.action);
            steps.push(step);
        }
        if steps.last().is_some_and(|step| step.action == Action::ForgetCluster) {
            return Plan { steps, changes, strengths, end: Decision::default(), remarks: Vec::new() };
        }
    }
    let end = decide(&wish.desire(&world.ledger, IMAGINED), &world.observe());
    Plan { steps, changes, strengths, end, remarks: Vec::new() }
}
