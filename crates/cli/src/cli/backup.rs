//! How backups and restores are asked for.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use quorate_core::spec::Signer;

use super::Output;

#[derive(Subcommand, Debug)]
pub enum Backup {
    /// Take a full backup now, and prove it
    ///
    /// From the healthiest follower, straight into the store: nothing touches the disk here but the proof, which restores it into a
    /// throwaway etcd and compares.
    Create(BackupCreate),
    /// Show what there is
    List(BackupList),
    /// Restore backups into a throwaway etcd, and compare
    ///
    /// What was stored is compared with its digests, what is restored with what was measured when it was taken, and the changes on top
    /// with the living cluster as it was then, where that is still known. The outcome is noted beside the backup.
    Verify(BackupVerify),
    /// Remove backups that the spec's `keep` does not keep
    ///
    /// Never the newest, and never the newest that is verified. Also clears what interrupted backups have left, after a day.
    Prune(BackupPrune),
    /// Stay, record changes as they come, and take a full backup when one is due
    ///
    /// A restore can then stop at any revision or moment. Goes on through lost connections, replaced members and compactions; ends at
    /// SIGINT or SIGTERM, with all that was received stored.
    Watch(BackupWatch),
    /// Let the spec's recipients of now, and nobody else, open the backups there are
    ///
    /// Only small side objects are written anew, not the data. One who was removed may have kept what opened the backups before.
    Rekey(BackupRekey),
    /// Write a backup as a plain etcd snapshot, as etcdutl takes it
    Export(BackupExport),
}

/// Whose backups.
#[derive(Args, Debug)]
pub struct BackupOf {
    /// A known cluster, or a spec
    #[arg(value_name = "NAME|FILE")]
    pub target: String,
    /// Of a spec with several clusters, this one
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
    /// Consent to backups that nobody signed or that cannot be checked: anyone who can write to the store can make them
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
    pub name: String,
    /// Do not prove it now
    #[arg(long)]
    pub no_verify: bool,
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
    /// The backup; the newest when absent
    pub id: Option<String>,
    /// All of them
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
    /// Also remove every backup that nobody signed, once there are signed ones
    #[arg(long)]
    pub unsigned: bool,
    /// Only show what would go
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BackupWatch {
    /// The cluster
    pub name: String,
    /// After each full backup, also remove what the spec does not keep any more
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
    /// Where the snapshot goes; must not exist yet
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
    #[arg(value_name = "FILE|NAME")]
    pub target: String,
    /// Of a spec with several clusters, this one
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    #[command(flatten)]
    pub what: RestoreWhat,
    /// Where nothing is known of the cluster here, do not bring its ledger back: it gets new CAs and keys
    #[arg(long)]
    pub without_ledger: bool,
    /// Make it ready and show what would be done, but do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Machines that do not answer count as dead at once
    #[arg(long)]
    pub now: bool,
    /// Do not ask
    #[arg(long)]
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
    /// As it was at this moment, by the recorder's clock
    #[arg(long, value_name = "TIME")]
    pub at: Option<jiff::Timestamp>,
    /// As it was at this revision
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub revision: Option<i64>,
    /// This full backup, without changes on top of it
    #[arg(long, value_name = "ID")]
    pub backup: Option<String>,
    /// A plain etcd snapshot, made by any tool
    #[arg(long, value_name = "PATH|s3://BUCKET/KEY")]
    pub snapshot: Option<String>,
}
