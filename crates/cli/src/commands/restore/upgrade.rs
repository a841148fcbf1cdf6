//! `quorate restore --before-upgrade`: returns to the data from before a major version upgrade.

use quorate_control::kinds::postgres::upgrade::{Request, way_back};
use quorate_control::verbs::Cluster;
use quorate_control::verbs::restore::check;

use super::super::{Context, agree_by_name, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, name: &str, options: &cli::Restore) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, name)?;
    check(Some(&ledger)).map_err(|error| context.error(error))?;
    let (previous, spec) = way_back(&ledger).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec };
    let version = &previous.version;
    let shown = format!(
        "cluster {name} returns to the data of PostgreSQL {version} from before the upgrade, which {} keeps\n\
         what is lost:\n  - everything written since the upgrade\n\
         what else to know:\n  - clients wait from when all members stop until {} starts with that data; the others clone it\n  \
         - the current data is kept next to it on each machine, in `data.replaced`, until the next restore or upgrade\n  \
         - passwords stay as they are now\n  - set `postgres.version` in your file to {version} before the next `quorate apply`\n",
        previous.member, previous.member
    );
    let request = Request::new(name, &previous, shown.clone());
    let plan = request.plan(&context.home, &cluster).await?;
    output::talk(&format!("{shown}\n"));
    if !plan.end.blocked.is_empty() {
        return Ok(refused(name, &plan.end.blocked));
    }
    context.show_plan(name, &plan)?;
    if options.dry_run {
        output::talk("nothing was changed\n");
        return Ok(Exit::Done);
    }
    agree_by_name(options.yes, name, "restore")?;
    let change = |ledger: &mut _| request.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "restore", change).await?;
    conclude(context, outcome)
}
