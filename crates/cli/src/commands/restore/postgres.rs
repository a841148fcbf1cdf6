//! `quorate restore` for PostgreSQL clusters: a backup, and the log on top of it up to a point.

use std::fmt::Write as _;

use quorate_control::kinds::postgres::backup::restore::{Restore, Source, Wanted};
use quorate_control::kinds::postgres::dcs;
use quorate_control::verbs::apply::{Allowed, Apply};
use quorate_control::verbs::restore::check;
use quorate_core::kinds::postgres::Until;
use quorate_core::text::with_causes;

use super::super::apply::{run_confirmed, settled};
use super::super::backup::which;
use super::super::ledger::ledger_identity;
use super::super::{Context, agree_by_name, conclude, refused, run_loop};
use super::identity;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output::working::Working;
use crate::output::{self, backup::shown, size};

pub async fn run(context: &Context, name: &str, options: cli::Restore) -> Result<Exit, Error> {
    let (etcd, cluster) = clusters(context, name, &options)?;
    let known = load::remembered(&context.home, name)?;
    check(known.as_ref()).map_err(|error| context.error(error))?;
    let source = source(&options)?;
    let working = Working::new();
    let prepared = Restore::prepare(&context.home, &cluster, known, &source, &working).await;
    drop(working);
    let restore = prepared.map_err(|error| context.error(error))?;
    let shown = restore_summary(&cluster, &restore);
    let request = restore.request(shown.clone(), options.now);
    let first = match &etcd {
        Some(etcd) => Some(Etcd::prepare(context, etcd, options.now).await?),
        None => None,
    };
    let plan = request.plan(&context.home, &cluster).await?;
    output::talk(&format!("{shown}\n"));
    if !plan.end.blocked.is_empty() && plan.steps.is_empty() {
        return Ok(refused(name, &plan.end.blocked));
    }
    context.show_plan(name, &plan)?;
    if options.dry_run {
        output::talk("nothing was changed\n");
        return Ok(Exit::Done);
    }
    agree_by_name(options.yes, name, "restore")?;
    if let Some(etcd) = first {
        etcd.bring_up(context).await?;
    }
    restore.take_over(&context.home, name)?;
    let outcome =
        run_loop(context, &cluster.spec, &settled(&cluster), "restore", |ledger: &mut _| request.note(ledger)).await?;
    let exit = conclude(context, outcome)?;
    if exit == Exit::Done {
        let create = context.command(&format!("backup create {name}"));
        output::talk(&format!("next: take a backup with `{create}`\n"));
    }
    Ok(exit)
}

/// The etcd cluster with Patroni's state, if it must be created or started first, and the cluster itself.
fn clusters(context: &Context, name: &str, options: &cli::Restore) -> Result<(Option<Cluster>, Cluster), Error> {
    let all = load::with_their_etcd(&context.home, load::clusters(&context.home, &options.target)?)?;
    let (mut etcd, mut own) = (None, None);
    let dcs = all.iter().find(|cluster| cluster.spec.name.as_str() == name);
    let dcs = dcs.and_then(|cluster| dcs::own_etcd(&cluster.spec));
    for cluster in all {
        match cluster.spec.name.as_str() {
            found if found == name => own = Some(cluster),
            found if Some(found) == dcs.as_deref() => etcd = Some(cluster),
            _ => {}
        }
    }
    let own = own.ok_or_else(|| load::unknown(&context.home, name))?;
    Ok((etcd.filter(|_| !dcs::is_ready(&context.home, &own.spec)), own))
}

struct Etcd<'a> {
    cluster: &'a Cluster,
    apply: Apply,
}

impl<'a> Etcd<'a> {
    async fn prepare(context: &Context, cluster: &'a Cluster, now: bool) -> Result<Self, Error> {
        let name = cluster.spec.name.as_str();
        let known = load::remembered(&context.home, name)?;
        context.refuse_if_being_destroyed(known.as_ref())?;
        let allowed = Allowed { downtime: false, now, older_ledger: false };
        let apply = Apply::prepare(&context.home, cluster, known.as_ref(), None, allowed).await?;
        output::talk(&format!("etcd cluster {name} comes first; Patroni's state in it will be recreated\n"));
        context.show_plan(name, &apply.plan(&context.home, cluster).await?)?;
        Ok(Etcd { cluster, apply })
    }

    async fn bring_up(self, context: &Context) -> Result<(), Error> {
        match run_confirmed(context, self.cluster, &self.apply).await? {
            Exit::Done => Ok(()),
            _ => Err(Error::refused(
                format!("etcd cluster {} is not healthy, so nothing is restored", self.cluster.spec.name),
                "see above; then restore again",
            )),
        }
    }
}

fn source(options: &cli::Restore) -> Result<Source, Error> {
    let cli::RestoreWhat { at, revision, backup, snapshot, lsn, xid, before_upgrade: _ } = &options.what;
    if revision.is_some() || snapshot.is_some() {
        let hint = "use --at, --backup, --lsn or --xid";
        return Err(Error::refused("--revision and --snapshot are for clusters of etcd", hint));
    }
    let wanted = match (at, lsn, xid, backup) {
        (Some(at), ..) => Wanted::At(*at),
        (_, Some(lsn), ..) => Wanted::Lsn(place(lsn)?, backup.clone()),
        (_, _, Some(xid), _) => Wanted::Xid(*xid, backup.clone()),
        (.., Some(label)) => Wanted::Backup(label.clone()),
        _ => Wanted::Newest,
    };
    Ok(Source {
        wanted,
        timeline: options.timeline,
        store: which(options.second.second),
        signed_by: options.trusted.signed_by.clone(),
        unsigned: options.trusted.unsigned,
        identity: identity(&options.identity)?,
    })
}

fn place(text: &str) -> Result<String, Error> {
    let is_hex = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    match text.split_once('/') {
        Some((high, low)) if is_hex(high) && is_hex(low) => Ok(text.to_owned()),
        _ => Err(Error::refused(format!("`{text}` is not a place in the log"), "they look like 0/3000050")),
    }
}

/// What the operator confirms.
fn restore_summary(cluster: &Cluster, restore: &Restore) -> String {
    let (name, taken) = (&cluster.spec.name, &restore.manifest.taken);
    let mut text = format!("restoring cluster {name} from {}\n", restore.source());
    let _ = writeln!(
        text,
        "  taken {} from {} (PostgreSQL {}), {}, log up to {}",
        shown(taken.began),
        restore.manifest.from_member,
        taken.postgres_version,
        size(taken.bytes),
        taken.last_lsn
    );
    match restore.manifest.verified_at() {
        Some(at) => {
            let _ = writeln!(text, "  verified {}", shown(at));
        }
        None => text.push_str("  note: this backup was never verified\n"),
    }
    if !restore.is_signed {
        text.push_str("  WARNING: anyone who can write to the store could have made this backup\n");
    }
    if let Some(exported) = &restore.imported {
        let version = exported.ledger.version;
        let _ = writeln!(
            text,
            "  no local state for {name}: its ledger (version {version}) will be restored from the backup"
        );
        text.push_str(&ledger_identity(&exported.ledger));
    } else if restore.known.is_none() {
        let _ =
            writeln!(text, "  no local state for {name} and no ledger to restore: it gets new CAs, keys and passwords");
    }
    if let Some(error) = &restore.log_not_stored {
        let _ = writeln!(text, "  note: what was written last may be missing from the store: {}", with_causes(error));
    }
    text.push_str("what is lost:\n");
    text.push_str(&match &restore.target.until {
        Until::End => String::from("  - commits whose log was not stored yet\n"),
        Until::Backup => format!("  - everything committed after {}\n", shown(taken.ended)),
        Until::Time(time) => format!("  - everything committed after {time}\n"),
        Until::Lsn(lsn) => format!("  - everything after {lsn} in the log\n"),
        Until::Xid(xid) => format!("  - everything committed after transaction {xid}\n"),
    });
    text.push_str(WHAT_ELSE);
    text
}

const WHAT_ELSE: &str = "\
what else to know:
  - the cluster serves until the restored data is ready on one member; then all members stop, and restart with it
  - the current data is kept next to it on each machine, in `data.replaced`, until the next restore
  - users and databases are those of that time; passwords stay as they are now
";
