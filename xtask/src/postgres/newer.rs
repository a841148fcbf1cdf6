//! PostgreSQL of the next release of Debian, and a pgBackRest that knows it, for tests that upgrade a cluster. Nothing is installed: the files
//! of the packages are unpacked, with the C library that they were built for, and each program is a script that runs it with that library.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::etcd::debian;
use crate::host;
use crate::lab::{Filling, Lab};

pub const VERSION: u16 = 17;
const SUITE: &str = "trixie";
/// With security updates: what a minor release of the older version adds to its data, a newer one must know too.
/// With all libraries that the programs load. Those for compiling queries (LLVM) are larger than all others, and PostgreSQL does without.
const PACKAGES: &str = "postgresql-17 postgresql-client-17 pgbackrest libaudit1 libbsd0 libbz2-1.0 libc6 libcap-ng0 libcap2 libcom-err2 \
    libcrypt1 libedit2 libffi8 libgcc-s1 libgssapi-krb5-2 libicu76 libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 libldap2 liblz4-1 \
    liblzma5 libmd0 libpam0g libpcre2-8-0 libpq5 libreadline8t64 libsasl2-2 libselinux1 libssh2-1t64 libssl3t64 libstdc++6 libsystemd0 \
    libtinfo6 libuuid1 libxml2 libxslt1.1 libxxhash0 libzstd1 zlib1g";
/// In the tree. Where the other files of PostgreSQL are follows from where its programs are.
const PROGRAMS: &str = "usr/lib/postgresql/17/bin";
const ORIGINALS: &str = "usr/lib/postgresql/17/original";
const COMPILER: &str = "usr/lib/postgresql/17/lib/llvmjit.so";

/// The directory of its programs.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    let place = lab.postgres(VERSION);
    let programs = place.join(PROGRAMS);
    if !programs.is_dir() {
        let filling = lab.lock()?;
        if !programs.is_dir() {
            install(&filling, &place).with_context(|| format!("PostgreSQL {VERSION} of Debian {SUITE} is missing"))?;
        }
    }
    Ok(programs)
}

fn install(filling: &Filling<'_>, place: &Path) -> Result<()> {
    eprintln!("getting PostgreSQL {VERSION} of Debian {SUITE}");
    let tree = filling.scratch("postgres-tree")?;
    let packages: Vec<&str> = PACKAGES.split_whitespace().collect();
    debian::unpack_from(SUITE, &packages, filling.scratch("postgres-apt")?, &tree)?;
    let (programs, originals) = (tree.join(PROGRAMS), tree.join(ORIGINALS));
    fs::rename(&programs, &originals)?;
    fs::rename(tree.join("usr/bin/pgbackrest"), originals.join("pgbackrest"))?;
    fs::remove_file(tree.join(COMPILER))?;
    fs::create_dir(&programs)?;
    for original in fs::read_dir(&originals)? {
        let name = original?.file_name();
        let name = name.to_str().context("a program with a strange name")?;
        write_script(&programs.join(name), name)?;
    }
    for (name, argument) in [("postgres", "--version"), ("pg_upgrade", "--version"), ("pgbackrest", "version")] {
        let said = host::read(Command::new(programs.join(name)).arg(argument))?;
        ensure!(name == "pgbackrest" || said.contains(&format!(") {VERSION}.")), "{name} says that it is {said}");
    }
    let above = place.parent().context("a place in no directory")?;
    fs::create_dir_all(above)?;
    fs::rename(&tree, place).with_context(|| format!("cannot move into place {}", place.display()))
}

/// PostgreSQL's programs find each other by the name that they were called by, so they are given the script's.
fn write_script(path: &Path, name: &str) -> Result<()> {
    let script = format!(
        "#!/bin/sh\ntree=\"${{0%/*}}/../../../../..\"\n\
         exec \"$tree/usr/lib64/ld-linux-x86-64.so.2\" --library-path \"$tree/usr/lib/x86_64-linux-gnu\" --argv0 \"$0\" \
         \"$tree/{ORIGINALS}/{name}\" \"$@\"\n"
    );
    fs::write(path, script)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
