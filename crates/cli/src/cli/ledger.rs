//! Arguments of `ledger`, `key` and `unlock`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use quorate_control::requests::Kind;

use super::Output;
use crate::completion;

#[derive(Subcommand, Debug)]
pub enum Ledger {
    /// Write the ledger of a cluster as one encrypted file (age)
    Export(LedgerExport),
    /// Import the ledger of a cluster from an export
    ///
    /// An existing ledger is replaced only by one of the same cluster that is not older.
    ///
    /// With a spec, a store and the operator's key alone, a controller on a new machine takes over a running cluster:
    /// quorate ledger import --from-backup FILE --identity KEY, then quorate apply FILE --accept-older-ledger.
    Import(LedgerImport),
}

#[derive(Args, Debug)]
pub struct LedgerExport {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    #[command(flatten)]
    pub key: ExportKey,
    /// Write to FILE instead of stdout
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct ExportKey {
    /// Encrypt to this age public key; can be repeated
    #[arg(long = "recipient", value_name = "AGE1…")]
    pub recipients: Vec<String>,
    /// Encrypt with the passphrase in the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct LedgerImport {
    /// The export, `-` for stdin
    #[arg(default_value = "-")]
    pub file: String,
    /// Instead of an export, take the ledger in the newest backup of the cluster in this spec
    #[arg(long, value_name = "SPEC", conflicts_with = "file")]
    pub from_backup: Option<String>,
    /// The cluster, if the spec has several
    #[arg(long, value_name = "NAME", requires = "from_backup")]
    pub cluster: Option<String>,
    /// With `--from-backup`: read from the spec's second destination (`also_to`)
    #[arg(long, requires = "from_backup")]
    pub second: bool,
    /// With `--from-backup`: the public key that signs the cluster's backups, where the spec does not name it
    #[arg(long, value_name = "KEY", requires = "from_backup")]
    pub signed_by: Option<quorate_core::spec::Signer>,
    /// With `--from-backup`: accept a ledger that cannot be checked: anyone who can write to the store can put one there
    #[arg(long, requires = "from_backup")]
    pub unsigned: bool,
    #[command(flatten)]
    pub key: ImportKey,
    /// Replace a ledger that is newer, or of another cluster of this name
    #[arg(long)]
    pub replace: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct ImportKey {
    /// Decrypt with the age identity in FILE
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Decrypt with the passphrase in the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum Key {
    /// Show the key, and which ledgers are encrypted to it
    Show(KeyShow),
    /// Encrypt all ledgers to a new key
    ///
    /// The new key is stored before the old one in the key file, every version of every ledger is encrypted to it, then
    /// the old one is dropped. After an interruption the same command continues. Other keys in the file stay.
    ///
    /// A key file outside this home may be used by other homes, so the old key stays in it. Run this command for each
    /// of these homes, then once more with --drop-old.
    ///
    /// If the key comes from a command, it must print the new key before the old one: the ledgers are then encrypted to
    /// the first.
    Rotate(KeyRotate),
}

#[derive(Args, Debug)]
pub struct KeyRotate {
    /// Drop the old key from a key file outside this home; ledgers still encrypted to it can no longer be decrypted
    #[arg(long)]
    pub drop_old: bool,
}

#[derive(Args, Debug)]
pub struct KeyShow {
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Requests {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Withdraw this request
    #[arg(long, value_enum, value_name = "REQUEST", conflicts_with = "format")]
    pub withdraw: Option<Withdrawn>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Withdrawn {
    /// To rebuild the cluster from a survivor
    Recover,
    /// To restore a backup or a snapshot
    Restore,
    /// To move members to new machines: those whose machine is deleted, or has a successor, go on
    Replace,
    /// To reboot machines: those whose reboot has not begun stay up
    Reboot,
    /// To make another member the primary
    Switchover,
    /// To change passwords
    Passwords,
    /// To delete data that was replaced
    Discard,
    /// Consent to downtime
    Downtime,
    /// Consent to treat unreachable machines as dead
    Now,
}

impl Withdrawn {
    pub fn kind(self) -> Kind {
        match self {
            Withdrawn::Recover => Kind::Recover,
            Withdrawn::Restore => Kind::Restore,
            Withdrawn::Replace => Kind::Replace,
            Withdrawn::Reboot => Kind::Reboot,
            Withdrawn::Switchover => Kind::Switchover,
            Withdrawn::Passwords => Kind::Passwords,
            Withdrawn::Discard => Kind::Discard,
            Withdrawn::Downtime => Kind::Downtime,
            Withdrawn::Now => Kind::Now,
        }
    }
}

#[derive(Args, Debug)]
pub struct Unlock {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}
