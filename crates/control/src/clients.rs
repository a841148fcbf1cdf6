//! What clients of every kind need of the controller: private files in the home, and why there are none. What these files are is the kind's
//! (`kinds/NAME/clients.rs`).

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::run::error::ControlError;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{} cannot be written", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the signing request cannot be used")]
    Pki(#[from] quorate_pki::Error),
    #[error("cluster {0} does not exist yet: bring it up with `quorate apply` first")]
    NotThere(String),
    #[error("cluster {0} has no proxy: `postgres.haproxy` in its spec adds one")]
    NoProxy(String),
    #[error(
        "cluster {0} has no front: `etcd.front` in its spec adds one, and `quorate front {0}` serves one from here"
    )]
    NoFront(String),
    #[error("no machine of cluster {0} can be found, so clients have nothing to connect to: run `quorate status {0}`")]
    NoMachines(String),
    #[error("this cluster's certificates are user-provided and its CA's key is not here, so quorate cannot issue any")]
    NoAuthorityKey,
    #[error(
        "user {user} is not declared in the spec (declared: {declared}): add it under `auth.users` and apply the spec"
    )]
    Undeclared { user: String, declared: String },
    #[error("the front cannot issue a certificate for user {0:?}")]
    NotAs(String),
    #[error("clients of this cluster log in with a password; certificates are not needed")]
    PasswordLogin,
    #[error(
        "another command works on {0}, and an issued certificate must be recorded first: try again when it has ended"
    )]
    LedgerHeld(String),
}

/// Does not write a file that already has this content.
pub(crate) fn keep_private(path: &Path, text: &str) -> Result<(), ClientError> {
    match std::fs::read(path) {
        Ok(found) if found == text.as_bytes() => Ok(()),
        _ => write_private(path, text),
    }
}

/// Writes a file that only its owner can read, all at once.
pub fn write_private(path: &Path, text: &str) -> Result<(), ClientError> {
    let failed = |source| ClientError::Io { path: path.to_owned(), source };
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    // Created from scratch, so no existing link is followed and no file stays open elsewhere.
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    file.and_then(|mut f| f.write_all(text.as_bytes())).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}
