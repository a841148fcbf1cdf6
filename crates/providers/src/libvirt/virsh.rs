//! Controls libvirt through `virsh`, without a shell, and translates its errors.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// For one call. Copying a seed disk to another host is the slowest.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where a document is read from.
pub(super) const STDIN: &str = "/dev/stdin";

#[derive(Debug, thiserror::Error)]
pub enum LibvirtError {
    #[error("the command `virsh` is missing; it is in the package libvirt-clients")]
    NoVirsh,
    #[error("libvirt at {uri} cannot be reached: {said}")]
    Unreachable { uri: String, said: String },
    #[error("permission denied by libvirt at {uri}: {said}; be root, or a member of the group `libvirt`")]
    Denied { uri: String, said: String },
    #[error("libvirt has no {what} `{name}`{}", listed(known))]
    Missing { what: &'static str, name: String, known: Vec<String> },
    #[error("the {what} `{name}` of libvirt is not active; `virsh {verb} {name}` starts it")]
    Inactive { what: &'static str, name: String, verb: &'static str },
    #[error("the storage pool `{pool}` has {left} left, and the machine of {member} needs {needed}")]
    NoSpace { pool: String, member: String, needed: String, left: String },
    #[error("the image `{image}` has {has}, more than the `root_size` of {wanted}")]
    ImageLarger { image: String, has: String, wanted: String },
    #[error("the volume `{name}` is already in the storage pool `{pool}`, and nothing says that it is this machine's")]
    VolumeTaken { pool: String, name: String },
    #[error("the MAC {mac} of {member} is already used by the machine `{by}`")]
    MacTaken { mac: String, member: String, by: String },
    #[error("this host has no network interface `{name}` for macvtap")]
    NoDevice { name: String },
    #[error("the machine `{name}` of libvirt is not quorate's, and blocks the name")]
    NameTaken { name: String },
    #[error("the spec no longer names {member}, so its machine cannot be created")]
    NotInSpec { member: String },
    #[error("cannot parse libvirt's description of `{name}`")]
    Unreadable { name: String },
    #[error("libvirt did not answer `virsh {command}` within {} s", PATIENCE.as_secs())]
    Silent { command: String },
    #[error("`virsh {command}` failed: {said}")]
    Failed { command: String, said: String },
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) }
}

impl LibvirtError {
    /// Whether libvirt itself did not answer, or refused access.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, LibvirtError::Unreachable { .. } | LibvirtError::Denied { .. } | LibvirtError::Silent { .. })
    }

    /// Whether the requested resource does not exist.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, LibvirtError::Missing { .. })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Virsh {
    program: PathBuf,
    uri: String,
}

impl Virsh {
    pub(super) fn new(program: PathBuf, uri: String) -> Self {
        Virsh { program, uri }
    }

    /// Runs one command and gives back what it printed.
    pub(super) async fn run(&self, arguments: &[&str]) -> Result<String, LibvirtError> {
        self.tell(arguments, "").await
    }

    /// Runs one command that reads a document from `STDIN`.
    pub(super) async fn tell(&self, arguments: &[&str], document: &str) -> Result<String, LibvirtError> {
        match tokio::time::timeout(PATIENCE, self.exchange(arguments, document)).await {
            Ok(answer) => answer,
            Err(_) => Err(LibvirtError::Silent { command: arguments.join(" ") }),
        }
    }

    async fn exchange(&self, arguments: &[&str], document: &str) -> Result<String, LibvirtError> {
        let unable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => LibvirtError::NoVirsh,
            _ => LibvirtError::Failed { command: arguments.join(" "), said: error.to_string() },
        };
        let mut command = Command::new(&self.program);
        command.args(["--quiet", "--connect", &self.uri]).args(arguments);
        // Messages are recognized by their words.
        command.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().map_err(unable)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If it exits before reading everything, it reports the reason itself.
            let _ = stdin.write_all(document.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(unable)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        if complaint.trim().is_empty() {
            let said = format!("it says nothing, and ends with {}", output.status);
            return Err(LibvirtError::Failed { command: arguments.join(" "), said });
        }
        Err(self.understand(arguments, &complaint))
    }

    /// A list, one name a line.
    pub(super) async fn names(&self, arguments: &[&str]) -> Result<Vec<String>, LibvirtError> {
        let printed = self.run(arguments).await?;
        Ok(printed.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// What virsh's complaint is about. virsh prints libvirt's text for an error and not its number, so the text must do: in English
    /// (`LC_ALL=C`), and only where a line begins with it, since names that people chose follow it.
    fn understand(&self, arguments: &[&str], complaint: &str) -> LibvirtError {
        let lines = complaint.lines().map(|line| line.trim().trim_start_matches("error: "));
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let begins = |words: &[&str]| lines.iter().any(|line| words.iter().any(|word| line.starts_with(word)));
        let (uri, last) = (self.uri.clone(), || lines.last().copied().unwrap_or_default().to_owned());
        if begins(&UNREACHABLE) {
            // Without a system bus libvirt cannot ask polkit, and refuses every user for whom it would have to.
            let denied = REFUSALS.iter().any(|refusal| last().contains(refusal));
            return if denied {
                LibvirtError::Denied { uri, said: last() }
            } else {
                LibvirtError::Unreachable { uri, said: last() }
            };
        }
        let missing = MISSING.iter().find(|(text, _)| begins(&[text]));
        match missing {
            Some((_, what)) => LibvirtError::Missing { what, name: quoted(&lines.join("; ")), known: Vec::new() },
            None => LibvirtError::Failed { command: arguments.join(" "), said: lines.join("; ") },
        }
    }
}

/// How virsh begins to say that it has no connection, or has lost it.
const UNREACHABLE: [&str; 7] = [
    "failed to connect to the hypervisor",
    "Failed to connect socket",
    "authentication unavailable",
    "authentication failed",
    "Disconnected from",
    "Cannot recv data",
    "internal error: client socket is closed",
];

/// libvirt's error for users without access.
const REFUSALS: [&str; 6] = [
    "Permission denied",
    "authentication unavailable",
    "authentication failed",
    "access denied",
    "polkit",
    "system bus connection",
];

/// libvirt's texts for `VIR_ERR_NO_STORAGE_POOL`, `VIR_ERR_NO_STORAGE_VOL`, `VIR_ERR_NO_NETWORK` and `VIR_ERR_NO_DOMAIN`; and what
/// virsh says of a domain that it was given by name.
const MISSING: [(&str, &str); 5] = [
    ("Storage pool not found", "storage pool"),
    ("Storage volume not found", "volume"),
    ("Network not found", "network"),
    ("Domain not found", "machine"),
    ("failed to get domain", "machine"),
];

/// The last word in quotes, which is what a complaint is about.
fn quoted(said: &str) -> String {
    said.rsplit('\'').nth(1).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(complaint: &str) -> LibvirtError {
        Virsh::new(PathBuf::from("virsh"), String::from("qemu:///system")).understand(&["pool-info", "x"], complaint)
    }

    #[test]
    fn complaints_are_understood() {
        let away = "error: failed to connect to the hypervisor\nerror: Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory\n";
        assert!(matches!(understood(away), LibvirtError::Unreachable { .. }));
        let denied = "error: failed to connect to the hypervisor\nerror: Failed to connect socket to '/var/run/libvirt/libvirt-sock': Permission denied\n";
        assert!(matches!(understood(denied), LibvirtError::Denied { .. }));
        let polkit = "error: failed to connect to the hypervisor\nerror: authentication unavailable: no polkit agent available to authenticate action 'org.libvirt.unix.manage'\n";
        assert!(matches!(understood(polkit), LibvirtError::Denied { .. }));
        let no_bus = "error: failed to connect to the hypervisor\nerror: internal error: Unable to get system bus connection: Could not connect: No such file or directory\n";
        assert!(matches!(understood(no_bus), LibvirtError::Denied { .. }));
        let pool =
            "error: failed to get pool 'x'\nerror: Storage pool not found: no storage pool with matching name 'x'\n";
        assert_eq!(understood(pool).to_string(), "libvirt has no storage pool `x`");
        let gone = "error: Disconnected from qemu:///system due to end of file\nerror: Cannot recv data\n";
        assert!(matches!(understood(gone), LibvirtError::Unreachable { .. }));
        let named = "error: Failed to start domain 'Domain not found'\nerror: internal error: no\n";
        assert!(matches!(understood(named), LibvirtError::Failed { .. }), "a name is no message");
        let other = "error: Failed to start domain 'a'\nerror: internal error: qemu unexpectedly closed the monitor\n";
        assert_eq!(
            understood(other).to_string(),
            "`virsh pool-info x` failed: Failed to start domain 'a'; internal error: qemu unexpectedly closed the monitor"
        );
    }
}
