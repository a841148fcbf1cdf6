//! A plan: `decide` run against the simulated cluster until nothing is left to do, so a plan shows what `apply` will do.

use serde::Serialize;

use super::simulate::World;
use super::{Action, Decision, Remark, Step, Strength, View, decide};
use crate::desire::{Configs, Wish};
use crate::model::{Ledger, Observation};
use crate::spec::Change;

/// More rounds than any plan needs: a plan that has not settled by then never will, and that is a bug.
const MOST_ROUNDS: usize = 200;

/// Ends the token of a formation that is only imagined.
const IMAGINED: &str = "…";

/// All steps from what was seen to a settled cluster, and what remains refused or waited for in the end.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Settings that differ from what was carried out before.
    pub changes: Vec<Change>,
    /// For each step, how strong the cluster is while it runs.
    pub strengths: Vec<Option<Strength>>,
    pub end: Decision,
    /// What should be known before.
    pub remarks: Vec<Remark>,
}

/// Runs `decide` against an imagined world that begins as the real one was seen. To render node configs is most of the work of a plan,
/// so those that the caller has are used as long as they are current.
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
