//! Every error of a command, and how it is printed: once, in `main`, with its causes and what to do next.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use quorate_agent::AgentError;
use quorate_agent::client::ClientError as AgentClientError;
use quorate_agent::kinds::etcd::binaries::BinaryError;
use quorate_backup::keys::KeyError;
use quorate_control::ControlError;
use quorate_control::backup::BackupError;
use quorate_control::clients::ClientError;
use quorate_control::image::ImageError;
use quorate_control::key::KeyError as LedgerKeyError;
use quorate_control::ledger::{ExportError, LedgerError};
use quorate_discovery::DiscoveryError;
use quorate_drill::DrillError;
use quorate_front::FrontError;

use crate::exit::Exit;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Backup(Box<BackupError>),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error(transparent)]
    Drill(#[from] DrillError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Key(#[from] LedgerKeyError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    AgentClient(#[from] AgentClientError),
    #[error(transparent)]
    Binary(#[from] BinaryError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("{} cannot be {what}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    #[error("the runtime cannot be started")]
    Runtime(#[source] io::Error),
    #[error("{} is not a plan that quorate saved, or it is damaged", path.display())]
    NotAPlan { path: PathBuf, source: serde_json::Error },
    #[error("{file} has {}", errors(*count))]
    Invalid { file: String, count: usize },
    #[error("there is no cluster `{name}` in {}", home.display())]
    UnknownCluster { name: String, home: PathBuf, known: Vec<String> },
    #[error("cluster {cluster} has no member `{member}`")]
    UnknownMember { cluster: String, member: String, members: Vec<String> },
    #[error("{file} declares no cluster `{name}`")]
    NotInFile { file: String, name: String, declared: Vec<String> },
    #[error("{what}")]
    Refused { what: String, hint: String },
    #[error("aborted; nothing was changed")]
    Declined,
    #[error("stopped by {}", signal_name(*signal))]
    Stopped { signal: SignalKind },
}

/// An external request to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalKind {
    Interrupt,
    Terminate,
}

fn signal_name(signal: SignalKind) -> &'static str {
    match signal {
        SignalKind::Interrupt => "Ctrl-C",
        SignalKind::Terminate => "SIGTERM",
    }
}

fn errors(count: usize) -> String {
    if count == 1 { String::from("an error") } else { format!("{count} errors") }
}

impl Error {
    pub fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Error::File { what, path, source }
    }

    /// For errors of the store without the controller in between.
    pub fn backup(error: quorate_backup::Error) -> Self {
        Error::from(BackupError::Backup(error))
    }

    pub fn refused(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), hint: hint.into() }
    }

    pub fn exit(&self) -> Exit {
        let locked = |e: &LedgerError| matches!(e, LedgerError::Locked { .. } | LedgerError::Lost { .. });
        match self {
            Error::Stopped { signal: SignalKind::Interrupt } => Exit::Interrupted,
            Error::Stopped { signal: SignalKind::Terminate } => Exit::Terminated,
            Error::Control(ControlError::Ledger(e)) | Error::Ledger(e) if locked(e) => Exit::Locked,
            Error::Control(e) if e.is_taken_over() => Exit::Locked,
            Error::Control(ControlError::NotAgreed { .. }) => Exit::Blocked,
            Error::Backup(e) => match &**e {
                BackupError::Ledger(e) if locked(e) => Exit::Locked,
                BackupError::Control(e) if e.is_taken_over() => Exit::Locked,
                BackupError::Watched { .. } | BackupError::RecordedTwice { .. } => Exit::Locked,
                BackupError::Backup(quorate_backup::Error::NotCopied { .. }) => Exit::Damaged,
                _ => Exit::Error,
            },
            _ => Exit::Error,
        }
    }

    /// The ledger's error, if that is the cause.
    fn of_the_ledger(&self) -> Option<&LedgerError> {
        fn within(error: &ControlError) -> Option<&LedgerError> {
            match error.cause() {
                ControlError::Ledger(found) => Some(found),
                _ => None,
            }
        }
        match self {
            Error::Ledger(found) | Error::Export(ExportError::Ledger(found)) => Some(found),
            Error::Control(error) => within(error),
            Error::Client(ClientError::Control(error)) => within(error),
            Error::Backup(error) => match &**error {
                BackupError::Ledger(found) => Some(found),
                BackupError::Control(error) => within(error),
                _ => None,
            },
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            // An unreadable or unwritable ledger has a different remedy.
            error if error.of_the_ledger().is_some() => error.of_the_ledger().and_then(LedgerError::hint),
            Error::Backup(error) => backup_hint(error),
            Error::Control(ControlError::UsedBy { users, .. }) => {
                Some(format!("nothing was deleted; destroy {users} first"))
            }
            Error::Control(ControlError::NotAgreed { .. }) => Some(String::from(
                "`quorate plan` shows what is needed now; `apply` without a saved plan asks, and with --yes it does not ask",
            )),
            Error::Control(ControlError::OutOfPatience { .. }) => Some(String::from(
                "`quorate status NAME` and `quorate logs NAME MEMBER` show more; re-run the same command to continue",
            )),
            Error::Control(e) if matches!(e.cause(), ControlError::Verification { .. }) => Some(String::from(
                "`quorate backup list NAME` lists other backups to restore; to try the same one again, re-run the same command",
            )),
            Error::Control(e) if e.is_final() => Some(String::from("change that, then re-run the same command")),
            // Nothing was begun, or nothing changes when it is begun again.
            Error::Control(ControlError::Ledger(_) | ControlError::Pki(_) | ControlError::Snapshot { .. }) => None,
            Error::Control(e) if remedy(e).is_some() => remedy(e).map(String::from),
            Error::Control(e) if !e.is_taken_over() => Some(String::from("re-run the same command to continue")),
            Error::UnknownCluster { known, .. } if known.is_empty() => {
                Some(String::from("none is known yet; `quorate up` creates one, `quorate init` prints a spec"))
            }
            Error::UnknownCluster { known, .. } => Some(format!("known clusters: {}", known.join(", "))),
            Error::UnknownMember { members, .. } => Some(format!("its members: {}", members.join(", "))),
            Error::NotAPlan { .. } => Some(String::from("make one with `quorate plan --save`")),
            Error::NotInFile { declared, .. } => Some(format!("it declares: {}", declared.join(", "))),
            Error::Refused { hint, .. } => Some(hint.clone()),
            _ => None,
        }
    }

    /// The error, each cause on a line, and a hint whose commands can be typed as they are.
    pub fn render(&self, cluster: Option<&str>) -> String {
        if let Error::Declined = self {
            return format!("{self}\n");
        }
        if let Error::Stopped { .. } = self {
            return format!("{self}; nothing is half done: re-run the same command to continue\n");
        }
        let mut text = match cluster {
            Some(cluster) => format!("error: cluster {cluster}: {self}\n"),
            None => format!("error: {self}\n"),
        };
        let mut cause = self.source();
        while let Some(error) = cause {
            let _ = writeln!(text, "  because: {error}");
            cause = error.source();
        }
        if let Some(hint) = self.hint() {
            let hint = cluster.map_or_else(|| hint.clone(), |cluster| hint.replace(" NAME", &format!(" {cluster}")));
            let _ = writeln!(text, "  hint: {hint}");
        }
        text
    }
}

impl From<BackupError> for Error {
    fn from(error: BackupError) -> Self {
        Error::Backup(Box::new(error))
    }
}

fn remedy(error: &ControlError) -> Option<&'static str> {
    match error.cause() {
        ControlError::Provider(error) => error.remedy(),
        _ => None,
    }
}

fn backup_hint(error: &BackupError) -> Option<String> {
    Some(String::from(match error {
        BackupError::NoSettings { .. } => {
            "add a `backup` section to the spec and apply it; `quorate init` shows one, commented"
        }
        BackupError::Backup(quorate_backup::Error::Key { source: KeyError::NoIdentity, .. }) => {
            "pass --identity FILE, or set QUORATE_IDENTITY"
        }
        BackupError::Backup(quorate_backup::Error::Key { source: KeyError::WrongIdentity, .. }) => {
            "use the identity of one of the recipients that it was encrypted to; `quorate backup rekey` adds another, but needs one that decrypts it"
        }
        BackupError::Backup(quorate_backup::Error::NotCopied { .. }) => {
            "`quorate backup verify NAME --second` verifies what the second destination has; take a new full backup"
        }
        BackupError::RecordedTwice { .. } => "stop the other one, then start this one again",
        BackupError::RootPassword { .. } => {
            "nothing was changed. Put the root password of the snapshot into a file and name it in `auth.root_password_file` before \
             the cluster is created; if the cluster exists, set its root password in the old cluster (`etcdctl user passwd root`) and \
             take the snapshot again"
        }
        BackupError::NobodyToRead { .. } => "`quorate status NAME` shows why",
        BackupError::Programs { .. } => {
            "put that version's etcd and etcdutl (before 3.5 etcdctl) on the PATH, or name them in the spec's `etcd.binary`"
        }
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_printed_with_its_causes_and_a_hint() {
        let denied = io::Error::new(io::ErrorKind::PermissionDenied, "permission denied");
        let error = Error::file("read", "/a.yaml")(denied);
        assert_eq!(error.render(None), "error: /a.yaml cannot be read\n  because: permission denied\n");
        let error = Error::refused("demo has 3 members, and 5 were asked for", "leave --members out");
        let told = "error: cluster demo: demo has 3 members, and 5 were asked for\n  hint: leave --members out\n";
        assert_eq!(error.render(Some("demo")), told);
    }

    #[test]
    fn a_held_lock_has_a_separate_exit_code() {
        let lost = LedgerError::Lost { by: None };
        assert_eq!(Error::from(ControlError::from(lost)).exit(), Exit::Locked);
        assert_eq!(Error::Declined.exit(), Exit::Error);
    }
}
