//! `quorate recover`: the majority is lost for good. Shows what is left and what may be lost, takes the operator's word, and
//! lets the loop make a cluster again of what one survivor holds.

use std::collections::BTreeMap;

use quorate_control::controller;
use quorate_control::observe::Sight;
use quorate_control::status::summarize;
use quorate_core::model::{DataSeen, Facts, Formation, FormingMember, Ledger, MemberName, Observation, Power};
use quorate_core::planner::{Action, Decision, Plan};

use super::{Context, agree_by_name, conclude, consent, refuse_if_being_destroyed, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output::plan::Detail;
use crate::output::{self, table};

pub async fn run(context: &Context, options: cli::Recover) -> Result<Exit, Error> {
    let name = options.name.as_str();
    let ledger = load::ledger(&context.home, name)?;
    refuse_if_being_destroyed(context, Some(&ledger))?;
    refuse_what_has_no_data(context, &ledger)?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    if let Some(exit) = go_on(context, &cluster, &ledger).await? {
        return Ok(exit);
    }
    let seen = Sight::new(context.home.provider(&ledger)).glance(&ledger, None).await?;
    let mut shown = standing(&ledger, &seen);
    let begun = matches!(ledger.formation, Formation::Recovering { .. });
    if !begun {
        shown.push_str(WHAT_MAY_BE_LOST);
    }
    let word = consent(shown.clone());
    let give = |ledger: &mut Ledger| {
        ledger.without_grace = options.now.then(|| word.clone());
        // The word under which it was begun is kept.
        ledger.recovery.get_or_insert_with(|| word.clone());
    };
    let plan = controller::plan(&context.home, &cluster.spec, &cluster.brought, give).await?;
    if !plan.end.blocked.is_empty() && !recovers(&plan) {
        output::talk(&standing(&ledger, &seen));
        return Ok(refused(&plan.end.blocked));
    }
    output::talk(&format!("{shown}\n"));
    output::print(&output::plan::text(name, &plan, Detail::Reasons))?;
    agree_by_name(options.yes, name, "recover")?;
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "recover", give).await?;
    conclude(context, outcome)
}

/// A recovery that was interrupted after the survivor served again: what is left is to give it its other members back, and all that was
/// consented to is done. None: there is no such recovery, or the survivor was lost too.
async fn go_on(context: &Context, cluster: &Cluster, ledger: &Ledger) -> Result<Option<Exit>, Error> {
    if ledger.recovered.is_none() {
        return Ok(None);
    }
    let plan = controller::plan(&context.home, &cluster.spec, &cluster.brought, |_| {}).await?;
    if !plan.end.blocked.is_empty() {
        return Ok(None);
    }
    output::talk("the recovery has begun, and one survivor serves its data: the other members come back now\n");
    output::print(&output::plan::text(cluster.spec.name.as_str(), &plan, Detail::Reasons))?;
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "recover", |_| {}).await?;
    conclude(context, outcome).map(Some)
}

const WHAT_MAY_BE_LOST: &str = "
what is lost, if these are all that is left:
  - what clients were told is written, where only members that are not seen hold it: all that comes after the end
    of the furthest log above
  - nothing of what that log holds; its last entries may never have been agreed upon, and count as written from then on
  - the machines of all other members, survivors too: new ones take their places, and the former ones are destroyed
    with what they hold, also when they come back later
clients must begin their watches anew: revisions go on far above the last that was seen, and all before is compacted
";

fn refuse_what_has_no_data(context: &Context, ledger: &Ledger) -> Result<(), Error> {
    let name = &ledger.spec.name;
    if ledger.power == Power::Off {
        let way = context.command(&format!("start {name}"));
        return Err(Error::refused(format!("cluster {name} is off"), format!("`{way}` switches it on")));
    }
    match &ledger.formation {
        Formation::Formed { .. } | Formation::Recovering { .. } => Ok(()),
        Formation::Restoring { .. } => {
            let way = context.command(&format!("apply {name}"));
            let what = format!("cluster {name} is being restored from a snapshot, so that there is nothing to recover");
            Err(Error::refused(what, format!("`{way}` goes on with that")))
        }
        Formation::Unformed | Formation::Forming { .. } => {
            let way = context.command(&format!("apply {name}"));
            let what = format!("cluster {name} is not formed yet, so that there is nothing to recover");
            Err(Error::refused(what, format!("`{way}` forms it")))
        }
    }
}

/// Whether the plan leads to a cluster again.
fn recovers(plan: &Plan) -> bool {
    let leads = |action: &Action| matches!(action, Action::RecordRecovery { .. } | Action::RecordFormed { .. });
    plan.steps.iter().any(|step| leads(&step.action))
}

/// How the cluster stands: who is seen, who holds data, and how far.
fn standing(ledger: &Ledger, seen: &Observation) -> String {
    let status = summarize(ledger, seen, &Decision::default());
    let mut rows = vec![["MEMBER", "SEEN", "DATA", "LOG ENDS AT", "AGREED UP TO"].map(String::from).to_vec()];
    let (token, members) = lost_formation(&ledger.formation);
    for member in members.into_iter().flat_map(|members| members.keys()) {
        let told = status.members.iter().find(|m| m.member == *member);
        let health = told.map_or_else(String::new, |m| m.health.to_owned());
        let facts = seen.facts(member);
        let (end, agreed) = facts.map_or_else(unknown_log, log);
        rows.push(vec![member.to_string(), health, data(facts, token.unwrap_or_default()), end, agreed]);
    }
    format!("cluster {} is {}\n\n{}", status.cluster, status.summary, table(&rows))
}

/// The formation whose data is looked for, and its members.
fn lost_formation(formation: &Formation) -> (Option<&str>, Option<&BTreeMap<MemberName, FormingMember>>) {
    match formation {
        Formation::Recovering { was, members, .. } => (Some(was), Some(members)),
        other => (other.token(), other.members()),
    }
}

fn data(facts: Option<&Facts>, token: &str) -> String {
    let Some(facts) = facts else { return String::from("unknown") };
    match &facts.etcd.data {
        DataSeen::Stamped(stamp) if stamp.token == token && facts.etcd.older.is_some() => {
            String::from("older than it was")
        }
        DataSeen::Stamped(stamp) if stamp.token == token => String::from("whole"),
        DataSeen::Stamped(stamp) => format!("of formation {}", stamp.token),
        DataSeen::Empty => String::from("none"),
        DataSeen::Unstamped => String::from("nothing says whose"),
    }
}

/// While etcd runs it tells by itself how far it has come; else its log on disk does.
fn log(facts: &Facts) -> (String, String) {
    let end = |term: u64, index: u64| format!("term {term}, index {index}");
    match (&facts.etcd.log, &facts.etcd.status) {
        (Some(log), _) => (end(log.term, log.index), format!("index {}", log.commit)),
        (None, Some(status)) => (end(status.raft_term, status.raft_index), String::from("unknown")),
        (None, None) => unknown_log(),
    }
}

fn unknown_log() -> (String, String) {
    (String::from("unknown"), String::from("unknown"))
}
