//! `quorate apply`: shows the plan, asks, and carries it out, one cluster after another. A saved and reviewed plan counts
//! as confirmation: it runs without asking if the steps are still the same.

use quorate_control::brought::BroughtFiles;
use quorate_control::verbs::apply::{Allowed, Apply};

use super::{Context, agree, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;
use crate::output::plan::Summary;
use crate::saved_plan::{Reviewed, SavedCluster};

pub async fn run(context: &Context, options: cli::Apply) -> Result<Exit, Error> {
    let reviewed = options.plan.as_deref().map(Reviewed::read).transpose()?;
    let clusters = load::clusters(&context.home, &options.target)?;
    load::tell_left_out(context, &options.target, &clusters);
    let clusters = load::with_their_etcd(&context.home, chosen(clusters, &options)?)?;
    let mut differences = String::new();
    let mut summary = Summary::default();
    let mut planned = Vec::new();
    for cluster in clusters {
        let known = load::remembered(&context.home, cluster.spec.name.as_str())?;
        context.refuse_if_being_destroyed(known.as_ref())?;
        let from = load::spec_file(&context.home, &options.target);
        let apply = Apply::prepare(&context.home, &cluster, known.as_ref(), from, allowed(&options)).await?;
        let plan = apply.plan(&context.home, &cluster).await?;
        context.show_plan(cluster.spec.name.as_str(), &plan)?;
        summary.add(&plan);
        if let Some(reviewed) = &reviewed {
            let now = SavedCluster::new(&cluster.spec, known.as_ref().map(|ledger| ledger.cluster_id.as_str()), &plan);
            differences.push_str(&reviewed.differences(&now)?);
        }
        planned.push((cluster, apply));
    }
    if planned.len() > 1 {
        output::print(&summary.line())?;
    }
    match &reviewed {
        None => agree(context, options.yes, summary.steps)?,
        Some(reviewed) => {
            let names: Vec<&str> = planned.iter().map(|(cluster, _)| cluster.spec.name.as_str()).collect();
            if options.clusters.is_empty() {
                reviewed.is_all_of(&names, &options.target)?;
            }
            if !differences.is_empty() {
                return Ok(refuse(context, reviewed, &differences));
            }
            context.as_shown.set(!options.yes);
            output::talk(&format!("{}\n", reviewed.accepted()));
        }
    }
    let mut worst = Exit::Done;
    for (cluster, confirmed) in &planned {
        match run_confirmed(context, cluster, confirmed).await {
            Ok(exit) => worst = worst.max(exit),
            Err(error @ Error::Stopped { .. }) => return Err(error),
            Err(error) => {
                output::talk(&error.render(Some(cluster.spec.name.as_str())));
                worst = worst.max(error.exit());
            }
        }
    }
    Ok(worst)
}

/// The selected clusters of the file.
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

/// The cluster has changed since the plan was saved.
fn refuse(context: &Context, reviewed: &Reviewed, differences: &str) -> Exit {
    let review = context.command("plan --save");
    output::talk(&format!(
        "\nnot done, as the plan in {} is not what would be done now:\n{differences}  hint: review what is needed now with \
         `{review}`; if an apply of this plan was interrupted, `{}` continues it\n",
        reviewed.path().display(),
        context.command("apply"),
    ));
    Exit::Blocked
}

pub(super) async fn run_confirmed(context: &Context, cluster: &Cluster, apply: &Apply) -> Result<Exit, Error> {
    let brought = settled(cluster);
    let outcome = run_loop(context, &cluster.spec, &brought, "apply", |ledger| {
        apply.note(ledger);
        cluster.register_users(&context.home, ledger);
    });
    conclude(context, outcome.await?)
}

/// Plans simulate Patroni's etcd cluster. Now its real state is used.
pub(super) fn settled(cluster: &Cluster) -> BroughtFiles {
    BroughtFiles { planned_etcd: None, ..cluster.brought.clone() }
}

fn allowed(options: &cli::Apply) -> Allowed {
    let cli::Apply { words, accept_older_ledger, .. } = options;
    Allowed { downtime: words.allow_downtime, now: words.now, older_ledger: *accept_older_ledger }
}
