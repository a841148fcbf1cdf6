//! The user that runs PostgreSQL's programs. They refuse to run as root. If the agent is root and no other user can access its directory,
//! they run in a user namespace in which root has another id.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use quorate_core::kinds::postgres::SUPERUSER;
use tokio::process::Command;

use crate::AgentError;
use crate::agent::Agent;
use crate::files::Owner;
use crate::services::systemd::find_owner;

/// Variables that begin so are settings to PostgreSQL's programs and to Patroni.
pub(super) const VARIABLES: &[&str] = &["PG", "PATRONI_"];
/// Known on every machine.
const SOMEBODY: &str = "nobody";
const UNSHARE: &str = "unshare";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunAs {
    /// As the agent.
    Agent,
    /// As this user of the machine.
    User(Owner),
    /// As the agent, root, which has these numbers in its namespace.
    Namespace(Owner),
}

impl RunAs {
    pub(super) fn command(self, program: &Path) -> Command {
        let (first, args) = self.in_words(program);
        let mut command = Command::new(first);
        command.args(args);
        if let RunAs::User((user, group)) = self {
            command.uid(user).gid(group);
        }
        without_variables(&mut command);
        // Messages are read by the agent and by people who read no other.
        command.env("LC_ALL", "C.UTF-8").kill_on_drop(true);
        command
    }

    /// The program, and the arguments before its own. A unit of systemd names the user itself.
    pub(super) fn in_words(self, program: &Path) -> (PathBuf, Vec<String>) {
        match self {
            RunAs::Agent | RunAs::User(_) => (program.to_owned(), Vec::new()),
            RunAs::Namespace((user, group)) => {
                let args = ["--user".into(), format!("--map-user={user}"), format!("--map-group={group}")];
                (UNSHARE.into(), args.into_iter().chain([program.display().to_string()]).collect())
            }
        }
    }
}

pub(super) fn without_variables(command: &mut Command) {
    let is_setting = |name: &OsStr| VARIABLES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
}

impl Agent {
    pub(super) async fn run_as(&self) -> Result<RunAs, AgentError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(RunAs::Agent);
        }
        if let Some(owner) = self.patroni().await?.owner()? {
            return Ok(RunAs::User(owner));
        }
        // The programs look up the name of their user, so it must have one.
        let known = [SUPERUSER, SOMEBODY].into_iter().find_map(|name| find_owner(name).transpose());
        let missing = || AgentError::NoUser { user: SUPERUSER.to_owned() };
        known.ok_or_else(missing)?.map(RunAs::Namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn root_is_somebody_else_to_what_it_starts_and_the_files_stay_its_own() {
        assert!(rustix::process::geteuid().is_root(), "only root needs a namespace");
        let dir = tempfile::tempdir().unwrap();
        let mut command = RunAs::Namespace((12_345, 12_345)).command(Path::new("sh"));
        command.args(["-c", "id -u; touch \"$0\"; stat -c %u \"$0\""]).arg(dir.path().join("made"));
        let output = command.output().await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "12345\n12345\n");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(dir.path().join("made")).unwrap().uid(), 0);
    }
}
