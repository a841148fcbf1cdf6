//! `quorate backup prune` and `rekey`: which backups are kept, and who can decrypt them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use quorate_backup::BackupId;
use quorate_backup::full;
use quorate_backup::keys::KeyError;
use quorate_backup::manifest::Manifest;
use quorate_backup::prune;
use quorate_control::backup::signing::key_of;
use quorate_control::kinds::etcd::backup::{Backups, catalog_of};

use super::{Context, Subject, identities};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use crate::output::backup::{Pruning, PruningPlace};
use crate::output::working::Working;
use quorate_core::text::plural;

pub async fn prune(context: &Context, options: cli::BackupPrune) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let (name, vault) = (subject.spec.name.as_str(), subject.vault()?);
    if options.output.format == Format::Json && !options.dry_run {
        return Err(Error::refused("there is nothing to print as JSON but the plan", "pass --dry-run too"));
    }
    let trust = subject.trust(false);
    if trust.signer.is_none() {
        return Err(Error::refused(
            format!(
                "the key that signs the backups of {name} is not known here, so quorate cannot tell which of them are genuine"
            ),
            "bring the ledger back with `quorate ledger import`, or name the key in `backup.signed_by` of the spec",
        ));
    }
    let mut plans = Vec::new();
    vault.second()?;
    for store in vault.stores() {
        let catalog = catalog_of(store, name, subject.cluster_id(), &trust).await?;
        let mut plan = prune::plan(&catalog, &vault.keep, Timestamp::now());
        if options.unsigned && !catalog.fulls.is_empty() {
            plan.remove.extend(catalog.unsigned.iter().map(|full| full.id().clone()));
            plan.remove.sort();
        } else if !catalog.unsigned.is_empty() {
            let open = are(catalog.unsigned.len());
            output::talk(&format!("{}: {open} not signed and stay there; --unsigned deletes them\n", store.place()));
        }
        plans.push((store, plan));
    }
    let pruning = Pruning {
        cluster: name.to_owned(),
        remove: plans.iter().flat_map(|(_, plan)| plan.remove.iter().cloned()).collect(),
        places: plans.iter().map(|(store, plan)| PruningPlace::new(store.place(), plan)).collect(),
    };
    match options.output.format {
        Format::Json => output::print_json(&pruning)?,
        Format::Text => output::show(&output::backup::pruning(&pruning))?,
    }
    let going: usize = plans.iter().map(|(_, plan)| plan.remove.len() + plan.leftovers.len()).sum();
    if options.dry_run {
        return Ok(Exit::Done);
    }
    if going == 0 {
        output::talk("no backup needs to be deleted\n");
        return Ok(Exit::Done);
    }
    agree(options.yes, going)?;
    for (store, plan) in &plans {
        prune::carry_out(store, name, plan).await.map_err(Error::backup)?;
    }
    output::talk(&format!("{} deleted\n", are(going)));
    if let Some(ledger) = &subject.ledger {
        Backups { home: &context.home, ledger, vault: &vault, teller: &Working::new() }.note(None).await?;
    }
    Ok(Exit::Done)
}

pub(super) fn agree(yes: bool, going: usize) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    if !output::can_ask() {
        return Err(Error::refused(
            "there is no terminal to confirm the deletion",
            "pass --yes to prune without asking",
        ));
    }
    match output::ask(&format!("delete {} permanently? [y/N] ", plural(going, "backup")))?.to_ascii_lowercase().as_str()
    {
        "y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

fn are(number: usize) -> String {
    format!("{} {}", plural(number, "backup"), if number == 1 { "is" } else { "are" })
}

pub async fn rekey(context: &Context, options: cli::BackupRekey) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let (name, vault) = (subject.spec.name.as_str(), subject.vault()?);
    if vault.settings.recipients.is_empty() {
        return Err(Error::refused(
            format!("the spec of {name} names no recipients, and `rekey` does not decrypt backups"),
            "name at least one; `quorate backup export` writes an unencrypted copy",
        ));
    }
    let signing = subject.ledger.as_ref().and_then(|ledger| key_of(ledger).ok());
    let Some(identities) = identities(&options.identity)? else { return Err(key_error(KeyError::NoIdentity)) };
    let mut unopened = BTreeSet::new();
    vault.second()?;
    for store in vault.stores() {
        let catalog = catalog_of(store, name, subject.cluster_id(), &subject.trust(true)).await?;
        let all: Vec<Manifest> = catalog.fulls.into_iter().map(|full| full.manifest).collect();
        let done = full::rekey(store, &all, &identities, &vault.settings.recipients, signing.as_ref())
            .await
            .map_err(Error::backup)?;
        let changed = are(done.changed.len());
        output::talk(&format!(
            "{}: {changed} now encrypted to {}\n",
            store.place(),
            vault.settings.recipients.join(", ")
        ));
        let open = all.iter().filter(|manifest| manifest.recipient.is_none()).count();
        if open > 0 {
            let stay = if open == 1 { "stays" } else { "stay" };
            output::talk(&format!("  {} not encrypted, and {stay} so\n", are(open)));
        }
        unopened.extend(done.unopened);
    }
    output::talk(KEPT_BY_THE_REMOVED);
    if unopened.is_empty() {
        return Ok(Exit::Done);
    }
    let ids: Vec<&str> = unopened.iter().map(BackupId::as_str).collect();
    Err(Error::refused(
        format!(
            "the given identity does not decrypt {}; this run did not change what it cannot decrypt",
            ids.join(", ")
        ),
        "an earlier, interrupted rekey may have encrypted some to the new recipients already: pass a file with the old \
         identity and a new one, each on a separate line",
    ))
}

const KEPT_BY_THE_REMOVED: &str = "anyone who was removed may have kept a key of these backups; only backups taken from now on are out of their reach\n";

fn key_error(error: KeyError) -> Error {
    Error::refused(error.to_string(), "pass --identity FILE, or set QUORATE_IDENTITY")
}
