//! `quorate restore`: prepares a snapshot, shows what will be done and what is lost, asks, and runs the loop, which verifies the
//! snapshot and restores every member from it.

mod postgres;
mod upgrade;

use std::fmt::Write as _;

use quorate_backup::choose::Wish;
use quorate_control::kinds::etcd::backup::{Ready, SnapshotAt, Wanted};
use quorate_control::kinds::postgres::dcs;
use quorate_control::verbs::restore::{self, Restore, Source};
use quorate_core::kinds::etcd::limits::MARGIN;
use quorate_core::model::Ledger;
use quorate_core::spec::{ClusterSpec, Kind};
use quorate_core::text::plural;

use super::backup::{id, identities, identity};
use super::ledger::ledger_identity;
use super::{Context, agree_by_name, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output::working::Working;
use crate::output::{self, backup::shown, size};

pub async fn run(context: &Context, options: cli::Restore) -> Result<Exit, Error> {
    let cluster = load::one_cluster(&context.home, &options.target, options.cluster.as_deref())?;
    if cluster.spec.kind == Kind::Postgres && options.what.before_upgrade {
        return upgrade::run(context, cluster.spec.name.as_str(), &options).await;
    }
    if cluster.spec.kind == Kind::Postgres {
        return postgres::run(context, cluster.spec.name.as_str(), options).await;
    }
    let cli::RestoreWhat { lsn, xid, before_upgrade, .. } = &options.what;
    let of_postgres = lsn.is_some() || xid.is_some() || *before_upgrade || options.timeline.is_some();
    if of_postgres {
        let hint = "use --at, --revision, --backup or --snapshot";
        return Err(Error::refused(
            "--lsn, --xid, --timeline and --before-upgrade are for clusters of PostgreSQL",
            hint,
        ));
    }
    let name = cluster.spec.name.to_string();
    let known = load::remembered(&context.home, &name)?;
    restore::check(known.as_ref()).map_err(|error| context.error(error))?;
    restore::forget_unwanted(&context.home, &name)?;
    let source = source(&options)?;
    let working = Working::new();
    let prepared = Restore::prepare(&context.home, &cluster, known, &source, &working).await;
    drop(working);
    let ended = match prepared {
        Ok(prepared) => run_prepared(context, &cluster, &prepared, &options).await,
        Err(error) => Err(context.error(error)),
    };
    restore::forget_unwanted(&context.home, &name)?;
    ended
}

fn source(options: &cli::Restore) -> Result<Source, Error> {
    Ok(Source {
        wanted: wanted(&options.what)?,
        store: super::backup::which(options.second.second),
        signed_by: options.trusted.signed_by.clone(),
        unsigned: options.trusted.unsigned,
        identity: identity(&options.identity)?,
        identities: identities(&options.identity)?,
        without_ledger: options.without_ledger,
    })
}

async fn run_prepared(
    context: &Context,
    cluster: &Cluster,
    restore: &Restore,
    options: &cli::Restore,
) -> Result<Exit, Error> {
    let name = cluster.spec.name.as_str();
    let mut shown = restore_summary(&cluster.spec, restore);
    shown.push_str(&of_users(context, restore.known.as_ref()));
    let request = restore.request(shown.clone(), options.now);
    let plan = request.plan(&context.home, cluster).await?;
    output::talk(&format!("{shown}\n"));
    if !restore::succeeds(&plan) {
        return Ok(refused(name, &plan.end.blocked));
    }
    context.show_plan(name, &plan)?;
    if options.dry_run {
        let working = Working::new();
        restore.rehearse(&context.home, cluster).await.map_err(|error| context.error(error))?;
        drop(working);
        output::talk("the snapshot was verified in a temporary etcd; nothing was changed\n");
        return Ok(Exit::Done);
    }
    agree_by_name(options.yes, name, "restore")?;
    restore.take_over(&context.home, name)?;
    let change = |ledger: &mut _| request.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "restore", change).await?;
    let exit = conclude(context, outcome)?;
    if cluster.spec.backup.is_some() && exit == Exit::Done {
        let create = context.command(&format!("backup create {name}"));
        output::talk(&format!("next: take a backup with `{create}`\n"));
    }
    if let Some(users) = names_of_users(context, restore.known.as_ref()).filter(|_| exit == Exit::Done) {
        let look = context.command("status");
        output::talk(&format!(
            "next: if `{look}` shows no primary for {users}, run `quorate apply` for that cluster to elect a safe one\n"
        ));
    }
    Ok(exit)
}

fn wanted(what: &cli::RestoreWhat) -> Result<Wanted, Error> {
    let cli::RestoreWhat { at, revision, backup, snapshot, lsn: _, xid: _, before_upgrade: _ } = what;
    if let Some(snapshot) = snapshot {
        return match snapshot.strip_prefix("s3://").map(|rest| rest.split_once('/')) {
            None => Ok(Wanted::Snapshot(SnapshotAt::File(snapshot.into()))),
            Some(Some((bucket, key))) if !bucket.is_empty() && !key.is_empty() => {
                Ok(Wanted::Snapshot(SnapshotAt::Object { bucket: bucket.to_owned(), key: key.to_owned() }))
            }
            Some(_) => Err(Error::refused(format!("`{snapshot}` names no object"), "write s3://BUCKET/KEY")),
        };
    }
    Ok(Wanted::Backup(match (at, revision, backup) {
        (Some(at), _, _) => Wish::At(*at),
        (_, Some(revision), _) => Wish::Revision(*revision),
        (_, _, Some(backup)) => Wish::Backup(id(backup)?),
        (None, None, None) => Wish::Newest,
    }))
}

/// What the operator confirms.
fn restore_summary(spec: &ClusterSpec, restore: &Restore) -> String {
    let Restore { ready, known, imported, seen, highest, .. } = restore;
    let (name, prepared) = (&spec.name, &ready.prepared);
    let mut text = format!("restoring cluster {name} from {}\n", prepared.source);
    let _ = writeln!(
        text,
        "  the snapshot is here and undamaged: revision {}, {}{}",
        prepared.revision,
        prepared.keys.map(|keys| format!("{}, ", plural(keys, "key"))).unwrap_or_default(),
        size(prepared.bytes)
    );
    for note in ready.choice.iter().flat_map(|choice| &choice.notes) {
        let _ = writeln!(text, "  note: {note}");
    }
    if let Some(choice) = &ready.choice {
        text.push_str(&match &ready.signed_by {
            Some(signer) => format!("  signed by {signer}\n"),
            None => NOT_SIGNED.to_owned(),
        });
        let _ = writeln!(text, "  of cluster {} with id {}", choice.full.cluster, choice.full.cluster_id);
    }
    let is_open = ready.choice.as_ref().is_some_and(|choice| choice.full.recipient.is_none());
    if is_open && spec.backup.as_ref().is_some_and(|backup| !backup.recipients.is_empty()) {
        text.push_str(NOT_ENCRYPTED);
    }
    if let Some(exported) = imported {
        let version = exported.ledger.version;
        let _ = writeln!(
            text,
            "  no local state for {name}: its ledger (version {version}) will be restored from the backup"
        );
        text.push_str(&ledger_identity(&exported.ledger));
        if seen.as_ref().is_some_and(|seen| seen.agents.keys().any(|member| seen.facts(member).is_some())) {
            text.push_str(ITS_MACHINES_LIVE);
        }
    } else if known.is_none() {
        let _ = writeln!(text, "  no local state for {name} and no ledger to restore: it gets new CAs and keys");
    }
    let _ = writeln!(text, "what is lost:\n{}", losses(ready, *highest));
    text.push_str(WHAT_ELSE);
    text
}

/// What happens to Patroni's state of the PostgreSQL clusters that keep it in this one.
fn of_users(context: &Context, etcd: Option<&Ledger>) -> String {
    names_of_users(context, etcd).map_or(String::new(), |users| {
        format!(
            "  - Patroni's state of {users} is stored here. The restored state names no primary and no members \
             that may take over: a running primary stays the primary. Without one, no member is \
             promoted until `quorate apply` has found out which has all confirmed commits\n"
        )
    })
}

/// The PostgreSQL clusters that keep Patroni's state in this one, where there are any.
pub fn names_of_users(context: &Context, etcd: Option<&Ledger>) -> Option<String> {
    let users = etcd.map(|etcd| dcs::users_of(&context.home, etcd)).unwrap_or_default();
    (!users.is_empty()).then(|| users.join(", "))
}

fn losses(ready: &Ready, highest: u64) -> String {
    let revision = u64::try_from(ready.prepared.revision).unwrap_or(0);
    let when = ready.choice.as_ref().map(|choice| {
        let last = choice.segments.last().map(|last| last.last_at);
        format!(" ({} UTC)", shown(last.unwrap_or(choice.full.taken.opened)))
    });
    let when = when.unwrap_or_default();
    match highest.checked_sub(revision).filter(|lost| *lost > 0) {
        // Revisions that a restore has skipped were never written.
        Some(raised) if raised >= MARGIN => format!(
            "  - everything written after revision {revision}{when}: the cluster is at revision {highest}, which a restore or recovery \
             has raised since"
        ),
        Some(1) => format!(
            "  - everything written after revision {revision}{when}: the cluster is at revision {highest}, so 1 revision is lost"
        ),
        Some(lost) => format!(
            "  - everything written after revision {revision}{when}: the cluster is at revision {highest}, so {lost} revisions are lost"
        ),
        None => format!("  - everything written after revision {revision}{when}, if anything"),
    }
}

const NOT_SIGNED: &str = "\
  WARNING: this backup is NOT SIGNED, or its signature cannot be checked. Anyone who can write to the store could have made it, with any
  data and any users in it. It is restored only because --unsigned was passed
";

const NOT_ENCRYPTED: &str = "\
  note: this backup is not encrypted, though the spec names recipients: anyone who can write to the store could have made it
";

const ITS_MACHINES_LIVE: &str = "\
  note: its machines answer. To take the cluster over as it is, with its current data, use instead:
    quorate ledger import --from-backup FILE --identity KEY
    quorate apply FILE --accept-older-ledger
";

const WHAT_ELSE: &str = "\
what else to know:
  - the data of all members is replaced, or of none; the previous data is kept next to it
  - revisions continue far above the highest ever seen, and everything before is compacted: watches end and must start again
  - users and roles are those of the full backup; leases start again, each with its granted TTL
";
