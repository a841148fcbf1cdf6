//! `quorate restore`: makes a snapshot ready and proves it, shows what will be done and what is lost, takes the operator's word, and lets
//! the loop make every member begin anew from it.

use std::fmt::Write as _;

use quorate_backup::catalog::Catalog;
use quorate_backup::choose::Wish;
use quorate_control::backup::signing::trust_of;
use quorate_control::backup::{
    BackupError, Ready, SnapshotAt, Wanted, Which, catalog_of, ledger_beside, open_store, prove_raised, root_is_let_in,
};
use quorate_control::controller;
use quorate_control::history::History;
use quorate_control::ledger::Exported;
use quorate_control::observe::Sight;
use quorate_core::model::{Consent, Ledger, Observation, Power, RestoreWish};
use quorate_core::planner::safety::restore::{MARGIN, bump_past};
use quorate_core::planner::safety::revision;
use quorate_core::planner::{Action, Plan, remember};
use quorate_core::spec::ClusterSpec;

use super::backup::{id, identities, identity};
use super::ledger::{refuse_unchecked, what_is_taken_over};
use super::{Context, agree_by_name, conclude, consent, refuse_if_being_destroyed, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output::plan::Detail;
use crate::output::working::Working;
use crate::output::{self, backup::shown, count, size};

pub async fn run(context: &Context, options: cli::Restore) -> Result<Exit, Error> {
    let cluster = load::one_cluster(&context.home, &options.target, options.cluster.as_deref())?;
    let name = cluster.spec.name.to_string();
    let known = load::remembered(&context.home, &name)?;
    refuse_if_being_destroyed(context, known.as_ref())?;
    refuse_if_off(context, known.as_ref())?;
    let before = known.as_ref().and_then(|ledger| ledger.restore.clone());
    context.home.forget_snapshots(&name, before.as_ref())?;
    let (ready, imported) = prepare(context, &cluster, known.as_ref(), &options).await?;
    let word = Word { known, imported, ready: &ready };
    let ended = match log_in_beforehand(context, &cluster, &word).await {
        Ok(()) => restore(context, &cluster, word, &options).await,
        Err(error) => Err(error),
    };
    // Where it was not wanted after all, or has failed before the ledger knew of it.
    let waits = load::remembered(&context.home, &name)?.and_then(|ledger| ledger.restore);
    context.home.forget_snapshots(&name, waits.as_ref())?;
    ended
}

fn refuse_if_off(context: &Context, known: Option<&Ledger>) -> Result<(), Error> {
    match known.filter(|ledger| ledger.power == Power::Off) {
        Some(ledger) => {
            let name = &ledger.spec.name;
            let way = context.command(&format!("start {name}"));
            Err(Error::refused(format!("cluster {name} is off"), format!("`{way}` switches it on")))
        }
        None => Ok(()),
    }
}

/// Members that log in by password must be let in by what is restored; later would be too late.
async fn log_in_beforehand(context: &Context, cluster: &Cluster, word: &Word<'_>) -> Result<(), Error> {
    let ledger = word.known.as_ref().or(word.imported.as_ref().map(|exported| &exported.ledger));
    let remembered = ledger.and_then(|ledger| ledger.auth.root_password.as_ref());
    let password = remembered.or(cluster.brought.root_password.as_ref());
    Ok(root_is_let_in(&context.home, &cluster.spec, &word.ready.prepared, password).await?)
}

/// One proven snapshot, and the ledger where there is none here.
async fn prepare(
    context: &Context,
    cluster: &Cluster,
    known: Option<&Ledger>,
    options: &cli::Restore,
) -> Result<(Ready, Option<Exported>), Error> {
    let (home, spec) = (&context.home, &cluster.spec);
    let working = Working::new();
    let wish = match wanted(&options.what)? {
        Wanted::Backup(wish) => wish,
        Wanted::Snapshot(snapshot) => {
            let ready = Ready::of_snapshot(home, spec, &snapshot, &working).await?;
            let highest_revision = highest_in_backups(cluster, known).await;
            return Ok((Ready { highest_revision, ..ready }, None));
        }
    };
    let store = &open_store(spec, super::backup::which(options.second.second))?;
    let cluster_id = known.map(|ledger| ledger.cluster_id.as_str());
    let cli::Trusted { signed_by, unsigned } = &options.trusted;
    let trust = trust_of(known, spec, signed_by.as_ref(), *unsigned);
    refuse_unchecked(spec.name.as_str(), &trust)?;
    let catalog = catalog_of(store, spec.name.as_str(), cluster_id, &trust).await?;
    refuse_if_all_are_unsigned(&catalog)?;
    let imported = match known {
        Some(_) => None,
        None if options.without_ledger => None,
        None => ledger_beside(store, &catalog, identity(&options.identity)?.as_ref()).await?,
    };
    let identities = identities(&options.identity)?;
    let ready = Ready::of_backups(home, spec, (store, &catalog), &wish, identities.as_ref(), &working).await?;
    Ok((ready, imported))
}

/// Beside a snapshot of elsewhere: how far this cluster's own backups say that it has come. A store that is away does not keep anyone
/// from restoring: the members and the ledger know too.
async fn highest_in_backups(cluster: &Cluster, known: Option<&Ledger>) -> i64 {
    let (Some(ledger), Some(_)) = (known, &cluster.spec.backup) else { return 0 };
    let looked = async {
        let store = open_store(&cluster.spec, Which::First)?;
        let trust = trust_of(known, &cluster.spec, None, false);
        let catalog = catalog_of(&store, cluster.spec.name.as_str(), Some(&ledger.cluster_id), &trust).await?;
        Ok::<i64, BackupError>(catalog.highest_revision())
    };
    looked.await.unwrap_or_else(|error| {
        let why = Error::from(error).render(None);
        output::talk(&format!("warning: how far the backups of this cluster go is not known\n{why}"));
        0
    })
}

fn refuse_if_all_are_unsigned(catalog: &Catalog) -> Result<(), Error> {
    let Some(newest) = catalog.unsigned.last().filter(|_| catalog.fulls.is_empty()) else { return Ok(()) };
    let count = count(catalog.unsigned.len(), "backup");
    Err(Error::refused(
        format!("none of the {count} of {} is signed; the newest is {}", catalog.cluster, newest.id()),
        "an older quorate made them, or anyone else who can write to the store; pass --unsigned to restore one nevertheless",
    ))
}

fn wanted(what: &cli::RestoreWhat) -> Result<Wanted, Error> {
    let cli::RestoreWhat { at, revision, backup, snapshot } = what;
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

/// What the operator's word is about.
struct Word<'a> {
    known: Option<Ledger>,
    imported: Option<Exported>,
    ready: &'a Ready,
}

async fn restore(context: &Context, cluster: &Cluster, word: Word<'_>, options: &cli::Restore) -> Result<Exit, Error> {
    let Word { known, imported, ready } = word;
    let name = cluster.spec.name.as_str();
    let base = known.as_ref().or(imported.as_ref().map(|exported| &exported.ledger));
    let seen = match base {
        Some(ledger) => Some(Sight::new(context.home.provider(ledger)).glance(ledger, None).await?),
        None => None,
    };
    let highest = highest(ready, base, seen.as_ref());
    let bump_revision = bump_past(highest, unsigned(ready.prepared.revision));
    prove_raised(&context.home, &cluster.spec, &ready.prepared, bump_revision).await?;
    let shown = what_happens(&cluster.spec, ready, known.as_ref(), imported.as_ref(), seen.as_ref(), highest);
    let giving = Giving {
        consent: consent(shown.clone()),
        ready,
        imported: imported.as_ref().map(|exported| &exported.ledger),
        seen: seen.as_ref(),
        bump_revision,
        now: options.now,
    };
    let imagined = |ledger: &mut Ledger| {
        giving.come_back(ledger);
        giving.give(ledger);
    };
    let plan = controller::plan(&context.home, &cluster.spec, &cluster.brought, imagined).await?;
    output::talk(&format!("{shown}\n"));
    if !plan.end.blocked.is_empty() && !restores(&plan) {
        return Ok(refused(&plan.end.blocked));
    }
    output::print(&output::plan::text(name, &plan, Detail::Reasons))?;
    if options.dry_run {
        output::talk("nothing was done\n");
        return Ok(Exit::Done);
    }
    agree_by_name(options.yes, name, "restore")?;
    if let Some(exported) = &imported {
        take_over(context, name, exported)?;
    }
    let give = |ledger: &mut Ledger| giving.give(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "restore", give).await?;
    let exit = conclude(context, outcome)?;
    if cluster.spec.backup.is_some() && exit == Exit::Done {
        let create = context.command(&format!("backup create {name}"));
        output::talk(&format!("next: take a backup of what it is now with `{create}`\n"));
    }
    Ok(exit)
}

/// Whether the plan leads to a cluster.
fn restores(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step.action, Action::RecordFormed { .. }))
}

/// The ledger from beside the backup becomes the one here.
fn take_over(context: &Context, name: &str, exported: &Exported) -> Result<(), Error> {
    let mut ledger = exported.ledger.clone();
    without_words(&mut ledger);
    context.home.store(name).write(&mut ledger)?;
    let history = History::new(context.home.history(name));
    history.remove()?;
    history.merge(&exported.history)?;
    Ok(())
}

/// What was wished when the backup was taken is long done, or was given up.
fn without_words(ledger: &mut Ledger) {
    (ledger.restore, ledger.recovery, ledger.destroy, ledger.without_backup) = (None, None, None, None);
}

/// The word, as it goes into the ledger.
struct Giving<'a> {
    consent: Consent,
    ready: &'a Ready,
    imported: Option<&'a Ledger>,
    seen: Option<&'a Observation>,
    bump_revision: u64,
    now: bool,
}

impl Giving<'_> {
    /// For the plan: as if the ledger had been taken over.
    fn come_back(&self, ledger: &mut Ledger) {
        if let Some(imported) = self.imported {
            *ledger = Ledger { spec: ledger.spec.clone(), version: ledger.version, lock: None, ..imported.clone() };
            without_words(ledger);
        }
    }

    fn give(&self, ledger: &mut Ledger) {
        let prepared = &self.ready.prepared;
        if let (Some(_), Some(seen)) = (self.imported, self.seen) {
            remember::resume_above(ledger, seen);
            ledger.older_accepted = Some(self.consent.clone());
        }
        // Clients may have seen what only the backups still know of.
        ledger.highest_revision =
            revision::remembered(ledger.highest_revision).max(unsigned(self.ready.highest_revision));
        let epoch = ledger.restore.as_ref().map_or(0, |wish| wish.epoch) + 1;
        ledger.restore = Some(RestoreWish {
            consent: self.consent.clone(),
            sha256: prepared.sha256.clone(),
            bytes: prepared.bytes,
            revision: unsigned(prepared.revision),
            source: prepared.source.clone(),
            epoch,
            bump_revision: Some(self.bump_revision),
        });
        ledger.without_grace = self.now.then(|| self.consent.clone());
    }
}

/// What the operator gives the word to.
fn what_happens(
    spec: &ClusterSpec,
    ready: &Ready,
    known: Option<&Ledger>,
    imported: Option<&Exported>,
    seen: Option<&Observation>,
    highest: u64,
) -> String {
    let (name, prepared) = (&spec.name, &ready.prepared);
    let mut text = format!("cluster {name} begins anew from {}\n", prepared.source);
    let _ = writeln!(
        text,
        "  it was made ready here, restored into a throwaway etcd and looked at: revision {}, {} keys, {}",
        prepared.revision,
        prepared.keys,
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
            "  nothing is known of {name} here: its ledger, version {version}, comes back from beside the backup"
        );
        text.push_str(&what_is_taken_over(&exported.ledger));
        if seen.is_some_and(|seen| seen.agents.keys().any(|member| seen.facts(member).is_some())) {
            text.push_str(ITS_MACHINES_LIVE);
        }
    } else if known.is_none() {
        let _ = writeln!(text, "  nothing is known of {name} here, and no ledger comes back: it gets new CAs and keys");
    }
    let _ = writeln!(text, "what is lost:\n{}", what_is_lost(ready, highest));
    text.push_str(WHAT_ELSE);
    text
}

/// The highest revision that clients can have seen: by what members report, the ledger remembers, and the backups hold.
fn highest(ready: &Ready, ledger: Option<&Ledger>, seen: Option<&Observation>) -> u64 {
    let statuses =
        seen.into_iter().flat_map(|seen| seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref()));
    let told = revision::told(statuses).unwrap_or(0);
    let remembered = ledger.map_or(0, |ledger| revision::remembered(ledger.highest_revision));
    told.max(remembered).max(unsigned(ready.highest_revision))
}

fn what_is_lost(ready: &Ready, highest: u64) -> String {
    let revision = unsigned(ready.prepared.revision);
    let when = ready.choice.as_ref().map(|choice| {
        let last = choice.segments.last().map(|last| last.last_at);
        format!(", {}", shown(last.unwrap_or(choice.full.taken.opened)))
    });
    let when = when.unwrap_or_default();
    match highest.checked_sub(revision).filter(|lost| *lost > 0) {
        // Nobody wrote the revisions that a restore has skipped.
        Some(raised) if raised >= MARGIN => format!(
            "  - all that was written after revision {revision}{when}: the cluster is at revision {highest}, which a restore or recovery \
             has raised since"
        ),
        Some(1) => format!(
            "  - all that was written after revision {revision}{when}: the cluster is at revision {highest}, 1 revision is lost"
        ),
        Some(lost) => format!(
            "  - all that was written after revision {revision}{when}: the cluster is at revision {highest}, {lost} revisions are lost"
        ),
        None => format!("  - all that was written after revision {revision}{when}, should there be anything"),
    }
}

fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

const NOT_SIGNED: &str = "\
  WARNING: this backup is NOT SIGNED, or its signature cannot be checked. Anyone who can write to the store could have made it, with any
  data and any users in it. It is restored only because --unsigned was passed
";

const NOT_ENCRYPTED: &str = "\
  note: this backup is not encrypted, though the spec names recipients: whoever could write to the store could have made it
";

const ITS_MACHINES_LIVE: &str = "\
  note: its machines answer. To take the cluster over as it is, with its data of now, use instead:
    quorate ledger import --from-backup FILE --identity KEY
    quorate apply FILE --accept-older-ledger
";

const WHAT_ELSE: &str = "\
what else to know:
  - the data of every member is replaced, or of none; what a machine held before is kept beside it
  - revisions go on far above the highest that was ever seen, and all before is compacted: watches end, and begin anew
  - users and roles are as of the full backup; leases begin anew, each with the time that it was granted
";
