//! Arguments of `backup` and `restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use quorate_core::spec::Signer;

use super::Output;
use crate::completion;

#[derive(Subcommand, Debug)]
pub enum Backup {
    /// Take a full backup now and verify it
    ///
    /// Streams a snapshot of the healthiest follower into the store. To verify it, restores it here into a temporary etcd and
    /// compares it with the live members.
    Create(BackupCreate),
    /// List backups
    List(BackupList),
    /// Restore backups into a temporary etcd and compare them
    ///
    /// Compares what was stored with its digests, what was restored with what was measured when the backup was taken, and the
    /// changes on top with the live cluster, as far as it still knows them. Records the result with the backup.
    Verify(BackupVerify),
    /// Delete backups that the spec's `keep` does not keep
    ///
    /// It never deletes the newest, nor the newest verified one. Also deletes leftovers of interrupted backups, after a day.
    Prune(BackupPrune),
    /// Record every change, and take full backups when they are due
    ///
    /// Runs until SIGINT or SIGTERM. A restore can then stop at any revision or time. It continues after lost connections,
    /// replaced members and compactions. At the end it stores everything it has received.
    Watch(BackupWatch),
    /// Re-encrypt existing backups to the current recipients
    ///
    /// Rewrites only small objects, not the data. Anyone who was removed may have kept a key of these backups.
    Rekey(BackupRekey),
    /// Write a backup as a plain etcd snapshot, for etcdutl
    Export(BackupExport),
}

/// Whose backups.
#[derive(Args, Debug)]
pub struct BackupOf {
    /// A known cluster, or a spec
    #[arg(value_name = "NAME|FILE", add = completion::clusters_or_files())]
    pub target: String,
    /// The cluster, if the spec has several
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
}

/// What opens backups that are encrypted.
#[derive(Args, Debug)]
pub struct Identity {
    /// The age identity of one of the recipients
    #[arg(long, value_name = "FILE", env = "QUORATE_IDENTITY")]
    pub identity: Option<PathBuf>,
}

/// Whose backups are believed.
#[derive(Args, Debug)]
pub struct Trusted {
    /// The public key that signs the cluster's backups, where no ledger and no spec names it
    #[arg(long, value_name = "KEY")]
    pub signed_by: Option<Signer>,
    /// Accept backups that are unsigned or cannot be checked: anyone who can write to the store can make them
    #[arg(long)]
    pub unsigned: bool,
}

#[derive(Args, Debug)]
pub struct Second {
    /// Read from the spec's second destination (`also_to`)
    #[arg(long)]
    pub second: bool,
}

#[derive(Args, Debug)]
pub struct BackupCreate {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Do not verify the backup now
    #[arg(long)]
    pub no_verify: bool,
    /// PostgreSQL: only what has changed since the last backup
    #[arg(long)]
    pub incremental: bool,
    /// PostgreSQL: only what has changed since the last full backup
    #[arg(long, conflicts_with = "incremental")]
    pub differential: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BackupList {
    #[command(flatten)]
    pub of: BackupOf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BackupVerify {
    #[command(flatten)]
    pub of: BackupOf,
    /// The backup; by default the newest
    pub id: Option<String>,
    /// Verify all backups
    #[arg(long, conflicts_with = "id")]
    pub all: bool,
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub second: Second,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BackupPrune {
    #[command(flatten)]
    pub of: BackupOf,
    /// Also delete unsigned backups, if there are signed ones
    #[arg(long)]
    pub unsigned: bool,
    /// Only show what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BackupWatch {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// After each full backup, also delete what the spec does not keep
    #[arg(long)]
    pub prune: bool,
}

#[derive(Args, Debug)]
pub struct BackupRekey {
    #[command(flatten)]
    pub of: BackupOf,
    #[command(flatten)]
    pub identity: Identity,
}

#[derive(Args, Debug)]
pub struct BackupExport {
    #[command(flatten)]
    pub of: BackupOf,
    /// The backup
    pub id: String,
    /// Where to write the snapshot; must not exist yet
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub second: Second,
}

#[derive(Args, Debug)]
pub struct Restore {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME", add = completion::clusters_or_files())]
    pub target: String,
    /// The cluster, if the spec has several
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    #[command(flatten)]
    pub what: RestoreWhat,
    /// If the cluster is not known here, do not restore its ledger: it gets new CAs and keys
    #[arg(long)]
    pub without_ledger: bool,
    /// PostgreSQL: follow this timeline instead of the newest
    #[arg(long, value_name = "N")]
    pub timeline: Option<u32>,
    /// Prepare the restore and show what would be done, but change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Treat unreachable machines as dead
    #[arg(long)]
    pub now: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub trusted: Trusted,
    #[command(flatten)]
    pub second: Second,
}

/// By default the newest backup, with all changes on top of it.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct RestoreWhat {
    /// The state at this time, such as 2026-11-19T02:05:14Z, by the recorder's clock
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub at: Option<jiff::Timestamp>,
    /// The state at this revision
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub revision: Option<i64>,
    /// This full backup, without changes on top of it
    #[arg(long, value_name = "ID")]
    pub backup: Option<String>,
    /// PostgreSQL: the state at this position in its log, such as 0/3000050
    #[arg(long, value_name = "LSN")]
    pub lsn: Option<String>,
    /// PostgreSQL: the state after this transaction
    #[arg(long, value_name = "N")]
    pub xid: Option<u64>,
    /// PostgreSQL: the data from before the last major upgrade; everything written since is lost
    #[arg(long)]
    pub before_upgrade: bool,
    /// A plain etcd snapshot, made by any tool
    #[arg(long, value_name = "PATH|s3://BUCKET/KEY")]
    pub snapshot: Option<String>,
}

/// A time without an offset would mean a different moment on each machine.
fn moment(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse().map_err(|_| {
        String::from("expected a date, a time and an offset, such as 2026-11-19T02:05:14Z or 2026-11-19T03:05:14+01:00")
    })
}
