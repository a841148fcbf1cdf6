//! `cargo xtask demo`: from a fresh checkout to a running cluster named `demo`, with the next commands to type. It
//! takes the fastest way: the newest etcd in the lab, otherwise one Debian package.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::lab::Lab;
use crate::{etcd, host};

const CLUSTER: &str = "demo";

pub fn run(lab: &Lab) -> Result<()> {
    eprintln!("building quorate");
    host::run(host::cargo()?.args(["build", "--release", "--locked", "--package", "quorate"]))?;
    let programs = host::release_directory()?;
    let etcd = lab.etcd(etcd::ensure_any(lab)?);
    let quorate = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(programs.join("quorate"));
        command.args(arguments).env("PATH", extended_path(&etcd)?);
        Ok(command)
    };
    match host::read(&mut quorate(&["status", CLUSTER])?) {
        Ok(status) => println!("The cluster `{CLUSTER}` is already there:\n\n{}", status.trim_end()),
        // No such cluster yet, or one that does not answer: `up` makes either whole, or says why it cannot.
        Err(_) => host::run(&mut quorate(&["up", CLUSTER])?)?,
    }
    print_next(&programs, &etcd);
    Ok(())
}

fn extended_path(first: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(std::iter::once(first.to_owned()).chain(env::split_paths(&path)))
        .with_context(|| format!("{} cannot stand in PATH", first.display()))
}

fn print_next(programs: &Path, etcd: &Path) {
    println!(
        "
To have `quorate` and `etcdctl` at hand in this shell:

  export PATH=\"{}:{}:$PATH\"

Then:

  quorate status {CLUSTER}
  eval \"$(quorate env {CLUSTER})\" && etcdctl put hello world && etcdctl get hello

And to take it down again:

  quorate destroy {CLUSTER} --without-backup",
        programs.display(),
        etcd.display()
    );
}
