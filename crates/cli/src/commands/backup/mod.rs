//! `quorate backup`: takes, lists, verifies and removes backups. Never changes a cluster.

mod create;
mod look;
mod postgres;
mod tend;
mod watch;

use std::fs;
use std::path::Path;

use quorate_backup::keys::Identities;
use quorate_backup::{BackupId, Trust};
use quorate_control::backup::signing::trust_of;
use quorate_control::backup::{Vault, Which};
use quorate_core::Secret;
use quorate_core::model::Ledger;
use quorate_core::spec::{ClusterSpec, Kind};

use super::Context;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
pub use watch::stopped_by_signals;

pub async fn run(context: &Context, verb: cli::Backup) -> Result<Exit, Error> {
    if let Some(kind) = kind(context, &verb)?
        && kind == Kind::Postgres
    {
        return postgres::run(context, verb).await;
    }
    match verb {
        cli::Backup::Create(options) => create::run(context, options).await,
        cli::Backup::List(options) => look::list(context, options).await,
        cli::Backup::Verify(options) => look::verify(context, options).await,
        cli::Backup::Prune(options) => tend::prune(context, options).await,
        cli::Backup::Watch(options) => watch::run(context, options).await,
        cli::Backup::Rekey(options) => tend::rekey(context, options).await,
        cli::Backup::Export(options) => look::export(context, options).await,
    }
}

/// The kind of the cluster. None if unknown: then the command reports what is missing.
fn kind(context: &Context, verb: &cli::Backup) -> Result<Option<Kind>, Error> {
    let of = match verb {
        cli::Backup::Create(cli::BackupCreate { name, .. }) | cli::Backup::Watch(cli::BackupWatch { name, .. }) => {
            return Ok(load::remembered(&context.home, name)?.map(|ledger| ledger.spec.kind));
        }
        cli::Backup::List(options) => &options.of,
        cli::Backup::Verify(options) => &options.of,
        cli::Backup::Prune(options) => &options.of,
        cli::Backup::Rekey(options) => &options.of,
        cli::Backup::Export(options) => &options.of,
    };
    Ok(Some(Subject::find(context, of)?.spec.kind))
}

/// Whose backups are meant.
struct Subject {
    spec: ClusterSpec,
    /// None if the cluster is only known from its spec.
    ledger: Option<Ledger>,
}

impl Subject {
    fn find(context: &Context, of: &cli::BackupOf) -> Result<Self, Error> {
        let spec = load::one_spec(&context.home, &of.target, of.cluster.as_deref())?;
        let ledger = load::remembered(&context.home, spec.name.as_str())?;
        Ok(Subject { spec, ledger })
    }

    /// Both stores. Commands that read only one use `open_store`.
    fn vault(&self) -> Result<Vault, Error> {
        Ok(Vault::open(&self.spec)?)
    }

    /// The trusted keys. Unsigned backups are shown with the others only if `unsigned` says so.
    fn trust(&self, unsigned: bool) -> Trust {
        trust_of(self.ledger.as_ref(), &self.spec, None, unsigned)
    }

    fn cluster_id(&self) -> Option<&str> {
        self.ledger.as_ref().map(|ledger| ledger.cluster_id.as_str())
    }
}

/// Printed when the key is created, because a restore without the ledger needs it.
pub fn signer_note(ledger: &Ledger) -> String {
    let Some(signing) = &ledger.backup_signing else { return String::new() };
    let named = ledger.spec.backup.as_ref().and_then(|backup| backup.signed_by.as_ref());
    let keep = match named {
        Some(_) => "",
        None => {
            "  hint: write this into the spec as `backup.signed_by`; without the ledger, a restore needs it to tell your backups from forged ones\n"
        }
    };
    format!("backups of {} are signed by {}\n{keep}", ledger.spec.name, signing.public)
}

/// A spec that names another key was written for another cluster, and a restore with it would refuse every backup.
pub fn refuse_another_signer(ledger: &Ledger) -> Result<(), Error> {
    let own = ledger.backup_signing.as_ref().map(|signing| &signing.public);
    let named = ledger.spec.backup.as_ref().and_then(|backup| backup.signed_by.as_ref());
    match (own, named) {
        (Some(own), Some(named)) if own != named => Err(Error::refused(
            format!(
                "the spec says that backups are signed by {named}, and the ledger of {} signs with {own}",
                ledger.spec.name
            ),
            "correct `backup.signed_by` in the spec and apply it",
        )),
        _ => Ok(()),
    }
}

pub fn which(second: bool) -> Which {
    if second { Which::Second } else { Which::First }
}

/// The text of the operator's identity file.
pub fn identity(options: &cli::Identity) -> Result<Option<Secret>, Error> {
    options.identity.as_deref().map(read_identity).transpose()
}

fn read_identity(path: &Path) -> Result<Secret, Error> {
    fs::read_to_string(path).map(Secret::new).map_err(Error::file("read", path))
}

pub fn identities(options: &cli::Identity) -> Result<Option<Identities>, Error> {
    let Some(path) = &options.identity else { return Ok(None) };
    let parsed = Identities::parse(&read_identity(path)?);
    parsed
        .map(Some)
        .map_err(|error| Error::refused(format!("{}: {error}", path.display()), "`age-keygen` writes such a file"))
}

pub fn id(text: &str) -> Result<BackupId, Error> {
    text.parse().map_err(|why: String| Error::refused(why, "`quorate backup list` lists them"))
}
