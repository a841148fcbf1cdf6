//! `quorate backup` for PostgreSQL clusters. pgBackRest takes the backups; the commands are the same as for etcd.

use jiff::Timestamp;
use quorate_backup::Store;
use quorate_backup::postgres::{Catalog, Listed, Manifest};
use quorate_control::backup::signing::with_key;
use quorate_control::backup::{Vault, open_store};
use quorate_control::kinds::postgres::backup::{Backups, Shelf, Watching, catalog_of, watch};
use quorate_core::kinds::postgres::backup::{BackupChecked, BackupKind};
use quorate_core::model::Ledger;
use quorate_core::text::plural;
use serde::Serialize;

use super::{Context, Subject, refuse_another_signer, signer_note, tend, which};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::backup::shown;
use crate::output::page::{Page, Style};
use crate::output::working::Working;
use crate::output::{self, size, table};

pub async fn run(context: &Context, verb: cli::Backup) -> Result<Exit, Error> {
    match verb {
        cli::Backup::Create(options) => create(context, options).await,
        cli::Backup::List(options) => list(context, options).await,
        cli::Backup::Verify(options) => verify(context, options).await,
        cli::Backup::Prune(options) => prune(context, options).await,
        cli::Backup::Watch(options) => stay(context, options).await,
        cli::Backup::Rekey(_) => Err(Error::refused(
            "backups of PostgreSQL are encrypted with a key in the ledger, not to the recipients themselves",
            "`quorate backup create` stores the ledger for the current recipients with the next backup",
        )),
        cli::Backup::Export(_) => Err(Error::refused(
            "a backup of PostgreSQL is in pgBackRest's own format",
            "`pgbackrest restore` on a member reads it",
        )),
    }
}

/// For people and for scripts.
#[derive(Serialize)]
struct BackupJson<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// Where it is stored.
    place: &'a str,
    verified_at: Option<Timestamp>,
}

impl<'a> BackupJson<'a> {
    fn new(manifest: &'a Manifest, place: &'a str) -> Self {
        BackupJson { manifest, place, verified_at: manifest.verified_at() }
    }
}

async fn ledger_of(context: &Context, name: &str) -> Result<Ledger, Error> {
    let known = load::ledger(&context.home, name)?;
    let is_new = known.backup_signing.is_none();
    let ledger = with_key(&context.home, known).await?;
    refuse_another_signer(&ledger)?;
    if is_new {
        output::talk(&signer_note(&ledger));
    }
    Ok(ledger)
}

async fn create(context: &Context, options: cli::BackupCreate) -> Result<Exit, Error> {
    let ledger = ledger_of(context, &options.name).await?;
    let vault = Vault::open(&ledger.spec)?;
    if vault.settings.recipients.is_empty() {
        output::talk(NOT_ENCRYPTED);
    }
    let working = Working::new();
    let backups = Backups { home: &context.home, ledger: &ledger, teller: &working };
    let kind = match (options.incremental, options.differential) {
        (true, _) => BackupKind::Incremental,
        (_, true) => BackupKind::Differential,
        _ => BackupKind::Full,
    };
    let created = backups.create(&vault, kind, !options.no_verify).await?;
    drop(working);
    let manifests: Vec<&Manifest> = created.taken().map(|taken| &taken.manifest).collect();
    let placed = || vault.stores().map(Store::place).zip(&manifests);
    match options.output.format {
        Format::Json => output::print_json(&BackupJson::new(&created.first.manifest, vault.first.place()))?,
        Format::Text => {
            let lines = placed().map(|(place, manifest)| format!("{}{}", taken(manifest, place), proof(manifest)));
            output::show(&Page::written(&lines.collect::<String>()))?;
        }
    }
    if !created.noted {
        output::talk(
            "warning: another controller holds the ledger, so `quorate status` does not show this backup yet\n",
        );
    }
    let is_bad = |manifest: &&Manifest| manifest.verified.last().is_some_and(|last| last.outcome.is_err());
    if manifests.iter().any(is_bad) {
        return Ok(Exit::Damaged);
    }
    let mut wrong = created.troubles().map(Error::from);
    let Some(first) = wrong.next() else { return Ok(Exit::Done) };
    if let Some(second) = wrong.next() {
        output::talk(&second.render(None));
    }
    Err(first)
}

fn taken(manifest: &Manifest, place: &str) -> String {
    let taken = &manifest.taken;
    format!(
        "backup {} ({}): log up to {}, {} stored of {}, from {} (PostgreSQL {}), {}, in {place}\n",
        taken.label,
        taken.kind,
        taken.last_lsn,
        size(taken.stored_bytes),
        size(taken.bytes),
        manifest.from_member,
        taken.postgres_version,
        if manifest.encrypted { "encrypted" } else { "NOT ENCRYPTED" },
    )
}

/// The result of its last verification, in one line.
fn proof(manifest: &Manifest) -> String {
    let label = manifest.label();
    let Some(last) = manifest.verified.last() else { return format!("{label} is not verified\n") };
    match &last.outcome {
        Err(why) => format!("{label} is NOT good: {why}\n"),
        Ok(BackupChecked { rows: _, databases, tables, amcheck, blocks, postgres_version }) => {
            let looked = if *amcheck { "pg_amcheck found all tables and indexes sound, " } else { "" };
            format!(
                "{label} is good: PostgreSQL {postgres_version} on {} restored {} with {}; {looked}{} have the right checksum\n",
                last.on_member,
                plural(*databases, "database"),
                plural(*tables, "table"),
                plural(*blocks, "block"),
            )
        }
    }
}

async fn list(context: &Context, options: cli::BackupList) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let (name, vault) = (subject.spec.name.as_str(), subject.vault()?);
    let mut catalogs = Vec::new();
    for store in vault.stores() {
        let catalog = catalog_of(store, name, subject.cluster_id(), &subject.trust(true)).await?;
        catalogs.push((store.place().to_owned(), catalog));
    }
    match options.output.format {
        Format::Json => {
            let mut all = Vec::new();
            for (place, catalog) in &catalogs {
                all.extend(catalog.backups.iter().map(|listed| BackupJson::new(&listed.manifest, place)));
            }
            output::print_json(&all)?;
        }
        Format::Text
            if catalogs.iter().all(|(_, catalog)| catalog.backups.is_empty() && catalog.strange.is_empty()) =>
        {
            let make = context.command(&format!("backup create {name}"));
            output::talk(&format!("there is no backup of {name} yet; `{make}` takes one\n"));
        }
        Format::Text => output::show(&tables_of(&catalogs))?,
    }
    Ok(Exit::Done)
}

/// Columns that a narrow terminal omits, the least important first.
const DROPPED: [usize; 3] = [3, 4, 2];

/// One table for each place.
fn tables_of(catalogs: &[(String, Catalog)]) -> Page {
    let mut page = Page::new();
    for (place, catalog) in catalogs {
        page.append(table_of(catalog));
        page.plain(2, &format!("stored in {place}"));
        for strange in &catalog.strange {
            page.line(2, [(Style::Red, "not of this cluster: "), (Style::Plain, strange)]);
        }
    }
    page
}

fn table_of(catalog: &Catalog) -> Page {
    let head = ["ID", "KIND", "SIZE", "STORED", "LOG UP TO", "SIGNED", "VERIFIED"];
    let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    rows.extend(catalog.backups.iter().map(row));
    table::page(&rows, &DROPPED, output::terminal::of_stdout())
}

fn row(listed: &Listed) -> Vec<table::Cell> {
    let plain = |text: String| (Style::Plain, text);
    let taken = &listed.manifest.taken;
    let failed = listed.manifest.verified.last().is_some_and(|last| last.outcome.is_err());
    let verified = match listed.manifest.verified_at() {
        Some(at) => (Style::Green, shown(at)),
        None if failed => (Style::Red, String::from("failed")),
        None => (Style::Yellow, String::from("no")),
    };
    let signed = if listed.is_signed { plain(String::from("yes")) } else { (Style::Yellow, String::from("NO")) };
    vec![
        (Style::Bold, taken.label.clone()),
        plain(taken.kind.to_string()),
        plain(size(taken.bytes)),
        plain(size(taken.stored_bytes)),
        plain(taken.last_lsn.clone()),
        signed,
        verified,
    ]
}

async fn verify(context: &Context, options: cli::BackupVerify) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let ledger = ledger_of(context, subject.spec.name.as_str()).await?;
    // The other store may be lost.
    let which = which(options.second.second);
    let store = open_store(&ledger.spec, which)?;
    let working = Working::new();
    let backups = Backups { home: &context.home, ledger: &ledger, teller: &working };
    let catalog = backups.catalog(&store).await?;
    let mut all = catalog.backups.iter().map(|listed| listed.manifest.label().to_owned());
    let labels: Vec<String> = match (&options.id, options.all) {
        (Some(label), _) => vec![label.clone()],
        (None, true) => all.collect(),
        (None, false) => all.next_back().into_iter().collect(),
    };
    if labels.is_empty() {
        let make = context.command(&format!("backup create {}", ledger.spec.name));
        return Err(Error::refused(
            format!("there is no backup of {}", ledger.spec.name),
            format!("`{make}` creates one"),
        ));
    }
    let mut verified = Vec::new();
    for label in labels {
        verified.push(backups.verify(Shelf { which, store: &store }, &label).await?);
    }
    drop(working);
    match options.output.format {
        Format::Json => {
            output::print_json(&verified.iter().map(|one| BackupJson::new(one, store.place())).collect::<Vec<_>>())?
        }
        Format::Text => output::show(&Page::written(&verified.iter().map(proof).collect::<String>()))?,
    }
    let good = verified.iter().all(|manifest| manifest.verified_at().is_some());
    Ok(if good { Exit::Done } else { Exit::Damaged })
}

async fn prune(context: &Context, options: cli::BackupPrune) -> Result<Exit, Error> {
    let subject = Subject::find(context, &options.of)?;
    let ledger = ledger_of(context, subject.spec.name.as_str()).await?;
    let vault = Vault::open(&ledger.spec)?;
    let working = Working::new();
    let backups = Backups { home: &context.home, ledger: &ledger, teller: &working };
    vault.second()?;
    let mut plans = Vec::new();
    for (repository, store) in (1..).zip(vault.stores()) {
        plans.push((repository, store, backups.catalog(store).await?.to_remove(&vault.keep)));
    }
    let going: Vec<&String> = plans.iter().flat_map(|(.., going)| going).collect();
    match options.output.format {
        Format::Json => output::print_json(&going)?,
        Format::Text if going.is_empty() => output::talk("no backup needs to be deleted\n"),
        Format::Text => {
            let listed: String =
                going.iter().map(|label| format!("delete {label}, and the backups that depend on it\n")).collect();
            output::show(&Page::written(&listed))?;
        }
    }
    if options.dry_run || going.is_empty() {
        return Ok(Exit::Done);
    }
    tend::agree(options.yes, going.len())?;
    for (repository, store, going) in &plans {
        backups.remove(store, *repository, going).await?;
    }
    backups.note(&vault.first).await?;
    Ok(Exit::Done)
}

async fn stay(context: &Context, options: cli::BackupWatch) -> Result<Exit, Error> {
    ledger_of(context, &options.name).await?;
    let working = Working::log();
    let watching = Watching { home: &context.home, cluster: &options.name, prune: options.prune, teller: &working };
    watch(&watching, super::watch::stopped_by_signals()?).await?;
    Ok(Exit::Done)
}

const NOT_ENCRYPTED: &str = "\
warning: these backups are NOT ENCRYPTED: anyone who can read the store can read all data; the ledger with its CA keys is therefore not stored with them, and cannot be restored from there
  hint: `age-keygen -o operator.key` makes a key; put its public key under `backup.recipients` in the spec
";
