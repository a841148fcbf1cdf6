//! `quorate backup list`, `verify` and `export`.

use jiff::Timestamp;
use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::full::key_of;
use quorate_backup::manifest::{Outcome, Verification};
use quorate_backup::prepare;
use quorate_backup::{Damage, Trust};
use quorate_control::backup::{Doing, Teller, open_store};
use quorate_control::kinds::etcd::backup::{Backups, catalog_of, prove, prove_beside};
use serde::Serialize;

use super::{Context, Subject, id, identities, which};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use crate::output::backup::{Listing, Verified, loose};
use crate::output::page::Page;
use crate::output::working::Working;

pub async fn list(context: &Context, options: cli::BackupList) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let name = subject.spec.name.as_str();
    let vault = subject.vault()?;
    let (mut catalogs, mut failed) = (Vec::new(), vault.second().err().map(Error::from));
    for store in vault.stores() {
        match catalog_of(store, name, subject.cluster_id(), &subject.trust(false)).await {
            Ok(catalog) => catalogs.push((store.place().to_owned(), catalog)),
            Err(error) => failed = Some(error.into()),
        }
    }
    // If one store is unavailable, the other's backups are still listed.
    let worst = match failed {
        Some(error) if catalogs.is_empty() => return Err(error),
        Some(error) => {
            output::talk(&error.render(None));
            error.exit()
        }
        None => Exit::Done,
    };
    let listing = Listing { signed_by: subject.trust(false).signer, ..Listing::new(name, &catalogs) };
    match options.output.format {
        Format::Json => output::print_json(&listing)?,
        Format::Text if listing.backups.is_empty() && listing.damage.is_empty() && listing.of_others.is_empty() => {
            let make = context.command(&format!("backup create {name}"));
            output::talk(&format!("there is no backup of {name} yet; `{make}` takes one\n"));
        }
        Format::Text => output::show(&output::backup::list(&listing, output::terminal::of_stdout()))?,
    }
    Ok(worst)
}

#[derive(Serialize)]
struct VerifiedJson<'a> {
    cluster: &'a str,
    place: &'a str,
    verified: Vec<Verified>,
    /// Objects that are not a backup, or belong to another cluster.
    damage: Vec<String>,
}

pub async fn verify(context: &Context, options: cli::BackupVerify) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let store = &open_store(&subject.spec, which(options.second.second))?;
    let identities = identities(&options.identity)?;
    let name = subject.spec.name.as_str();
    // An unsigned one may still be good.
    let catalog = catalog_of(store, name, subject.cluster_id(), &subject.trust(true)).await?;
    let working = Working::new();
    // Even if there is nothing to verify: the ledger may mention backups that are gone.
    let note = async || match subject.ledger.as_ref().filter(|_| !options.second.second) {
        Some(ledger) => {
            let vault = subject.vault()?;
            let backups = Backups { home: &context.home, ledger, vault: &vault, teller: &working };
            backups.note(None).await.map(drop).map_err(Error::from)
        }
        None => Ok(()),
    };
    if catalog.fulls.is_empty() {
        note().await?;
    }
    let (mut verified, mut found) = (Vec::new(), Vec::new());
    for full in wanted(context, name, &catalog, &options)? {
        let key = match full.damage.is_empty() {
            true => key_of(store, &full.manifest, identities.as_ref()).await.map_err(Error::backup)?,
            // It is not opened.
            false => None,
        };
        let outcome = prove_one(context, &subject, store, full, key, &working).await?;
        let told = Verified::new(&full.manifest, &outcome);
        if let Outcome::Failed { damage, .. } = outcome.outcome {
            found.extend(damage);
        }
        working.doing(Doing::Nothing);
        if options.output.format == Format::Text {
            output::show(&Page::written(&told.line()))?;
        }
        verified.push(told);
    }
    note().await?;
    drop(working);
    let loose = if options.id.is_none() { loose(&catalog) } else { Vec::new() };
    let damage: Vec<String> = loose.iter().map(ToString::to_string).collect();
    found.extend(loose.into_iter().cloned());
    let good = damage.is_empty() && verified.iter().all(|one| one.ok);
    match options.output.format {
        Format::Json => output::print_json(&VerifiedJson { cluster: name, place: store.place(), verified, damage })?,
        Format::Text => output::show(&Page::written(&other_damage(&catalog, &damage, &found)))?,
    }
    Ok(if good { Exit::Done } else { Exit::Damaged })
}

/// After the verified backups: what else is damaged, and what is still good.
fn other_damage(catalog: &Catalog, damage: &[String], found: &[Damage]) -> String {
    let mut text: String = damage.iter().map(|damage| format!("damaged: {damage}\n")).collect();
    if !found.is_empty() {
        text.push_str(&format!("{}\n", catalog.still(found)));
    }
    text
}

/// The backups to verify.
fn wanted<'a>(
    context: &Context,
    name: &str,
    catalog: &'a Catalog,
    options: &cli::BackupVerify,
) -> Result<Vec<&'a Full>, Error> {
    if options.all {
        return Ok(catalog.fulls.iter().collect());
    }
    let Some(text) = &options.id else {
        let newest: Vec<&Full> = catalog.fulls.last().into_iter().collect();
        if newest.is_empty() && loose(catalog).is_empty() {
            let make = context.command(&format!("backup create {name}"));
            return Err(Error::refused(format!("there is no backup of {name}"), format!("`{make}` creates one")));
        }
        return Ok(newest);
    };
    find(catalog, text).map(|full| vec![full])
}

fn find<'a>(catalog: &'a Catalog, text: &str) -> Result<&'a Full, Error> {
    let id = id(text)?;
    catalog.find(&id).ok_or_else(|| {
        let damage: String =
            catalog.damage.iter().filter(|damage| *damage.id() == id).map(|damage| format!(": {damage}")).collect();
        let what = format!("there is no backup {id} of {} that can be used{damage}", catalog.cluster);
        Error::refused(what, catalog.still(&catalog.damage))
    })
}

async fn prove_one(
    context: &Context,
    subject: &Subject,
    store: &quorate_backup::Store,
    full: &Full,
    key: Option<quorate_backup::keys::BackupKey>,
    working: &Working,
) -> Result<Verification, Error> {
    working.doing(Doing::Proving { id: full.id().as_str() });
    match &subject.ledger {
        Some(ledger) => Ok(prove_beside(&context.home, ledger, store, full, key).await?),
        None => Ok(prove(&context.home, &subject.spec, store, full, key, &[], None).await?),
    }
}

const NOT_OURS: &str = "WARNING: the origin of this backup is unknown, because this cluster's key has not signed it:";

pub async fn export(context: &Context, options: cli::BackupExport) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let store = &open_store(&subject.spec, which(options.second.second))?;
    // Of any cluster with this name, because this is an export.
    let trust = Trust::anything(Timestamp::now());
    let catalog = Catalog::load(store, subject.spec.name.as_str(), None, &trust).await.map_err(Error::backup)?;
    let full = find(&catalog, &options.id)?;
    let ours = catalog_of(store, subject.spec.name.as_str(), subject.cluster_id(), &subject.trust(false)).await?;
    if ours.find(full.id()).is_none_or(|full| full.signed_by.is_none()) {
        output::talk(&format!("{NOT_OURS} {}\n", full.id()));
    }
    let identities = identities(&options.identity)?;
    let key = key_of(store, &full.manifest, identities.as_ref()).await.map_err(Error::backup)?;
    prepare::export(store, &full.manifest, key, &options.file).await.map_err(Error::backup)?;
    output::talk(&format!(
        "backup {} is in {}, without the changes on top of it, for `etcdutl snapshot restore`\n",
        full.id(),
        options.file.display()
    ));
    Ok(Exit::Done)
}
