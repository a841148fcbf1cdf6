//! `quorate apply`: shows the plan, asks, and does it, one cluster after another.

use quorate_control::controller;
use quorate_control::ledger::Store;
use quorate_control::observe::Sight;
use quorate_control::{Outcome, providers};
use quorate_core::model::{Consent, Ledger, Observation};
use quorate_core::planner::simulate::Plan;

use super::{Context, conclude, consent, refuse_if_being_destroyed, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;
use crate::output::plan::Summary;

pub async fn run(context: &Context, options: cli::Apply) -> Result<Exit, Error> {
    let clusters = chosen(load::clusters(&context.home, &options.target)?, &options)?;
    let mut summary = Summary::default();
    let mut planned = Vec::new();
    for cluster in clusters {
        let known = load::remembered(&context.home, cluster.spec.name.as_str())?;
        refuse_if_being_destroyed(context, known.as_ref())?;
        let words = words(context, &cluster, known.as_ref(), &options).await?;
        let plan = plan(context, &cluster, &words).await?;
        output::print(&output::plan::text(cluster.spec.name.as_str(), &plan))?;
        summary.add(&plan);
        planned.push((cluster, words));
    }
    if planned.len() > 1 {
        output::print(&summary.line())?;
    }
    agree(&options, summary.steps)?;
    let mut worst = Exit::Done;
    for (cluster, words) in &planned {
        let exit = apply(context, cluster, words).await.unwrap_or_else(|error| {
            output::talk(&error.render(Some(cluster.spec.name.as_str())));
            error.exit()
        });
        worst = worst.max(exit);
    }
    Ok(worst)
}

/// The clusters of the file that are meant.
fn chosen(clusters: Vec<Cluster>, options: &cli::Apply) -> Result<Vec<Cluster>, Error> {
    if options.clusters.is_empty() {
        return Ok(clusters);
    }
    let declared: Vec<String> = clusters.iter().map(|c| c.spec.name.to_string()).collect();
    if let Some(name) = options.clusters.iter().find(|name| !declared.contains(name)) {
        return Err(Error::NotInFile { file: options.target.clone(), name: name.clone(), declared });
    }
    Ok(clusters.into_iter().filter(|c| options.clusters.contains(&c.spec.name.to_string())).collect())
}

fn agree(options: &cli::Apply, steps: usize) -> Result<(), Error> {
    if options.yes || steps == 0 {
        return Ok(());
    }
    if !output::can_ask() {
        return Err(Error::refused(
            "there is no terminal to ask whether to go on",
            "pass --yes to apply without asking",
        ));
    }
    let these = if steps == 1 { String::from("this step") } else { format!("these {steps} steps") };
    match output::ask(&format!("apply {these}? [y/N] "))?.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

async fn apply(context: &Context, cluster: &Cluster, words: &Words) -> Result<Exit, Error> {
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "apply", |ledger| words.write(ledger)).await?;
    if words.downtime.is_some() {
        take_back_downtime(context, &outcome)?;
    }
    conclude(context, outcome)
}

/// The word was given for this run. Whoever took the lock since then has taken it back already.
fn take_back_downtime(context: &Context, outcome: &Outcome) -> Result<(), Error> {
    let mut ledger = Ledger { downtime: None, ..outcome.ledger.clone() };
    match Store::new(context.home.ledger(ledger.spec.name.as_str())).write(&mut ledger) {
        Err(quorate_control::ledger::LedgerError::Lost { .. }) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn plan(context: &Context, cluster: &Cluster, words: &Words) -> Result<Plan, Error> {
    let change = |ledger: &mut Ledger| words.write(ledger);
    Ok(controller::plan(&context.home, &cluster.spec, &cluster.brought, change).await?)
}

/// What the operator said beyond the spec, for this run.
#[derive(Debug, Default)]
struct Words {
    downtime: Option<Consent>,
    /// What the agents remember, when the ledger is to go on above it.
    above: Option<Observation>,
}

impl Words {
    fn write(&self, ledger: &mut Ledger) {
        ledger.downtime = self.downtime.clone();
        if let Some(seen) = &self.above {
            raise_above(ledger, seen);
        }
    }
}

/// Each word is recorded with what was shown before it was given: the plan without it.
async fn words(
    context: &Context,
    cluster: &Cluster,
    known: Option<&Ledger>,
    options: &cli::Apply,
) -> Result<Words, Error> {
    let mut words = Words::default();
    if let (true, Some(ledger)) = (options.accept_older_ledger, known) {
        let provider = providers::provider(ledger.spec.provider, &context.home);
        words.above = Some(Sight::new(provider).glance(ledger).await?);
    }
    if options.allow_downtime {
        let before = plan(context, cluster, &words).await?;
        let shown: Vec<String> = before.end.blocked.iter().map(ToString::to_string).collect();
        words.downtime = Some(consent(shown.join("; ")));
    }
    Ok(words)
}

/// Lets an older ledger go on: its numbers become at least those that the agents remember. What an agent holds is
/// noted as it is, so that only a difference in content is sent anew, under a number above.
fn raise_above(ledger: &mut Ledger, seen: &Observation) {
    for member in seen.agents.keys() {
        let Some(facts) = seen.facts(member) else { continue };
        ledger.fence = ledger.fence.max(facts.fence);
        let Some((generation, digest)) = &facts.node_config else { continue };
        let record = ledger.members.entry(member.clone()).or_default();
        if *generation >= record.generation {
            record.generation = *generation;
            record.digest = digest.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::model::{
        AgentSeen, BinarySeen, DataSeen, EtcdFacts, Facts, Host, MemberName, Seen, ServiceState,
    };
    use quorate_core::spec::{ClientAuth, generated};
    use quorate_core::versions::DEFAULT;

    use super::*;

    fn remembers(fence: u64, generation: u64) -> AgentSeen {
        AgentSeen::Enrolled(Box::new(Facts {
            machine_id: String::from("m"),
            fence,
            node_config: Some((generation, String::from("held"))),
            certificates: BTreeMap::new(),
            requests: BTreeMap::new(),
            etcd: EtcdFacts {
                binary: BinarySeen::Unasked,
                service: ServiceState::Stopped,
                data: DataSeen::Empty,
                last_started: None,
                peer_serving: false,
                status: None,
            },
            host: Host::default(),
        }))
    }

    #[test]
    fn an_older_ledger_goes_on_above_what_agents_remember_and_never_below_itself() {
        let mut spec = generated("demo", 2, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        ledger.fence = 4;
        ledger.members.entry("etcd-2".into()).or_default().generation = 9;
        let now = jiff::Timestamp::UNIX_EPOCH;
        let agents: [(MemberName, _); 2] = [("etcd-1".into(), remembers(7, 3)), ("etcd-2".into(), remembers(2, 5))];
        let agents = agents.into_iter().map(|(name, agent)| (name, Seen::At(now, agent))).collect();
        let seen = Observation { now, machines: Seen::At(now, BTreeMap::new()), agents };
        raise_above(&mut ledger, &seen);
        let record = |name: &str| ledger.members[&MemberName::from(name)].clone();
        assert_eq!(ledger.fence, 7);
        assert_eq!((record("etcd-1").generation, record("etcd-1").digest.as_str()), (3, "held"));
        assert_eq!((record("etcd-2").generation, record("etcd-2").digest.as_str()), (9, ""));
    }
}
