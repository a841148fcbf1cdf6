//! A plan as text and as JSON: what changes, each step with its reason, then what is waited for or refused. Steps that
//! are the same for several members are grouped. Clusters are rendered one at a time, so a fleet need not fit in memory.

use std::fmt::Write;

use quorate_core::kinds::etcd::safety::{Strength, healthy_of};
use quorate_core::planner::{Effect, Plan, Remark, Step, UnsafeBecause, WaitingFor};
use quorate_core::spec::Change;
use serde::Serialize;

use super::group::{self, Deed};
use super::page::{Page, Style};
use quorate_core::text::{plural, rename};

/// The level of detail for each step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    Reasons,
    /// Also the cluster's fault tolerance while the step runs.
    Explained,
}

/// The totals of all plans of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    pub clusters: usize,
    pub steps: usize,
    pub waiting: usize,
    pub blocked: usize,
}

impl Summary {
    pub fn add(&mut self, plan: &Plan) {
        self.clusters += 1;
        self.steps += plan.steps.len();
        self.waiting += plan.end.waiting.len();
        self.blocked += plan.end.blocked.len();
    }

    pub fn line(&self) -> String {
        let Summary { clusters, steps, waiting, blocked } = *self;
        let mut line = format!("{}: {}", plural(clusters, "cluster"), plural(steps, "step"));
        if waiting > 0 {
            let _ = write!(line, ", {waiting} waiting");
        }
        if blocked > 0 {
            let _ = write!(line, ", {blocked} blocked");
        }
        line.push('\n');
        line
    }
}

/// One cluster's plan, for people.
pub fn page(cluster: &str, plan: &Plan, detail: Detail) -> Page {
    let Plan { steps, changes, end, remarks, .. } = plan;
    let mut page = Page::new();
    let head = match steps.len() {
        0 if end.settled() && changes.is_empty() => String::from("nothing to do"),
        0 if end.settled() => String::from("no steps; applying it records the new settings"),
        0 => String::from("no step can be taken"),
        number => plural(number, "step"),
    };
    let begin = if plan.is_new { "new cluster " } else { "cluster " };
    page.line(2, [(Style::Plain, begin), (Style::Bold, cluster), (Style::Plain, &format!(": {head}"))]);
    for remark in remarks {
        page.plain(4, &format!("  note: {}", remark.text));
    }
    for change in changes {
        page.line(4, [(colour_of(change), format!("  {change}").as_str())]);
    }
    page.append(listed(plan, detail));
    for waiting in &end.waiting {
        page.plain(4, &format!("  waiting for {waiting}"));
    }
    page.append(blocked(cluster, &end.blocked));
    page
}

fn colour_of(change: &Change) -> Style {
    match (&change.before, &change.after) {
        (None, _) => Style::Green,
        (_, None) => Style::Red,
        _ => Style::Yellow,
    }
}

fn listed(plan: &Plan, detail: Detail) -> Page {
    let mut page = Page::new();
    let groups = group::groups(plan);
    let width = groups.iter().map(|group| group.label().len()).max().unwrap_or(0);
    // Repeated only when it differs.
    let mut said = None;
    for group in &groups {
        let label = format!("  {:>width$}. ", group.label());
        let (first, indent) = match group.members.is_empty() {
            true => (label, width + 4),
            false => {
                let members = [(Style::Plain, label.as_str()), (Style::Plain, "for "), (Style::Bold, &group.who())];
                page.line(width + 4, members.into_iter().chain([(Style::Plain, ":")]));
                (" ".repeat(width + 6), width + 6)
            }
        };
        for (index, Deed { step, action, why, strength }) in group.deeds.iter().enumerate() {
            let margin = if index == 0 { first.clone() } else { " ".repeat(indent) };
            page.line(indent + 2, [(Style::Plain, margin.as_str()), (style_of(step), action)]);
            // Below the members of a group, a reason stands below its step.
            let margin = " ".repeat(if group.members.is_empty() { indent } else { indent + 2 });
            let hang = margin.len() + 2;
            page.line(hang, [(Style::Dim, format!("{margin}because {why}").as_str())]);
            if detail == Detail::Explained && said != Some(*strength) {
                said = Some(*strength);
                let told = format!("{margin}while it runs: {}", explained(strength.as_ref()));
                page.line(hang, [(Style::Dim, told.as_str())]);
            }
        }
    }
    page
}

pub fn style_of(step: &Step) -> Style {
    match step.action.effect() {
        Effect::Harmless => Style::Plain,
        Effect::Interrupts => Style::Yellow,
        Effect::Destroys => Style::Red,
    }
}

fn explained(strength: Option<&Strength>) -> String {
    let Some(Strength { voters, healthy, quorum, failures_survived }) = strength else {
        return String::from("the cluster is not bootstrapped, and no client depends on it");
    };
    let tolerates = match failures_survived {
        0 if healthy < quorum => String::from("it does not serve"),
        0 => String::from("tolerates no failure"),
        failures => format!("tolerates {}", plural(*failures, "failure")),
    };
    format!("{} (quorum {quorum}), {tolerates}", healthy_of(*healthy, *voters))
}

/// Refusals, with their rule and remedy. One that is the same for several members is printed once. Consecutive refusals that share rule
/// and remedy have them printed once, below the last one.
pub fn blocked(cluster: &str, refusals: &[UnsafeBecause]) -> Page {
    let mut page = Page::new();
    let way_on = |because: &UnsafeBecause| (because.rule().to_string(), remedy(cluster, because));
    let same =
        |one: &UnsafeBecause, other: &UnsafeBecause| of_each(one).is_some_and(|text| of_each(other) == Some(text));
    let groups: Vec<&[UnsafeBecause]> = refusals.chunk_by(same).collect();
    for (index, group) in groups.iter().enumerate() {
        let [because, ..] = group else { continue };
        let members: Vec<String> = group.iter().filter_map(|one| Some(one.member()?.to_string())).collect();
        let text = match of_each(because).filter(|_| group.len() > 1) {
            Some((text, _)) => format!("for {}: {text}", members.join(", ")),
            None => because.to_string(),
        };
        page.line(4, [(Style::Red, "  blocked: "), (Style::Plain, text.as_str())]);
        let (rule, remedy) = way_on(because);
        if groups.get(index + 1).is_some_and(|next| way_on(&next[0]) == (rule.clone(), remedy.clone())) {
            continue;
        }
        page.line(12, [(Style::Plain, format!("    rule:   {rule}").as_str())]);
        page.line(12, [(Style::Plain, "    remedy: "), (Style::Bold, remedy.as_str())]);
    }
    page
}

/// A refusal in words that fit other members too, and its remedy. A remedy that names the member fits no other one.
fn of_each(because: &UnsafeBecause) -> Option<(String, String)> {
    let member = because.member()?;
    Some((rename(&because.to_string(), member.as_str(), "each"), because.remedy()))
}

/// The remedy, with commands that can be typed as they are.
fn remedy(cluster: &str, because: &UnsafeBecause) -> String {
    because.remedy().replace(" NAME", &format!(" {cluster}"))
}

#[derive(Debug, Serialize)]
pub struct PlanJson {
    cluster: String,
    new: bool,
    remarks: Vec<Remark>,
    changes: Vec<Change>,
    steps: Vec<StepJson>,
    waiting: Vec<WaitingJson>,
    blocked: Vec<BlockedJson>,
}

#[derive(Debug, Serialize)]
struct StepJson {
    number: usize,
    kind: &'static str,
    member: Option<String>,
    action: String,
    because: String,
    /// None before the cluster is formed.
    strength: Option<Strength>,
}

#[derive(Debug, Serialize)]
struct WaitingJson {
    member: Option<String>,
    waiting_for: String,
}

#[derive(Debug, Serialize)]
struct BlockedJson {
    kind: &'static str,
    member: Option<String>,
    because: String,
    rule: String,
    remedy: String,
}

/// One cluster's plan, for scripts.
pub fn json(cluster: &str, plan: &Plan) -> PlanJson {
    let step = |(index, (Step { action, .. }, strength)): (usize, (&Step, &Option<Strength>))| StepJson {
        number: index + 1,
        kind: action.kind(),
        member: action.member().map(ToString::to_string),
        action: plan.action(index),
        because: plan.why(index),
        strength: *strength,
    };
    let waiting =
        |w: &WaitingFor| WaitingJson { member: w.member().map(ToString::to_string), waiting_for: w.to_string() };
    let blocked = |b: &UnsafeBecause| BlockedJson {
        kind: b.kind(),
        member: b.member().map(ToString::to_string),
        because: b.to_string(),
        rule: b.rule().to_string(),
        remedy: remedy(cluster, b),
    };
    PlanJson {
        cluster: cluster.to_owned(),
        new: plan.is_new,
        remarks: plan.remarks.clone(),
        changes: plan.changes.clone(),
        steps: plan.steps.iter().zip(&plan.strengths).enumerate().map(step).collect(),
        waiting: plan.end.waiting.iter().map(waiting).collect(),
        blocked: plan.end.blocked.iter().map(blocked).collect(),
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::planner::{Action, Decision, Precondition, Reason, RemarkKind};

    use super::super::page::Look;
    use super::*;

    fn step(action: Action, why: &str) -> Step {
        Step { action, why: Reason::new(why), expects: Precondition::Nothing }
    }

    fn plan() -> Plan {
        let steps = vec![
            step(Action::Enrol { member: "etcd-1".into() }, "its agent has no certificate yet"),
            step(Action::ForgetCluster, "no machine of it is left"),
        ];
        let waiting = vec![WaitingFor::PeerPort { member: "etcd-2".into() }];
        let blocked = vec![UnsafeBecause::Outage { member: "etcd-1".into(), voters: 1 }];
        let strengths = vec![None, Some(Strength { voters: 3, healthy: 2, quorum: 2, failures_survived: 0 })];
        let text = String::from("machines are emulated");
        let remarks = vec![Remark { kind: RemarkKind::Machines, text }];
        let quota = Change {
            path: String::from("etcd.quota"),
            before: Some(String::from("4GiB")),
            after: Some(String::from("6GiB")),
        };
        let end = Decision { steps: Vec::new(), waiting, blocked };
        Plan { steps, changes: vec![quota], strengths, end, remarks, ..Plan::default() }
    }

    fn shown(plan: &Plan, detail: Detail) -> String {
        page("demo", plan, detail).render(Look::default())
    }

    #[test]
    fn a_plan_numbers_its_steps_and_shows_what_remains() {
        let expected = "\
cluster demo: 2 steps
  note: machines are emulated
  ~ etcd.quota: 4GiB → 6GiB
  1. enrol the agent of etcd-1
     because its agent has no certificate yet
  2. forget the cluster
     because no machine of it is left
  waiting for etcd on etcd-2 to answer its peers
  blocked: etcd-1 must be restarted and is the only voter: the cluster is down while it restarts
    rule:   quorum is never lost
    remedy: re-run the command with `--allow-downtime` to allow the downtime
";
        assert_eq!(shown(&plan(), Detail::Reasons), expected);
        let mut summary = Summary::default();
        summary.add(&plan());
        assert_eq!(summary.line(), "1 cluster: 2 steps, 1 waiting, 1 blocked\n");
    }

    #[test]
    fn a_name_that_nothing_is_known_of_is_a_new_cluster() {
        let plan = Plan { is_new: true, ..plan() };
        assert!(shown(&plan, Detail::Reasons).starts_with("new cluster demo: 2 steps\n"));
        assert_eq!(serde_json::to_value(json("demo", &plan)).unwrap()["new"], true);
    }

    #[test]
    fn an_explained_plan_shows_the_fault_tolerance_during_each_step() {
        let text = shown(&plan(), Detail::Explained);
        let lines: Vec<&str> = text.lines().filter_map(|l| l.trim().strip_prefix("while it runs: ")).collect();
        let expected = [
            "the cluster is not bootstrapped, and no client depends on it",
            "2 of 3 voters are healthy (quorum 2), tolerates no failure",
        ];
        assert_eq!(lines, expected);
        let down = Strength { voters: 3, healthy: 1, quorum: 2, failures_survived: 0 };
        assert!(explained(Some(&down)).ends_with("it does not serve"));
    }

    #[test]
    fn a_converged_cluster_is_reported_as_such() {
        let settled = Plan::default();
        assert_eq!(shown(&settled, Detail::Explained), "cluster demo: nothing to do\n");
        let path = String::from("backup.schedule");
        let change = Change { path, before: Some(String::from("24h")), after: Some(String::from("12h")) };
        let recorded = Plan { changes: vec![change], ..settled };
        let expected = "cluster demo: no steps; applying it records the new settings\n  ~ backup.schedule: 24h → 12h\n";
        assert_eq!(shown(&recorded, Detail::Reasons), expected);
    }

    #[test]
    fn refusals_of_the_same_kind_share_a_rule_and_a_remedy_that_names_the_cluster() {
        let silent = |member: &str| UnsafeBecause::JoinFailed { member: member.into(), why: String::from("it hangs") };
        let wrong = |member: &str| UnsafeBecause::WrongBinary {
            member: member.into(),
            wanted: String::from("3.6.16"),
            found: String::from("finds 3.5.30"),
            remedy: String::from("install it"),
        };
        let other = UnsafeBecause::Outage { member: "etcd-1".into(), voters: 1 };
        let refusals = [wrong("etcd-1"), wrong("etcd-2"), silent("etcd-3"), silent("etcd-1"), other];
        let text = blocked("demo", &refusals).render(Look::default());
        let starts: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).map(str::trim).collect();
        let one = ["blocked", "rule", "remedy"];
        assert_eq!(starts, [one, one, one, one].concat());
        assert!(
            text.starts_with("  blocked: for etcd-1, etcd-2: each needs etcd 3.6.16, but finds 3.5.30\n"),
            "{text}"
        );
        assert!(text.contains("`quorate logs demo etcd-3`") && !text.contains("NAME"), "{text}");
    }

    #[test]
    fn a_plan_in_json_has_text_and_kinds() {
        let value = serde_json::to_value(json("demo", &plan())).unwrap();
        assert_eq!(value["steps"][0]["kind"], "enrol");
        assert_eq!(value["steps"][1]["member"], serde_json::Value::Null);
        assert_eq!(value["blocked"][0]["kind"], "outage");
        let change = serde_json::json!({"path": "etcd.quota", "before": "4GiB", "after": "6GiB"});
        assert_eq!(value["changes"][0], change);
        assert_eq!(value["remarks"][0], serde_json::json!({"kind": "machines", "text": "machines are emulated"}));
        assert_eq!(value["steps"][0]["strength"], serde_json::Value::Null);
        assert_eq!(value["steps"][1]["strength"]["failures_survived"], 0);
    }
}
