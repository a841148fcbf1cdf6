//! `quorate backup create`: takes a full backup now and verifies it.

use quorate_backup::manifest::{Manifest, Outcome};
use quorate_control::backup::Vault;
use quorate_control::backup::signing::with_key;
use quorate_control::kinds::etcd::backup::{Backups, Created};
use serde::Serialize;

use super::{Context, refuse_another_signer, signer_note};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;
use crate::output::backup::Verified;
use crate::output::page::Page;
use crate::output::working::Working;

#[derive(Serialize)]
struct CreatedJson<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    places: &'a [&'a str],
    /// Null with `--no-verify`.
    verification: Option<Verified>,
}

pub async fn run(context: &Context, options: cli::BackupCreate) -> Result<Exit, Error> {
    let known = load::etcd_ledger(&context.home, &options.name)?;
    if options.incremental || options.differential {
        let hint = "`quorate backup watch` records every change on top of a full backup";
        return Err(Error::refused("backups of etcd are full ones", hint));
    }
    let vault = Vault::open(&known.spec)?;
    let is_new = known.backup_signing.is_none();
    let ledger = with_key(&context.home, known).await?;
    refuse_another_signer(&ledger)?;
    if is_new {
        output::talk(&signer_note(&ledger));
    }
    let working = Working::new();
    let backups = Backups { home: &context.home, ledger: &ledger, vault: &vault, teller: &working };
    say_who_can_read(&backups).await?;
    let Created { manifest, verification, not_proven, not_copied, noted } = backups.create(!options.no_verify).await?;
    drop(working);
    let mut places = vec![vault.first.place()];
    if let (Ok(Some(second)), None) = (vault.second(), &not_copied) {
        places.push(second.place());
    }
    let failed = matches!(&verification, Some(verification) if matches!(verification.outcome, Outcome::Failed { .. }));
    let verified = verification.map(|verification| Verified::new(&manifest, &verification));
    match options.output.format {
        Format::Json => {
            output::print_json(&CreatedJson { manifest: &manifest, places: &places, verification: verified })?
        }
        Format::Text => {
            let proof = verified.map_or_else(|| unproven(context, &options.name), |verified| verified.line());
            output::show(&Page::written(&format!("{}{proof}", output::backup::created(&manifest, &places))))?;
        }
    }
    if !noted {
        output::talk(
            "warning: another controller holds the ledger, so `quorate status` does not show this backup yet\n",
        );
    }
    if failed {
        return Ok(Exit::Damaged);
    }
    // If two fail, the first error is printed here, the second in `main`.
    let mut wrong = not_proven.into_iter().chain(not_copied).map(Error::from);
    let Some(first) = wrong.next() else { return Ok(Exit::Done) };
    match wrong.next() {
        Some(second) => {
            output::talk(&first.render(None));
            Err(second)
        }
        None => Err(first),
    }
}

fn unproven(context: &Context, name: &str) -> String {
    format!("not verified: `{}` does that\n", context.command(&format!("backup verify {name}")))
}

/// Prominently if anyone can read the backups, and once if only recipients can.
async fn say_who_can_read(backups: &Backups<'_>) -> Result<(), Error> {
    let recipients = &backups.vault.settings.recipients;
    if recipients.is_empty() {
        output::talk(NOT_ENCRYPTED);
        return Ok(());
    }
    let catalog = backups.catalog(&backups.vault.first).await?;
    if catalog.fulls.iter().any(|full| full.manifest.recipient.is_some()) {
        return Ok(());
    }
    let listed: String = recipients.iter().map(|key| format!("  {key}\n")).collect();
    output::talk(&format!("{ENCRYPTED_TO}{listed}{WHAT_LOSING_IT_MEANS}"));
    Ok(())
}

pub(super) const NOT_ENCRYPTED: &str = "\
warning: these backups are NOT ENCRYPTED: anyone who can read the store can read every key and value, and the password hashes of etcd's users; the ledger with its CA keys is therefore not stored with them, and cannot be restored from there
  hint: `age-keygen -o operator.key` makes a key; put its public key under `backup.recipients` in the spec
";

const ENCRYPTED_TO: &str = "these backups are encrypted to:\n";

const WHAT_LOSING_IT_MEANS: &str = "\
Only their secret keys decrypt them. If all of these are lost, so is every backup; quorate has no copy.
  hint: keep one secret key away from this machine and from the store, and try a restore with it: `quorate restore FILE --dry-run`
";
