//! `quorate apply`: shows the plan, asks, and does it, one cluster after another. A plan that was saved and reviewed is the
//! answer: it is done without asking, if the steps are still the same.

use quorate_control::controller;
use quorate_control::observe::Sight;
use quorate_core::model::{Consent, Ledger, Observation};
use quorate_core::planner::Plan;
use quorate_core::planner::remember;

use super::{Context, agree, conclude, consent, refuse_if_being_destroyed, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;
use crate::output::plan::{Detail, Summary};
use crate::saved_plan::{Reviewed, SavedCluster};

pub async fn run(context: &Context, options: cli::Apply) -> Result<Exit, Error> {
    let reviewed = options.plan.as_deref().map(Reviewed::read).transpose()?;
    let clusters = load::clusters(&context.home, &options.target)?;
    load::tell_left_out(context, &options.target, &clusters);
    let clusters = chosen(clusters, &options)?;
    let mut differences = String::new();
    let mut summary = Summary::default();
    let mut planned = Vec::new();
    for cluster in clusters {
        let known = load::remembered(&context.home, cluster.spec.name.as_str())?;
        refuse_if_being_destroyed(context, known.as_ref())?;
        let words = words(context, &cluster, known.as_ref(), &options).await?;
        let plan = plan(context, &cluster, &words).await?;
        output::print(&output::plan::text(cluster.spec.name.as_str(), &plan, Detail::Reasons))?;
        summary.add(&plan);
        if let Some(reviewed) = &reviewed {
            let now = SavedCluster::new(&cluster.spec, known.as_ref().map(|ledger| ledger.cluster_id.as_str()), &plan);
            differences.push_str(&reviewed.differences(&now)?);
        }
        planned.push((cluster, words));
    }
    if planned.len() > 1 {
        output::print(&summary.line())?;
    }
    match &reviewed {
        None => agree(options.yes, summary.steps)?,
        Some(reviewed) => {
            let names: Vec<&str> = planned.iter().map(|(cluster, _)| cluster.spec.name.as_str()).collect();
            if options.clusters.is_empty() {
                reviewed.is_all_of(&names, &options.target)?;
            }
            if !differences.is_empty() {
                return Ok(refuse(context, reviewed, &differences));
            }
            output::talk(&format!("{}\n", reviewed.accepted()));
        }
    }
    let mut worst = Exit::Done;
    for (cluster, words) in &planned {
        match apply(context, cluster, words).await {
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

/// The world has moved since the plan was saved.
fn refuse(context: &Context, reviewed: &Reviewed, differences: &str) -> Exit {
    let anew = context.command("plan --save");
    output::talk(&format!(
        "\nnot done, as the plan in {} is not what would be done now:\n{differences}  hint: review what is needed now with \
         `{anew}`; where an apply of this plan was interrupted, `{}` goes on with it\n",
        reviewed.path().display(),
        context.command("apply"),
    ));
    Exit::Blocked
}

async fn apply(context: &Context, cluster: &Cluster, words: &Words) -> Result<Exit, Error> {
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "apply", |ledger| words.write(ledger)).await?;
    conclude(context, outcome)
}

async fn plan(context: &Context, cluster: &Cluster, words: &Words) -> Result<Plan, Error> {
    let change = |ledger: &mut Ledger| words.write(ledger);
    Ok(controller::plan(&context.home, &cluster.spec, &cluster.brought, change).await?)
}

/// What the operator said beyond the spec, for this run.
#[derive(Debug, Default)]
struct Words {
    downtime: Option<Consent>,
    without_grace: Option<Consent>,
    /// Where the spec comes from.
    spec_file: Option<String>,
    /// What the agents remember, when the ledger is to go on above it.
    above: Option<(Observation, Consent)>,
}

impl Words {
    fn write(&self, ledger: &mut Ledger) {
        ledger.downtime = self.downtime.clone();
        ledger.without_grace = self.without_grace.clone();
        if self.spec_file.is_some() {
            ledger.spec_file.clone_from(&self.spec_file);
        }
        if let Some((seen, consent)) = &self.above {
            remember::resume_above(ledger, seen);
            ledger.older_accepted = Some(consent.clone());
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
    let mut words = Words { spec_file: load::spec_file(&context.home, &options.target), ..Words::default() };
    if let (true, Some(ledger)) = (options.accept_older_ledger, known) {
        let provider = context.home.provider(ledger);
        let seen = Sight::new(provider).glance(ledger, None).await?;
        words.above = Some((seen, consent(refusals(context, cluster, &words).await?)));
    }
    if options.words.now {
        words.without_grace = Some(consent(refusals(context, cluster, &words).await?));
    }
    if options.words.allow_downtime {
        words.downtime = Some(consent(refusals(context, cluster, &words).await?));
    }
    Ok(words)
}

/// What is refused without the word that is about to be given.
async fn refusals(context: &Context, cluster: &Cluster, words: &Words) -> Result<String, Error> {
    let before = plan(context, cluster, words).await?;
    let shown: Vec<String> = before.end.blocked.iter().map(ToString::to_string).collect();
    Ok(shown.join("; "))
}
