//! The package on two Debians: the smallest one, and one with systemd's programs. Each runs in namespaces without a network, so all
//! its processes end with it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::etcd;
use crate::host::{self, Need};
use crate::lab::{self, Lab};

const NEEDS: [Need; 3] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "unshare", package: "util-linux" },
    Need::Command { name: "ip", package: "iproute2" },
];

const RELEASE: &str = "bookworm";

/// A Debian: its name, what it has besides the essential packages, and what is run in it.
const SYSTEMS: [(&str, &str, &str); 2] = [("bare", "", "try-bare.sh"), ("systemd", "systemd,man-db", "try-systemd.sh")];

/// What the first process in the namespaces does, with the root directory as `$1`.
const ENTER: &str = "mount -t proc proc $1/proc && mount -t tmpfs tmpfs $1/dev && mknod -m 666 $1/dev/null c 1 3 \
                     && mknod -m 666 $1/dev/urandom c 1 9 && ip link set lo up && chroot $1 sh /tmp/try.sh; exit $?";

pub fn run(lab: &Lab, package: &Path) -> Result<()> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("--try needs root: it runs the package in namespaces, with `unshare` and `chroot`");
    }
    host::install_missing(&NEEDS)?;
    let version = etcd::ensure_any(lab)?;
    for (name, include, script) in SYSTEMS {
        let archive = system(lab, name, include)?;
        eprintln!("trying {} on Debian {RELEASE} ({name})", package.display());
        let root = package.with_file_name("root");
        let tried = unpack(&archive, &root)
            .and_then(|()| bring(package, script, &lab.etcd(version), &root))
            .and_then(|()| enter(&root));
        host::run(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&root))?;
        tried?;
    }
    Ok(())
}

/// The archive of a system, which is kept in the lab. It arrives by a rename, so it is whole.
fn system(lab: &Lab, name: &str, include: &str) -> Result<PathBuf> {
    let directory = lab.root().join("debian");
    let archive = directory.join(format!("{name}.tar"));
    if archive.is_file() {
        return Ok(archive);
    }
    eprintln!("downloading Debian {RELEASE} ({name})");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let draft = directory.join(format!(".{}.{name}.tar", std::process::id()));
    let mut debian = Command::new("mmdebstrap");
    debian.args(["--variant=minbase", "--quiet", &format!("--include={include}"), RELEASE]).arg(&draft);
    host::run(&mut debian)?;
    fs::rename(&draft, &archive).with_context(|| format!("cannot move {} into place", archive.display()))?;
    Ok(archive)
}

fn unpack(archive: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
    // Device files, which not every machine may create, are made manually below.
    host::run(Command::new("tar").args(["--exclude=./dev/*", "-xf"]).arg(archive).arg("-C").arg(root))
}

fn bring(package: &Path, script: &str, etcd: &Path, root: &Path) -> Result<()> {
    let script = lab::workspace()?.join("packaging").join(script);
    let files = [
        (package.to_owned(), "tmp/quorate.deb"),
        (script, "tmp/try.sh"),
        (etcd.join("etcd"), "usr/local/bin/etcd"),
        (etcd.join("etcdctl"), "usr/local/bin/etcdctl"),
    ];
    for (from, to) in files {
        fs::copy(&from, root.join(to)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn enter(root: &Path) -> Result<()> {
    let mut inside = host::tethered("unshare");
    inside.args(["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", ENTER, "sh"]).arg(root);
    inside
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8");
    inside.env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
    host::run(&mut inside)
}
