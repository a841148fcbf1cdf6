//! Private directories for temporary sockets, passwords and keys. They have short names and are not below the agent's root, because a
//! socket's path must be short. If an agent is killed, the next one on the same root removes them.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::text::hex;
use quorate_pki::Sha256;

use crate::AgentError;
use crate::files::{self, Owner};
use crate::layout::Layout;

/// Of the digest of the root so many bytes are in a name.
const OF_ROOT: usize = 6;

/// Is removed with all that is in it when it is dropped.
#[derive(Debug)]
pub(super) struct Private {
    path: PathBuf,
}

impl Private {
    /// The owner of none is the agent.
    pub(super) fn make(layout: &Layout, owner: Option<Owner>) -> Result<Self, AgentError> {
        Self::make_in(&std::env::temp_dir(), layout, owner)
    }

    fn make_in(temporary: &Path, layout: &Layout, owner: Option<Owner>) -> Result<Self, AgentError> {
        let path = temporary.join(format!("{}{}", prefix(layout), quorate_pki::random_hex(6)));
        files::one_private_directory(&path).map_err(AgentError::file("make", &path))?;
        let made = Private { path };
        files::give_to(&made.path, owner)?;
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Several agents share the directory of a local machine.
fn prefix(layout: &Layout) -> String {
    let root = Sha256::digest(layout.root().as_os_str().as_encoded_bytes());
    format!("quorate-{}-", hex(&root[..OF_ROOT]))
}

/// Removes what agents on this root have left. Called once, when the agent starts: nothing that works goes on from there.
pub(crate) fn remove_remnants(layout: &Layout) {
    remove_remnants_in(&std::env::temp_dir(), layout);
}

fn remove_remnants_in(temporary: &Path, layout: &Layout) {
    let prefix = prefix(layout);
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "what a killed agent left could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_a_killed_agent_are_removed_by_the_next_agent_with_the_same_root() {
        let directory = tempfile::tempdir().unwrap();
        let [temporary, one, other] = ["tmp", "one", "other"].map(|name| directory.path().join(name));
        [&temporary, &one, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let [one, other] = [one, other].map(|root| Layout::new(&root).unwrap());
        let make = |layout| Private::make_in(&temporary, layout, None).unwrap();
        let left = || fs::read_dir(&temporary).unwrap().count();

        drop(make(&one));
        assert_eq!(left(), 0, "one that is dropped is removed");

        let (killed, works) = (make(&one), make(&other));
        fs::write(killed.path().join("pgpass"), "secret").unwrap();
        fs::write(temporary.join("quorate-of-somebody"), "").unwrap();
        std::mem::forget(killed);
        remove_remnants_in(&temporary, &one);
        assert_eq!(left(), 2);
        assert!(works.path().is_dir(), "it is of another agent");
        drop(works);
        assert!(temporary.join("quorate-of-somebody").exists());
    }

    #[test]
    fn the_path_of_a_socket_in_it_is_short_enough() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path()).unwrap();
        let name = format!("/tmp/{}{}/.s.PGSQL.5432", prefix(&layout), quorate_pki::random_hex(6));
        assert!(name.len() < 64, "{name}");
    }
}
