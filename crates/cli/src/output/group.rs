//! Groups the steps of a plan: consecutive steps that are the same for several members become one entry with their names.

use quorate_core::kinds::etcd::safety::Strength;
use quorate_core::planner::{Effect, Plan, Step};
use quorate_core::text::rename;

/// One entry of a plan: one step, or the same steps for several members.
pub struct Group<'a> {
    /// Of its first step, from 1.
    first: usize,
    /// How many steps it stands for.
    steps: usize,
    /// Empty: a single step, whose text names its member.
    pub members: Vec<String>,
    pub deeds: Vec<Deed<'a>>,
}

/// The action, in words that fit each member of the group.
pub struct Deed<'a> {
    pub step: &'a Step,
    pub action: String,
    pub why: String,
    pub strength: Option<Strength>,
}

impl Group<'_> {
    /// "7", or "2-13".
    pub fn label(&self) -> String {
        match self.steps {
            1 => self.first.to_string(),
            steps => format!("{}-{}", self.first, self.first + steps - 1),
        }
    }

    /// Members that are interrupted are interrupted one after another.
    pub fn who(&self) -> String {
        let in_turn = !self.is_harmless();
        self.members.join(if in_turn { ", then " } else { ", " })
    }

    fn is_harmless(&self) -> bool {
        self.deeds.iter().all(is_harmless)
    }
}

fn is_harmless(deed: &Deed<'_>) -> bool {
    deed.step.action.effect() == Effect::Harmless
}

/// All steps of a plan, in their order.
pub fn groups(plan: &Plan) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let (mut at, all) = (0, &plan.steps);
    while at < all.len() {
        let run = run(plan, at);
        let deed = deed(plan, at, run > 1);
        let members: Vec<String> = match run {
            1 => Vec::new(),
            _ => (at..at + run).filter_map(|at| plan.name(at)).collect(),
        };
        // "For a, then b: stop each, start each" would read as if a were started before b is stopped.
        let joins = |last: &&mut Group<'_>| last.is_harmless() && is_harmless(&deed);
        match groups.last_mut().filter(|last| !members.is_empty() && last.members == members).filter(joins) {
            Some(last) => {
                last.steps += run;
                last.deeds.push(deed);
            }
            None => groups.push(Group { first: at + 1, steps: run, members, deeds: vec![deed] }),
        }
        at += run;
    }
    groups
}

/// How many steps from here on are the same for different members.
fn run(plan: &Plan, at: usize) -> usize {
    let alike = |n: &usize| {
        let (one, other) = (deed(plan, at, true), deed(plan, *n, true));
        let same = (&one.action, &one.why, one.strength) == (&other.action, &other.why, other.strength);
        let about = |n: usize| plan.steps[n].action.about();
        same && about(*n).is_some() && (at..*n).all(|before| about(before) != about(*n))
    };
    1 + (at + 1..plan.steps.len()).take_while(alike).count()
}

fn deed(plan: &Plan, at: usize, for_each: bool) -> Deed<'_> {
    let step = &plan.steps[at];
    let strength = plan.strengths.get(at).copied().flatten();
    match step.action.about().filter(|_| for_each) {
        None => Deed { step, action: plan.action(at), why: plan.why(at), strength },
        Some(member) => {
            // Only texts that become equal are grouped, so a name that is also a word of the sentence does no harm.
            let each = |text: String| rename(&text, member.as_str(), "each");
            let (action, why) = (each(step.action.to_string()), each(step.why.to_string()));
            Deed { step, action, why, strength }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::model::MachineId;
    use quorate_core::planner::{Action, Precondition, Reason};

    use super::*;

    fn plan(actions: Vec<(Action, &str)>) -> Plan {
        let step =
            |(action, why): (Action, &str)| Step { action, why: Reason::new(why), expects: Precondition::Nothing };
        let steps: Vec<Step> = actions.into_iter().map(step).collect();
        let strengths = vec![None; steps.len()];
        Plan { steps, strengths, ..Plan::default() }
    }

    fn enrol(member: &str) -> Action {
        Action::Enrol { member: member.into() }
    }

    fn push(member: &str) -> Action {
        Action::PushConfig { member: member.into(), generation: 1 }
    }

    fn start(member: &str) -> Action {
        Action::StartMachine { member: member.into() }
    }

    fn shown(plan: &Plan) -> Vec<String> {
        let line = |group: &Group<'_>| {
            let deeds: Vec<&str> = group.deeds.iter().map(|deed| deed.action.as_str()).collect();
            format!("{} {}: {}", group.label(), group.who(), deeds.join("; "))
        };
        groups(plan).iter().map(line).collect()
    }

    #[test]
    fn the_same_steps_for_the_same_members_stand_together() {
        let plan = plan(vec![
            (start("etcd-1"), "etcd-1 is off"),
            (start("etcd-10"), "etcd-10 is off"),
            (enrol("etcd-1"), "new"),
            (enrol("etcd-10"), "new"),
            (Action::ForgetCluster, "it is gone"),
            (enrol("etcd-1"), "new"),
            (enrol("etcd-1"), "new"),
        ]);
        let expected = [
            "1-4 etcd-1, etcd-10: start the machine of each; enrol the agent of each",
            "5 : forget the cluster",
            "6 : enrol the agent of etcd-1",
            "7 : enrol the agent of etcd-1",
        ];
        assert_eq!(shown(&plan), expected);
        assert_eq!(groups(&plan)[0].deeds[0].why, "each is off");
    }

    #[test]
    fn a_member_with_two_machines_is_named_by_the_one_that_is_meant() {
        let mut plan = plan(vec![
            (Action::StopEtcd { member: "etcd-2".into() }, "etcd-2 gets another machine"),
            (enrol("etcd-1"), "new"),
            (enrol("etcd-2"), "new"),
            (push("etcd-2"), "etcd-2 has no configuration yet"),
        ]);
        let machine = |incarnation| Some(MachineId::new(&"etcd-2".into(), incarnation));
        plan.machines = vec![machine(1), None, machine(2), machine(2)];
        let expected = [
            "1 : stop etcd on etcd-2.1",
            "2-3 etcd-1, etcd-2.2: enrol the agent of each",
            "4 : update the configuration of etcd-2.2",
        ];
        assert_eq!(shown(&plan), expected);
        let groups = groups(&plan);
        assert_eq!(groups[0].deeds[0].why, "etcd-2 gets another machine", "the member");
        assert_eq!(groups[2].deeds[0].why, "etcd-2.2 has no configuration yet");
    }

    #[test]
    fn other_reasons_are_other_steps_and_restarts_come_in_turn() {
        let restart = |member: &str| Action::RestartEtcd { member: member.into() };
        let plan = plan(vec![(restart("a"), "old"), (restart("b"), "old"), (restart("c"), "it is ill")]);
        assert_eq!(shown(&plan), ["1-2 a, then b: restart etcd on each", "3 : restart etcd on c"]);
    }

    #[test]
    fn stops_of_all_members_before_any_start_form_a_separate_group() {
        let stop = |member: &str| Action::StopEtcd { member: member.into() };
        let begin = |member: &str| Action::StartEtcd { member: member.into(), bootstrap: None };
        let plan = plan(vec![(stop("a"), "old"), (stop("b"), "old"), (begin("a"), "new"), (begin("b"), "new")]);
        assert_eq!(shown(&plan), ["1-2 a, then b: stop etcd on each", "3-4 a, b: start etcd on each"]);
    }
}
