//! Patroni as Debian 12 has it, for tests of an older one. Nothing is installed: the files of its packages are unpacked, and each program is a
//! script that runs it with them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::PROGRAMS;
use crate::etcd::debian;
use crate::host;
use crate::lab::{Filling, Lab};

pub const VERSION: &str = "3.0.2";
const SUITE: &str = "bookworm";
/// With everything that it imports for etcd. The package itself also names `python3-pysyncobj`, for Patroni's own store.
const PACKAGES: &str = "patroni libpq5 libyaml-0-2 python3-cdiff python3-click python3-colorama python3-dateutil python3-dnspython python3-etcd \
    python3-idna python3-pkg-resources python3-prettytable python3-psutil python3-psycopg2 python3-pysyncobj python3-six python3-urllib3 \
    python3-wcwidth python3-yaml";
/// Parts of these are compiled for Debian's Python.
const PYTHON: &str = "/usr/bin/python3";
const MODULES: &str = "usr/lib/python3/dist-packages";
const SCRIPTS: &str = "scripts";

/// The directory of its programs.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    let place = lab.patroni().join(VERSION);
    let programs = place.join(SCRIPTS);
    if !is_whole(&programs) {
        let filling = lab.lock()?;
        if !is_whole(&programs) {
            install(&filling, &place).with_context(|| format!("Patroni {VERSION} of Debian {SUITE} is missing"))?;
        }
    }
    Ok(programs)
}

fn is_whole(programs: &Path) -> bool {
    let answer = host::read(Command::new(programs.join("patroni")).arg("--version"));
    answer.is_ok_and(|answer| answer.trim_end() == format!("patroni {VERSION}"))
}

fn install(filling: &Filling<'_>, place: &Path) -> Result<()> {
    eprintln!("getting Patroni {VERSION} of Debian {SUITE}");
    let tree = filling.scratch("patroni-tree")?;
    let packages: Vec<&str> = PACKAGES.split_whitespace().collect();
    debian::unpack_from(SUITE, &packages, filling.scratch("patroni-apt")?, &tree)?;
    let scripts = tree.join(SCRIPTS);
    fs::create_dir(&scripts)?;
    for name in PROGRAMS {
        write_script(&scripts.join(name), name)?;
    }
    ensure!(
        is_whole(&scripts),
        "the packages have no Patroni {VERSION} that runs with {PYTHON}, Debian 12's Python 3.11"
    );
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let above = place.parent().context("a place in no directory")?;
    fs::create_dir_all(above)?;
    fs::rename(&tree, place).with_context(|| format!("cannot move into place {}", place.display()))
}

fn write_script(path: &Path, name: &str) -> Result<()> {
    let script = format!(
        "#!/bin/sh\ntree=\"$(dirname \"$(readlink -f \"$0\")\")/..\"\n\
         PYTHONPATH=\"$tree/{MODULES}\" LD_LIBRARY_PATH=\"$tree/usr/lib/x86_64-linux-gnu\" exec {PYTHON} \"$tree/usr/bin/{name}\" \"$@\"\n"
    );
    fs::write(path, script)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
