//! `restore`: the snapshot, what would be lost, and the confirmation under which every member is restored from it.

use quorate_backup::Trust;
use quorate_backup::catalog::Catalog;
use quorate_backup::keys::Identities;
use quorate_backup::prepare::Prepared;
use quorate_core::Secret;
use quorate_core::kinds::etcd::RestoreWish;
use quorate_core::kinds::etcd::safety::restore::bump_past;
use quorate_core::kinds::etcd::safety::revision;
use quorate_core::model::{Consent, Ledger, Observation};
use quorate_core::planner::{Action, Plan, remember};
use quorate_core::spec::Signer;
use quorate_core::text::with_causes;

use super::{Cluster, VerbError, consent, observe, refuse_if_being_destroyed, refuse_if_off};
use crate::backup::signing::trust_of;
use crate::backup::{BackupError, Teller, Which, open_store};
use crate::home::Home;
use crate::kinds::etcd::backup::{
    Ready, Wanted, catalog_of, ledger_beside, root_is_let_in, verify_raised, without_older_leaders,
};
use crate::ledger::{Exported, LedgerError};
use crate::run::controller;
use crate::run::error::ControlError;
use crate::run::history::History;

/// The source of a restore, and its keys.
pub struct Source {
    pub wanted: Wanted,
    pub store: Which,
    pub signed_by: Option<Signer>,
    /// Unsigned backups are accepted too.
    pub unsigned: bool,
    /// The text of an age identity file.
    pub identity: Option<Secret>,
    pub identities: Option<Identities>,
    /// If the cluster is not known here, the ledger next to the backup is not imported.
    pub without_ledger: bool,
}

/// A restore that can be confirmed: its snapshot is here and correct, and nothing has changed yet. The run that restores from it first
/// verifies it once more, in the same way as the members restore it.
pub struct Restore {
    pub ready: Ready,
    pub known: Option<Ledger>,
    /// The ledger from next to the backup, if there is none here.
    pub imported: Option<Exported>,
    pub seen: Option<Observation>,
    /// The highest revision that clients can have seen: as members report, the ledger remembers, and the backups hold.
    pub highest: u64,
}

pub fn check(known: Option<&Ledger>) -> Result<(), VerbError> {
    refuse_if_being_destroyed(known)?;
    known.map_or(Ok(()), refuse_if_off)
}

/// Removes snapshots that no restore in the ledger needs: a restore was not confirmed, or failed before the ledger recorded it.
pub fn forget_unwanted(home: &Home, name: &str) -> Result<(), LedgerError> {
    let waits = home.store(name).read()?.and_then(|ledger| ledger.etcd.restore);
    home.forget_snapshots(name, waits.as_ref())
}

impl Restore {
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        known: Option<Ledger>,
        source: &Source,
        teller: &dyn Teller,
    ) -> Result<Self, VerbError> {
        let (mut ready, imported) = snapshot(home, cluster, known.as_ref(), source, teller).await?;
        let base = known.as_ref().or(imported.as_ref().map(|exported| &exported.ledger));
        ready.prepared = without_older_leaders(home, &cluster.spec, ready.prepared, base).await?;
        // With password logins, members must be accepted by the restored data; afterwards would be too late.
        let remembered = base.and_then(|ledger| ledger.etcd.auth.root_password.as_ref());
        let password = remembered.or(cluster.brought.root_password.as_ref());
        root_is_let_in(home, &cluster.spec, &ready.prepared, password).await?;
        let seen = match base {
            Some(ledger) => Some(observe(home, ledger).await?),
            None => None,
        };
        let highest = highest(&ready, base, seen.as_ref());
        Ok(Restore { ready, known, imported, seen, highest })
    }

    /// The checks before anything is changed, for a dry run.
    pub async fn rehearse(&self, home: &Home, cluster: &Cluster) -> Result<(), VerbError> {
        let Prepared { path, keys, revision, .. } = &self.ready.prepared;
        let bump_revision = bump_past(self.highest, unsigned(*revision));
        Ok(verify_raised(home, &cluster.spec, path, *keys, bump_revision).await?)
    }

    /// With `now`, unreachable machines count as dead at once.
    pub fn request(&self, shown: String, now: bool) -> Request<'_> {
        Request { confirmed: consent(shown), restore: self, now }
    }

    /// The ledger from next to the backup becomes the one here.
    pub fn take_over(&self, home: &Home, name: &str) -> Result<(), LedgerError> {
        self.imported.as_ref().map_or(Ok(()), |exported| take_over(home, name, exported))
    }
}

/// A restore as the operator confirmed it.
pub struct Request<'a> {
    confirmed: Consent,
    restore: &'a Restore,
    now: bool,
}

impl Request<'_> {
    pub async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        let change = |ledger: &mut Ledger| {
            self.come_back(ledger);
            self.note(ledger);
        };
        controller::plan(home, &cluster.spec, &cluster.brought, change).await
    }

    /// For the plan: as if the ledger had been imported.
    fn come_back(&self, ledger: &mut Ledger) {
        if let Some(exported) = &self.restore.imported {
            come_back(ledger, exported);
        }
    }

    pub fn note(&self, ledger: &mut Ledger) {
        let Restore { ready, imported, seen, .. } = self.restore;
        let prepared = &ready.prepared;
        if let (Some(_), Some(seen)) = (imported, seen) {
            remember::resume_above(ledger, seen);
            ledger.older_accepted = Some(self.confirmed.clone());
        }
        // Clients may have seen revisions that only the backups still contain.
        ledger.etcd.highest_revision =
            revision::remembered(ledger.etcd.highest_revision).max(unsigned(ready.highest_revision));
        ledger.etcd.request_restore(RestoreWish {
            consent: self.confirmed.clone(),
            sha256: prepared.sha256.clone(),
            bytes: prepared.bytes,
            revision: unsigned(prepared.revision),
            keys: prepared.keys,
            source: prepared.source.clone(),
            epoch: 0,
            bump_revision: None,
        });
        super::add(&mut ledger.without_grace, &self.now.then(|| self.confirmed.clone()));
    }
}

/// Whether a plan results in a working cluster.
pub fn succeeds(plan: &Plan) -> bool {
    plan.end.blocked.is_empty() || plan.steps.iter().any(|step| matches!(step.action, Action::RecordFormed { .. }))
}

/// The ledger from next to a backup becomes the one here.
pub(crate) fn take_over(home: &Home, name: &str, exported: &Exported) -> Result<(), LedgerError> {
    let mut ledger = exported.ledger.clone();
    without_requests(&mut ledger);
    home.store(name).write(&mut ledger)?;
    let history = History::new(home.history(name));
    history.remove()?;
    history.merge(&exported.history)
}

/// The same in a plan, which writes nothing.
pub(crate) fn come_back(ledger: &mut Ledger, exported: &Exported) {
    *ledger = Ledger { spec: ledger.spec.clone(), version: ledger.version, lock: None, ..exported.ledger.clone() };
    without_requests(ledger);
}

/// Requests from the time of the backup are done or abandoned by now.
fn without_requests(ledger: &mut Ledger) {
    (ledger.etcd.restore, ledger.etcd.recovery, ledger.postgres.restore) = (None, None, None);
    (ledger.destroy, ledger.without_backup) = (None, None);
}

/// One verified snapshot, and the ledger if there is none here.
async fn snapshot(
    home: &Home,
    cluster: &Cluster,
    known: Option<&Ledger>,
    source: &Source,
    teller: &dyn Teller,
) -> Result<(Ready, Option<Exported>), VerbError> {
    let spec = &cluster.spec;
    let wish = match &source.wanted {
        Wanted::Backup(wish) => wish,
        Wanted::Snapshot(snapshot) => {
            let ready = Ready::of_snapshot(home, spec, snapshot, teller).await?;
            let highest_revision = highest_in_backups(cluster, known, teller).await;
            return Ok((Ready { highest_revision, ..ready }, None));
        }
    };
    let store = &open_store(spec, source.store)?;
    // A cluster that a failed restore was to create has an id that is in no backup, and a key that has signed none.
    let exists = known.filter(|ledger| ledger.etcd.awaits_restore.is_none());
    let cluster_id = exists.map(|ledger| ledger.cluster_id.as_str());
    let trust = trust_of(exists, spec, source.signed_by.as_ref(), source.unsigned);
    refuse_unchecked(spec.name.as_str(), &trust)?;
    let catalog = catalog_of(store, spec.name.as_str(), cluster_id, &trust).await?;
    refuse_if_all_are_unsigned(&catalog)?;
    let imported = match known {
        Some(_) => None,
        None if source.without_ledger => None,
        None => ledger_beside(store, &catalog, source.identity.as_ref()).await?,
    };
    let ready = Ready::of_backups(home, spec, (store, &catalog), wish, source.identities.as_ref(), teller).await?;
    Ok((ready, imported))
}

/// Next to a snapshot from elsewhere: the revision that this cluster's own backups reach. An unreachable store prevents no restore:
/// the members and the ledger know too.
async fn highest_in_backups(cluster: &Cluster, known: Option<&Ledger>, teller: &dyn Teller) -> i64 {
    let (Some(ledger), Some(_)) = (known, &cluster.spec.backup) else { return 0 };
    let looked = async {
        let store = open_store(&cluster.spec, Which::First)?;
        let trust = trust_of(known, &cluster.spec, None, false);
        let catalog = catalog_of(&store, cluster.spec.name.as_str(), Some(&ledger.cluster_id), &trust).await?;
        Ok::<i64, BackupError>(catalog.highest_revision())
    };
    looked.await.unwrap_or_else(|error| {
        let why = with_causes(&error);
        teller.say(&format!("warning: cannot tell how recent the backups of this cluster are: {why}"));
        0
    })
}

/// Nothing from a store is accepted without proof of its origin.
pub fn refuse_unchecked(name: &str, trust: &Trust) -> Result<(), VerbError> {
    if trust.signer.is_some() || trust.unsigned {
        return Ok(());
    }
    Err(VerbError::Refused {
        what: format!(
            "the key that signs the backups of {name} is not known here, so their origin cannot be checked: anyone who \
             can write to the store can replace them, and the author of a forged ledger next to a backup would \
             control every machine"
        ),
        hint: String::from(
            "pass --signed-by KEY (`quorate backup list` and `quorate status` print it on a host that has the ledger), or set \
         `backup.signed_by` in the spec; or consent with --unsigned to backups that cannot be checked",
        ),
    })
}

fn refuse_if_all_are_unsigned(catalog: &Catalog) -> Result<(), VerbError> {
    let Some(newest) = catalog.unsigned.last().filter(|_| catalog.fulls.is_empty()) else { return Ok(()) };
    let count = catalog.unsigned.len();
    let backups = if count == 1 { "backup" } else { "backups" };
    Err(VerbError::Refused {
        what: format!("none of the {count} {backups} of {} is signed; the newest is {}", catalog.cluster, newest.id()),
        hint: String::from(
            "an older quorate made them, or anyone else who can write to the store; pass --unsigned to restore one nevertheless",
        ),
    })
}

/// The highest revision that clients can have seen: by what members report, the ledger remembers, and the backups hold.
fn highest(ready: &Ready, ledger: Option<&Ledger>, seen: Option<&Observation>) -> u64 {
    let statuses =
        seen.into_iter().flat_map(|seen| seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref()));
    let told = revision::told(statuses).unwrap_or(0);
    let remembered = ledger.map_or(0, |ledger| revision::remembered(ledger.etcd.highest_revision));
    told.max(remembered).max(unsigned(ready.highest_revision))
}

fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
