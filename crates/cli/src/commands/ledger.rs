//! `quorate ledger`: exports and imports a cluster's state, encrypted. It asks for nothing and never silently replaces
//! a newer ledger.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use quorate_backup::Trust;
use quorate_control::backup::open_store;
use quorate_control::backup::signing::{fingerprint_of, trust_of};
use quorate_control::kinds::etcd::backup::{catalog_of, ledger_beside};
use quorate_control::ledger::{Exported, LedgerLock, OpenWith, SealFor, Store, export as seal, import as unseal};
use quorate_control::run::history::History;
use quorate_control::verbs::restore::refuse_unchecked;
use quorate_core::Secret;
use quorate_core::model::{AuthorityRecord, Ledger};

use super::Context;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub fn export(context: &Context, options: cli::LedgerExport) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    if options.out.is_none() && io::stdout().is_terminal() {
        return Err(Error::refused("refusing to write an export to a terminal", "pass --out FILE, or redirect stdout"));
    }
    let key = match &options.key.passphrase_file {
        Some(file) => SealFor::Passphrase(passphrase(file)?),
        None => SealFor::Recipients(options.key.recipients),
    };
    let history = History::new(context.home.history(&options.name)).text()?;
    let sealed = seal(&ledger, &history, &key)?;
    match &options.out {
        None => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&sealed).and_then(|()| stdout.flush()).map_err(Error::Output)?;
        }
        Some(path) => {
            let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
            file.and_then(|mut f| f.write_all(&sealed)).map_err(Error::file("written", path))?;
            output::talk(&super::backup::signer_note(&ledger));
            output::talk(&format!(
                "the ledger of {}, version {}, is in {}\n",
                options.name,
                ledger.version,
                path.display()
            ));
        }
    }
    Ok(Exit::Done)
}

pub async fn import(context: &Context, options: cli::LedgerImport) -> Result<Exit, Error> {
    let key = match (&options.key.identity, &options.key.passphrase_file) {
        (Some(file), _) => identities(file)?,
        (None, Some(file)) => OpenWith::Passphrase(passphrase(file)?),
        (None, None) => unreachable!("the command line requires one of them"),
    };
    let Exported { ledger: imported, history } = match &options.from_backup {
        Some(spec) => beside_backup(context, spec, &options, &key).await?,
        None => unseal(&read(&options.file)?, &key)?,
    };
    let name = imported.spec.name.clone();
    let version = imported.version;
    let store = context.home.store(name.as_str());
    let beside = History::new(context.home.history(name.as_str()));
    super::free_lapsed(context, name.as_str()).await?;
    let existing = store.read()?;
    let another = existing.as_ref().is_none_or(|existing| existing.cluster_id != imported.cluster_id);
    match existing {
        Some(existing) => replace(store, existing, imported, options.replace)?,
        None => store.write(&mut imported.clone())?,
    }
    // What is stored there may be left over from a cluster of the same name.
    if another {
        beside.remove()?;
    }
    beside.merge(&history)?;
    let see = context.command(&format!("status {name}"));
    output::talk(&format!("the ledger of {name}, version {version}, is imported; see `{see}`\n"));
    Ok(Exit::Done)
}

/// From the newest backup in the store that the spec names.
async fn beside_backup(
    context: &Context,
    spec: &str,
    options: &cli::LedgerImport,
    key: &OpenWith,
) -> Result<Exported, Error> {
    let spec = load::one_spec(&context.home, spec, options.cluster.as_deref())?;
    let store = open_store(&spec, super::backup::which(options.second))?;
    let OpenWith::Identities(identity) = key else {
        return Err(Error::refused(
            "the ledger next to a backup is encrypted to an age identity",
            "pass --identity FILE",
        ));
    };
    let trust = trust_of(None, &spec, options.signed_by.as_ref(), options.unsigned);
    refuse_unchecked(spec.name.as_str(), &trust).map_err(|error| context.error(error))?;
    let catalog = catalog_of(&store, spec.name.as_str(), None, &trust).await?;
    let found = ledger_beside(&store, &catalog, Some(identity)).await?;
    if let Some(found) = &found {
        output::talk(&format!("{}{}", ledger_identity(&found.ledger), signature_note(&trust)));
    }
    found.ok_or_else(|| {
        let what = format!("no backup of {} in {} has a ledger next to it", spec.name, store.place());
        Error::refused(what, "a ledger is stored only if `backup.recipients` is set")
    })
}

pub fn signature_note(trust: &Trust) -> String {
    match (&trust.signer, trust.unsigned) {
        (Some(signer), false) => format!("  checked: it is signed by {signer}\n"),
        (Some(signer), true) => {
            format!("  WARNING: what {signer} has not signed is accepted too, because --unsigned was passed\n")
        }
        (None, _) => String::from(NOT_CHECKED),
    }
}

const NOT_CHECKED: &str = "\
  WARNING: it is NOT CHECKED who made this, as --unsigned was passed. Anyone who can write to the store could have.
  Compare the fingerprints above with what you know of the cluster.
";

/// What distinguishes this cluster from any other.
pub fn ledger_identity(ledger: &Ledger) -> String {
    let fingerprint = |record: &Option<AuthorityRecord>| {
        let found = record.as_ref().and_then(fingerprint_of);
        found.map_or_else(|| String::from("none"), |found| format!("SHA-256 {found}"))
    };
    format!(
        "  the ledger of cluster {}, version {}:\n    cluster id  {}\n    etcd CA     {}\n    control CA  {}\n    signs with  {}\n",
        ledger.spec.name,
        ledger.version,
        ledger.cluster_id,
        fingerprint(&ledger.authorities.client),
        fingerprint(&ledger.authorities.control),
        ledger.backup_signing.as_ref().map_or_else(|| String::from("no key yet"), |signing| signing.public.to_string()),
    )
}

fn replace(store: Store, existing: Ledger, imported: Ledger, meant: bool) -> Result<(), Error> {
    if !meant {
        may_replace(&existing, &imported)?;
    }
    let held = LedgerLock::take(store, existing, "quorate ledger import", Timestamp::now())?;
    held.write(Timestamp::now(), |ledger| {
        let fence = ledger.fence.max(imported.fence);
        let version = ledger.version.max(imported.version);
        *ledger = Ledger { lock: ledger.lock.take(), fence, version, ..imported };
    })?;
    held.release(|_| {})?;
    Ok(())
}

fn may_replace(existing: &Ledger, imported: &Ledger) -> Result<(), Error> {
    let name = &existing.spec.name;
    let hint = "pass --replace to overwrite the local ledger; export it first to keep it";
    if existing.cluster_id != imported.cluster_id {
        let (here, there) = (&existing.cluster_id, &imported.cluster_id);
        let what = format!(
            "the local ledger of {name} belongs to another cluster: its id is {here}, that of the export {there}"
        );
        return Err(Error::refused(what, hint));
    }
    if existing.version > imported.version {
        let (here, there) = (existing.version, imported.version);
        let what = format!("the local ledger of {name} is newer: it has version {here}, the export {there}");
        return Err(Error::refused(what, hint));
    }
    Ok(())
}

fn read(file: &str) -> Result<Vec<u8>, Error> {
    if file != "-" {
        return fs::read(file).map_err(Error::file("read", file));
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(Error::file("read", "stdin"))?;
    Ok(bytes)
}

fn passphrase(file: &Path) -> Result<Secret, Error> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(Secret::new(line)),
        None => Err(Error::refused(format!("{} is empty", file.display()), "write the passphrase on its first line")),
    }
}

fn identities(file: &Path) -> Result<OpenWith, Error> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    Ok(OpenWith::Identities(Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::generated;

    use super::*;

    fn ledger(id: &str, version: u64) -> Ledger {
        let mut spec = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap();
        Ledger { version, ..Ledger::new(id.to_owned(), spec.clusters.remove(0)) }
    }

    #[test]
    fn an_import_replaces_neither_a_newer_ledger_nor_that_of_another_cluster() {
        assert!(may_replace(&ledger("a", 5), &ledger("a", 6)).is_ok());
        let newer = may_replace(&ledger("a", 7), &ledger("a", 6)).unwrap_err().to_string();
        assert_eq!(newer, "the local ledger of demo is newer: it has version 7, the export 6");
        assert!(may_replace(&ledger("a", 1), &ledger("b", 6)).unwrap_err().to_string().contains("another cluster"));
    }

    #[test]
    fn a_replaced_ledger_is_the_newest_version_and_keeps_the_higher_fence() {
        let home = tempfile::tempdir().unwrap();
        let store = quorate_control::Home::new(home.path()).store("demo");
        let mut existing = Ledger { fence: 9, ..ledger("a", 3) };
        store.write(&mut existing).unwrap();
        let mut imported = ledger("a", 1);
        imported.etcd.highest_revision = 42;
        replace(store.clone(), existing, imported, true).unwrap();
        let now = store.read().unwrap().unwrap();
        assert_eq!((now.etcd.highest_revision, now.fence, now.lock), (42, 9, None));
        assert!(now.version > 4);
    }
}
