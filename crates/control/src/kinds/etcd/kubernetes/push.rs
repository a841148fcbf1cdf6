//! Delivers files to control plane hosts with the operator's own ssh. A script is sent over stdin and run by `sh` on the host; no
//! process has a secret in its arguments.
//!
//! The first script only reports which files exist. The second one sends what differs: it writes every file completely under a
//! temporary name and then renames it. It runs only if it has arrived completely.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use quorate_pki::Sha256;
use serde::Serialize;

use super::certificates::{APISERVER, CA, HEALTH};
use super::files::{PUBLIC, SECRET};
use super::{KubernetesError, failed, refused};
use quorate_core::text::hex;

/// What is delivered, in the order in which it is put in place: a key just before its certificate.
const DELIVERED: [(&str, u32); 5] = [
    (CA, PUBLIC),
    (HEALTH.key, SECRET),
    (HEALTH.certificate, PUBLIC),
    (APISERVER.key, SECRET),
    (APISERVER.certificate, PUBLIC),
];

/// The prefix of each line that a script prints for quorate. A login shell may print other lines.
const MARK: &str = "quorate:";

/// How to reach hosts.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The ssh program and its options, separated by spaces.
    pub ssh: String,
    pub sudo: bool,
    /// The directory on hosts, such as `/etc/kubernetes`.
    pub directory: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Delivery {
    pub host: String,
    pub result: Delivered,
    /// The files that were sent.
    pub files: Vec<&'static str>,
    /// kube-apiserver reads its CA only when it starts.
    pub restart_needed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivered {
    Updated,
    Unchanged,
    Failed,
}

#[derive(Debug)]
struct Local {
    path: &'static str,
    content: String,
    mode: u32,
}

/// The files of a host: the SHA-256 and the mode of each.
type Found = BTreeMap<String, (String, u32)>;

/// Refuses names that ssh would read as an option.
pub fn check_host(host: &str) -> Result<(), KubernetesError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@:[]%".contains(c);
    if host.is_empty() || host.starts_with('-') || !host.chars().all(plain) {
        return refused(
            format!("`{host}` is not the name of a host"),
            "name it as for ssh: [USER@]HOST, or a name of ~/.ssh/config",
        );
    }
    Ok(())
}

/// Sends the files of this directory to one host.
pub fn deliver(from: &Path, host: &str, way: &Remote) -> Result<Delivery, KubernetesError> {
    let local = local(from)?;
    Ok(bring(&local, host, way).unwrap_or_else(|error| Delivery {
        host: host.to_owned(),
        result: Delivered::Failed,
        files: Vec::new(),
        restart_needed: false,
        error: Some(error),
    }))
}

fn local(from: &Path) -> Result<Vec<Local>, KubernetesError> {
    let read = |(path, mode)| {
        let full = from.join(path);
        let content = std::fs::read_to_string(&full).map_err(failed("read", &full))?;
        Ok(Local { path, content, mode })
    };
    DELIVERED.into_iter().map(read).collect()
}

fn bring(local: &[Local], host: &str, way: &Remote) -> Result<Delivery, String> {
    let found = found(&run(host, way, &question(&way.directory))?);
    let differs = |file: &&Local| found.get(file.path) != Some(&(digest(&file.content), file.mode));
    let differing: Vec<&Local> = local.iter().filter(differs).collect();
    let host_has_another_ca = found.contains_key(CA) && differing.iter().any(|file| file.path == CA);
    let result = if differing.is_empty() { Delivered::Unchanged } else { Delivered::Updated };
    if result == Delivered::Updated {
        let said = run(host, way, &order(&way.directory, &differing))?;
        if !said.lines().any(|line| line == format!("{MARK} done")) {
            return Err(String::from("the host did not confirm that the files are in place"));
        }
    }
    let files = differing.iter().map(|file| file.path).collect();
    Ok(Delivery { host: host.to_owned(), result, files, restart_needed: host_has_another_ca, error: None })
}

fn digest(content: &str) -> String {
    hex(&Sha256::digest(content))
}

fn found(said: &str) -> Found {
    let line = |line: &str| {
        let mut words = line.strip_prefix(MARK)?.split_whitespace();
        let (path, digest, mode) = (words.next()?, words.next()?, words.next()?);
        Some((path.to_owned(), (digest.to_owned(), u32::from_str_radix(mode, 8).ok()?)))
    };
    said.lines().filter_map(line).collect()
}

/// Asks for the digest and the mode of each file that is there.
fn question(directory: &str) -> String {
    let paths = DELIVERED.map(|(path, _)| path).join(" ");
    format!(
        "main() {{\n  cd '{directory}' 2>/dev/null || return 0\n  for f in {paths}; do\n    [ -f \"$f\" ] || continue\n    \
         s=$(sha256sum < \"$f\") || exit 1\n    echo \"{MARK} $f ${{s%% *}} $(stat -c %a \"$f\")\"\n  done\n}}\nmain\n"
    )
}

/// Writes files and renames them. A file that is replaced keeps its owner.
fn order(directory: &str, files: &[&Local]) -> String {
    let mut script = format!(
        "stage() {{\n  rm -f \"$1.quorate-new\"\n  (set -C; cat > \"$1.quorate-new\")\n  chmod \"$2\" \"$1.quorate-new\"\n  \
         if [ -f \"$1\" ]; then chown \"$(stat -c %u:%g \"$1\")\" \"$1.quorate-new\"; fi\n  \
         sync \"$1.quorate-new\" 2>/dev/null || sync\n}}\n\
         main() {{\n  set -e\n  umask 077\n  mkdir -p '{directory}/pki/etcd'\n  cd '{directory}'\n"
    );
    let temporaries: Vec<String> = files.iter().map(|file| format!("{}.quorate-new", file.path)).collect();
    let _ = writeln!(script, "  trap 'rm -f {}' EXIT", temporaries.join(" "));
    for file in files {
        let _ = writeln!(script, "  stage {} {:o} <<'QUORATE-END'", file.path, file.mode);
        script.push_str(&file.content);
        if !file.content.ends_with('\n') {
            script.push('\n');
        }
        script.push_str("QUORATE-END\n");
    }
    for file in files {
        let _ = writeln!(script, "  mv -f {0}.quorate-new {0}", file.path);
    }
    let _ = write!(script, "  sync pki pki/etcd 2>/dev/null || sync\n  echo '{MARK} done'\n}}\nmain\n");
    script
}

/// Runs a script in `sh` on the host. Returns its output, or the error.
fn run(host: &str, way: &Remote, script: &str) -> Result<String, String> {
    let mut words = way.ssh.split_whitespace();
    let program = words.next().unwrap_or("ssh");
    let mut command = Command::new(program);
    command.args(words).arg("--").arg(host).arg(if way.sudo { "sudo -n sh -s" } else { "sh -s" });
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    // If ssh exits early, it says why.
    let sent = stdin.write_all(script.as_bytes()).or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    });
    drop(stdin);
    let output = child.wait_with_output().and_then(|output| sent.map(|()| output));
    let output = output.map_err(|error| format!("`{program}` cannot be used: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The last lines say what went wrong; banners come first.
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    Err(if last.is_empty() { format!("`{program}` ended with {}", output.status) } else { last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(directory: &Path) -> (tempfile::TempDir, Remote) {
        // A program in the place of ssh, which runs the command on this host.
        let programs = tempfile::tempdir().unwrap();
        let program = programs.path().join("ssh");
        std::fs::write(&program, "#!/bin/sh\n[ \"$1\" = -- ] || exit 9\n[ \"$2\" = down ] && { echo no route >&2; exit 255; }\necho a banner\nexec sh -c \"$3\"\n").unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let way = Remote {
            ssh: program.display().to_string(),
            sudo: false,
            directory: directory.join("etc/kubernetes").display().to_string(),
        };
        (programs, way)
    }

    fn make(directory: &Path, content: &str) {
        for (path, mode) in DELIVERED {
            let path = directory.join(path);
            quorate_agent::private_directory(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("{content} '$HOME'\n")).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
    }

    #[test]
    fn differing_files_are_replaced_and_no_other_files_are_left() {
        let directory = tempfile::tempdir().unwrap();
        let (from, host) = (directory.path().join("from"), directory.path().join("etc/kubernetes"));
        let (_programs, way) = way(directory.path());
        make(&from, "one");
        let first = deliver(&from, "cp-1", &way).unwrap();
        assert_eq!(
            (first.result, first.files.len(), first.restart_needed),
            (Delivered::Updated, 5, false),
            "{first:?}"
        );
        for (path, _) in DELIVERED {
            assert_eq!(std::fs::read_to_string(host.join(path)).unwrap(), "one '$HOME'\n");
        }
        let again = deliver(&from, "cp-1", &way).unwrap();
        assert_eq!((again.result, again.files.len()), (Delivered::Unchanged, 0), "{again:?}");
        std::fs::write(from.join(APISERVER.certificate), "two").unwrap();
        std::fs::write(from.join(CA), "two\n").unwrap();
        let third = deliver(&from, "cp-1", &way).unwrap();
        assert_eq!((third.files, third.restart_needed), (vec![CA, APISERVER.certificate], true));
        let mut names: Vec<_> = std::fs::read_dir(host.join("pki"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["apiserver-etcd-client.crt", "apiserver-etcd-client.key", "etcd"]);
    }

    #[test]
    fn a_host_that_fails_says_why_and_half_a_script_does_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("from");
        let (_programs, way) = way(directory.path());
        make(&from, "one");
        let failed = deliver(&from, "down", &way).unwrap();
        assert_eq!((failed.result, failed.error.as_deref()), (Delivered::Failed, Some("no route")));
        let missing = deliver(&from, "cp-1", &Remote { ssh: String::from("/no/such/ssh"), ..way.clone() }).unwrap();
        assert!(missing.error.as_deref().is_some_and(|error| error.contains("cannot be started")), "{missing:?}");
        let local = local(&from).unwrap();
        let whole = order(&way.directory, &local.iter().collect::<Vec<_>>());
        for share in 1..10 {
            let _ = run("cp-1", &way, &whole[..whole.len() * share / 10]);
            assert!(!Path::new(&way.directory).exists(), "{share} of 10 parts of the script");
        }
        run("cp-1", &way, &whole).unwrap();
        assert!(Path::new(&way.directory).exists());
    }

    #[test]
    fn hosts_that_ssh_would_misread_are_refused() {
        for good in ["cp-1", "root@10.0.0.1", "root@[fe80::1%eth0]", "cp1.example.org"] {
            check_host(good).unwrap();
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "$(x)"] {
            assert!(check_host(bad).is_err(), "{bad}");
        }
    }
}
