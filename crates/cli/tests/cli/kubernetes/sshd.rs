//! Control plane hosts: an sshd on a free port of this machine. As root it runs in a separate mount namespace, where two more users exist
//! and sudo knows them.

use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Sandbox, eventually, lab_directory};

pub struct User {
    pub name: &'static str,
    pub id: u32,
}

/// May become root without a password.
pub const OPERATOR: User = User { name: "operator", id: 65_532 };
/// May become root with a password, and has none.
pub const GUEST: User = User { name: "guest", id: 65_531 };

/// Where the keys are that log in. Users can read it, unlike the sandbox.
const KEYS: &str = "/etc/quorate-lab-keys";

/// Lets in the user who runs this test and, if that is root, [`OPERATOR`] and [`GUEST`].
pub struct Sshd {
    server: Child,
    /// For `ssh -F`: `cp-1` and `cp-3` are this sshd, and nobody listens at `cp-2`.
    pub config: PathBuf,
}

impl Sshd {
    pub fn start(sandbox: &Sandbox) -> Self {
        let path = |name: &str| sandbox.path().join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status().expect("ssh-keygen");
            assert!(made.success());
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let keys = if is_root { KEYS.to_owned() } else { path("user_key.pub") };
        sandbox.file(
            "sshd_config",
            &format!(
                "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {keys}\nPidFile none\nUsePAM no\n\
                 StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n",
                path("host_key"),
            ),
        );
        let known = fs::read_to_string(path("host_key.pub")).unwrap();
        sandbox.file("known_hosts", &format!("[127.0.0.1]:{port} {known}"));
        let client = format!(
            "Host cp-1 cp-3\n  Port {port}\nHost cp-2\n  Port 1\nHost *\n  HostName 127.0.0.1\n  IdentityFile {}\n  \
             IdentitiesOnly yes\n  UserKnownHostsFile {}\n  BatchMode yes\n",
            path("user_key"),
            path("known_hosts"),
        );
        let config = sandbox.file("ssh_config", &client);
        let sshd = Sshd { server: run(sandbox, is_root), config };
        eventually("sshd answers", 20, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        sshd
    }
}

fn run(sandbox: &Sandbox, is_root: bool) -> Child {
    let program = lab_directory().join("openssh-server/usr/sbin/sshd");
    assert!(program.exists(), "sshd is missing here: run `cargo xtask test`");
    let mut command = if is_root { with_users(sandbox) } else { Command::new("env") };
    command.arg(program).args(["-D", "-e", "-f"]).arg(sandbox.path().join("sshd_config"));
    let log = fs::File::create(sandbox.path().join("sshd.log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("sshd starts")
}

/// Runs a program where more users exist than on this machine.
fn with_users(sandbox: &Sandbox) -> Command {
    // sshd insists on this directory, and on a user that only its installation creates.
    let _ = fs::create_dir_all("/run/sshd");
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let sshd = "sshd:*:65533:65534::/run/sshd:/usr/sbin/nologin\n";
    let user = |User { name, id }: User| format!("{name}:*:{id}:65534::/:/bin/sh\n");
    let rights = format!("{} ALL=(ALL) NOPASSWD: ALL\n{} ALL=(ALL) ALL\n", OPERATOR.name, GUEST.name);
    let keys = fs::read_to_string(sandbox.path().join("user_key.pub")).unwrap();
    let etc = sandbox.path().join("etc-of-hosts");
    fs::create_dir_all(etc.join("sudoers.d")).unwrap();
    fs::set_permissions(&etc, Permissions::from_mode(0o755)).unwrap();
    place(&etc.join("passwd"), &format!("{users}{sshd}{}{}", user(OPERATOR), user(GUEST)), 0o644);
    place(&etc.join("sudoers.d/quorate-lab"), &rights, 0o440);
    place(&etc.join(KEYS.trim_start_matches("/etc/")), &keys, 0o644);
    let script = "mount -t overlay overlay -o \"lowerdir=$1:/etc\" /etc && shift && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh"]).arg(etc);
    unshare
}

fn place(file: &Path, text: &str, mode: u32) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
