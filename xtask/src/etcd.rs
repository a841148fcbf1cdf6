//! `cargo xtask etcd`: installs etcd versions next to each other in the lab, from Debian's packages and, if a Go
//! toolchain is available, from Go's modules. Repeating it costs nothing and needs no network once everything is there;
//! two parallel runs wait for each other.

pub mod debian;
pub mod go;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, anyhow, bail};

use crate::host;
use crate::lab::{Lab, Version};

const BINARIES: [&str; 3] = ["etcd", "etcdctl", "etcdutl"];

/// The note in a version's directory that says where its binaries came from.
const ORIGIN: &str = "ORIGIN";

pub fn run(lab: &Lab, refresh: bool) -> Result<()> {
    ensure(lab, refresh)?;
    print_table(lab);
    Ok(())
}

/// Makes all versions that tests use available, as far as this machine can.
pub fn ensure(lab: &Lab, refresh: bool) -> Result<()> {
    if refresh || !debian::missing(lab).is_empty() || !go::missing_lines(lab).is_empty() {
        let filling = lab.lock()?;
        // Asked again under the lock: another run may have done the work meanwhile.
        debian::install(&filling, &debian::missing(lab))?;
        go::install(lab, &filling, refresh)?;
    }
    Ok(())
}

/// Makes one etcd available quickly: the newest at hand, else the newest that Debian packages.
pub fn ensure_any(lab: &Lab) -> Result<Version> {
    let newest = || lab.installed().keys().next_back().copied();
    if let Some(version) = newest() {
        return Ok(version);
    }
    let filling = lab.lock()?;
    if let Some(version) = newest() {
        return Ok(version);
    }
    // Debian's newest moves on without asking; an older release of it stays where it is.
    let mut failure = None;
    for packaged in debian::newest_first() {
        match debian::install(&filling, &[packaged]) {
            Ok(()) => return Ok(packaged.version),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| anyhow!("no etcd is packaged")))
}

/// What is in the lab, and which lines are not, for people.
pub fn print_table(lab: &Lab) {
    let rows: Vec<[String; 3]> = lab
        .installed()
        .iter()
        .map(|(version, directory)| {
            let origin = fs::read_to_string(directory.join(ORIGIN)).unwrap_or_else(|_| "unknown".into());
            [version.to_string(), origin.trim_end().into(), directory.display().to_string()]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (version, origin) = (width(0).max("VERSION".len()), width(1));
    println!("{:version$}  {:origin$}  PATH", "VERSION", "FROM");
    for [v, o, path] in &rows {
        println!("{v:version$}  {o:origin$}  {path}");
    }
    for (major, minor) in go::missing_lines(lab) {
        println!("etcd {major}.{minor} is not covered: building it takes a recent Go toolchain, with `go` on the PATH");
    }
}

/// Checks that the binaries run and are of the version they were fetched as, and notes their origin.
fn finish(directory: &Path, version: Version, origin: &str) -> Result<()> {
    expect_line(Command::new(directory.join("etcd")).arg("--version"), &format!("etcd Version: {version}"))?;
    expect_line(Command::new(directory.join("etcdctl")).arg("version"), &format!("etcdctl version: {version}"))?;
    if directory.join("etcdutl").exists() {
        expect_line(Command::new(directory.join("etcdutl")).arg("version"), &format!("etcdutl version: {version}"))?;
    }
    fs::write(directory.join(ORIGIN), format!("{origin}\n"))?;
    Ok(())
}

fn expect_line(command: &mut Command, expected: &str) -> Result<()> {
    let printed = host::read(command)?;
    if !printed.lines().any(|line| line == expected) {
        bail!("expected `{expected}` from {}, found:\n{printed}", command.get_program().display());
    }
    Ok(())
}
