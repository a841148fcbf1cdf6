//! Commands of this machine: finds and runs them, with errors that name them, and installs the Debian packages of
//! missing ones. If nothing is missing, nothing is installed.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::{lab, postgres};

/// How to find out that a package is installed, and its name.
#[derive(Clone, Copy)]
pub enum Need {
    Command { name: &'static str, package: &'static str },
    File { path: &'static str, package: &'static str },
}

impl Need {
    fn missing_package(&self) -> Option<&'static str> {
        match *self {
            Self::Command { name, package } => find(name).is_none().then_some(package),
            Self::File { path, package } => (!Path::new(path).exists()).then_some(package),
        }
    }
}

/// Installs the packages of the needs that are not met.
pub fn install_missing(needs: &[Need]) -> Result<()> {
    let packages: Vec<&str> = needs.iter().filter_map(Need::missing_package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    privilege(&packages)?;
    eprintln!("installing {}", packages.join(", "));
    install(&packages).with_context(|| format!("apt cannot install {}", packages.join(", ")))?;
    match needs.iter().find_map(Need::missing_package) {
        None => Ok(()),
        Some(package) => bail!("package {package} was installed, yet what it should bring is not there"),
    }
}

fn install(packages: &[&str]) -> Result<()> {
    update_packages()?;
    let apt = || run(apt_get(packages)?.args(["install", "-y", "--no-install-recommends"]).args(packages));
    if packages.iter().any(|package| postgres::is_server(package)) {
        postgres::without_first_cluster(apt)
    } else {
        apt()
    }
}

/// A script for the shell, run as root.
pub fn run_as_root(script: &str) -> Result<()> {
    let mut words = privilege(&[])?.iter().chain(&["sh", "-c"]);
    run(Command::new(words.next().expect("the list is not empty")).args(words).arg(script))
}

/// Has apt look for what there is today.
pub fn update_packages() -> Result<()> {
    run(apt_get(&[])?.arg("update"))
}

fn apt_get(packages: &[&str]) -> Result<Command> {
    // `env` keeps the variable where sudo would drop it.
    let words = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"];
    let mut words = privilege(packages)?.iter().chain(&words);
    let mut command = Command::new(words.next().expect("the list is not empty"));
    command.args(words);
    Ok(command)
}

/// The words to put before a command that only root may run.
fn privilege(packages: &[&str]) -> Result<&'static [&'static str]> {
    let uid = std::fs::metadata("/proc/self").context("cannot tell which user this is")?.uid();
    if uid == 0 {
        return Ok(&[]);
    }
    if find("sudo").is_some() {
        return Ok(&["sudo"]);
    }
    bail!(
        "missing packages, and neither root nor sudo to install them\n\nhint: as root, type\n  apt-get update && \
         apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

/// The path of a command, looked up as a shell would.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The cargo that started this program, in the workspace's root.
pub fn cargo() -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(lab::workspace()?);
    // What cargo tells this program about itself would have dependencies built again whose builds look at it.
    let told = std::env::vars_os().map(|(name, _)| name);
    let told = told
        .filter(|name| name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_")));
    for name in told {
        cargo.env_remove(name);
    }
    Ok(cargo)
}

/// A command whose process ends with this one, even if this one is killed.
pub fn tethered(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs a command that talks to the user itself.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", words(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", words(command));
    }
    Ok(())
}

/// Runs a command and gives back what it printed; its complaints show only if it fails.
pub fn read(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot start `{}`", words(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}\n{}", words(command), String::from_utf8_lossy(&stderr).trim_end());
    }
    String::from_utf8(stdout).with_context(|| format!("`{}` printed something that is not text", words(command)))
}

fn words(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    words.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

/// Where cargo puts release builds.
pub fn release_directory() -> Result<PathBuf> {
    Ok(target_directory()?.join("release"))
}

/// Where cargo puts builds that are not for release.
pub fn debug_directory() -> Result<PathBuf> {
    Ok(target_directory()?.join("debug"))
}

/// Above the directory that this very program was built into.
pub fn target_directory() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let target = this.ancestors().nth(2).context("this program does not lie in a target directory")?;
    Ok(target.to_owned())
}
