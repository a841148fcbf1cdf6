//! The preparation of a PostgreSQL restore: chooses a backup, checks its manifest and its list of files, and restores the ledger from next
//! to it if there is none here. Touches no running member; after confirmation, the planner does the restore itself.

use jiff::Timestamp;
use quorate_agent::api::Job;
use quorate_backup::postgres::{self, Catalog, Listed, Manifest};
use quorate_core::Secret;
use quorate_core::kinds::postgres::backup::BackupTaken;
use quorate_core::kinds::postgres::{RestoreTarget, RestoreWish, Until};
use quorate_core::model::{Consent, Ledger, Observation};
use quorate_core::planner::{Plan, remember};
use quorate_core::spec::Signer;

use super::is_what_was_taken;
use super::members::Members;
use crate::backup::signing::trust_of;
use crate::backup::{BackupError, Teller, Which, open_store};
use crate::home::Home;
use crate::ledger::{Exported, LedgerError, OpenWith, import};
use crate::run::controller;
use crate::run::error::ControlError;
use crate::verbs::restore::{come_back, take_over};
use crate::verbs::{Cluster, VerbError, consent, observe};

/// The requested point.
#[derive(Clone, PartialEq, Debug)]
pub enum Wanted {
    Newest,
    Backup(String),
    At(Timestamp),
    /// From this backup, or from the newest.
    Lsn(String, Option<String>),
    Xid(u64, Option<String>),
}

pub struct Source {
    pub wanted: Wanted,
    pub timeline: Option<u32>,
    pub store: Which,
    pub signed_by: Option<Signer>,
    pub unsigned: bool,
    pub identity: Option<Secret>,
}

/// A restore that can be confirmed.
pub struct Restore {
    pub manifest: Manifest,
    pub is_signed: bool,
    pub target: RestoreTarget,
    pub known: Option<Ledger>,
    /// The ledger from next to the backup, where there is none here.
    pub imported: Option<Exported>,
    /// Why the running cluster's last writes may be missing from the store.
    pub log_not_stored: Option<BackupError>,
    seen: Option<Observation>,
}

impl Restore {
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        known: Option<Ledger>,
        source: &Source,
        teller: &dyn Teller,
    ) -> Result<Self, VerbError> {
        let (spec, name) = (&cluster.spec, cluster.spec.name.as_str());
        let store = open_store(spec, source.store)?;
        let trust = trust_of(known.as_ref(), spec, source.signed_by.as_ref(), source.unsigned);
        if trust.signer.is_none() && !source.unsigned {
            return Err(VerbError::Refused {
                what: format!("the key that signs the backups of {name} is not known here"),
                hint: String::from("pass it with --signed-by, or accept an unchecked backup with --unsigned"),
            });
        }
        let id = known.as_ref().map(|ledger| ledger.cluster_id.as_str());
        let catalog = Catalog::load(&store, name, id, &trust).await.map_err(BackupError::from)?;
        let listed = chosen(&catalog, &source.wanted, name)?;
        let manifest = listed.manifest.clone();
        if let Err(why) = is_what_was_taken(&store, name, &manifest).await? {
            let what = format!("backup {} cannot be restored: {why}", manifest.label());
            return Err(VerbError::Refused { what, hint: String::from("choose another with --backup") });
        }
        let imported = match known {
            Some(_) => None,
            None => ledger_beside(&store, &manifest, source.identity.as_ref()).await?,
        };
        if let Some(postgres) = &spec.postgres {
            let known = known.as_ref().or(imported.as_ref().map(|exported| &exported.ledger));
            let runs = known.and_then(|ledger| ledger.postgres.data_version());
            refuse_other_version(&manifest, runs.map_or_else(|| postgres.version.to_string(), str::to_owned))?;
        }
        let base = known.as_ref().or(imported.as_ref().map(|exported| &exported.ledger));
        let seen = match base {
            Some(ledger) => Some(observe(home, ledger).await?),
            None => None,
        };
        let log_not_stored = match &known {
            Some(ledger) => store_log(home, ledger, teller).await.err(),
            None => None,
        };
        refuse_earlier_timeline(&manifest.taken, source.timeline)?;
        let target = RestoreTarget {
            label: manifest.label().to_owned(),
            repository: source.store.repository(),
            until: until(&source.wanted),
            timeline: source.timeline,
            bytes: manifest.taken.bytes,
        };
        Ok(Restore { is_signed: listed.is_signed, manifest, target, known, imported, log_not_stored, seen })
    }

    /// The backup and how far the log is replayed, in words.
    pub fn source(&self) -> String {
        let label = &self.target.label;
        match &self.target.until {
            Until::End => format!("backup {label} with all log that was stored"),
            Until::Backup => format!("backup {label} alone"),
            Until::Time(time) => format!("backup {label} with the log until {time}"),
            Until::Lsn(lsn) => format!("backup {label} with the log until {lsn}"),
            Until::Xid(xid) => format!("backup {label} with the log until transaction {xid}"),
        }
    }

    pub fn request(&self, shown: String, now: bool) -> Request<'_> {
        let token = format!("{}-restored-{}", self.manifest.cluster, quorate_pki::random_hex(4));
        Request { restore: self, confirmed: consent(shown), token, now }
    }

    /// Imports the ledger from next to the backup.
    pub fn take_over(&self, home: &Home, name: &str) -> Result<(), LedgerError> {
        self.imported.as_ref().map_or(Ok(()), |exported| take_over(home, name, exported))
    }
}

/// A restore as the operator confirmed it.
pub struct Request<'a> {
    restore: &'a Restore,
    confirmed: Consent,
    token: String,
    now: bool,
}

impl Request<'_> {
    pub async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        let change = |ledger: &mut Ledger| {
            if let Some(exported) = &self.restore.imported {
                come_back(ledger, exported);
            }
            self.note(ledger);
        };
        controller::plan(home, &cluster.spec, &cluster.brought, change).await
    }

    pub fn note(&self, ledger: &mut Ledger) {
        let Restore { imported, seen, target, .. } = self.restore;
        if let (Some(_), Some(seen)) = (imported, seen) {
            remember::resume_above(ledger, seen);
            ledger.older_accepted = Some(self.confirmed.clone());
        }
        ledger.postgres.restore = Some(RestoreWish {
            consent: self.confirmed.clone(),
            token: self.token.clone(),
            target: Some(target.clone()),
            source: self.restore.source(),
        });
        if self.now {
            ledger.without_grace = Some(self.confirmed.clone());
        }
    }
}

/// PostgreSQL reads no data of another major version.
fn refuse_other_version(manifest: &Manifest, runs: String) -> Result<(), VerbError> {
    let version = &manifest.taken.postgres_version;
    if *version == runs {
        return Ok(());
    }
    Err(VerbError::Refused {
        what: format!("backup {} is of PostgreSQL {version}, and the cluster runs {runs}", manifest.label()),
        hint: format!(
            "choose another with --backup; or create a second cluster with `postgres.version: {version}` and restore there"
        ),
    })
}

/// Everything that the running cluster has written is needed: the operator may want it back.
async fn store_log(home: &Home, ledger: &Ledger, teller: &dyn Teller) -> Result<(), BackupError> {
    let members = Members::look(home, ledger).await?;
    members.on_primary(Job::StoreLog, "store its log", teller).await.map(drop)
}

/// The log leads from a backup to later timelines only.
fn refuse_earlier_timeline(taken: &BackupTaken, wanted: Option<u32>) -> Result<(), VerbError> {
    match (timeline_of(&taken.first_wal), wanted) {
        (Some(own), Some(wanted)) if wanted < own => Err(VerbError::Refused {
            what: format!("backup {} was taken on timeline {own}, after timeline {wanted}", taken.label),
            hint: format!("name timeline {own} or a later one, or an earlier backup with --backup"),
        }),
        _ => Ok(()),
    }
}

/// The names of WAL files begin with it, in eight hexadecimal digits.
fn timeline_of(wal: &str) -> Option<u32> {
    u32::from_str_radix(wal.get(..8)?, 16).ok()
}

fn until(wanted: &Wanted) -> Until {
    match wanted {
        Wanted::Newest => Until::End,
        Wanted::Backup(_) => Until::Backup,
        Wanted::At(time) => Until::Time(*time),
        Wanted::Lsn(lsn, _) => Until::Lsn(lsn.clone()),
        Wanted::Xid(xid, _) => Until::Xid(*xid),
    }
}

/// The backup from which the log leads to what is wanted.
fn chosen<'a>(catalog: &'a Catalog, wanted: &Wanted, name: &str) -> Result<&'a Listed, VerbError> {
    let newest = || catalog.backups.last();
    let labelled = |label: &Option<String>| match label {
        Some(label) => catalog.find(label),
        None => newest(),
    };
    let found = match wanted {
        Wanted::Newest => newest(),
        Wanted::Backup(label) => catalog.find(label),
        Wanted::At(time) => catalog.newest_before(*time),
        Wanted::Lsn(lsn, None) => {
            catalog.backups.iter().rfind(|listed| is_before(&listed.manifest.taken.last_lsn, lsn))
        }
        Wanted::Lsn(_, label) | Wanted::Xid(_, label) => labelled(label),
    };
    found.ok_or_else(|| {
        let oldest = catalog.backups.first().map(|listed| listed.manifest.taken.ended);
        let what = match (wanted, oldest) {
            (_, None) if !catalog.strange.is_empty() => {
                format!("there is no backup of {name} that can be used: {}", catalog.strange.join("; "))
            }
            (_, None) => format!("there is no backup of {name}"),
            (Wanted::At(time), Some(oldest)) => format!("the oldest backup of {name} ends at {oldest}, after {time}"),
            (Wanted::Backup(label), Some(_)) => format!("there is no backup {label} of {name}"),
            (_, Some(_)) => format!("no backup of {name} ends before that point"),
        };
        VerbError::Refused { what, hint: String::from("`quorate backup list` lists them") }
    })
}

/// Places in the log, such as 0/3000050.
fn is_before(one: &str, other: &str) -> bool {
    let place = |text: &str| {
        let (high, low) = text.split_once('/')?;
        Some((u64::from_str_radix(high, 16).ok()?, u64::from_str_radix(low, 16).ok()?))
    };
    place(one).zip(place(other)).is_some_and(|(one, other)| one <= other)
}

async fn ledger_beside(
    store: &quorate_backup::Store,
    manifest: &Manifest,
    identity: Option<&Secret>,
) -> Result<Option<Exported>, VerbError> {
    let Some(sealed) = postgres::ledger(store, manifest).await.map_err(BackupError::from)? else { return Ok(None) };
    let identity = identity.ok_or_else(|| VerbError::Refused {
        what: String::from(
            "the ledger next to the backup is encrypted, and so is the backup: the key is in the ledger",
        ),
        hint: String::from("pass the secret key of one of its recipients with --identity"),
    })?;
    let exported = import(&sealed, &OpenWith::Identities(identity.clone())).map_err(BackupError::from)?;
    if exported.ledger.cluster_id != manifest.cluster_id {
        let (id, why) = (manifest.label().to_owned(), String::from("it belongs to another cluster"));
        return Err(BackupError::OtherLedger { id, why }.into());
    }
    Ok(Some(exported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_log_are_compared_as_numbers() {
        assert!(is_before("0/3000050", "0/10000000") && !is_before("1/0", "0/FFFFFFFF"));
        assert!(is_before("0/3000050", "0/3000050") && !is_before("x", "0/1"));
    }
}
