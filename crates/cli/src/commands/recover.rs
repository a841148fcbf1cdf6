//! `quorate recover`: for permanent quorum loss. Shows what is left and what may be lost, asks for confirmation, and runs
//! the loop, which rebuilds the cluster from one survivor.

use std::collections::BTreeMap;

use quorate_control::kinds::summarize;
use quorate_control::verbs::recover::{self, Recover};
use quorate_control::verbs::{self, Cluster};
use quorate_core::kinds::etcd::{Formation, FormingMember};
use quorate_core::model::{DataSeen, Facts, Ledger, MemberName, Observation};
use quorate_core::planner::Decision;

use super::{Context, agree_by_name, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::{self, table};

pub async fn run(context: &Context, options: cli::Recover) -> Result<Exit, Error> {
    let name = options.name.as_str();
    let ledger = load::etcd_ledger(&context.home, name)?;
    recover::check(&ledger).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    if let Some(plan) = recover::rest(&context.home, &cluster, &ledger).await? {
        output::talk("the recovery has begun, and one survivor serves its data: the other members come back now\n");
        context.show_plan(name, &plan)?;
        return conclude(context, run_loop(context, &cluster.spec, &cluster.brought, "recover", |_| {}).await?);
    }
    let seen = verbs::observe(&context.home, &ledger).await?;
    let standing = standing(&ledger, &seen);
    let begun = matches!(ledger.etcd.formation, Formation::Recovering { .. });
    let users = super::restore::names_of_users(context, Some(&ledger)).map_or(String::new(), of_users);
    let shown = if begun { standing.clone() } else { format!("{standing}{WHAT_MAY_BE_LOST}{users}") };
    let recover = Recover::prepare(&context.home, &cluster, (&ledger, &seen), shown.clone(), options.now).await?;
    if !recover.succeeds() {
        output::talk(&standing);
        return Ok(refused(name, &recover.plan.end.blocked));
    }
    output::talk(&format!("{shown}\n"));
    context.show_plan(name, &recover.plan)?;
    agree_by_name(options.yes, name, "recover")?;
    let change = |ledger: &mut _| recover.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "recover", change).await?;
    conclude(context, outcome)
}

const WHAT_MAY_BE_LOST: &str = "
if these are all the survivors:
  - lost: acknowledged writes after the end of the most recent log above, which only missing members have
  - kept: everything in that log; its last entries may not have been committed, and count as written from now on
  - destroyed: the machines of all other members, even if they come back later; new ones take their places
clients must restart their watches: revisions continue far above the last one, and everything before is compacted
";

/// The consequence of an older Patroni state for PostgreSQL clusters.
fn of_users(users: String) -> String {
    format!(
        "  - Patroni's state of {users} is stored here, and may become older. If a primary or its synchronous standbys have \
         changed since, a former primary or standby may be promoted, even if it lacks confirmed commits. Stop all clients of {users} first, \
         and wait until `quorate status` shows no lag of any member\n"
    )
}

/// The state of the cluster: which members are reachable, which have data, and where their logs end.
fn standing(ledger: &Ledger, seen: &Observation) -> String {
    let status = summarize(ledger, seen, &Decision::default());
    let mut rows =
        vec![["MEMBER", "HEALTH", "DATA", "TERM", "LAST INDEX", "COMMITTED INDEX"].map(String::from).to_vec()];
    let (token, members) = lost_formation(&ledger.etcd.formation);
    for member in members.into_iter().flat_map(|members| members.keys()) {
        let told = status.members.iter().find(|m| m.member == *member);
        let health = told.map_or_else(String::new, |m| m.health.to_owned());
        let facts = seen.facts(member);
        let mut row = vec![member.to_string(), health, data(facts, token.unwrap_or_default()).to_owned()];
        row.extend(
            facts.map_or([None; 3], log).map(|known| known.map_or_else(|| String::from("unknown"), |n| n.to_string())),
        );
        rows.push(row);
    }
    format!("cluster {} is {}\n\n{}", status.cluster, status.summary, table(&rows))
}

/// The bootstrap whose data is needed, and its members.
fn lost_formation(formation: &Formation) -> (Option<&str>, Option<&BTreeMap<MemberName, FormingMember>>) {
    match formation {
        Formation::Recovering { was, members, .. } => (Some(was), Some(members)),
        other => (other.token(), other.members()),
    }
}

fn data(facts: Option<&Facts>, token: &str) -> &'static str {
    let Some(facts) = facts else { return "unknown" };
    match &facts.etcd.data {
        DataSeen::Stamped(stamp) if stamp.token == token && facts.etcd.older.is_some() => "older than it was",
        DataSeen::Stamped(stamp) if stamp.token == token => "complete",
        DataSeen::Stamped(_) => "of another bootstrap",
        DataSeen::Empty => "none",
        DataSeen::Unstamped => "of unknown origin",
    }
}

/// The term, the last index and the committed index of its log. A running etcd reports them, except the last; otherwise the log on disk
/// says all three.
fn log(facts: &Facts) -> [Option<u64>; 3] {
    match (&facts.etcd.log, &facts.etcd.status) {
        (Some(log), _) => [Some(log.term), Some(log.index), Some(log.commit)],
        (None, Some(status)) => [Some(status.raft_term), Some(status.raft_index), None],
        (None, None) => [None; 3],
    }
}
